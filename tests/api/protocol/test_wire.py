"""The decisions of the OpenAI surface, a parametrised test each, on both routes, streamed and not. What needs a server of
its own (queues, keys, limits, drains) is in test_errors.py, test_hostile.py and test_process.py; log-probabilities and
structured output have files of their own."""
import concurrent.futures
import json
import os
import random
import re
import socket
import threading
import time

import pytest

from server import ROOT

COMPLETION = {"prompt": "The fox said to the raven, \"", "max_tokens": 6}
CHAT = {"messages": [{"role": "user", "content": "Tell me a tale about a fox."}], "max_tokens": 6}
ROUTES = {"completions": ("/v1/completions", COMPLETION), "chat": ("/v1/chat/completions", CHAT)}


class Asked:
    """What an answer said, whole or as a stream: the same facts under the same names."""

    def __init__(self, server, path, body, stream, headers=None):
        self.chunks = []
        if not stream:
            answer = server.post(path, body, headers=headers)
            assert answer.status == 200, answer
            self.answer = self.whole = answer.json
            self.request_id = answer.header("X-Request-Id")
            self.usage = self.whole["usage"]
            choices = self.whole["choices"]
            self.texts = [c["text"] if "text" in c else c["message"]["content"] for c in choices]
            self.finish = [c["finish_reason"] for c in choices]
            self.stop_reason = [c["stop_reason"] for c in choices]
            self.ids = [c.get("token_ids") for c in choices]
            self.prompt_ids = self.whole.get("prompt_token_ids", choices[0].get("prompt_token_ids"))
            return
        body = {**body, "stream_options": {"include_usage": True, **(body.get("stream_options") or {})}}
        self.events = [e for e in server.events(path, body) if not e.comment]
        assert self.events[-1].data == "[DONE]"
        self.chunks = [e.data for e in self.events[:-1]]
        self.whole, self.usage = self.chunks[0], self.chunks[-1]["usage"]
        n = 1 + max(c["index"] for chunk in self.chunks for c in chunk["choices"])
        self.texts, self.finish, self.stop_reason, self.ids = [""] * n, [None] * n, [None] * n, [None] * n
        self.prompt_ids = None
        for chunk in self.chunks:
            for c in chunk["choices"]:
                i = c["index"]
                assert self.finish[i] is None, "a chunk after the finish"
                self.texts[i] += c["text"] if "text" in c else c["delta"].get("content", "")
                self.finish[i], self.stop_reason[i] = c["finish_reason"], c["stop_reason"]
                if "token_ids" in c:
                    self.ids[i] = (self.ids[i] or []) + c["token_ids"]
                self.prompt_ids = c.get("prompt_token_ids", chunk.get("prompt_token_ids", self.prompt_ids))


@pytest.fixture(params=[(r, s) for r in ROUTES for s in (False, True)], ids=lambda p: f"{p[0]}-{'stream' if p[1] else 'whole'}")
def ask(server, request):
    """ask(temperature=0): the route's plain request and what is added to it."""
    (path, base), stream = ROUTES[request.param[0]], request.param[1]

    def run(**add):
        return Asked(server, path, {**base, **add, "stream": stream}, stream)

    run.path, run.base, run.stream, run.chat = path, base, stream, request.param[0] == "chat"
    return run


@pytest.fixture(params=list(ROUTES))
def route(request):
    return ROUTES[request.param]


# ---- bodies that are no JSON, or more than anyone means ----

LONG = "x" * 1000000
BROKEN = {  # the text of the value -> where each field's value is this, the error names the field
    "NaN": "NaN", "Infinity": "-Infinity", "number-without-end": "1" + "0" * 400, "real-without-end": "1e400",
    "lone-surrogate": r'"\ud800"', "lone-low-surrogate": r'"\udc00 x"', "half-pair": r'"\ud83dx"', "bad-escape": r'"\x41"',
    "control-character": '"a\nb"', "deep-array": "[" * 100000 + "]" * 100000, "deep-object": '{"a":' * 5000 + "1" + "}" * 5000,
    "deep-unclosed": "[" * 1000000, "bare-word": "nil", "hex": "0x10", "plus": "+1", "comment": "1 /* one */",
    "two-values": "1 2", "unclosed-string": '"abc', "single-quotes": "'a'", "trailing-comma": "[1,]",
}
FIELDS = ["temperature", "prompt", "messages", "stop", "seed", "max_tokens", "n", "logit_bias", "stream", "user", "unknown"]


