"""The model that is served where none is named, through HTTP: its own cases, and that it calls tools by itself. What it can do else is measured by
config/models/recipe/measure.py."""
import json
import os

import pytest

from server import DEFAULT, ROOT, Server

CHAT = "/v1/chat/completions"
SEAT = {"type": "function", "function": {"name": "book_seat", "description": "Book a seat for the user.", "parameters": {
    "type": "object", "properties": {"person": {"type": "string"}, "day": {"type": "string"}}, "required": ["person", "day"]}}}
TICKET = {"type": "function", "function": {"name": "print_ticket", "description": "Print the ticket.", "parameters": {
    "type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}}}
WISH = {"role": "user", "content": "Please book a seat for Karwyn on Friday."}
RESULT = '{"number": 12, "price": 30}'
SAID = "The number is 12 and the price is 30."


@pytest.fixture(scope="module")
def default():
    server = Server(model=None, name="default-model")
    yield server
    assert server.stop() == 0


def cases_of(name):
    with open(os.path.join(ROOT, "config", "models", DEFAULT, f"{name}_cases.json"), encoding="utf-8") as f:
        return json.load(f)


@pytest.mark.parametrize("stream", [False, True])
def test_greedy_text_and_log_probabilities_are_the_references(default, stream):
    for case in cases_of("generation"):
        ask = {"prompt": case["prompt"], "max_tokens": len(case["greedy_ids"]), "temperature": 0, "logprobs": 5, "ignore_eos": True,
               "skip_special_tokens": False, "return_token_ids": True}
        if stream:
            choices = [c for event in default.events("/v1/completions", ask) if event.data != "[DONE]" for c in event.data["choices"]]
        else:
            choices = default.complete(**ask)["choices"]
        assert "".join(c["text"] for c in choices) == case["greedy_text"]
        assert [i for c in choices for i in c.get("token_ids") or []] == case["greedy_ids"]
        found = [p for c in choices if c["logprobs"] for p in c["logprobs"]["token_logprobs"]]
        assert found == pytest.approx(case["greedy_logprobs"], abs=2e-4)


def test_tokens_are_the_references(default):
    for case in cases_of("tokenizer"):
        assert default.post("/tokenize", {"prompt": case["text"]}).json["tokens"] == case["ids"], case["text"]
        assert default.post("/detokenize", {"tokens": case["ids"]}).json["prompt"] == case["decoded"]


def test_it_calls_the_right_tool_by_itself_and_says_its_result(default):
    ask = {"tools": [TICKET, SEAT], "temperature": 0, "max_tokens": 80}
    answer = default.post(CHAT, {**ask, "messages": [WISH]}).json["choices"][0]
    call, = answer["message"]["tool_calls"]
    assert (answer["finish_reason"], call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "tool_calls", "book_seat", {"person": "Karwyn", "day": "Friday"})
    history = [WISH, answer["message"], {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]
    said = default.post(CHAT, {**ask, "messages": history}).json["choices"][0]
    assert (said["finish_reason"], said["message"]["content"]) == ("stop", SAID)


def test_in_a_session_tools_and_wish_are_read_once(default):
    ask = {"session_id": "seat", "session_create": True, "temperature": 0, "max_tokens": 80}
    first = default.post(CHAT, {**ask, "messages": [WISH], "tools": [TICKET, SEAT]}).json
    call, = first["choices"][0]["message"]["tool_calls"]
    answer = default.post(CHAT, {**ask, "messages": [{"role": "tool", "tool_call_id": call["id"], "content": RESULT}]}).json
    assert answer["choices"][0]["message"]["content"] == SAID
    assert answer["usage"]["prompt_tokens"] - answer["usage"]["prompt_tokens_details"]["cached_tokens"] < 60 < first["usage"]["prompt_tokens"]
