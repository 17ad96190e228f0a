"""A server whose model is still being loaded: what its port says meanwhile, or that it takes nobody (`listen`)."""
import os
import socket
import time

import pytest

from server import MODEL, SLOWER, command, free_port, held_loading, shimmed


@pytest.fixture
def loading(own_server, tmp_path):
    """A server that stands still while it loads, until s.load()."""
    def make(*flags, port=None):
        hold = tmp_path / f"hold-{time.monotonic_ns()}"
        hold.touch()
        port = port or free_port()
        s = own_server("--port", port, *flags, env=held_loading(hold), wait=False)
        s.port = port
        s.wait_log("loading ")
        s.hold = hold

        def load():
            hold.unlink()
            s.wait_ready()
        s.load = load
        return s
    return make


def refused(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def wait_answer(s, port):
    """A listener that comes up beside the test."""
    end = time.monotonic() + 10
    while refused(port):
        assert time.monotonic() < end, s.log()
        time.sleep(0.01)


def test_listening_early_it_says_that_it_loads(loading):
    s = loading()
    wait_answer(s, s.port)
    for answer in (s.get("/health/ready"), s.get("/health")):
        assert answer.status == 503 and answer.json == {"status": "loading"}, answer
        assert int(answer.header("Retry-After") or 0) >= 1, answer
    assert s.get("/health/live").status == 200  # no fault that a restart would cure
    for answer in (s.post("/v1/completions", {"prompt": "a"}), s.get("/v1/models")):
        assert answer.status == 503 and answer.error["code"] == "loading" and int(answer.header("Retry-After")) >= 1, answer
    assert s.metric("rodimus_ready") == 0
    s.load()
    assert s.get("/health/ready").status == 200 and s.metric("rodimus_ready") == 1
    assert s.complete(max_tokens=1)
    assert s.stop() == 0


def test_a_client_that_comes_too_early_is_told_when(own_server):
    """The weights come from a disk that reads them in 6 s; what Retry-After says falls with them, and is right within a factor of 2."""
    weights = os.path.getsize(os.path.join(MODEL, "model.safetensors"))
    port = free_port()
    s = own_server("--port", port, env=shimmed(RODIMUS_TEST_HASH_BPS=str(weights / 6)), wait=False)
    s.port = port
    wait_answer(s, port)
    said = []  # (when, in how many seconds)
    began = time.monotonic()
    while (answer := s.post("/v1/completions", {"prompt": "a", "max_tokens": 1})).status == 503:
        assert answer.error["code"] == "loading" and time.monotonic() - began < 60 * SLOWER, answer
        said.append((time.monotonic(), int(answer.header("Retry-After"))))
        time.sleep(0.1)
    end = time.monotonic()
    assert end - began > 5 and s.get("/v1/models").status == 200
    told = [(end - at, seconds) for at, seconds in said if end - at < 4]  # from a third on; what comes before has little to go by
    wrong = [(left, seconds) for left, seconds in told if not left / 2 - 1 <= seconds <= 2 * left + 1.5]
    assert not wrong, f"seconds left, and said: {wrong} of {said}"
    numbers = [seconds for _, seconds in said]
    assert max(numbers) >= 4 and numbers[-1] == 1, said
    assert s.stop() == 0


def test_listening_when_ready_it_takes_nobody_before(loading):
    """Who is refused a connection knows that nothing of his request was read, so every balancer asks the next replica."""
    admin = free_port()
    s = loading("--listen", "ready", "--admin-port", admin)
    wait_answer(s, admin)
    before = s.busy_s()
    for _ in range(20):
        assert refused(s.port)
        time.sleep(0.05)
    assert s.busy_s() - before < 0.3, f"{s.busy_s() - before} s of CPU in one second of waiting"
    answer = s.get("/health/ready", port=admin)
    assert answer.status == 503 and answer.json == {"status": "loading"}, answer
    assert s.get("/health/live", port=admin).status == 200
    metrics = s.metrics(port=admin)
    assert metrics["rodimus_ready"] == 0 and metrics["rodimus_http_connections"] == 0
    s.load()
    assert s.get("/health/ready").status == 200 and s.get("/health/ready", port=admin).status == 200
    assert s.complete(max_tokens=1)
    assert s.stop() == 0


@pytest.mark.parametrize("listen", ["early", "ready"])
def test_a_port_in_use_is_known_before_the_model_is_loaded(listen):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = command("serve", "--port", taken.getsockname()[1], "--listen", listen)
        assert done.returncode == 1 and "in use" in done.stderr and "loading" not in done.stderr, done


def test_of_two_that_load_for_one_port_the_second_to_be_ready_ends(loading):
    first = loading("--listen", "ready")
    second = loading("--listen", "ready", port=first.port)
    first.load()
    second.hold.unlink()
    assert second.wait() == 1 and f"port {first.port}" in second.log() and "in use" in second.log(), second.log()
    assert first.complete(max_tokens=1)
    assert first.stop() == 0


@pytest.mark.parametrize("listen", ["early", "ready"])
def test_sigterm_while_loading_ends_at_once(loading, listen):
    s = loading("--listen", listen)
    s.terminate()
    assert s.wait(10) == 143
    assert refused(s.port)
