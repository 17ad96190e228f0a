"""tests/bench/fleet.py simulates what it says: gaps as published, no state lost under "turn", a link that is no faster than it is, the same file again."""
import importlib.util
import os
import random

import pytest

from server import ROOT

spec = importlib.util.spec_from_file_location("fleet", os.path.join(ROOT, "tests", "bench", "fleet.py"))
fleet = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fleet)

HOURS = 0.03


@pytest.mark.parametrize("gaps", ["tool_s", "human_s"])
def test_gaps_have_the_published_quantiles_and_mean(gaps):
    wanted, rng = fleet.AGENTS[gaps], random.Random(1)
    draw, mean = fleet.gap_drawer(wanted)
    drawn = sorted(draw(rng) for _ in range(200000))
    assert mean == pytest.approx(wanted["mean"], rel=1e-3)
    for part, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99")):
        assert drawn[int(part * len(drawn))] == pytest.approx(wanted[name], rel=0.1), name


def run(durability="turn", routing="sticky", gbit=100, seed=1, sessions=20000, model="rodimus-plus-1.6b"):
    return fleet.simulate(model, 64, sessions, durability, routing, gbit, HOURS, seed)


def test_the_same_seed_gives_the_same_rows_and_another_one_others():
    assert run() == run()
    assert run() != run(seed=2)


def test_a_lost_host_costs_no_step_under_turn_and_some_under_lazy():
    assert run()["lost_host"]["steps_lost"] == 0
    assert run("lazy")["lost_host"]["steps_lost"] > 0


def test_every_step_is_a_put_under_turn_and_fewer_are_under_lazy():
    turn, lazy = run(), run("lazy")
    assert turn["puts_a_second"] == pytest.approx(turn["steps_a_second"], rel=0.2)
    assert lazy["puts_a_second"] < 0.6 * lazy["steps_a_second"]


def test_a_router_that_forgets_fetches_all_but_one_host_s_part():
    assert run(routing="random")["tiers"]["store"] == pytest.approx(1 - 1 / 8, abs=0.05)
    assert run()["tiers"]["store"] < 0.5


def test_a_link_carries_no_more_than_its_rate_and_makes_steps_wait_past_it():
    narrow = run(gbit=5)
    assert narrow["nic_out"] <= 1.02
    assert narrow["last_event_waits_s"]["p99"] > 3 * run(gbit=400)["last_event_waits_s"]["p99"]
