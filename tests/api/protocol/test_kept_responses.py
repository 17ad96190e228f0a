"""Stored responses that are fetched again, whole and by the items of their input: as long as their sessions, for their keys."""
import json
import uuid

import openai as sdk
import pydantic
import pytest
from openai.types.responses import Response, ResponseItemList

from access import bearer, key_file
from server import SLOWER
from test_responses import ASK, CALLING, PATH, SURE, TOOLS, call, create, user
from test_routes import complaints, openapi  # noqa: F401 (openapi is a fixture)

SHORT = {**ASK, "max_output_tokens": 2}


def get(server, id_, tail="", **more):
    return server.get(f"{PATH}/{id_}{tail}", **more)


def made(server, **more):
    answer = server.post(PATH, {**SHORT, **more})
    assert answer.status == 200, answer
    return answer.json


def not_kept(answer, why):
    assert answer.status == 404 and answer.error["code"] == "response_not_stored" and why in answer.error["message"], answer


def no_session(answer):
    assert answer.status == 404 and answer.error["code"] == "not_found" and answer.error["type"] == "invalid_request_error", answer


# ---- the answer ----

KINDS = {
    "text": {"metadata": {"a": "b\n\"\u00e9\U0001f98a\0"}, "instructions": "Be a bard.\n", "temperature": 0.7, "top_p": 0.9, "user": "me"},
    "whole": {"max_output_tokens": 300, "stop": "."},
    "format": {"max_output_tokens": 40, "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "array", "maxItems": 2, "items": {"const": "a\nb"}}}}},
    "items": {"input": [user("Sing."), {"role": "assistant", "content": "La."}, user("More.")]},
    "call": {**CALLING, "seed": 3, "tool_choice": "required", "parallel_tool_calls": False},
    "text and call": {**CALLING, "structured_outputs": {"choice": [SURE]}},
    "named call, cut": {**CALLING, "tool_choice": {"type": "function", "name": "look"}, "max_output_tokens": 45},
    "no word": {**CALLING, "structured_outputs": {"choice": ["x"]}, "stop": "x"},
    "tools of none": {"tools": TOOLS, "tool_choice": "none", "input": [user("a"), {"type": "function_call_output", "call_id": "b", "output": "<tool_call>"}]},
    "tags without tools": {"max_output_tokens": 200, "structured_outputs": {"choice": [SURE]}},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_response_is_fetched_as_it_was_answered(server, kind, stream):
    """Every byte of it; of a stream what its last event has."""
    first = made(server)
    for more in ({}, {"previous_response_id": first["id"]}):
        answer = server.post(PATH, {**ASK, **KINDS[kind], **more, "stream": stream})
        assert answer.status == 200, answer
        body = answer.body.decode().strip().split("\n\n")[-1].partition('"response":')[2][:-1] if stream else answer.body.decode()
        want = json.loads(body)
        for _ in range(2):
            again = get(server, want["id"])
            assert again.status == 200 and again.body.decode() == body, (again.body.decode(), body)
        Response.model_validate(again.json)
        assert again.json["session"] == {"id": want["id"], "version": 2 if more else 1}


def test_the_openai_package_fetches_responses(server, client):
    one = create(client)
    assert client.responses.retrieve(one.id) == one
    assert client.responses.retrieve(one.id, include=["reasoning.encrypted_content"], stream=False) == one
    assert server.get(f"/responses/{one.id}").json == get(server, one.id).json
    head = server.ask("HEAD", f"{PATH}/{one.id}")
    assert head.status == 200 and head.body == b"" and int(head.header("Content-Length")) == len(get(server, one.id).body)
    stored = call(client, extra_body={"seed": 3, "structured_outputs": {"choice": [SURE]}})
    assert client.responses.retrieve(stored.id) == stored and [o.type for o in stored.output] == ["message", "function_call"]
    with pytest.raises(sdk.NotFoundError) as e:
        client.responses.retrieve("resp_unknown")
    assert e.value.code == "not_found", e.value
    with pytest.raises(sdk.BadRequestError) as e:
        client.responses.retrieve(one.id, stream=True)
    assert e.value.param == "stream", e.value
    with pytest.raises(sdk.BadRequestError) as e:
        client.responses.retrieve(one.id, include=["message.output_text.logprobs"])
    assert e.value.param == "include", e.value


def test_a_repeated_request_and_a_later_turn_change_nothing(server):
    key = {"Idempotency-Key": uuid.uuid4().hex}
    first = server.post(PATH, {**ASK, "temperature": 1}, headers=key)
    assert get(server, first.json["id"]).body == first.body
    assert server.post(PATH, {**ASK, "temperature": 1}, headers=key).body == first.body
    chat = {"messages": [user("More.")], "session_id": first.json["id"], "max_tokens": 2}
    for headers in ({}, {"Idempotency-Key": "a"}, {"Idempotency-Key": "b"}):
        assert server.post("/v1/chat/completions", chat, headers=headers).status == 200
    assert server.get(f"/v1/sessions/{first.json['id']}").json["version"] == 4
    assert get(server, first.json["id"]).body == first.body
    assert server.post(PATH, {**ASK, "temperature": 1}, headers=key).body == first.body


# ---- the items of the input ----

def items_of(server, id_, query=""):
    answer = get(server, id_, "/input_items" + query)
    assert answer.status == 200 and answer.json["object"] == "list", answer
    ids = [i["id"] for i in answer.json["data"]]
    assert (answer.json["first_id"], answer.json["last_id"]) == ((ids[0], ids[-1]) if ids else ("", "")), answer
    pydantic.TypeAdapter(ResponseItemList).validate_python(answer.json)
    return answer.json["data"]


def test_a_text_is_one_message_of_the_user(server, client):
    one = create(client, input="Say: \"\u00e9\"\n\0", instructions="Be brief.")
    (item,) = items_of(server, one.id)
    assert item.pop("id").startswith("msg_")
    assert item == {"type": "message", "status": "completed", "role": "user", "content": [{"type": "input_text", "text": "Say: \"\u00e9\"\n\0"}]}
    (again,) = client.responses.input_items.list(one.id)
    assert again.role == "user" and again.content[0].text == "Say: \"\u00e9\"\n\0"


HISTORY = [{"role": "developer", "content": "Be brief."}, user("Look."), {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "x"}]},
           {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}, "So."]}, {"role": "assistant"},
           {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"at":  "fox"}'}, {"type": "function_call", "name": "now", "arguments": {"a": [1, 2.5]}},
           {"type": "function_call_output", "call_id": "a", "output": "red"}, {"type": "function_call_output", "output": [{"type": "input_text", "text": "4"}]},
           {"role": "user", "content": [{"type": "input_text", "text": "And"}, {"type": "text", "text": "now?"}]}, user("Look.")]
