"""Items of stored responses that a request names by their ids, and outputs behind a response, in the order of its calls."""
import itertools
import json

import pytest

from access import bearer, key_file
from test_responses import ASK, PATCH, PATH, SPACE, SURE, TOOLS, counted, said, user

KINDS = [*TOOLS, SPACE, PATCH]


def made(server, **more):
    answer = server.post(PATH, {**ASK, "tools": KINDS, "max_output_tokens": 200, **more})
    assert answer.status == 200, answer
    return answer.json


def calls(*names):
    """What makes the model call these tools, beside a text."""
    text = "Sure.\n" + "\n".join(f'<tool_call>\n{{"name": "{n}", "arguments": {{}}}}\n</tool_call>' for n in names)
    return {"structured_outputs": {"choice": [text]}, "seed": 3}


def reference(item, typed=True):
    return {**({"type": "item_reference"} if typed else {}), "id": item["id"]}


def output(item, text):
    kind = "custom_tool_call_output" if item["type"] == "custom_tool_call" else "function_call_output"
    return {"type": kind, "call_id": item["call_id"], "output": text}


def missing(answer, id_):
    assert answer.status == 404 and answer.error["param"] == "input" and answer.error["code"] is None, answer
    assert answer.error["type"] == "invalid_request_error" and answer.error["message"].startswith(f"Item with id '{id_[:128]}' not found."), answer


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("typed", [False, True])
def test_a_reference_is_the_item_itself(server, long, typed):
    """Of each kind: texts, calls of each kind, what the model has read, also through a reference."""
    pad = [{"type": "compaction", "encrypted_content": "a" * 17000}] if long else []
    ask = user("Look.")
    for tool, arguments in (("now", "{}"), ("zoo.look", '{"at": "fox"}'), ("apply_patch", '{"input": "a\\n"}')):
        first = made(server, input=[*pad, ask], **said(tool, arguments))
        items = first["output"]
        assert [i["type"] == "message" for i in items] == [True, False], items
        whole = [*pad, ask, *items, output(items[1], "red"), user("More.")]
        named = [*pad, ask, *(reference(i, typed) for i in items), output(items[1], "red"), user("More.")]
        for more in ({"store": False}, {}):
            want, got = (made(server, input=i, **more) for i in (whole, named))
            assert got["usage"]["input_tokens"] == want["usage"]["input_tokens"]
            assert [o["content"] for o in got["output"]] == [o["content"] for o in want["output"]]
        assert counted(server, tools=KINDS, input=named) == counted(server, tools=KINDS, input=whole)
        read = server.get(f"{PATH}/{got['id']}/input_items?order=asc").json["data"]
        assert [i["type"] for i in read] == [i.get("type", "message") for i in whole] and read[-3]["call_id"] == items[1]["call_id"], read
        again = made(server, input=[reference(i, typed) for i in read])
        assert again["usage"]["input_tokens"] == want["usage"]["input_tokens"]
        assert [o["content"] for o in again["output"]] == [o["content"] for o in want["output"]]


def test_a_reference_outlives_the_server_and_not_the_response(own_server, tmp_path):
    server = own_server("--state-dir", tmp_path)
    item = made(server)["output"][0]
    server.kill()
    server = own_server("--state-dir", tmp_path)
    ask = {**ASK, "input": [reference(item), user("More.")]}
    assert server.post(PATH, ask).status == 200
    assert server.ask("DELETE", f"{PATH}/resp_{item['id'].split('_')[1]}").status == 200
    missing(server.post(PATH, ask), item["id"])


