"""The Docker engine that tests share, and the counts for tests/run: passed, failed, skipped."""
import os
from collections import Counter

import pytest

from engine import Engine, Refused
from replicas import BUILD


@pytest.fixture(scope="session")
def engine():
    """One for all tests; where there can be none, these are skipped, and one line says so."""
    try:
        engine = Engine(os.path.join(BUILD, "docker"))
    except Refused as e:
        pytest.skip(f"no Docker engine: {e}")
    yield engine
    engine.stop()


def pytest_terminal_summary(terminalreporter):
    for reason, n in Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])).items():
        terminalreporter.write_line(f"{n} skipped: {reason.removeprefix('Skipped: ')}")
    count = {k: len(terminalreporter.stats.get(k, [])) for k in ("passed", "failed", "error", "skipped")}
    with open(os.path.join(BUILD, "deploy.counts"), "w") as f:
        print(count["passed"], count["failed"] + count["error"], count["skipped"], file=f)
