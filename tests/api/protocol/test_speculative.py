"""Drafts change when tokens come, never which: each answer, with drafts of all kinds, is that of plain decoding to the byte."""
import json
import os
import random

import pytest

from server import MODEL, SANITIZER, Server, command

LEAST = 60 if os.environ.get("RODIMUS_TEST_FULL") else 15  # random requests, and as many more as it takes until enough drafts came
SEED = int(os.environ.get("RODIMUS_TEST_SEED", "20261123"))
TALE = ("Once upon a time there was a fox, and the fox had a house, and the house had a door, and the door had a key. " * 4).strip()
PLACE = {"type": "object", "properties": {"who": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}}, "required": ["who", "n"]}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look", "parameters": PLACE}}


def comparable(body):
    body = json.loads(json.dumps(body))
    for key in ("id", "created", "session"):
        body.pop(key, None)
    usage = body.get("usage") or {}
    usage.pop("completion_tokens_details", None)
    usage.pop("prompt_tokens_details", None)  # the prefix cache knows later ones
    for choice in body.get("choices", []):
        for call in (choice.get("message") or {}).get("tool_calls") or []:
            call["id"] = None
    return body


def details(body):
    d = (body.get("usage") or {}).get("completion_tokens_details", {})
    return d.get("accepted_prediction_tokens", 0), d.get("rejected_prediction_tokens", 0)


def random_request(r, chat):
    body = {"max_tokens": r.randrange(1, 60), "seed": r.randrange(1000), "temperature": r.choice([0, 0, 0.3, 1]), "logprobs": None}
    if chat:
        body["messages"] = [{"role": "user", "content": r.choice(["Tell me the tale again. " + TALE, "Hello."])}]
        body["logprobs"], body["top_logprobs"] = (True, 3) if r.random() < 0.3 else (None, None)
    else:
        body["prompt"] = r.choice([TALE, "The king said to the queen: the king said to the"])
        body["logprobs"] = r.choice([None, None, 2])
    some = {"top_p": 0.8, "top_k": 7, "min_p": 0.05, "frequency_penalty": 0.8, "presence_penalty": 0.4, "repetition_penalty": 1.2, "stop": [" the", "fox"],
            "min_tokens": min(7, body["max_tokens"]), "bad_words": ["house", "key"], "ignore_eos": True, "n": 2, "logit_bias": {"17": -3},
            "typical_p": 0.9, "include_stop_str_in_output": True}
    for name in r.sample(list(some), r.randrange(0, 4)):
        body[name] = some[name]
    kind = r.randrange(6)
    if kind == 0:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": PLACE}}
    elif kind == 1:
        body["structured_outputs"] = {"regex": "( the fox| a house| the door){1,12}"}
    elif kind == 2 and chat:
        body["tools"], body["tool_choice"] = [TOOL], r.choice(["auto", "required"])
    return {name: value for name, value in body.items() if value is not None}


def prediction_from(r, text):
    """The answer as it will be, with words changed, left out, or put in."""
    words = text.split(" ")
    for _ in range(r.randrange(0, 4)):
        at = r.randrange(len(words) + 1)
        words[at:at + 1] = r.choice([["other"], [], ["some", "more"]])
    return {"type": "content", "content": " ".join(words)}


@pytest.fixture(scope="module")
def drafting():
    """Reads each draft, whatever it costs: what this file holds does not depend on the machine."""
    server = Server(name="drafting", env={"RODIMUS_TEST_DRAFTS_PAY": "1"})
    yield server
    server.end() if SANITIZER else server.kill()


