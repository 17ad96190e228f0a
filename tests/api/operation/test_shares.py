"""What one client can take from all others: room for bodies, places of states, the pool's threads, and its key's requests and tokens."""
import contextlib
import json
import os
import statistics
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
            assert time.monotonic() - began < 60 * SLOWER, "still connected"
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


# ---- a key's share of the room ----

@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_no_key_takes_the_room_of_all_bodies(own_server, tmp_path, chunked):
    """64 bodies of more than 4 MiB that do not end, in 8 MiB each: four fifths of 512 MiB are for one key alone."""
    s = own_server("--device", "null", "--api-key-file", key_file(tmp_path, "one name=flood\ntwo name=other\n"), key="two")
    n = 4 * MIB + 1000
    body = b"%x\r\n%s\r\n" % (n, b" " * n) if chunked else b" " * n
    with unfinished(s, [head("POST", "/tokenize", None if chunked else 8 * MIB, "one")] * 64, body):
        s.wait_metric('rodimus_key_rejected_total{key="flood"}', lambda n: 12 <= n <= 16)
        for _ in range(3):
            assert s.post("/tokenize", LONG).status == 200
        answer = s.post("/tokenize", json.dumps(LONG) + " " * 8000000, headers=bearer("one"))
        assert answer.status == 429 and answer.error["code"] == "key_bodies" and answer.header("Retry-After") == "1", answer
        assert s.post("/tokenize", {"prompt": "a"}, headers=bearer("one")).status == 200, "short ones need no room"
    s.wait_metric('rodimus_key_requests_in_flight{key="flood"}', lambda n: n == 0)
    assert s.post("/tokenize", json.dumps(LONG) + " " * 8000000, headers=bearer("one")).status == 200


def test_no_key_takes_the_room_of_all_that_waits_for_the_pool(own_server, tmp_path):
    """100 bodies of 5 MB are in and wait for one thread, which 256 MiB may; and the next one of another key is read next."""
    s = own_server("--device", "null", "--api-key-file", key_file(tmp_path, "one name=flood\ntwo name=other\n"), key="two", env={"UV_THREADPOOL_SIZE": "1"})
    body = json.dumps({"prompt": "once upon a time. " * 300000}).encode()
    with unfinished(s, [head("POST", "/tokenize", len(body), "one")] * 100, body):
        s.wait_metric('rodimus_key_rejected_total{key="flood"}', lambda n: n >= 10)
        assert s.post("/tokenize", LONG).status == 200


def test_long_texts_of_one_key_do_not_keep_another_one_waiting(own_server, tmp_path):
    """24 bodies of 8 MB wait for the pool's four threads: the other key has one of them."""
    s = own_server("--api-key-file", key_file(tmp_path, "one name=flood\ntwo name=other\n"), key="two")
    body = json.dumps({"prompt": "once upon a time. " * 440000}).encode()
    with unfinished(s, [head("POST", "/tokenize", len(body), "one")] * 24, body):
        for i in range(5):
            assert s.post("/v1/sessions", {"id": f"s{i}"}).status == 200
            assert s.post("/tokenize", LONG).status == 200
        assert s.metric('rodimus_key_requests_in_flight{key="flood"}') > 3, "it waited until the texts were read"


# ---- a key's requests ----

ROUTES = [("POST", "/tokenize", {"prompt": "a"}), ("POST", "/detokenize", {"tokens": [300]}), ("POST", "/apply-template", {"messages": [{"role": "user", "content": "a"}]}),
          ("POST", "/v1/sessions", {"id": "a"}), ("GET", "/v1/sessions", None), ("GET", "/v1/sessions/a", None), ("POST", "/v1/sessions/a/fork", {}),
          ("DELETE", "/v1/sessions/a", None), ("GET", "/v1/responses/resp_a", None),
          ("GET", "/v1/responses/resp_a/input_items", None), ("DELETE", "/v1/responses/resp_a", None), ("POST", "/v1/responses/input_tokens", {"input": "a"})]


def test_every_route_that_works_counts_as_a_request_of_its_key(own_server, tmp_path):
    s = own_server("--api-key-file", key_file(tmp_path, "one name=small requests=1\ntwo name=other\n"), key="one")
    connection, response = s.open("POST", "/v1/completions", ENDLESS)
    assert response.status == 200
    for method, path, body in ROUTES:
        answer = s.ask(method, path, body)
        assert answer.status == 429 and answer.error["code"] == "key_requests" and answer.header("Retry-After"), (method, path, answer)
        assert s.ask(method, path, body, headers=bearer("two")).status in (200, 404), (method, path)
    assert s.get("/v1/models").status == 200
    connection.close()
    response.close()
    s.wait_metric('rodimus_key_requests_in_flight{key="small"}', lambda n: n == 0)
    for method, path, body in ROUTES:
        assert s.ask(method, path, body).status in (200, 404), (method, path)