WANT = [("message", "developer", ["Be brief."]), ("message", "user", ["Look."]), ("reasoning",), ("message", "assistant", ["Well.", "So."]), ("message", "assistant", []),
        ("function_call", "a", "look", '{"at":  "fox"}'), ("function_call", "", "now", '{"a": [1, 2.5]}'), ("function_call_output", "a", "red"),
        ("function_call_output", "", [{"type": "input_text", "text": "4"}]), ("message", "user", ["And", "now?"]), ("message", "user", ["Look."])]


def short(item):
    if item["type"] == "message":
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        assert all(p["type"] == kind for p in item["content"]), item
        return "message", item["role"], [p["text"] for p in item["content"]]
    return item["type"], *(item[k] for k in ("call_id", "name", "arguments", "output") if k in item)


def test_items_come_in_pages(server, client):
    one = create(client, input=HISTORY, tools=TOOLS, tool_choice="none", max_output_tokens=2)
    rising = items_of(server, one.id, "?order=asc")
    assert [short(i) for i in rising] == WANT
    ids = [i["id"] for i in rising]
    assert len(set(ids)) == len(ids)
    assert items_of(server, one.id) == items_of(server, one.id, "?order=desc&limit=100") == rising[::-1]
    for limit in (1, 3, 10, 11):
        assert [i.id for i in client.responses.input_items.list(one.id, limit=limit)] == ids[::-1]
        assert [i.id for i in client.responses.input_items.list(one.id, limit=limit, order="asc")] == ids
    for order, all_ in (("asc", ids), ("desc", ids[::-1])):
        for at in range(len(ids)):
            answer = get(server, one.id, f"/input_items?limit=4&order={order}&after={all_[at]}").json
            assert ([i["id"] for i in answer["data"]], answer["has_more"]) == (all_[at + 1:at + 5], at + 5 < len(ids)), (order, at)
    assert len(items_of(server, create(client, input=[user("a")] * 25, max_output_tokens=2).id)) == 20


