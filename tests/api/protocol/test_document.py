"""openapi.yaml as the judge of requests: each of its examples works, and what the type of a field excludes is refused by name."""
import json

import jsonschema
import pytest

from test_routes import deref, filled, make_session, openapi, operations, resolver  # noqa: F401 (openapi is a fixture)

BASES = {"/v1/completions": {"prompt": "Once", "max_tokens": 1}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
         "/tokenize": {"prompt": "Once"}, "/detokenize": {"tokens": [5]}, "/apply-template": {"messages": [{"role": "user", "content": "Hi"}]},
         "/v1/responses": {"input": "Once", "max_output_tokens": 1}, "/v1/responses/input_tokens": {"input": "Once", "max_output_tokens": 1}, "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
         "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]}, "/v1/sessions": {}, "/v1/sessions/{id}/fork": {}, "/v1/sessions/{id}": {}, "/v1/prefixes/{id}": {"prompt": "Once upon a time " * 20}}
# As JSON text: one of each type, and what no type of ours takes.
VALUES = ["true", "false", "-7", "0", "1.5", "1e300", "1" + "0" * 400, "-1" + "0" * 400, "1e400", "NaN", "-Infinity", '"x"', '""', '"7"', '"\\ud800"',
          "[]", "[[]]", "[{}]", "[null]", "[true]", "[1.5]", '[""]', "[-1]", "[1e400]", "{}", '{"a":1}', '{"1":"x"}', '{"1":1e400}', '{"a":[{"b":{}}]}']
NO_JSON = ("NaN", "Infinity", "\\ud800", "e400")


def examples_of(content):
    if "example" in content:
        yield content["example"]
    for example in content.get("examples", {}).values():
        yield example["value"]


def properties(openapi, schema):  # noqa: F811
    schema = deref(openapi, schema)
    found = dict(schema.get("properties", {}))
    for part in schema.get("allOf", []):
        found.update(properties(openapi, part))
    return found


def body_method(openapi, path):  # noqa: F811
    return next(m for m in ("post", "patch", "put") if m in openapi["paths"][path])


def body_schema(openapi, path):  # noqa: F811
    return deref(openapi, openapi["paths"][path][body_method(openapi, path)]["requestBody"])["content"]["application/json"]["schema"]


def test_the_examples_of_requests_work(server, openapi):  # noqa: F811
    validate = resolver(openapi)
    n = 0
    for path, method, operation in operations(openapi):
        if "application/json" not in operation.get("requestBody", {}).get("content", {}):
            continue
        if "{id}" in path:
            make_session(server)
        if path.endswith("/rewind"):
            assert server.ask("PATCH", "/v1/sessions/tales", {"keep_turns": 8}).status == 200
            for _ in range(4):
                server.complete(session_id="tales")
        if path == "/finish_session":  # a conversation of this name
            messages = [{"role": "user", "content": "Tell me of a fox. " * 30}]
            assert server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2}, headers={"X-Session-Id": "thread-1"}).status == 200
        examples = list(examples_of(deref(openapi, operation["requestBody"])["content"]["application/json"]))
        assert examples, f"{path} has no example"
        for example in examples:
            validate(example, body_schema(openapi, path))
            shorter = {k: 4 for k in ("max_tokens", "max_output_tokens") if example.get(k, 0) > 4}
            if "expected_version" in example:  # of a session as the example has it
                example = {**example, "expected_version": server.get("/v1/sessions/tales").json["version"]}
            answer = server.ask(method.upper(), filled(path), {**example, **shorter})
            assert answer.status == 200, (path, example, answer)
            n += 1
    assert n >= 8


def test_the_examples_of_answers_are_what_their_schemas_say(openapi):  # noqa: F811
    validate = resolver(openapi)
    n = 0
    for path, _, operation in operations(openapi):
        for status, response in operation["responses"].items():
            content = deref(openapi, response).get("content", {}).get("application/json")
            for example in examples_of(content or {}):
                validate(example, content["schema"])
                n += 1
        if "200" in operation["responses"]:
            assert deref(openapi, operation["responses"]["200"])["content"], path
    assert n >= 10


