"""Bytes that no honest client sends. Each gets its status, or the connection closes; the next request works (still_alive)."""
import contextlib
import json
import random
import re
import select
import socket
import threading
import time

import pytest

from server import FREED_BYTES, SLOWER, read_all, status_of

OK_BODY = b'{"prompt": "Once", "max_tokens": 1}'


def request(body=OK_BODY, headers=b"", path=b"/v1/completions", method=b"POST", host=b"Host: x\r\n", length=True):
    head = method + b" " + path + b" HTTP/1.1\r\n" + host + b"Content-Type: application/json\r\nConnection: close\r\n" + headers
    if length:
        head += b"Content-Length: %d\r\n" % len(body)
    return head + b"\r\n" + body


def test_an_honest_raw_request_works(server):
    assert status_of(server.raw(request())) == 200


@pytest.mark.parametrize("body", [
    b"", b"{", b"}", b"null", b"[]", b"1", b'"a"', b"{'prompt': 'a'}", b'{"prompt": "a",}', b'{"prompt": "a"} x', b"\x00", b"\xff\xfe",
    b'{"prompt": "\xff"}', b'{"prompt": "\xc3"}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\xf4\x90\x80\x80"}', b'{"\xff": 1}',
    b'{"prompt": "\\ud800"}', b'{"prompt": "\\udc00\\ud800"}', b'{"prompt": "a', b'{"prompt": NaN}', b'{"prompt": Infinity}',
    b'{"prompt": "a", "temperature": 1e999}', b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "max_tokens": 99999999999999999999999999}', b'{"prompt": "a", "seed": 99999999999999999999999999}',
    b'{"prompt": [99999999999999999999999999]}', b'{"prompt": "a", "n": 1e400}', b'{"prompt": "a\nb"}',
    b"[" * 100000, b'{"a":' * 100000, b'{"prompt": ' + b"[" * 3000 + b"1" + b"]" * 3000 + b"}",
    b'\xef\xbb\xbf{"prompt": "a"}',
], ids=lambda b: repr(b[:30]))
def test_broken_bodies_are_400(server, body):
    answer = server.raw(request(body))
    assert status_of(answer) == 400, answer[:500]
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["type"] == "invalid_request_error"


def test_a_nul_in_a_prompt_is_text(server):
    answer = server.raw(request(b'{"prompt": "a\\u0000b", "max_tokens": 1}'))
    assert status_of(answer) in (200, 400)


@pytest.mark.parametrize("headers", [
    b"Content-Length: 35\r\nContent-Length: 35\r\n", b"Content-Length: 35\r\nContent-Length: 3\r\n",
    b"Content-Length: 35, 35\r\n", b"Content-Length: 35\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 35\r\n", b"Content-Length: -1\r\n", b"Content-Length: 0x23\r\n",
    b"Content-Length: 99999999999999999999999\r\n", b"Content-Length: abc\r\n", b"Content-Length: +35\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: xchunked\r\n", b"Transfer-Encoding: identity\r\nContent-Length: 35\r\n",
], ids=lambda h: h.decode().replace("\r\n", "; ")[:50])
def test_ambiguous_framing_is_refused_and_the_connection_closed(server, headers):
    """A proxy in front might read another length: a second request hidden in the body must never run."""
    hidden = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + headers + b"\r\n"
    got = server.raw(head + OK_BODY + hidden, timeout=5)
    assert status_of(got) in (400, 411, 413, 501, None), got[:300]
    assert b'"commit"' not in got and b"text_completion" not in got


@pytest.mark.parametrize("headers,body", [
    (b"Content-Length:\r\n 54\r\n", b""), (b"Content-Length: 5\r\n\t4\r\n", b""), (b"Content-Length: 0\r\nContent-Length:\r\n 54\r\n", b""),
    (b"Transfer-Encoding:\r\n chunked\r\n", b"ff;a /x HTTP/1.1\r\nHost: x\r\n\r\n"),
    (b"Transfer-Encoding: chun\r\n ked\r\n", b"ff;a /x HTTP/1.1\r\nHost: x\r\n\r\n"),
], ids=lambda h: repr(h)[2:40])
def test_a_length_on_a_second_line_is_refused_and_the_connection_closed(server, headers, body):
    """A proxy that joins the lines sees a body, where who does not sees the next request."""
    hidden = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    got = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + headers + b"\r\n" + body + hidden, timeout=5)
    assert b'"commit"' not in got and status_of(got) == 400 and got.count(b"HTTP/1.1 ") == 1, got


