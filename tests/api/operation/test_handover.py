"""The port goes from one process to the next: a socket that systemd hands over (LISTEN_FDS), a port that two share (`listen shared`)."""
import http.client
import json
import random
import select
import signal
import socket
import subprocess
import threading
import time

import pytest

import far
from access import certificate
from server import RODIMUS, SLOWER, command, environment, free_port, handing_over, held_loading, read_events, shimmed

BODY = {"prompt": [300], "max_tokens": 6, "ignore_eos": True}
KINDS = ("a connection each", "kept connections", "streams", "slow to begin", "turns of a session")


def listener(host="127.0.0.1", port=0):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=4096)


class Crowd:
    """Clients without a balancer that ask a port until stop(): each kind in its own way, n threads of each. Nothing is tried twice; a
    connection whose end is seen before a request is sent on it is no loss, as every pool of connections looks. A session has one client."""

    def __init__(self, port, n=4, tls=None, host="127.0.0.1"):
        self.host, self.port, self.tls = host, port, tls
        self.answered, self.lost, self.slowest_s = {k: 0 for k in KINDS}, [], 0
        self.over, self.lock, self.versions = threading.Event(), threading.Lock(), {}
        self.threads = [threading.Thread(target=self._run, args=(kind, random.Random(i)), daemon=True) for kind in KINDS for i in range(n)]
        for t in self.threads:
            t.start()

    def _connect(self):
        make = http.client.HTTPConnection if not self.tls else lambda *a, **k: http.client.HTTPSConnection(*a, context=self.tls, **k)
        connection = make(self.host, self.port, timeout=60 * SLOWER)
        connection.connect()
        return connection

    def _ask(self, connection, kind, session):
        stream = kind == "streams"
        body = {**BODY, "max_tokens": 30, "stream": True} if stream else BODY
        if kind == "turns of a session":
            body = {**BODY, "session_id": session, "session_create": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status} {response.read()!r}")
        if stream and [e.data for e in read_events(response)][-1] != "[DONE]":
            raise RuntimeError("a stream without an end")
        if not stream:
            answer = json.loads(response.read())
            if answer["usage"]["completion_tokens"] != 6:
                raise RuntimeError("not the whole answer")
            if "session" in answer:
                self.versions.setdefault(session, []).append(answer["session"]["version"])
        return not response.will_close

    def _run(self, kind, rng):
        connection, session = None, f"s{threading.get_ident()}"
        while not self.over.is_set():
            began = time.monotonic()
            try:
                if connection and select.select([connection.sock], [], [], 0)[0]:
                    connection.close()
                    connection = None
                connection = connection or self._connect()
                if kind == "slow to begin":
                    time.sleep(rng.uniform(0, 0.4))
                keeps = self._ask(connection, kind, session)
                with self.lock:
                    self.answered[kind] += 1
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            except (OSError, http.client.HTTPException, RuntimeError) as e:
                keeps = False
                with self.lock:
                    self.lost.append(f"{kind}: {e!r}")
            if not keeps or kind != "kept connections":
                connection.close() if connection else None
                connection = None
            time.sleep(rng.uniform(0, 0.05))
            if kind == "kept connections" and rng.random() < 0.1:
                time.sleep(rng.uniform(0, 1))

    def stop(self):
        self.over.set()
        for t in self.threads:
            t.join(90 * SLOWER)
        assert not any(t.is_alive() for t in self.threads)

    def check(self, at_least=10):
        print(f"{sum(self.answered.values())} answered, {len(self.lost)} lost, the slowest took {self.slowest_s:.2f} s: {self.answered}")
        assert not self.lost, f"{len(self.lost)} of {sum(self.answered.values())}: {self.lost[:5]}"
        assert min(self.answered.values()) >= at_least, self.answered
        assert self.versions
        for versions in self.versions.values():
            assert versions == list(range(1, len(versions) + 1)), versions


FLAGS = ("--device", "null:2", "--slots", 64, "--drain-notice-ms", 200)


# ---- a socket that is handed over ----

def test_a_socket_that_is_handed_over_is_the_port(own_server):
    with listener() as port:
        s = own_server(*FLAGS, "--port", 1, "--listen", "early", sockets=[port])
        assert s.port == port.getsockname()[1] and s.complete(max_tokens=1)
        assert "handed over" in s.log()
        assert s.stop() == 0
        assert port.fileno() >= 0 and socket.create_connection(port.getsockname(), 5)  # it goes on


