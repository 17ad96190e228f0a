"""Replicas of the server on fixed ports, and a balancer from Debian's packages in front, run with the file that deploy/ ships."""
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "api"))
from server import BUILD, ROOT, Server, command, held_loading, read_events  # noqa: E402

DEPLOY = os.path.join(ROOT, "deploy")
N_REPLICAS = 3


def free_ports(n):
    """Ports that nobody has; all are held until the last is found, so they differ."""
    held = [socket.socket() for _ in range(n)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


class Replica(Server):
    """A server on a port of its own, which may end and come back there."""

    def __init__(self, number, port, *flags, hold):
        """hold: while a file of that name exists, it does not get its model loaded."""
        self.number, self.flags, self.fixed, self.hold = number, flags, port, hold
        self.start()

    def start(self, wait=True):
        super().__init__("--port", self.fixed, *self.flags, name=f"replica-{self.number}", env=held_loading(self.hold), wait=wait)
        self.port = self.fixed

    def start_loading(self):
        """It stands still while it loads, until loaded()."""
        self.hold.touch()
        self.start(wait=False)
        self.wait_log("loading ")

    def loaded(self):
        self.hold.unlink()
        self.wait_ready()


class Balancer:
    """haproxy or nginx in front of `ports`. What it is asked goes to self.port."""

    def __init__(self, kind, ports, folder):
        self.kind, (self.port, watch) = kind, free_ports(2)
        self.folder = folder
        self.log_path = os.path.join(folder, f"{kind}.log")
        env = dict(os.environ)
        if kind == "haproxy":
            for i, port in enumerate(ports):
                env[f"RODIMUS_{i + 1}"] = f"127.0.0.1:{port}"
            env.update(RODIMUS_BIND=f"127.0.0.1:{self.port}", RODIMUS_WATCH=f"127.0.0.1:{watch}")
            command = ["haproxy", "-db", "-f", os.path.join(DEPLOY, "haproxy.cfg")]
        else:
            command = ["nginx", "-p", folder, "-c", self.nginx_file(ports), "-g", "daemon off; user root;" if os.geteuid() == 0 else "daemon off;"]
        self.watch = watch
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def nginx_file(self, ports):
        """The shipped file with this machine's addresses; nothing else of it is changed."""
        with open(os.path.join(DEPLOY, "nginx.conf")) as f:
            text = f.read()
        for i, port in enumerate(ports):
            text = text.replace(f"server rodimus-{i + 1}:8080", f"server 127.0.0.1:{port}")
        text, n = re.subn(r"listen 8000\b", f"listen 127.0.0.1:{self.port}", text)
        assert n == 1 and "rodimus-" not in re.sub(r"#.*", "", text), text
        text = text.replace("/tmp/", self.folder + "/").replace("/dev/stdout", self.folder + "/access.log")
        path = os.path.join(self.folder, "nginx.conf")
        with open(path, "w") as f:
            f.write(text)
        return path

    def wait_ready(self):
        end = time.monotonic() + 20
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/health/ready")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            assert self.process.poll() is None and time.monotonic() < end, f"{self.kind} does not run: {open(self.log_path).read()[-2000:]}"
            time.sleep(0.05)

    def open(self, body, headers=None, path="/v1/completions", timeout=60):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        return connection, connection.getresponse()

    def post(self, body, headers=None, path="/v1/completions", timeout=60):
        connection, response = self.open(body, headers, path, timeout)
        try:
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


def installed(kind):
    return shutil.which(kind, path=os.environ["PATH"] + ":/usr/sbin") is not None