def test_items_are_as_the_document_says(server, openapi):  # noqa: F811
    for more in ({}, {"input": HISTORY, "tools": TOOLS, "tool_choice": "none"}):
        one = made(server, **more)
        assert complaints(openapi, "ResponseAnswer", get(server, one["id"]).json) == []
        listed = get(server, one["id"], "/input_items").json
        assert complaints(openapi, "ListedItems", listed) == []
        assert complaints(openapi, "ListedItems", {**listed, "data": [{**listed["data"][0], "odd": 1}]})


def test_items_are_those_of_the_request_alone(server, client):
    first = create(client, input="One.", max_output_tokens=2)
    second = create(client, input="Two.", previous_response_id=first.id, max_output_tokens=2)
    assert [short(i) for i in items_of(server, second.id)] == [("message", "user", ["Two."])]
    assert get(server, second.id).json["previous_response_id"] == first.id


# ---- whose, and how long ----

def test_a_response_is_its_keys(own_server, tmp_path):
    s = own_server("--api-key-file", key_file(tmp_path, "one name=a\ntwo name=b\n"), key="one")
    id_ = made(s)["id"]
    for tail in ("", "/input_items"):
        assert get(s, id_, tail).status == 200
        others, nobodys = (get(s, i, tail, headers=bearer("two")) for i in (id_, "resp_unknown"))
        no_session(others)
        assert others.body == nobodys.body.replace(b"resp_unknown", id_.encode()), "nobody learns of another's response"
        assert get(s, id_, tail, headers=bearer("three")).status == 401


@pytest.mark.parametrize("durability", ["turn", "lazy"])
def test_a_response_is_fetched_after_a_restart(durable, durability):
    """Also by another replica of the folder. Its state is not read for that."""
    first = durable("--session-durability", durability)
    ids = [made(first, **more)["id"] for more in ({}, {**CALLING, "structured_outputs": {"choice": [SURE]}}, {"input": HISTORY})]
    bodies = [get(first, i, tail).body for i in ids for tail in ("", "/input_items")]
    if durability == "turn":
        first.kill()
    else:
        assert first.stop() == 0
    second = durable("--model-name", "another")
    replica = durable()
    for s in (second, replica):
        for _ in range(2):
            assert [get(s, i, tail).body for i in ids for tail in ("", "/input_items")] == bodies
        assert s.metric("rodimus_state_loads_total") == 0
        assert all(x["tier"] == "file" for x in s.get("/v1/sessions").json["data"])
    on = made(second, previous_response_id=ids[0])
    assert get(replica, on["id"]).json == on
    assert get(second, ids[0]).body == bodies[0], "its state is in host memory by now"
    assert replica.ask("DELETE", f"{PATH}/{ids[0]}").status == 200
    for s in (second, replica):
        no_session(get(s, ids[0]))
        assert get(s, on["id"]).json == on


