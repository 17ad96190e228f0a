"""Fixtures: one server for all tests that do not change it, and the openai client that talks to it."""
import datetime
import json
import os
import platform
import re

import openai
import pytest

from server import BUILD, MODEL, REPORTS, ROOT, SANITIZER, SLOWER, Server, command


# ---- a server under a sanitizer ----

def fail_by_reports():
    """Fails by what sanitizers have written since the last call, of any process; read once, a report counts for one test."""
    names = sorted(name for name in os.listdir(REPORTS) if not name.startswith("read-")) if SANITIZER else []
    texts = []
    for name in names:
        path = os.path.join(REPORTS, f"read-{name}")
        os.rename(os.path.join(REPORTS, name), path)
        with open(path, errors="replace") as f:
            texts.append(f"{path}:\n{f.read()[:6000]}")
    if texts:
        pytest.fail("\n".join(texts), pytrace=False)


# Files that take half a minute begin first, so that workers side by side (xdist, with --no-loadscope-reorder) end together. What
# computes and what waits take turns.
LONG = ["test_tools", "test_overload", "test_bench", "test_handover", "test_scoring", "test_hardship", "test_structured", "test_operation",
        "test_commands", "test_process", "test_convert", "test_hostile", "test_shares", "test_reload", "test_readme", "test_pinned",
        "test_sessions", "test_sessions_kill", "test_load", "test_prefix", "test_speculative", "test_sampling", "test_replay", "test_laws", "test_lanes"]


def pytest_collection_modifyitems(config, items):
    for item in items:
        if re.search("0x[0-9a-f]{8}", item.name):
            raise pytest.UsageError(f"{item.nodeid}: an address in a test's name; it needs ids, as workers side by side (xdist) must agree on names")
        item.add_marker(pytest.mark.timeout(float(config.getini("timeout")) * SLOWER))
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


@pytest.fixture(autouse=True, scope="session")
def no_report_at_the_end():
    yield
    fail_by_reports()


@pytest.fixture(autouse=True)
def no_report():
    """A report fails the test in which it came, whatever process it was: the first fixture, so that all servers of the test
    have ended by then."""
    yield
    fail_by_reports()


# ---- servers ----

@pytest.fixture(scope="session")
def server():
    s = Server(name="shared")
    yield s
    code = s.stop()
    assert code == 0, f"the server ended with {code}: {s.log()[-3000:]}"


@pytest.fixture(autouse=True)
def still_alive(request, no_report):
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
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60 * SLOWER)


@pytest.fixture
def own_server(no_report):
    """Servers with flags of their own: own_server("--slots", 1). Under a sanitizer they end by themselves, as what leaked is
    said then."""
    made = []

    def make(*flags, **more):
        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split(" ")[0].replace("/", "_")
        made.append(Server(*flags, name=f"{name}-{len(made)}", **more))
        return made[-1]

    yield make
    for s in made:
        if SANITIZER:
            s.end()
        s.kill()


@pytest.fixture(scope="session")
def cases():
    """Greedy continuations and log-probabilities of the model tales, computed in float64."""
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


# ---- figures ----

def cpu_name():
    with open("/proc/cpuinfo") as f:
        return next((line.split(": ")[1].strip() for line in f if line.startswith("model name")), platform.machine())


@pytest.fixture
def keep_figures():
    """keep_figures(NAME, WHAT, FIGURES): the record of a run as JSON, in the folder RODIMUS_TEST_RESULTS if that is set (make soak)."""
    began, load = datetime.datetime.now(datetime.timezone.utc), os.getloadavg()

    def keep(name, what, figures):
        folder = os.environ.get("RODIMUS_TEST_RESULTS")
        if not folder:
            return
        machine = f"{os.cpu_count()} cores of {cpu_name()}, load average {load[0]:.2f} before"
        version = command("version").stdout.split()
        record = {"what": what, "commit": version[version.index("commit") + 1].strip("(),"), "date": f"{began:%Y-%m-%d}",
                  "command": "make soak", "machine": machine, **figures}
        with open(os.path.join(ROOT, folder, f"{name}.json"), "w") as f:
            json.dump(record, f, indent=1)
            f.write("\n")
    return keep


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
