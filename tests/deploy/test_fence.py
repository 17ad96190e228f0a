"""A server that stands still in the middle of a turn while another goes on cannot overwrite; clocks an hour apart change nothing. RODIMUS_TEST_SOAK=1: it stands for 60 s."""
import glob
import os
import signal
import threading
import time

import pytest

import fleet as fleets
from server import PATIENCE_S, SLOWER, read_events
from stores import StandIn

PAUSE_S = 60 if os.environ.get("RODIMUS_TEST_SOAK") else 2
LONG = {"max_tokens": 300, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
SHORT = {**LONG, "max_tokens": 5}


@pytest.fixture
def store(tmp_path):
    store = StandIn(tmp_path / "objects")
    yield store
    store.close()


@pytest.fixture
def fleet(store):
    made = []

    def make(n, *flags, **more):
        made.append(fleets.Fleet(store, n, *flags, name="fence", **more))
        return made[-1]
    yield make
    for one in made:
        for server in one.servers:
            server.process.send_signal(signal.SIGCONT)
        one.close()


def turn(server, prompt, body=SHORT, **more):
    headers = more.pop("headers", None)
    return server.post("/v1/completions", {**body, "prompt": prompt, "session_id": "s", **more}, headers=headers, timeout=PAUSE_S + PATIENCE_S)


def good(answer):
    assert answer.status == 200, answer
    return answer.json


def ids(said):
    return said["choices"][0]["token_ids"]


def alone(*turns):
    """The ids of such turns, (prompt, body) each, on one server."""
    class Memory:
        flags, env = (), {}
    one = fleets.Fleet(Memory, 1, name="fence-alone")
    try:
        return [ids(good(turn(one.servers[0], prompt, body, session_create=i == 0))) for i, (prompt, body) in enumerate(turns)]
    finally:
        one.close()


class InBackground:
    """A turn on a server that is then stopped, in the middle of its tokens or of its write."""

    def __init__(self, store, server, where, prompt, **more):
        if where == "write":
            store.faults({"method": "PUT", "key": "/s/.*state$", "do": "wait", "s": PAUSE_S / 2, "times": 1})
        self.server, self.answer = server, None
        self.thread = threading.Thread(target=lambda: setattr(self, "answer", turn(server, prompt, LONG, **more)))
        self.thread.start()
        if where == "tokens":
            server.wait_metric("rodimus_slots_used", lambda n: n == 1)
        else:
            end = time.monotonic() + PATIENCE_S * SLOWER
            while store.ask("GET", "/_faults")[0]["times"]:
                assert time.monotonic() < end, "it writes nothing"
                time.sleep(0.01)
        server.process.send_signal(signal.SIGSTOP)

    def goes_on(self):
        time.sleep(PAUSE_S)
        self.server.process.send_signal(signal.SIGCONT)
        self.thread.join()
        return self.answer


@pytest.mark.parametrize("where", ["tokens", "write"])
def test_a_whole_answer_of_a_server_that_stood_still_is_made_again_behind_the_others_turn(store, fleet, where):
    a, b = fleet(2).servers
    good(turn(a, [300, 301], session_create=True))
    paused = InBackground(store, a, where, [400, 401])
    others = good(turn(b, [500, 501]))
    assert others["session"]["version"] == 2
    late = good(paused.goes_on())
    assert late["session"]["version"] == 3, late["session"]
    last = good(turn(b, [600]))
    assert last["session"]["version"] == 4
    _, *want = alone(([300, 301], SHORT), ([500, 501], SHORT), ([400, 401], LONG), ([600], SHORT))
    assert [ids(others), ids(late), ids(last)] == want


@pytest.mark.parametrize("where", ["tokens", "write"])
def test_a_late_turn_that_expects_a_version_is_refused(store, fleet, where):
    a, b = fleet(2).servers
    good(turn(a, [300, 301], session_create=True))
    paused = InBackground(store, a, where, [400, 401], expected_version=1)
    others = good(turn(b, [500, 501]))
    assert paused.goes_on().status == 412, paused.answer
    last = good(turn(a, [600]))
    assert (others["session"]["version"], last["session"]["version"]) == (2, 3)
    assert [ids(others), ids(last)] == alone(([300, 301], SHORT), ([500, 501], SHORT), ([600], SHORT))[1:]


@pytest.mark.parametrize("where", ["tokens", "write"])
def test_a_retry_elsewhere_of_a_turn_that_stands_still_runs_once(store, fleet, where):
    a, b = fleet(2).servers
    good(turn(a, [300, 301], session_create=True))
    key = {"Idempotency-Key": "k"}
    paused = InBackground(store, a, where, [400, 401], headers=key)
    retried = good(turn(b, [400, 401], LONG, headers=key))
    assert good(paused.goes_on()) == retried and retried["session"]["version"] == 2
    assert good(turn(a, [600]))["session"]["version"] == 3


def test_a_stream_of_a_server_that_stood_still_ends_in_an_error(store, fleet):
    a, b = fleet(2).servers
    good(turn(a, [300, 301], session_create=True))
    connection, response = a.open("POST", "/v1/completions", {**LONG, "prompt": [400, 401], "session_id": "s", "stream": True}, timeout=PAUSE_S + PATIENCE_S)
    events = read_events(response)
    next(events)
    a.process.send_signal(signal.SIGSTOP)
    others = good(turn(b, [500, 501]))
    time.sleep(PAUSE_S)
    a.process.send_signal(signal.SIGCONT)
    rest = [e.data for e in events if not e.comment]
    connection.close()
    errors = [e["error"] for e in rest if e != "[DONE]" and "error" in e]
    assert len(errors) == 1 and errors[0]["code"] == "conflict", rest[-2:]
    assert not any("session" in e for e in rest if e != "[DONE]"), rest[-3:]
    last = good(turn(a, [600]))
    assert (others["session"]["version"], last["session"]["version"]) == (2, 3)
    assert [ids(others), ids(last)] == alone(([300, 301], SHORT), ([500, 501], SHORT), ([600], SHORT))[1:]


@pytest.mark.parametrize("ttl_s", [86400, 1800])
def test_clocks_an_hour_apart_change_nothing(store, fleet, ttl_s):
    """Of three servers one is an hour ahead and one behind; ttl_s: also of sessions that would have ended by one clock and not by another."""
    library = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    assert library, "Debian's package libfaketime is not installed"
    store.ask("PUT", "/_clock", {"ahead_s": 0, "checked": False})
    off = lambda i: {"LD_PRELOAD": library[0], "FAKETIME": f"{(i - 1) * 3600:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"} if i != 1 else {}
    servers, talks = fleet(3, "--session-ttl-s", ttl_s, env=off), fleets.talks(6, 8, fleets.KINDS[:2])
    fleets.drive(servers, talks)
    for talk in talks:
        talk.check_end(servers)
    wrong, read_again = fleets.differences(talks, fleets.alone(talks))
    assert not wrong and not read_again, (read_again, wrong[:2])
