"""/v1/responses with the openai package, and with raw HTTP for what it cannot say: answers, events, going on from a response."""
import json
import re
import uuid

import openai
import pydantic
import pytest

PATH = "/v1/responses"
ASK = {"input": "Tell me a tale about a fox.", "max_output_tokens": 12, "temperature": 0}
OPENING = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
ENDING = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
LOOK = {"type": "object", "properties": {"at": {"enum": ["fox", "raven"]}}, "required": ["at"], "additionalProperties": False}
TOOLS = [{"type": "function", "name": "look", "description": "Looks.", "parameters": LOOK, "strict": True}, {"type": "function", "name": "now"}]


def create(client, **more):
    return client.responses.create(model="tales", **{**ASK, **more})


def chat_text(server, messages, n=12):
    answer = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": n, "temperature": 0})
    assert answer.status == 200, answer
    return answer.json["choices"][0]["message"]["content"]


def user(text):
    return {"role": "user", "content": text}


def test_a_response_is_what_a_chat_answers(server, client):
    want = chat_text(server, [user(ASK["input"])])
    answer = create(client, metadata={"a": "b"}, user="me")
    assert answer.output_text == want and answer.object == "response" and answer.model == "tales"
    assert answer.id.startswith("resp_") and answer.output[0].id.startswith("msg_") and answer.output[0].role == "assistant"
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == 12 and answer.usage.total_tokens == answer.usage.input_tokens + 12
    assert answer.metadata == {"a": "b"} and answer.store is True and answer.previous_response_id is None
    assert answer.session == {"id": answer.id, "version": 1}
    ended = create(client, max_output_tokens=300, extra_body={"stop": "."})
    assert ended.status == "completed" and ended.incomplete_details is None and ended.output[0].status == "completed"


def test_instructions_and_the_forms_of_input(server, client):
    system, ask = {"role": "system", "content": "You are a bard."}, user("Sing.")
    want = chat_text(server, [system, ask])
    part = {"type": "input_text", "text": "Sing."}
    for more in ({"instructions": "You are a bard.", "input": "Sing."}, {"input": [system, ask]},
                 {"instructions": "You are a bard.", "input": [{"type": "message", "role": "user", "content": [part]}]},
                 {"input": [{"role": "developer", "content": "You are a bard."}, ask]}):
        answer = create(client, **more, store=False)
        assert answer.output_text == want, more
        assert answer.instructions == more.get("instructions")
    # What was said comes back as an item of the input, for who keeps the history himself.
    first = create(client, input="Sing.", store=False)
    again = create(client, input=[ask, *[o.model_dump() for o in first.output], user("More.")], store=False)
    assert again.output_text == chat_text(server, [ask, {"role": "assistant", "content": first.output_text}, user("More.")])


def test_a_stream_has_the_events_of_openai(server, client):
    whole = create(client)
    with create(client, stream=True) as stream:
        events = list(stream)
    kinds = [e.type for e in events]
    n = len(kinds) - len(OPENING) - len(ENDING) - 1
    assert kinds == OPENING + ["response.output_text.delta"] * n + ENDING + ["response.incomplete"] and n > 4
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    last = events[-1].response
    assert last.output_text == events[-4].text == whole.output_text and last.usage == whole.usage
    assert events[0].response.id == last.id and events[0].response.status == "in_progress" and events[0].response.output == []
    assert last.session == {"id": last.id, "version": 1}
    ended = {"max_output_tokens": 300, "extra_body": {"stop": "."}}
    with create(client, stream=True, **ended) as stream:
        assert [e.type for e in stream][-1] == "response.completed"
    with client.responses.stream(model="tales", **{**ASK, **ended}) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == create(client, **ended).output_text
    raw = server.ask("POST", PATH, {**ASK, "stream": True})
    assert raw.header("Content-Type") == "text/event-stream; charset=utf-8" and b"[DONE]" not in raw.body
    for frame in raw.body.decode().strip().split("\n\n"):
        name, data = frame.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]


def test_a_response_ends_at_no_limit_that_nobody_named(own_server):
    """2,048 tokens were the end: an agent's turn failed there."""
    ask, null = {"input": "Hm", "ignore_eos": True}, ("--device", "null:0")
    s = own_server(*null, "--max-prompt-tokens", 3000)
    prompt = s.post(f"{PATH}/input_tokens", {"input": "Hm"}).json["input_tokens"]
    answer = s.post(PATH, ask).json
    assert answer["status"] == "incomplete" and answer["usage"]["output_tokens"] == 3000 - prompt and answer["max_output_tokens"] is None
    assert s.post(PATH, {**ask, "min_tokens": 3000}).json["usage"]["output_tokens"] == 3000
    assert s.post(PATH, {**ask, "max_output_tokens": 5}).json["usage"]["output_tokens"] == 5
    chat = s.post("/v1/chat/completions", {"messages": [user("Hm")], "ignore_eos": True}).json
    assert chat["usage"]["completion_tokens"] == 2048
    s = own_server(*null, "--default-max-tokens", 7)
    assert s.post(PATH, ask).json["usage"]["output_tokens"] == 7


