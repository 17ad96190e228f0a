"""What one client can take from all others: room for bodies, places of states, the pool's threads, and its key's requests and tokens."""
import contextlib
import json
import threading
import time

import pytest

from access import ENDLESS, bearer, key_file
from server import SLOWER, read_all, status_of

MIB = 1 << 20
LONG = {"prompt": "once upon a time. " * 10000}  # 180 KB: needs room


def head(method, path, length, key=None, type_="application/json"):
    """The headers of a request; length None: in chunks."""
    lines = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {type_}\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")
    return (lines + ("Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}") + "\r\n\r\n").encode()


@contextlib.contextmanager
def unfinished(s, heads, body):
    """Connections that have sent all of this and wait for more to send."""
    sockets = [s.socket() for _ in heads]
    try:
        for c, first in zip(sockets, heads):
            with contextlib.suppress(OSError):  # it may be answered and closed
                c.sendall(first)
                c.sendall(body)
        yield sockets
    finally:
        for c in sockets:
            c.close()


# ---- bodies that nobody wants ----

@pytest.mark.parametrize("method,path", [("GET", "/health"), ("HEAD", "/"), ("GET", "/v1/models"), ("POST", "/v1/completions"), ("PUT", "/health")])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_who_has_no_key_takes_no_room_for_bodies(own_server, method, path, chunked):
    """64 bodies of more than 4 MiB that do not end would have 8 MiB each: the room of all."""
    s = own_server("--device", "null", "--api-keys", "one", key="one")
    before, n = s.rss_bytes(), 4 * MIB + 1000
    body = b"%x\r\n%s\r\n" % (n, b" " * n) if chunked else b" " * n
    with unfinished(s, [head(method, path, None if chunked else 8 * MIB)] * 64, body):
        time.sleep(0.2)
        assert s.post("/tokenize", LONG).status == 200
        assert s.rss_bytes() - before < 100 * MIB, f"{(s.rss_bytes() - before) / MIB:.0f} MiB more"


@pytest.mark.parametrize("path,status", [("/health", 200), ("/v1/models", 200), ("/v1/sessions/none", 404), ("/version", 200)])
def test_a_small_body_where_none_is_wanted_is_read_over(server, path, status):
    for body in (b"{}", b"x" * 65536):
        with server.socket(5) as c:
            for _ in range(2):  # and the connection goes on
                c.sendall(head("GET", path, len(body)) + body)
                assert status_of(c.recv(65536)) == status, (path, len(body))


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_a_large_body_where_none_is_wanted_is_413(server, chunked):
    body = b"x" * 65537
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    with server.socket(5) as c:
        c.sendall(head("GET", "/health", None if chunked else len(body)) + sent)
        got = c.recv(65536)
    assert status_of(got) == 413 and b'"body_too_large"' in got and b"this route takes none" in got, got


def test_a_refused_state_holds_no_place(own_server):
    """Two states come in at a time: who was told so, and still sends, does not count."""
    s = own_server("--device", "null", "--api-keys", "one", "--admin-key", "boss")
    first = head("PUT", "/v1/sessions/a/state", MIB, "boss", "application/octet-stream")
    with unfinished(s, [first] * 2, b"x" * (MIB - 1)) as good, unfinished(s, [first] * 3, b"x" * 1000):
        for c in good:
            c.sendall(b"x")
            assert status_of(c.recv(65536)) == 412  # no state
            c.close()
        headers = {"Content-Type": "application/octet-stream", **bearer("boss")}
        assert s.ask("PUT", "/v1/sessions/a/state", b"x" * MIB, headers).status == 412


# ---- bodies that take their time ----

def test_a_body_that_came_but_for_its_last_bytes_is_dropped_soon(own_server):
    """What came quickly buys no time: of 8 MiB it would be two hours."""
    s = own_server("--device", "null", "--idle-timeout-ms", 1000)
    with s.socket() as c:
        c.sendall(head("POST", "/tokenize", 8 * MIB) + b" " * (8 * MIB - 1000))
        c.settimeout(0.3)
        began, dropped = time.monotonic(), False
        while not dropped:
            assert time.monotonic() - began < 4 * SLOWER, "still connected"
            try:
                c.sendall(b" ")
                dropped = c.recv(1000) == b""
            except TimeoutError:
                pass
            except OSError:
                dropped = True
    assert s.post("/tokenize", LONG).status == 200


def test_a_body_that_comes_slowly_but_steadily_is_taken(own_server):
    """32 KiB a second, for three times the idle timeout."""
    s = own_server("--device", "null", "--idle-timeout-ms", 1000)
    body = json.dumps(LONG).encode()[:98304 - 2] + b'"}'
    with s.socket() as c:
        c.sendall(head("POST", "/tokenize", len(body)))
        for i in range(0, len(body), 8192):
            c.sendall(body[i:i + 8192])
            time.sleep(0.25)
        assert status_of(c.recv(65536)) == 200
