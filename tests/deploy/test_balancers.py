"""Three replicas behind HAProxy, behind nginx and behind Caddy, with the files that deploy/ ships: what an operator relies on."""
import contextlib
import http.client
import json
import signal
import socket
import threading
import time
import uuid

import pytest

from load import Load, borne
from replicas import KINDS, N_REPLICAS, Balancer, Replica, free_ports, installed, read_events

STEP_MS = 20


@pytest.fixture(scope="module", params=KINDS)
def site(request, tmp_path_factory):
    """(replicas, balancer). The device does nothing, STEP_MS a step: what is tested here is the way, not the model."""
    kind = request.param
    if not installed(kind):
        pytest.skip(f"{kind} is not installed")
    ports = free_ports(N_REPLICAS)
    flags = ("--device", f"null:{STEP_MS}", "--slots", 64, "--listen", "ready", "--state-dir", tmp_path_factory.mktemp("states"))
    hold = tmp_path_factory.mktemp("hold")
    replicas, balancer = [], None
    try:
        for i, port in enumerate(ports):
            replicas.append(Replica(i + 1, port, *flags, hold=hold / str(i + 1)))
        balancer = Balancer(kind, ports, tmp_path_factory.mktemp(kind))
        yield replicas, balancer
    finally:
        if balancer:
            balancer.stop()
        for r in replicas:
            r.kill()


@pytest.fixture(autouse=True)
def all_up(site):
    """Each test begins with three replicas that the balancer knows to be up."""
    replicas, balancer = site
    ended = [r for r in replicas if r.process.poll() is not None]
    for r in replicas:
        r.hold.unlink(missing_ok=True)
        if r in ended:
            r.start()
        r.wait_ready()
    if ended or balancer.disturbed:
        time.sleep(1.2)  # two checks of HAProxy, nginx's fail_timeout
    balancer.disturbed = False
    yield


def answer(balancer, n=4, **more):
    return balancer.post({"prompt": "Once", "max_tokens": n, "ignore_eos": True}, **more)


def wait_for(condition, patience_s=60):
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def finished(replica):
    return replica.metric("rodimus_completion_tokens_total")


def test_a_stream_arrives_token_by_token(site):
    replicas, balancer = site
    n = 40

    def arrivals(port):
        """How many tokens came half a step or more after the one before: in bursts few would."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": n, "ignore_eos": True, "stream": True}), {"Content-Type": "application/json"})
        times = [time.monotonic() for event in read_events(connection.getresponse()) if event.data != "[DONE]" and event.data["choices"][0]["finish_reason"] is None]
        connection.close()
        assert len(times) == n
        return sum(b - a > STEP_MS / 1e3 / 2 for a, b in zip(times, times[1:]))
    direct, behind = arrivals(replicas[0].port), arrivals(balancer.port)
    assert behind >= direct / 4, f"{behind} arrivals of {n} tokens, {direct} without a balancer"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot_on_the_replica(site, stream):
    replicas, balancer = site
    connection, response = None, None
    body = {"prompt": "Once", "max_tokens": 100000, "ignore_eos": True, "stream": stream}
    if stream:
        connection, response = balancer.open(body)
        next(read_events(response))
    else:
        import http.client
        import json

        connection = http.client.HTTPConnection("127.0.0.1", balancer.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    busy = lambda: [r.metric("rodimus_slots_used") for r in replicas]
    end = time.monotonic() + 5
    while sum(busy()) != 1:
        assert time.monotonic() < end, busy()
        time.sleep(0.02)
    if response:
        response.close()
    connection.close()
    left = time.monotonic()
    while sum(busy()):
        assert time.monotonic() - left < 2, f"slots in use 2 s after the client left: {busy()}"
        time.sleep(0.02)


def begins(headers):
    """The body of a session's first turn; the header beside it leads to a replica."""
    return {"session_id": headers["X-Session-Id"], "session_create": True} if headers else {}


def test_a_session_header_sticks_to_one_replica_and_sessions_spread(site):
    replicas, balancer = site
    used = set()
    for _ in range(12):
        headers = {"X-Session-Id": uuid.uuid4().hex}
        before = [finished(r) for r in replicas]
        for _ in range(3):
            status, body = balancer.post({"prompt": "Once", "max_tokens": 2, "ignore_eos": True, **begins(headers)}, headers)
            assert status == 200, body
        grown = [i for i, r in enumerate(replicas) if finished(r) > before[i]]
        assert len(grown) == 1, f"one session's turns went to {len(grown)} replicas"
        used.add(grown[0])
    assert len(used) > 1, "all sessions went to one replica"


