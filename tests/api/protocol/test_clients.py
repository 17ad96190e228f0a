"""The clients people use: the openai package in its ways of asking and with its retries, curl, and the request bodies of the
load tools (tests/clients/load_tools.json), each answer read by the rules of the tool. What weighs too much to install here is
under `make test-clients`."""
import asyncio
import json
import os
import subprocess
import threading
import time

import openai
import pytest

from server import ROOT, read_events

PROMPT = dict(model="tales", prompt="The fox said to the raven, \"", max_tokens=12, temperature=0)
MESSAGES = dict(model="tales", messages=[{"role": "user", "content": "Tell me a tale about a fox."}], max_tokens=12, temperature=0)
ENDLESS = {"prompt": [5], "max_tokens": 10**6, "ignore_eos": True, "stream": True}


def resource(client, chat):
    return (client.chat.completions, MESSAGES) if chat else (client.completions, PROMPT)


def text_of(choice):
    """The text of a choice, whole or of a chunk."""
    if hasattr(choice, "text"):
        return choice.text
    return (choice.message if hasattr(choice, "message") else choice.delta).content or ""


# ---- the openai package ----

@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_every_way_to_ask_gives_the_same_text(server, client, chat):
    create, ask = resource(client, chat)
    want = text_of(create.create(**ask).choices[0])
    assert want
    with create.create(**ask, stream=True) as stream:
        assert "".join(text_of(c.choices[0]) for c in stream if c.choices) == want
    raw = create.with_raw_response.create(**ask, extra_headers={"X-Request-Id": "raw-1"})
    assert raw.headers["x-request-id"] == "raw-1" and text_of(raw.parse().choices[0]) == want
    with create.with_streaming_response.create(**ask) as response:
        assert response.http_response.status_code == 200 and text_of(response.parse().choices[0]) == want

    async def others():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60) as one:
            create, _ = resource(one, chat)
            whole = await asyncio.gather(*[create.create(**ask) for _ in range(8)])
            texts = [text_of(w.choices[0]) for w in whole]
            async with await create.create(**ask, stream=True) as stream:
                texts.append("".join([text_of(c.choices[0]) async for c in stream if c.choices]))
            return texts

    assert set(asyncio.run(others())) == {want}


def test_the_stream_helper_of_the_package(client):
    """client.chat.completions.stream: it gathers the chunks itself, and holds them against its types."""
    ask = {**MESSAGES, "max_tokens": 200, "stop": "."}  # it raises where an answer ends by its length
    want = client.chat.completions.create(**ask).choices[0]
    assert want.finish_reason == "stop"
    with client.chat.completions.stream(**ask, stream_options={"include_usage": True}) as stream:
        deltas = [e.delta for e in stream if e.type == "content.delta"]
        got = stream.get_final_completion()
    assert "".join(deltas) == got.choices[0].message.content == want.message.content
    assert got.choices[0].finish_reason == "stop" and got.usage.completion_tokens > 0


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("more", [{}, {"logprobs": True, "top_logprobs": 2}], ids=["plain", "logprobs"])
def test_the_stream_helper_of_the_package_with_choices(client, n, more):
    ask = {**MESSAGES, "max_tokens": 200, "stop": ".", "n": n, "temperature": 1, "seed": 4, **more}
    want = client.chat.completions.create(**ask).choices
    with client.chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        got = stream.get_final_completion().choices
    assert [(c.index, c.message.content) for c in got] == [(c.index, c.message.content) for c in want]


def test_a_stream_that_the_package_closes_frees_its_slot(server, client):
    before = server.metric("rodimus_http_disconnects_total")
    stream = client.completions.create(model="tales", prompt="x", max_tokens=10**6, stream=True, extra_body={"ignore_eos": True})
    for _, _ in zip(range(3), stream):
        pass
    stream.close()
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)
    assert server.metric("rodimus_http_disconnects_total") == before + 1


def n_answers(server, code, route="/v1/completions"):
    return server.metrics().get(f'rodimus_http_requests_total{{route="{route}",code="{code}"}}', 0)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_retries_come_through_a_full_queue(own_server, kind):
    """429 with Retry-After: the package waits as it is told and asks again, until there is room."""
    s = own_server("--slots", 1, "--max-queue-requests", 0)
    connection, response = s.open("POST", "/v1/completions", ENDLESS)
    assert response.status == 200

    def leave():
        while n_answers(s, 429) < 1:
            time.sleep(0.01)
        connection.close()

    leaver = threading.Thread(target=leave)
    leaver.start()
    options = dict(base_url=s.url + "/v1", api_key="none", max_retries=5, timeout=60)
    if kind == "sync":
        text = openai.OpenAI(**options).completions.create(**PROMPT).choices[0].text
    else:
        async def ask():
            async with openai.AsyncOpenAI(**options) as one:
                stream = await one.completions.create(**PROMPT, stream=True)
                return "".join([c.choices[0].text async for c in stream])
        text = asyncio.run(ask())
    leaver.join()
    assert text == s.complete(PROMPT["prompt"], 12)["choices"][0]["text"]
    assert n_answers(s, 429) >= 1


