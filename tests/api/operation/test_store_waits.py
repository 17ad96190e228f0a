"""How long a request waits for a store that is gone or slow: all its waits together have one bound, and the seconds of each are printed."""
import os
import signal
import socket
import sys
import time

import pytest

from server import ROOT, SLOWER
from talk import CHAT, COMPLETIONS, turn

sys.path.insert(0, os.path.join(ROOT, "tests"))
import object_stand_in  # noqa: E402

BOUND_S, BUSY_S = 10, 2  # BUSY_S: what generating takes, on a machine that has other work
TEXT = [{"role": "user", "content": "Once upon a time there was a king who had three sons. " * 8}]


class Hole:
    """A port where nobody answers, not even that nobody is there: the queue of its listener is full."""

    def __init__(self, port):
        self.sockets = [socket.socket()]
        self.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sockets[0].bind(("127.0.0.1", port))
        self.sockets[0].listen(0)
        for _ in range(4):
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", port))
            self.sockets.append(s)

    def close(self):
        for s in self.sockets:
            s.close()


def black_hole(store):
    store.process.kill()
    store.process.wait()
    return Hole(store.port)


def late(seconds):
    return lambda store: store.faults({"do": "wait", "s": seconds, "times": -1})


GONE = {"stopped": lambda store: store.process.send_signal(signal.SIGSTOP), "black hole": black_hole, "killed": lambda store: store.process.kill(),
        "three seconds late": late(2.9)}


@pytest.fixture
def store(tmp_path):
    store = object_stand_in.start(["--dir", tmp_path / "objects"])
    yield store
    store.process.kill()  # stopped or not
    store.process.wait()
    store.process.stdout.close()


def ask(server, kind):
    named = {"X-Session-Id": "talk"}
    return {"chat": lambda: server.post(CHAT, {"messages": TEXT, "max_tokens": 4}, headers=named, timeout=60),
            "response": lambda: server.post("/v1/responses", {"input": TEXT[0]["content"], "max_output_tokens": 4}, headers=named, timeout=60),
            "turn": lambda: server.post(COMPLETIONS, {"prompt": " there", "max_tokens": 4, "session_id": "one"}, timeout=60)}[kind]()


@pytest.mark.parametrize("kind,durability", [("chat", "turn"), ("response", "lazy"), ("turn", "lazy")])
@pytest.mark.parametrize("how", GONE)
def test_all_waits_of_a_request_for_a_store_have_one_bound(how, kind, durability, store, own_server):
    """With the default of state_timeout_ms. What is asked for is another server's, so all of it would come from the store."""
    a, b = (own_server("--state-url", f"{store.url}/fleet", "--state-endpoint", store.endpoint, "--session-durability", durability, env=store.env) for _ in range(2))
    turn(b, "one", "Once upon a time", session_create=True)
    assert ask(b, "chat").status == 200
    b.end()
    hole = GONE[how](store)
    began = time.monotonic()
    answer = ask(a, kind)
    waited = time.monotonic() - began
    print(f"waited: {how}, {kind}, {durability}: {waited:.1f} s, {answer.status}")
    if isinstance(hole, Hole):
        hole.close()
    assert answer.status == 200 or kind != "chat" and answer.status == 503 and answer.error["code"] in ("io", "unsure") and answer.header("Retry-After"), answer
    assert waited < (BOUND_S + BUSY_S) * SLOWER, f"{waited:.1f} s for {answer}"
