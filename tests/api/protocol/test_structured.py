"""Structured output: what a finished answer looks like, on both routes, streaming and not; and what is refused."""
import json
import os
import random
import re

import jsonschema
import pydantic
import pytest

SEED = int(os.environ.get("RODIMUS_TEST_SEED", "20261121"))
N_SCHEMAS = int(os.environ.get("RODIMUS_TEST_SCHEMAS", "40"))

PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                           "tags": {"type": "array", "items": {"enum": ["red", "green", 3, None]}, "maxItems": 3}},
          "required": ["name", "age", "tags"], "additionalProperties": False}


def complete(server, max_tokens=200, **more):
    answer = server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": max_tokens, "temperature": 1, "seed": 5, **more})
    assert answer.status == 200, answer
    return answer.json["choices"][0]


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


# ---- random schemas ----

def random_schema(r, depth=0):
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "format", "pattern", "bounded"]
    if depth < 3:
        kinds += ["object", "object", "array", "anyOf"]
    kind = "object" if depth == 0 and r.random() < 0.6 else r.choice(kinds)
    if kind == "string":
        low = r.randrange(0, 4)
        return {"type": "string", "minLength": low, "maxLength": low + r.randrange(0, 9)}
    if kind == "bounded":
        low = r.choice([-1000, -3.5, 0, 1, 0.25, 17]) * r.choice([1, 1, 10])
        keys = r.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum"), ("minimum", "exclusiveMaximum")])
        whole = r.random() < 0.5
        return {"type": "integer" if whole else "number", keys[0]: low, keys[1]: low + r.choice([2, 10, 999])}
    if kind == "integer" and r.random() < 0.2:
        return {"type": "integer", "multipleOf": r.choice([2, 5, 12])}
    if kind == "enum":
        return {"enum": r.sample(["a", "b\"c", "é", 1, -2.5, True, None, [1, "x"], {"k": []}], r.randrange(1, 5))}
    if kind == "const":
        return {"const": r.choice(["fixed", 7, None, {"a": [1]}])}
    if kind == "format":
        return {"type": "string", "format": r.choice(["date", "time", "date-time", "uuid", "email", "ipv4", "hostname"])}
    if kind == "pattern":
        return {"type": "string", "pattern": r.choice(["^[a-z]{2,6}$", "^\\d+-[A-F]$", "^(ab|cd)?x*$", "^[^a-z\"]{1,4}$", "^\\w+\\s\\S{2}$"])}
    if kind == "array":
        low = r.randrange(0, 3)
        return {"type": "array", "items": random_schema(r, depth + 1), "minItems": low, "maxItems": low + r.randrange(0, 3)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(r, depth + 1) for _ in range(r.randrange(1, 4))], "description": "either"}
    if kind == "object":
        names = r.sample(["id", "name", "weird \"key\"", "größe", "list", "a/b", "z"], r.randrange(0, 5))
        schema = {"type": "object", "properties": {n: random_schema(r, depth + 1) for n in names},
                  "required": [n for n in names if r.random() < 0.6]}
        extra = r.random()
        if extra < 0.7:
            schema["additionalProperties"] = False
        elif extra < 0.8 and names:
            schema["additionalProperties"] = {"type": "integer"}
        return schema
    return {"type": kind}


def test_what_random_schemas_ask_for_comes(server):
    """At temperature 1: what finishes validates; what is cut off is the beginning of something: the next round goes on from it."""
    r = random.Random(SEED)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    finished = 0
    for i in range(N_SCHEMAS):
        schema = random_schema(r)
        jsonschema.Draft202012Validator.check_schema(schema)
        choice = complete(server, seed=i, max_tokens=160, response_format=schema_format(schema))
        if choice["finish_reason"] == "stop":
            finished += 1
            value = json.loads(choice["text"])
            jsonschema.validate(value, schema, jsonschema.Draft202012Validator, format_checker=checker)
        else:
            assert choice["finish_reason"] == "length"
            with pytest.raises(json.JSONDecodeError) as e:
                json.loads(choice["text"])
            # A cut-off text fails where it ends, or in the string or number that is open there.
            tail = choice["text"][e.value.pos:]
            assert not tail.strip() or re.match(r'["\-\dtfn]|$', tail), (schema, choice["text"], e.value)
    print(f"seed {SEED}: {finished} of {N_SCHEMAS} finished")
    assert finished >= N_SCHEMAS // 2


