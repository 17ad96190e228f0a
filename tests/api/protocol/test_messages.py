"""/v1/messages with the anthropic package, and with raw HTTP for what it cannot say: answers, events, errors, and what is the same as a chat."""
import json
import socket

import anthropic
import pytest

PATH = "/v1/messages"
ASK = {"messages": [{"role": "user", "content": "Tell me a tale about a fox."}], "max_tokens": 12, "temperature": 0}
EVENTS = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"]


@pytest.fixture
def claude(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)


def create(claude, **more):
    """The package no longer knows temperature, and the server's own fields it never did."""
    body = {**ASK, **more}
    extra = {k: body.pop(k) for k in ("temperature", "logit_bias") if k in body}
    return claude.messages.create(model="tales", **body, extra_body=extra)


def chat_text(server, messages, **more):
    answer = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 12, "temperature": 0, **more})
    assert answer.status == 200, answer
    return answer.json["choices"][0]["message"]["content"]


def test_a_message_is_what_a_chat_answers(server, claude):
    answer = create(claude, metadata={"user_id": "me"})
    assert [b.text for b in answer.content] == [chat_text(server, ASK["messages"])]
    assert answer.id.startswith("msg_") and answer.role == "assistant" and answer.model == "tales" and answer.type == "message"
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert answer.usage.output_tokens == 12 and answer.usage.input_tokens + answer.usage.cache_read_input_tokens == 27


def test_the_reasons_of_an_end(claude):
    stopped = create(claude, max_tokens=300, stop_sequences=[",", "."])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", ",") and "," not in stopped.content[0].text
    ended = create(claude, logit_bias={"1": 100})  # the end token at once
    assert (ended.stop_reason, ended.stop_sequence, ended.content[0].text, ended.usage.output_tokens) == ("end_turn", None, "", 0)


def test_system_prompts_and_blocks_are_messages_of_a_chat(server, claude):
    system, ask = {"role": "system", "content": "You are a bard.\nBe brief."}, {"role": "user", "content": "Sing.\nNow."}
    want = chat_text(server, [system, ask])
    marked = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    blocks = [{"type": "text", "text": t} for t in ("Sing.", "Now.")]
    for more in ({"system": system["content"]}, {"system": [{"type": "text", "text": "You are a bard."}, marked]}):
        assert create(claude, messages=[{"role": "user", "content": blocks}], **more).content[0].text == want
    history = [ask, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "La."}]}, ask]
    assert create(claude, messages=history).content[0].text == chat_text(server, [ask, {"role": "assistant", "content": "La."}, ask])


def test_a_stream_says_what_the_whole_message_says(claude):
    whole = create(claude)
    with claude.messages.stream(model="tales", messages=ASK["messages"], max_tokens=12, extra_body={"temperature": 0}) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(texts) > 1 and "".join(texts) == whole.content[0].text
    assert final.content[0].text == whole.content[0].text and final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == 12 and final.usage.input_tokens + final.usage.cache_read_input_tokens == 27


def test_the_events_of_a_stream_and_their_names(server):
    events = [e for e in server.events(PATH, {**ASK, "stream": True}) if not e.comment]
    kinds = [e.data["type"] for e in events]
    assert [e.raw.split(b"\n")[0].decode() for e in events] == [f"event: {k}" for k in kinds]
    assert list(dict.fromkeys(kinds)) == EVENTS and len(events) == 12 + 5
    assert events[0].data["message"]["stop_reason"] is None and events[0].data["message"]["content"] == []


def test_tokens_are_counted_as_they_are_read(claude):
    count = claude.messages.count_tokens(model="tales", messages=ASK["messages"], system="You are a bard.")
    answer = create(claude, system="You are a bard.")
    assert count.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_a_last_message_of_the_assistant_is_gone_on_with(claude):
    whole = create(claude).content[0].text
    said, rest = whole[:len(whole) // 2].rsplit(" ", 1)[0], 3
    history = [*ASK["messages"], {"role": "assistant", "content": said}]
    answer = create(claude, messages=history, max_tokens=rest)
    assert whole.startswith(said + answer.content[0].text), (whole, said, answer.content[0].text)
    count = claude.messages.count_tokens(model="tales", messages=history)
    assert count.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_a_schema_is_honoured(claude):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    answer = create(claude, max_tokens=60, output_config={"format": {"type": "json_schema", "schema": schema}})
    found = json.loads(answer.content[0].text)
    assert list(found) == ["n"] and isinstance(found["n"], int)


def test_a_schema_in_its_older_place_is_honoured(server):
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}}
    for more in ({"output_format": form}, {"output_format": form, "output_config": {"format": form}}, {"output_format": form, "output_config": None}):
        answer = server.post(PATH, {**ASK, "max_tokens": 60, **more})
        assert answer.status == 200 and list(json.loads(answer.json["content"][0]["text"])) == ["n"], answer


