"""Conversations: a header, or prompt_cache_key, names messages that come whole each time; session_id in the body is a turn."""
import json
import os
import shutil
from urllib.parse import quote

import pytest

from server import DEFAULT, ROOT
from talk import CHAT, COMPLETIONS, TEXTS, chat, new_id, turn

SAY = {"messages": [{"role": "user", "content": "Tell me a tale about a fox."}], "max_tokens": 3, "temperature": 0}
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


def log_line(server, request_id):
    """Of a request that was answered; it comes behind the answer."""
    server.wait_log(f'"id":"{request_id}"')
    return next(line for line in map(json.loads, server.log().splitlines()) if line.get("id") == request_id)


def named(server, path=CHAT, headers=None, **more):
    """The name in the log line of such a request."""
    body = {"input": "Tell me a tale.", "max_output_tokens": 3, "store": False} if path == RESPONSES else SAY
    answer = server.post(path, {**body, "model": "tales", **more}, headers=headers or {})
    assert answer.status == 200 and "session" not in answer.json, answer
    return log_line(server, answer.header("X-Request-Id")).get("conversation")


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_what_clients_send_of_themselves_names_the_conversation(own_server, path):
    server = own_server("--log-format", "json")
    for headers, more, want in (({"x-claude-code-session-id": "s"}, {}, "s"),
                                ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a1"}, {}, "s:a1"),
                                ({"session-id": "root", "thread-id": "t"}, {"prompt_cache_key": "root"}, "t"),
                                ({"x-affinity": "v"}, {}, "v"),
                                ({"X-Session-Id": "own", "X-Parent-Session-Id": "above"}, {}, "own"),
                                ({"X-Amp-Thread-Id": "T-1"}, {}, "T-1"),
                                ({}, {"prompt_cache_key": "k"}, "k"),
                                ({}, {}, None)):
        assert named(server, path, headers, **more) == want, (headers, more)


def test_what_is_no_name_is_no_error(own_server):
    server = own_server("--log-format", "json")
    for bad in ("", "x" * 256, "a\tb", "\u00e4"):
        assert named(server, headers={"X-Session-Id": bad.encode("latin-1")}) is None, bad
    for bad in ("", "x" * 256, "a\nb", 5, [], None):
        assert named(server, prompt_cache_key=bad) is None, bad


def test_a_header_alone_is_no_turn(server):
    """OpenCode sends everything under it."""
    name = new_id()
    for path, body in ((CHAT, SAY), (COMPLETIONS, {"prompt": "Once", "max_tokens": 2})):
        for _ in range(2):
            answer = server.post(path, body, headers={"X-Session-Id": name})
            assert answer.status == 200 and "session" not in answer.json, answer
    assert server.get("/v1/sessions/" + name).status == 404


@pytest.mark.parametrize("field", [{"session_create": True}, {"expected_version": 0}])
@pytest.mark.parametrize("path,body", [(CHAT, SAY), (COMPLETIONS, {"prompt": "Once"})])
def test_a_header_alone_has_no_versions(server, path, body, field):
    answer = server.post(path, {**body, **field}, headers={"X-Session-Id": new_id()})
    assert answer.status == 400 and answer.error["param"] == "session_id" and next(iter(field)) in answer.error["message"], answer
    answer = server.post(path, {**body, **field})
    assert answer.status == 400 and answer.error["param"] == next(iter(field)) and "session_id" in answer.error["message"], answer


@pytest.mark.parametrize("long", [False, True])
def test_a_header_alone_never_begins_a_session_of_turns_from_nothing(server, long):
    session = new_id()
    chat(server, session, "Tell me a tale about a fox.", session_create=True)
    messages = [{"role": "user", "content": "And then? " * (3000 if long else 1)}]
    for path, body in ((CHAT, {**SAY, "messages": messages}), (MESSAGES, {**SAY, "model": "tales", "messages": messages}), (COMPLETIONS, {"prompt": "And"})):
        answer = server.post(path, body, headers={"X-Session-Id": session})
        assert answer.status == 412, answer
        error = answer.json["error"]
        assert "session_id" in error["message"] and session in error["message"], answer
    assert chat(server, session, "And then?")["session"]["version"] == 2
    assert server.ask("DELETE", "/v1/sessions/" + session).status == 200
    assert server.post(CHAT, SAY, headers={"X-Session-Id": session}).status == 200