@pytest.mark.parametrize("line", [b": x", b":", b": a: b", b"\0: x", b"\0", b"\0x", b"X: a\0b", b"X: a\r\n b"], ids=repr)
@pytest.mark.parametrize("before,after", [(b"Host: x\r\n", b""), (b"Host: x\r\nContent-Length: 54\r\n", b"X-Y: z\r\n"), (b"", b"Host: x\r\n")],
                         ids=["last", "between", "first"])
def test_a_line_that_ends_the_headers_early_is_refused_and_the_connection_closed(server, line, before, after):
    """libmicrohttpd takes some for the empty one; a proxy that does not sees one request where there would be two."""
    hidden = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    got = server.raw(b"GET /health HTTP/1.1\r\n" + before + line + b"\r\n" + after + b"\r\n" + hidden, timeout=5)
    assert b'"commit"' not in got and status_of(got) == 400 and got.count(b"HTTP/1.1 ") == 1, got


def test_behind_trailers_the_connection_closes(server):
    hidden = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    got = server.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n: z\r\n" + hidden, timeout=5)
    assert b'"commit"' not in got and got.count(b"HTTP/1.1 ") == 1, got


@pytest.mark.parametrize("head", [b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: \r\nX-B:c \r\nX-C:\t d\te\r\n\r\n", b"GET /health HTTP/1.1\nHost: x\nX-A:\n\n",
                                  b"GET  /health?a=b&c HTTP/1.1\r\nHost: x\nX-A: :\r\n\n", b"GET /health HTTP/1.0\r\n\r\n",
                                  b"GET /health HTTP/1.1\r\nHost: x\r\nCookie: a=b; c=\"d\"\r\n" + b"".join(b"X-%d: %d\r\n" % (i, i) for i in range(200)) + b"\r\n"],
                         ids=lambda h: repr(h[12:40]))
