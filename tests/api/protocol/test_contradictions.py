"""Schemas that no value satisfies, through HTTP: the tool that the model wants stays callable; a strict one is refused by tool, place and keyword.
RODIMUS_TEST_SOAK=1 (make soak) draws 1,000 pairs of tools."""
import copy
import json
import os
import random

import pytest

from server import Server

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
DRAWS = 1000 if os.environ.get("RODIMUS_TEST_SOAK") else 40
SEED = int(os.environ.get("RODIMUS_TEST_SEED") or random.randrange(1 << 30))
NAMES, DAYS = ("Karwyn", "Nerilde", "Bruno", "Telse"), ("Monday", "Tuesday", "Friday", "Sunday")
IMPOSSIBLE = {"type": "string", "enum": [1, 2]}


@pytest.fixture(scope="module")
def default():
    server = Server(model=None, name="contradictions")
    yield server
    assert server.stop() == 0


def function(name, description, properties, **more):
    return {"type": "function", "function": {"name": name, "description": description, **more, "parameters": {
        "type": "object", "properties": properties, "required": list(properties)}}}


def pair(**day):
    return [function("find_parcel", "Find the parcel.", {"city": {"type": "string"}}),
            function("book_seat", "Book a seat for the user.", {"person": {"type": "string"}, "day": day or {"type": "string"}})]


def contradiction(r, name):
    """A schema of no value, for the property of this name."""
    low, kind = r.randrange(3, 9), r.choice(["string", "integer", "boolean", "array"])
    values = [v for v in (1, "a", None, True, 2.5, [1], {"b": 1}) if not (kind in ("string", "integer", "boolean", "array") and (
        (kind == "string" and isinstance(v, str)) or (kind == "integer" and v == 1 and v is not True) or (kind == "boolean" and v is True)
        or (kind == "array" and isinstance(v, list))))]
    return r.choice([
        lambda: {"type": kind, "enum": r.sample(values, r.randrange(len(values)))},
        lambda: {"type": kind, "const": r.choice(values)},
        lambda: {"enum": ["a", 1], "const": "b"},
        lambda: False,
        lambda: {"type": "string", "minLength": low, "maxLength": r.randrange(low)},
        lambda: {"type": "string", "pattern": f"^[a-z]{{{low}}}$", "maxLength": r.randrange(low)},
        lambda: {"type": "string", "format": r.choice(["uuid", "date", "ipv4"]), "maxLength": low - 3},
        lambda: {"type": r.choice(["integer", "number"]), r.choice(["minimum", "exclusiveMinimum"]): low, "maximum": r.randrange(low)},
        lambda: {"type": "integer", "multipleOf": 10, "minimum": 1, "maximum": low},
        lambda: {"type": "array", "minItems": low, "maxItems": r.randrange(low)},
        lambda: {"type": "array", "minItems": low, "uniqueItems": True, "items": {"type": "boolean"}},
        lambda: {"type": "array", "minItems": 1, "items": contradiction(r, name)},
        lambda: {"type": "object", "properties": {"x": contradiction(r, name)}, "required": ["x"]},
        lambda: {"type": "string", r.choice(["allOf", "anyOf", "oneOf"]): [{"type": "integer"}]},
        lambda: {"anyOf": [contradiction(r, name), contradiction(r, name)]},
        lambda: {"$ref": f"#/properties/{name}"},
        lambda: {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]},
    ])()


def called(server, tools, ask):
    answer = server.post(CHAT, {"messages": [{"role": "user", "content": ask}], "tools": tools, "temperature": 0, "max_tokens": 60})
    assert answer.status == 200, (tools, answer)
    said = answer.json["choices"][0]["message"]
    return [call["function"]["name"] for call in said.get("tool_calls") or []][:1] or said["content"]


def test_the_name_called_with_a_weakened_schema_is_that_called_with_a_plain_one(default):
    r = random.Random(SEED)
    print(f"seed {SEED}")
    for _ in range(DRAWS):
        ask = r.choice([f"Please book a seat for {r.choice(NAMES)} on {r.choice(DAYS)}.", f"Please find the parcel in {r.choice(NAMES)}."])
        plain = pair()
        odd = copy.deepcopy(plain)
        properties = r.choice(odd)["function"]["parameters"]["properties"]
        name = r.choice(list(properties))
        properties[name] = contradiction(r, name)
        if r.random() < 0.5:
            plain.reverse(), odd.reverse()
        want, got = called(default, plain, ask), called(default, odd, ask)
        assert want == got, f"seed {SEED}: {ask} {json.dumps(odd)}: {want} with plain tools, {got} with these"


def test_a_strict_tool_that_contradicts_itself_is_refused_on_each_route(default):
    user, schema = [{"role": "user", "content": "x"}], pair(**IMPOSSIBLE)[1]["function"]["parameters"]
    flat = {"type": "function", "name": "book_seat", "strict": True, "parameters": schema}
    bodies = {CHAT: {"messages": user, "tools": [function("book_seat", "", schema["properties"], strict=True)]},
              MESSAGES: {"messages": user, "max_tokens": 5, "tools": [{"name": "book_seat", "strict": True, "input_schema": schema}]},
              RESPONSES: {"input": "x", "tools": [flat]}}
    for route, body in bodies.items():
        answer = default.post(route, body)
        message = answer.json["error"]["message"]
        assert answer.status == 400 and all(word in message for word in ("book_seat", "/properties/day", "enum")), (route, answer)


def test_a_tool_that_contradicts_itself_and_stands_alone_is_answered(default):
    tools = [function("f", "", {"a": IMPOSSIBLE})]
    assert default.post(CHAT, {"messages": [{"role": "user", "content": "Good morning."}], "tools": tools, "max_tokens": 20}).status == 200
    forced = default.post(CHAT, {"messages": [{"role": "user", "content": "Call f."}], "tools": tools, "tool_choice": "required", "max_tokens": 60,
                                 "parallel_tool_calls": False, "seed": 1})
    call = forced.json["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["name"] == "f" and isinstance(json.loads(call["arguments"])["a"], str), forced


def test_an_enum_of_5000_strings_is_held_on_each_route_and_as_a_choice(default):
    words = [f"{i:05}" + "abcdefghijklmnopqrstuvwxyz-abcdefgh"[i % 7:] + "x" * (i % 7) for i in range(5000)]
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}, "a": {"enum": words}}, "required": ["n", "a"]}
    user = [{"role": "user", "content": "x"}]
    of = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    events = [e.data for e in default.events(CHAT, {"messages": user, "max_tokens": 120, "seed": 2, "response_format": of}) if e.data != "[DONE]"]
    assert json.loads("".join(c["delta"].get("content") or "" for e in events for c in e["choices"]))["a"] in words
    answer = default.post(MESSAGES, {"messages": user, "max_tokens": 120, "output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert json.loads(answer.json["content"][0]["text"])["a"] in words
    answer = default.post(RESPONSES, {"input": "x", "max_output_tokens": 120, "store": False,
                                      "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}})
    assert json.loads(answer.json["output"][-1]["content"][0]["text"])["a"] in words
    answer = default.post("/v1/completions", {"prompt": "x", "max_tokens": 120, "structured_outputs": {"choice": words}})
    assert answer.json["choices"][0]["text"] in words
