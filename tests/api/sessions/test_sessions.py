"""Sessions: a turn brings only what is new and reads nothing again; versions, retries, forks, one turn at a time."""
import json
import random
import re
import shutil
import threading
import time

import openai
import pytest

from server import MODEL, SLOWER, read_events
from talk import CHAT, COMPLETIONS, TEXTS, Talk, chat, ids_of, made, new_id, turn, undisturbed

# ---- turns ----

def test_a_turn_reads_only_what_is_new(server):
    talk, n_said = Talk(server), 0
    for version, text in enumerate(TEXTS, 1):
        n_new = len(ids_of(server, text))
        want = undisturbed(server, [*talk.said, ids_of(server, text)])
        before = server.metric("rodimus_prefill_tokens_total")
        answer = turn(server, talk.id, text, session_create=version == 1)
        read = server.metric("rodimus_prefill_tokens_total") - before
        assert made(answer) == want
        assert answer["session"] == {"id": talk.id, "version": version}
        usage = answer["usage"]
        assert usage["prompt_tokens"] == n_said + n_new and usage["completion_tokens"] == 6
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert n_said - 1 <= cached <= n_said, "all but perhaps the last one of the earlier tokens are cached"
        assert n_new <= read <= n_new + 1, f"{read} tokens were read for {n_new} new ones"
        talk.said += [ids_of(server, text), want]
        n_said += n_new + 6


def test_a_chat_brings_its_new_message_alone(server):
    session, said = new_id(), []
    for i, content in enumerate(["Tell me a tale about a fox.", "And then?", "Who was the king?"]):
        answer = chat(server, session, content, session_create=True)
        said += [answer["prompt_token_ids"], made(answer)]
        whole = [x for part in said[:-1] for x in part]
        assert made(answer) == undisturbed(server, [whole]), i
        assert answer["usage"]["prompt_tokens"] == len(whole)
        assert answer["session"]["version"] == i + 1


def test_a_stream_ends_with_the_session(server):
    for path, body in ((COMPLETIONS, {"prompt": TEXTS[0]}), (CHAT, {"messages": [{"role": "user", "content": "Hi"}]})):
        session, twin = new_id(), new_id()
        body = {**body, "max_tokens": 5, "temperature": 0, "session_create": True}
        whole = server.post(path, {**body, "session_id": twin}).json
        events = server.events(path, {**body, "session_id": session, "stream_options": {"include_usage": True}})
        chunks = [e.data for e in events if e.data != "[DONE]"]
        texts = "".join(c["choices"][0].get("text") or c["choices"][0].get("delta", {}).get("content") or "" for c in chunks if c["choices"])
        choice = whole["choices"][0]
        assert texts == (choice["text"] if "text" in choice else choice["message"]["content"])
        assert [c.get("session") for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]] == \
            [{"id": session, "version": 1}]
        assert all("session" not in c for c in chunks if c["choices"] and not c["choices"][0]["finish_reason"])
        assert chunks[-1]["usage"] == whole["usage"]


def test_the_openai_package_speaks_with_sessions(client):
    session = new_id()
    first = client.chat.completions.create(model="tales", messages=[{"role": "user", "content": "Hi"}], max_tokens=4,
                                           extra_body={"session_id": session, "session_create": True})
    assert first.session == {"id": session, "version": 1}
    second = client.chat.completions.create(model="tales", messages=[{"role": "user", "content": "More"}], max_tokens=4,
                                            extra_headers={"X-Session-Id": session}, extra_body={"session_id": session, "expected_version": 1})
    assert second.session == {"id": session, "version": 2}
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1
    with pytest.raises(openai.NotFoundError) as e:
        client.completions.create(model="tales", prompt="a", extra_body={"session_id": new_id()})
    assert e.value.param == "session_id" and e.value.code == "not_found"
    with pytest.raises(openai.APIStatusError) as e:
        client.completions.create(model="tales", prompt="a", extra_body={"session_id": session, "expected_version": 1})
    assert e.value.status_code == 412 and e.value.code == "version_mismatch" and e.value.param == "expected_version"