@pytest.mark.parametrize("value", BROKEN.values(), ids=BROKEN)
def test_what_is_no_json_is_400_and_names_the_field(server, route, value):
    path, base = route
    rest = json.dumps({k: v for k, v in base.items() if k not in FIELDS})[1:-1]
    for field in FIELDS:
        body = "{%s\"%s\": %s, \"model\": \"tales\"}" % (rest + ", " if rest else "", field, value)
        answer = server.post(path, body.encode())
        assert answer.status == 400, (field, answer)
        assert answer.error["type"] == "invalid_request_error" and answer.error["param"] == field, (field, answer)


def test_a_nul_byte_is_no_json_anywhere(server, route):
    path, base = route
    for tail in (b"\x00}", b"0\x00}", b"0.5\x00, \"x\": 1}", b"[1\x00]}", b"\"a\x00\"}", b"1}\x00", b"null\x00}", b"1 \x00}"):
        answer = server.post(path, json.dumps(base).encode()[:-1] + b', "user": ' + tail)
        assert answer.status == 400 and answer.error["param"] == "user" and "not JSON" in answer.error["message"], (tail, answer)


def test_broken_utf8_names_the_field(server, route):
    path, base = route
    for bytes_ in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x80"):
        answer = server.post(path, json.dumps(base).encode()[:-1] + b', "user": "' + bytes_ + b'"}')
        assert answer.status == 400 and answer.error["param"] == "user", (bytes_, answer)


@pytest.mark.parametrize("field", ["temperature", "prompt", "messages", "seed", "stop", "unknown"])
def test_a_field_given_twice_is_400_and_named(server, route, field):
    path, base = route
    body = json.dumps({**base, field: base.get(field, 1)})[:-1] + f', "{field}": 1}}'
    answer = server.post(path, body.encode())
    assert answer.status == 400 and answer.error["param"] == field and field in answer.error["message"], answer


def test_nesting_up_to_the_limit_is_taken(server, route):
    path, base = route
    for depth, status in ((126, 200), (127, 200), (128, 400)):
        body = json.dumps(base)[:-1] + ', "unknown": ' + "[" * depth + "]" * depth + "}"
        assert server.post(path, body.encode()).status == status, depth


LONG_VALUES = {"model": 404, "temperature": 400, "top_p": 400, "max_tokens": 400, "n": 400, "seed": 400, "stop_token_ids": 400,
               "logit_bias": 400, "stream": 400, "stream_options": 400, "top_k": 400, "ignore_eos": 400, "best_of": 400,
               "min_tokens": 400, "sse_ping_ms": 400, "response_format": 400, "return_token_ids": 400, "user": 200, "unknown": 200}


@pytest.mark.parametrize("field", LONG_VALUES)
def test_a_megabyte_of_text_in_any_field(server, route, field):
    path, base = route
    answer = server.post(path, {**base, "max_tokens": 1, field: LONG})
    assert answer.status == LONG_VALUES[field], answer
    if answer.status != 200:
        assert answer.error["param"] == field and len(answer.body) < 2000, answer


def test_a_megabyte_as_key_and_as_stop(server, route):
    path, base = route
    assert server.post(path, {**base, LONG: 1}).status == 200
    assert server.post(path, {**base, "logit_bias": {LONG: 1}}).error["param"] == "logit_bias"
    assert server.post(path, {**base, "stop": [LONG]}).status in (200, 400)


# ---- nulls, unknown fields, best_of ----

