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