@pytest.mark.parametrize("names,order", [(None, (0, 1)), ("port:admin", (0, 1)), ("admin:rodimus.socket", (1, 0))])
def test_a_second_socket_is_the_admin_port(own_server, names, order):
    """By its name, and without names by its place."""
    with listener() as first, listener("::1") as second:
        s = own_server(*FLAGS, sockets=[first, second], env={"LISTEN_FDNAMES": names} if names else None)
        wanted = [x.getsockname()[1] for x in (first, second)]
        assert [s.port, s.admin_port] == [wanted[i] for i in order]
        hosts = [line.split("//")[1].rsplit(":", 1)[0] for line in s.lines[:2]]
        assert hosts == [("127.0.0.1", "[::1]")[i] for i in order], s.lines
        assert s.stop() == 0


def test_sockets_for_another_process_are_left_alone(own_server):
    s = own_server(*FLAGS, env={"LISTEN_PID": "1", "LISTEN_FDS": "1"})
    assert s.complete(max_tokens=1)
    assert s.stop() == 0


def test_a_number_of_sockets_that_is_none_ends_the_start():
    for count in ("abc", "1x", "-1", ""):
        done = subprocess.run([RODIMUS, "serve", "--port", "0", "--device", "null"], capture_output=True, text=True, timeout=30 * SLOWER,
                              env={**environment(), "LISTEN_FDS": count})
        assert done.returncode == 2 and f"LISTEN_FDS: '{count}' is no number of sockets." in done.stderr, (count, done)


def give(sockets, names=None, **more):
    """What a start says that is handed the wrong sockets."""
    before, popen = handing_over(*sockets)
    env = {**environment(), **({"LISTEN_FDNAMES": names} if names else {})}
    return subprocess.run([*before, RODIMUS, "serve", "--port", "0", "--device", "null"], capture_output=True, text=True, env=env,
                          timeout=30 * SLOWER, **popen, **more)


def test_a_socket_that_cannot_be_the_port_is_named(tmp_path):
    with socket.socket() as deaf, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, \
            socket.socket(socket.AF_UNIX) as local, listener() as good, listener() as other, listener() as third:
        deaf.bind(("127.0.0.1", 0))
        local.bind(str(tmp_path / "local"))
        local.listen()
        for sockets, names, word in (([deaf], None, "descriptor 3 does not listen"), ([datagrams], None, "no TCP socket"),
                                     ([good, local], None, "descriptor 4 is no TCP socket"), ([good, other, third], None, "3 sockets"),
                                     ([good, other], "a:b", "'a:b' names no socket admin"), ([good, other], "admin:admin", "two sockets"),
                                     ([good, other], "admin", "LISTEN_FDNAMES")):
            done = give(sockets, names)
            assert done.returncode == 2 and word in done.stderr and "LISTEN_FD" in done.stderr, (word, done)
            assert len(done.stderr.splitlines()) == 1 and done.stdout == "", done


def test_who_comes_while_the_model_is_loaded_waits(own_server, tmp_path):
    """No 503, whatever `listen` says: who restarts a server refuses nobody."""
    hold = tmp_path / "hold"
    hold.touch()
    with listener() as port:
        s = own_server("--listen", "early", sockets=[port], env=held_loading(hold), wait=False)
        s.wait_log("loading ")
        s.port = port.getsockname()[1]
        got = []
        t = threading.Thread(target=lambda: got.append(s.post("/v1/completions", {"prompt": "a", "max_tokens": 1})))
        t.start()
        time.sleep(0.5)
        assert not got
        hold.unlink()
        t.join(30 * SLOWER)
        assert got and got[0].status == 200, got
        assert s.stop() == 0


@pytest.mark.parametrize("overlap,tls", [(False, False), (True, False), (False, True)], ids=["one after the other", "the next one first", "TLS"])
def test_a_restart_with_a_socket_handed_over_loses_nothing(own_server, tmp_path, overlap, tls):
    """Under load, three times. One after the other, as `systemctl restart` does it: clients wait in the queue of the socket meanwhile."""
    flags = (*FLAGS, "--state-dir", tmp_path / "states")
    if tls:
        flags += ("--tls-cert", certificate(tmp_path, "one")[0], "--tls-key", tmp_path / "one.key")
    with listener() as port:
        s = own_server(*flags, sockets=[port])
        crowd = Crowd(s.port, tls=s.tls)
        for _ in range(3):
            time.sleep(0.7)
            following = own_server(*flags, sockets=[port]) if overlap else None
            assert s.stop() == 0, s.log()
            s = following or own_server(*flags, sockets=[port])
        time.sleep(0.7)
        crowd.stop()
        crowd.check()
        assert s.metric("rodimus_http_streams") == 0 and s.stop() == 0


