"""Clients that send the whole conversation again find what the model said, whatever bytes its answers come back as."""
import json
import random

import pytest

from talk import CHAT, message_of, new_id

TOOL = {"name": "edit", "description": "Changes a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string", "maxLength": 12}, "line": {"type": "integer"}}, "required": ["path", "line"]}}
TOOLS = [{"type": "function", "function": TOOL}]
EVERY = {"RODIMUS_TEST_CHECKPOINTS_PAY": "1"}  # each entry of the cache pays, however busy the machine is


def respelt(arguments, draw):
    """Equal as JSON, and perhaps with a member that the client adds."""
    value = json.loads(arguments)
    members = list(value.items())
    draw.shuffle(members)
    if draw.randrange(2):
        members.append(("replace_all", False))
    return json.dumps(dict(members), indent=draw.choice([None, 1, 4]))


def chats(server, messages, **more):
    answer = server.post(CHAT, {"messages": messages, "max_tokens": 100, "temperature": 0.7, **more})
    assert answer.status == 200, answer
    return answer.json


def settle(server):
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)


def test_calls_that_come_back_spelt_otherwise_are_not_read_again(own_server):
    server, draw = own_server(env=EVERY), random.Random(1)
    messages, last = [{"role": "system", "content": "You edit files."}, {"role": "user", "content": "Edit all."}], 0
    for i in range(12):
        body = chats(server, messages, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=i)
        usage, said = body["usage"], body["choices"][0]["message"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= last - 1, (i, usage, last)
        last = usage["prompt_tokens"] + usage["completion_tokens"]
        call = said["tool_calls"][0]
        back = {**call, "function": {**call["function"], "arguments": respelt(call["function"]["arguments"], draw)}}
        messages += [{**said, "tool_calls": [back]}, {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"done": i})}]
        settle(server)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_use_that_comes_back_spelt_otherwise_is_not_read_again(own_server, stream):
    server, draw = own_server(env=EVERY), random.Random(2)
    messages, last = [{"role": "user", "content": "Edit all."}], 0
    tools = [{"name": "edit", "description": "Changes a file.", "input_schema": TOOL["parameters"]}]
    for i in range(6):
        body = {"model": "tales", "max_tokens": 100, "messages": messages, "tools": tools, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        if stream:
            blocks, usage = message_of(e.data for e in server.events("/v1/messages", body) if not e.comment)
        else:
            answer = server.post("/v1/messages", body)
            assert answer.status == 200, answer
            blocks, usage = answer.json["content"], answer.json["usage"]
        assert usage["cache_read_input_tokens"] >= last - 1, (i, usage, last)
        read = usage["cache_read_input_tokens"] + usage["input_tokens"] + usage.get("cache_creation_input_tokens", 0)
        counted = server.post("/v1/messages/count_tokens", {k: v for k, v in body.items() if k not in ("max_tokens", "stream")})
        assert counted.json == {"input_tokens": read}, (i, counted, read)
        last = read + usage["output_tokens"]
        call = blocks[-1]
        assert call["type"] == "tool_use", blocks
        back = [*blocks[:-1], {**call, "input": json.loads(respelt(json.dumps(call["input"]), draw))}]
        messages += [{"role": "assistant", "content": back},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": f"done {i}"}]}]
        settle(server)


def test_a_conversation_sent_in_full_says_what_a_session_says(own_server):
    """Random turns: the model goes on from what it said, as in a session, to the last token."""
    server, draw = own_server(env=EVERY), random.Random(3)
    for talk in range(4):
        session, messages = new_id(), []
        for i in range(6):
            new = {"role": "user", "content": " ".join(draw.choice(["red", "dog", "house", "Ünï", "42", "\n", "the"]) for _ in range(draw.randrange(1, 30)))}
            messages.append(new)
            ask = {"seed": draw.randrange(1000), "max_tokens": draw.randrange(1, 40), "temperature": draw.choice([0, 1]), "return_token_ids": True}
            whole = chats(server, messages, **ask)
            turn = chats(server, [new], session_id=session, session_create=i == 0, **ask)
            assert whole["choices"][0]["token_ids"] == turn["choices"][0]["token_ids"], (talk, i)
            assert whole["usage"]["prompt_tokens"] == turn["usage"]["prompt_tokens"], (talk, i)
            messages.append(whole["choices"][0]["message"])
            settle(server)


def test_a_text_that_goes_on_is_read_as_it_stands(own_server):
    """The tokens of a stop string that nobody saw are no part of it."""
    on, off = own_server(env=EVERY), own_server("--prefix-cache-bytes", 0)
    ask = [{"role": "user", "content": "Tell me a tale about a fox."}]
    goes_on = {"continue_final_message": True, "add_generation_prompt": False, "temperature": 0, "max_tokens": 30}
    cut = 0
    for stop in (" at", "he", " a", " w", "o"):
        said = chats(on, ask, stop=[stop], temperature=0)["choices"][0]["message"]["content"]
        assert stop not in said
        cut += bool(said)
        messages = [*ask, {"role": "assistant", "content": said or "The"}]
        settle(on)
        want, got = (chats(s, messages, **goes_on) for s in (off, on))
        assert got["choices"][0]["message"] == want["choices"][0]["message"], stop
    assert cut > 1


def test_items_of_a_response_that_come_back_spelt_otherwise_are_not_read_again(own_server):
    server, draw = own_server(env=EVERY), random.Random(4)
    items, last = [{"role": "user", "content": "Edit all."}], 0
    for i in range(6):
        body = {"input": items, "tools": [{"type": "function", **TOOL}], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 100, "store": False}
        answer = server.post("/v1/responses", body)
        assert answer.status == 200, answer
        usage = answer.json["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] >= last - 1, (i, usage, last)
        last = usage["input_tokens"] + usage["output_tokens"]
        said = [item for item in answer.json["output"] if item["type"] != "reasoning"]
        assert said[-1]["type"] == "function_call", said
        back = [{**item, "arguments": respelt(item["arguments"], draw)} if item["type"] == "function_call" else item for item in said]
        items += [*back, {"type": "function_call_output", "call_id": said[-1]["call_id"], "output": f"done {i}"}]
        settle(server)


WRITE = {"type": "custom", "name": "write", "description": "Writes a file.", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]{1,9} *[a-z]{0,9}\\n"}}


def response_of(server, body, stream):
    if stream:
        return [e.data for e in server.events("/v1/responses", body) if not e.comment][-1]["response"]
    answer = server.post("/v1/responses", body)
    assert answer.status == 200, answer
    return answer.json


@pytest.mark.parametrize("bare", [False, True], ids=["as it was given", "without what is not needed"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_items_of_a_response_that_is_not_stored_are_known_when_they_come_back(own_server, stream, bare):
    """Calls and texts, though their ids lead to nothing that an item_reference could name."""
    server, last, n_output = own_server(env=EVERY), 0, {"message": 0, "function_call": 0, "custom_tool_call": 0}
    ways = ({"tool_choice": {"type": "function", "name": "edit"}}, {"tool_choice": {"type": "custom", "name": "write"}}, {"structured_outputs": {"choice": ["Sure.  No "]}})
    items = [{"role": "user", "content": "Edit all."}]
    for i, way in enumerate(ways * 2):
        body = {**way, "input": items, "tools": [{"type": "function", **TOOL}, WRITE], "parallel_tool_calls": False, "max_output_tokens": 60,
                "temperature": 0.7, "seed": i, "store": False, "stream": stream}
        response = response_of(server, body, stream)
        usage, output = response["usage"], [item for item in response["output"] if item["type"] != "reasoning"]
        assert usage["input_tokens_details"]["cached_tokens"] >= last - 1, (i, usage, last)
        last = usage["input_tokens"] + usage["output_tokens"]
        for item in output:
            n_output[item["type"]] += 1
            refused = server.post("/v1/responses", {**body, "stream": False, "input": [*items, {"type": "item_reference", "id": item["id"]}]})
            assert (refused.status, refused.error["param"]) == (404, "input") and item["id"] in refused.error["message"], (item, refused)
            items = [*items, {k: v for k, v in item.items() if not bare or k not in ("id", "status")}]
            if item["type"] != "message":
                items.append({"type": item["type"] + "_output", "call_id": item["call_id"], "output": f"done {i}"})
        if output[-1]["type"] == "message":
            items.append({"role": "user", "content": "Go on."})
        settle(server)
    assert all(n_output.values()), n_output
