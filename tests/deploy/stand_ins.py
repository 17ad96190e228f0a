"""docker, docker-compose and systemctl that only keep a list, for tests of deploy/roll that want no engine: what they would do is a line in `calls`."""
import json
import os
import subprocess

from replicas import DEPLOY

PROGRAM = r'''#!/usr/bin/python3 -IS
import fcntl, json, os, re, sys, time
name, words, folder = os.path.basename(sys.argv[0]), sys.argv[1:], os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0])))
with open(folder + "/calls", "a") as f:
    f.write(" ".join([name, *words]) + "\n")
if os.path.exists(folder + "/slow") and open(folder + "/slow").read() in " ".join(words):
    time.sleep(10)
lock = open(folder + "/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
state = json.load(open(folder + "/state"))
containers, units = state["containers"], state["units"]

def save():  # by a rename: whoever kills this leaves the old state or the new one
    with open(folder + "/state.new", "w") as f:
        json.dump(state, f)
    os.replace(folder + "/state.new", folder + "/state")

def inspect(form, c):
    up = c["State"]["Running"]
    c = {**c, "State": {**c["State"], "Status": "running" if up else "exited", "Health": {"Status": "healthy"}, "ExitCode": 0}, "RestartCount": 0}
    form = re.sub(r"\{\{if .State.Health\}\}(.*?)\{\{end\}\}", r"\1", form).replace("{{range .Config.Env}}{{println .}}{{end}}", "\n".join(c["Config"]["Env"]))
    def value(m):
        it = c
        for part in m[1].split("."):
            it = it[part]
        return str(it).lower() if isinstance(it, bool) else str(it)
    return re.sub(r"\{\{\.([\w.]+)\}\}", value, form)

if name == "docker":
    if words[0] == "inspect":
        if words[3] == "rodimus:cpu":
            print(state["image"])
        elif words[3] in containers:
            print(inspect(words[2], containers[words[3]]))
        else:
            sys.exit(1)
    elif words[0] == "logs":
        print("\n".join(state["log"]))
elif name == "docker-compose":
    while words[0].startswith("-"):
        del words[:2]
    if words == ["config", "--services"]:
        print("\n".join(state["services"]))
    elif words[0] == "config":
        print("services:")
        for service in state["services"]:
            given = [line.split("=", 1) for line in state.get("env_of", {}).get(service, state["env"])]
            print(f"  {service}:\n    environment:", *(f"      {name}: {value or 'null'}" for name, value in given), sep="\n")
        print("version: '3'")
    elif words[0] == "ps":
        print("\n".join(i for i, c in containers.items() if c["service"] == words[2]))
    elif words[0] == "up":
        old = next(i for i, c in containers.items() if c["service"] == words[-1])
        if containers[old]["Image"] != state["image"]:
            state["n"] += 1
            del containers[old]
            containers[f"c{state['n']}"] = {"Image": state["image"], "State": {"Running": words[-1] not in state["broken"]}, "service": words[-1],
                                            "Config": {"Image": "rodimus:cpu", "Env": state["env"]}}
        save()
elif name == "systemctl":
    if words[0] == "show":
        unit = units.get(words[3], {"LoadState": "loaded" if words[3].startswith("rodimus@") else "not-found"})
        print({"ActiveState": "inactive", "LoadState": "loaded", "UnitFileState": "disabled", "NRestarts": "0", **unit}[words[2]])
    elif words[0] == "list-units":
        print("\n".join(f"{unit} loaded" for unit in units if unit.startswith("rodimus@")))
    elif words[0] in ("restart", "start"):
        bad = words[1] in state["broken"]
        units.setdefault(words[1], {})["ActiveState"] = "failed" if bad else "active"
        save()
        sys.exit(bad)
elif name == "journalctl" and "-u" in words:
    print("\n".join(state["log"]))
'''


class StandIns:
    """containers: one of each service that runs; units: {name: {property: value}}; broken: what does not come up again."""

    def __init__(self, folder):
        self.folder = str(folder)
        os.makedirs(os.path.join(folder, "bin"))
        os.makedirs(os.path.join(folder, "etc"))
        program = os.path.join(folder, "bin", "docker")
        with open(program, "w") as f:
            f.write(PROGRAM)
        os.chmod(program, 0o755)
        for name in ("docker-compose", "systemctl", "journalctl"):
            os.symlink("docker", os.path.join(folder, "bin", name))
        self.script(os.path.join(folder, "bin", "id"), "#!/bin/sh\necho 0\n")
        self.env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "COMPOSE": "docker-compose"}
        names = [f"rodimus-{i}" for i in (1, 2, 3)]
        self.state = {"n": 3, "services": [*names, "balancer"], "image": "new", "env": ["RODIMUS_MODEL=/m"], "broken": [], "log": ["its words"],
                      "containers": {f"c{i + 1}": self.container(name) for i, name in enumerate(names)},
                      "units": {f"rodimus@{port}.service": {"ActiveState": "active", "UnitFileState": "enabled"} for port in (8081, 8082, 8083)}}

    @staticmethod
    def container(service, **more):
        return {"Image": "old", "State": {"Running": True}, "Config": {"Image": "rodimus:cpu", "Env": ["RODIMUS_MODEL=/m"]}, "service": service, **more}

    @staticmethod
    def script(path, text):
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, 0o755)

    @property
    def state(self):
        with open(os.path.join(self.folder, "state")) as f:
            return json.load(f)

    @state.setter
    def state(self, state):
        self.write("state", json.dumps(state))

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        """The path of a file with this text."""
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def read(self, name):
        with open(self.path(name)) as f:
            return f.read()

    def calls(self):
        return self.read("calls").splitlines() if os.path.exists(self.path("calls")) else []

    def begin(self, *words, script=os.path.join(DEPLOY, "roll")):
        return subprocess.Popen([script, *words], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def roll(self, *words, **how):
        """(exit status, output)"""
        script = self.begin(words[0], "--settle", "0", "--timeout", "1", *words[1:], **how)
        said = script.communicate(timeout=60)[0]
        return script.returncode, said