def test_requests_without_a_session_spread(site):
    replicas, balancer = site
    before = [finished(r) for r in replicas]
    for _ in range(30):
        status, body = answer(balancer, 1)
        assert status == 200, body
    assert all(finished(r) > b for r, b in zip(replicas, before)), "a replica got nothing of 30 requests"


def test_metrics_and_slots_are_not_for_the_balancers_clients(site):
    _, balancer = site
    for path in ("/metrics", "/slots", "/%6detrics", "/%73lots"):
        connection = http.client.HTTPConnection("127.0.0.1", balancer.port, timeout=10)
        connection.request("GET", path)
        assert connection.getresponse().status == 404, path
        connection.close()


def answered(balancer, refused):
    """As a client gets it that heeds Retry-After. Caddy cannot send a body again (deploy/BALANCERS.md): a request that finds a death out is refused."""
    for _ in range(10):
        status, body = answer(balancer, 1)
        if status == 200:
            return
        assert balancer.kind == "caddy" and status == 503 and body["error"]["code"] == "no_replica", (status, body)
        refused.append(body)
        time.sleep(1)
    raise AssertionError(f"{len(refused)} refused: {refused[-1]}\n{balancer.log()[-4000:]}")


def test_a_replica_that_dies_fails_its_own_requests_and_no_other(site):
    replicas, balancer = site
    began, outcomes, over = [], [], threading.Event()  # streams with an event; of each, whether it went on until all was over

    def stream():
        """Caddy 2.6 closes some that begin within milliseconds (deploy/BALANCERS.md): such a one is asked for again."""
        went_on, tried = None, 0
        while went_on is None:
            tried += 1
            try:
                connection, response = balancer.open({"prompt": "Once", "max_tokens": 100000, "ignore_eos": True, "stream": True})
                for n, _ in enumerate(read_events(response)):
                    if n == 5:
                        began.append(True)
                        went_on = False
                    if over.is_set():
                        went_on = True
                        break
                connection.close()
            except Exception:  # cut in the middle of a frame, or of a chunk
                pass
            if balancer.kind != "caddy" or tried == 5 or over.is_set():
                went_on = bool(went_on)
        outcomes.append(went_on)

    threads = [threading.Thread(target=stream, daemon=True) for _ in range(24)]
    for t in threads:
        t.start()
    try:
        wait_for(lambda: len(began) == 24 and sum(r.metric("rodimus_slots_used") for r in replicas) == 24)  # else a stream that begins later meets the death, too
        victim = max(replicas, key=lambda r: r.metric("rodimus_slots_used"))
        lost = int(victim.metric("rodimus_slots_used"))
        assert 0 < lost < 24, f"{lost} of 24 streams on one replica"
        victim.kill()
        refused = []
        for _ in range(20):
            answered(balancer, refused)
        wait_for(lambda: len(outcomes) >= lost)
    finally:
        over.set()
        for t in threads:
            t.join(60)
    assert len(refused) < 6, f"{len(refused)} refused\n{balancer.log()[-4000:]}"
    assert outcomes.count(False) == lost, f"{outcomes.count(False)} streams failed, the replica had {lost}"


def test_requests_that_break_off_or_are_refused_take_no_replica_away(site):
    """They need no key: whoever can connect could end the service with them."""
    _, balancer = site
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    for broken in (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"Content-Length: 100\r\n\r\n{", b"X-A: b\r\n" * 300 + b"Content-Length: 0\r\n\r\n",
                   b"X-Long: " + 500000 * b"a" + b"\r\nContent-Length: 0\r\n\r\n"):
        for _ in range(2 * N_REPLICAS):
            with socket.create_connection(("127.0.0.1", balancer.port), timeout=10) as s:
                with contextlib.suppress(OSError):  # an answer before the end of a long header
                    s.sendall(head + broken)
                    s.shutdown(socket.SHUT_WR)
                    s.recv(65536)
        for headers in (None, {"X-Session-Id": uuid.uuid4().hex}):
            status, body = balancer.post({"prompt": "Once", "max_tokens": 1, **begins(headers)}, headers)
            assert status == 200, (broken[:40], body)


