"""Another server commits the session's next version first. The server's own RODIMUS_TEST_CONFLICTS plays it: a turn is committed, and
then told that it was another's."""
import pytest

from server import Server
from talk import CHAT, COMPLETIONS, new_id

ASK = {"max_tokens": 6, "temperature": 0}
MESSAGES = [{"role": "user", "content": "Once upon a time"}]
SESSION = {"session_create": True}
APIS = {"completions": (COMPLETIONS, {**ASK, **SESSION, "prompt": "Once upon a time"}),
        "chat": (CHAT, {**ASK, **SESSION, "messages": MESSAGES}),
        "messages": ("/v1/messages", {**ASK, **SESSION, "messages": MESSAGES}),
        "responses": ("/v1/responses", {"max_output_tokens": 6, "temperature": 0, "input": "Once upon a time"})}


@pytest.fixture(scope="module")
def loser():
    """Whose every turn is another's."""
    s = Server(name="loser", env={"RODIMUS_TEST_CONFLICTS": "1000000"})
    yield s
    code = s.stop()
    assert code == 0, f"the server ended with {code}: {s.log()[-3000:]}"


def body_of(api, **more):
    path, body = APIS[api]
    return path, {**body, **({} if api == "responses" else {"session_id": new_id()}), **more}


def text_of(answer):
    """What was said, without ids and times."""
    said = answer.json
    return said.get("choices") or said.get("content") or said["output"][0]["content"]


def test_a_whole_answer_is_made_again_from_the_other_version(server, own_server):
    once = own_server(env={"RODIMUS_TEST_CONFLICTS": "1"})
    path, body = body_of("completions", return_token_ids=True)
    server.post(path, body)
    want = server.post(path, body)  # the second turn
    answer = once.post(path, body)
    assert answer.status == 200 and answer.json["session"]["version"] == 2, answer
    assert text_of(answer) == text_of(want), f"again {text_of(answer)}, after the other turn {text_of(want)}"
    said, wanted = answer.json["usage"], want.json["usage"]
    for count in ("prompt_tokens", "completion_tokens", "prompt_tokens_details"):
        assert said[count] == wanted[count], f"{count}: again {said}, after the other turn {wanted}"
    assert once.metric("rodimus_session_conflicts_total") == 1
    assert once.post(path, body).json["session"]["version"] == 3


@pytest.mark.parametrize("api", APIS)
def test_a_known_idempotency_key_gets_the_answer_of_the_other_turn(server, loser, api):
    path, body = body_of(api)
    headers = {"Idempotency-Key": new_id()}
    want, answer = server.post(path, body, headers=headers), loser.post(path, body, headers=headers)
    assert answer.status == 200 and text_of(answer) == text_of(want), f"{answer} is not {want}"
    again = loser.post(path, body, headers=headers)
    assert again.json == answer.json, f"{again} is not {answer}"


@pytest.mark.parametrize("api", ["completions", "chat", "messages"])
def test_another_version_than_the_expected_one_is_412(loser, api):
    path, body = body_of(api)
    answer = loser.post(path, {**body, "expected_version": 0})
    assert answer.status == 412 and "is at version 1, not 0" in answer.error["message"], answer


@pytest.mark.parametrize("api", ["completions", "chat", "messages"])
def test_a_second_conflict_is_503_and_says_when_to_come_again(loser, api):
    path, body = body_of(api)
    before = loser.metric("rodimus_session_conflicts_total")
    answer = loser.post(path, body)
    assert answer.status == 503 and int(answer.header("Retry-After")) >= 1, answer
    assert "Another server has gone on with the session" in answer.error["message"], answer
    assert api == "messages" or answer.error["code"] == "conflict", answer
    assert loser.metric("rodimus_session_conflicts_total") == before + 2


@pytest.mark.parametrize("api", APIS)
def test_a_stream_that_has_said_something_ends_in_an_error_of_its_api(loser, api):
    path, body = body_of(api)
    events = [e for e in loser.events(path, body) if not e.comment]
    kind = [e.data for e in events if isinstance(e.data, dict) and (e.data.get("type") == "error" or "error" in e.data)]
    assert len(kind) == 1 and kind[0] in [e.data for e in events[-2:]], [e.data for e in events]
    error = kind[0] if api == "responses" else kind[0]["error"]
    assert "Another server has gone on with the session" in error["message"] and "Idempotency-Key" in error["message"], error
    assert len(events) > 3, "tokens came before"
