"""A store that is killed, stopped, slow, full, forbidden, throttled, or wrong: turns that need it are refused within 10 s and say when to ask again, threads and memory
stay bounded, and when the store is well again so is the server: each turn that was answered is there, and none is there twice."""
import concurrent.futures
import re
import time

import pytest

import fleet as fleets
from server import PATIENCE_S, SLOWER
from stores import StandIn

N_ASLEEP, BOUND_S, BUSY_S = 16, 10, 2  # BUSY_S: of a machine that has other work
ALWAYS = {"times": -1}
READS, WRITES = {"method": "GET", "key": "/s/.*state$", **ALWAYS}, {"method": "PUT", **ALWAYS}
FAULTS = {
    "killed": lambda store: store.kill(),
    "stopped": lambda store: store.pause(),
    "slow": lambda store: store.faults({**READS, "do": "slow", "bps": 1024}, {**WRITES, "do": "slow_in", "bps": 1024}),
    "full": lambda store: store.faults({**WRITES, "do": "status", "status": 507, "code": "InsufficientStorage"}),
    "forbidden": lambda store: store.faults({"do": "status", "status": 403, "code": "AccessDenied", **ALWAYS}),
    "throttled": lambda store: store.faults({"do": "status", "status": 503, "code": "SlowDown", **ALWAYS}),
    "truncating": lambda store: store.faults({**READS, "do": "truncate", "at": 100000}),
    "flipping a byte": lambda store: store.faults({**READS, "do": "flip", "at": 100000}),
    "flipping a byte of the header": lambda store: store.faults({**READS, "do": "flip", "at": 40}),
    "answering garbage": lambda store: store.faults({**READS, "do": "garbage"}),
    "answering a text": lambda store: store.faults({**READS, "do": "text", "text": "<x>", "status": 200}),
    "answering without end": lambda store: store.faults({**READS, "do": "endless"}),
    "answering without ETag": lambda store: store.faults({**READS, "do": "no_etag"}),
    "answering headers without end": lambda store: store.faults({**READS, "do": "headers", "bytes": 400000}),
    "failing at writes": lambda store: store.faults({**WRITES, "do": "status", "status": 500, "code": "InternalError"}),
    "hanging": lambda store: store.faults({"do": "hang", "s": 60, **ALWAYS}),
    "closing behind a write": lambda store: store.faults({**WRITES, "do": "close_after"}, {"method": "HEAD", "do": "close", **ALWAYS}),
}
UNSURE = {"stopped", "slow", "hanging", "closing behind a write"}  # a write may have been done
NEEDS_NO_WRITE = {"truncating", "flipping a byte", "flipping a byte of the header", "answering without end"}  # and what is in memory is not read
MAY_BE_READ = {"full", "failing at writes"}  # sleeping sessions, until the store is taken for one out of reach
LAZY = ("killed", "stopped", "slow", "full", "forbidden", "throttled", "hanging", "failing at writes", "flipping a byte")  # sessions in memory go on


def heal(kind, store):
    if kind == "killed":
        store.again()
    elif kind == "stopped":
        store.go_on()
    else:
        store.faults()


@pytest.fixture
def store(tmp_path):
    store = StandIn(tmp_path / "objects")
    yield store
    store.close()


@pytest.fixture
def pair(store):
    """(A, B, both): A is asked while the store fails; B has made what A never saw."""
    made = []

    def make(durability):
        made.append(fleets.Fleet(store, 2, "--session-durability", durability, name="store-faults", env={"RODIMUS_TEST_PATIENCE_MS": "0"}))  # a user's
        return made[-1]
    yield make
    for one in made:
        one.close()


class Plain(fleets.Turns):
    """Each of its requests is the same when it is asked for again."""
    more = False


class Only:
    """Of a fleet one server."""

    def __init__(self, server):
        self.server = server

    def ask(self, method, path, body=None, headers=None, timeout=60):
        return self.server.ask(method, path, body, headers=headers, timeout=timeout)