def test_the_body_names_the_session_and_the_header_beside_it_leads_there(server, own_server):
    session = new_id()
    turn(server, session, TEXTS[0], headers={"X-Session-Id": session}, session_create=True)
    both = turn(server, session, TEXTS[1], headers={"X-Session-Id": session})
    assert both["session"]["version"] == 2
    answer = server.post(COMPLETIONS, {"prompt": "a", "session_id": session}, headers={"X-Session-Id": session + "x"})
    assert answer.status == 400 and answer.error["param"] == "session_id", answer
    other = own_server("--session-header", "X-Chat")
    answer = other.post(COMPLETIONS, {"prompt": "a", "session_id": session, "session_create": True}, headers={"X-Chat": session + "x", "X-Session-Id": session})
    assert answer.status == 400 and answer.error["param"] == "session_id" and "X-Chat" in answer.error["message"], answer


def test_what_does_not_go_with_a_session_is_named(server):
    session = new_id()
    base = {"prompt": "a", "max_tokens": 1, "session_id": session, "session_create": True}
    rows = [({"n": 2}, "n"), ({"prompt": ["a", "b"]}, "prompt"), ({"suffix": "x"}, "suffix"), ({"prompt_logprobs": 1}, "prompt_logprobs"),
            ({"echo": True, "logprobs": 1}, "logprobs"), ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
            ({"session_id": None}, "session_create"), ({"session_id": None, "session_create": None, "expected_version": 0}, "expected_version"),
            ({"session_id": ""}, "session_id"), ({"session_id": "a/b"}, "session_id"), ({"session_id": "x" * 129}, "session_id"),
            ({"expected_version": -1}, "expected_version"), ({"session_create": "yes"}, "session_create"), ({"cache_salt": 1}, "cache_salt"),
            ({"cache_salt": "x" * 257}, "cache_salt")]
    for stream in (False, True):
        for add, param in rows:
            answer = server.post(COMPLETIONS, {**base, **add, "stream": stream})
            assert answer.status == 400 and answer.error["param"] == param and param in answer.error["message"], (add, answer)
    assert server.get(f"/v1/sessions/{session}").status == 404, "a refused turn makes no session"
    answer = server.post(CHAT, {"messages": [{"role": "user", "content": "Hi"}], "n": 2, "session_id": session, "session_create": True})
    assert answer.status == 400 and answer.error["param"] == "n"


def test_versions(server):
    session = new_id()
    assert server.post(COMPLETIONS, {"prompt": "a", "session_id": session, "max_tokens": 1}).status == 404
    assert turn(server, session, TEXTS[0], session_create=True, expected_version=0)["session"]["version"] == 1
    for stream in (False, True):
        for wrong in (0, 2, 2**62):
            answer = server.post(COMPLETIONS, {"prompt": "a", "session_id": session, "expected_version": wrong, "max_tokens": 1, "stream": stream})
            assert answer.status == 412 and answer.error["code"] == "version_mismatch" and answer.error["param"] == "expected_version"
    assert turn(server, session, TEXTS[1], expected_version=1)["session"]["version"] == 2
    assert server.get(f"/v1/sessions/{session}").json["version"] == 2


def test_a_turn_that_is_left_changes_nothing(server):
    talk = Talk(server)
    talk.go(TEXTS[0])
    connection, response = server.open("POST", COMPLETIONS, {"prompt": TEXTS[1], "session_id": talk.id, "max_tokens": 10**6,
                                                            "ignore_eos": True, "stream": True})
    assert response.read1(100)
    connection.close()
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)
    assert talk.go(TEXTS[1])["session"]["version"] == 2
    # Nor does one that fails when it has begun: no token is left to choose.
    word = ids_of(server, "a")
    assert len(word) == 1
    answer = server.post(COMPLETIONS, {"prompt": TEXTS[2], "session_id": talk.id, "allowed_token_ids": word, "bad_words": ["a"]})
    assert answer.status == 400, answer
    assert talk.go(TEXTS[2])["session"]["version"] == 3


