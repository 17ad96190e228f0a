"""Conversations: a header, or prompt_cache_key, names messages that come whole each time; session_id in the body is a turn."""
import json

import pytest

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


def test_a_header_alone_finds_a_session_that_only_a_file_has(own_server, tmp_path):
    session = new_id()
    first = own_server("--state-dir", tmp_path)
    turn(first, session, TEXTS[0], session_create=True)
    first.stop()
    again = own_server("--state-dir", tmp_path)
    answer = again.post(CHAT, SAY, headers={"X-Session-Id": session})
    assert answer.status == 412 and answer.error["code"] == "session_of_turns", answer
    assert turn(again, session, TEXTS[1])["session"]["version"] == 2