def test_a_body_that_comes_in_counts_as_a_request_of_its_key(own_server, tmp_path):
    s = own_server("--api-key-file", key_file(tmp_path, "one name=small requests=1\ntwo name=other\n"), key="one")
    with unfinished(s, [head("POST", "/tokenize", 1000, "one")], b" "):
        s.wait_metric('rodimus_key_requests_in_flight{key="small"}', lambda n: n == 1)
        assert s.post("/tokenize", {"prompt": "a"}).error["code"] == "key_requests"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
def test_who_leaves_while_the_pool_reads_has_a_request_in_flight(own_server, tmp_path, path):
    """Else, with requests=1, who sends and leaves again and again takes all threads."""
    s = own_server("--device", "null", "--body-max-bytes", 40000000, "--api-key-file", key_file(tmp_path, "one name=small requests=1\ntwo name=other\n"), key="two")
    body = json.dumps({"prompt": "once upon a time. " * 2000000}).encode()
    with s.socket() as c:
        c.sendall(head("POST", path, len(body), "one") + body)
        time.sleep(0.3 * SLOWER)
    began = time.monotonic()
    while s.metrics().get(f'rodimus_http_requests_total{{route="{path}",code="499"}}') != 1:
        assert time.monotonic() - began < 60 * SLOWER
    answer = s.post("/tokenize", {"prompt": "a"}, headers=bearer("one"))
    assert answer.status == 429 and answer.error["code"] == "key_requests", answer
    s.wait_metric('rodimus_key_requests_in_flight{key="small"}', lambda n: n == 0, timeout=30)
    assert s.post("/tokenize", {"prompt": "a"}, headers=bearer("one")).status == 200


def test_many_long_texts_under_a_limit_of_one_request_do_not_stop_another_key(own_server, tmp_path):
    s = own_server("--api-key-file", key_file(tmp_path, "one name=small requests=1\ntwo name=other\n"), key="two")
    body = json.dumps({"prompt": "once upon a time. " * 440000}).encode()
    with unfinished(s, [head("POST", "/tokenize", len(body), "one")] * 24, body) as sockets:
        assert s.post("/v1/sessions", {"id": "a"}).status == 200
        statuses = [status_of(c.recv(65536)) for c in sockets]
    assert statuses.count(429) >= 20 and {*statuses} <= {200, 429}, statuses


# ---- a key's places of the queue ----

QUEUED = {"prompt": [300], "max_tokens": 100000, "ignore_eos": True}


def others_find_places(s, n):
    """The other key's requests are taken, one after the other, and leave again."""
    for i in range(n):
        with s.socket() as c:
            body = json.dumps({**QUEUED, "stream": True}).encode()
            before = s.metric('rodimus_key_requests_in_flight{key="other"}')
            c.sendall(head("POST", "/v1/completions", len(body), "two") + body)
            s.wait_metric("rodimus_queue_requests", lambda waiting: waiting >= FLOOD_PLACES + 1)
            assert s.metric('rodimus_key_requests_in_flight{key="other"}') == before + 1, i
        s.wait_metric('rodimus_key_requests_in_flight{key="other"}', lambda n: n == 0)
    assert s.metrics().get('rodimus_http_requests_total{route="/v1/completions",code="429"}', 0) == 0 or \
        s.metric('rodimus_key_rejected_total{key="other"}') == 0


FLOOD_PLACES = 12  # of 16: four fifths


def flooded_server(own_server, tmp_path):
    return own_server("--device", "null:5", "--slots", 4, "--max-queue-requests", 16, "--api-key-file", key_file(tmp_path, "one name=flood\ntwo name=other\n"), key="two")


