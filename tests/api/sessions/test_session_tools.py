"""An agent's loop in a session: tools are read once, and each call's result reads only itself."""
import json

import pytest

from talk import CHAT, new_id

TOOLS = [{"type": "function", "function": {"name": f"look_{i}", "description": "Looks at a thing and says what it is like. " * 3, "parameters": {
    "type": "object", "properties": {"at": {"enum": ["fox", "raven"]}}, "required": ["at"], "additionalProperties": False}}} for i in range(6)]
OTHERS = [{"type": "function", "function": {"name": "now"}}]
ASK = {"role": "user", "content": "Look at the fox."}


def turn(server, session, message, tools=TOOLS, **more):
    """(what was read of the prompt, what the model said)"""
    body = {"messages": [message], "tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 100, "temperature": 0.7,
            "seed": 1, "session_id": session, "cache_salt": session, **more}  # what other sessions have read is not found
    answer = server.post(CHAT, {k: v for k, v in body.items() if v is not None})
    assert answer.status == 200, answer
    usage = answer.json["usage"]
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"], answer.json["choices"][0]["message"]


def result(said, content):
    return {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": content}


def count(server, messages, tools=()):
    return server.post("/tokenize", {"messages": messages, "tools": list(tools)}).json["count"]


def test_a_loop_of_20_calls_reads_each_result_once(server):
    session, text = new_id(), json.dumps({"colour": "red", "weight": 12})
    read, said = turn(server, session, ASK, session_create=True, cache_salt=session)  # nothing of other tests is found
    assert read == count(server, [ASK], TOOLS)
    for _ in range(19):
        message = result(said, text)
        read, said = turn(server, session, message)
        assert read <= count(server, [message]) + 1, "the result, and perhaps the last token of the call"


def test_other_tools_are_read_before_their_turn_and_then_known(server):
    session = new_id()
    turn(server, session, ASK, session_create=True)
    read, said = turn(server, session, ASK, OTHERS)
    assert abs(read - count(server, [ASK], OTHERS)) <= 1 and said["tool_calls"][0]["function"]["name"] == "now"
    assert turn(server, session, ASK, OTHERS)[0] <= count(server, [ASK]) + 1
    assert turn(server, session, ASK, TOOLS)[0] >= count(server, [ASK], TOOLS)


def test_a_turn_without_tools_forgets_none(server):
    session = new_id()
    turn(server, session, ASK, session_create=True)
    for more in ({"tools": None, "tool_choice": None}, {"tool_choice": "none"}):
        read, said = turn(server, session, ASK, **{"max_tokens": 4, **more})
        assert read <= count(server, [ASK]) + 1 and "tool_calls" not in said
    assert turn(server, session, ASK)[0] <= count(server, [ASK]) + 1


def test_a_fork_and_a_restart_remember_the_tools(durable):
    s, session, fork = durable(), new_id(), new_id()
    turn(s, session, ASK, session_create=True)
    assert s.post(f"/v1/sessions/{session}/fork", {"id": fork}).status in (200, 201)
    assert turn(s, fork, ASK)[0] <= count(s, [ASK]) + 1
    s.kill()
    s = durable()
    for one in (session, fork):
        assert turn(s, one, ASK)[0] <= count(s, [ASK]) + 1


def test_a_repeated_turn_gets_the_same_calls(server):
    session, key = new_id(), {"Idempotency-Key": new_id()}
    body = {"messages": [ASK], "tools": TOOLS, "tool_choice": "required", "max_tokens": 100, "parallel_tool_calls": False, "session_id": session,
            "session_create": True}
    first, again = (server.post(CHAT, body, headers=key).json for _ in range(2))
    assert first["choices"] == again["choices"] and first["id"] == again["id"]
    assert first["choices"][0]["message"]["tool_calls"][0]["id"]


@pytest.mark.parametrize("field", ["tools", "messages"])
def test_tools_may_be_read_ahead(server, field):
    """max_tokens 0 reads tools or a system prompt without an answer."""
    session, system = new_id(), {"role": "system", "content": "You are a helpful agent."}
    first = {"messages": [system], "max_tokens": 0, "session_id": session, "session_create": True, **({"tools": TOOLS} if field == "tools" else {})}
    assert server.post(CHAT, first).status == 200
    read, _ = turn(server, session, ASK)
    assert (read <= count(server, [ASK]) + 1) == (field == "tools"), read