def test_stream_options_of_chats_add_no_frame(server, client):
    """A response says its usage in its last event; a chunk of a chat would be an event without a name that no reader knows."""
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    with create(client, stream=True, stream_options=options) as stream:
        kinds = [e.type for e in stream]
    assert kinds[-1] == "response.incomplete" and len(kinds) > len(OPENING) + len(ENDING) + 1, kinds
    raw = server.ask("POST", PATH, {**ASK, "stream": True, "stream_options": options})
    frames = raw.body.decode().strip().split("\n\n")
    assert all(f.startswith("event: ") and json.loads(f.split("data: ", 1)[1])["type"] for f in frames), frames[-2:]
    answer = server.post(PATH, {**ASK, "stream": True, "stream_options": {"include_usage": 1}})
    assert answer.status == 400 and answer.error["param"] == "stream_options", answer


def test_any_response_may_be_gone_on_from(server, client):
    first = create(client)
    n_first = first.usage.total_tokens
    asks = ["And then?", "Who was the king?", "And then?"]
    answers = [create(client, input=a, previous_response_id=first.id) for a in asks]
    assert answers[0].output_text == answers[2].output_text != answers[1].output_text
    assert len({a.id for a in answers} | {first.id}) == 4
    for a in answers:
        assert a.previous_response_id == first.id and a.session == {"id": a.id, "version": 2}
        assert n_first - 1 <= a.usage.input_tokens_details.cached_tokens <= n_first < a.usage.input_tokens
    deeper = create(client, input="And then?", previous_response_id=answers[1].id, stream=True)
    last = list(deeper)[-1].response
    assert last.session["version"] == 3 and last.usage.input_tokens > answers[1].usage.total_tokens
    # A session is as good: what a chat has read, a response goes on from.
    session = "r-" + uuid.uuid4().hex
    server.post("/v1/chat/completions", {"messages": [user(ASK["input"])], "max_tokens": 12, "temperature": 0, "session_id": session,
                                         "session_create": True})
    assert create(client, input="And then?", previous_response_id=session).output_text == answers[0].output_text
    assert server.get(f"/v1/sessions/{session}").json["version"] == 1


def test_what_is_not_stored_cannot_be_gone_on_from(server, client):
    first = create(client)
    loose = create(client, input="And then?", previous_response_id=first.id, store=False)
    assert loose.output_text == create(client, input="And then?", previous_response_id=first.id).output_text
    assert not hasattr(loose, "session") and loose.store is False
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)
    for one in (loose, create(client, store=False)):
        for _ in range(100):
            if server.get(f"/v1/sessions/{one.id}").status == 404:
                break
        with pytest.raises(openai.NotFoundError) as e:
            create(client, previous_response_id=one.id)
        assert e.value.code == "previous_response_not_found" and e.value.param == "previous_response_id"


def test_a_response_is_removed(server, client):
    first = create(client)
    second = create(client, input="And then?", previous_response_id=first.id)
    client.responses.delete(first.id)
    answer = server.ask("DELETE", f"{PATH}/{first.id}")
    assert answer.status == 404 and answer.error["type"] == "invalid_request_error", answer
    for stream in (False, True):
        answer = server.post(PATH, {**ASK, "previous_response_id": first.id, "stream": stream})
        assert answer.status == 404 and answer.error["code"] == "previous_response_not_found"
    assert create(client, previous_response_id=second.id).session["version"] == 3


def test_a_response_has_the_methods_that_are_there(server, client):
    one = create(client, max_output_tokens=2)
    for path, allowed in ((f"{PATH}/{one.id}", "GET, HEAD, DELETE"), (f"{PATH}/{one.id}/input_items", "GET, HEAD")):
        answer = server.ask("PUT", path, {})
        assert answer.status == 405 and answer.header("Allow") == allowed, answer
    answer = server.ask("POST", f"{PATH}/{one.id}/cancel", {})
    assert answer.status == 404 and answer.error["code"] == "not_found" and "cancel" in answer.error["message"], answer


def test_a_repeated_request_gets_the_same_response(server, client):
    key = {"Idempotency-Key": uuid.uuid4().hex}
    first = create(client, extra_headers=key, temperature=1)
    steps = server.metric("rodimus_steps_total")
    again = create(client, extra_headers=key, temperature=1)
    assert (again.id, again.output_text, again.usage) == (first.id, first.output_text, first.usage)
    assert server.metric("rodimus_steps_total") == steps
    assert create(client, extra_headers={"Idempotency-Key": uuid.uuid4().hex}, temperature=1).id != first.id
    with pytest.raises(openai.BadRequestError) as e:
        create(client, extra_headers=key, temperature=0.5)
    assert e.value.param == "Idempotency-Key"


class Person(pydantic.BaseModel):
    name: str
    age: int


