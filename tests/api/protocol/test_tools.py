"""Tools in chats: calls that a grammar forces, calls found in what the model says, histories and results."""
import json

import jsonschema
import openai
import pytest

from models import variant
from server import SLOWER

CHAT = "/v1/chat/completions"
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
LOOK = {"type": "object", "properties": {"at": {"enum": ["fox", "raven"]}}, "required": ["at"], "additionalProperties": False}


def tool(name, parameters=None, **more):
    return {"type": "function", "function": {"name": name, **({"parameters": parameters} if parameters else {}), **more}}


TOOLS = [tool("get_weather", WEATHER, description="The weather of a city."), tool("look", LOOK), tool("now")]
SCHEMAS = {"get_weather": WEATHER, "look": LOOK, "now": {"type": "object", "maxProperties": 0}}
ASK = [{"role": "user", "content": "What is the weather in Ulm?"}]
SURE = 'Sure.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def says(text):
    """What makes a model say this text, where tools are of the choice auto."""
    return {"structured_outputs": {"choice": [text]}}


def ask(server, **more):
    answer = server.post(CHAT, {"messages": ASK, "tools": TOOLS, "max_tokens": 120, "temperature": 1, **more})
    assert answer.status == 200, answer
    return answer.json["choices"][0]


def valid(call):
    assert call["id"].startswith("call_") and len(call["id"]) == 29 and call["type"] == "function", call
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    return call["function"]["name"]


def gather(events):
    """A stream put together again: content, calls, finish_reason."""
    content, calls, finish = None, [], None
    for chunk in events:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if delta.get("content") is not None:
                content = (content or "") + delta["content"]
            for piece in delta.get("tool_calls", []):
                if "id" in piece:
                    assert piece["index"] == len(calls) and piece["type"] == "function" and piece["function"]["arguments"] == "", piece
                    calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
                else:
                    assert piece["index"] == len(calls) - 1 and list(piece["function"]) == ["arguments"], piece
                    calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    return content, calls, finish


def chunks(server, body):
    return [e.data for e in server.events(CHAT, {**body, "stream": True}) if e.data != "[DONE]"]


def stream(server, **more):
    return gather(chunks(server, {"messages": ASK, "tools": TOOLS, "max_tokens": 120, "temperature": 1, **more}))


@pytest.mark.parametrize("seed", range(4))
def test_required_calls_are_valid(server, seed):
    choice = ask(server, tool_choice="required", seed=seed, max_tokens=400)
    assert choice["message"]["content"] is None
    calls = choice["message"]["tool_calls"]
    assert choice["finish_reason"] in ("tool_calls", "length") and calls
    for call in calls[:-1] if choice["finish_reason"] == "length" else calls:
        valid(call)
    assert len({c["id"] for c in calls}) == len(calls)


@pytest.mark.parametrize("seed", range(3))
def test_one_call_where_calls_may_not_be_parallel(server, seed):
    choice = ask(server, tool_choice="required", seed=seed, parallel_tool_calls=False)
    assert choice["finish_reason"] == "tool_calls" and len(choice["message"]["tool_calls"]) == 1, choice
    valid(choice["message"]["tool_calls"][0])


def test_a_named_function_is_called_once_and_ends_with_stop(server):
    for seed in range(3):
        choice = ask(server, tool_choice={"type": "function", "function": {"name": "look"}}, seed=seed)
        assert choice["finish_reason"] == "stop" and [valid(c) for c in choice["message"]["tool_calls"]] == ["look"], choice


