"""Sessions of Claude Code and Codex read what is new: tests/bench/replay, its texts cut to a fiftieth, and whole with
RODIMUS_TEST_SOAK=1."""
import json
import os
import subprocess
import sys

import pytest

from server import MODEL, ROOT

SCALE = "1" if os.environ.get("RODIMUS_TEST_SOAK") else "0.02"
REQUESTS = {"claude": 18, "opus": 20, "codex": 17, "codex_compacts": 16, "interactive": 12, "three": 12, "agents": 12, "codex_agents": 10}


WAYS = {"one": [], "kill": ["--kill"], "other": ["--other"]}  # one server, killed before each request, two of one folder in turn


@pytest.mark.parametrize("session,way", [*((session, "one") for session in REQUESTS), *((session, way) for session in ("opus", "codex_compacts", "three") for way in ("kill", "other"))])
def test_a_session_of_an_agent_reads_what_is_new(session, way, tmp_path):
    out = tmp_path / "replay.json"
    done = subprocess.run([sys.executable, os.path.join(ROOT, "tests", "bench", "replay"), out, "--scale", SCALE, "--pays", "--verbose", "--sessions", session, "--model", MODEL, *WAYS[way]],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())[way][session]
    assert found["requests"] == REQUESTS[session] and min(found["read_tok"], found["new_tok"]) > 0, found  # of two heads, one may begin as the other: less is read than is new