@pytest.mark.parametrize("what", ["plain", "schema", "long"])
def test_bodies_whose_last_bytes_come_together_leave_places_to_another_key(own_server, tmp_path, what):
    """At their headers the queue is empty, so they are counted where they enter it: also behind the pool."""
    s = flooded_server(own_server, tmp_path)
    more = {"plain": {}, "long": {"user": "a" * 100000}, "schema": {"structured_outputs": {"regex": "[a-z ]*"}, "ignore_eos": True}}[what]
    if what == "schema":
        s = own_server("--slots", 4, "--max-queue-requests", 16, "--api-key-file", key_file(tmp_path, "one name=flood\ntwo name=other\n"), key="two")
        path, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 100000, **more}
    else:
        path, body = "/v1/completions", {**QUEUED, **more}
    data = json.dumps(body).encode()
    with unfinished(s, [head("POST", path, len(data), "one")] * 30, data[:-1]) as sockets:
        s.wait_metric('rodimus_key_requests_in_flight{key="flood"}', lambda n: n == 30)
        for c in sockets:
            c.sendall(data[-1:])
        s.wait_metric("rodimus_queue_requests", lambda n: n == FLOOD_PLACES)
        s.wait_metric('rodimus_key_requests_in_flight{key="flood"}', lambda n: n == 4 + FLOOD_PLACES)
        refused = []
        for c in sockets:
            c.settimeout(0.05)
            try:
                refused.append(c.recv(65536))
            except TimeoutError:
                continue
        assert len(refused) == 30 - 4 - FLOOD_PLACES and all(status_of(r) == 429 and b"queue_full" in r and b"share of the queue" in r for r in refused), refused
        others_find_places(s, 3)


@pytest.mark.parametrize("kind", ["n", "prompts"])
def test_choices_of_one_request_leave_places_to_another_key(own_server, tmp_path, kind):
    s = flooded_server(own_server, tmp_path)
    wide = lambda n: {**QUEUED, "n": n} if kind == "n" else {**QUEUED, "prompt": [[300]] * n}
    answer = s.post("/v1/completions", wide(20), headers=bearer("one"))
    assert answer.status == 400 and "asks for 20 choices, the limit is 16" in answer.error["message"], answer
    connection, response = s.open("POST", "/v1/completions", {**wide(16), "stream": True}, headers=bearer("one"))
    assert response.status == 200, response.read()
    s.wait_metric("rodimus_queue_requests", lambda n: n == FLOOD_PLACES)
    assert s.post("/v1/completions", QUEUED, headers=bearer("one")).status == 429
    others_find_places(s, 3)
    connection.close()
    response.close()


def test_each_choice_counts_as_a_request_of_its_key(own_server, tmp_path):
    s = own_server("--device", "null:5", "--slots", 8, "--api-key-file", key_file(tmp_path, "one name=small requests=4\ntwo name=other\n"), key="one")
    answer = s.post("/v1/completions", {**QUEUED, "n": 5})
    assert answer.status == 400 and answer.error["param"] == "n" and "asks for 5 choices, the limit of this key is 4" in answer.error["message"], answer
    connection, response = s.open("POST", "/v1/completions", {**QUEUED, "prompt": [[300], [301]], "stream": True})
    assert response.status == 200
    assert s.metric('rodimus_key_requests_in_flight{key="small"}') == 2
    answer = s.post("/v1/completions", {**QUEUED, "n": 3})
    assert answer.status == 429 and answer.error["code"] == "key_requests" and answer.header("Retry-After") == "1", answer
    assert s.post("/v1/completions", {**QUEUED, "n": 2, "max_tokens": 1}).status == 200
    connection.close()
    response.close()
    s.wait_metric('rodimus_key_requests_in_flight{key="small"}', lambda n: n == 0)


# ---- a key's grammars: their masks and their memory ----

FLOOD = {"structured_outputs": {"regex": "^(.*[a-m].{24}N?)+$"}}  # a state for nearly every text: a mask takes up to 20 ms
ORDINARY = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {
    "type": "array", "minItems": 1000, "items": {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
                                                 "required": ["name", "n"], "additionalProperties": False}}}}}