def test_allowed_tools_alone_are_called_and_all_are_read(server):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    body = {"messages": ASK, "tools": TOOLS, "temperature": 1, "max_tokens": 120, "parallel_tool_calls": False}
    one = server.post(CHAT, {**body, "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}).json
    assert [valid(c) for c in one["choices"][0]["message"]["tool_calls"]] == ["now"]
    assert one["usage"]["prompt_tokens"] == server.post(CHAT, {**body, "tool_choice": "required"}).json["usage"]["prompt_tokens"]


def test_a_stream_has_the_calls_of_the_whole_answer(server):
    for more in ({"tool_choice": "required", "parallel_tool_calls": False}, {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
                 says(SURE), says("No.\n<tool"), {"tool_choice": "required", "max_tokens": 30}, {}):
        whole = ask(server, seed=5, **more)
        content, calls, finish = stream(server, seed=5, **more)
        said = whole["message"]
        assert (content or "", finish) == (said["content"] or "", whole["finish_reason"]), more
        assert [c["function"] for c in calls] == [c["function"] for c in said.get("tool_calls", [])], more


def test_text_before_a_call_is_content(server):
    choice = ask(server, **says(SURE + "\n" + SURE[6:].replace("now", "look").replace("{}", '{"at": "fox"}')))
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "Sure."
    assert [valid(c) for c in choice["message"]["tool_calls"]] == ["now", "look"]


@pytest.mark.parametrize("text", [SURE.replace("now", "later"), "A <tool_call>", 'A\n<tool_call>\n{"name": 7}', "\n<tool_call>\n[]\n</tool_call>", "A </tool_call>"])
def test_what_is_no_call_stays_text(server, text):
    choice = ask(server, **says(text))
    assert choice["finish_reason"] == "stop" and choice["message"] == {"role": "assistant", "content": text, "refusal": None}, choice


def test_a_format_beside_tools_is_followed_or_there_is_a_call(server):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": LOOK}}
    for seed in range(4):
        said = ask(server, response_format=form, seed=seed, max_tokens=200)["message"]
        if said["content"] is not None:
            jsonschema.validate(json.loads(said["content"]), LOOK)
            assert "tool_calls" not in said
        else:
            assert said["tool_calls"]


def test_length_wins_and_leaves_the_beginning_of_arguments(server):
    choice = ask(server, tool_choice={"type": "function", "function": {"name": "get_weather"}}, max_tokens=55, seed=1)
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather" and call["function"]["arguments"].startswith("{")
    with pytest.raises(json.JSONDecodeError):
        json.loads(call["function"]["arguments"])
    choice = ask(server, tool_choice="required", max_tokens=3)
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]


def say(server, route, limit, streams):
    """Text, arguments of calls and the end of the answer SURE on one of the three routes, cut at a limit."""
    body = {"tools": TOOLS, "temperature": 1, "seed": 2, "stream": streams, **says(SURE)}
    if route == CHAT:
        body |= {"messages": ASK, "max_tokens": limit}
        content, calls, finish = stream(server, **body) if streams else (None, None, None)
        if not streams:
            choice = ask(server, **body)
            content, calls, finish = choice["message"]["content"], choice["message"].get("tool_calls", []), choice["finish_reason"]
        return content or "", [c["function"]["arguments"] for c in calls], finish
    if route == "/v1/messages":
        body |= {"messages": ASK, "max_tokens": limit, "tools": [{"name": t["function"]["name"], "input_schema": {"type": "object"}} for t in TOOLS]}
        if not streams:
            said = server.post(route, body).json
            return "".join(b.get("text", "") for b in said["content"]), [b["input"] for b in said["content"] if b["type"] == "tool_use"], said["stop_reason"]
        events = [e.data for e in server.events(route, body)]
        begun = [e["content_block"] for e in events if e["type"] == "content_block_start"]
        text = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta" and "text" in e["delta"])
        (finish,) = [e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta"]
        return text, [b["input"] for b in begun if b["type"] == "tool_use"], finish
    body |= {"input": ASK, "max_output_tokens": limit, "tools": [{"type": "function", "name": t["function"]["name"]} for t in TOOLS]}
    said = [e.data for e in server.events(route, body)][-1]["response"] if streams else server.post(route, body).json
    text = "".join(i["content"][0]["text"] for i in said["output"] if i["type"] == "message")
    kept = server.get(f"{route}/{said['id']}").json
    assert kept["output"] == said["output"] and kept["status"] == said["status"]
    return text, [i["arguments"] for i in said["output"] if i["type"] == "function_call"], said["status"]


@pytest.mark.parametrize("route, cut, ends", [(CHAT, "length", "tool_calls"), ("/v1/messages", "max_tokens", "tool_use"), ("/v1/responses", "incomplete", "completed")], ids=lambda v: v)
def test_what_the_limit_cuts_of_a_call_before_its_arguments_is_no_text(server, route, cut, ends):
    seen = set()
    for limit in range(1, 200):
        text, calls, end = say(server, route, limit, False)
        assert say(server, route, limit, True) == (text, calls, end), limit
        assert "Sure.\n".startswith(text) and end in (cut, ends), (limit, text, calls, end)
        seen.add((text, len(calls), end))
        if end == ends:
            break
    assert {("Sure.", 0, cut), ("Sure.", 1, cut), ("Sure.", 1, ends)} <= seen, seen


def test_stop_strings_are_for_text(server):
    """Agents of the older kind stop at a line break, which stands in the frame of every call."""
    for choice in ("required", {"type": "function", "function": {"name": "look"}}):
        said = ask(server, tool_choice=choice, stop=["\n", '"'], parallel_tool_calls=False)["message"]
        assert [valid(c) for c in said["tool_calls"]], said


def test_tags_in_messages_are_text(server):
    """Only what is generated is searched for calls."""
    for role in ("user", "tool"):
        choice = server.post(CHAT, {"messages": [*ASK, {"role": role, "content": SURE}], "tools": TOOLS, "max_tokens": 4, "temperature": 0}).json["choices"][0]
        assert "tool_calls" not in choice["message"]


def test_a_history_in_the_older_form_reads_as_calls_and_results(server):
    ask, one = {"role": "user", "content": "Look it up."}, {"name": "look", "arguments": "{}"}
    old = [ask, {"role": "assistant", "content": None, "function_call": one}, {"role": "function", "name": "look", "content": "A fox."}]
    new = [ask, {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": one}]},
           {"role": "tool", "tool_call_id": "call_1", "content": "A fox."}]
    first, second = (server.post("/apply-template", {"messages": messages}).json["prompt"] for messages in (old, new))
    assert first == second


def test_definitions_are_written_as_json_dumps_does(server):
    odd = [tool("f", {"type": "object", "properties": {"z": {"default": 0.1, "enum": [1e30, -2.5, 3, "é\x01\n\"\\/\b"]}, "a": {}}}, description="ü", strict=False)]
    text = server.post("/apply-template", {"messages": ASK, "tools": odd}).json["prompt"]
    assert "<tools>\n" + json.dumps(odd[0], ensure_ascii=False) + "\n</tools>" in text
    ids = server.post("/tokenize", {"messages": ASK, "tools": odd}).json
    assert ids["count"] > server.post("/tokenize", {"messages": ASK}).json["count"]
    none = server.post("/apply-template", {"messages": ASK, "tools": odd, "tool_choice": "none"}).json["prompt"]
    assert none == server.post("/apply-template", {"messages": ASK}).json["prompt"]


def test_a_schema_that_cannot_be_honoured_is_weakened_unless_strict(server):
    odd = {"type": "object", "not": {"required": ["a"]}}
    choice = ask(server, tools=[tool("f", odd)], tool_choice="required", parallel_tool_calls=False, max_tokens=200, seed=2)
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"
    answer = server.post(CHAT, {"messages": ASK, "tools": [tool("f", odd, strict=True)], "max_tokens": 1})
    assert answer.status == 400 and answer.error["param"] == "tools" and "strict" in answer.error["message"], answer


def test_n_choices_have_calls_of_their_own(server):
    answer = server.post(CHAT, {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "n": 3, "temperature": 1,
                                "max_tokens": 120}).json
    ids = [valid(c["message"]["tool_calls"][0]) and c["message"]["tool_calls"][0]["id"] for c in answer["choices"]]
    assert len(set(ids)) == 3


def test_logprobs_and_ids_stay_complete_beside_calls(server):
    body = {"messages": ASK, "tools": TOOLS, "max_tokens": 60, "temperature": 0, "logprobs": True, "return_token_ids": True, **says(SURE)}
    whole = server.post(CHAT, body).json["choices"][0]
    events = chunks(server, body)
    tokens = [t["token"] for e in events for c in e["choices"] if c["logprobs"] for t in c["logprobs"]["content"]]
    ids = [i for e in events for c in e["choices"] for i in c.get("token_ids", [])]
    assert tokens == [t["token"] for t in whole["logprobs"]["content"]] and ids == whole["token_ids"]


def test_a_loop_of_20_calls_finds_what_it_has_sent(own_server):
    """The whole conversation each time, as agents send it: what was read of it only grows. Whether an entry pays depends on how busy the machine
    is; here each does."""
    server = own_server(env={"RODIMUS_TEST_CHECKPOINTS_PAY": "1"})
    messages, cached, ends = [{"role": "system", "content": "You are a helpful agent."}, *ASK], [], []
    for i in range(20):
        answer = server.post(CHAT, {"messages": messages, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 120,
                                    "temperature": 0.7, "seed": i})
        assert answer.status == 200, answer
        usage, said = answer.json["usage"], answer.json["choices"][0]["message"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        ends.append(usage["prompt_tokens"])
        messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": json.dumps({"number": i})}]
    # a prompt's state is kept at the last multiple of a chunk before its end
    assert all(now >= before - 64 for now, before in zip(cached[1:], ends)), (cached, ends)


def test_the_openai_package_reads_calls(client):
    ask = {"model": "tales", "messages": ASK, "tools": TOOLS, "temperature": 1, "max_tokens": 120, "seed": 3, "parallel_tool_calls": False}
    said = client.chat.completions.create(**ask, tool_choice="required").choices[0].message
    assert said.content is None
    with client.chat.completions.stream(**ask, tool_choice="required") as events:
        final = [e for e in events][-1] and events.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.arguments == said.tool_calls[0].function.arguments
    again = client.chat.completions.create(model="tales", messages=[*ASK, said, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "4"}],
                                           max_tokens=4)
    assert again.choices[0].finish_reason
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        client.chat.completions.create(model="tales", messages=ASK, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nobody"}})


@pytest.mark.parametrize("special", [False, True])
def test_auto_holds_a_call_to_its_grammar_from_the_tag_on(own_server, tmp_path, special):
    """A tokenizer that has the tag as a token, and a bias that draws it wherever it may be drawn: free text is the tag alone, and behind it comes
    a valid call, again and again."""
    with open("config/models/tales/tokenizer.json", encoding="utf-8") as f:
        tokenizer = json.load(f)
    for token in tokenizer["added_tokens"]:
        if token["content"] == "[CLS]":
            token.update(content="<tool_call>", special=special)
            tag = token["id"]
    tokenizer["model"]["vocab"] = {"<tool_call>" if k == "[CLS]" else k: v for k, v in tokenizer["model"]["vocab"].items()}
    s = own_server("--model", variant(str(tmp_path / "model"), **{"tokenizer.json": tokenizer}))
    body = {"messages": ASK, "tools": TOOLS, "temperature": 1, "logit_bias": {str(tag): 100}, "seed": 1}
    choice = s.post(CHAT, {**body, "max_tokens": 300 // SLOWER if SLOWER > 1 else 300}).json["choices"][0]
    calls = choice["message"]["tool_calls"]
    assert len(calls) >= 2 and choice["message"]["content"] is None, choice
    assert [valid(c) for c in calls[:-1]]
    choice = s.post(CHAT, {**body, "max_tokens": 300, "parallel_tool_calls": False, "stop": ["\n", "{"]}).json["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and len([valid(c) for c in choice["message"]["tool_calls"]]) == 1, choice


def test_a_model_whose_format_has_no_tools_says_so(own_server, tmp_path):
    table = {"roles": {"system": {"prefix": "S:"}, "user": {"prefix": "U:"}, "assistant": {"prefix": "A:"}}, "generation_prompt": "A:"}
    s = own_server("--model", variant(str(tmp_path / "model"), **{"chat_template.rodimus.json": table}))
    answer = s.post(CHAT, {"messages": ASK, "tools": TOOLS, "max_tokens": 1})
    assert answer.status == 400 and answer.error["param"] == "tools", answer
    assert s.post(CHAT, {"messages": ASK, "tools": TOOLS, "tool_choice": "none", "max_tokens": 1}).status == 200
