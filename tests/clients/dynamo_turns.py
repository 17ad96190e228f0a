"""Conversations through Dynamo's frontend, each history whole: each answer and its cached_tokens are what one server gives, while a server is killed; a client that
leaves frees its slot."""
import contextlib
import http.client
import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import time

from replicas import ROOT, Replica, free_ports
from server import MODEL, read_events

N_SESSIONS, N_TURNS, N_CLIENTS = 64, 6, 8
PATIENCE_S = 120
SERVER = ["--model", MODEL, "--slots", 16, "--listen", "ready"]
WORKER = os.path.join(ROOT, "deploy", "dynamo", "worker.py")


def package():
    return f"ai-dynamo=={importlib.metadata.version('ai-dynamo')}"


def ask(port, body, session=None, timeout=60):
    """(text, usage, token ids of the prompt, of the answer); OSError where the request is to be repeated."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **({"X-Dynamo-Session-ID": session} if session else {})})
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"{response.status} {response.read()[:300].decode(errors='replace')}")
        if not body.get("stream"):
            answer = json.loads(response.read())
            choice = answer["choices"][0]
            return choice["text"], answer["usage"], choice.get("prompt_token_ids"), choice.get("token_ids")
        text, usage, done = "", None, False
        for event in read_events(response):
            if event.comment:
                continue
            done = event.data == "[DONE]"
            if done:
                break
            if "choices" not in event.data:
                raise OSError(f"in the stream: {event.data}")
            text += "".join(choice["text"] or "" for choice in event.data["choices"])
            usage = event.data.get("usage") or usage
        if not done or not usage:
            raise OSError("the stream broke off")
        return text, usage, None, None
    except (http.client.HTTPException, ValueError, AssertionError) as broken:
        raise OSError(repr(broken)) from broken
    finally:
        connection.close()


def said(i, turn):
    return f" On day {turn} the fox number {i} went into the wood and met"


def alone(folder):
    """[[(prompt, answer, tokens of it that a session has read)] of each session], by one server that reads each history whole."""
    server = Replica("alone", free_ports(1)[0], *SERVER)
    try:
        expected = []
        for i in range(N_SESSIONS):
            text, held, turns = "", [], []
            for turn in range(N_TURNS):
                text += said(i, turn)
                answer, _, prompt, ids = ask(server.port, {"model": "tales", "prompt": text, "max_tokens": 8, "temperature": 0, "return_token_ids": True})
                goes_on = bool(held) and prompt[:len(held)] == held and len(prompt) > len(held)
                turns.append((text, answer, len(held) - 1 if goes_on else 0))
                held, text = prompt + ids, text + answer
            expected.append(turns)
        return expected
    finally:
        server.kill()


class Site:
    """Servers, a worker beside each, and the frontend."""

    def __init__(self, folder):
        self.folder, self.servers, self.processes = folder, {}, {}
        self.env = {**os.environ, "DYN_FILE_KV": os.path.join(folder, "found"), "DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_LOG": "info", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self.port, = free_ports(1)
        for name in "ab":
            self.servers[name] = server = Replica(f"dynamo-{name}", free_ports(1)[0], *SERVER)
            self.run(f"worker-{name}", WORKER, "--server", f"http://127.0.0.1:{server.port}", "--model", MODEL, "--model-name", "tales", "--endpoint-types", "completions",
                     "--discovery-backend", "file", "--event-plane", "zmq")
        self.run("frontend", "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(self.port), "--discovery-backend", "file", "--event-plane", "zmq",
                 "--router-mode", "round-robin", "--router-session-affinity-ttl-secs", "600")

    def run(self, name, *words):
        with open(os.path.join(self.folder, f"{name}.log"), "w", encoding="utf-8") as log:
            self.processes[name] = subprocess.Popen([sys.executable, *words], stdout=log, stderr=log, env=self.env, cwd=self.folder)

    def log(self, name):
        with open(os.path.join(self.folder, f"{name}.log"), encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_ready(self):
        """Both servers have had a request."""
        end = time.monotonic() + PATIENCE_S
        while not all(server.metric("rodimus_engine_requests_finished_total") for server in self.servers.values()):
            with contextlib.suppress(OSError):
                ask(self.port, {"model": "tales", "prompt": "Hm", "max_tokens": 1})
            for name, process in self.processes.items():
                assert process.poll() is None and time.monotonic() < end, f"{name} does not run: {self.log(name)[-2000:]}"
            time.sleep(0.2)

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.wait(20)
        for server in self.servers.values():
            server.kill()


class Clients:
    def __init__(self, site, expected):
        self.site, self.expected, self.lock = site, expected, threading.Lock()
        self.done, self.repeated, self.wrong, self.less, self.slowest_s, self.went_on = 0, 0, [], {}, 0, 0
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(N_CLIENTS)]

    def turn(self, i, turn):
        text, answer, cached = self.expected[i][turn]
        body = {"model": "tales", "prompt": text, "max_tokens": 8, "temperature": 0} | ({"stream": True, "stream_options": {"include_usage": True}} if (i + turn) % 2 else {})
        began, repeated = time.monotonic(), 0
        while True:
            try:
                found, usage, *_ = ask(self.site.port, body, f"fox-{i}")
                break
            except OSError as fault:
                repeated += 1
                if time.monotonic() - began > PATIENCE_S:
                    with self.lock:
                        self.wrong.append((i, turn, str(fault)))
                    return
                time.sleep(0.2)
        with self.lock:
            self.repeated += repeated
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            if found != answer:
                self.wrong.append((i, turn, found, answer))
            now = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            self.went_on += bool(cached) and now == cached
            if cached and now != cached:
                self.less.setdefault(i, []).append((turn, now, cached))

    def run(self, n):
        for turn in range(N_TURNS):
            for i in range(n, N_SESSIONS, N_CLIENTS):
                self.turn(i, turn)
                with self.lock:
                    self.done += 1


def leave(site):
    """A client that leaves its stream; the seconds until the slot is free."""
    def left():
        return sum(server.metric("rodimus_engine_requests_cancelled_total") for server in site.servers.values())
    before = left()
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    connection.request("POST", "/v1/completions", json.dumps({"model": "tales", "prompt": "Once", "max_tokens": 100000, "ignore_eos": True, "stream": True}),
                       {"Content-Type": "application/json", "X-Dynamo-Session-ID": "leaves"})
    response = connection.getresponse()
    assert response.status == 200 and response.readline(), response.status
    began = time.monotonic()
    response.close()
    connection.close()
    while left() == before:
        assert time.monotonic() - began < 20, "the server goes on for a client that has left"
        time.sleep(0.01)
    return round(time.monotonic() - began, 2)


def scenario(folder):
    expected = alone(folder)
    n_go_on = sum(cached > 0 for turns in expected for *_, cached in turns)
    assert n_go_on > N_SESSIONS * (N_TURNS - 1) / 2, f"{n_go_on} turns go on where the one before ended"
    site = Site(folder)
    try:
        site.wait_ready()
        freed_s = leave(site)
        clients = Clients(site, expected)
        for thread in clients.threads:
            thread.start()
        while clients.done < N_SESSIONS * N_TURNS / 2:
            time.sleep(0.02)
        with clients.lock:
            early = dict(clients.less)
            used = {name: server.metric("rodimus_sessions") for name, server in site.servers.items()}
        site.servers["a"].kill()
        for thread in clients.threads:
            thread.join()
        moved = {i: len(less) for i, less in clients.less.items()}
        figures = {"turns": clients.done, "wrong": len(clients.wrong), "go_on": n_go_on, "went_on_with_all_cached": clients.went_on, "read_again": sum(moved.values()), "repeated_by_clients": clients.repeated,
                   "slowest_turn_s": round(clients.slowest_s, 1), "sessions_by_server_at_the_kill": used, "freed_after_leaving_s": freed_s}
        assert not clients.wrong, f"{clients.wrong[:3]}; {figures}"
        assert not early, f"read again before a server was killed: {early}; {figures}"
        assert max(moved.values(), default=0) <= 1 and len(moved) <= used["a"], f"read again more often than once: {moved}; {figures}"
        assert min(used.values()) > 8, f"one server has nearly all: {figures}"
        assert site.processes["worker-a"].wait(30) == 0, "the killed server's worker runs on"
        return figures
    finally:
        site.stop()
