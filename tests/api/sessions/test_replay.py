"""Sessions of Claude Code and Codex read what is new: tests/bench/replay, its texts cut to a fiftieth."""
import json
import os
import subprocess
import sys

import pytest

from server import MODEL, ROOT

REQUESTS = {"claude": 18, "opus": 20, "codex": 17, "interactive": 12, "three": 12, "agents": 12, "codex_agents": 10}


@pytest.mark.parametrize("session", REQUESTS)
def test_a_session_of_an_agent_reads_what_is_new(session, tmp_path):
    out = tmp_path / "replay.json"
    done = subprocess.run([sys.executable, os.path.join(ROOT, "tests", "bench", "replay"), out, "--scale", "0.02", "--pays", "--verbose", "--sessions", session, "--model", MODEL],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())["one"][session]
    assert found["requests"] == REQUESTS[session] and found["read_tok"] >= found["new_tok"] > 0, found