def test_strict_of_a_tool_is_that_of_chats(server):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 1}}}, "required": ["a"]}
    chats, messages = ("/v1/chat/completions", lambda s: {"type": "function", "function": {"name": "f", "strict": s, "parameters": schema}}), (PATH, lambda s: {"name": "f", "strict": s, "input_schema": schema})
    for strict, status in ((True, 400), (False, 200), (None, 200)):
        found = [server.post(path, {**ASK, "tools": [tool(strict)]}) for path, tool in (chats, messages)]
        assert [a.status for a in found] == [status, status], found
        if strict:
            assert found[0].error["message"] == found[1].json["error"]["message"]


def test_turns_of_a_session_bring_what_is_new(server):
    name = {"session_id": "claude-1"}
    first = server.post(PATH, {**ASK, **name, "session_create": True}).json
    second = server.post(PATH, {**ASK, **name, "messages": [{"role": "user", "content": "And then?"}]}).json
    assert (first["session"]["version"], second["session"]["version"]) == (1, 2)
    assert second["usage"]["cache_read_input_tokens"] >= 27 + 11 and second["usage"]["input_tokens"] < 27


def test_a_replayed_message_has_its_first_id(server):
    headers = {"Idempotency-Key": "message-1", "Content-Type": "application/json"}
    body = {**ASK, "session_id": "claude-2", "session_create": True}
    first, again = (server.ask("POST", PATH, body, headers).json for _ in range(2))
    assert first == again


TOOL = {"name": "get_weather", "description": "Get the weather.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"], "additionalProperties": False}}


def test_a_call_is_a_block_whole_and_in_a_stream(claude):
    more = {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 80}
    whole = claude.messages.create(model="tales", messages=ASK["messages"], **more, extra_body={"temperature": 0})
    call, = [b for b in whole.content if b.type == "tool_use"]
    assert (whole.stop_reason, call.name, list(call.input)) == ("tool_use", "get_weather", ["city"]) and call.id.startswith("toolu_")
    with claude.messages.stream(model="tales", messages=ASK["messages"], **more, extra_body={"temperature": 0}) as stream:
        final = stream.get_final_message()
    same, = [b for b in final.content if b.type == "tool_use"]
    assert (final.stop_reason, same.name, same.input) == ("tool_use", call.name, call.input)