# ---- each field ----

def test_json_object(server):
    for seed in range(4):
        choice = complete(server, seed=seed, max_tokens=300, response_format={"type": "json_object"})
        assert choice["text"].startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["text"]), dict)


def test_json_object_with_a_schema_is_that_schema(server):
    """llama.cpp's form."""
    choice = complete(server, response_format={"type": "json_object", "schema": PERSON})
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["text"]), PERSON)


@pytest.mark.parametrize("value", [9223372036854775807, -9223372036854775808, 9007199254740993])
def test_integers_of_64_bits_are_exact(server, value):
    for schema in ({"const": value}, {"enum": [value]}):
        assert complete(server, response_format=schema_format(schema))["text"] == str(value)


def test_an_integer_that_is_too_large_elsewhere_changes_none_of_a_schema(server):
    """Its reader turns all integers of a body into doubles."""
    for metadata in ({"id": 1}, {"id": 10**30}):
        assert complete(server, metadata=metadata, response_format=schema_format({"const": [5, {"a": -7}, 0.5]}))["text"] == '[5,{"a":-7},0.5]'


@pytest.mark.parametrize("limit", range(1, 9))
@pytest.mark.parametrize("field", [{"structured_outputs": {"choice": ["\U00012000\u20ac\u00e9\U0001f600"]}},
                                   {"structured_outputs": {"regex": "\U00012000\u20ac\u00e9\U0001f600"}}])
def test_a_cut_character_is_left_out(server, field, limit):
    """What is cut off by max_tokens is the beginning of something valid, so it has no replacement characters."""
    body = {"prompt": "a", "max_tokens": limit, **field}
    text = complete(server, **body)["text"]
    assert "\U00012000\u20ac\u00e9\U0001f600".startswith(text), text
    events = server.events("/v1/completions", {**body, "stream": True})
    assert "".join(e.data["choices"][0]["text"] for e in events if isinstance(e.data, dict) and e.data["choices"]) == text


@pytest.mark.parametrize("schema", [PERSON, json.dumps(PERSON)])
def test_structured_json_is_a_schema_or_its_text(server, schema):
    choice = complete(server, structured_outputs={"json": schema})
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] is None
    jsonschema.validate(json.loads(choice["text"]), PERSON)


def test_a_finished_text_ends_at_once(server):
    choice = complete(server, structured_outputs={"choice": ["yes", "no"]}, ignore_eos=True, max_tokens=50)
    assert choice["text"] in ("yes", "no") and choice["finish_reason"] == "stop"
    assert {complete(server, seed=s, structured_outputs={"choice": ["yes", "no"]})["text"] for s in range(12)} <= {"yes", "no"}


def test_regex(server):
    for seed in range(4):
        text = complete(server, seed=seed, structured_outputs={"regex": r"(\d{3}-){1,2}[a-zé]{4}"})["text"]
        assert re.fullmatch(r"(\d{3}-){1,2}[a-zé]{4}", text), text


def test_grammar(server):
    grammar = 'root ::= pair ("," pair)*\npair ::= [a-c] "=" num # a comment\nnum ::= [1-9] [0-9]?'
    choice = complete(server, structured_outputs={"grammar": grammar})
    if choice["finish_reason"] == "stop":
        assert re.fullmatch(r"[abc]=[1-9]\d?(,[abc]=[1-9]\d?)*", choice["text"])
    else:
        assert re.match(r"[abc]=[1-9]\d?(,[abc]=[1-9]\d?)*", choice["text"])


