"""Three servers on one store, without stickiness: any of them takes any turn. RODIMUS_TEST_SOAK=1: 64 conversations of 20 turns; RODIMUS_TEST_KILLS: how often a server is killed;
FLEET_STORES, FLEET_TALKS: some stores, some kinds of talks."""
import os
import random
import time

import pytest

import fleet as fleets
from replicas import N_REPLICAS
from results import record
from stores import KINDS

SOAK = bool(os.environ.get("RODIMUS_TEST_SOAK"))
N_TALKS, N_TURNS, N_KILLS = 64 if SOAK else 8, 20 if SOAK else 8, int(os.environ.get("RODIMUS_TEST_KILLS", 20))
SEED = int(os.environ.get("RODIMUS_TEST_SEED", time.time_ns() % 1000000))
STORES = os.environ.get("FLEET_STORES", "folder,stand-in,seaweedfs").split(",")
TALKS = os.environ.get("FLEET_TALKS", "Turns,Forks,Whole,Responses")


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    store = KINDS[request.param](tmp_path)
    yield store
    store.close()


@pytest.fixture
def fleet(store):
    made = []

    def make(*flags, n=N_REPLICAS, **more):
        made.append(fleets.Fleet(store, n, *flags, draw=random.Random(SEED), **more))
        return made[-1]
    print(f"RODIMUS_TEST_SEED={SEED}")
    yield make
    for one in made:
        one.close()


def kinds_of(store, durability):
    """What is not written yet no other server of a folder can fork."""
    kinds = fleets.KINDS if durability == "turn" or store.name != "folder" else (fleets.Turns, fleets.Whole)
    return [kind for kind in kinds if kind.__name__ in TALKS.split(",")]


def compared(talks, fleet, **row):
    """Each turn beside one server that was never restarted."""
    for talk in talks:
        talk.check_end(fleet)
    wrong, read_again = fleets.differences(talks, fleets.alone(talks))
    assert not wrong, f"{len(wrong)} turns differ, the first: {wrong[:2]}"
    assert fleet.metric("rodimus_state_refused_total") == 0
    record(what=f"{N_REPLICAS} servers on one store: {fleet.store.name}", talks=TALKS, balancer="none, at random", seed=SEED, conversations=len(talks), turns=sum(len(t.rows) for t in talks),
           asked_again=sum(t.retries for t in talks), replayed=sum(t.replayed for t in talks), forks=sum(t.forks for t in talks), wrong=len(wrong), tokens_read_again=read_again, lost=0, doubled=0, **row)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("durability", ["turn", "lazy"])
def test_any_server_takes_any_turn_while_each_is_restarted(fleet, durability):
    """Rolling restart: one after the other ends by SIGTERM and another takes its place, twice each."""
    servers = fleet("--session-durability", durability)
    talks = fleets.talks(N_TALKS, N_TURNS, kinds_of(servers.store, durability))
    restarts = [0]

    def roll(done):
        """Another each time so many turns were done; until all were restarted twice."""
        if restarts[0] < 2 * N_REPLICAS and done > N_TALKS * restarts[0]:
            servers.restart(restarts[0] % N_REPLICAS)
            restarts[0] += 1
        return restarts[0] < 2 * N_REPLICAS
    fleets.drive(servers, talks, at=roll)
    compared(talks, servers, event=f"rolling restart, {durability}", restarts=restarts[0])


@pytest.mark.timeout(3600)
def test_no_turn_is_lost_or_doubled_when_servers_are_killed(fleet):
    """kill -9 at random moments, of a server at random; turns go on until all kills are done."""
    servers, chance, kills, next_at = fleet(), random.Random(SEED), [0], [time.monotonic()]
    talks = fleets.talks(N_TALKS, N_TURNS, kinds_of(servers.store, "turn"))

    def kill(_):
        if kills[0] < N_KILLS and time.monotonic() > next_at[0]:
            servers.kill_and_start(chance.randrange(N_REPLICAS))
            kills[0] += 1
            next_at[0] = time.monotonic() + chance.uniform(0.02, 0.5)
        return kills[0] < N_KILLS
    fleets.drive(servers, talks, at=kill)
    compared(talks, servers, event="kill -9", kills=kills[0])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", ["stand-in"], indirect=True)
@pytest.mark.parametrize("shared", [False, True], ids=["of_each_server", "of_all"])
def test_a_cache_changes_no_token(fleet, tmp_path, shared):
    """Servers are killed, and copies removed and cut meanwhile. Where each has its own, few turns come back to the server of the turn before."""
    servers = fleet("--state-disk-bytes", 100 << 20, env=lambda i: {"RODIMUS_STATE_DIR": str(tmp_path / f"cache-{0 if shared else i}")})
    talks, chance, kills, hits, damaged, seen = fleets.talks(N_TALKS, N_TURNS, kinds_of(servers.store, "turn")), random.Random(SEED), [0], [0], [0], [0]

    def disturb(done):
        copies = sorted(tmp_path.glob("cache-*/*.cached"))
        if copies and done > seen[0] + 3:
            seen[0], damaged[0] = done, damaged[0] + 1
            try:
                path = chance.choice(copies)
                if chance.random() < 0.5:
                    path.unlink()
                else:
                    os.truncate(path, chance.randrange(max(1, path.stat().st_size)))
            except FileNotFoundError:
                pass  # it went by itself
        if kills[0] < 2 * N_REPLICAS and done > N_TALKS * kills[0]:
            i = kills[0] % N_REPLICAS
            hits[0] += servers.servers[i].metric("rodimus_store_cache_hits_total")
            servers.kill_and_start(i)
            kills[0] += 1
        return kills[0] < 2 * N_REPLICAS
    fleets.drive(servers, talks, at=disturb)
    hits[0] += servers.metric("rodimus_store_cache_hits_total")
    compared(talks, servers, event=f"kill -9, a cache of {'all' if shared else 'each'}", kills=kills[0], cache_hits=hits[0], copies_damaged=damaged[0])
    assert hits[0] > 0 or not shared, "no state came from a cache"