def test_a_result_goes_on_from_its_call(server, claude):
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo", "height": 0.1}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]}
    history = [ASK["messages"][0], {"role": "assistant", "content": [call]}, {"role": "user", "content": [result, {"type": "text", "text": "So?"}]}]
    answer = claude.messages.create(model="tales", max_tokens=12, messages=history, tools=[TOOL], extra_body={"temperature": 0})
    function = {"name": "get_weather", "description": TOOL["description"], "parameters": TOOL["input_schema"]}
    chat = [ASK["messages"][0], {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "height": 0.1}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"}, {"role": "user", "content": "So?"}]
    want = chat_text(server, chat, tools=[{"type": "function", "function": function}])
    assert [b.text for b in answer.content] == [want]
    count = claude.messages.count_tokens(model="tales", messages=history, tools=[TOOL])
    tools = {"tools": [{"type": "function", "function": function}]}
    assert count.input_tokens == server.post("/tokenize", {"messages": chat, **tools}).json["count"]  # the fraction has the same digits
    assert count.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


@pytest.mark.parametrize("more, param", [
    ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"messages": []}, "messages"), ({"messages": "a"}, "messages"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"), ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "audio", "source": {}}]}]}, "messages[0].content[0]"),
    *[({"messages": [{"role": "user", "content": [{"type": "document", **source}]}]}, f"messages[0].content[0].source{f}") for source, f in (
        ({}, ""), ({"source": 5}, ""), ({"source": {}}, ""), ({"source": {"type": "text", "data": 5}}, ".data"), ({"source": {"type": "text"}}, ".data"), ({"source": {"type": "base64", "data": 5}}, ".data"),
        ({"source": {"type": "content"}}, ".content"), ({"source": {"type": "content", "content": 5}}, ".content"), ({"source": {"type": "content", "content": [{"type": "text", "text": 5}]}}, ".content[0]"))],
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source"), ({"messages": [{"role": "user", "content": [{"type": "image", "source": 5}]}]}, "messages[0].content[0].source"),
    ({"messages": [{"role": "system", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_reference", "tool_name": "a"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_reference"}]}]}]}, "messages[0].content[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_use"}]}]}]}, "messages[0].content[0].content[0]"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "x"}}]}]}, "messages[0].content[0].cache_control"),
    ({"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "2h"}}]}, "system[0].cache_control"),
    ({"messages": [{"role": "user", "content": "a", "cache_control": {"type": "ephemeral"}}]}, "messages[0].cache_control"),
    ({"system": 7}, "system"), ({"stop": "a"}, "stop"), ({"stop_sequences": [""]}, "stop_sequences"), ({"n": 2}, "n"),
    ({"thinking": {"type": "deep"}}, "thinking"), ({"thinking": True}, "thinking"), ({"context_management": []}, "context_management"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0]"), ({"suffix": []}, "suffix"), ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"), ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "", "input": {}}]}]}, "messages[0].content[0]"),
    ({"output_format": {"type": "xml"}}, "output_format"), ({"output_format": 7}, "output_format"),
    ({"output_format": {"type": "json_schema", "schema": {"not": {}}}}, "output_format"),
    ({"output_format": {"type": "json_schema", "schema": {}}, "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}, "output_format"),
    ({"structured_outputs": {"regex": "("}, "output_config": {}}, "structured_outputs.regex"),
    ({"tools": [{"name": "a", "input_schema": {}}, {"name": "a b", "input_schema": {}}]}, "tools[1].name"),
    ({"tools": [{"name": "a", "input_schema": {}, "description": 7}]}, "tools[0].description"), ({"tools": [{"name": "a", "input_schema": {}, "strict": 1}]}, "tools[0].strict"),
    *[({"tools": [{"type": t, "name": "a"}, TOOL]}, "tools[0].type") for t in ("web_search_evil", "advisorrr", "shellfish", "web_search\0evil")],
    ({"tools": [{"type": "web_search_20250305", "name": "a"}]}, "tools"), ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    ({"tools": [{"name": "a", "input_schema": {}, "defer_loading": 1}]}, "tools[0].defer_loading"), ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"messages": [ASK["messages"][0], {"role": "assistant", "content": [{"type": "tool_use", "id": "a\0b", "name": "a", "input": {}}]}]}, "messages[1].content[0]"),
    ({"tools": [{"name": 7, "input_schema": {}}]}, "tools[0].name"), ({"tool_choice": {"type": "x"}}, "tool_choice"),
])
def test_a_fault_names_its_field_in_anthropics_form(server, more, param):
    answer = server.post(PATH, {k: v for k, v in {**ASK, **more}.items() if v is not None})
    fault = answer.json
    assert answer.status == 400 and fault["type"] == "error" and fault["request_id"] == answer.header("request-id") == answer.header("X-Request-Id")
    assert (fault["error"]["type"], fault["error"]["param"]) == ("invalid_request_error", param) and fault["error"]["message"].startswith(param)


@pytest.mark.parametrize("more, param", [
    ({"messages": [], "model": "other", "tools": 7}, "messages"), ({"tools": 7, "output_config": 7, "model": "other"}, "output_config"),
    ({"tools": 7, "model": "other", "temperature": 9}, "tools"), ({"model": "other", "temperature": 9}, "model"),
    ({"max_tokens": 0, "messages": []}, "max_tokens"),
])
def test_of_two_faults_the_first_is_named(server, more, param):
    assert server.post(PATH, {**ASK, **more}).error["param"] == param