def test_text_format_is_a_structured_output(server, client):
    parsed = client.responses.parse(model="tales", input="Who?", text_format=Person, max_output_tokens=300, temperature=0.5,
                                    extra_body={"seed": 2}, store=False)
    assert isinstance(parsed.output_parsed, Person) and parsed.status == "completed"
    answer = create(client, max_output_tokens=300, text={"format": {"type": "json_object"}})
    assert answer.status == "incomplete" or isinstance(json.loads(answer.output_text), dict)
    assert answer.text.format.type == "json_object"
    choice = create(client, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert choice.output_text in ("yes", "no")


def custom_regex(definition):
    return {"type": "custom", "name": "write", "format": {"type": "grammar", "syntax": "regex", "definition": definition}}


REFUSED = [
    ({"input": None}, "input"), ({"input": []}, "input"), ({"input": 7}, "input"), ({"input": [7]}, "input[0]"), ({"input": [{}]}, "input[0].role"),
    ({"input": [{"role": "king", "content": "a"}]}, "input[0].role"), ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_audio", "audio": "x"}]}]}, "input[0].content[0]"), ({"input": [{"role": "user", "content": [{"type": "refusal"}]}]}, "input[0].content[0]"),
    ({"input": [{"type": "function_call_output", "call_id": "a", "output": [{"type": "input_audio"}]}]}, "input[0].output[0]"),
    ({"input": [{"type": "custom_tool_call", "call_id": "a", "name": "b"}]}, "input[0].input"), ({"input": [{"type": "function_call", "name": "b", "arguments": 7}]}, "input[0].arguments"),
    ({"input": [{"type": "additional_tools", "tools": 7}, user("a")]}, "input[0].tools"), ({"input": [user("a"), {"type": "tool_search_output", "tools": [{"type": "king"}]}]}, "input[1].tools[0].type"),
    ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input[0].output"), ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
    ({"input": [{"type": "king", "id": "a"}]}, "input[0].type"), ({"input": [{"type": "function_call", "arguments": "{}"}]}, "input[0]"),
    ({"input": [{"type": "function_call_output", "call_id": 7, "output": "b"}]}, "input[0].call_id"),
    # an input of which nothing is left names what it has
    *[({"input": [{"type": t}, {"type": "reasoning", "summary": []}], **add}, "input[0].type") for t in ("reasoning", "compaction", "ghost_snapshot", "additional_tools") for add in ({}, {"instructions": "a"})],
    *[({"input": [{"type": "additional_tools", "tools": [5]}, *more]}, "input[0].tools[0]") for more in ([], [user("a")])],
    *[({"input": [{"type": "agent_message", "author": "a", **add}]}, f"input[0].{f}") for add, f in (
        ({}, "content"), ({"content": 5}, "content"), ({"content": {"text": "secret"}}, "content"), ({"content": None}, "content"), ({"content": "a", "author": 5}, "author"))],
    *[({"input": [{"type": t, "name": "a", "input": "b", "tools": [], f: 5}]}, f"input[0].{f}") for t, f in (
        ("function_call", "call_id"), ("custom_tool_call", "call_id"), ("function_call", "namespace"), ("tool_search_call", "call_id"), ("tool_search_output", "call_id"))],
    ({"instructions": 7}, "instructions"), ({"max_output_tokens": 0}, "max_output_tokens"), ({"max_output_tokens": "nine"}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"), ({"top_p": 0}, "top_p"), ({"stream": 1}, "stream"), ({"store": "no"}, "store"), ({"model": 7}, "model"),
    ({"previous_response_id": 7}, "previous_response_id"), ({"previous_response_id": "a/b"}, "previous_response_id"), ({"previous_response_id": ""}, "previous_response_id"),
    ({"metadata": []}, "metadata"), ({"metadata": {"a": 1}}, "metadata"), ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"), ({"metadata": {"x" * 65: "a"}}, "metadata"),
    ({"text": 7}, "text"), ({"text": {"format": 7}}, "text.format"), ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"), ({"text": {"format": {"type": "json_schema", "schema": {"type": "king"}}}}, "text.format"),
    ({"text": {"verbosity": 7}}, "text.verbosity"), ({"include": "a"}, "include"), ({"include": [7]}, "include"),
    # what is known and not there: never ignored
    ({"background": True}, "background"), ({"conversation": "c"}, "conversation"), ({"prompt": {"id": "p"}}, "prompt"), ({"tools": [{"type": "web_search"}]}, "tools"), ({"tools": [{"type": "king"}]}, "tools[0].type"), ({"tools": [{"type": "tool_search"}]}, "tools"),
    *[({"tools": [custom_regex(r)]}, "tools[0].format.definition") for r in ("a)|(b", "((", "a)", "[a", "[]", "a\\", "[)]|)|(", "(?P<(>a))|((?<)>b)", "\\\\(")],
    *[({"tools": [custom_regex(r)]}, "tools") for r in ("(?=a)b", "*a", "a**", "(?<!a)b")],
    *[({"tools": [{"type": t}]}, "tools[0].type") for t in ("shellfish", "computers_i_made_up", "advisorrr", "web_search_evil", "web_search_", "web_search_2025_evil", "mcp_20250101x", "web_search_2025__08", "shell\0fish")],
    *[({"tools": [{"type": t}]}, "tools") for t in ("web_search_preview", "web_search_preview_2025_03_11", "web_search_2025_08_26", "computer_use_preview", "tool_search_tool_bm25_20251119", "code_execution_20250825", "mcp_toolset", "mcp", "shell")],
    *[({"input": [{"role": "user", "content": "a"}, {"type": t}]}, "input[1].type") for t in ("compactionevil", "mcp_evil", "shell_call_x", "web_search_callx", "local_shell", "item_reference\0")],
    *[({"input": [{"type": t, "call_id": "a\0b", "name": "a", "arguments": "{}", "output": "", "input": "", "tools": []}]}, "input[0].call_id") for t in ("function_call", "function_call_output", "custom_tool_call", "tool_search_output")],
    ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"), ({"tools": [{"type": "namespace", "name": "a", "tools": {}}]}, "tools[0].tools"),
    ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b c"}]}]}, "tools[0].tools[0].name"),
    ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "namespace", "name": "b", "tools": []}]}]}, "tools[0].tools[0].type"),
    ({"tools": [{"type": "custom", "name": "a", "description": 7}]}, "tools[0].description"), ({"tools": TOOLS, "tool_choice": {"type": "custom", "name": "x"}}, "tool_choice"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"), ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"), ({"include": ["message.output_text.logprobs"]}, "include"), ({"top_logprobs": 2}, "top_logprobs"),
    ({"reasoning": "low"}, "reasoning"), ({"truncation": "middle"}, "truncation"), ({"n": 2}, "n"), ({"session_id": "a"}, "session_id"),
    ({"session_create": True}, "session_create"), ({"expected_version": 1}, "expected_version"), ({"return_token_ids": True}, "return_token_ids"),
    ({"response_format": {"type": "json_object"}}, "response_format"), ({"max_tokens": 1}, "max_tokens"), ({"max_completion_tokens": 1}, "max_completion_tokens"),
    ({"logprobs": True}, "logprobs"), ({"prompt_logprobs": 0}, "prompt_logprobs"), ({"echo": True}, "echo"), ({"suffix": "a"}, "suffix"),
    ({"suffix": False}, "suffix"),
    ({"truncate_prompt_tokens": 1}, "truncate_prompt_tokens"), ({"metadata": {"a": "\u00e9" * 513}}, "metadata"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_honoured_is_named(server, stream):
    wrong = []
    for add, param in REFUSED:
        body = {k: v for k, v in {**ASK, "max_output_tokens": 1, "stream": stream, **add}.items() if not (k == "input" and v is None)}
        answer = server.post(PATH, body)
        if answer.status != 400 or answer.error["param"] != param or param.split("[")[0].split(".")[0] not in answer.error["message"]:
            wrong.append(f"{add}: {answer!r}"[:300])
    assert not wrong, "\n".join(wrong)


def test_what_asks_for_nothing_is_accepted(server):
    for add in ({"tools": []}, {"tool_choice": "auto"}, {"include": []}, {"include": ["reasoning.encrypted_content"]}, {"truncation": "auto"},
                {"reasoning": {"effort": "low", "summary": "auto"}}, {"text": {"verbosity": "low"}}, {"text": {"verbosity": None}}, {"background": False}, {"reasoning": {"effort": None}}, {"reasoning": None},
                {"truncation": "disabled"}, {"text": {}}, {"text": {"format": None}}, {"text": {"format": {"type": "text"}}}, {"metadata": None},
                {"parallel_tool_calls": True}, {"service_tier": "auto"}, {"previous_response_id": None}, {"instructions": None}, {"store": None},
                {"stream_options": None}, {"top_logprobs": 0}, {"n": 1}, {"unknown": [1]}, {"metadata": {"\u00e9" * 64: "\U0001f98a" * 512}}, {"cache_salt": "\u00e9" * 256}, {"prompt_cache_key": "a"}, {"safety_identifier": "b"}):
        answer = server.post(PATH, {**ASK, "max_output_tokens": 1, "store": False, **add})
        assert answer.status == 200, (add, answer)


def test_the_answer_says_again_how_tools_were_to_be_used(server):
    for add, tools, choice, parallel in (({}, [], "auto", True), ({"tool_choice": "none", "tools": TOOLS}, [], "none", True),
                                         ({"tool_choice": "auto", "parallel_tool_calls": False, "tools": TOOLS}, TOOLS, "auto", False),
                                         ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "now"}}, TOOLS, {"type": "function", "name": "now"}, True)):
        answer = server.post(PATH, {**ASK, "max_output_tokens": 1, "store": False, **add}).json
        assert (answer["tools"], answer["tool_choice"], answer["parallel_tool_calls"]) == (tools, choice, parallel), (add, answer)
    answer = server.post(PATH, {**ASK, "max_output_tokens": 1, "store": False, "parallel_tool_calls": "no"})
    assert answer.status == 400 and answer.error["param"] == "parallel_tool_calls", answer


