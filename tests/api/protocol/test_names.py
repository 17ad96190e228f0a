"""Names of fields that other servers have: the table of server/CLIENTS.md against openapi.yaml and the server."""
import os
import re

import pytest

from server import ROOT
from test_document import properties
from test_routes import openapi  # noqa: F401 (a fixture)

ASK = {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def table():
    """What stands in the right column, by name."""
    with open(os.path.join(ROOT, "server/CLIENTS.md"), encoding="utf-8") as f:
        text = f.read().split("<!-- names -->\n")[1].split("<!-- end of names -->")[0]
    rows = [re.fullmatch(r"\| (.*) \| (.*) \|", line).groups() for line in text.splitlines()[2:]]
    return {name: here for names, here in rows for name in re.findall(r"`(\w+)`", names)}


def test_openapi_has_each_name(openapi, table):  # noqa: F811
    schemas = openapi["components"]["schemas"]
    fields = {**properties(openapi, schemas["CompletionRequest"]), **properties(openapi, schemas["ChatRequest"])}
    refused = {name for name, here in table.items() if here.startswith("400")}
    assert set(schemas["Sampling"]["x-refused"]) == refused
    assert not refused & set(fields)
    for name, here in table.items():
        if name in refused:
            continue
        assert name in fields, name
        other = re.fullmatch(r"`(.*)`", here)
        assert bool(other) == (here != "the same name"), here
        if other:
            assert fields[name]["description"].startswith(f"Another name of {other.group(1)}"), (name, here)
    named = {name for name, field in fields.items() if "Another name of" in field.get("description", "")}
    assert named == {name for name, here in table.items() if here.startswith("`")}


def test_each_refused_name_is_a_400_that_has_the_way_out(server, table):
    wrong, n = [], 0
    for name, here in table.items():
        if not here.startswith("400: "):
            continue
        n += 1
        for path, body in (("/v1/completions", ASK), ("/v1/chat/completions", CHAT)):
            answer = server.post(path, {**body, name: "x", "presence_penalty": 1})
            want = f"{name} is not available: {here[5:]}."
            if answer.status != 400 or answer.error["param"] != name or answer.error["message"] != want:
                wrong.append(f"{path} {name}: {answer!r}, not {want}")
    assert not wrong, "\n".join(wrong)
    assert n > 40


def test_a_request_with_every_refused_name_at_rest_is_answered(server, table):
    for nothing in (None, False, 0, "", [], {}):
        rest = {name: nothing for name, here in table.items() if here.startswith("400: ") and not (name in ("do_preprocess", "parse_tool_calls") and nothing is False)}
        answer = server.post("/v1/completions", {**ASK, **rest})
        assert answer.status == 200 and answer.json["choices"] == server.post("/v1/completions", ASK).json["choices"], (nothing, answer)


@pytest.mark.parametrize("theirs,ours", [
    ({"n_predict": 3}, {"max_tokens": 3}), ({"max_new_tokens": 3}, {"max_tokens": 3}), ({"min_new_tokens": 5}, {"min_tokens": 5}),
    ({"repeat_penalty": 2}, {"repetition_penalty": 2}), ({"random_seed": 11, "temperature": 2}, {"seed": 11, "temperature": 2}),
    ({"sampling_seed": 11, "temperature": 2}, {"seed": 11, "temperature": 2}), ({"stop_words": [" a"]}, {"stop": [" a"]}),
    ({"stop_words": [" a"], "no_stop_trim": True}, {"stop": [" a"], "include_stop_str_in_output": True}), ({"return_tokens": True}, {"return_token_ids": True}),
    ({"regex": "[xyz]{4}"}, {"structured_outputs": {"regex": "[xyz]{4}"}}), ({"ebnf": 'root ::= "kk" "l"'}, {"structured_outputs": {"grammar": 'root ::= "kk" "l"'}}),
    ({"grammar": 'root ::= "kk" "l"'}, {"structured_outputs": {"grammar": 'root ::= "kk" "l"'}}), ({"json_schema": {"const": 7}}, {"structured_outputs": {"json": {"const": 7}}}),
    ({"json_schema": '{"const": 7}'}, {"structured_outputs": {"json": {"const": 7}}}), ({"guided_json": {"const": 7}}, {"structured_outputs": {"json": {"const": 7}}}),
    ({"guided_regex": "[xyz]{4}"}, {"structured_outputs": {"regex": "[xyz]{4}"}}), ({"guided_choice": ["b", "c"]}, {"structured_outputs": {"choice": ["b", "c"]}}),
    ({"guided_grammar": 'root ::= "kk" "l"'}, {"structured_outputs": {"grammar": 'root ::= "kk" "l"'}}),
    ({"n_cmpl": 2, "temperature": 1, "seed": 4}, {"n": 2, "temperature": 1, "seed": 4}), ({"guided_json_object": True}, {"structured_outputs": {"json_object": True}})])
def test_another_name_has_the_same_answer(server, theirs, ours):
    base = {k: v for k, v in ASK.items() if not (k == "max_tokens" and {"n_predict", "max_new_tokens"} & set(theirs))}
    one = server.post("/v1/completions", {**base, **theirs})
    same = server.post("/v1/completions", {**base, **ours})
    plain = server.post("/v1/completions", ASK)
    assert one.status == same.status == 200, (one, same)
    assert one.json["choices"] == same.json["choices"]
    if "min_new_tokens" not in theirs:
        assert one.json["choices"] != plain.json["choices"]


def test_strings_that_spell_numbers_are_numbers(server):
    spelled = server.post("/v1/completions", {**ASK, "temperature": "0", "max_tokens": "3", "echo": "true", "logprobs": "1"})
    plain = server.post("/v1/completions", {**ASK, "temperature": 0, "max_tokens": 3, "echo": True, "logprobs": 1})
    assert spelled.status == 200 and spelled.json["choices"] == plain.json["choices"], (spelled, plain)


def test_what_the_client_of_lmdeploy_sends_by_itself_is_answered(server):
    """All arguments of its methods, with their defaults; it has no null for "no session"."""
    body = {"model": "tales", "temperature": 0.7, "top_p": 1.0, "n": 1, "max_tokens": 2, "stop": None, "stream": False, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "user": None, "repetition_penalty": 1.0, "session_id": -1, "ignore_eos": False, "kwargs": {}}
    chat = server.post("/v1/chat/completions", {**body, "messages": CHAT["messages"]})
    assert chat.status == 200 and "session" not in chat.json, chat
    text = server.post("/v1/completions", {**body, "prompt": "Once", "suffix": None, "top_k": 40})
    assert text.status == 200 and "session" not in text.json, text
    for other in (-2, 0, 7):
        assert server.post("/v1/completions", {**body, "prompt": "Once", "session_id": other}).error["param"] == "session_id", other