def stream_beside(s, n, more, seconds):
    """Tokens a second and the longest gap of a stream of one key beside n rows of another one, which begin again where they end."""
    ask = json.dumps({"messages": [{"role": "user", "content": "Tell me a tale."}], "temperature": 1, "max_tokens": 100000, "ignore_eos": True, "stream": True, **more}).encode()
    done, began = threading.Event(), threading.Semaphore(0)

    def row():
        while not done.is_set():
            with contextlib.suppress(OSError), s.socket(5) as c:
                c.sendall(head("POST", "/v1/chat/completions", len(ask), "one") + ask)
                c.settimeout(0.2)
                began.release()
                while not done.is_set():
                    with contextlib.suppress(TimeoutError):
                        if not c.recv(65536):
                            break
    rows = [threading.Thread(target=row) for _ in range(n)]
    for thread in rows:
        thread.start()
    for _ in rows:
        began.acquire()
    s.wait_metric("rodimus_slots_used", lambda used: used >= n // 2)
    connection, response = s.open("POST", "/v1/completions", ENDLESS, headers=bearer("two"))
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 10:  # on a busy machine longer: a rate wants some
        if response.readline().startswith(b"data"):
            times.append(time.monotonic())
    connection.close()
    response.close()
    done.set()
    for thread in rows:
        thread.join()
    s.wait_metric("rodimus_slots_used", lambda used: used == 0)
    times = times[2:]
    return len(times) / (times[-1] - times[0]), max(b - a for a, b in zip(times, times[1:]))


def test_dear_masks_of_a_key_do_not_slow_another_ones_stream(own_server, tmp_path):
    """In turns, in one run: beside rows whose masks are dear the stream has at least half of the rate that it has beside rows of an ordinary schema,
    and its longest gap is at most twice that one's: `make soak`, 32 rows, longer. Elsewhere other work of the machine takes its part: an eighth, as
    a stream that waits for each mask has a fiftieth."""
    soak = bool(os.environ.get("RODIMUS_TEST_SOAK"))
    n, seconds, turns = (32, 8, 3) if soak else (8, 2, 3)
    s = own_server("--slots", n + 4, "--api-key-file", key_file(tmp_path, "one name=flood\ntwo name=other\n"), key="two")
    before = s.rss_bytes()
    got = {"ordinary": [], "dear": []}
    for _ in range(turns):
        got["ordinary"].append(stream_beside(s, n, ORDINARY, seconds))
        got["dear"].append(stream_beside(s, n, FLOOD, seconds))
    rate, gap = ({kind: statistics.median(x[i] for x in rows) for kind, rows in got.items()} for i in range(2))
    slack = 2 if soak else 8
    assert rate["dear"] >= rate["ordinary"] / slack, got
    assert gap["dear"] <= slack * gap["ordinary"], got
    assert s.rss_bytes() - before < 512 * MIB, f"{(s.rss_bytes() - before) / MIB:.0f} MiB more"  # compiled grammars and states, 256 MiB each


def test_a_prompt_beside_cold_dear_masks_of_another_key_is_read_at_once(own_server, tmp_path):
    """Each row has a grammar of its own, and all wait for their first masks. Of the other key comes a longer prompt."""
    n = 32
    s = own_server("--slots", n + 4, "--api-key-file", key_file(tmp_path, "one name=flood\ntwo name=other\n"), key="two")
    with contextlib.ExitStack() as sockets:
        for i in range(n):
            ask = json.dumps({"prompt": "Once upon a time", "max_tokens": 20000, "ignore_eos": True, "stream": True, "temperature": 1,
                              "structured_outputs": {"regex": "^(.*[b-%s].{%d}X?)+$" % (chr(ord("i") + i % 10), 19 + i % 11)}}).encode()
            sockets.enter_context(s.socket(60)).sendall(head("POST", "/v1/completions", len(ask), "one") + ask)
        s.wait_metric("rodimus_slots_used", lambda used: used == n)
        for _ in range(3):
            before = s.busy_s()
            answer = s.post("/v1/completions", {"prompt": "Once there was a girl who lived in a large wood with her mother.", "max_tokens": 1})
            assert answer.status == 200, answer
            # Masks take all cores meanwhile: a second, in which the machine may have had other work, too.
            assert s.busy_s() - before < 1 * SLOWER * os.cpu_count()
    s.wait_metric("rodimus_slots_used", lambda used: used == 0)


def test_a_key_leaves_memory_for_grammars_to_another_one(own_server, tmp_path):
    """Each of these is compiled to some 2 MB: what waits has four fifths of 256 MB at most, and it comes back."""
    n = 110
    s = own_server("--slots", 1, "--max-queue-requests", 1000, "--api-key-file", key_file(tmp_path, "one name=flood\ntwo name=other\n"), key="two")
    connection, response = s.open("POST", "/v1/completions", ENDLESS)
    assert response.status == 200
    before = s.rss_bytes()
    bodies = [json.dumps({"prompt": "a", "max_tokens": 1, "structured_outputs": {"regex": "[ab]{60000}%d" % i}}).encode() for i in range(n)]
    sockets = [s.socket() for _ in bodies]
    try:
        for c, body in zip(sockets, bodies):
            c.sendall(head("POST", "/v1/completions", len(body), "one") + body)
        s.wait_metric('rodimus_key_rejected_total{key="flood"}', lambda refused: refused + s.metric("rodimus_queue_requests") == n, timeout=60)
        answer = s.post("/v1/completions", bodies[0].replace(b"60000", b"59999").decode(), headers=bearer("one"))
        assert answer.status == 429 and answer.error["code"] == "key_grammars" and answer.header("Retry-After") == "1", answer
        assert "share of the memory for compiled schemas and grammars" in answer.error["message"], answer
        assert s.rss_bytes() - before < 256 * MIB, f"{(s.rss_bytes() - before) / MIB:.0f} MiB more"
        ask = {"prompt": "a", "max_tokens": 1, "structured_outputs": {"regex": "[ab]{59998}"}}
        with s.socket() as c:  # of the other key: it waits, and is not refused
            c.sendall(head("POST", "/v1/completions", len(json.dumps(ask)), "two") + json.dumps(ask).encode())
            refused = s.metric('rodimus_key_rejected_total{key="flood"}')
            s.wait_metric("rodimus_queue_requests", lambda waiting: waiting == n - refused + 1 + 1)
    finally:
        for c in sockets:
            c.close()
    s.wait_metric("rodimus_queue_requests", lambda waiting: waiting == 0)
    connection.close()
    response.close()
    end = time.monotonic() + 10 * SLOWER  # a call holds its grammar until its last event
    while s.rss_bytes() - before >= 100 * MIB:  # unused ones: 64 MB
        assert time.monotonic() < end, f"{(s.rss_bytes() - before) / MIB:.0f} MiB more"
        time.sleep(0.05)


# ---- a key's tokens of a minute ----

def ask_of(n_prompt, n):
    return {"prompt": [300] * n_prompt, "max_tokens": n, "ignore_eos": True}


def test_requests_that_come_together_do_not_pass_the_minute_together(own_server, tmp_path):
    """Each may use 101 tokens, so nine fit into 1000; what they have not used when they are cancelled goes back."""
    s = own_server("--device", "null:20", "--slots", 32, "--api-key-file", key_file(tmp_path, "one name=small tokens_per_minute=1000\n"), key="one")
    streams = [s.open("POST", "/v1/completions", {**ask_of(1, 50), "n": 2, "stream": True}) for _ in range(20)]
    statuses = [response.status for _, response in streams]
    assert statuses.count(200) in range(9, 12) and statuses.count(429) == 20 - statuses.count(200), statuses
    refused = json.loads(next(response for _, response in streams if response.status == 429).read())["error"]
    assert refused["code"] == "key_tokens", refused
    for connection, response in streams:
        connection.close()
        response.close()
    s.wait_metric("rodimus_slots_used", lambda n: n == 0)
    metrics = s.metrics()
    used = sum(metrics[f'rodimus_key_tokens_total{{key="small",kind="{kind}"}}'] for kind in ("prompt", "completion"))
    assert used < 890, used
    assert s.post("/v1/completions", ask_of(int(999 - used), 1)).status == 200
    answer = s.post("/v1/completions", ask_of(1, 200))
    assert answer.status == 429, (used, answer)


def test_what_ends_early_gives_its_tokens_back(own_server, tmp_path):
    """An answer that stops, one that is refused as it is no request, and one of which nobody waits for the rest. Five that were not given
    back would be the whole minute; what a stream draws until its end is seen is counted and must fit beside the next."""
    s = own_server("--api-key-file", key_file(tmp_path, "one name=small tokens_per_minute=10000\n"), key="one")
    text = s.complete("Once upon a time", 8)["choices"][0]["text"]
    for _ in range(5):
        assert s.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 2000, "temperature": 0, "stop": [text[-3:]]}).status == 200
        assert s.post("/v1/completions", {**ask_of(1, 2000), "stop": "x", "session_id": "none"}).status == 404
        connection, response = s.open("POST", "/v1/completions", {**ask_of(1, 2000), "stream": True})
        assert response.status == 200 and response.readline(), response.read()
        connection.close()
        response.close()
        s.wait_metric("rodimus_slots_used", lambda n: n == 0)