@pytest.mark.parametrize("source", ["flag --draft-model", "environment variable RODIMUS_DRAFT_MODEL"])
def test_a_draft_model_is_refused_as_removed(source):
    flags, more = (["--draft-model", MODEL], {}) if source.startswith("flag") else ([], {"RODIMUS_DRAFT_MODEL": MODEL})
    done = command("serve", "--port", 0, *flags, env={**os.environ, **more})
    assert (done.returncode, f"draft_model ({source}) was removed" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_drafts_change_no_answer(drafting, route):
    r = random.Random(SEED)
    accepted = rejected = 0
    for i in range(60):
        if i >= LEAST and accepted > 100 and rejected > 20:
            break
        body = random_request(r, route.startswith("chat"))
        plain = drafting.post(f"/v1/{route}", {**body, "speculative": "none"})
        assert plain.status == 200, (body, plain)
        assert details(plain.json) == (0, 0), plain.json
        first = plain.json["choices"][0]
        said = first.get("text") or (first.get("message") or {}).get("content") or TALE
        with_drafts = drafting.post(f"/v1/{route}", {**body, "prediction": prediction_from(r, said)})
        lookup = drafting.post(f"/v1/{route}", body)
        for got in (with_drafts, lookup):
            assert comparable(got.json) == comparable(plain.json), f"RODIMUS_TEST_SEED={SEED} request {i} {body}"
            accepted, rejected = accepted + details(got.json)[0], rejected + details(got.json)[1]
    assert accepted > 100 and rejected > 20, (accepted, rejected)


def test_a_stream_with_drafts_has_the_chunks_of_a_plain_one(drafting):
    body = {"prompt": TALE, "max_tokens": 40, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}

    def chunks(more):
        return [comparable(event.data) for event in drafting.events("/v1/completions", {**body, **more}) if event.data != "[DONE]"]

    plain = chunks({"speculative": "none"})
    text = "".join(chunk["choices"][0]["text"] for chunk in plain if chunk["choices"])
    assert chunks({"prediction": text}) == plain
    assert chunks({}) == plain


def test_a_session_goes_on_behind_drafts(drafting):
    said = {}
    for mode in ("none", "auto"):
        name = f"drafts-{mode}"
        said[mode] = []
        for turn in range(4):
            body = {"prompt": TALE if turn == 0 else " And then", "max_tokens": 17, "temperature": 0.2, "seed": 3, "session_id": name, "session_create": turn == 0,
                    "speculative": mode}
            if mode == "auto":
                body["prediction"] = said["none"][turn]
            answer = drafting.post("/v1/completions", body)
            assert answer.status == 200, answer
            said[mode].append(answer.json["choices"][0]["text"])
        drafting.ask("DELETE", f"/v1/sessions/{name}")
    assert said["auto"] == said["none"]


def turns_accepted(server, first, last):
    """A session reads a text, and in its last turn has to write what stands there; how many of its draft tokens came, and its answer."""
    name = "drafts-recall"
    forced = {"structured_outputs": {"regex": " Once upon a time there was a fox, and the fox had a house"}, "max_tokens": 90, "temperature": 0}
    for body in ({"prompt": first, "max_tokens": 0, "session_create": True}, {"prompt": " Again:", "max_tokens": 2, "temperature": 0, **last},
                 {"prompt": " Now: ", **forced}):
        answer = server.post("/v1/completions", {**body, "session_id": name})
        assert answer.status == 200, answer
    assert server.ask("DELETE", f"/v1/sessions/{name}").status == 200
    return details(answer.json)[0], answer.json["choices"][0]["text"]


@pytest.mark.parametrize("between", [{}, {"speculative": "none"}], ids=["drafted", "plain"])
def test_a_turn_drafts_from_what_its_session_read_before(drafting, between):
    known, text = turns_accepted(drafting, TALE, between)
    new, same = turns_accepted(drafting, "Hello.", between)
    assert text == same  # the grammar's
    assert known >= new + 5, (known, new)


def test_a_retry_has_the_counts_of_the_first_try(drafting):
    said = drafting.complete(TALE, 30, temperature=0)["choices"][0]["text"]
    body = {"prompt": TALE, "max_tokens": 30, "temperature": 0, "prediction": said + " and more", "session_id": "drafts-again", "session_create": True}
    first, again = (drafting.post("/v1/completions", body, headers={"Idempotency-Key": "drafts"}).json for _ in range(2))
    assert details(first)[0] > 0, first
    assert again == first
    drafting.ask("DELETE", "/v1/sessions/drafts-again")


def test_token_ids_are_a_prediction_of_a_completion(drafting):
    body = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0, "return_token_ids": True}
    plain = drafting.post("/v1/completions", {**body, "speculative": "none"}).json
    ids = plain["choices"][0]["token_ids"]
    got = drafting.post("/v1/completions", {**body, "prediction": ids}).json
    assert comparable(got) == comparable(plain)
    accepted, rejected = details(got)
    assert accepted >= 10 and rejected <= accepted, (accepted, rejected)


def test_metrics_and_the_log_count_drafts(drafting):
    def counted():
        return [drafting.metric(f'rodimus_draft_{what}{{kind="{kind}"}}') for what in ("tokens_total", "accepted_tokens_total") for kind in ("lookup", "prediction")]

    before = counted()
    answer = drafting.post("/v1/completions", {"prompt": TALE, "max_tokens": 40, "temperature": 0, "speculative": "auto"}).json
    after = counted()
    accepted, rejected = details(answer)
    assert accepted > 0, answer["usage"]
    assert [b - a for a, b in zip(before, after)] == [accepted + rejected, 0, accepted, 0]


@pytest.mark.parametrize("fields, param", [
    ({"speculative": "lookup"}, "speculative"),
    ({"speculative": True}, "speculative"),
    ({"prediction": 7}, "prediction"),
    ({"prediction": {"type": "audio", "content": "a"}}, "prediction"),
    ({"prediction": {"type": "content"}}, "prediction"),
    ({"prediction": {"type": "content", "content": 3}}, "prediction"),
    ({"prediction": {"type": "content", "content": [{"type": "image"}]}}, "prediction"),
    ({"prediction": [1, 10 ** 9]}, "prediction"),
    ({"prediction": ["a"]}, "prediction"),
])
def test_a_wrong_draft_field_is_refused_by_name(drafting, fields, param):
    answer = drafting.post("/v1/completions", {"prompt": "a", "max_tokens": 1, **fields})
    assert answer.status == 400 and answer.error["param"] == param, answer


def test_an_empty_prediction_asks_for_nothing(drafting):
    body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 5, "temperature": 0}
    plain = drafting.post("/v1/chat/completions", body).json
    for content in ("", []):
        got = drafting.post("/v1/chat/completions", {**body, "prediction": {"type": "content", "content": content}})
        assert got.status == 200 and comparable(got.json) == comparable(plain), got


def test_speculative_none_drafts_nothing(own_server):
    quiet = own_server("--speculative", "none")
    answer = quiet.complete(TALE, 40, prediction=TALE)
    assert details(answer) == (0, 0)
    assert quiet.metric('rodimus_draft_tokens_total{kind="lookup"}') == 0


def test_speculative_lookup_leaves_predictions_out(own_server):
    lookup = own_server("--speculative", "lookup", env={"RODIMUS_TEST_DRAFTS_PAY": "1"})
    lookup.complete(TALE, 40, prediction=TALE)
    assert lookup.metric('rodimus_draft_tokens_total{kind="lookup"}') > 0
    assert lookup.metric('rodimus_draft_tokens_total{kind="prediction"}') == 0
