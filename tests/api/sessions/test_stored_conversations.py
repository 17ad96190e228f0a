"""Stored responses whose input is the whole conversation: each is kept as its own, and reads only what is new."""
import json
import random

import pytest

from talk import new_id

PATH = "/v1/responses"
EVERY = {"RODIMUS_TEST_CHECKPOINTS_PAY": "1"}  # each entry of the cache pays, however busy the machine is
TOOL = {"type": "function", "name": "edit", "description": "Changes a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string", "maxLength": 12}, "line": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["path", "line"]}}
AGENT = {"instructions": "You edit files. " * 20, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 160}
NAMES = {"key": lambda name: ({"prompt_cache_key": name}, {}), "header": lambda name: ({}, {"X-Session-Id": name}), "thread": lambda name: ({}, {"thread-id": name, "session-id": "root"}), "none": lambda name: ({}, {})}


def asks(server, body, headers=None):
    answer = server.post(PATH, body, headers=headers or {})
    assert answer.status == 200, answer
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)
    return answer


def cached(answer):
    return answer["usage"]["input_tokens_details"]["cached_tokens"]


def respelt(item):
    """The same call in other bytes, as clients write it."""
    arguments = json.dumps({**json.loads(item["arguments"]), "replace_all": False}, indent=1)
    return {**item, "arguments": arguments}


def output(item, text):
    return {"type": "function_call_output", "call_id": item["call_id"], "output": text}


@pytest.mark.parametrize("how,restart", [(how, restart) for how in NAMES for restart in (False, True) if how != "none" or not restart])
def test_a_stored_response_with_the_whole_history_reads_what_is_new(own_server, tmp_path, how, restart):
    """Each is fetched again as it was answered, and goes on from where it is; after kill -9 at once behind its end a name finds all."""
    more, headers = NAMES[how]("t/" + new_id())
    start = lambda: own_server("--state-dir", tmp_path, env=EVERY)
    server, items, last, ids = start(), [{"role": "user", "content": "Edit all."}], 0, []
    for i in range(5):
        answer = server.post(PATH, {**AGENT, **more, "input": items, "seed": i}, headers=headers)
        if restart:
            server.kill()
            server = start()
        else:
            server.wait_metric("rodimus_slots_used", lambda n: n == 0)
        assert answer.status == 200, answer
        body = answer.json
        assert cached(body) >= last - 1, (i, body["usage"], last)
        assert body["session"] == {"id": body["id"], "version": 1} and body["store"] is True
        assert server.get(f"{PATH}/{body['id']}").body == answer.body
        last = body["usage"]["total_tokens"]
        ids.append((body["id"], last))
        (call,) = body["output"]
        items = [*items, respelt(call), output(call, json.dumps({"done": i}))]
    for id_, tokens in ids:
        on = asks(server, {"previous_response_id": id_, "input": "More.", "max_output_tokens": 2}).json
        assert cached(on) >= tokens - 1 and on["usage"]["input_tokens"] < tokens + 30, (on["usage"], tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_the_whole_history_says_what_a_chain_of_responses_says(own_server, stream):
    """Random talks: to the last token, as both go on from what the model said."""
    server, draw = own_server(env=EVERY), random.Random(5)

    def ask(**body):
        if not stream:
            return asks(server, body).json
        events = [e.data for e in server.events(PATH, {**body, "stream": True}) if not e.comment]
        server.wait_metric("rodimus_slots_used", lambda n: n == 0)
        return events[-1]["response"]

    for talk in range(3):
        items, before, name = [], None, new_id()
        for i in range(5):
            new = {"role": "user", "content": " ".join(draw.choice(["red", "dog", "house", "42", "\n", "the"]) for _ in range(draw.randrange(1, 30)))}
            items.append(new)
            how = {"seed": draw.randrange(1000), "max_output_tokens": draw.randrange(1, 40), "temperature": draw.choice([0, 1])}
            whole = ask(input=items, prompt_cache_key=name, **how)
            turn = ask(input=[new], previous_response_id=before, **how)
            assert whole["output"][0]["content"] == turn["output"][0]["content"], (talk, i)
            assert whole["usage"]["input_tokens"] == turn["usage"]["input_tokens"], (talk, i)
            before = turn["id"]
            items += whole["output"]


def test_a_compaction_keeps_the_head_and_the_response(own_server):
    server, name = own_server(env=EVERY), new_id()
    items = [{"role": "user", "content": "Edit all. " * 30}]
    for _ in range(3):
        body = asks(server, {**AGENT, "input": items, "prompt_cache_key": name}).json
        (call,) = body["output"]
        items += [call, output(call, "ok")]
    last = body["usage"]["total_tokens"]
    summary = asks(server, {"instructions": AGENT["instructions"], "input": [*items, {"role": "user", "content": "Sum it up."}], "tools": [], "prompt_cache_key": name, "max_output_tokens": 40})
    usage = summary.json["usage"]["input_tokens_details"]
    assert usage["kept_tools"] == 1 and usage["cached_tokens"] >= last - 1, (usage, last)
    kept = server.get(f"{PATH}/{summary.json['id']}").json
    assert kept["output"] == summary.json["output"] and kept["tools"] == []


def test_a_repeated_key_of_a_named_response_gets_the_first_answer(own_server, tmp_path):
    server, name = own_server("--state-dir", tmp_path, env=EVERY), new_id()
    headers = {"Idempotency-Key": new_id(), "X-Session-Id": name}
    ask = {"input": "Tell me a tale. " * 20, "max_output_tokens": 9, "temperature": 1}
    first = asks(server, ask, headers)
    assert asks(server, ask, headers).body == first.body
    again = [{"role": "user", "content": ask["input"]}, *first.json["output"], {"role": "user", "content": "More."}]
    assert cached(asks(server, {**ask, "input": again}, {"X-Session-Id": name}).json) >= first.json["usage"]["total_tokens"] - 1
    other = server.post(PATH, {**ask, "input": "Another."}, headers=headers)
    assert other.status == 400 and other.error["param"] == "Idempotency-Key", other


def test_references_and_a_name_together(own_server):
    """As a client of the SDK that keeps ids in place of items: nothing is read again."""
    server, name = own_server(env=EVERY), new_id()
    items, last = [{"role": "user", "content": "Edit all. " * 30}], 0
    for i in range(4):
        body = asks(server, {**AGENT, "input": items, "prompt_cache_key": name, "seed": i}).json
        assert cached(body) >= last - 1, (i, body["usage"], last)
        last = body["usage"]["total_tokens"]
        (call,) = body["output"]
        items += [{"type": "item_reference", "id": call["id"]}, output(call, "ok")]
