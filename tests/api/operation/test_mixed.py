"""All that a server does at once (tests/bench/record-mixed): no answer differs from what the request gets alone, none fails. RODIMUS_TEST_SOAK=1
(make soak) lasts five minutes instead of six seconds, and memory may not grow."""
import json
import os
import subprocess
import sys
import time

from server import DEVICE, ROOT, SLOWER

SOAK = bool(os.environ.get("RODIMUS_TEST_SOAK"))


def test_everything_at_once_gives_the_answers_of_each_alone(tmp_path):
    results = os.environ.get("RODIMUS_TEST_RESULTS") if SOAK else None
    out = os.path.join(ROOT, results, "mixed.json") if results else str(tmp_path / "mixed.json")
    seconds = ["--seconds", "300", "--window", "20", "--alone", "120"] if SOAK else ["--seconds", "6", "--window", "3", "--alone", "4"]
    seed = os.environ.get("RODIMUS_TEST_SEED") or str(int(time.time()) % 100000)
    done = subprocess.run([sys.executable, os.path.join(ROOT, "tests", "bench", "record-mixed"), out, *seconds, "--seed", seed, "--clients", "6",
                           "--long", "1000", "--device", DEVICE], capture_output=True, text=True, timeout=(600 if SOAK else 120) * SLOWER)
    with open(out) as f:
        found = json.load(f)
    assert not found["n_failed"] and not found["different"], f"RODIMUS_TEST_SEED={seed} {found['failed']} {found['differences']}"
    assert found["compared"] > 2 and sum(found["requests"].values()) > 5, done.stdout
    assert done.returncode == 0 or not SOAK, done.stdout + done.stderr