@pytest.mark.parametrize("pieces", [1, 7], ids=["whole", "in pieces"])
def test_headers_of_an_odd_form_are_taken(server, head, pieces):
    with server.socket(5) as s:
        for i in range(0, len(head), (len(head) + pieces - 1) // pieces):
            s.sendall(head[i:i + (len(head) + pieces - 1) // pieces])
            time.sleep(0.02 if pieces > 1 else 0)
        assert status_of(s.recv(4096)) == 200


@pytest.mark.parametrize("host", [b"", b"Host: a\r\nHost: b\r\n"], ids=["missing", "twice"])
def test_host_header(server, host):
    assert status_of(server.raw(request(host=host), timeout=5)) == 400


def test_no_length_is_411(server):
    assert status_of(server.raw(request(b"", length=False), timeout=5)) in (400, 411)


@pytest.mark.parametrize("bytes_", [
    b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", b"G E T / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00" * 1000,
    b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 20000 + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 1000000 + b"\r\n\r\n", b"GET / HTTP/1.1\r\n: novalue\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
], ids=lambda b: repr(b[:24]))
def test_what_is_no_request_gets_no_answer_or_an_error(server, bytes_):
    got = server.raw(bytes_, timeout=3, shut=True)
    assert status_of(got) in (None, 400, 404, 405, 413, 414, 431, 505), got[:300]


@pytest.mark.parametrize("path", [b"/health%00x", b"/health%00", b"/%00", b"/v1/models/tales%00"])
def test_a_nul_in_a_path_is_400(server, path):
    got = server.raw(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", timeout=5)
    assert status_of(got) == 400, got[:300]


def test_a_whole_url_as_the_target_is_its_path(server):
    """What a client sends to a proxy; every server must take it."""
    assert status_of(server.raw(b"GET http://x/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", timeout=5)) == 200
    assert status_of(server.raw(b"GET http://x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", timeout=5)) == 200, "the page at /"


# ---- size ----

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"


def test_50_megabytes_are_413_and_not_kept(server):
    """The body is read and dropped, so that the client, which sends before it reads, sees why."""
    before = server.rss_bytes()
    with server.socket(20) as s:
        s.sendall(HEAD + b"Content-Length: 52428800\r\n\r\n")
        block = b"a" * 65536
        for _ in range(800):
            s.sendall(block)
        got = read_all(s)
    assert status_of(got) == 413, got[:300]
    assert b"body_too_large" in got
    assert server.rss_bytes() - before < 30e6 + FREED_BYTES


def test_an_absurd_length_is_413_at_once(server):
    with server.socket(60) as s:
        s.sendall(HEAD + b"Content-Length: 1099511627776\r\n\r\n")
        began = time.monotonic()
        assert status_of(read_all(s)) == 413
        assert time.monotonic() - began < 30  # by the server, which waits for no body


def test_expect_100_over_the_limit_gets_no_continue(server):
    with server.socket(10) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 52428800\r\n"
                  b"Expect: 100-continue\r\n\r\n")
        got = read_all(s)
        assert status_of(got) == 413, got[:300]


def test_expect_100_gets_its_answer(server):
    with server.socket(10) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                  b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(OK_BODY))
        first = s.recv(1000)
        assert first.startswith(b"HTTP/1.1 100 ")
        s.sendall(OK_BODY)
        assert b"HTTP/1.1 200 " in first + read_all(s)


def test_chunked_overflow(server):
    """No length announced: what is over the limit but has an end gets 413; what has none is cut off, and never kept."""
    before = server.rss_bytes()
    chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    with server.socket(20) as s:
        s.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 200 + b"0\r\n\r\n")
        got = read_all(s)
        assert status_of(got) == 413, got[:300]
    with server.socket(20) as s:
        sent = 0
        try:
            s.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            while sent < 600e6:
                s.sendall(chunk)
                sent += 65536
        except OSError:
            pass
        assert sent < 600e6, "it reads without a bound"
    assert server.rss_bytes() - before < 30e6 + FREED_BYTES


@pytest.mark.parametrize("chunks,good", [(b"23\r\n" + OK_BODY + b"\r\n0\r\n\r\n", True),
                                         (b"1\r\n{\r\n22\r\n" + OK_BODY[1:] + b"\r\n0\r\nTrailer: x\r\n\r\n", True),
                                         (b"xx\r\n{}\r\n0\r\n\r\n", False), (b"-1\r\n{}\r\n0\r\n\r\n", False),
                                         (b"FFFFFFFFFFFFFFFFF\r\n{}", False), (b"2\r\n{}zz0\r\n\r\n", False)],
                         ids=["one", "two", "letters", "negative", "huge", "no-line-end"])
def test_chunked_bodies(server, chunks, good):
    got = server.raw(request(chunks, b"Transfer-Encoding: chunked\r\n", length=False), timeout=5)
    assert status_of(got) == 200 if good else status_of(got) in (400, 413, None), got[:300]


def test_a_body_at_the_limit(own_server):
    s = own_server("--body-max-bytes", 10000)
    body = json.dumps({"prompt": "a", "max_tokens": 1, "pad": ""})
    exact = body[:-2] + "x" * (10000 - len(body)) + body[-2:]
    assert len(exact) == 10000
    assert s.post("/v1/completions", exact).status == 200
    assert s.post("/v1/completions", exact[:-2] + "x" + exact[-2:]).status == 413


@pytest.mark.parametrize("field", [{"bad_words": ["a b " * 400000]}, {"stop_token_ids": [7] * 1200000}, {"stop": ["a" * 7000000]}], ids=lambda f: [*f][0])
def test_what_no_choice_can_have_is_not_copied_for_each(own_server, field):
    """One copy takes some MB, 128 take 600 MB and more, and the loop a second, before the engine refuses them."""
    s = own_server("--device", "null")
    s.complete([300], 1)

    def most():
        with open(f"/proc/{s.process.pid}/status") as f:
            return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", f.read()).group(1))
    before = most()
    answer = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "n": 128, **field})
    assert answer.status == 400 and answer.error["param"] == [*field][0], answer
    assert most() - before < (400 << 20) + FREED_BYTES, (most() - before) / 2**20