def test_it_may_end_where_more_may_come(server):
    """A number may go on: the end token is allowed beside the digits."""
    for seed in range(4):
        choice = complete(server, seed=seed, structured_outputs={"regex": "[0-9]+"}, max_tokens=400)
        assert re.fullmatch("[0-9]+", choice["text"])


def test_streams_and_choices_are_held_to_it_too(server):
    events = server.events("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 3, "max_tokens": 200,
                                                    "response_format": schema_format(PERSON)}) \
        if server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).status == 200 else None
    key = "delta"
    if events is None:
        events = server.events("/v1/completions", {"prompt": "Once", "n": 3, "max_tokens": 200, "response_format": schema_format(PERSON)})
        key = "text"
    texts, reasons = {}, {}
    for e in events:
        for c in e.data["choices"] if isinstance(e.data, dict) else []:
            texts[c["index"]] = texts.get(c["index"], "") + (c["text"] if key == "text" else c["delta"].get("content", ""))
            reasons[c["index"]] = c["finish_reason"] or reasons.get(c["index"])
    assert set(reasons.values()) == {"stop"}
    for text in texts.values():
        jsonschema.validate(json.loads(text), PERSON)


def test_the_same_seed_gives_the_same(server):
    one, other = (complete(server, seed=9, structured_outputs={"json": PERSON})["text"] for _ in range(2))
    assert one == other


def test_logprobs_are_the_models_own(server):
    choice = complete(server, max_tokens=4, logprobs=2, structured_outputs={"regex": "zqzq+"})
    assert choice["text"].startswith("zq")
    assert all(p < 0 for p in choice["logprobs"]["token_logprobs"])


def test_openai_parse_with_a_pydantic_model(client):
    class Step(pydantic.BaseModel):
        what: str
        n: int

    class Plan(pydantic.BaseModel):
        steps: list[Step]
        done: bool | None

    for seed in range(20):
        try:
            answer = client.beta.chat.completions.parse(model="tales", messages=[{"role": "user", "content": "plan"}],
                                                        response_format=Plan, max_tokens=500, seed=seed)
        except Exception as e:
            if type(e).__name__ == "LengthFinishReasonError":
                continue
            raise
        assert isinstance(answer.choices[0].message.parsed, Plan)
        return
    pytest.fail("none of 20 answers came to its end")


# ---- behind a beginning of the answer ----

ROUTES = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
TEXT = '{"name":"Ann","age":7,"tags":["red",3]}'
PAIRS = 'root ::= pair ("," pair)? ("," pair)?\npair ::= [a-c] "=" [1-9] [0-9]?'
FORMS = {
    "response_format": ({"response_format": schema_format(PERSON)}, TEXT),
    "json_object": ({"response_format": {"type": "json_object"}}, TEXT),
    "json": ({"structured_outputs": {"json": PERSON}}, TEXT),
    "guided_json": ({"guided_json": PERSON}, TEXT),
    "regex": ({"guided_regex": r"(\d{3}-){1,2}[a-zé]{4}"}, "123-456-éabc"),
    "choice": ({"structured_outputs": {"choice": ["yes", "yellow", "no"]}}, "yellow"),
    "grammar": ({"grammar": PAIRS}, "a=1,b=22,c=3"),
    "beside tools": ({"response_format": schema_format(PERSON), "tools": [{"type": "function", "function": {"name": "f"}}]}, TEXT),
}


def begin(text, route="chat", **more):
    if route == "messages" and "response_format" in more:
        more["output_config"] = {"format": {"type": "json_schema", "schema": more.pop("response_format")["json_schema"]["schema"]}}
    return {"messages": [{"role": "user", "content": "Please."}, {"role": "assistant", "content": text}], "temperature": 1, "max_tokens": 200,
            **({"continue_final_message": True, "add_generation_prompt": False} if route == "chat" else {}), **more}