@pytest.mark.parametrize("leaves", [False, True], ids=["408", "leaves"])
def test_what_never_got_a_slot_used_no_tokens(own_server, tmp_path, leaves):
    s = own_server("--device", "null:20", "--slots", 1, "--request-timeout-ms", 200 if not leaves else 60000, "--api-key-file",
                   key_file(tmp_path, "one name=small tokens_per_minute=1000\ntwo name=other\n"), key="one")
    connection, response = s.open("POST", "/v1/completions", ENDLESS, headers=bearer("two"))
    assert response.status == 200
    for _ in range(4):
        if leaves:
            with unfinished(s, [head("POST", "/v1/completions", len(json.dumps(ask_of(500, 400))), "one")], json.dumps(ask_of(500, 400)).encode()):
                s.wait_metric("rodimus_queue_requests", lambda n: n == 1)
            s.wait_metric("rodimus_queue_requests", lambda n: n == 0)
        else:
            assert s.post("/v1/completions", ask_of(500, 400)).status == 408
    connection.close()
    response.close()
    assert s.post("/v1/completions", ask_of(890, 10)).status == 200
    assert s.post("/v1/completions", ask_of(500, 400)).status == 429


def test_what_is_beyond_a_whole_minute_is_taken_when_the_minute_is_whole(own_server, tmp_path):
    s = own_server("--device", "null", "--api-key-file", key_file(tmp_path, "one name=small tokens_per_minute=60\n"), key="one")
    assert s.post("/v1/completions", ask_of(1, 1)).status == 200
    answer = s.post("/v1/completions", ask_of(100, 500))
    assert answer.status == 429 and 1 <= int(answer.header("Retry-After")) <= 2, answer
    time.sleep(int(answer.header("Retry-After")) + 0.1)
    assert s.post("/v1/completions", ask_of(100, 500)).status == 200
    answer = s.post("/v1/completions", ask_of(1, 1))
    assert answer.status == 429 and 530 <= int(answer.header("Retry-After")) <= 542, answer