@pytest.mark.parametrize("header", ["X-Session-Id", "X-Claude-Code-Session-Id", "Thread-Id", "X-Amp-Thread-Id", "X-Affinity"])
def test_no_header_begins_a_session_of_turns_from_nothing(server, header):
    """Whichever client sends it; a name with an agent's behind it is no session's."""
    session = new_id()
    chat(server, session, "Tell me a tale about a fox.", session_create=True)
    response = {"input": "And then?", "max_output_tokens": 2}
    for path, body in ((CHAT, SAY), (MESSAGES, {**SAY, "model": "tales"}), (COMPLETIONS, {"prompt": "And"}), (RESPONSES, response), (RESPONSES, {**response, "store": False})):
        answer = server.post(path, body, headers={header: session})
        assert answer.status == 412 and header in answer.json["error"]["message"] and session in answer.json["error"]["message"], (path, answer)
    assert server.post(RESPONSES, {**response, "previous_response_id": session}, headers={header: session}).status == 200, "a turn is led by its header"
    assert chat(server, session, "And then?")["session"]["version"] == 2
    assert server.post(CHAT, {**SAY, "session_id": session}, headers={header: session}).status == 200
    assert server.post(CHAT, SAY, headers={"X-Claude-Code-Session-Id": session, "X-Claude-Code-Agent-Id": "a"}).status == 200


def test_a_conversation_goes_on_without_its_folder(own_server, tmp_path):
    """It is a cache: nothing was promised. What is a promise, a turn or a stored response, is a 503."""
    folder = tmp_path / "states"
    folder.mkdir()
    server, name = own_server("--state-dir", folder, "--log-format", "json"), new_id()
    headers = {"X-Session-Id": name}
    assert server.post(CHAT, SAY, headers=headers).status == 200
    shutil.rmtree(folder)
    for path, body in ((CHAT, SAY), (MESSAGES, {**SAY, "model": "tales"}), (RESPONSES, {"input": "Hm", "store": False, "max_output_tokens": 2})):
        for _ in range(2):
            answer = server.post(path, body, headers=headers)
            assert answer.status == 200, answer
    assert server.metric("rodimus_conversation_names_unread_total") >= 1
    assert server.post(CHAT, {**SAY, "session_id": new_id(), "session_create": True}).status == 503
    assert server.post(RESPONSES, {"input": "Hm", "max_output_tokens": 2}, headers=headers).status == 503
    assert str(folder) not in json.dumps(answer.json)


def test_a_header_alone_finds_a_session_that_only_a_file_has(own_server, tmp_path):
    session = new_id()
    first = own_server("--state-dir", tmp_path)
    turn(first, session, TEXTS[0], session_create=True)
    first.stop()
    again = own_server("--state-dir", tmp_path)
    answer = again.post(CHAT, SAY, headers={"X-Session-Id": session})
    assert answer.status == 412 and answer.error["code"] == "session_of_turns", answer
    assert turn(again, session, TEXTS[1])["session"]["version"] == 2


# ---- what a named conversation keeps ----

TOOL = {"name": "edit", "description": "Changes a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string", "maxLength": 12}, "line": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["path", "line"]}}
TOOLS = [{"type": "function", "function": TOOL}, {"type": "function", "function": {**TOOL, "name": "look", "description": "Shows a file. " * 40}}]
EVERY = {"RODIMUS_TEST_CHECKPOINTS_PAY": "1"}  # each entry of the cache pays, however busy the machine is


def said(server, messages, name, **more):
    answer = server.post(CHAT, {"messages": messages, "max_tokens": 160, "temperature": 0.7, **more}, headers={"X-Session-Id": name} if name else {})
    assert answer.status == 200, answer
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)
    return answer.json


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def whole(answer):
    return answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]