def said(route, answer):
    if route == "chat":
        return answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]
    return "".join(b["text"] for b in answer["content"]), {"end_turn": "stop", "max_tokens": "length"}[answer["stop_reason"]]


def holds(form, text):
    if form == "regex":
        return re.fullmatch(r"(\d{3}-){1,2}[a-zé]{4}", text)
    if form == "choice":
        return text in ("yes", "yellow", "no")
    if form == "grammar":
        return re.fullmatch(r"[abc]=[1-9]\d?(,[abc]=[1-9]\d?)*", text)
    value = json.loads(text)
    if form != "json_object":
        jsonschema.validate(value, PERSON)
    return isinstance(value, dict)


@pytest.mark.parametrize("form", FORMS)
def test_a_beginning_and_its_answer_are_valid_together(server, form):
    fields, text = FORMS[form]
    stopped = 0
    for n in range(1, len(text) + 1):
        route = "chat" if form in ("json_object", "beside tools") or n % 2 else "messages"
        answer = server.post(ROUTES[route], begin(text[:n], route, seed=n, max_tokens=120, **fields))
        assert answer.status == 200, (n, answer)
        rest, end = said(route, answer.json)
        if end == "stop":
            stopped += 1
            assert holds(form, text[:n] + rest), (text[:n], rest)
    assert stopped >= (1 if form == "json_object" else len(text) // 2)


def test_a_whole_text_as_beginning_gets_an_empty_answer(server):
    for more in ({}, {"ignore_eos": True}, {"min_tokens": 5}):
        answer = server.post(ROUTES["chat"], begin("yellow", **FORMS["choice"][0], **more))
        assert answer.status == 200 and said("chat", answer.json) == ("", "stop"), answer


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("form", ["response_format", "regex", "choice", "grammar"])
def test_a_beginning_that_a_format_does_not_allow_is_refused(server, form, route):
    for stream in (False, True):
        answer = server.post(ROUTES[route], begin("Sure: ", route, stream=stream, **FORMS[form][0]))
        assert answer.status == 400 and answer.error["param"] == "messages" and "beginning" in answer.error["message"], answer


def test_behind_a_beginning_streams_and_choices_are_held_to_the_format(server):
    body = begin('{"name":"A', n=3, seed=1, **FORMS["response_format"][0])
    whole = [c["message"]["content"] for c in server.post(ROUTES["chat"], body).json["choices"]]
    parts = ["", "", ""]
    for e in server.events(ROUTES["chat"], {**body, "stream": True}):
        for c in e.data["choices"] if isinstance(e.data, dict) else []:
            parts[c["index"]] += c["delta"].get("content") or ""
    assert parts == whole
    for rest in whole:
        jsonschema.validate(json.loads('{"name":"A' + rest), PERSON)


def test_a_turn_with_a_beginning_holds_the_format_and_one_that_is_refused_changes_nothing(own_server):
    server = own_server("--slots", 1)
    first = server.post(ROUTES["chat"], {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4, "session_id": "s", "session_create": True})
    assert first.status == 200, first
    bad = server.post(ROUTES["chat"], begin("Sure: ", session_id="s", **FORMS["choice"][0]))
    assert bad.status == 400 and bad.error["param"] == "messages", bad
    assert server.get("/v1/sessions/s").json["version"] == 1
    turn = begin("ye", session_id="s", expected_version=1, **FORMS["choice"][0])
    rest, end = said("chat", server.post(ROUTES["chat"], turn).json)
    assert "ye" + rest in ("yes", "yellow") and end == "stop"


def test_a_beginning_stays_text_before_calls_that_are_forced(server):
    body = begin("Sure. ", tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "maxProperties": 0}}}], tool_choice="required",
                 parallel_tool_calls=False)
    (choice,) = server.post(ROUTES["chat"], body).json["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"


# ---- what is refused ----

@pytest.mark.parametrize("fields, param, word", [
    ({"response_format": schema_format({"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}, {"minLength": 2}]}}})}, "response_format", "oneOf"),
    ({"response_format": schema_format({"not": {}})}, "response_format", "not"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "schema"),
    ({"response_format": {"type": "xml"}}, "response_format", "type"),
    ({"response_format": "json_object"}, "response_format", "object"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "without its )"),
    ({"structured_outputs": {"regex": "(?=a)"}}, "structured_outputs.regex", "look-around"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "string"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "array of strings"),
    ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice", "not a string"),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar", "no rule named x"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not JSON"),
    ({"structured_outputs": {"json": False}}, "structured_outputs.json", "no finite text"),
    ({"structured_outputs": {"json": "false"}}, "structured_outputs.json", "no finite text"),
    ({"response_format": schema_format(False)}, "response_format", "no finite text"),
    ({"structured_outputs": {"regex": False}}, "structured_outputs.regex", "string"),
    ({"structured_outputs": {"choice": False}}, "structured_outputs.choice", "array of strings"),
    ({"structured_outputs": {}}, "structured_outputs", "must have one of"),
    ({"structured_outputs": {"json": None, "regex": None}}, "structured_outputs", "must have one of"),
    ({"response_format": {"type": "json_object", "schema": {"not": {}}}}, "response_format", "not"),
    ({"response_format": {"type": "json_object", "schema": 1}}, "response_format", "schema"),
    ({"response_format": schema_format({"const": 123456789012345678901234567890})}, "response_format", "const"),
    ({"response_format": schema_format({"enum": [1, {"a": [-9223372036854775809]}]})}, "response_format", "enum"),
    ({"response_format": schema_format({"type": "integer", "minimum": 9223372036854775808})}, "response_format", "minimum"),
    ({"structured_outputs": {"json": {"type": "number", "exclusiveMaximum": 9223372036854775810}}}, "structured_outputs.json", "exclusiveMaximum"),
    ({"structured_outputs": {"json": '{"const":9223372036854775809}'}}, "structured_outputs.json", "integer"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": 1, "schema": {}}}}, "response_format.json_schema.name", "string"),
    ({"response_format": {"type": "json_schema", "json_schema": {"description": [], "schema": {}}}}, "response_format.json_schema.description", "string"),
    ({"response_format": {"type": "json_schema", "json_schema": {"strict": "x", "schema": {}}}}, "response_format.json_schema.strict", "true or false"),
    ({"structured_outputs": {"regex": "a{,3}"}}, "structured_outputs.regex", "read differently"),
    ({"structured_outputs": {"json": {"type": "string"}, "regex": "a"}}, "structured_outputs", "two fields"),
    ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs", "unknown field"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs", "exclude each other"),
    ({"structured_outputs": {"regex": "(a{0,65000}b){0,65000}(c{0,65000}d){0,65000}"}}, "structured_outputs.regex", "too large"),
    ({"structured_outputs": {"grammar": 'root ::= "a" root'}}, "structured_outputs.grammar", "no finite text"),
])
@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_what_cannot_be_honoured_is_refused(server, route, fields, param, word):
    body = {"prompt": "a"} if route == "completions" else {"messages": [{"role": "user", "content": "a"}]}
    answer = server.post(f"/v1/{route}", {**body, "max_tokens": 2, **fields})
    assert answer.status == 400, answer
    assert answer.error["param"] == param and word in answer.error["message"], answer.error
    assert answer.error["message"].endswith("."), answer.error


@pytest.mark.parametrize("fields", [{"response_format": None}, {"response_format": {"type": "text"}}, {"structured_outputs": None},
                                    {"structured_outputs": {"json_object": False}}])
def test_what_asks_for_nothing_changes_nothing(server, fields):
    assert server.complete(max_tokens=8, **fields)["choices"][0]["text"] == server.complete(max_tokens=8)["choices"][0]["text"]