# ---- a port that two processes share ----

def test_two_servers_share_a_port_and_both_are_asked(own_server):
    port = free_port()
    pair = [own_server(*FLAGS, "--port", port, "--listen", "shared") for _ in range(2)]
    for _ in range(100):
        assert pair[0].complete(max_tokens=1)
    assert all(s.log().count("POST") for s in pair), [s.log().count("POST") for s in pair]
    for s in pair:
        assert s.stop() == 0


def test_a_port_is_shared_by_those_alone_that_say_so(own_server):
    alone, shared = own_server(*FLAGS), own_server(*FLAGS, "--port", free_port(), "--listen", "shared")
    for port, listen in ((alone.port, "shared"), (shared.port, "ready"), (shared.port, "early")):
        done = command("serve", "--device", "null", "--port", port, "--listen", listen)
        assert done.returncode == 1 and "in use" in done.stderr and done.stderr.count("\n") == 1 and done.stderr.endswith(".\n"), done


def test_sharing_a_port_it_takes_nobody_before_the_model_is_loaded(own_server, tmp_path):
    hold, port = tmp_path / "hold", free_port()
    hold.touch()
    first = own_server(*FLAGS, "--port", port, "--listen", "shared")
    second = own_server("--port", port, "--listen", "shared", env=held_loading(hold), wait=False)
    second.wait_log("loading ")
    for _ in range(100):
        assert first.complete(max_tokens=1)
    hold.unlink()
    second.wait_ready()
    assert first.stop() == 0 and second.complete(max_tokens=1) and second.stop() == 0


@pytest.mark.parametrize("late_ms", [0, 50], ids=["at once", "slowly"])
def test_a_restart_on_a_shared_port_loses_nothing(own_server, tmp_path, late_ms):
    """Under load, three times: the next process is ready, then the first one ends. The few that are not answered at the end of one connect
    a second later. Slowly: who connects after the last one was accepted has 50 ms for it."""
    flags, port = (*FLAGS, "--listen", "shared", "--state-dir", tmp_path / "states"), free_port()
    env = shimmed(RODIMUS_TEST_CLOSE_MS=str(late_ms))
    s = own_server(*flags, "--port", port, env=env)
    crowd = Crowd(port)
    for _ in range(3):
        following = own_server(*flags, "--port", port, env=env)
        time.sleep(0.5)
        assert s.stop() == 0, s.log()
        s = following
        time.sleep(0.5)
    crowd.stop()
    crowd.check()
    assert s.metric("rodimus_http_streams") == 0 and s.stop() == 0


@pytest.mark.parametrize("stopped_s", [0, 1], ids=["at once", "late"])
def test_a_restart_on_a_shared_port_loses_no_client_that_is_far(own_server, tmp_path, stopped_s):
    """A handshake takes 240 ms: who has begun it before the port closes gets through. Late: the process stands still beyond the time at which
    it would close its port, as on a busy machine."""
    with far.line(0.12) as namespaces:
        if not namespaces:
            pytest.skip("this user or kernel makes no network namespaces and TUN interfaces")
        flags = (*FLAGS, "--listen", "shared", "--host", far.ADDRESSES[0], "--port", free_port(), "--state-dir", tmp_path / "states")
        serve = lambda: far.inside(namespaces[0], lambda: own_server(*flags))
        s = serve()
        crowd = far.inside(namespaces[1], lambda: Crowd(s.port, n=10, host=far.ADDRESSES[0]))
        for _ in range(3):
            time.sleep(0.5)
            following = serve()
            time.sleep(0.5)
            s.terminate()
            if stopped_s:
                s.wait_log("SIGTERM: draining")
                s.process.send_signal(signal.SIGSTOP)
                time.sleep(stopped_s)
                s.process.send_signal(signal.SIGCONT)
            assert s.wait() == 0, s.log()
            s = following
        time.sleep(1)
        crowd.stop()
        crowd.check()
        assert s.stop() == 0