def test_what_is_not_kept_is_not_found(server):
    first = made(server)
    number = first["id"].split("_")[1]
    loose = made(server, store=False)["output"][0]["id"]
    for id_ in (loose, "msg_1", "rs_68a1", "a", f"msg_{number}_1", f"fc_{number}", f"msg_{number}_in1", f"rs_{number}_in0", f"msg_{number}_", "_", "msg_", "msg_a/b_in0", "x" * 400, "\u00e9_\u00e9" * 9):
        for more in ({}, {"store": False}, {"previous_response_id": first["id"]}, {"stream": True}):
            missing(server.post(PATH, {**ASK, "input": [user("a"), {"type": "item_reference", "id": id_}], **more}), id_)
        missing(server.post(f"{PATH}/input_tokens", {"input": [{"id": id_}]}), id_)
    for id_ in (None, 7, "", "a\0b", ["a"]):
        answer = server.post(PATH, {**ASK, "input": [user("a"), {"type": "item_reference", "id": id_}]})
        assert answer.status == 400 and answer.error["param"] == "input[1].id", answer


def test_another_key_finds_no_item(own_server, tmp_path):
    server = own_server("--api-key-file", key_file(tmp_path, "first name=a\nsecond name=b\n"))
    ask = lambda key, items: server.post(PATH, {**ASK, "input": items}, headers=bearer(key))
    item = ask("first", "Tell me a tale.").json["output"][0]
    assert ask("first", [reference(item), user("More.")]).status == 200
    missing(ask("second", [reference(item), user("More.")]), item["id"])


def test_short_references_to_long_items_are_bounded(server):
    long = made(server, input=[{"type": "compaction", "encrypted_content": "a" * 900000}, user("a")], max_output_tokens=1)
    item = server.get(f"{PATH}/{long['id']}/input_items").json["data"][-1]
    answer = server.post(PATH, {**ASK, "input": [reference(item)] * 40})
    assert answer.status == 400 and answer.error["param"] == "input" and "bytes" in answer.error["message"], answer
    answers = [made(server, max_output_tokens=1)["output"][0] for _ in range(2)]
    answer = server.post(PATH, {**ASK, "input": [reference(i) for i in answers] * 1025})
    assert answer.status == 400 and answer.error["param"] == "input" and "2048 responses" in answer.error["message"], answer


# ---- outputs of the calls of the response before ----

@pytest.mark.parametrize("more", [{}, {"instructions": "Be brief."}])
def test_outputs_behind_a_response_stand_in_the_order_of_its_calls(server, more):
    """Beside one that names no call, which comes last."""
    first = made(server, **calls("now", "zoo.look", "now"))
    called = [i for i in first["output"] if i["type"] != "message"]
    assert len(called) == 3, first
    outputs = [*(output(c, t) for c, t in zip(called, ("A red fox.", "It is night.", "The sea."))), {"type": "function_call_output", "call_id": "x", "output": "Nobody."}]

    def told(outputs, last=()):
        answer = made(server, previous_response_id=first["id"], input=[*outputs, *last], max_output_tokens=40, **more)
        return json.dumps([o.get("content") for o in answer["output"]])

    want = told(outputs)
    for order in itertools.permutations(range(4)):
        assert told([outputs[i] for i in order]) == want, order
    unknown = [{**o, "call_id": "y"} for o in outputs]
    assert told(unknown) == want and told(unknown[::-1]) != want, "else this shows nothing"
    assert told(outputs[::-1], [user("More.")]) == told(outputs, [user("More.")])


def test_outputs_behind_a_session_of_turns_stand_as_they_were_sent(server):
    """What a chat's answer called is not kept by its calls; and who names no response is told so."""
    outputs = [{"type": "function_call_output", "call_id": c, "output": c} for c in "ab"]
    answer = server.post(PATH, {**ASK, "previous_response_id": "resp_unknown", "input": outputs})
    assert answer.status == 404 and answer.error["code"] == "previous_response_not_found", answer
    session = server.post("/v1/sessions", {}).json["id"]
    assert server.post("/v1/chat/completions", {"session_id": session, "messages": [user("Hm")], "max_tokens": 2}).status == 200
    assert server.post(PATH, {**ASK, "previous_response_id": session, "input": outputs}).status == 200
