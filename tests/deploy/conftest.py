"""What several files ask for, the Docker engine that tests share among it, and the counts for tests/run: passed, failed, skipped."""
import os
import re
from collections import Counter

import pytest

from engine import Engine, Refused
from machine import Machine
from replicas import BUILD, Server


WITH_ENGINE = {"test_balanced_containers.py", "test_compose.py", "test_image.py", "test_podman.py", "test_systemd.py", "test_upgrade.py"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Two workers: one has the Docker engine and the files that use it, the other what runs as processes of this machine. Groups of xdist 3.8
    do nothing under pytest 9.2, which keeps their mark out of a test's id: two workers had an engine on one folder, and the second gave up."""
    from xdist.scheduler import LoadScopeScheduling

    class OneEngine(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return "engine" if os.path.basename(nodeid.split("::")[0]) in WITH_ENGINE else "processes"

    return OneEngine(config, log)


def pytest_collection_modifyitems(items):
    astray = {item.path.name for item in items if {"engine", "podman"} & set(item.fixturenames)} - WITH_ENGINE
    assert not astray, f"{astray} use the engine: add them to WITH_ENGINE"


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