def test_a_chat_of_no_tokens_is_read_and_many_go_on_from_it(server):
    """A system prompt paid once."""
    system = [{"role": "system", "content": "You are an old bard who tells tales of foxes and kings. " * 8}]
    ask = [{"role": "user", "content": "Sing."}]
    bard, more = new_id(), {"temperature": 0, "return_token_ids": True, "max_tokens": 6, "ignore_eos": True}
    assert server.post("/v1/sessions", {"id": bard, "pin": True}).status == 200
    read = server.post(CHAT, {"messages": system, "max_tokens": 0, "session_id": bard})
    assert read.status == 200 and read.json["usage"]["completion_tokens"] == 0, read
    assert read.json["choices"][0]["message"]["content"] == ""
    want = made(server.post(CHAT, {"messages": system + ask, **more}).json)
    for _ in range(3):
        one = server.post("/v1/sessions", {"from": bard}).json
        assert (one["version"], one["parent"]) == (1, bard)
        got = server.post(CHAT, {"messages": ask, "session_id": one["id"], **more}).json
        assert made(got) == want
        assert got["usage"]["prompt_tokens_details"]["cached_tokens"] >= read.json["usage"]["prompt_tokens"] - 1
    answer = server.post(CHAT, {"messages": ask, "max_tokens": 0})
    assert answer.status == 400 and answer.error["param"] == "max_tokens"


@pytest.mark.parametrize("how", [{"structured_outputs": {"choice": ["yes, my king", "no, my fox"]}}, {"stop": " king"}, {"stop_token_ids": [264, 265, 266, 267]},
                                 {"temperature": 1, "seed": 5, "repetition_penalty": 1.2, "frequency_penalty": 0.5}, {"n": 1, "logprobs": 2},
                                 {"max_tokens": 0}, {"bad_words": ["the"], "logit_bias": {"300": 3}}], ids=lambda h: next(iter(h)))
def test_the_next_turn_goes_on_from_what_was_read(server, how):
    """However a turn ended: the state has read each counted token, a matched stop string too, and not the end token."""
    session, first = new_id(), ids_of(server, "There was once a")
    for stream in (False, True):
        body = {"prompt": first, "max_tokens": 30, "temperature": 0, "return_token_ids": True, "session_create": True, **how,
                "session_id": f"{session}-{stream}"}
        if stream:
            chunks = [e.data for e in server.events(COMPLETIONS, body)][:-1]
            said = [i for c in chunks for i in c["choices"][0].get("token_ids", [])]
        else:
            answer = server.post(COMPLETIONS, body)
            assert answer.status == 200, answer
            said = made(answer.json)
            assert len(said) == answer.json["usage"]["completion_tokens"]
        more = ids_of(server, " Then the fox")
        answer = turn(server, f"{session}-{stream}", more)
        assert made(answer) == undisturbed(server, [first, said, more])
        assert answer["usage"]["prompt_tokens"] == len(first) + len(said) + len(more)


def test_a_format_that_frames_chats_frames_turns(own_server, tmp_path):
    """Something stands before the first message, and something closes each answer: a session reads each of them once."""
    model = tmp_path / "framed"
    shutil.copytree(MODEL, model)
    table = {"begin": "<|startoftext|>", "generation_prompt": "<role>ASSISTANT",
             "roles": {r: {"prefix": f"<role>{r.upper()}", "suffix": "</role>"} for r in ("system", "user", "assistant")}}
    (model / "chat_template.rodimus.json").write_text(json.dumps(table))
    s = own_server("--model", model, "--model-name", "tales")
    begin, close = ids_of(s, "<|startoftext|>"), ids_of(s, "</role>")
    assert len(begin) == len(close) == 1
    session, whole = new_id(), list(begin)
    assert s.post(CHAT, {"messages": [{"role": "system", "content": "Sing."}], "max_tokens": 0, "session_id": session,
                         "session_create": True}).status == 200
    whole += ids_of(s, "<role>SYSTEMSing.</role>")
    for i, content in enumerate(["Hi", "More", "And then?"]):
        whole += (close if i else []) + ids_of(s, f"<role>USER{content}</role><role>ASSISTANT")
        answer = chat(s, session, content)
        assert made(answer) == undisturbed(s, [whole]), i
        whole += made(answer)
        assert answer["usage"]["prompt_tokens"] == len(whole) - 6
    # A fork of an open answer closes it too; a completion goes on inside of it.
    for path, body, more in ((CHAT, {"messages": [{"role": "user", "content": "Hm"}]}, close + ids_of(s, "<role>USERHm</role><role>ASSISTANT")),
                             (COMPLETIONS, {"prompt": " and"}, ids_of(s, " and"))):
        fork = s.ask("POST", f"/v1/sessions/{session}/fork", "").json["id"]
        got = s.post(path, {**body, "session_id": fork, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True})
        assert made(got.json) == undisturbed(s, [whole, more]), path


