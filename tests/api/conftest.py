"""Fixtures: one server for all tests that do not change it, and the openai client that talks to it."""
import json
import os

import openai
import pytest

from server import BUILD, MODEL, Server


@pytest.fixture(scope="session")
def server():
    s = Server(name="shared")
    yield s
    code = s.stop()
    assert code == 0, f"the server ended with {code}: {s.log()[-3000:]}"


@pytest.fixture(autouse=True)
def still_alive(request):
    """Whatever a test did to the shared server, the next request works and no slot is lost."""
    yield
    if "server" in request.fixturenames:
        s = request.getfixturevalue("server")
        assert s.process.poll() is None, f"the server died with {s.process.returncode}: {s.log()[-3000:]}"
        assert s.complete(max_tokens=1)["choices"][0]["finish_reason"]
        s.wait_metric("rodimus_slots_used", lambda n: n == 0)
        s.wait_metric("rodimus_queue_requests", lambda n: n == 0)


@pytest.fixture(scope="session")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def own_server():
    """Servers with flags of their own: own_server("--slots", 1)."""
    made = []

    def make(*flags, **more):
        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split(" ")[0].replace("/", "_")
        made.append(Server(*flags, name=f"{name}-{len(made)}", **more))
        return made[-1]

    yield make
    for s in made:
        s.kill()


@pytest.fixture(scope="session")
def cases():
    """Greedy continuations and log-probabilities of the demo model, computed in float64."""
    with open(os.path.join(MODEL, "generation_cases.json")) as f:
        return json.load(f)


@pytest.fixture(scope="session")
def tokenizer_cases():
    with open(os.path.join(MODEL, "tokenizer_cases.json")) as f:
        return json.load(f)


@pytest.fixture(scope="session")
def heldout():
    with open(os.path.join(MODEL, "heldout.txt"), encoding="utf-8") as f:
        return f.read()


def pytest_terminal_summary(terminalreporter):
    """Leaves the counts for tests/run: passed, failed, skipped."""
    count = {k: len(terminalreporter.stats.get(k, [])) for k in ("passed", "failed", "error", "skipped", "xfailed", "xpassed")}
    with open(os.path.join(BUILD, "api.counts"), "w") as f:
        print(count["passed"], count["failed"] + count["error"] + count["xpassed"], count["skipped"] + count["xfailed"], file=f)


@pytest.fixture
def durable(own_server, tmp_path):
    """A server with a state_dir; again() is the next one on it."""
    states = tmp_path / "states"

    def make(*flags):
        return own_server("--state-dir", states, *flags)
    make.dir = states
    return make
