"""All that a server does at once (tests/bench/record-mixed): no answer differs from what the request gets alone, none fails. RODIMUS_TEST_SOAK=1
(make soak) lasts five minutes instead of six seconds, and memory may not grow."""
import concurrent.futures
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import time

from server import DEVICE, ROOT, SLOWER

RECORD = os.path.join(ROOT, "tests", "bench", "record-mixed")
SOAK = bool(os.environ.get("RODIMUS_TEST_SOAK"))


def test_everything_at_once_gives_the_answers_of_each_alone(tmp_path):
    results = os.environ.get("RODIMUS_TEST_RESULTS") if SOAK else None
    out = os.path.join(ROOT, results, "mixed.json") if results else str(tmp_path / "mixed.json")
    if os.path.exists(out):  # else it would get one run more
        os.remove(out)
    seconds = ["--seconds", "300", "--window", "20", "--alone", "120"] if SOAK else ["--seconds", "6", "--window", "3", "--alone", "4", "--least", "6"]  # on a loaded machine longer
    seed = os.environ.get("RODIMUS_TEST_SEED") or str(int(time.time()) % 100000)
    done = subprocess.run([sys.executable, RECORD, out, *seconds, "--seed", seed, "--clients", "6",
                           "--long", "1000", "--device", DEVICE], capture_output=True, text=True, timeout=900 * SLOWER)
    with open(out) as f:
        record, = json.load(f)
    found, = record["runs"]
    assert not found["n_failed"] and not found["different"], f"RODIMUS_TEST_SEED={seed} {found['failed']} {found['differences']}"
    assert found["compared"] > 2 and sum(found["requests"].values()) > 5, done.stdout
    assert done.returncode == 0 or not SOAK, done.stdout + done.stderr


def record_mixed():
    loader = importlib.machinery.SourceFileLoader("record_mixed", RECORD)
    mixed = importlib.util.module_from_spec(importlib.util.spec_from_loader("record_mixed", loader))
    loader.exec_module(mixed)
    return mixed


def test_two_that_write_one_file_lose_no_run(tmp_path):
    mixed, out = record_mixed(), str(tmp_path / "mixed.json")
    ways = [(device, seed) for device in ("cpu", "cuda:0", "cpu") for seed in range(20)]

    def write(part):
        for device, seed in ways[part * 20:part * 20 + 20]:
            mixed.add_run(out, {"device": device, "clients": 6}, {"seed": seed, "date": "2026-01-01", "by": part})

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    with open(out) as f:
        records = {record["device"]: record["runs"] for record in json.load(f)}
    assert {device: len(runs) for device, runs in records.items()} == {"cpu": 40, "cuda:0": 20}
    for part in range(3):  # each in its order
        assert [run["seed"] for runs in records.values() for run in runs if run["by"] == part] == list(range(20))
    assert os.listdir(tmp_path) == ["mixed.json"]


def test_what_grows_behind_the_warm_part_is_named():
    mixed = record_mixed()

    def rows(rss, device, p99, n=2000):
        return [{"rss_bytes": rss(i), "device_bytes": device(i), "state_host_bytes": 100, "requests": n, "tokens_between": n,
                 "first_token_ms": {"p99": p99(i)}, "inter_token_ms": {"p99": 5}} for i in range(9)]

    def flat(i):
        return 1000 if i > 1 else 10 * (i + 1)  # the warm part may grow

    for device, found, more in (("cuda:0 (x)", [], {}), ("cuda:0 (x)", ["rss"], {"rss": lambda i: 1000 + 20 * i}),
                                ("cuda:0 (x)", ["device"], {"device": lambda i: 1000 + 3 * i}), ("cuda:0 (x)", ["first_token_ms"], {"p99": lambda i: 10 + 2 * i}),
                                ("cuda:0 (x)", [], {"p99": lambda i: 10 + 2 * i, "n": 900}), ("cpu (x)", [], {"p99": lambda i: 10 + 2 * i})):
        grown = mixed.growth(rows(**{"rss": flat, "device": flat, "p99": flat, **more}))
        assert mixed.too_much(grown, device, 60) == found, grown
    assert mixed.too_much({"host_states": 1.2, "rss": 2, "device": None, "first_token_ms": None, "inter_token_ms": None}, "cpu (x)", 60) == []