# ---- retries ----

@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_repeated_turn_gets_the_same_answer_and_runs_once(server, stream):
    session = new_id()
    body = {"prompt": TEXTS[0], "max_tokens": 8, "session_id": session, "session_create": True, "stream": stream, "logprobs": 2}

    def ask(b, key="k-1"):
        connection, response = server.open("POST", COMPLETIONS, b, {"Idempotency-Key": key})
        try:
            if response.status != 200 or not stream:
                return response.status, json.loads(response.read())
            chunks = [e.data for e in read_events(response)][:-1]
            last = [c for c in chunks if c["choices"][0]["finish_reason"]][0]
            return 200, {"choices": [{"text": "".join(c["choices"][0]["text"] for c in chunks)}], "session": last["session"]}
        finally:
            connection.close()

    status, first = ask(body)
    assert status == 200, first
    before = server.metrics()
    for _ in range(2):
        status, again = ask(body)
        assert status == 200 and again["session"] == first["session"] == {"id": session, "version": 1}
        assert again["choices"] == first["choices"] and again.get("usage") == first.get("usage")
    after = server.metrics()
    assert after["rodimus_steps_total"] == before["rodimus_steps_total"], "nothing runs"
    assert after["rodimus_idempotent_replays_total"] == before["rodimus_idempotent_replays_total"] + 2
    status, other = ask({**body, "max_tokens": 9})
    assert status == 400 and other["error"]["param"] == "Idempotency-Key", other
    status, second = ask({**body, "max_tokens": 9}, key="k-2")
    assert status == 200 and second["session"]["version"] == 2
    assert ask(body)[1]["session"]["version"] == 1, "an older turn's answer is still its answer"


KINDS = [(COMPLETIONS, {"prompt": TEXTS[0], "logprobs": 2, "return_token_ids": True, "stop": " the"}),
         (CHAT, {"messages": [{"role": "user", "content": "Hm"}], "logprobs": True, "top_logprobs": 3}),
         ("/v1/responses", {"input": "Hm"})]


@pytest.mark.parametrize("path, more", KINDS, ids=["completion", "chat", "response"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_repeated_turn_gets_every_byte_of_the_first_answer(own_server, tmp_path, path, more, stream):
    """Id, time, model and usage too; after a restart under another name, and when the clock has gone on."""
    response, session, key = path == "/v1/responses", new_id(), {"Idempotency-Key": "k"}
    body = {**more, "stream": stream, "temperature": 1, "max_output_tokens" if response else "max_tokens": 8}
    if not response:
        body |= {"session_id": session, "session_create": True}
        if stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    first_server = own_server("--state-dir", tmp_path / "states", "--model-name", "one of \"two\"")
    first = first_server.post(path, body, headers={**key, "X-Request-Id": "first-one"})
    assert first.status == 200 and b"one of" in first.body and (response or b"-first-one" in first.body), first
    time.sleep(1.1)
    again = first_server.post(path, body, headers={**key, "X-Request-Id": "second-one"})
    assert again.header("X-Request-Id") == "second-one", "it names the HTTP request"
    assert again.body == first.body, (again.body[:400], first.body[:400])
    first_server.kill()
    second_server = own_server("--state-dir", tmp_path / "states", "--model-name", "another")
    again = second_server.post(path, body, headers=key)
    assert again.body == first.body, (again.body[:400], first.body[:400])
    other = second_server.post(path, body, headers={"Idempotency-Key": "k2"})
    assert other.status == 200 and b'"another"' in other.body and b'one of \\"two' not in other.body, other


def test_responses_that_are_not_stored_have_ids_of_their_own(server):
    body = {"input": "Hm", "max_output_tokens": 2, "store": False}
    one, two = (server.post("/v1/responses", body, headers={"Idempotency-Key": "not-stored"}).json["id"] for _ in range(2))
    assert one != two, "two answers of one id"


def test_an_idempotency_key_has_bounds(server):
    for bad in ("", "x" * 256, "a\tb"):
        answer = server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1, "session_id": new_id(), "session_create": True},
                             headers={"Idempotency-Key": bad})
        assert answer.status == 400 and answer.error["param"] == "Idempotency-Key", (bad, answer)
    assert server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1}, headers={"Idempotency-Key": "k"}).status == 200