def test_what_no_retry_can_mend_is_asked_once(own_server):
    s = own_server("--slots", 1, "--request-timeout-ms", 200)
    client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=3, timeout=60)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tales", prompt="a", temperature=9)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt="a")
    connection, response = s.open("POST", "/v1/completions", ENDLESS)
    assert response.status == 200
    with pytest.raises(openai.APIStatusError) as e:  # the package asks again after a 408, but for x-should-retry: false
        client.completions.create(**PROMPT)
    connection.close()
    assert e.value.status_code == 408
    assert [n_answers(s, code) for code in (400, 404, 408)] == [1, 1, 1]


def test_a_draining_server_is_asked_again_and_then_given_up(own_server):
    s = own_server("--slots", 1, "--drain-notice-ms", 0)
    connection, response = s.open("POST", "/v1/completions", ENDLESS)
    assert response.status == 200
    client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=1, timeout=60)
    s.terminate()
    with pytest.raises(ConnectionError):  # the port closes, so that who asks goes to another replica
        while True:
            s.get("/health/live")
            time.sleep(0.01)
    with pytest.raises((openai.InternalServerError, openai.APIConnectionError)) as e:
        client.completions.create(**PROMPT)
    if isinstance(e.value, openai.InternalServerError):
        assert e.value.status_code == 503
    connection.close()
    assert s.wait() == 0


# ---- curl ----

@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_curl(server, client, tmp_path, chat, stream):
    create, ask = resource(client, chat)
    want = text_of(create.create(**ask).choices[0])
    body = tmp_path / "body.json"
    body.write_text(json.dumps({**ask, "stream": stream}, indent=1))
    route = "/v1/chat/completions" if chat else "/v1/completions"
    done = subprocess.run(["curl", "-sSN", "--fail-with-body", "--max-time", "60", "-w", "\n%{http_code} %{content_type}", server.url + route,
                           "-H", "Content-Type: application/json", "-H", "Authorization: Bearer none", "-d", f"@{body}"],
                          capture_output=True, text=True, timeout=70)
    assert done.returncode == 0, done.stdout + done.stderr
    answer, _, status = done.stdout.rpartition("\n")
    assert status == "200 " + ("text/event-stream; charset=utf-8" if stream else "application/json"), status
    if stream:
        frames = [line[6:] for line in answer.split("\n") if line.startswith("data: ")]
        assert frames[-1] == "[DONE]"
        choices = [json.loads(f)["choices"][0] for f in frames[:-1]]
        text = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)
    else:
        choice = json.loads(answer)["choices"][0]
        text = choice["message"]["content"] if chat else choice["text"]
    assert text == want


# ---- load tools ----

with open(os.path.join(ROOT, "tests", "clients", "load_tools.json"), encoding="utf-8") as f:
    TOOLS = json.load(f)


def piece(choice):
    return choice["text"] if "text" in choice else choice["delta" if "delta" in choice else "message"].get("content")


def read_frames(events):
    """Frames between blank lines; comments are passed over; a frame with choices is text, one without has the usage."""
    text, usage = "", None
    for e in events:
        if e.comment or e.data == "[DONE]":
            continue
        if e.data["choices"]:
            text += piece(e.data["choices"][0]) or ""
        else:
            usage = e.data["usage"]
    return text, usage


def read_choices(events):
    """No comments, and choices in every frame: this reader knows no other."""
    assert events[-1].data == "[DONE]"
    return "".join(piece(e.data["choices"][0]) or "" for e in events[:-1]), None


def read_lines(events):
    """Line by line, each with a type that it knows; the latest usage counts."""
    text, usage = "", None
    for e in events:
        for line in e.raw.split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            if line == b"data: [DONE]":
                return text, usage
            data = json.loads(line[5:])
            assert data["object"] in ("text_completion", "chat.completion.chunk")
            usage = data.get("usage") or usage
            if data["choices"]:
                text += piece(data["choices"][0]) or ""
    raise AssertionError("no [DONE]")


@pytest.mark.parametrize("case", TOOLS, ids=[f"{t['tool']}, {t['backend']}, {t['route']}" for t in TOOLS])
def test_bodies_of_load_tools(server, case):
    path, body, n = case["route"], case["body"], case["output_tokens"]
    if case["reads"] == "whole":
        answer = server.post(path, body, headers=case["headers"])
        assert answer.status == 200, answer
        text, usage = piece(answer.json["choices"][0]), answer.json["usage"]
        first = answer.json["choices"][0]
    else:
        connection, response = server.open("POST", path, body, case["headers"])
        try:
            assert response.status == 200, response.read()
            events = list(read_events(response))
        finally:
            connection.close()
        text, usage = {"frames": read_frames, "choices": read_choices, "lines": read_lines}[case["reads"]](events)
        first = next(e.data for e in events if not e.comment)["choices"][0]
    assert text and first["index"] == 0
    if usage is not None:
        assert usage["completion_tokens"] == n and usage["prompt_tokens"] > 0
    else:
        assert case["reads"] == "choices"
    if body.get("temperature") == 0:  # what the tool has read is the whole text
        plain = {k: v for k, v in body.items() if k in ("prompt", "messages", "temperature", "ignore_eos")}
        assert text == piece(server.post(path, {**plain, "max_tokens": n}).json["choices"][0])
