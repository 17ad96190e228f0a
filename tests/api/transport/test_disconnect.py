"""A client that leaves costs nothing: while queued, in prefill, or streaming, its place is free at once."""
import json
import socket
import struct
import threading
import time

import pytest

from server import Server

ENDLESS = {"max_tokens": 1000000, "ignore_eos": True}


def open_request(s, body, reset=False):
    """Sends a request and returns the socket; reset makes its close an RST."""
    c = s.socket()
    if reset:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    data = json.dumps(body).encode()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return c


@pytest.fixture(scope="module")
def one_slot():
    s = Server("--slots", 1, "--max-prompt-tokens", 4000000, name="one-slot")
    yield s
    assert s.stop() == 0


@pytest.fixture(params=[False, True], ids=["fin", "rst"])
def reset(request):
    return request.param


@pytest.mark.parametrize("stream", [False, True])
def test_while_generating(one_slot, reset, stream):
    s = one_slot
    cancelled = s.metric("rodimus_engine_requests_cancelled_total")
    c = open_request(s, {"prompt": "Once", "stream": stream, **ENDLESS}, reset)
    s.wait_metric("rodimus_slots_used", lambda n: n == 1)
    if stream:
        assert c.recv(1000)
    else:
        time.sleep(0.1)
    c.close()
    left = s.metric("rodimus_decode_tokens_total")
    s.wait_metric("rodimus_slots_used", lambda n: n == 0)
    assert s.metric("rodimus_decode_tokens_total") - left < 10000  # some seconds of them
    assert s.metric("rodimus_engine_requests_cancelled_total") == cancelled + 1
    s.complete(max_tokens=1)


@pytest.mark.parametrize("stream", [False, True])
def test_while_in_prefill(one_slot, reset, stream):
    s = one_slot
    before = s.metric("rodimus_prefill_tokens_total")
    n_prompt = 1000000
    c = open_request(s, {"prompt": [300] * n_prompt, "stream": stream, **ENDLESS}, reset)
    s.wait_metric("rodimus_slots_used", lambda n: n == 1)
    s.wait_metric("rodimus_prefill_tokens_total", lambda n: n > before)
    c.close()
    s.wait_metric("rodimus_slots_used", lambda n: n == 0)
    assert s.metric("rodimus_prefill_tokens_total") - before < n_prompt / 2
    s.complete(max_tokens=1)


@pytest.mark.parametrize("stream", [False, True])
def test_while_queued(one_slot, reset, stream):
    s = one_slot
    running = open_request(s, {"prompt": "Once", "stream": True, **ENDLESS})
    s.wait_metric("rodimus_slots_used", lambda n: n == 1)
    queued = [open_request(s, {"prompt": "Twice", "stream": stream, **ENDLESS}, reset) for _ in range(5)]
    s.wait_metric("rodimus_queue_requests", lambda n: n == 5)
    for c in queued:
        c.close()
    s.wait_metric("rodimus_queue_requests", lambda n: n == 0)
    assert s.metric("rodimus_slots_used") == 1, "the running request is not touched"
    running.close()
    s.wait_metric("rodimus_slots_used", lambda n: n == 0)


def test_all_choices_of_a_request_end(server):
    c = open_request(server, {"prompt": ["Once", "Twice"], "n": 3, "stream": True, **ENDLESS})
    server.wait_metric("rodimus_slots_used", lambda n: n == 6)
    c.close()
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)


def test_half_closed_client_still_gets_its_answer_or_is_cancelled(server):
    """shutdown(SHUT_WR) after the request: some clients do it; the server may answer or cancel, but not hang."""
    c = open_request(server, {"prompt": "Once", "max_tokens": 3})
    c.shutdown(socket.SHUT_WR)
    c.settimeout(10)
    got = b""
    while piece := c.recv(65536):
        got += piece
        if b"}" in got[-3:]:
            break
    c.close()
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)


def test_a_storm_of_leaving_clients(server):
    """Clients leave at random moments while others finish: those get exactly their text."""
    want = server.complete("The fox said", 30)["choices"][0]["text"]
    results = []

    def stay():
        results.append(server.complete("The fox said", 30)["choices"][0]["text"])

    def leave(i):
        c = open_request(server, {"prompt": "The fox said", "stream": i % 2 == 0, **ENDLESS}, i % 3 == 0)
        time.sleep(i % 17 * 0.01)
        c.close()
    threads = [threading.Thread(target=stay if i % 2 else leave, args=() if i % 2 else (i,)) for i in range(100)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [want] * 50
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)


def test_client_library_close(client, server):
    stream = client.completions.create(model="tales", prompt="Once", max_tokens=100000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)


# ---- its connection too ----

@pytest.fixture
def idle(one_slot):
    """A keep-alive connection that is older than all that leave, and says nothing more."""
    c = one_slot.socket()
    c.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
    assert c.recv(1000).startswith(b"HTTP/1.1 200")
    yield c
    c.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
    assert c.recv(1000).startswith(b"HTTP/1.1 200")
    c.close()


def test_its_connection_is_free_beside_an_older_one(one_slot, idle, reset):
    s = one_slot
    before = s.metric("rodimus_http_connections")
    for _ in range(20):
        c = open_request(s, {"prompt": "Once", "stream": True, **ENDLESS}, reset)
        time.sleep(0.01)
        c.close()
    s.wait_metric("rodimus_http_connections", lambda n: n <= before, timeout=30)  # idle_timeout_ms is 60 s


@pytest.mark.parametrize("part", [b"GET /hea", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n{"])
def test_what_can_no_longer_become_a_request_is_let_go(one_slot, idle, part):
    """The end of the connection may arrive together with its last bytes."""
    s = one_slot
    before = s.metric("rodimus_http_connections")
    for _ in range(20):
        c = s.socket()
        c.sendall(part)
        c.shutdown(socket.SHUT_WR)
        c.close()
    s.wait_metric("rodimus_http_connections", lambda n: n <= before, timeout=30)  # idle_timeout_ms is 60 s