def test_a_session_survives_the_death_of_its_replica(site):
    replicas, balancer = site
    headers = {"X-Session-Id": uuid.uuid4().hex}
    before = [finished(r) for r in replicas]
    turn = lambda **more: balancer.post({"prompt": "Once", "max_tokens": 5, "ignore_eos": True, "session_id": headers["X-Session-Id"], **more}, headers)
    status, first = turn(session_create=True)
    assert status == 200 and first["session"]["version"] == 1, first
    home = next(r for r, b in zip(replicas, before) if finished(r) > b)
    home.kill()
    time.sleep(1.2)
    status, second = turn(expected_version=1)
    assert status == 200, second
    assert second["session"]["version"] == 2
    # the one token that no step has read yet is re-fed; nothing else is read again
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"] - 1, (first["usage"], second["usage"])


def test_no_request_meets_a_replica_that_loads(site):
    """Neither a session's turn whose replica it is nor any other gets a 503 from it, or waits for it."""
    replicas, balancer = site
    loading = replicas[0]
    loading.terminate()
    assert loading.wait(30) == 0
    loading.start_loading()
    time.sleep(1.2)
    slowest = 0
    for i in range(60):
        began = time.monotonic()
        headers = {"X-Session-Id": uuid.uuid4().hex} if i % 2 else None
        status, body = balancer.post({"prompt": "Once", "max_tokens": 1, **begins(headers)}, headers)
        assert status == 200, (i, body)
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 2, f"a request took {slowest:.1f} s"
    loading.loaded()
    balancer.disturbed = True
    end = time.monotonic() + 10
    while not finished(loading):
        assert time.monotonic() < end, "a replica that has loaded gets no requests"
        assert answer(balancer, 1)[0] == 200


def test_a_replica_that_stands_still_gets_no_more_requests(site):
    """It takes connections, for the kernel does, and answers none."""
    replicas, balancer = site
    if balancer.kind == "nginx":
        pytest.skip("nginx asks nobody: they wait for proxy_read_timeout (deploy/BALANCERS.md)")
    replicas[0].process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(4)  # two checks that time out after 1 s, 500 ms between them, and some
        began = time.monotonic()
        for i in range(30):
            headers = {"X-Session-Id": uuid.uuid4().hex} if i % 2 else None
            status, body = balancer.post({"prompt": "Once", "max_tokens": 1, **begins(headers)}, headers, timeout=20)
            assert status == 200, (i, body)
        assert time.monotonic() - began < 10, f"{time.monotonic() - began:.1f} s for 30 requests"
    finally:
        replicas[0].process.send_signal(signal.SIGCONT)
        balancer.disturbed = True


def test_a_rolling_restart_under_load_loses_no_request(site):
    replicas, balancer = site
    with Load("127.0.0.1", balancer.port) as load:
        for r in replicas:
            time.sleep(0.2)
            r.terminate()
            assert r.wait(30) == 0
            r.start_loading()
            time.sleep(1.2)
            r.loaded()
            time.sleep(1.2)
    balancer.disturbed = True
    assert len(load.outcomes) > 100 and len(load.lost) <= borne(balancer.kind), f"{len(load.lost)} of {len(load.outcomes)} requests lost: {load.lost[:3]}"


def test_envoy_takes_a_replica_away_and_back_under_load_without_a_lost_request(site):
    replicas, balancer = site
    if balancer.kind != "envoy":
        pytest.skip("the others read their replicas at their start")
    ports = [r.port for r in replicas]
    with Load("127.0.0.1", balancer.port) as load:
        time.sleep(0.5)
        balancer.take(ports[:2])
        wait_for(lambda: replicas[2].metric("rodimus_slots_used") == 0)
        time.sleep(0.5)
        before = finished(replicas[2])
        time.sleep(1)
        assert finished(replicas[2]) == before, "a replica that was taken away gets requests"
        balancer.take(ports)
        wait_for(lambda: finished(replicas[2]) > before)
    assert len(load.outcomes) > 50 and not load.lost, f"{len(load.lost)} of {len(load.outcomes)} requests lost: {load.lost[:3]}"