@pytest.mark.parametrize("path, more", KINDS, ids=["completion", "chat", "response"])
def test_a_key_in_the_body_is_the_header_for_routers_that_keep_headers_from_the_server(server, path, more):
    key = new_id()
    body = {**more, "idempotency_key": key, **({} if path == "/v1/responses" else {"session_id": new_id(), "session_create": True, "max_tokens": 4})}
    first = server.post(path, body)
    assert first.status == 200, first
    for headers in ({}, {"Idempotency-Key": key}):
        assert server.post(path, body, headers=headers).body == first.body, headers
    other = server.post(path, body, headers={"Idempotency-Key": "x"})
    assert other.status == 400 and other.error["param"] == "idempotency_key" and "'x'" in other.error["message"], other
    for bad in ("", "x" * 256, "a\tb", "a\0b"):
        answer = server.post(path, {**body, "idempotency_key": bad})
        assert answer.status == 400 and answer.error["param"] == "idempotency_key", (bad, answer)


def test_a_key_in_the_body_of_a_question_says_nothing(server):
    session = new_id()
    server.post("/v1/sessions", {"id": session})
    ask = lambda text: server.post(f"/v1/sessions/{session}/ask", {"messages": [{"role": "user", "content": text}], "max_tokens": 2, "idempotency_key": "k"})
    assert [ask(text).status for text in ("Who?", "Where?")] == [200, 200]


# ---- one turn at a time ----

def running_turn(server, session):
    connection, response = server.open("POST", COMPLETIONS, {"prompt": TEXTS[0], "session_id": session, "session_create": True,
                                                            "max_tokens": 400, "ignore_eos": True, "stream": True})
    assert response.status == 200 and response.read1(100)
    return connection, response


def test_turns_wait_in_their_order(server):
    session, answers = new_id(), []
    connection, response = running_turn(server, session)
    assert server.get(f"/v1/sessions/{session}").status in (200, 404)
    threads = []
    for i in range(3):
        threads.append(threading.Thread(target=lambda i=i: answers.append((i, turn(server, session, TEXTS[1], 2)["session"]["version"]))))
        threads[-1].start()
        time.sleep(0.05)
    response.read()
    connection.close()
    for t in threads:
        t.join(30)
    assert sorted(answers) == [(0, 2), (1, 3), (2, 4)]


def test_a_busy_session_may_be_refused(own_server):
    s = own_server("--session-busy", "reject")
    session = new_id()
    connection, response = running_turn(s, session)
    for stream in (False, True):
        answer = s.post(COMPLETIONS, {"prompt": "a", "session_id": session, "session_create": True, "max_tokens": 1, "stream": stream})
        assert answer.status == 429 and answer.error["code"] == "session_busy" and answer.header("Retry-After"), answer
    response.read()
    connection.close()
    assert turn(s, session, TEXTS[1])["session"]["version"] == 2


def at_once(calls):
    """What the calls return, each on a thread of its own."""
    got = [None] * len(calls)

    def run(i):
        try:
            got[i] = calls[i]()
        except Exception as e:  # the thread's fault is the test's
            got[i] = e
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    for one in got:
        if isinstance(one, Exception):
            raise one
    return got


def test_a_retry_beside_the_first_try_runs_once(server):
    session = new_id()
    body = {"prompt": TEXTS[0], "max_tokens": 100, "ignore_eos": True, "session_id": session, "session_create": True}
    answers = at_once([lambda: server.post(COMPLETIONS, body, headers={"Idempotency-Key": "k"})] * 4)
    assert {a.status for a in answers} == {200}, answers
    assert len({json.dumps((a.json["choices"], a.json["session"], a.json["usage"])) for a in answers}) == 1
    assert server.get(f"/v1/sessions/{session}").json["version"] == 1


def test_of_turns_for_one_version_one_wins(server):
    session = new_id()
    turn(server, session, TEXTS[0], session_create=True)
    answers = at_once([lambda i=i: server.post(COMPLETIONS, {"prompt": TEXTS[1], "max_tokens": i + 1, "session_id": session, "expected_version": 1})
                       for i in range(5)])
    assert sorted(a.status for a in answers) == [200, 412, 412, 412, 412], answers
    assert server.get(f"/v1/sessions/{session}").json["version"] == 2