def test_faults_before_the_body_have_the_same_form(server, own_server, claude):
    assert server.ask("POST", PATH, b"{").json["type"] == "error"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="gpt", messages=ASK["messages"], max_tokens=1)
    s = own_server("--device", "null", "--api-keys", "sk-1")
    refused = s.ask("POST", PATH, ASK, {"Content-Type": "application/json", "x-api-key": "wrong"})
    assert (refused.status, refused.json["error"]["type"]) == (401, "authentication_error")
    assert s.ask("POST", PATH, ASK, {"Content-Type": "application/json", "x-api-key": "sk-1"}).status == 200


def in_anthropics_form(answer, status, kind):
    fault = answer.json
    assert answer.status == status and fault["type"] == "error" and fault["error"]["type"] == kind and fault["error"]["message"].endswith("."), answer
    assert fault["request_id"] == answer.header("request-id") == answer.header("X-Request-Id")
    return fault["error"]["message"]


def test_whatever_is_wrong_below_the_path_has_anthropics_form(server):
    for method, path in (("GET", PATH), ("DELETE", PATH + "/count_tokens"), ("PUT", PATH), ("PATCH", PATH + "/count_tokens")):
        assert method in in_anthropics_form(server.ask(method, path), 405, "invalid_request_error")
    for method, path in (("POST", PATH + "/batches"), ("GET", PATH + "/batches/b/results"), ("POST", PATH + "/"), ("GET", PATH + "/x?y=z")):
        assert path.split("?")[0] in in_anthropics_form(server.ask(method, path, ASK if method == "POST" else None), 404, "not_found_error")
    assert server.ask("POST", "/v1/messagesx", ASK).error["code"] == "not_found"


@pytest.mark.parametrize("path", [PATH, PATH + "?beta=true", PATH + "/count_tokens", PATH + "/batches"])
@pytest.mark.parametrize("head", ["Content-Length: x", "Content-Length: 2\r\nContent-Length: 2", "Content-Length: 2\r\nTransfer-Encoding: chunked"])
def test_a_fault_of_framing_has_anthropics_form_too(server, path, head):
    with socket.create_connection((server.host, server.port), timeout=60) as s:
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{head}\r\n\r\n{{}}".encode())
        said = b""
        while part := s.recv(65536):
            said += part
    lines, _, body = said.partition(b"\r\n\r\n")
    fault = json.loads(body)
    assert lines.startswith(b"HTTP/1.1 400") and fault["type"] == "error" and fault["error"]["code"] == "bad_framing", said
    assert f"request-id: {fault['request_id']}".encode() in lines


def test_a_body_that_is_too_large_or_no_json_has_anthropics_form(own_server):
    s = own_server("--device", "null", "--body-max-bytes", 1024)
    in_anthropics_form(s.post(PATH, {**ASK, "system": "a" * 2000}), 413, "request_too_large")
    in_anthropics_form(s.ask("POST", PATH, b"x", {"Content-Type": "text/plain"}), 415, "invalid_request_error")


def test_models_are_listed_in_anthropics_form_where_its_version_is_named(server, own_server, claude):
    (model,) = claude.models.list().data
    assert (model.id, model.type, model.display_name) == ("tales", "model", "tales") and model.created_at.year > 2000
    assert claude.models.retrieve("tales") == model
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.models.retrieve("gpt")
    assert caught.value.body["type"] == "error"
    assert server.get("/v1/models").json["object"] == "list" and server.get("/v1/models/tales").json["object"] == "model"
    in_anthropics_form(server.ask("POST", "/v1/models", b"{}", {"anthropic-version": "2023-06-01"}), 405, "invalid_request_error")
    s = own_server("--device", "null", "--model-name", "a,b,c,d")
    many = anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0, timeout=60)
    assert [m.id for m in many.models.list(limit=1)] == [m.id for m in many.models.list()] == ["a", "b", "c", "d"]
    page = many.models.list(limit=2, before_id="d")
    assert ([m.id for m in page.data], page.has_more, page.first_id, page.last_id) == (["b", "c"], True, "b", "c")
    assert many.models.list(after_id="d").data == []
    with pytest.raises(anthropic.BadRequestError):
        many.models.list(limit=0)


# ---- what coding agents send ----

def counted(server, **more):
    answer = server.post(f"{PATH}/count_tokens", {"messages": ASK["messages"], **more})
    assert answer.status == 200, answer
    return answer.json["input_tokens"]


def answered(server, **more):
    answer = server.post(PATH, {**ASK, **more})
    assert answer.status == 200, answer
    return answer.json["content"][0]["text"]