def test_texts_go_with_their_session(server, own_server):
    deleted = made(server)["id"]
    assert get(server, deleted).status == 200
    assert server.ask("DELETE", f"{PATH}/{deleted}").status == 200
    s = own_server("--session-ttl-s", 1, "--max-sessions", 100)
    expired = made(s)["id"]
    s.wait_metric("rodimus_sessions_expired_total", lambda n: n == 1)
    for where, id_ in ((server, deleted), (s, expired), (server, "resp_unknown")):
        answers = [get(where, id_), get(where, id_, "/input_items"), where.ask("DELETE", f"{PATH}/{id_}")]
        for answer in answers:
            no_session(answer)
        assert answers[0].json == answers[1].json == answers[2].json


def test_the_session_used_longest_ago_makes_room_with_its_texts(own_server):
    """Memory alone: texts are in its budget."""
    s = own_server("--state-host-bytes", 24 << 20, "--prefix-cache-bytes", 0)
    junk = {"type": "reasoning", "summary": [{"text": "x" * 900_000}]}  # kept, and not read
    ids = [made(s, input=[junk, user("Hi")])["id"] for _ in range(40)]
    s.wait_metric("rodimus_state_host_bytes", lambda n: n <= 24 << 20)
    n = 40 - int(s.metric("rodimus_sessions_evicted_total"))
    each = s.get(f"/v1/sessions/{ids[-1]}").json["state_bytes"] + 900_000
    assert 0.8 * (24 << 20) < n * each < 24 << 20, (n, each)
    assert [get(s, i).status for i in ids] == [404] * (40 - n) + [200] * n


def test_texts_count_as_memory_of_their_session(server):
    before = server.metric("rodimus_state_host_bytes")
    ids = [made(server, input=[{"type": "reasoning", "summary": [{"text": "x" * n}]}, user("Hi")])["id"] for n in (10, 800_000)]
    bytes_ = server.metric("rodimus_state_host_bytes") - before
    assert 800_000 < bytes_ - 2 * server.get(f"/v1/sessions/{ids[0]}").json["state_bytes"] < 850_000, bytes_
    for id_ in ids:
        assert server.ask("DELETE", f"{PATH}/{id_}").status == 200
    assert server.metric("rodimus_state_host_bytes") <= before


def test_what_has_no_texts_is_a_404_that_says_why(server, client):
    loose = create(client, store=False)
    for tail in ("", "/input_items"):
        no_session(get(server, loose.id, tail))
    loose = create(client, input="And then?", previous_response_id=create(client).id, store=False)
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)
    for _ in range(int(100 * SLOWER)):  # its session is removed behind the answer
        if get(server, loose.id).error["code"] == "not_found":
            break
    no_session(get(server, loose.id))
    # A session that is no response, one with kept answers, and a fork of a response.
    plain, keyed, fork, source = ("k-" + uuid.uuid4().hex for _ in range(4))
    for id_, headers in ((plain, {}), (keyed, {"Idempotency-Key": "k", "X-Request-Id": keyed})):
        body = {"messages": [user("Hi")], "max_tokens": 2, "session_id": id_, "session_create": True}
        assert server.post("/v1/chat/completions", body, headers=headers).status == 200
    source = made(server)["id"]
    assert server.post(f"/v1/sessions/{source}/fork", {"id": fork}).status == 200
    for id_ in (plain, fork):
        for tail in ("", "/input_items"):
            not_kept(get(server, id_, tail), "was not made by POST")
    not_kept(get(server, keyed), "not kept")
    assert get(server, source).status == 200