@pytest.mark.parametrize("field", ["echo", "return_token_ids"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_long_prompt_is_not_said_again_by_a_hundred_choices(own_server, field, stream):
    """Of a body of 4 MB that would be an answer of half a gigabyte."""
    s = own_server("--device", "null")
    ask = {"prompt": [300] * 900000, "max_tokens": 1, field: True, "stream": stream}
    answer = s.post("/v1/completions", {**ask, "n": 128})
    assert answer.status == 400 and answer.error["param"] == field and "all choices" in answer.error["message"], answer
    assert len(s.post("/v1/completions", {**ask, "n": 1}).body) > 900000
    few = s.post("/v1/completions", {**ask, "prompt": [300] * 9000, "n": 128})
    assert few.status == 200 and len(few.body) > 128 * 9000, few


# ---- connections that stay ----

def test_bodies_that_begin_together_have_no_more_room_than_others(own_server):
    """All have their headers in before the first byte of a body: of 80 bodies of 5 MB, each in 8 MiB, 64 fit into the 512 MiB."""
    s = own_server("--device", "null")
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5000000\r\nConnection: close\r\n\r\n"
    sockets = [s.socket() for _ in range(80)]
    for c in sockets:
        c.sendall(head)
    s.wait_metric("rodimus_http_connections", lambda n: n >= 80)
    body = b" " * 4999999
    for c in sockets:
        c.sendall(body)
    for _ in range(20):  # while all of it is taken, short ones come in
        assert s.post("/tokenize", {"prompt": "a"}).status == 200
        time.sleep(0.05)
    for c in sockets:
        c.sendall(b" ")
    statuses = []
    for c in sockets:
        statuses.append(status_of(read_all(c)))
        c.close()
    # Some have ended before others came in whole; and of those that are whole, the pool takes 256 MiB at a time.
    assert statuses.count(503) >= 8 and statuses.count(400) >= 40 and {*statuses} == {400, 503}, statuses
    assert s.post("/tokenize", {"prompt": "a"}).status == 200  # and the room is given back


def test_bodies_that_are_in_have_no_more_room_either(own_server):
    """One thread reads 100 bodies of 5 MB, a tenth of a second each: 256 MiB may wait for it, and who comes then knows at once."""
    s = own_server("--device", "null", env={"UV_THREADPOOL_SIZE": "1"})
    body = json.dumps({"prompt": "once upon a time. " * 300000}).encode()
    whole = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    sockets = []
    for _ in range(100):
        sockets.append(s.socket(timeout=100))
        sockets[-1].sendall(whole)
    began = time.monotonic()
    while s.metrics().get('rodimus_http_requests_total{route="/tokenize",code="503"}', 0) < 5:
        assert time.monotonic() - began < 60 * SLOWER, s.log()[-500:]
        time.sleep(0.05)
    answers = [c.recv(4096) for c in select.select(sockets, [], [], 0)[0]]
    refused = [a for a in answers if status_of(a) == 503]
    assert refused and all(b'"overloaded"' in a and b"Retry-After" in a for a in refused), answers
    for c in sockets:
        c.close()
    began = time.monotonic()
    while s.post("/tokenize", body, timeout=100).status != 200:  # what nobody waits for is not read
        assert time.monotonic() - began < 60 * SLOWER
        time.sleep(0.05)


def test_half_open_sockets_cost_nobody(server):
    """Connected and silent, or silent in the middle of headers or body."""
    halves = [b"", b"POST", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n", request()[:-10]]
    sockets = [server.socket() for _ in range(200)]
    for i, s in enumerate(sockets):
        s.sendall(halves[i % 4])
    server.complete(max_tokens=1)
    for s in sockets:
        s.close()


def test_slow_loris_is_dropped(own_server):
    """A header line now and then does not keep a connection for ever."""
    s = own_server("--idle-timeout-ms", 1000)
    with s.socket(0.4) as loris:
        loris.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        began = time.monotonic()
        dropped = False
        while not dropped:
            assert time.monotonic() - began < 60, "still connected"
            try:
                loris.sendall(b"X-A: b\r\n")
                dropped = loris.recv(1000) == b""
            except TimeoutError:
                pass  # nothing came: it still waits for the end of the headers
            except OSError:
                dropped = True
    s.complete(max_tokens=1)


def test_a_body_that_trickles_is_dropped(own_server):
    s = own_server("--idle-timeout-ms", 1000)
    with s.socket(60) as slow:
        slow.sendall(request()[:-5])
        began = time.monotonic()
        got = read_all(slow)
        assert time.monotonic() - began < 50, "silent in mid-body for 50 s and still connected"
        assert status_of(got) in (408, 400, None)
    s.complete(max_tokens=1)


def test_pipelined_requests_are_answered_in_order(server):
    get = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(OK_BODY)
    with server.socket(10) as s:
        s.sendall(get + head + OK_BODY + get + b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        got = read_all(s)
    assert got.count(b"HTTP/1.1 200 ") == 4, got
    assert got.index(b"text_completion") < got.index(b'"commit"')


def test_client_that_does_not_read_does_not_stop_the_others(own_server):
    s = own_server("--stream-buffer-bytes", 65536)
    lazy = []
    for _ in range(3):
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect((s.host, s.port))
        body = json.dumps({"prompt": "Once", "max_tokens": 100000, "stream": True, "ignore_eos": True, "n": 8}).encode()
        c.sendall(request(body))
        lazy.append(c)
    time.sleep(1)
    s.complete(max_tokens=2)
    for c in lazy:
        c.close()
    s.wait_metric("rodimus_slots_used", lambda n: n == 0)


def test_random_bytes_around_a_request(server):
    """A valid request with a few bytes changed, many times over many connections."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    valid = request()
    for number in range(300):
        bytes_ = bytearray(valid)
        for _ in range(rng.randint(1, 6)):
            bytes_[rng.randrange(len(bytes_))] = rng.randrange(256)
        try:
            with server.socket(0.3) as s:
                s.sendall(bytes_)
                s.shutdown(socket.SHUT_WR)
                s.recv(100)
        except OSError:
            pass
        assert server.process.poll() is None, f"seed {seed}, request {number}: {bytes(bytes_)!r}"


def test_no_files_are_lost(server):
    """After all of this the server holds no more descriptors than a few idle connections."""
    before = server.n_files()
    for _ in range(50):
        server.raw(request(b"{"), timeout=5)
    deadline = time.monotonic() + 30
    while server.n_files() > before + 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.n_files() <= before + 3


def test_many_connections_at_once(server):
    """More connections than any one client opens; each is answered."""
    results = []

    def one():
        results.append(server.complete(max_tokens=2)["usage"]["completion_tokens"])
    threads = [threading.Thread(target=one) for _ in range(100)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [2] * 100


@pytest.mark.parametrize("ends", [False, True], ids=["from one who waits", "from one who has gone"])
def test_a_line_of_chunks_that_never_ends_costs_nothing(own_server, ends):
    """libmicrohttpd would wait for its end without sleeping, and not see that the client is gone. Of about the size of its buffer,
    so that one fills it to the last byte; an honest client that rests meanwhile is none of them."""
    s = own_server("--device", "null", "--connection-limit", 1000)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    honest, held = s.socket(30), []
    honest.sendall(head)
    for n in [*range(15000, 16000, 50), *range(16000, 16400), 17000, 40000]:
        held.append((n, s.socket(30)))
        held[-1][1].sendall(head + b"1\r\n{\r\n1;" + b"a" * n)
        if ends:
            held[-1][1].shutdown(socket.SHUT_WR)
    body = b'{"prompt": [300], "max_tokens": 1}'
    for part in (body[:9], body[9:]):
        honest.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        time.sleep(4)
    began, before = time.monotonic(), s.busy_s()
    time.sleep(1)
    used, took = s.busy_s() - before, time.monotonic() - began
    assert used < 0.3 * took, (used, took)
    honest.sendall(b"0\r\n\r\n")
    assert status_of(honest.recv(4096)) == 200
    for n, c in held:
        with c:
            if ends or n >= 16384:
                with contextlib.suppress(ConnectionResetError):
                    assert c.recv(1000) == b"", n
    assert s.get("/health").status == 200