def test_nulls_everywhere(ask):
    plain = ask(temperature=0)
    nulls = ask(temperature=0, **dict.fromkeys(("stop", "seed", "n", "best_of", "logit_bias", "top_k", "user", "suffix", "logprobs",
                                                "stream_options" if not ask.stream else "metadata", "max_completion_tokens")))
    assert nulls.texts == plain.texts and nulls.finish == plain.finish


def test_unknown_fields_are_ignored(ask):
    assert ask(temperature=0, dog={"a": [1, {"b": None}]}, **{"x" * 300: 1}).texts == ask(temperature=0).texts


@pytest.mark.parametrize("best_of,status", [(None, 200), (0, 200), (1, 200), (2, 400), (-1, 400), ("1", 200), ("one", 400), (1.5, 400)])
def test_best_of(server, route, best_of, status):
    answer = server.post(route[0], {**route[1], "best_of": best_of})
    assert answer.status == status and (status == 200 or answer.error["param"] == "best_of"), answer


# ---- the order of a stream ----

def test_the_first_chat_chunk_comes_with_the_first_token(server):
    """A role chunk on its own would start the clock of whoever measures the time to the first token."""
    for n in (1, 3):
        asked = Asked(server, "/v1/chat/completions", {**CHAT, "n": n, "stream": True}, True)
        first = {}
        for k, chunk in enumerate(asked.chunks):
            for c in chunk["choices"]:
                first.setdefault(c["index"], (k, c))
        assert len(first) == n
        for i, (k, c) in first.items():
            assert c["delta"] == {"role": "assistant", "content": ""} and c["finish_reason"] is None
            assert k == i, "all begin together and in order"
        assert asked.chunks[n]["choices"][0]["delta"]["content"], "the roles leave together with the first text"
        roles = [c for chunk in asked.chunks for c in chunk["choices"] if "role" in c["delta"]]
        assert len(roles) == n


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True},
                                     {"include_usage": True, "continuous_usage_stats": True},
                                     {"include_usage": False, "continuous_usage_stats": True}, {"include_usage": None}], ids=str)
def test_finish_then_usage_then_done(server, route, n, options):
    path, base = route
    events = [e for e in server.events(path, {**base, "n": n, "seed": 1, "ignore_eos": True, "stream_options": options}) if not e.comment]
    options = options or {}
    assert events[-1].data == "[DONE]"
    chunks = [e.data for e in events[:-1]]
    if options.get("include_usage"):
        last = chunks.pop()
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == 6 * n
        assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 6 * n
        assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    ended = set()
    for chunk in chunks:
        assert len(chunk["choices"]) == 1
        c = chunk["choices"][0]
        assert c["index"] not in ended
        assert "finish_reason" in c and "logprobs" in c, "what is empty is null, not absent"
        if c["finish_reason"]:
            ended.add(c["index"])
            assert c["finish_reason"] == "length" and (c["delta"] == {} if "delta" in c else c["text"] == "")
        if options.get("continuous_usage_stats"):
            assert chunk["usage"]["completion_tokens"] >= 0
        else:
            assert chunk.get("usage") is None
    assert ended == set(range(n))


def test_stream_options_need_a_stream(server, route):
    for stream in ({}, {"stream": False}, {"stream": None}):
        answer = server.post(route[0], {**route[1], **stream, "stream_options": {"include_usage": True}})
        assert answer.status == 400 and answer.error["param"] == "stream_options"


# ---- how a choice ends ----

def test_stop_reason(ask):
    free = ask(temperature=0, max_tokens=30, ignore_eos=True, return_token_ids=True)
    assert free.finish == ["length"] and free.stop_reason == [None] and len(free.ids[0]) == 30
    text, ids = free.texts[0], free.ids[0]
    word = text[10:14]
    stopped = ask(temperature=0, max_tokens=30, ignore_eos=True, stop=["never said", word])
    assert stopped.finish == ["stop"] and stopped.stop_reason == [word]
    assert stopped.texts[0] == text[:text.index(word)]
    kept = ask(temperature=0, max_tokens=30, ignore_eos=True, stop=word, include_stop_str_in_output=True)
    assert kept.texts[0] == text[:text.index(word) + len(word)] and kept.stop_reason == [word]
    token = ids[7]
    by_id = ask(temperature=0, max_tokens=30, ignore_eos=True, stop_token_ids=[token], return_token_ids=True)
    assert by_id.finish == ["stop"] and by_id.stop_reason == [token]
    assert (by_id.ids[0] or []) == ids[:ids.index(token)]


