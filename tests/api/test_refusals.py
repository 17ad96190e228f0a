"""Requests that never reach a route: each gets one whole answer and the connection ends, whether the server words it or
libmicrohttpd does; nothing behind it is read as a request."""
import json
import random
import socket
import ssl
import time

import pytest

from access import certificate
from server import SLOWER, read_all, status_of

LINE = b"GET /version HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
HIDDEN = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
BEFORE = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
OURS, LIBRARY = True, False  # who words the answer: as JSON with an id, or in a line of HTML

TABLE = {
    **{f"a zero byte {where}": (line + b"\r\nHost: x\r\n\r\n", 400, who) for where, line, who in [
        ("behind the path", b"GET /version\0x HTTP/1.1", OURS), ("at the path's end", b"GET /version\0 HTTP/1.1", OURS),
        ("in a query", b"GET /version?a=\0b HTTP/1.1", OURS), ("in a query's name", b"GET /version?a\0=b HTTP/1.1", OURS),
        ("before the path", b"GET \0/version HTTP/1.1", OURS), ("in the method", b"GE\0T /version HTTP/1.1", OURS),
        ("behind the method", b"GET\0 /version HTTP/1.1", OURS), ("before a version", b"GET /version\0HTTP/1.1 HTTP/1.1", OURS),
        ("around a version", b"GET /version\0HTTP/1.1\0 HTTP/1.1", OURS), ("in the version", b"GET /version HTTP/\x001.1", LIBRARY),
        ("before the version", b"GET /version \0HTTP/1.1", LIBRARY), ("behind the version", b"GET /version HTTP/1.1\0", LIBRARY)]},
    "%00 behind the path": (b"GET /version%00x HTTP/1.1\r\nHost: x\r\n\r\n", 400, OURS),
}


def answers(raw, heads=()):
    """(status, headers, body) of each answer in raw, of which no byte may be left; `heads`: of which there is no body."""
    found = []
    while raw:
        head, end, raw = raw.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert end and lines[0].startswith(b"HTTP/1.1 ") and all(b": " in line for line in lines[1:]), head
        fields = [line.split(b": ", 1) for line in lines[1:]]
        headers = {name.lower().decode(): value.decode() for name, value in fields}
        assert len(headers) == len(fields), f"a header stands twice: {head!r}"
        n = 0 if len(found) in heads else int(headers["content-length"])
        assert len(raw) >= n, f"{len(raw)} bytes follow, {n} were announced: {head!r}"
        found.append((int(lines[0].split()[1]), headers, raw[:n]))
        raw = raw[n:]
    return found


def check(name, raw, n_before, heads=()):
    _, status, ours = TABLE[name]
    got = answers(raw, heads)
    assert b'"commit"' not in raw, f"what follows the request was served: {raw!r}"
    assert [s for s, _, _ in got] == [200] * n_before + ([status] if status else []), raw
    if status:
        headers, body = got[-1][1:]
        assert headers["connection"].lower() == "close", raw
        assert ("x-request-id" in headers) == ours, raw
        if ours and not heads:
            assert json.loads(body)["error"]["message"], raw


@pytest.mark.parametrize("before", [0, 1, 3], ids=["alone", "behind another", "behind three"])
@pytest.mark.parametrize("name", TABLE)
def test_it_is_refused_once_and_the_connection_ends(server, name, before):
    began = time.monotonic()
    check(name, server.raw(BEFORE * before + TABLE[name][0] + HIDDEN, timeout=20), before)
    assert time.monotonic() - began < 5 * SLOWER


@pytest.mark.parametrize("name", [n for n in TABLE if len(TABLE[n][0]) < 1000])
def test_so_it_is_when_it_comes_in_pieces(server, name):
    bytes_ = BEFORE + TABLE[name][0]
    with server.socket(20) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for i in range(0, len(bytes_), 9):
                s.sendall(bytes_[i:i + 9])
                time.sleep(0.001)
        except OSError:
            pass  # it need not read all of it
        check(name, read_all(s), 1)


def test_refusals_over_tls(own_server, tmp_path):
    cert, key = certificate(tmp_path, "one")
    s = own_server("--device", "null", "--tls-cert", cert, "--tls-key", key)
    for name in TABLE:
        with s.socket(20) as plain, s.tls.wrap_socket(plain) as tls:
            got = b""
            try:
                tls.sendall(BEFORE + TABLE[name][0] + HIDDEN)
                while piece := tls.recv(65536):
                    got += piece
            except (ssl.SSLError, OSError):
                pass  # it closes without a word where it has no answer
            check(name, got, 1)


def test_a_zero_byte_anywhere_in_the_line_is_never_served(server):
    """In the place of each byte and before it. A line that begins with one counts as empty, so that nothing of it is a request."""
    line = b"GET /version?after=a&limit=2 HTTP/1.1"
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    lines = [line[:i] + b"\0" + line[i + cut:] for i in range(len(line) + 1) for cut in (0, 1)]
    for _ in range(100):
        bytes_ = bytearray(line)
        for _ in range(rng.randint(1, 5)):
            bytes_.insert(rng.randrange(len(bytes_)), 0)
        lines.append(bytes(bytes_))
    for one in lines:
        got = server.raw(one + b"\r\nHost: x\r\n\r\n" + HIDDEN, timeout=20)
        assert b'"commit"' not in got and status_of(got) == 400, f"seed {seed}: {one!r}: {got!r}"
