"""Questions beside a session: answered from its last version, also while a turn runs, and the session is to the bit what it is without them."""
import json
import os
import random
import threading
import time

from server import DEVICE
from talk import CHAT, TEXTS, Talk, chat, made, new_id, turn

# on a GPU a row's bits may depend on how many share the step, unless it is told that they must not
EXACT = () if DEVICE == "cpu" else ("--deterministic",)
SUMS = ("prompt_tokens", "completion_tokens", "prompt_tokens_details")  # not the drafts, which are made by time
LONG = bool(os.environ.get("RODIMUS_TEST_SOAK"))


def question(content, n=6, **more):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}


def ask(server, session, content, n=6, **more):
    answer = server.post(f"/v1/sessions/{session}/ask", question(content, n, **more))
    assert answer.status == 200, answer
    return answer.json


def shown(server, session):
    return server.get(f"/v1/sessions/{session}").json


def state(server, session):
    answer = server.get(f"/v1/sessions/{session}/state")
    assert answer.status == 200, answer
    return answer.body


def test_a_question_is_what_a_fork_answers_and_leaves_the_session_alone(server):
    session = new_id()
    chat(server, session, "Tell me a tale about a fox.", session_create=True)
    fork = server.post(f"/v1/sessions/{session}/fork", {}).json["id"]
    want = chat(server, fork, "Who was the king?")
    before, bytes_before, asks = shown(server, session), state(server, session), server.metric("rodimus_session_asks_total")
    for more in ({}, {"session_id": session}, {"expected_version": 1}, {"store": True}):
        answer = ask(server, session, "Who was the king?", **more)
        assert made(answer) == made(want) and answer["session"] == {"id": session, "version": 1}
        assert [answer["usage"][k] for k in SUMS] == [want["usage"][k] for k in SUMS]
    events = server.events(f"/v1/sessions/{session}/ask", question("Who was the king?", stream=True))
    chunks = [e.data for e in events if e.data != "[DONE]"]
    assert [i for c in chunks for i in c["choices"][0].get("token_ids") or []] == made(want)
    assert chunks[-1]["session"] == {"id": session, "version": 1}
    assert server.metric("rodimus_session_asks_total") - asks == 5
    assert shown(server, session) == before
    assert state(server, session) == bytes_before
    assert fork in [s["id"] for s in server.get("/v1/sessions?limit=1000").json["data"]]


def test_store_changes_nothing_of_a_turn(server):
    session = new_id()
    for version, store in enumerate((False, True), 1):
        assert chat(server, session, "Hi", session_create=True, store=store)["session"]["version"] == version


def test_what_is_wrong_with_a_question_is_told_as_of_a_chat(server):
    session = new_id()
    chat(server, session, "Hi", session_create=True)
    cases = [({}, new_id(), 404, "not_found", None), ({"expected_version": 3}, session, 412, "version_mismatch", "expected_version"),
             ({"session_create": True}, session, 400, None, "session_create"), ({"session_id": "other"}, session, 400, None, "session_id"),
             ({"max_tokens": 0}, session, 400, None, "max_tokens"), ({"n": 2}, session, 400, None, "n"), ({"messages": []}, session, 400, None, "messages"),
             ({}, "a%20b", 400, None, "id"), ({"model": "another"}, session, 404, "model_not_found", "model")]
    for more, name, status, code, param in cases:
        answer = server.post(f"/v1/sessions/{name}/ask", {**question("Who?"), **more})
        assert answer.status == status, (more, answer)
        assert answer.error["param"] == param, (more, answer)
        assert not code or answer.error["code"] == code, (more, answer)
    other = server.post(f"/v1/sessions/{session}/ask", question("Who?"), headers={"X-Session-Id": "other"})
    assert other.status == 400, other
    assert server.ask("GET", f"/v1/sessions/{session}/ask").status == 405
    assert shown(server, session)["version"] == 1


