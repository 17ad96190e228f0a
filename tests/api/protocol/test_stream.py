"""The bytes of a stream: frames, their order, headers, and what is never sent unasked."""
import json
import threading

import pytest

from server import Server, read_events

BODY = {"prompt": "The fox said to the raven, \"", "max_tokens": 6, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "Tell me a tale about a fox."}], "max_tokens": 6, "temperature": 0}
ROUTES = [("/v1/completions", BODY), ("/v1/chat/completions", CHAT)]


@pytest.fixture(params=ROUTES, ids=["completions", "chat"])
def route(request):
    return request.param


def test_headers(server, route):
    connection, response = server.open("POST", route[0], {**route[1], "stream": True}, {"X-Request-Id": "abc-1"})
    list(read_events(response))
    connection.close()
    assert response.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    assert response.getheader("Cache-Control") == "no-cache"
    assert response.getheader("X-Accel-Buffering") == "no"
    assert response.getheader("X-Request-Id") == "abc-1"
    assert response.getheader("Content-Length") is None


def test_frames(server, route):
    events = [e for e in server.events(*route) if not e.comment]
    assert all(e.raw.startswith(b"data: ") and b"\n" not in e.raw for e in events)
    assert events[-1].data == "[DONE]" and all(e.data != "[DONE]" for e in events[:-1])
    chunks = [e.data for e in events[:-1]]
    assert len({c["id"] for c in chunks}) == len({c["created"] for c in chunks}) == 1
    assert all("usage" not in c or c["usage"] is None for c in chunks), "nobody asked for usage"
    assert all(len(c["choices"]) == 1 for c in chunks)
    last = chunks[-1]["choices"][0]
    assert last["finish_reason"] == "length"
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])


def test_finish_comes_in_its_own_chunk(server, route):
    chunks = [e.data for e in server.events(*route) if e.data != "[DONE]" and not e.comment]
    last = chunks[-1]["choices"][0]
    if "delta" in last:
        assert last["delta"] == {}
    else:
        assert last["text"] == ""


def test_first_chat_chunk_is_the_role(server):
    chunks = [e.data for e in server.events("/v1/chat/completions", CHAT) if not e.comment]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[0]["choices"][0]["finish_reason"] is None


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("more", [{}, {"logprobs": True}], ids=["plain", "logprobs"])
def test_choices_of_a_chat_begin_in_order(server, n, more):
    ask = {**CHAT, "n": n, "temperature": 1, "seed": 3, **more}
    choices = [e.data["choices"][0] for e in server.events("/v1/chat/completions", ask) if not e.comment and e.data != "[DONE]"]
    assert [c["index"] for c in choices[:n]] == list(range(n))
    assert all(c["delta"] == {"role": "assistant", "content": ""} for c in choices[:n])
    assert not any("role" in c["delta"] for c in choices[n:])
    whole = server.post("/v1/chat/completions", ask).json["choices"]
    for i, want in enumerate(whole):
        assert "".join(c["delta"].get("content", "") for c in choices if c["index"] == i) == want["message"]["content"]


def test_more_choices_of_a_chat_than_slots_begin_in_order(own_server):
    events = own_server("--slots", 2).events("/v1/chat/completions", {**CHAT, "n": 5})
    order = [e.data["choices"][0]["index"] for e in events if not e.comment and e.data != "[DONE]"]
    assert list(dict.fromkeys(order)) == list(range(5))