def n_threads(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(re.search(r"Threads:\s+(\d+)", f.read())[1])


def timed_turn(server, talk):
    """The talk's next turn, asked for once and not taken into account: (answer, seconds)."""
    n, was = len(talk.rows), talk.draw.getstate()
    body = talk.body(talk.id, n)
    talk.draw.setstate(was)
    began = time.monotonic()
    answer = server.post("/v1/completions", body, headers={"Idempotency-Key": f"{talk.id}/{n}"}, timeout=4 * BOUND_S)
    return answer, time.monotonic() - began


def assert_refused(kind, answer, seconds):
    codes = ("io", "conflict", "unsure") if kind in UNSURE else ("io", "conflict")
    assert answer.status == 503 and int(answer.header("Retry-After")) >= 1 and answer.error["code"] in codes, answer
    assert seconds < (BOUND_S + BUSY_S) * SLOWER, f"{seconds:.1f} s for {answer}"


@pytest.mark.parametrize("kind,durability", [*((kind, "turn") for kind in FAULTS), *((kind, "lazy") for kind in LAZY)])
def test_turns_that_need_a_store_that_fails_are_refused_and_come_back(kind, durability, store, pair):
    both = pair(durability)
    a, b = both.servers
    awake, asleep = Plain(0, 2), [Plain(1 + i, 2) for i in range(N_ASLEEP)]
    awake.step(Only(a))
    for talk in asleep:
        talk.step(Only(b))
    both.restart(1)  # what was lazy is written
    threads, rss = n_threads(a), a.rss_bytes()
    FAULTS[kind](store)
    with concurrent.futures.ThreadPoolExecutor(N_ASLEEP) as pool:
        asked = [pool.submit(timed_turn, a, talk) for talk in asleep]
        while not all(one.done() for one in asked):
            assert n_threads(a) <= threads + 40 and a.rss_bytes() < rss + (200 << 20), (n_threads(a), threads, a.rss_bytes(), rss)
            time.sleep(0.05)
        for one in asked:
            if durability != "lazy" or kind not in MAY_BE_READ or one.result()[0].status != 200:
                assert_refused(kind, *one.result())
    answer, seconds = timed_turn(a, awake)
    if kind in NEEDS_NO_WRITE or durability == "lazy":
        assert answer.status == 200 and answer.json["session"]["version"] == 2, answer
        assert seconds < (BOUND_S + BUSY_S) * SLOWER, f"{seconds:.1f} s for {answer}"
    elif kind != "answering without ETag" or answer.status != 200:  # 304 needs none
        assert_refused(kind, answer, seconds)
    assert a.get("/health/live").status == 200
    heal(kind, store)
    healed = time.monotonic()
    for talk in [awake, *asleep]:
        talk.step(Only(a))
    assert time.monotonic() - healed < PATIENCE_S * SLOWER
    for talk in [awake, *asleep]:
        talk.check_end(Only(a))
    wrong, _ = fleets.differences([awake, *asleep], fleets.alone([awake, *asleep]))
    assert not wrong, wrong[:2]
    both.restart(0)
    for talk in [awake, *asleep]:
        talk.check_end(both)


@pytest.mark.parametrize("body_alone,knows", [(False, True), (False, False), (True, True), (True, False)])
def test_yesterdays_body_takes_no_turn_away(body_alone, knows, store, pair):
    """200 with the version before: with its own ETag, or with the newest one's. knows: the server had the newest version; without that the metadata tell."""
    both = pair("turn")
    a, b = both.servers
    talk = Plain(0, 4)
    for _ in range(2):
        talk.step(Only(a if knows else b))
    store.faults({**READS, "do": "stale_body" if body_alone else "stale"})
    answer, seconds = timed_turn(a, talk)
    if answer.status == 200:
        assert answer.json["session"]["version"] == 3, answer
    else:
        assert_refused("yesterday's", answer, seconds)
    store.faults()
    for _ in range(2):
        talk.step(Only(b))
    talk.check_end(both)
    wrong, _ = fleets.differences([talk], fleets.alone([talk]))
    assert not wrong, wrong


@pytest.mark.parametrize("kind", FAULTS)
def test_chats_that_come_whole_go_on_whatever_the_store_does(kind, store, pair):
    """From memory, or what was elsewhere is read again: no error, and seconds at most; when the store is well again nothing is read again on any server."""
    both = pair("turn")
    a, b = both.servers
    awake, asleep, later = fleets.Whole(0, 6), fleets.Whole(1, 2), fleets.Whole(2, 4)
    awake.step(Only(a))
    asleep.step(Only(b))
    FAULTS[kind](store)
    if kind in NEEDS_NO_WRITE:
        store.faults({"method": "GET", "key": "/c/.*state$", **ALWAYS, "do": "truncate" if kind == "truncating" else "flip", "at": 40 if "header" in kind else 5000})
    for talk in (awake, asleep, awake):
        began = time.monotonic()
        talk.step(Only(a))
        seconds = time.monotonic() - began
        assert not talk.retries and seconds < (BOUND_S + BUSY_S) * SLOWER, f"{talk.id}: {talk.retries} refusals, {seconds:.1f} s"
    heal(kind, store)
    end = time.monotonic() + PATIENCE_S * SLOWER
    while not all(server.get("/health/ready").status == 200 for server in both.servers):
        assert time.monotonic() < end, a.log()[-2000:]
        time.sleep(0.2)
    time.sleep(3)
    for n in range(3):
        awake.step(Only(a))
    for n in range(4):
        later.step(Only(both.servers[n % 2]))
    wrong, _ = fleets.differences([awake, later], fleets.alone([awake, later]))
    assert not wrong, wrong[:2]
