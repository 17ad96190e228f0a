"""What several files ask for, the Docker engine that tests share among it, and the counts for tests/run: passed, failed, skipped."""
import os
import re
from collections import Counter

import pytest

from engine import Engine, Refused
from machine import Machine
from replicas import BUILD, Server


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Two workers (xdist, --dist loadgroup): one has the Docker engine and all that uses it, the other what runs as processes of this machine."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("engine" if {"engine", "podman"} & set(item.fixturenames) else "processes"))


@pytest.fixture(scope="session")
def engine():
    """One for all tests; where there can be none, these are skipped, and one line says so."""
    try:
        engine = Engine(os.path.join(BUILD, "docker"))
    except Refused as e:
        pytest.skip(f"no Docker engine: {e}")
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def booted(engine):
    """One machine under systemd for all tests, each of which begins with reset()."""
    machine = Machine(engine)
    yield machine
    machine.remove()


def pytest_terminal_summary(terminalreporter):
    for reason, n in Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])).items():
        terminalreporter.write_line(f"{n} skipped: {reason.removeprefix('Skipped: ')}")
    count = {k: len(terminalreporter.stats.get(k, [])) for k in ("passed", "failed", "error", "skipped")}
    with open(os.path.join(BUILD, "deploy.counts"), "w") as f:
        print(count["passed"], count["failed"] + count["error"], count["skipped"], file=f)


@pytest.fixture(scope="session")
def served():
    """What a server says of its metrics: their names, those of histograms with their parts."""
    server = Server("--api-keys", "sk-test", name="deploy-metrics")
    try:
        connection, response = server.open("GET", "/metrics", headers={"Authorization": "Bearer sk-test"})
        text = response.read().decode()
        connection.close()
    finally:
        server.kill()
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M):
        names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return names