def test_texts_beyond_their_limit_are_not_kept(server, client):
    """Of a reasoning item the model reads nothing, so the request is quick however long it is."""
    def asked(n):
        return {"input": [{"type": "reasoning", "summary": [{"text": "x" * n}]}, user("Hi")], "max_output_tokens": 2, "temperature": 0}

    for headers in ({}, {"Idempotency-Key": uuid.uuid4().hex}):
        fits, beyond = (server.post(PATH, asked(n), headers=headers and {"Idempotency-Key": headers["Idempotency-Key"] + str(n)}) for n in (1_040_000, 1 << 20))
        assert fits.status == beyond.status == 200
        assert get(server, fits.json["id"]).body == fits.body
        assert len(items_of(server, fits.json["id"])) == 2
        for tail in ("", "/input_items"):
            not_kept(get(server, beyond.json["id"], tail), "more than 1 MiB")
        assert create(client, previous_response_id=beyond.json["id"]).session["version"] == 2, "its state is kept all the same"
    again = server.post(PATH, asked(1 << 20), headers={"Idempotency-Key": headers["Idempotency-Key"] + str(1 << 20)})
    assert again.body == beyond.body, "and so is the answer of a key"


def test_later_turns_with_keys_take_the_place_of_the_texts(server):
    id_ = made(server)["id"]
    turn = {"prompt": "a", "session_id": id_, "max_tokens": 1}
    for i in range(256):
        if i == 255:
            assert get(server, id_).status == 200
        assert server.post("/v1/completions", turn, headers={"Idempotency-Key": str(i)}).status == 200
    not_kept(get(server, id_), "later turns of its session")


def test_texts_move_with_the_state(server, own_server):
    one = made(server)
    state = server.get(f"/v1/sessions/{one['id']}/state").body
    other = own_server()
    sent = {"headers": {"Content-Type": "application/octet-stream"}}
    assert other.ask("PUT", f"/v1/sessions/{one['id']}/state", state, **sent).status == 200
    assert get(other, one["id"]).json == one
    assert other.ask("PUT", "/v1/sessions/resp_copy/state", state, **sent).status == 200
    not_kept(get(other, "resp_copy"), "was not made by POST")


# ---- what cannot be asked ----

IDS = ["%00", "%0a", "a%2Fb", "..", "%2e%2e%2f", "a%20b", "x" * 129, "%ff", "\u00e9".encode().hex(), "'%22", "resp_%F0%9F%A6%8A", "*", "input_items"]
QUERIES = [("limit=", "limit"), ("limit=0", "limit"), ("limit=101", "limit"), ("limit=-1", "limit"), ("limit=1e1", "limit"), ("limit=%2010", "limit"),
           ("limit=99999999999999999999", "limit"), ("limit=5&limit=x", None), ("order=", "order"), ("order=up", "order"), ("order=ASC", "order"),
           ("after=", "after"), ("after=%00", "after"), ("after=" + "x" * 129, "after"), ("after=a/b", "after"), ("after=msg_unknown", "after"),
           ("after=msg_0_in18446744073709551616", "after"), ("include=a", "include"), ("include[]=a", "include"), ("include%5B%5D=%ff", "include"),
           ("include=reasoning.encrypted_content&include=web_search_call.results", "include"), ("include[]=" + "x" * 3000, "include"),
           ("include=reasoning.encrypted_content", None), ("unknown=%00", None)]


def test_hostile_ids_and_queries_are_refused_by_name(server):
    wrong = []
    for id_ in IDS:
        for tail in ("", "/input_items"):
            answer = get(server, id_, tail)
            if answer.status not in (400, 404) or answer.json["error"]["type"] != "invalid_request_error":
                wrong.append((id_, tail, answer))
    one = made(server)["id"]
    for query, param in QUERIES:
        for tail in ("", "/input_items"):
            bad = param if tail or param in ("include", "stream") else None
            answer = get(server, one, f"{tail}?{query}")
            if (answer.status, answer.error["param"] if answer.status != 200 else None) != (400 if bad else 200, bad):
                wrong.append((query, tail, answer))
    for value in ("true", "1", "", "False", "%00"):
        answer = get(server, one, f"?stream={value}")
        if answer.status != 400 or answer.error["param"] != "stream":
            wrong.append((value, answer))
    assert not wrong, "\n".join(map(str, wrong))[:3000]
    assert get(server, one, "?stream=false").status == 200
