"""Rows of tests/bench/results/deploy.json, one an experiment: with RODIMUS_TEST_RESULTS=FOLDER a test leaves its figures there."""
import fcntl
import json
import os
import platform
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KEYS = ("what", "balancer", "event", "talks")  # what they name has one row


def machine():
    with open("/proc/cpuinfo") as f:
        name = next((line.split(": ")[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores of {name}"


def record(command="RODIMUS_TEST_RESULTS=tests/bench/results make test-deploy", **row):
    """record(what=, balancer=, event=, requests=, lost=, ...): the row takes the place of the one with the same KEYS."""
    if not os.environ.get("RODIMUS_TEST_RESULTS"):
        return
    path = os.path.join(ROOT, os.environ["RODIMUS_TEST_RESULTS"], "deploy.json")
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    row = {**row, "commit": commit or "unknown", "date": time.strftime("%Y-%m-%d", time.gmtime()), "device": machine(), "load_average": round(os.getloadavg()[0], 1), "command": command}
    with open(path, "a+") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.seek(0)
        rows = [r for r in json.loads(f.read() or "[]") if any(r.get(key) != row.get(key) for key in KEYS)] + [row]
        f.seek(0)
        f.truncate()
        f.write("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")