@pytest.mark.parametrize("cut", [(0, 1), (0, 5), (3, 4), (5, 17), (11, 12), (13, 29)], ids=str)
def test_stops_across_tokens_and_chunks(ask, cut):
    """Any piece of the text, wherever its tokens begin and end, alone and beside stops that it contains or that overlap it."""
    whole = ask(temperature=0, max_tokens=30, ignore_eos=True).texts[0]
    stop = whole[slice(*cut)]
    for stops in ([stop], [stop + "\u00e9", stop], [stop, stop + whole[cut[1]]], ["zzz", stop, stop]):
        got = ask(temperature=0, max_tokens=30, ignore_eos=True, stop=stops)
        assert got.finish == ["stop"] and got.texts[0] == whole[:whole.index(stop)], stops


def test_min_tokens_and_ignore_eos(ask, server):
    end = server.post("/tokenize", {"prompt": "<|endoftext|>"}).json["tokens"]
    assert len(end) == 1
    force = {"logit_bias": {str(end[0]): 100}, "temperature": 0}
    assert ask(**force).finish == ["stop"] and ask(**force).usage["completion_tokens"] == 0
    at_least = ask(**force, min_tokens=4)
    assert at_least.finish == ["stop"] and at_least.usage["completion_tokens"] == 4
    ignored = ask(**force, ignore_eos=True)
    assert ignored.finish == ["length"] and ignored.usage["completion_tokens"] == 6
    with_text = ask(temperature=0, ignore_eos=True, max_tokens=20, stop=[" ", "e", "a"], min_tokens=9)
    assert with_text.usage["completion_tokens"] >= 9


# ---- ids, headers ----

@pytest.mark.parametrize("stream", [False, True])
def test_ids_hold_the_request_id(server, route, stream):
    path, base = route
    connection, response = server.open("POST", path, {**base, "stream": stream}, {"X-Request-Id": "wire-7"})
    body = response.read().decode()
    connection.close()
    assert response.getheader("X-Request-Id") == "wire-7"
    ids = set(re.findall(r'"id":"([^"]+)"', body))
    assert ids == {("chatcmpl-" if "chat" in path else "cmpl-") + "wire-7"}
    server.wait_log("wire-7")
    made = server.post(path, base)
    assert made.json["id"].split("-", 1)[1] == made.header("X-Request-Id")