def test_thinking_and_its_edits_change_nothing(server):
    want = answered(server)
    for more in ({"thinking": {"type": "adaptive", "display": "updates"}}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"thinking": {"type": "disabled"}},
                 {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}, {"context_management": {}}, {"output_config": {"effort": "medium"}}):
        assert answered(server, **more) == want, more


def test_a_message_of_the_system_is_one_in_its_place(server):
    ask = ASK["messages"][0]
    said = {"role": "system", "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}], "output_config": {"effort": "medium"}}
    assert answered(server, messages=[ask, said]) == chat_text(server, [ask, {"role": "system", "content": "Be brief."}])
    assert answered(server, messages=[ask, {"role": "system", "content": "Be brief."}, ask]) == chat_text(server, [ask, {"role": "system", "content": "Be brief."}, ask])


def test_digits_for_the_bill_are_no_words_for_the_model(server):
    bill = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1f2e3;"}
    bard = {"type": "text", "text": "You are a bard."}
    assert counted(server, system=[bill, bard]) == counted(server, system=[bard])
    assert counted(server, messages=[{"role": "user", "content": [bill]}]) > 20  # a user may say so
    # the words behind its line are the model's
    for text, want in ((bill["text"] + "\nYou are a bard.", [bard]), (bill["text"] + "\n", []), (bill["text"] + "\n\nYou are a bard.", [{**bard, "text": "\nYou are a bard."}])):
        assert answered(server, system=[{"type": "text", "text": text}, bard]) == answered(server, system=[*want, bard]), text
        assert counted(server, system=[{"type": "text", "text": text}, bard]) == counted(server, system=[*want, bard]), text


def test_what_cannot_be_seen_is_a_line_that_says_so(server):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
    text = {"type": "document", "title": "A tale", "source": {"type": "text", "media_type": "text/plain", "data": "The fox ran."}}
    seen = {"image": "[image: not shown, this model reads text alone]", "document": "[document: not shown, this model reads text alone]"}
    want = chat_text(server, [{"role": "user", "content": f"Look.\n{seen['image']}\n{seen['document']}\nA tale\nThe fox ran."}])
    assert answered(server, messages=[{"role": "user", "content": [{"type": "text", "text": "Look."}, image, document, text]}]) == want
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Here:"}, image]}
    history = [ASK["messages"][0], {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    called = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "a", "function": {"name": "look", "arguments": "{}"}}]}
    assert answered(server, messages=history) == chat_text(server, [ASK["messages"][0], called, {"role": "tool", "tool_call_id": "a", "content": f"Here:\n{seen['image']}"}])


def test_a_document_of_content_is_read_as_text(server):
    def document(source, **more):
        return [{"role": "user", "content": [{"type": "text", "text": "Look."}, {"type": "document", "source": source, **more}]}]

    blocks = [{"type": "text", "text": "The fox ran."}, {"type": "image", "source": {"type": "url", "url": "http://a"}}, {"type": "text", "text": "Far."}]
    for content, text in (("word " * 9, "word " * 9), (blocks, "The fox ran.\n[image: not shown, this model reads text alone]\nFar."), ([], "")):
        same = {"type": "text", "media_type": "text/plain", "data": text}
        for more in ({}, {"title": "A tale"}):
            given, want = document({"type": "content", "content": content}, **more), document(same, **more)
            assert counted(server, messages=given) == counted(server, messages=want) and answered(server, messages=given) == answered(server, messages=want), content


def test_a_result_of_a_search_is_its_title_its_source_and_its_texts(server):
    """Beside other blocks of a user's message, and in what a tool found."""
    found = {"type": "search_result", "title": "A tale", "source": "https://a.example/b", "content": [{"type": "text", "text": "The fox ran."}, {"type": "text", "text": "Far."}],
             "citations": {"enabled": True}, "cache_control": {"type": "ephemeral"}}
    line = {"type": "text", "text": "A tale\nhttps://a.example/b\nThe fox ran.\nFar."}
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    for wrap in (lambda block: [{"role": "user", "content": [{"type": "text", "text": "Look."}, block, block]}],
                 lambda block: [ASK["messages"][0], {"role": "assistant", "content": [call]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [block]}]}]):
        assert counted(server, messages=wrap(found)) == counted(server, messages=wrap(line))
        assert answered(server, messages=wrap(found)) == answered(server, messages=wrap(line))
    for wrong, param in (({"title": 5}, ""), ({"source": None}, ""), ({"content": "a"}, ".content"), ({"content": []}, ".content"), ({"content": [{"type": "image"}]}, ".content[0]"),
                         ({"content": [{"type": "text"}]}, ".content[0]")):
        answer = server.post(PATH, {**ASK, "messages": [{"role": "user", "content": [{**found, **wrong}]}]})
        assert answer.status == 400 and answer.json["error"]["message"].startswith(f"messages[0].content[0]{param} "), (wrong, answer)
    said = server.post(PATH, {**ASK, "messages": [ASK["messages"][0], {"role": "assistant", "content": [found]}]})
    assert said.status == 400 and "messages[1].content[0]" in said.json["error"]["message"], said


