"""tests/deploy/image.py TARGET FOLDER: the steps of deploy/Dockerfile up to TARGET, carried out in roots under FOLDER, one a stage.

Where there is no Docker engine this tells whether the recipe works: each stage's base is a Debian made by debootstrap, RUN is a shell under
chroot, COPY a copy. What it understands is what that file uses; any other instruction is an error. Prints the root of TARGET
and its settings as JSON. Needs root, debootstrap and the network."""
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCKERFILE = os.path.join(ROOT, "deploy", "Dockerfile")


def instructions(text):
    """(WORD, rest) of each instruction: comments gone, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        yield word.upper(), rest.strip()


def stages(text):
    """[(name, base, [(WORD, rest)])] in order."""
    found = []
    for word, rest in instructions(text):
        if word == "FROM":
            m = re.fullmatch(r"(\S+) AS (\S+)", rest)
            assert m, f"FROM {rest}: every stage has a name here"
            found.append((m[2], m[1], []))
        else:
            found[-1][2].append((word, rest))
    return found


def ignored():
    with open(os.path.join(ROOT, ".dockerignore")) as f:
        return [line.strip() for line in f if line.strip() and not line.startswith("#")]


def debian(release, root, base):
    """A minimal Debian in `root`, from a copy that is kept beside: the next stage needs one, too."""
    if not os.path.isdir(base):
        subprocess.run(["debootstrap", "--variant=minbase", release, base + ".part"], check=True, stdout=subprocess.DEVNULL)
        os.rename(base + ".part", base)
    subprocess.run(["cp", "-a", base, root], check=True)


class Stage:
    def __init__(self, root):
        self.root, self.settings = root, {"env": {}, "workdir": "/", "user": "0:0", "args": {}}

    def path(self, inside):
        return self.root + os.path.normpath(os.path.join(self.settings["workdir"], inside))

    def run(self, command):
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **self.settings["env"], **self.settings["args"]}
        shutil.copy("/etc/resolv.conf", self.root + "/etc/resolv.conf")
        inside = f"mount -t proc proc {shlex.quote(self.root)}/proc 2>/dev/null; exec chroot {shlex.quote(self.root)} /bin/sh -c {shlex.quote('cd ' + self.settings['workdir'] + ' && ' + command)}"
        done = subprocess.run(["unshare", "--mount", "sh", "-c", inside], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, f"RUN {command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"

    def copy(self, rest, known):
        words = rest.split()
        source = ROOT
        if words[0].startswith("--from="):
            source = known[words.pop(0)[7:]].root
        *froms, to = words
        names = ignored() if source == ROOT else []
        for name in froms:
            what = os.path.normpath(os.path.join(source, name.lstrip("/")))
            into = self.path(to)
            if to.endswith("/") and not os.path.isdir(what):
                into = os.path.join(into, os.path.basename(what))
            if os.path.isdir(what):
                skip = lambda folder, entries: [e for e in entries if folder == ROOT and any(fnmatch.fnmatch(e, n) for n in names)]
                shutil.copytree(what, into, dirs_exist_ok=True, ignore=skip, symlinks=True)
            else:
                os.makedirs(os.path.dirname(into), exist_ok=True)
                shutil.copy2(what, into)


def build(target, folder):
    os.makedirs(folder, exist_ok=True)
    with open(DOCKERFILE) as f:
        every = stages(f.read())
    bases = {name: base for name, base, _ in every}
    assert target in bases, f"no stage {target}"
    needed, todo = set(), [target]
    while todo:  # the stages that the target is made from
        name = todo.pop()
        if name in needed or name not in bases:
            continue
        needed.add(name)
        todo.append(bases[name])
        todo += [m for w, r in next(s for n, _, s in every if n == name) if w == "COPY" for m in re.findall(r"--from=(\S+)", r)]
    known = {}
    for name, base, steps in every:
        if name not in needed:
            continue
        stage = Stage(os.path.join(folder, name))
        shutil.rmtree(stage.root, ignore_errors=True)
        if base in known:
            subprocess.run(["cp", "-a", known[base].root, stage.root], check=True)
            stage.settings = json.loads(json.dumps(known[base].settings))
        else:
            m = re.fullmatch(r"debian:(\w+)-slim", base)
            assert m, f"FROM {base}: a base that is no Debian"
            debian(m[1], stage.root, os.path.join(folder, "base-" + m[1]))
        known[name] = stage
        for word, rest in steps:
            print(f"{name}: {word} {rest[:100]}", file=sys.stderr)
            if word == "RUN":
                stage.run(rest)
            elif word == "COPY":
                stage.copy(rest, known)
            elif word == "WORKDIR":
                stage.settings["workdir"] = rest
                os.makedirs(stage.path(rest), exist_ok=True)
            elif word == "ENV":
                stage.settings["env"].update(w.split("=", 1) for w in shlex.split(rest))
            elif word == "ARG":
                key, _, value = rest.partition("=")
                stage.settings["args"][key] = value
            elif word in ("ENTRYPOINT", "CMD"):
                stage.settings[word.lower()] = json.loads(rest)
            elif word == "HEALTHCHECK":
                stage.settings["healthcheck"] = json.loads(rest[rest.index("CMD ") + 4:])
            elif word in ("USER", "STOPSIGNAL", "EXPOSE", "VOLUME"):
                stage.settings[word.lower()] = rest
            else:
                raise AssertionError(f"{word}: not understood here")
    return known[target].root, known[target].settings


if __name__ == "__main__":
    made, said = build(sys.argv[1], sys.argv[2])
    print(json.dumps({"root": made, **said}, indent=1))