def allowed(validate, value, schema):
    """Also numbers and truths in strings, and of another server's name for a grammar what asks for nothing."""
    spelled = [json.loads(value)] if value == "7" else []
    nothing = value in (False, "", [], {}) and "structured_outputs" in schema.get("description", "")
    for one in [value, *spelled]:
        try:
            validate(one, schema)
            return True
        except jsonschema.ValidationError:
            pass
    return nothing


@pytest.mark.parametrize("path", BASES)
def test_every_field_refuses_every_wrong_type(server, openapi, path):  # noqa: F811
    """Numbers that no double holds, broken texts, and each type where the document has another: 400, and the field is named."""
    validate = resolver(openapi)
    fields, wrong, refused = properties(openapi, body_schema(openapi, path)), [], 0
    if "{id}" in path:
        make_session(server)
    assert set(BASES[path]) <= set(fields)
    for field, schema in fields.items():
        for value in VALUES:
            rest = json.dumps({k: v for k, v in BASES[path].items() if k != field})[1:-1]
            body = ("{%s\"%s\": %s}" % (rest + ", " if rest else "", field, value)).encode()
            answer = server.ask(body_method(openapi, path).upper(), filled(path), body)
            good = not any(word in value for word in NO_JSON) and allowed(validate, json.loads(value), schema)
            if good and answer.status in (200, 400, 404, 412):  # taken, or too large, not with the rest, not there, or there already
                continue
            refused += 1
            if answer.status == 404 and field == "model":
                continue
            named = answer.error["param"] or "" if answer.status == 400 else ""
            if not named.startswith(field) or answer.error["type"] != "invalid_request_error":
                wrong.append(f"{field}: {value[:40]}: {answer!r}"[:200])
    assert not wrong, "\n".join(wrong)
    assert refused > 10 * len(fields)


PART = {"type": "text", "text": "a"}
MESSAGES = [{"role": "user", "content": "a"}, {"role": "user", "content": ""}, {"role": "user", "content": [PART, PART]}, {"role": "user", "content": []},
            {"role": "user", "content": ["a", PART]}, {"role": "user", "content": [{**PART, "type": "input_text"}]}, {"role": "tool", "content": "a", "name": "b"},
            {"role": "assistant", "content": None}, {"role": "assistant", "content": [{**PART, "type": "output_text"}], "tool_calls": []},
            {"role": "assistant", "content": None, "tool_calls": None}, {"role": "developer", "content": "a", "name": None},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, {"role": "tool", "content": "a", "tool_call_id": "b"},
            {"role": "assistant", "function_call": {"name": "f"}}, {"role": "tool", "content": "a", "tool_call_id": 7},
            {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 7}}]},
            {"role": "assistant", "tool_calls": [7]}, {"role": "assistant", "tool_calls": "f"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]},
             {"role": "function", "content": "a"}, {"role": None, "content": "a"}, {"content": "a"},
            {"role": "user", "content": 7}, {"role": "user", "content": [7]}, {"role": "user", "content": [{"type": "text"}]}, {"role": "user", "content": [None]},
            {"role": "user", "content": [{**PART, "type": "image_url"}]}, {"role": "user", "content": [{"type": "text", "text": None}]}, "a", None, []]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize", "/apply-template"])
def test_messages_are_taken_as_documented(server, openapi, path):  # noqa: F811
    """Those of the schema, and no others. What it cannot say: only an assistant's content may be null."""
    validate = resolver(openapi)
    wrong, n_good = [], 0
    for message in MESSAGES:
        try:
            validate(message, {"$ref": "#/components/schemas/Message"})
            good = True
        except jsonschema.ValidationError:
            good = False
        answer = server.post(path, {"messages": [message], **({"max_tokens": 1} if "chat" in path else {})})
        n_good += good
        if answer.status != (200 if good else 400) or (not good and not answer.error["param"].startswith("messages[0]")):
            wrong.append(f"{message}: {answer!r}"[:300])
    assert not wrong, "\n".join(wrong)
    assert n_good == 16