def test_a_client_is_not_sent_away_for_more_than_an_hour(own_server, tmp_path):
    """A key of one token a minute that has used 201 is closed for more than three hours; its operator may open it before."""
    s = own_server("--device", "null", "--api-key-file", key_file(tmp_path, "one name=small tokens_per_minute=1\n"), key="one")
    assert s.post("/v1/completions", ask_of(1, 200)).status == 200
    for answer in (s.post("/v1/completions", ask_of(1, 1)), s.post("/tokenize", {"prompt": "a"})):
        assert answer.status == 429 and answer.error["code"] == "key_tokens", answer
        assert answer.header("Retry-After") == "3600", answer


def test_the_tokenizers_routes_use_tokens_of_the_minute(own_server, tmp_path):
    """As many as /tokenize makes and /detokenize reads; of a template a fourth of its bytes. Sessions use none."""
    s = own_server("--device", "null", "--api-key-file", key_file(tmp_path, "one name=small tokens_per_minute=1000\n"), key="one")
    used = lambda: s.metric('rodimus_key_tokens_total{key="small",kind="text"}')
    n = s.post("/tokenize", {"prompt": "Once upon a time"}).json["count"]
    assert used() == n
    assert s.post("/detokenize", {"tokens": [300] * 50}).status == 200
    assert used() == n + 50
    text = s.post("/apply-template", {"messages": [{"role": "user", "content": "a" * 100}]}).json["prompt"]
    assert used() == n + 50 + (len(text) + 3) // 4
    assert s.post("/tokenize", "{").status == 400 and used() == n + 50 + (len(text) + 3) // 4
    while (answer := s.post("/detokenize", {"tokens": [300] * 300})).status == 200:
        assert used() < 1300
    assert answer.status == 429 and answer.error["code"] == "key_tokens" and 1 <= int(answer.header("Retry-After")) <= 60, answer
    assert s.post("/v1/completions", ask_of(1, 900)).error["code"] == "key_tokens"
    assert s.post("/v1/sessions", {"id": "a"}).status == 200


def test_a_key_without_tokens_is_refused_before_its_body_is_read(own_server, tmp_path):
    s = own_server("--device", "null", "--api-key-file", key_file(tmp_path, "one name=small tokens_per_minute=60\n"), key="one")
    assert s.post("/v1/completions", ask_of(1, 600)).status == 200
    for method, path, _ in ROUTES[:3] + [("POST", "/v1/chat/completions", None)]:
        with s.socket(5) as c:
            c.sendall(head(method, path, 1000, "one").replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
            got = c.recv(65536)
        assert status_of(got) == 429 and b"key_tokens" in got, (path, got)