def test_many_sessions_take_turns_in_few_slots(durable):
    """40 sessions, 3 slots, host memory for some six states: they go to files and come back, and each is what it would be alone."""
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    s = durable("--slots", 3, "--state-host-bytes", 12 << 20, "--prefix-cache-bytes", 0)
    talks = [{"id": new_id(), "said": []} for _ in range(40)]
    plan = [dice.sample(talks, len(talks)) for _ in range(3)]
    texts = [ids_of(s, t) for t in TEXTS]

    def go(talk, text, n):
        a = turn(s, talk["id"], text, n, session_create=True)
        talk["said"] += [text, made(a)]
        assert a["session"]["version"] == len(talk["said"]) // 2

    for order in plan:
        work = [(talk, dice.choice(texts) * dice.randint(1, 8), dice.randint(1, 9)) for talk in order]
        while work:
            batch, work = work[:8], work[8:]
            at_once([lambda w=w: go(*w) for w in batch])
    loads = s.metric("rodimus_state_loads_total")
    assert loads > 40, f"{loads} states were read back: this test wants to see them move"
    assert s.metric("rodimus_state_host_bytes") <= 12 << 20
    for talk in talks:
        *before, last = talk["said"]
        got = undisturbed(s, before, len(last))
        assert got == last, f"seed {seed}: {talk['id']} said {last}, alone {got}"


# ---- the routes of sessions ----

def test_a_session_is_made_shown_listed_and_removed(server):
    session = new_id()
    one = server.post("/v1/sessions", {"id": session, "ttl_s": 600}).json
    assert one["id"] == session and one["version"] == 0 and one["tokens"] == 0 and one["object"] == "session"
    assert one["expires_at"] - one["created_at"] == 600 and one["pinned"] is False
    assert server.get(f"/v1/sessions/{session}").json == one
    turn(server, session, TEXTS[0])
    two = server.get(f"/v1/sessions/{session}").json
    assert two["version"] == 1 and two["tokens"] >= 10 and two["state_bytes"] > 1000 and two["tier"] in ("host", "file")
    assert session in [x["id"] for x in server.get("/v1/sessions?limit=1000").json["data"]]
    gone = server.ask("DELETE", f"/v1/sessions/{session}")
    assert gone.status == 200 and gone.json == {"object": "session", "id": session, "deleted": True}
    for method in ("GET", "DELETE"):
        answer = server.ask(method, f"/v1/sessions/{session}")
        assert answer.status == 404 and answer.error["code"] == "not_found", answer
    assert server.post(COMPLETIONS, {"prompt": "a", "session_id": session}).status == 404


def test_sessions_without_a_name_get_one(server):
    for body in (None, "", {}, {"id": None}):
        answer = server.ask("POST", "/v1/sessions", body)
        assert answer.status == 200 and re.fullmatch(r"[A-Za-z0-9._-]{1,128}", answer.json["id"]), (body, answer)
        assert answer.json["expires_at"] - answer.json["created_at"] == 86400, "session_ttl_s"
        server.ask("DELETE", f"/v1/sessions/{answer.json['id']}")
    pinned = server.post("/v1/sessions", {"pin": True, "ttl_s": 0}).json
    assert pinned["pinned"] is True and pinned["expires_at"] is None
    server.ask("DELETE", f"/v1/sessions/{pinned['id']}")


def test_the_list_has_pages(own_server):
    s = own_server()
    names = sorted(f"p-{i:03}" for i in range(25))
    for name in reversed(names):
        assert s.post("/v1/sessions", {"id": name}).status == 200
    got, after = [], ""
    while True:
        page = s.get(f"/v1/sessions?limit=10{after}").json
        got += [x["id"] for x in page["data"]]
        assert page["first_id"] == page["data"][0]["id"] and page["last_id"] == page["data"][-1]["id"]
        if not page["has_more"]:
            break
        after = "&after=" + page["last_id"]
    assert got == names
    for query in ("limit=0", "limit=1001", "limit=x", "limit=-1", "after=a/b", "after="):
        answer = s.get("/v1/sessions?" + query)
        assert answer.status == 400 and answer.error["param"] == query.split("=")[0], (query, answer)
    empty = own_server().get("/v1/sessions").json
    assert (empty["data"], empty["has_more"], empty["first_id"], empty["last_id"]) == ([], False, None, None)