ERRORS = {  # status, type, code of what a plain request can run into; 401, 408, 429, 503 need servers of their own
    "syntax": (400, "invalid_request_error", None, ("POST", b"{", {})),
    "no-object": (400, "invalid_request_error", None, ("POST", b"[]", {})),
    "empty": (400, "invalid_request_error", None, ("POST", b"", {})),
    "range": (400, "invalid_request_error", None, ("POST", b'{"prompt":"a","messages":[{"role":"user","content":"a"}],"n":0}', {})),
    "model": (404, "invalid_request_error", "model_not_found", ("POST", b'{"model":"gpt"}', {})),
    "method": (405, "invalid_request_error", "method_not_allowed", ("GET", None, {})),
    "length": (411, "invalid_request_error", "length_required", ("POST", None, {})),
    "type": (415, "invalid_request_error", "unsupported_media_type", ("POST", b"{}", {"Content-Type": "text/plain"})),
    "encoding": (415, "invalid_request_error", "unsupported_encoding", ("POST", b"{}", {"Content-Encoding": "gzip"})),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_status_type_code(server, route, name):
    status, kind, code, (method, body, headers) = ERRORS[name]
    if name == "length":
        raw = server.raw(f"POST {route[0]} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        assert raw.startswith(b"HTTP/1.1 411 ")
        error = json.loads(raw.split(b"\r\n\r\n", 1)[1])["error"]
    else:
        answer = server.ask(method, route[0], body, headers)
        assert answer.status == status, answer
        error = answer.error
        assert answer.header("X-Request-Id") and answer.header("Content-Type") == "application/json"
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == (kind, code) and error["message"], error


# The rows of ROD_SAMPLING: type, name, neutral, low, above, high.
SAMPLING = re.findall(r"^    X\((float|int32_t), (\w+), ([^,]+), ([^,]+), (true|false), ([^,]+),", open(os.path.join(ROOT, "engine", "rodimus.h"), encoding="utf-8").read(), re.M)


def sampling_edges():
    for kind, name, neutral, low, above, high in SAMPLING:
        whole, low, high = kind == "int32_t", float(low), float(high.replace("INT32_MAX", "2147483647"))
        step = 1 if whole else 1e-6
        good, bad = ([step, high] if above == "true" else [low, high]), ([low, low - step] if above == "true" else [0 if low > 0 else low - step])
        yield name, [int(v) if whole else v for v in good + [float(neutral)]], [int(v) if whole else v for v in bad + [high + step * max(1, high)]]


EDGES = [  # the last value inside, the first outside
    *sampling_edges(),
    ("n", [1, 3], [0, 129, -1]), ("max_tokens", [1, 2], [-1, 2**31]), ("min_tokens", [0, 1], [-1, 7]),
    ("seed", [0, -2**63, 2**63 - 1], [2**63, 0.5]), ("sse_ping_ms", [0, 1, 86400000], [-1, 86400001]),
    ("stop", ["a", ["a"] * 16, []], [["a"] * 17, "", 5, [None]]), ("stop_token_ids", [[0, 4095], []], [[4096], [-1], 3]),
    ("logit_bias", [{"0": -100, "4095": 100}, {}], [{"4096": 0}, {"0": 100.5}, {"01x": 1}, [1]]),
]


def test_the_description_has_the_rows_of_sampling(server):
    described = server.ask("GET", "/openapi.json").json["components"]["schemas"]["Sampling"]["properties"]
    assert len(SAMPLING) >= 8
    for kind, name, neutral, low, above, high in SAMPLING:
        field, whole = described[name], kind == "int32_t"
        assert field["type"] == ["integer" if whole else "number", "null"], name
        assert field["default"] == float(neutral), name
        if above == "true" or float(low) > 0:  # what is less than a low above 0 counts as low
            assert field["exclusiveMinimum"] == 0, name
        else:
            assert field["minimum"] == float(low), name
        assert whole or field["maximum"] == float(high), name


@pytest.mark.parametrize("field,good,bad", EDGES, ids=[e[0] for e in EDGES])
def test_ranges(server, route, field, good, bad):
    path, base = route
    for value in good:
        answer = server.post(path, {**base, field: value})
        assert answer.status == 200, (field, value, answer)
    for value in bad:
        answer = server.post(path, {**base, field: value})
        assert answer.status == 400 and answer.error["param"] == field and field in answer.error["message"], (value, answer)


# ---- pings ----

def post_raw(server, sock, body):
    body = json.dumps(body).encode()
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                 % len(body) + body)


def pings(server, **add):
    """How many come in 1.2 s of waiting for a slot; None where not even a status comes."""
    got, until = b"", time.monotonic() + 1.2
    with server.socket() as sock:
        post_raw(server, sock, {**COMPLETION, "stream": True, **add})
        while time.monotonic() < until:
            sock.settimeout(max(0.01, until - time.monotonic()))
            try:
                got += sock.recv(4096)
            except TimeoutError:
                pass
    return got.count(b": ping\n\n") if got else None


def test_pings_per_server_and_request(own_server):
    for ms, unasked in ((150, True), (0, False)):
        s = own_server("--slots", 1, "--sse-ping-ms", ms)
        with s.socket() as busy:
            post_raw(s, busy, {"prompt": [5], "max_tokens": 10**6, "ignore_eos": True})
            s.wait_metric("rodimus_slots_used", lambda n: n == 1)
            assert pings(s) >= 2 if unasked else pings(s) is None
            assert pings(s, sse_ping_ms=0) is None and pings(s, sse_ping_ms=60000) is None
            assert pings(s, sse_ping_ms=500) in (1, 2)


@pytest.mark.parametrize("path, body, names", [
    ("/v1/messages", {"messages": [{"role": "user", "content": "Hm"}], "max_tokens": 2}, {"ping"}),
    ("/v1/responses", {"input": "Hm", "max_output_tokens": 2}, {"response.in_progress"}),
    ("/v1/responses", {"input": "Hm", "max_output_tokens": 2, "tools": [{"type": "function", "name": "now"}]}, {"response.in_progress"})])
def test_silence_has_real_events_where_clients_count_them_as_life(own_server, path, body, names):
    s = own_server("--slots", 1, "--sse-ping-ms", 150)
    with s.socket() as busy:
        post_raw(s, busy, {"prompt": [5], "max_tokens": 10**6, "ignore_eos": True})
        s.wait_metric("rodimus_slots_used", lambda n: n == 1)
        threading.Timer(1.5, busy.shutdown, [socket.SHUT_RDWR]).start()
        events = list(s.events(path, {**body, "stream": True}))
    assert not any(e.comment for e in events), [e.raw[:60] for e in events]
    kinds = [e.data["type"] for e in events]
    silent = kinds[:kinds.index("message_start" if "ping" in names else "response.output_text.delta")]
    assert len([k for k in silent if k in names]) >= 3, kinds
    if path == "/v1/responses":
        assert kinds[0] == "response.created" and kinds.count("response.created") == 1 and kinds.count("response.output_item.added") >= 1
        assert [e.data["sequence_number"] for e in events] == list(range(len(events)))
        assert len({e.data["response"]["id"] for e in events if "response" in e.data}) == 1
    else:
        assert kinds.count("message_start") == 1 and kinds[-1] == "message_stop"


# ---- determinism ----

def test_a_seed_is_a_text_beside_any_load(server, route):
    """The same request a hundred times while others come and go; then another seed."""
    path, base = route
    body = {**base, "max_tokens": 12, "temperature": 1, "top_p": 1, "seed": 77, "ignore_eos": True}
    stop, rng = threading.Event(), random.Random(5)
    plans = [[(rng.randrange(1, 40), rng.randrange(1, 60), rng.random() * 2) for _ in range(50)] for _ in range(3)]

    def disturb(plan):
        while not stop.is_set():
            for max_tokens, length, temperature in plan:
                if stop.is_set():
                    return
                server.post("/v1/completions", {"prompt": [7 + length] * length, "max_tokens": max_tokens, "temperature": temperature})

    def text(_):
        c = server.post(path, body).json["choices"][0]
        return c["text"] if "text" in c else c["message"]["content"]

    with concurrent.futures.ThreadPoolExecutor(3) as others, concurrent.futures.ThreadPoolExecutor(5) as same:
        noise = [others.submit(disturb, p) for p in plans]
        try:
            texts = set(same.map(text, range(100)))
        finally:
            stop.set()
        [n.result() for n in noise]
    assert len(texts) == 1, texts
    others = {json.dumps(server.post(path, {**body, "seed": seed}).json["choices"]) for seed in range(5)}
    assert len(others) == 5


# ---- token ids ----

def test_return_token_ids(ask, server):
    asked = ask(temperature=0, return_token_ids=True)
    assert asked.usage["completion_tokens"] == len(asked.ids[0]) == 6
    assert asked.usage["prompt_tokens"] == len(asked.prompt_ids)
    source = {"messages": CHAT["messages"]} if ask.chat else {"prompt": COMPLETION["prompt"]}
    assert asked.prompt_ids == server.post("/tokenize", source).json["tokens"]
    assert server.post("/detokenize", {"tokens": asked.ids[0]}).json["prompt"] == asked.texts[0]