# ---- tools ----

SURE = 'Sure.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
CALLING = {"tools": TOOLS, "max_output_tokens": 120, "temperature": 1}


def call(client, **more):
    return create(client, **{**CALLING, "extra_body": {"seed": 3}, **more})


def test_a_call_is_an_item_and_its_output_goes_on(client):
    first = call(client, tool_choice="required", parallel_tool_calls=False)
    (item,) = first.output
    assert item.type == "function_call" and item.status == "completed" and item.call_id.startswith("call_"), first
    assert item.name in ("look", "now") and isinstance(json.loads(item.arguments), dict)
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "red"}
    second = call(client, input=[result], previous_response_id=first.id, tool_choice={"type": "function", "name": "look"})
    usage = second.usage
    assert [o.name for o in second.output] == ["look"] and json.loads(second.output[0].arguments)["at"] in ("fox", "raven")
    assert usage.input_tokens - usage.input_tokens_details.cached_tokens < 60, "tools are read once"


def test_items_of_the_input_are_the_history_of_a_chat(server, client):
    """What a client keeps itself: calls beside a text, their outputs, reasoning that is not read."""
    chat = [user("Look."), {"role": "assistant", "content": "Well.", "tool_calls": [{"function": {"name": n, "arguments": a}} for n, a in
                                                                                 (("look", '{"at":  "fox"}'), ("now", "{}"))]},
            {"role": "tool", "content": "red"}, {"role": "tool", "content": "4\n5"}]
    items = [user("Look."), {"type": "reasoning", "id": "r", "summary": []}, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]},
             {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"at":  "fox"}'}, {"type": "function_call", "call_id": "b", "name": "now"},
             {"type": "function_call_output", "call_id": "a", "output": "red"},
             {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "4"}, {"type": "input_text", "text": "5"}]}]
    nested = [{"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in TOOLS]
    for tools, flat in (([], []), (nested, TOOLS)):
        want = server.post("/v1/chat/completions", {"messages": chat, "tools": tools, "max_tokens": 12, "temperature": 0}).json
        got = create(client, input=items, tools=flat, store=False)
        assert got.usage.input_tokens == want["usage"]["prompt_tokens"] and got.output_text == want["choices"][0]["message"]["content"]


def test_outputs_stand_in_the_order_of_their_calls(server):
    """Also beside one that names no call, which comes last, and behind calls that were answered before."""
    calls = [{"type": "function_call", "call_id": i, "name": n, "arguments": "{}"} for i, n in (("a", "look"), ("b", "now"), ("c", "look"))]
    outputs = [{"type": "function_call_output", "call_id": i, "output": text} for i, text in (("a", "A red fox."), ("b", "It is night."), ("c", "The sea."), ("x", "Nobody."))]

    def digest(order, after=()):
        answer = server.post(PATH, {**ASK, "input": [user("Look."), *calls, *(outputs[i] for i in order), *after], "max_output_tokens": 40, "store": False})
        assert answer.status == 200, answer
        return answer.json["output"][0]["content"][0]["text"]

    want = digest([0, 1, 2, 3])
    for order in ([1, 0, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        assert digest(order) == want, order
    named, outputs = outputs, [{k: v for k, v in o.items() if k != "call_id"} for o in outputs]
    assert digest([0, 1, 2, 3]) == want and digest([3, 2, 1, 0]) != want  # those that name no call stay where they are
    outputs = named
    again = [calls[1], calls[0]]
    assert digest([0, 1, 2], [*again, outputs[0], outputs[1]]) == digest([1, 0, 2], [*again, outputs[1], outputs[0]])


def counted(server, **more):
    answer = server.post(f"{PATH}/input_tokens", {"input": ASK["input"], **more})
    assert answer.status == 200, answer
    return answer.json["input_tokens"]


SPACE = {"type": "namespace", "name": "zoo", "description": "Animals.", "tools": [{**TOOLS[0], "defer_loading": True}]}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patches."}
SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": LOOK}
AS_FUNCTIONS = [{**TOOLS[0], "name": "zoo.look"},
                {"type": "function", "name": "apply_patch", "description": "Patches.",
                 "parameters": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], "additionalProperties": False}},
                {"type": "function", "description": "Finds tools.", "parameters": LOOK, "name": "tool_search"}]


def test_tools_of_all_kinds_are_functions_for_the_model(server):
    """A namespace is opened, and tools that OpenAI runs are left out."""
    for kind, function in zip((SPACE, PATCH, SEARCH), AS_FUNCTIONS):
        want = counted(server, tools=[function])
        assert counted(server, tools=[kind]) == counted(server, tools=[kind, {"type": "web_search"}]) == want, kind
        first = {"type": "additional_tools", "role": "developer", "tools": [kind]}
        assert counted(server, input=[first, {"role": "developer", "content": "Sing."}, user("Hm")]) == counted(
            server, tools=[function], input=[{"role": "developer", "content": "Sing."}, user("Hm")]), kind


def test_tools_of_later_items_stand_where_they_are(server):
    call = {"type": "tool_search_call", "call_id": "a", "execution": "client", "arguments": {"at": "fox"}}
    found = {"type": "tool_search_output", "call_id": "a", "execution": "client", "status": "completed", "tools": [SPACE]}
    line = json.dumps({"type": "function", "function": {k: v for k, v in AS_FUNCTIONS[0].items() if k not in ("type",)}})
    as_call = {"type": "function_call", "call_id": "a", "name": "tool_search", "arguments": '{"at": "fox"}'}
    as_text = {"type": "function_call_output", "call_id": "a", "output": line}
    assert counted(server, tools=[SEARCH], input=[user("Hm"), call, found]) == counted(server, tools=[SEARCH], input=[user("Hm"), as_call, as_text])
    later = {"type": "additional_tools", "role": "developer", "tools": [SPACE]}
    assert counted(server, input=[user("Hm"), later]) == counted(server, input=[user("Hm"), {"role": "system", "content": line}])
    chosen = server.post(PATH, {**ASK, "input": [user("Hm"), call, found], "tools": [SEARCH], "tool_choice": {"type": "function", "namespace": "zoo", "name": "look"}, "store": False, "max_output_tokens": 60})
    assert chosen.status == 200 and json.loads(chosen.json["output"][0]["arguments"])["at"] in ("fox", "raven"), chosen


def test_items_of_agents_are_messages_calls_and_results(server):
    ask = user("Hm")
    for items, same in (
            ([{"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": "a\nb"}, {"type": "custom_tool_call_output", "call_id": "a", "output": "done"}],
             [{"type": "function_call", "call_id": "a", "name": "apply_patch", "arguments": '{"input": "a\\nb"}'}, {"type": "function_call_output", "call_id": "a", "output": "done"}]),
            ([{"type": "function_call", "call_id": "a", "namespace": "zoo", "name": "look", "arguments": "{}"}], [{"type": "function_call", "call_id": "a", "name": "zoo.look", "arguments": "{}"}]),
            ([{"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "Here:"}, {"type": "input_image", "image_url": "data:image/png;base64,iVBO"}]}],
             [{"type": "function_call_output", "call_id": "a", "output": "Here:\n[image: not shown, this model reads text alone]"}]),
            ([{"type": "agent_message", "author": "main", "recipient": "b", "content": [{"type": "encrypted_content", "encrypted_content": "Look."}]}], [user("Message from main:\nLook.")]),
            ([{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}], [{"role": "assistant", "content": "No."}]),
            ([{"type": t, "id": "x"} for t in ("web_search_call", "compaction", "reasoning", "local_shell_call", "mcp_list_tools", "ghost_snapshot")], [])):
        assert counted(server, input=[ask, *items, ask]) == counted(server, input=[ask, *same, ask]), items


def test_a_custom_tool_is_told_whole(server):
    """Also behind a NUL, as functions are. Neither grammar is one that is held, which would stand among the parameters."""
    for description, lark in (("abc\0" + "word " * 9, None), ("abc", "start: /a+/\0" + "word " * 9), (None, 'start: "a" start?')):
        form = {"format": {"type": "grammar", "syntax": "lark", "definition": lark}} if lark else {}
        tool = {"type": "custom", "name": "apply_patch", **({"description": description} if description else {}), **form}
        said = "\n".join([*([description] if description else []), *([f"input is text of this grammar (lark):\n{lark}"] if lark else [])])
        assert counted(server, tools=[tool]) == counted(server, tools=[{**AS_FUNCTIONS[1], "description": said}]), tool


@pytest.mark.parametrize("definition, full", [("a|b", r"a|b"), ("[)(]{2}\\(x\\)", r"[)(]{2}\(x\)"), ("a\0b", "a\0b"), ("(?P<n>a)(?:b|(c))", "ab|ac"), ("[^\\]()a-z ]{3}", r"[^\]()a-z ]{3}")])
def test_the_regex_of_a_custom_tool_is_held_whole(server, definition, full):
    for seed in range(4):
        answer = server.post(PATH, {"input": "Hm", "tools": [custom_regex(definition)], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 90, "store": False, "temperature": 1, "seed": seed})
        assert answer.status == 200, answer
        assert re.fullmatch(full, answer.json["output"][0]["input"]), answer


def said(tool, arguments):
    """What makes the model call a tool with these arguments."""
    return {"structured_outputs": {"choice": [f'Sure.\n<tool_call>\n{{"name": "{tool}", "arguments": {arguments}}}\n</tool_call>']}, "seed": 3}


def test_a_call_of_each_kind_is_an_item_of_its_kind(server):
    for tool, name, arguments, want in (
            (SPACE, "zoo.look", '{"at": "fox"}', {"type": "function_call", "name": "look", "namespace": "zoo", "arguments": '{"at": "fox"}'}),
            (PATCH, "apply_patch", json.dumps({"input": "*** Begin \"Patch\"\n\ta\\b \u00e9\U0001f98a"}, ensure_ascii=False), {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin \"Patch\"\n\ta\\b \u00e9\U0001f98a"}),
            ({"type": "namespace", "name": "functions", "tools": [PATCH]}, "functions.apply_patch", '{"input": "a"}', {"type": "custom_tool_call", "name": "apply_patch", "namespace": "functions", "input": "a"}),
            (SEARCH, "tool_search", '{"at": "raven"}', {"type": "tool_search_call", "execution": "client", "arguments": {"at": "raven"}})):
        body = {"input": "Hm", "tools": [TOOLS[1], tool], "max_output_tokens": 200, **said(name, arguments)}
        whole = server.post(PATH, body).json
        item = whole["output"][-1]
        assert {k: v for k, v in item.items() if k not in ("id", "status", "call_id")} == want and item["status"] == "completed", whole
        assert server.get(f"{PATH}/{whole['id']}").json["output"] == whole["output"]
        events = [e.data for e in server.events(PATH, {**body, "store": False}) if not e.comment]
        assert events[-1]["type"] == "response.completed" and [e["sequence_number"] for e in events] == list(range(len(events)))
        same = {**events[-1]["response"]["output"][-1], "id": "", "call_id": ""}
        assert same == {**item, "id": "", "call_id": ""}
        added, done = ([e["item"] for e in events if e["type"] == f"response.output_item.{w}"][-1] for w in ("added", "done"))
        assert done == events[-1]["response"]["output"][-1] and added["id"] == done["id"] and added["type"] == want["type"] and added["status"] == "in_progress"
        if want["type"] == "custom_tool_call":
            assert added["input"] == "" and "".join(e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta") == want["input"]
            assert [e["input"] for e in events if e["type"] == "response.custom_tool_call_input.done"] == [want["input"]]
        # the item comes back as the history of the next request
        output = {"type": {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}.get(item["type"], "tool_search_output"),
                  "call_id": item["call_id"], **({"tools": []} if item["type"] == "tool_search_call" else {"output": "done"})}
        as_function = {"type": "function_call", "name": name, "arguments": arguments}
        as_output = {"type": "function_call_output", "output": output.get("output", "")}
        assert counted(server, input=[user("Hm"), item, output]) == counted(server, input=[user("Hm"), as_function, as_output]), item


def test_a_choice_may_name_a_tool_of_any_kind(server):
    tools = [TOOLS[1], SPACE, PATCH, SEARCH]
    for choice, kind in (({"type": "function", "name": "look"}, "function_call"), ({"type": "custom", "name": "apply_patch"}, "custom_tool_call"), ({"type": "tool_search"}, "tool_search_call"),
                         ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]}, "custom_tool_call")):
        answer = server.post(PATH, {"input": "Hm", "tools": tools, "tool_choice": choice, "max_output_tokens": 60, "parallel_tool_calls": False, "store": False})
        assert answer.status == 200 and answer.json["output"][0]["type"] == kind, (choice, answer)


PATCH_LARK = """start: begin_patch hunk hunk? end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk
      | update_hunk  // the third kind
add_hunk: "*** Add File: " filename LF add_line add_line?
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_line
filename: /[a-z]{1,8}/
add_line: "+" /[a-z ]{0,8}/ LF -> line
change_line: ("+" | "-" | " ") /[a-z \\/]{0,8}/ LF
%import common.LF
"""
LARKS = [(PATCH_LARK, r"\*\*\* Begin Patch\n(\*\*\* (Delete File: [a-z]{1,8}\n|Add File: [a-z]{1,8}\n(\+[a-z ]{0,8}\n){1,2}|Update File: [a-z]{1,8}\n[-+ ][a-z /]{0,8}\n)){1,2}\*\*\* End Patch\n?"),
         ('start: [sign] INT ("," INT)* "."\nsign: "-" | "+"\n%import common.INT', r"[-+]?[0-9]+(,[0-9]+)*\."),
         ('start: A+ b?\nA: /a(b|c)/\n?b: "\\"(" A ")\\\\"', r'(a[bc])+("\(a[bc]\)\\)?')]


@pytest.mark.parametrize("grammar, regex", LARKS)
def test_a_lark_grammar_without_recursion_holds_a_custom_tool(own_server, grammar, regex):
    s = own_server()
    tool = {"type": "custom", "name": "write", "format": {"type": "grammar", "syntax": "lark", "definition": grammar}}
    whole = 0
    for i in range(6):
        answer = s.post(PATH, {**ASK, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 400, "temperature": 0.7, "seed": i, "store": False})
        assert answer.status == 200, answer
        if answer.json["status"] == "completed":
            whole += 1
            assert re.fullmatch(regex, answer.json["output"][0]["input"]), answer.json["output"]
    assert whole, "no answer ended within its limit"
    assert not [k for k in s.metrics() if "tool_format" in k]


@pytest.mark.parametrize("grammar", ["start: start", "start: a\na: b\nb: \"x\" a | \"y\"", "start: nobody", "start: /(/", "start: \"a", "start: \"a\"i", "start: /a/i", "%ignore WS\nstart: \"a\"",
                                     "begin: \"a\"", "", "start", "start: (\"a\"", "start: \"a\"~3", "start: \"a\"..\"z\"", "start{x}: \"a\"", "start: a a\n" + "\n".join(f"{c}: {d} {d}" for c, d in zip("abcdefghijklmnop", "bcdefghijklmnopq")) + "\nq: \"xy\""])
def test_a_lark_grammar_that_cannot_be_held_leaves_free_text(own_server, grammar):
    s = own_server()
    tool = {"type": "custom", "name": "write", "format": {"type": "grammar", "syntax": "lark", "definition": grammar}}
    assert s.post(PATH, {**ASK, "tools": [tool], "max_output_tokens": 1, "store": False}).status == 200
    assert [v for k, v in s.metrics().items() if k.startswith("rodimus_request_parts_ignored_total") and "tool_format" in k] == [1]


def test_what_a_response_leaves_out_is_in_a_metric(own_server):
    s = own_server()
    lark = {**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a" start?'}}
    body = {**ASK, "store": False, "max_output_tokens": 1, "tools": [{"type": "web_search"}, {"type": "local_shell"}, lark], "input": [user("a"), {"type": "web_search_call", "id": "w"}]}
    assert [s.post(PATH, body).status for _ in range(2)] == [200, 200]
    found = {k.split('"')[1]: v for k, v in s.metrics().items() if k.startswith("rodimus_request_parts_ignored_total")}
    assert found == {"web_search": 2, "local_shell": 2, "tool_format": 2, "server_call": 2}
    assert s.log().count("A request had local_shell,") == 1


def test_a_repeated_request_gets_the_same_calls(client):
    """A client that lost the answer has perhaps run the call by its id already."""
    for stream in (False, True):
        ask = {"tool_choice": "required", "extra_headers": {"Idempotency-Key": uuid.uuid4().hex}, "stream": stream}
        first, again = (list(call(client, **ask))[-1].response if stream else call(client, **ask) for _ in range(2))
        assert first.output[0].call_id.startswith("call_")
        assert again.output == first.output


def test_a_stream_of_calls_has_the_events_of_openai(client):
    more = {"seed": 3, "structured_outputs": {"choice": [SURE]}}
    whole = call(client, extra_body=more)
    assert [(o.type, o.status) for o in whole.output] == [("message", "completed"), ("function_call", "completed")] and whole.output_text == "Sure."
    with call(client, extra_body=more, stream=True) as stream:
        events = list(stream)
    kinds = [e.type for e in events if not e.type.endswith(".delta")]
    assert kinds == [*OPENING, *ENDING, "response.output_item.added", "response.function_call_arguments.done", "response.output_item.done", "response.completed"]
    assert [e.sequence_number for e in events] == list(range(len(events)))
    last, (added,) = events[-1].response, [e for e in events if e.type == "response.output_item.added" and e.output_index == 1]
    assert added.item.name == "now" and added.item.arguments == "" and added.item.call_id == last.output[1].call_id
    pieces = [e for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(e.delta for e in pieces) == last.output[1].arguments == "{}"
    assert {e.item_id for e in pieces} == {last.output[1].id} and {e.output_index for e in pieces} == {1}
    assert last.output_text == whole.output_text
    with client.responses.stream(model="tales", **{**ASK, **CALLING}, tool_choice="required", parallel_tool_calls=False, extra_body={"seed": 3}) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output[0].type == "function_call"


def test_a_call_that_is_cut_is_incomplete(client):
    answer = call(client, tool_choice={"type": "function", "name": "look"}, max_output_tokens=45)
    assert answer.status == "incomplete"
    assert [(o.type, o.status) for o in answer.output] == [("function_call", "incomplete")], answer.output
    nothing = call(client, tool_choice="none", max_output_tokens=1)
    assert [o.type for o in nothing.output] == ["message"]


def test_the_end_of_a_stream_is_no_slow_client(own_server):
    """It says all the text four times again, at once. The buffer holds 0.2 s of the frames before, as a busy machine sends them late."""
    room = 48 << 10
    s = own_server("--device", "null:1", "--stream-buffer-bytes", room)
    frames = [e for e in s.events(PATH, {**ASK, "max_output_tokens": 3000, "ignore_eos": True, "store": False}) if not e.comment]
    assert frames[-1].data["type"] == "response.incomplete", frames[-1].raw[-300:]
    assert 4 * len(frames[-1].data["response"]["output"][0]["content"][0]["text"]) > room
    assert s.metric("rodimus_http_slow_clients_total") == 0


def test_a_fault_in_a_stream_is_an_event(own_server):
    s = own_server("--drain-ms", 100)
    connection, response = s.open("POST", PATH, {**ASK, "max_output_tokens": 10**6, "stream": True, "ignore_eos": True, "store": False})
    assert response.status == 200 and response.read1(10)
    s.terminate()
    frames = response.read().decode().strip().split("\n\n")
    connection.close()
    name, data = frames[-1].split("\n")
    error = json.loads(data.removeprefix("data: "))
    assert name == "event: error" and error["type"] == "error" and error["code"] == "draining" and error["message"], frames[-1]
    assert s.wait() == 0


# ---- /v1/responses/input_tokens ----

def count(client, **body):
    counted = client.responses.input_tokens.count(model="tales", **body)
    assert counted.object == "response.input_tokens"
    return counted.input_tokens


def test_counted_input_is_what_usage_says(client):
    """Alone and behind another response, whether or not its last token was read (a stop text leaves one, a whole answer none)."""
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}]
    for first in ({}, {"instructions": "Be brief."}, {"tools": tools, "tool_choice": "none"}):
        ask = {"input": "Tell me a tale.", "max_output_tokens": 8, "temperature": 0, **first}
        made = client.responses.create(model="tales", **ask)
        assert count(client, **{k: v for k, v in ask.items() if k not in ("max_output_tokens", "temperature")}) == made.usage.input_tokens
        for more in ({"max_output_tokens": 1}, {"max_output_tokens": 400, "extra_body": {"stop": ["."]}}, {"max_output_tokens": 5, "instructions": "Sing."}, {"max_output_tokens": 5, **first}):
            made = client.responses.create(model="tales", input="And then?", temperature=0, previous_response_id=made.id, **more)
            again = client.responses.create(model="tales", input="More", temperature=0, previous_response_id=made.id, max_output_tokens=1, **first)
            assert count(client, input="More", previous_response_id=made.id, **first) == again.usage.input_tokens, (first, more)


def test_a_count_of_what_is_not_there_or_not_valid_is_refused_as_the_response_would_be(server):
    for body, status, param in (({}, 400, "input"), ({"input": []}, 400, "input"), ({"input": "a", "previous_response_id": "resp_0"}, 404, "previous_response_id"),
                                ({"input": "a", "max_tokens": 1}, 400, "max_tokens"), ({"input": "a", "model": "gpt"}, 404, "model")):
        answer = server.post("/v1/responses/input_tokens", body)
        assert answer.status == status and answer.error["param"] == param, (body, answer)
    assert server.get("/v1/responses/input_tokens").status == 405
