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

LENGTHS = {b"-1": 400, b"abc": 400, b"": 400, b"35, 35": 400, b"+3": 400, b"0x1": 400, b"1 1": 400, b"1.0": 400, b"99999999999999999999999": 413,
           b"18446744073709551616": 413}
TABLE = {
    **{f"Content-Length {value.decode()!r}": (LINE + b"Content-Length: " + value + b"\r\n\r\n", status, OURS) for value, status in LENGTHS.items()},
    "Content-Length twice": (LINE + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 400, OURS),
    "Content-Length and chunks": (LINE + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, OURS),
    "Content-Length abc of HTTP/1.0": (b"GET /version HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: abc\r\n\r\n", 400, OURS),
    "Content-Length abc, kept alive": (LINE + b"Connection: keep-alive\r\nContent-Length: abc\r\n\r\n", 400, OURS),
    "Content-Length abc, with Expect": (LINE + b"Expect: 100-continue\r\nContent-Length: abc\r\n\r\n", 400, OURS),
    "Content-Length abc behind bare line feeds": (b"GET /version HTTP/1.1\nHost: x\nContent-Length: abc\n\n", 400, OURS),
    "many cookies": (LINE + b"Cookie: " + b"a;" * 2000 + b"\r\n\r\n", 431, OURS),
    "many cookies of HTTP/1.0": (b"GET /version HTTP/1.0\r\nCookie: " + b"a;" * 2000 + b"\r\n\r\n", 431, OURS),
    "a long cookie": (LINE + b"Cookie: " + b"a" * 9000 + b"\r\n\r\n", 431, OURS),
    "many cookies and a bad length": (LINE + b"Cookie: " + b"a;" * 2000 + b"\r\nContent-Length: abc\r\n\r\n", 431, OURS),
    "many cookies and a body": (LINE + b"Content-Length: 3\r\nCookie: " + b"a;" * 2000 + b"\r\n\r\nabc", 431, OURS),
    "many fields of a query": (b"GET /version?" + b"a&" * 2000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, OURS),
    "300 fields of a query": (b"GET /version?" + b"a=b&" * 300 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, OURS),
    "a long URL": (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, LIBRARY),
    "a long header": (LINE + b"X: " + b"a" * 20000 + b"\r\n\r\n", 431, LIBRARY),
    "many headers": (LINE + b"X: a\r\n" * 2000 + b"\r\n", 431, LIBRARY),
    "a header without a colon": (LINE + b"abc\r\n\r\n", 400, LIBRARY),
    "no Host": (b"GET /version HTTP/1.1\r\n\r\n", 400, OURS),
    "two Hosts": (LINE + b"Host: x\r\n\r\n", 400, OURS),
    "HTTP/2.0": (LINE.replace(b"/1.1", b"/2.0") + b"\r\n", 505, LIBRARY),
    "HTTP/9.9": (LINE.replace(b"/1.1", b"/9.9") + b"\r\n", 505, LIBRARY),
    "HTTP/0.9": (LINE.replace(b"/1.1", b"/0.9") + b"\r\n", 505, LIBRARY),
    "http/1.1": (LINE.replace(b"HTTP", b"http") + b"\r\n", 400, LIBRARY),
    "HTTP/1.10": (LINE.replace(b"1.1", b"1.10") + b"\r\n", 400, LIBRARY),
    "no version": (b"GET /version\r\nHost: x\r\n\r\n", 400, LIBRARY),
    "one word": (b"GET\r\n\r\n", None, LIBRARY),
    "letters for a chunk's size": (CHUNKED + b"xx\r\n{}\r\n0\r\n\r\n", 400, LIBRARY),
    "a chunk's size below 0": (CHUNKED + b"-1\r\n{}\r\n0\r\n\r\n", 400, LIBRARY),
    "no size of a chunk": (CHUNKED + b"\r\n", 400, LIBRARY),
    "a chunk beyond 64 bits": (CHUNKED + b"FFFFFFFFFFFFFFFFF\r\n{}", 413, LIBRARY),
    "a chunk longer than its size": (CHUNKED + b"2\r\n{}zz0\r\n\r\n", 400, LIBRARY),
    "a trailer without a colon": (CHUNKED + b"2\r\n{}\r\n0\r\nabc\r\n\r\n", 400, LIBRARY),
    "many trailers": (CHUNKED + b"2\r\n{}\r\n0\r\n" + b"X: a\r\n" * 3000 + b"\r\n", 431, LIBRARY),
    "a long trailer": (CHUNKED + b"2\r\n{}\r\n0\r\nX: " + b"a" * 20000 + b"\r\n\r\n", 431, LIBRARY),
    "a long line before a chunk": (CHUNKED + b"2;" + b"a" * 20000 + b"\r\n{}\r\n0\r\n\r\n", None, LIBRARY),
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
            message = json.loads(body)["error"]["message"]
            assert message[:1].isupper() and message.endswith("."), message


@pytest.mark.parametrize("before", [0, 1, 3], ids=["alone", "behind another", "behind three"])
@pytest.mark.parametrize("name", TABLE)
def test_it_is_refused_once_and_the_connection_ends(server, name, before):
    began = time.monotonic()
    check(name, server.raw(BEFORE * before + TABLE[name][0] + HIDDEN, timeout=40), before)
    assert time.monotonic() - began < 30 * SLOWER  # the server ends it


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


def test_an_answer_to_head_has_no_body(server):
    for length in (b"abc", b"99999999999999999999999"):
        got = answers(server.raw(b"HEAD /version HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n" + HIDDEN, timeout=20), heads=(0,))
        assert [s for s, _, _ in got] == [400 if length == b"abc" else 413] and int(got[0][1]["content-length"]) > 0, got


def test_they_are_in_the_log_and_in_the_counter(own_server):
    s = own_server("--device", "null")
    raw = s.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\nContent-Length: -1\r\n\r\n", timeout=20)
    assert answers(raw)[0][1]["x-request-id"] == "mine", raw
    s.raw(TABLE["many cookies"][0], timeout=20)
    s.raw(TABLE["many fields of a query"][0], timeout=20)
    s.wait_log("outcome=headers_too_large", 2)
    line = next(line for line in s.log().splitlines() if "id=mine" in line)
    assert "method=POST path=/v1/completions status=400 outcome=bad_framing" in line and "peer=127.0.0.1" in line, line
    assert s.metric('rodimus_http_requests_total{route="other",code="431"}') == 2
    assert s.metric('rodimus_http_requests_total{route="other",code="400"}') == 1


def test_no_connection_stays_behind_refusals(own_server):
    """Of a query with too many fields the library itself would wait for the idle timeout."""
    s = own_server("--device", "null")
    before = s.n_files()
    held = [s.socket() for _ in range(60)]
    for i, c in enumerate(held):
        c.sendall(TABLE[("many cookies", "many fields of a query", "Content-Length 'abc'")[i % 3]][0])
    for c in held:
        assert status_of(c.recv(4096)) in (400, 431)
    deadline = time.monotonic() + 5 * SLOWER
    while s.n_files() > before + 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert s.n_files() <= before + 2, f"{before} files before, {s.n_files()} after; the clients have not closed"
    for c in held:
        c.close()


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