def test_what_is_wrong_with_a_new_session_is_named(server):
    session = server.post("/v1/sessions", {"id": new_id()}).json["id"]
    rows = [({"id": "a/b"}, 400, "id"), ({"id": 7}, 400, "id"), ({"from": "a b"}, 400, "from"), ({"from": new_id()}, 404, "from"),
            ({"ttl_s": -1}, 400, "ttl_s"), ({"ttl_s": 1.5}, 400, "ttl_s"), ({"pin": 1}, 400, "pin"), ({"id": session}, 412, "id"),
            ({"ttl_s": 2**63}, 400, "ttl_s")]
    for body, status, param in rows:
        answer = server.post("/v1/sessions", body)
        assert answer.status == status and answer.error["param"] == param, (body, answer)
    assert server.post("/v1/sessions", {"id": session}).error["code"] == "session_exists"
    for path in ("/fork", ""):
        answer = server.ask("POST" if path else "GET", f"/v1/sessions/{new_id()}{path}", {} if path else None)
        assert answer.status == 404 and answer.error["code"] == "not_found", answer
    for method, path in (("GET", "/v1/sessions/a%20b"), ("DELETE", "/v1/sessions/" + "x" * 129), ("POST", "/v1/sessions/%C3%A4/fork")):
        answer = server.ask(method, path, {} if method == "POST" else None)
        assert answer.status == 400 and answer.error["param"] == "id", answer
    for path, body, param in (("/v1/sessions/nobody/fork", {}, None), ("/v1/sessions", {"from": "nobody"}, "from")):
        answer = server.post(path, body)
        assert answer.status == 404 and answer.error["param"] == param, (path, answer)  # a fork has no field "from"
    answer = server.post(f"/v1/sessions/{session}/fork", {"id": session})
    assert answer.status == 412 and answer.error["code"] == "session_exists"
    for method, path, allow in (("PUT", "/v1/sessions", "GET, HEAD, POST"), ("POST", f"/v1/sessions/{session}", "GET, HEAD, PATCH, DELETE"),
                                ("GET", f"/v1/sessions/{session}/fork", "POST"), ("POST", f"/v1/sessions/{session}/state", "GET, HEAD, PUT")):
        answer = server.ask(method, path, {} if method != "GET" else None)
        assert answer.status == 405 and sorted(answer.header("Allow").split(", ")) == sorted(allow.split(", ")), answer
    assert server.get(f"/v1/sessions/{session}/x").status == 404


def test_forks_do_not_see_each_other(server):
    talk = Talk(server)
    talk.go(TEXTS[0])
    fork = server.post(f"/v1/sessions/{talk.id}/fork", {"id": new_id()}).json
    assert (fork["version"], fork["parent"]) == (1, talk.id)
    other = Talk(server, fork["id"], talk.said)
    other.first = {}
    assert other.go(TEXTS[2])["session"]["version"] == 2
    assert talk.go(TEXTS[1])["session"]["version"] == 2
    third = Talk(server, server.ask("POST", f"/v1/sessions/{talk.id}/fork", "").json["id"], talk.said)
    third.first = {}
    assert server.ask("DELETE", f"/v1/sessions/{talk.id}").status == 200
    third.go(TEXTS[2])
    other.go(TEXTS[1])


def test_a_session_ends_with_its_time(server):
    """The time is set behind the turn, which a busy machine may take seconds for."""
    session, pinned = (server.post("/v1/sessions", {"id": new_id(), **more}).json["id"] for more in ({}, {"ttl_s": 1, "pin": True}))
    turn(server, session, TEXTS[0])
    assert server.ask("PATCH", f"/v1/sessions/{session}", {"ttl_s": 1}).status == 200
    end = time.monotonic() + 20 * SLOWER
    while (seen := server.get(f"/v1/sessions/{session}").status) != 404:
        assert time.monotonic() < end, seen
        time.sleep(0.1)
    assert server.post(COMPLETIONS, {"prompt": "a", "session_id": session}).status == 404
    assert server.get(f"/v1/sessions/{pinned}").status == 200


def test_a_session_that_others_begin_from_is_in_use(server):
    base = server.post("/v1/sessions", {"id": new_id(), "ttl_s": 2 * SLOWER}).json["id"]
    server.complete(session_id=base)
    end = time.monotonic() + 4 * SLOWER
    while time.monotonic() < end:
        answer = server.post("/v1/sessions", {"from": base})
        assert answer.status == 200, answer
        time.sleep(0.5)
