"""What a turn asks of its store, counted in the stand-in's log: the rows of deploy/CAPACITY.md. Sweeps and looks at names.key and pinned prefixes are a server's, not a turn's.
RODIMUS_TEST_SOAK=1: of 300 turns."""
import collections
import os
import re
import time
import urllib.parse

import pytest

import fleet as fleets
from results import record
from stores import StandIn

N_TURNS = 300 if os.environ.get("RODIMUS_TEST_SOAK") else 20
HOMES = {"memory": 1, "store": 2, "cache": 2}  # where a turn finds its state, and how many servers take the turns in turn
MOST = {  # of one turn but the first: GETs by where the state is, and what is the same everywhere
    fleets.Turns: ({"memory": 1, "store": 1, "cache": 1}, {"PUT": 1, "LIST": 0, "HEAD": 0, "DELETE": 0}),
    fleets.Whole: ({"memory": 2, "store": 3, "cache": 3}, {"PUT": 3, "LIST": 2, "HEAD": 0, "DELETE": 2}),
}


class InTurn(fleets.Fleet):
    """One server after the other."""

    def ask(self, method, path, *more, **named):
        self.servers.append(self.servers.pop(0))
        return super().ask(method, path, *more, among=self.servers[-1:], **named)


def kind(request):
    """As a bill has it; None: no turn asked for it."""
    where = urllib.parse.unquote(request["query"]) if "list-type" in request["query"] else request["key"]
    return None if not re.search("/[sc]/[0-9a-f]+/", where) else "LIST" if "list-type" in request["query"] else request["method"]


def counted(store):
    """Since the last call, when nothing more comes."""
    before, log = None, store.requests()
    while before is None or len(log) > len(before):
        time.sleep(0.5)
        before, log = log, store.requests()
    store.ask("DELETE", "/_log")
    return collections.Counter(filter(None, map(kind, log))), sum(r["bytes"][0] for r in log), sum(r["bytes"][1] for r in log)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind_of_talk", MOST, ids=["session", "conversation"])
@pytest.mark.parametrize("home", HOMES)
def test_a_turn_asks_no_more_of_a_store_than_the_page_says(tmp_path, home, kind_of_talk):
    store = StandIn(tmp_path / "store")
    cache = ("--state-dir", tmp_path / "cache") if home == "cache" else ()
    fleet = InTurn(store, HOMES[home], *cache, name="store-requests")
    talk = kind_of_talk(2, N_TURNS)
    talk.dice.random = lambda: 1.0  # nothing is asked for twice
    try:
        talk.step(fleet)
        first, *_ = counted(store)
        while len(talk.rows) < N_TURNS:
            talk.step(fleet)
        rest, n_in, n_out = counted(store)
        states = [o["bytes"] for key, o in store.objects_now().items() if key.endswith(".state")]
    finally:
        fleet.close()
        store.close()
    assert not talk.retries and not any(row["again"] for row in talk.rows)
    (gets, others), n = MOST[kind_of_talk], N_TURNS - 1
    most = {**others, "GET": gets[home]}
    assert set(rest) <= set(most) and all(rest[what] <= n * most[what] for what in most), f"{n} turns asked for {dict(rest)}, at most {most} each"
    record(what=f"requests to a store: {kind_of_talk.__name__}", balancer="none", event=f"state from {home}", turns=n, first_turn=dict(first), all=dict(rest), bytes_to_store=n_in,
           bytes_from_store=n_out, states_left=len(states), bytes_left=sum(states))