def test_a_deferred_tool_stands_where_a_result_names_it(server):
    found = {**TOOL, "name": "get_time", "defer_loading": True}
    assert counted(server, tools=[TOOL, found]) == counted(server, tools=[TOOL]) == counted(server, tools=[found, TOOL])
    assert counted(server, tools=[found]) == counted(server)
    call = {"type": "tool_use", "id": "toolu_1", "name": "ToolSearch", "input": {}}

    def history(content):
        return [ASK["messages"][0], {"role": "assistant", "content": [call]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": content}]}]
    line = json.dumps({"type": "function", "function": {"name": "get_time", "description": TOOL["description"], "parameters": TOOL["input_schema"]}})
    reference, as_text = [{"type": "tool_reference", "tool_name": "get_time"}], [{"type": "text", "text": line}]
    more = {"max_tokens": 60, "tool_choice": {"type": "tool", "name": "get_time"}}
    whole = [server.post(PATH, {**ASK, **more, "tools": [TOOL, found], "messages": history(content)}).json for content in (reference, as_text)]
    assert [a["content"][0]["name"] for a in whole] == ["get_time"] * 2 and whole[0]["content"][0]["input"] == whole[1]["content"][0]["input"]
    assert whole[0]["usage"]["output_tokens"] == whole[1]["usage"]["output_tokens"]
    # a tool that stands in the head needs no second definition
    assert counted(server, tools=[TOOL], messages=history([{"type": "tool_reference", "tool_name": "get_weather"}])) == counted(server, tools=[TOOL], messages=history('"get_weather"'))
    # where Anthropic's servers would search, nobody names it
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    assert counted(server, tools=[TOOL, found, search]) == counted(server, tools=[TOOL, {**found, "defer_loading": False}])


def test_what_is_left_out_is_in_the_log_once_and_in_a_metric(own_server):
    s = own_server()
    web = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    for _ in range(2):
        answer = s.post(PATH, {**ASK, "max_tokens": 1, "tools": [web, TOOL], "thinking": {"type": "adaptive"}})
        assert answer.status == 200, answer
    assert s.post(PATH, {**ASK, "tools": [web]}).status == 400
    named = s.post(PATH, {**ASK, "tools": [web, TOOL], "tool_choice": {"type": "tool", "name": "web_search"}})
    assert named.status == 400 and named.error["param"] == "tool_choice", named
    metrics = s.metrics()
    found = {k: v for k, v in metrics.items() if k.startswith("rodimus_request_parts_ignored_total")}
    assert found == {f'rodimus_request_parts_ignored_total{{part="{part}"}}': 2 for part in ("web_search", "thinking")}
    assert [s.log().count(f"A request had {part},") for part in ("web_search", "thinking")] == [1, 1]


def test_a_history_with_a_search_of_anothers_server_goes_on_without_it(server):
    said = {"type": "text", "text": "It rains."}
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "weather"}}
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result", "title": "x", "url": "y"}]}
    ask, go_on = {"role": "user", "content": "What is the weather?"}, {"role": "user", "content": "And now?"}
    plain, searched = [[ask, {"role": "assistant", "content": content}, go_on] for content in ([said], [call, result, said])]
    assert counted(server, messages=searched) == counted(server, messages=plain)
    assert server.post(PATH, {**ASK, "messages": searched, "max_tokens": 2}).status == 200
    wrong = server.post(PATH, {**ASK, "messages": [{"role": "user", "content": [call]}]})
    assert wrong.status == 400 and "text, tool_result, image, document or search_result" in wrong.error["message"], wrong