def respelt(call):
    """The same call in other bytes, as clients write it."""
    arguments = json.dumps({**json.loads(call["function"]["arguments"]), "replace_all": False}, indent=1)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def talk(server, name, n, messages=None, begin=0, **more):
    """n steps of an agent: each answer is a call, which comes back in other bytes. The messages, and all tokens that were read or said."""
    messages = messages or [{"role": "system", "content": "You edit files. " * 20}, {"role": "user", "content": "Edit all."}]
    last = 0
    for i in range(begin, begin + n):
        answer = said(server, messages, name, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=i, **more)
        assert cached(answer) >= last - 1, (i, answer["usage"], last)
        last = whole(answer)
        message = answer["choices"][0]["message"]
        call = message["tool_calls"][0]
        messages = [*messages, {**message, "tool_calls": [respelt(call)]}, {"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"done": i})}]
    return messages, last


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_other_bytes_is_not_read_again_after_kill_9(own_server, tmp_path, stream):
    """At once behind the last event of an answer: what was said is with the system by then."""
    name = new_id()
    messages, last = [{"role": "user", "content": "Edit all."}], 0
    for i in range(4):
        server = own_server("--state-dir", tmp_path, env=EVERY)
        body = {"messages": messages, "max_tokens": 160, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "seed": i,
                "stream": stream, "stream_options": {"include_usage": True} if stream else None}
        answer = server.post(CHAT, body, headers={"X-Session-Id": name})
        server.kill()
        assert answer.status == 200, answer
        message, usage = streamed(answer) if stream else (answer.json["choices"][0]["message"], answer.json["usage"])
        assert usage["prompt_tokens_details"]["cached_tokens"] >= last - 1, (i, usage, last)
        last = usage["prompt_tokens"] + usage["completion_tokens"]
        call = message["tool_calls"][0]
        messages += [{**message, "tool_calls": [respelt(call)]}, {"role": "tool", "tool_call_id": call["id"], "content": "{}"}]


def streamed(answer):
    call, usage = {"function": {"arguments": ""}}, None
    for frame in answer.body.decode().split("\n\n"):
        if not frame.startswith("data: {"):
            continue
        chunk = json.loads(frame[6:])
        usage = chunk.get("usage") or usage
        for piece in [p for c in chunk["choices"] for p in c["delta"].get("tool_calls", [])]:
            call["function"]["arguments"] += piece["function"].pop("arguments", "")
            call["function"].update(piece.pop("function"))
            call.update(piece)
    return {"role": "assistant", "content": None, "tool_calls": [call]}, usage


def test_another_server_of_the_folder_reads_nothing_again(own_server, tmp_path):
    servers = [own_server("--state-dir", tmp_path, env=EVERY) for _ in range(2)]
    name = new_id()
    messages, last = talk(servers[0], name, 3)
    for i in range(4):
        server = servers[(i + 1) % 2]
        answer = said(server, messages, name, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=i)
        assert cached(answer) >= last - 1, (i, answer["usage"], last)
        last = whole(answer)
        message = answer["choices"][0]["message"]
        call = message["tool_calls"][0]
        messages = [*messages, {**message, "tool_calls": [respelt(call)]}, {"role": "tool", "tool_call_id": call["id"], "content": "{}"}]


@pytest.mark.parametrize("without", [{"tools": []}, {}, {"tools": TOOLS, "tool_choice": "none"}], ids=["empty", "left out", "none"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_request_without_tools_in_a_thread_that_has_them_keeps_the_head(own_server, tmp_path, restart, without):
    server, name = own_server("--state-dir", tmp_path, "--log-format", "json", env=EVERY), new_id()
    messages, last = talk(server, name, 3)
    if restart:
        server.kill()
        server = own_server("--state-dir", tmp_path, "--log-format", "json", env=EVERY)
    answer = server.post(CHAT, {"messages": [*messages, {"role": "user", "content": "Sum it up."}], "max_tokens": 40, **without}, headers={"X-Session-Id": name})
    assert answer.status == 200, answer
    assert cached(answer.json) >= last - 1, (answer.json["usage"], last)
    assert answer.json["usage"]["prompt_tokens_details"]["kept_tools"] == 2
    assert not answer.json["choices"][0]["message"].get("tool_calls") and "<tool_call>" not in (answer.json["choices"][0]["message"]["content"] or "")
    assert log_line(server, answer.header("X-Request-Id"))["kept_tools"] == 2
    talk(server, name, 1, messages, 9)


def test_no_head_is_kept_that_name_and_chain_do_not_prove(own_server, tmp_path):
    server, name = own_server("--state-dir", tmp_path, env=EVERY), new_id()
    messages, last = talk(server, name, 3)
    ask = {"role": "user", "content": "Sum it up."}
    changed = [{**messages[0], "content": "You are another."}, *messages[1:]]
    for other, history in ((new_id(), messages), (None, messages), (name, changed), (name, messages[:2])):
        answer = said(server, [*history, ask], other, tools=[])
        assert "kept_tools" not in answer["usage"]["prompt_tokens_details"], (other, answer)
        assert answer["usage"]["prompt_tokens"] < last, "the tools are in the prompt"


def test_a_model_that_would_call_a_kept_tool_writes_text(own_server):
    server, name = own_server(model=os.path.join(ROOT, "config", "models", DEFAULT), env=EVERY), new_id()
    tools = [{"type": "function", "function": {"name": "print_ticket", "description": "Print the ticket.", "parameters": {
        "type": "object", "properties": {"count": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["count"]}}}]
    ask = lambda n: {"role": "user", "content": f"Please print the ticket {n} times."}
    messages = [{"role": "user", "content": "Tell me a tale about a fox."}]
    messages += [said(server, messages, name, tools=tools, temperature=0)["choices"][0]["message"], ask(4)]
    called = said(server, messages, name, tools=tools, temperature=0)["choices"][0]
    assert called["finish_reason"] == "tool_calls", "else this shows nothing"
    kept = said(server, messages, name, tools=[], temperature=0)
    assert kept["usage"]["prompt_tokens_details"]["kept_tools"] == 1 and kept["usage"]["prompt_tokens"] == whole_prompt(server, messages, tools)
    text = kept["choices"][0]["message"]["content"]
    assert "<tool_call>" not in text and kept["choices"][0]["finish_reason"] != "tool_calls", kept


def whole_prompt(server, messages, tools):
    return said(server, messages, None, tools=tools, temperature=0)["usage"]["prompt_tokens"]


def test_several_choices_of_a_conversation_are_all_known_again(own_server, tmp_path):
    server, name = own_server("--state-dir", tmp_path, env=EVERY), new_id()
    ask = [{"role": "user", "content": "Edit all."}]
    first = said(server, ask, name, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, n=3, seed=1, return_token_ids=True)
    server.kill()
    server = own_server("--state-dir", tmp_path, env=EVERY)
    for choice in first["choices"]:
        call = choice["message"]["tool_calls"][0]
        back = [*ask, {**choice["message"], "tool_calls": [respelt(call)]}, {"role": "tool", "tool_call_id": call["id"], "content": "{}"}]
        answer = said(server, back, name, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, return_token_ids=True)
        ids, read = choice["token_ids"], answer["prompt_token_ids"]
        assert any(read[i:i + len(ids)] == ids for i in range(len(read))), (ids, read)


# ---- looked at and removed ----

def conversations(server, key=None, query=""):
    answer = server.get("/v1/sessions?kind=conversation" + query, headers={"Authorization": f"Bearer {key}"} if key else None)
    assert answer.status == 200, answer
    return answer.json


@pytest.mark.parametrize("durable", [False, True])
def test_conversations_are_listed_by_name_and_removed(own_server, tmp_path, durable):
    server = own_server(*(("--state-dir", tmp_path) if durable else ()), env=EVERY)
    names = [f"name {i}/\u00e4" for i in range(3)]
    for name in names:
        said(server, [{"role": "user", "content": "Tell me a tale about a fox. " * 10}], None, prompt_cache_key=name, max_tokens=5)  # each has its own states
    said(server, [{"role": "user", "content": "Another beginning. " * 20}], None, prompt_cache_key=names[0], max_tokens=5)
    page = conversations(server)
    assert [c["id"] for c in page["data"]] == names and not page["has_more"], page
    assert [c["lanes"] for c in page["data"]] == [2, 1, 1] and all(c["states"] and c["tokens"] and c["state_bytes"] and c["durable"] == durable for c in page["data"]), page
    first = conversations(server, query="&limit=2")
    assert first["has_more"] and [c["id"] for c in first["data"]] == names[:2]
    assert [c["id"] for c in conversations(server, query="&after=" + quote(names[1]))["data"]] == names[2:]
    assert server.get("/v1/sessions").json["data"] == [], "a conversation is no session"
    metrics = server.metrics()
    assert metrics["rodimus_conversations"] == 3 and metrics["rodimus_conversation_lanes"] == 4, metrics
    assert metrics['rodimus_conversation_states{tier="host"}'] >= 4 and (metrics['rodimus_conversation_states{tier="file"}'] > 0) == durable
    answer = server.post("/finish_session", {"session_id": names[0]})
    assert answer.status == 200 and answer.json == {"object": "conversation", "id": names[0], "deleted": True}, answer
    assert server.post("/finish_session", {"session_id": names[0]}).status == 404
    assert [c["id"] for c in conversations(server)["data"]] == names[1:]


def test_a_conversation_is_shown_and_removed_by_its_name(own_server, tmp_path):
    server, name = own_server("--state-dir", tmp_path, env=EVERY), "a b:c"
    messages, last = talk(server, name, 2)
    path = "/v1/sessions/" + quote(name) + "?kind=conversation"
    shown = server.get(path)
    assert shown.status == 200 and shown.json == conversations(server)["data"][0] and shown.json["id"] == name, shown
    assert server.get("/v1/sessions/" + quote(name)).status == 400
    assert server.ask("DELETE", path).status == 200
    assert server.get(path).status == 404 and server.ask("DELETE", path).status == 404
    left = [files for _, _, files in os.walk(tmp_path / "conversations") if files and not any(f.endswith("-h.state") for f in files)]
    assert not left, left  # heads, which are those of all the key's conversations, have a folder of their own
    server.kill()
    server = own_server("--state-dir", tmp_path, env=EVERY)
    answer = said(server, messages, name, tools=TOOLS)
    assert cached(answer) < whole_prompt(server, messages[:2], TOOLS), answer["usage"]


@pytest.mark.parametrize("name", ["a/b", "/", "a/fork", "a/state", "//a//", "a%2Fb", "%2f/%", "\u00e4/?&#"])
def test_a_name_with_a_slash_is_shown_and_removed_by_its_path(server, name):
    said(server, [{"role": "user", "content": "Tell me a tale about a fox. " * 10}], None, prompt_cache_key=name, max_tokens=5)
    path = "/v1/sessions/" + quote(name, safe="") + "?kind=conversation"
    shown = server.get(path)
    assert shown.status == 200 and shown.json["id"] == name, shown
    assert server.ask("DELETE", path.replace("?kind=conversation", "")).status in (400, 404, 405)
    gone = server.ask("DELETE", path)
    assert gone.status == 200 and gone.json == {"object": "conversation", "id": name, "deleted": True}, gone
    assert server.ask("DELETE", path).status == 404


def test_what_no_conversation_can_be_is_named(server):
    for path, param in (("/v1/sessions?kind=x", "kind"), ("/v1/sessions/a?kind=", "kind"), ("/v1/sessions?kind=conversation&after=%01", "after"),
                        ("/v1/sessions?kind=conversation&limit=0", "limit"), ("/v1/sessions/%01?kind=conversation", "id"), ("/v1/sessions?after=a%20b", "after")):
        answer = server.get(path)
        assert answer.status == 400 and answer.error["param"] == param, (path, answer)
    for body in ({}, {"session_id": ""}, {"session_id": 5}, {"session_id": "x" * 256}, {"session_id": "a\nb"}):
        answer = server.post("/finish_session", body)
        assert answer.status == 400 and answer.error["param"] == "session_id", (body, answer)


def test_each_key_sees_its_own_conversations_alone(own_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-anna name=anna\nsk-bert name=bert\n")
    server = own_server("--api-key-file", keys, "--state-dir", tmp_path / "states", env=EVERY, key="sk-anna")
    messages = [{"role": "user", "content": "Tell me a tale about a fox. " * 20}]
    of = lambda key: {"Authorization": f"Bearer {key}", "X-Session-Id": "shared"}
    ask = lambda key: server.post(CHAT, {"messages": messages, "max_tokens": 5}, headers=of(key))
    assert ask("sk-anna").status == 200
    assert [c["id"] for c in conversations(server, "sk-anna")["data"]] == ["shared"] and conversations(server, "sk-bert")["data"] == []
    path = "/v1/sessions/shared?kind=conversation"
    for method in ("GET", "DELETE"):
        assert server.ask(method, path, headers=of("sk-bert")).status == 404
    assert server.post("/finish_session", {"session_id": "shared"}, headers=of("sk-bert")).status == 404
    answer = ask("sk-bert")
    assert answer.status == 200 and cached(answer.json) == 0, answer
    assert server.post("/finish_session", {"session_id": "shared"}, headers=of("sk-bert")).status == 200
    assert [c["id"] for c in conversations(server, "sk-anna")["data"]] == ["shared"]
    assert cached(ask("sk-anna").json) > 0


# ---- Idempotency-Key ----

@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
def test_a_repeated_request_of_a_conversation_gets_its_answer_again(server, path, stream):
    key, name = new_id(), new_id()
    body = {"model": "tales", "stream": stream, "temperature": 1}
    body |= {"input": "Tell me a tale.", "max_output_tokens": 9, "store": False} if path == RESPONSES else {**SAY, "max_tokens": 9, "temperature": 1}
    of = {"X-Session-Id": name, "Idempotency-Key": key}
    before = server.metrics()
    first = server.post(path, body, headers=of)
    again = server.post(path, body, headers=of)
    assert first.status == again.status == 200 and first.body == again.body and first.body, (first, again)
    assert first.header("Content-Type") == again.header("Content-Type")
    after = server.metrics()
    assert after["rodimus_idempotent_replays_total"] - before["rodimus_idempotent_replays_total"] == 1
    assert after["rodimus_completion_tokens_total"] - before["rodimus_completion_tokens_total"] <= 9
    other = server.post(path, {**body, "seed": 5}, headers=of)
    error = other.json["error"]
    assert other.status == 400 and "Idempotency-Key" in error["message"], other
    assert server.post(path, {**body, "seed": 5}, headers={**of, "Idempotency-Key": key + "x"}).body != first.body


def test_a_request_that_was_refused_or_left_may_come_again_under_its_key(server):
    of = {"X-Session-Id": new_id(), "Idempotency-Key": new_id()}
    assert server.post(CHAT, {**SAY, "temperature": -1}, headers=of).status == 400
    connection, response = server.open("POST", CHAT, {**SAY, "max_tokens": 100000, "ignore_eos": True, "stream": True}, headers=of)
    response.read(10)
    answer = server.post(CHAT, {**SAY, "max_tokens": 100000, "ignore_eos": True, "stream": True}, headers=of)
    assert answer.status == 429 and answer.error["code"] == "request_running" and answer.header("Retry-After"), answer
    connection.close()
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)
    assert server.post(CHAT, SAY, headers=of).status == 200


def test_a_key_that_is_none_is_named(server):
    answer = server.post(CHAT, SAY, headers={"X-Session-Id": "a", "Idempotency-Key": "x" * 256})
    assert answer.status == 400 and answer.error["param"] == "Idempotency-Key", answer


def test_a_compaction_as_codex_asks_for_it_reads_its_own_message_alone(own_server):
    server, tools = own_server(env=EVERY), [{"type": "function", **tool["function"]} for tool in TOOLS]
    body = {"store": False, "prompt_cache_key": "t", "instructions": "You edit. " * 20, "max_output_tokens": 160}
    ask = lambda **more: server.post(RESPONSES, {**body, **more}, headers={"thread-id": "t", "session-id": "t"})
    items = [{"role": "user", "content": "Edit all. " * 30}]
    for _ in range(3):
        answer = ask(input=items, tools=tools, tool_choice="required", parallel_tool_calls=False)
        assert answer.status == 200, answer
        server.wait_metric("rodimus_slots_used", lambda n: n == 0)
        call = next(item for item in answer.json["output"] if item["type"] == "function_call")
        items += [{k: call[k] for k in ("type", "call_id", "name", "arguments")}, {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}]
    last = answer.json["usage"]["total_tokens"]
    usage = ask(input=[*items, {"role": "user", "content": "Sum it up."}], tools=[]).json["usage"]
    assert usage["input_tokens_details"]["kept_tools"] == 2 and usage["input_tokens_details"]["cached_tokens"] >= last - 1, (usage, last)