@pytest.mark.parametrize("more", [{}, {"max_tokens": 1}, {"echo": True, "logprobs": 1}, {"prompt": "Once upon a time " * 150}], ids=["plain", "one", "echo", "long"])
def test_choices_of_a_prompt_begin_in_order(own_server, more):
    for slots in (8, 2):
        events = own_server("--slots", slots).events("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 4, "n": 4, "seed": 3, **more})
        order = [e.data["choices"][0]["index"] for e in events if not e.comment and e.data != "[DONE]"]
        assert list(dict.fromkeys(order)) == list(range(4))


def test_usage_only_when_asked(server, route):
    path, body = route
    events = server.events(path, {**body, "stream_options": {"include_usage": True}})
    assert events[-1].data == "[DONE]"
    usage = events[-2].data
    assert usage["choices"] == []
    whole = server.post(path, body).json["usage"]
    assert usage["usage"] == whole
    assert usage["usage"]["completion_tokens"] == 6
    assert all(e.data.get("usage") is None for e in events[:-2] if not e.comment)
    for options in ({"include_usage": False}, {}, None):
        events = server.events(path, {**body, "stream_options": options})
        assert all(e.data["choices"] for e in events[:-1] if not e.comment), options


def test_continuous_usage(server, route):
    path, body = route
    events = server.events(path, {**body, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    counts = [e.data["usage"]["completion_tokens"] for e in events[:-1] if not e.comment]
    assert counts[0] == (0 if "messages" in body else 1)  # the role is no token
    assert counts == sorted(counts) and counts[-1] == 6


def test_stream_joins_to_the_whole_answer(server, route):
    path, body = route
    body = {**body, "max_tokens": 100}
    text = ""
    for e in server.events(path, body):
        if e.data != "[DONE]" and not e.comment:
            choice = e.data["choices"][0]
            text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    choice = server.post(path, body).json["choices"][0]
    assert text == (choice["text"] if "text" in choice else choice["message"]["content"])


def test_deltas_never_end_inside_a_character(server):
    """Bytes that are no character by themselves, forced: every frame is valid UTF-8 and JSON by itself."""
    ids = server.post("/tokenize", {"prompt": "\u4f60"}).json["tokens"]
    assert len(ids) == 3  # one byte a token
    for bias in ({str(ids[0]): 100}, {str(i): 100 for i in ids}):
        events = server.events("/v1/completions", {**BODY, "max_tokens": 30, "temperature": 1, "seed": 4, "logit_bias": bias})
        for e in events:
            e.raw.decode()
            assert b"\\ud" not in e.raw
        text = "".join(e.data["choices"][0]["text"] for e in events[:-1])
        whole = server.post("/v1/completions", {**BODY, "max_tokens": 30, "temperature": 1, "seed": 4, "logit_bias": bias})
        assert text == whole.json["choices"][0]["text"]


def test_errors_before_the_first_token_are_no_stream(server, route):
    answer = server.post(route[0], {**route[1], "stream": True, "temperature": 9})
    assert answer.status == 400
    assert answer.header("Content-Type").startswith("application/json")


def test_stream_null_is_no_stream(server, route):
    answer = server.post(route[0], {**route[1], "stream": None})
    assert answer.status == 200 and answer.header("Content-Type").startswith("application/json")
    json.loads(answer.body)


def test_keep_alive_after_a_stream(server):
    import http.client
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    for _ in range(3):
        connection.request("POST", "/v1/completions", json.dumps({**BODY, "stream": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        assert list(read_events(response))[-1].data == "[DONE]"
        assert response.getheader("Connection") != "close"
    connection.close()


STEP_MS = 2000
OPENINGS = [("/v1/completions", {"prompt": "Once upon a time"}, []),
            ("/v1/chat/completions", {"messages": CHAT["messages"]}, ["chat.completion.chunk"]),
            ("/v1/responses", {"input": "Tell me a tale."}, ["response.created", "response.in_progress"]),
            ("/v1/messages", {"messages": CHAT["messages"]}, ["message_start"])]


@pytest.fixture(scope="module")
def slow():
    """Each step takes two seconds, so that what comes sooner came before the prompt was read."""
    s = Server("--device", f"null:{STEP_MS}", "--slots", 1, "--max-queue-requests", 1, "--request-timeout-ms", STEP_MS // 2, name="slow")
    s.complete(max_tokens=1)  # the first step of all takes no time
    yield s
    s.stop()


def said(event):
    return event.data.get("type") or event.data.get("object")


@pytest.mark.parametrize("path, body, opening", OPENINGS, ids=[path.split("/")[2] for path, _, _ in OPENINGS])
def test_a_stream_begins_before_its_prompt_is_read(slow, path, body, opening):
    """The status line too, where the API has no event to begin with."""
    tokens = "rodimus_time_to_first_token_seconds_count"
    before = slow.metric(tokens)
    connection, response = slow.open("POST", path, {**body, "max_output_tokens" if "responses" in path else "max_tokens": 2, "stream": True})
    events = read_events(response)
    first = [said(next(events)) for _ in opening]
    at_first = slow.metric(tokens)
    rest = [e for e in events if not e.comment]
    connection.close()
    assert (response.status, first, at_first) == (200, opening, before)
    assert slow.metric(tokens) == before + 1 and rest
    names = [said(e) for e in rest if e.data != "[DONE]"]
    assert not {"response.created", "message_start"} & set(names), names


def test_an_error_before_the_slot_is_a_status_of_a_stream(slow):
    """The second request waits too long for the slot, the third finds the queue full, the others ask for what there is not."""
    ask = {"prompt": "Once upon a time", "max_tokens": 2, "stream": True}
    first, one = slow.open("POST", "/v1/completions", {**ask, "max_tokens": 4})
    second = []
    waiting = threading.Thread(target=lambda: second.append(slow.post("/v1/completions", ask)))
    waiting.start()
    slow.wait_metric("rodimus_queue_requests", lambda n: n == 1)
    third = slow.post("/v1/completions", ask)
    waiting.join()
    bad = [slow.post("/v1/completions", {**ask, **more}).status for more in ({"structured_outputs": {"regex": "("}}, {"temperature": -1}, {"prompt": [10**6]})]
    list(read_events(one))
    first.close()
    assert (one.status, second[0].status, third.status, bad) == (200, 408, 429, [400, 400, 400]), (second[0], third, bad)