def test_keys_have_questions_of_their_own_sessions_alone(own_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret-a name=a\nsecret-b name=b\n")
    s = own_server("--api-key-file", str(keys))
    session, a, b = new_id(), {"Authorization": "Bearer secret-a"}, {"Authorization": "Bearer secret-b"}
    assert s.post(CHAT, {**question("Hi"), "session_id": session, "session_create": True}, headers=a).status == 200
    assert s.post(f"/v1/sessions/{session}/ask", question("Who?"), headers=b).status == 404
    assert s.post(f"/v1/sessions/{session}/ask", question("Who?"), headers=a).status == 200


def test_a_repeated_key_answers_a_question_anew_and_keeps_nothing(server):
    session, key = new_id(), {"Idempotency-Key": "k"}
    chat(server, session, "Hi", session_create=True)
    first = server.post(f"/v1/sessions/{session}/ask", question("Who?"), headers=key).json
    again = server.post(f"/v1/sessions/{session}/ask", question("And then?"), headers=key)
    assert again.status == 200 and first["session"]["version"] == again.json["session"]["version"] == 1


def test_a_question_beside_a_turn_that_runs_has_the_version_before(own_server):
    s = own_server(*EXACT, "--slots", "4")
    session = new_id()
    chat(s, session, "Tell me a tale about a fox.", session_create=True)
    want = made(ask(s, session, "Who was the king?"))
    body = {**question("And then?", 20000), "session_id": session, "stream": True}
    connection, _ = s.open("POST", CHAT, body)
    while not shown(s, session)["busy"]:
        time.sleep(0.01)
    answers = [ask(s, session, "Who was the king?") for _ in range(3)]
    assert shown(s, session)["busy"], "the turn runs on"
    assert [made(a) for a in answers] == [want] * 3 and {a["session"]["version"] for a in answers} == {1}
    connection.close()
    s.wait_metric("rodimus_requests_running", lambda n: n == 0)
    assert shown(s, session)["version"] == 1


def piece(number, words=220):
    draw = random.Random(number)
    return " ".join(draw.choice("the king fox went into forest and said that his youngest son had a golden bird".split()) for _ in range(words))


def test_soak_of_a_text_that_is_read_once_with_questions_beside_it(own_server, tmp_path):
    """The example of SESSIONS.md: the text goes on with the bits of one that nobody asked."""
    least_tok, n_questions = (100_000, 20) if LONG else (3_000, 8)
    s = own_server(*EXACT, "--slots", "6", "--state-dir", str(tmp_path / "states"))
    stream, twin, version, tokens = new_id(), new_id(), 0, 0
    answers, faults = {}, []

    def run(n):
        try:
            answers[n] = ask(s, stream, f"Question {n}: who was the king?", 12, temperature=0.8, seed=n)
        except BaseException as fault:
            faults.append((n, fault))

    threads, first_tok = [], 0
    while tokens < least_tok or len(threads) < n_questions:
        for session in (twin, stream):
            read = s.post(CHAT, {**question(piece(version, 1000 if LONG else 220), 0), "session_id": session, "session_create": version == 0})
            assert read.status == 200, read
        version, tokens = version + 1, read.json["usage"]["prompt_tokens"]
        first_tok = first_tok or tokens
        if tokens * n_questions > len(threads) * least_tok and len(threads) < n_questions:
            threads.append(threading.Thread(target=run, args=(len(threads),)))
            threads[-1].start()
    for t in threads:
        t.join()
    assert not faults, faults
    assert len(answers) == n_questions and all(a["session"]["id"] == stream and 1 <= a["session"]["version"] <= version for a in answers.values())
    before = state(s, stream)
    again = [threading.Thread(target=run, args=(n,)) for n in range(n_questions, 2 * n_questions)]
    for t in again:
        t.start()
    for t in again:
        t.join()
    assert not faults, faults
    assert state(s, stream) == before, "questions leave the exported session as it is"
    for n in range(3):
        more = {"temperature": 0.9, "seed": n, "logprobs": True, "session_id": None}
        told = [s.post(CHAT, {**question("And then?", 16), **more, "session_id": session}).json for session in (twin, stream)]
        assert told[0]["choices"] == told[1]["choices"], json.dumps(told)
        assert [told[0]["usage"][k] for k in SUMS] == [told[1]["usage"][k] for k in SUMS]
    a, b = state(s, twin), state(s, stream)
    n_state = shown(s, stream)["state_bytes"]
    assert n_state and a[-n_state:] == b[-n_state:], "the state at the end"
    assert shown(s, stream)["version"] == shown(s, twin)["version"] == version + 3
    read = s.metric("rodimus_prefill_tokens_total")
    asked = 2 * n_questions * 40
    assert read < 2 * (shown(s, stream)["tokens"]) + asked, f"{read} tokens were read: the text twice and the questions"
