"""The routes beside the completions, and openapi.yaml against what the server really answers."""
import json
import os
import re

import jsonschema
import pytest
import yaml

from server import MODEL, ROOT


@pytest.fixture(scope="module")
def openapi():
    with open(os.path.join(ROOT, "openapi.yaml"), encoding="utf-8") as f:
        return yaml.safe_load(f)


def test_health(server):
    for path in ("/health", "/health/live", "/health/ready"):
        answer = server.get(path)
        assert answer.status == 200, (path, answer)


def test_models(server, client):
    models = client.models.list().data
    assert [m.id for m in models] == ["tales"]
    one = server.get("/v1/models/tales").json
    assert one == server.get("/v1/models").json["data"][0]
    assert one["object"] == "model" and one["max_model_len"] > 0
    assert client.models.retrieve("tales").id == "tales"
    assert one["context_length"] is None and one["session_bytes"] == server.get("/slots").json["session_bytes"] > 0
    assert one["slots"] == server.get("/slots").json["slots"] and one["window"] == 257 and one["chat"] is True


def test_version(server):
    version = server.get("/version").json
    assert re.match(r"\d+\.\d+\.\d+", version["version"])
    assert version["commit"]


def test_metrics_are_prometheus_text(server):
    before = server.metrics()
    server.complete(max_tokens=7, ignore_eos=True)
    after = server.metrics()
    assert after["rodimus_decode_tokens_total"] - before["rodimus_decode_tokens_total"] in (6, 7)
    assert after["rodimus_completion_tokens_total"] - before["rodimus_completion_tokens_total"] == 7
    assert after["rodimus_prefill_tokens_total"] > before["rodimus_prefill_tokens_total"]
    answer = server.get("/metrics")
    assert answer.header("Content-Type").startswith("text/plain; version=0.0.4")
    typed, seen = {}, set()
    for line in answer.body.decode().splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in typed, f"{name} twice"
            typed[name] = kind
        elif not line.startswith("#"):
            m = re.fullmatch(r'([a-zA-Z_:][\w:]*)(\{[^}]*\})? (\S+)', line)
            assert m, line
            float(m.group(3))
            base = re.sub(r"_(bucket|sum|count)$", "", m.group(1))
            assert m.group(1) in typed or base in typed, f"{line} has no type"
            assert line.rpartition(" ")[0] not in seen, f"{line} twice"
            seen.add(line.rpartition(" ")[0])
    for name in ("rodimus_slots", "rodimus_slots_used", "vllm:num_requests_running", "vllm:num_requests_waiting",
                 "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
        assert name in after
    for name in [n for n, kind in typed.items() if kind == "histogram"]:
        series = {}
        for key, value in after.items():
            m = re.fullmatch(re.escape(name) + r'_bucket\{(.*,)?le="([^"]+)"\}', key)
            if m:
                series.setdefault(m.group(1), []).append((float(m.group(2)), value))
        for buckets in series.values():
            assert buckets == sorted(buckets) and buckets[-1][0] == float("inf")
            assert [v for _, v in buckets] == sorted(v for _, v in buckets), f"{name} is not cumulative"


def test_tokenize_equals_the_reference(server, tokenizer_cases):
    for case in tokenizer_cases:
        answer = server.post("/tokenize", {"prompt": case["text"]})
        assert answer.status == 200, (case, answer)
        assert answer.json["tokens"] == case["ids"], case["text"]
        assert answer.json["count"] == len(case["ids"])
        back = server.post("/detokenize", {"tokens": case["ids"]}).json["prompt"]
        assert back == case["decoded"]


def test_tokenize_messages(server):
    ask = [{"role": "user", "content": "Hi"}]
    tokens = server.post("/tokenize", {"messages": ask}).json["tokens"]
    chat = server.post("/v1/chat/completions", {"messages": ask, "max_tokens": 1}).json
    assert len(tokens) == chat["usage"]["prompt_tokens"]


def test_tokenize_errors(server):
    for body, param in (({}, "prompt"), ({"prompt": 1}, "prompt"), ({"messages": []}, "messages")):
        answer = server.post("/tokenize", body)
        assert answer.status == 400 and answer.error["param"].startswith(param), (body, answer)
    for body in ({}, {"tokens": "a"}, {"tokens": [-1]}, {"tokens": [4096]}, {"tokens": ["a"]}):
        answer = server.post("/detokenize", body)
        assert answer.status == 400 and answer.error["param"].startswith("tokens"), (body, answer)


def test_tokenize_round_trip(server, heldout):
    tokens = server.post("/tokenize", {"prompt": heldout}).json["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json["prompt"] == heldout


def test_defaults_come_from_generation_config(server):
    with open(os.path.join(MODEL, "generation_config.json")) as f:
        config = json.load(f)
    ask = {"prompt": "Once upon a time", "max_tokens": 20, "seed": 5}
    plain = server.post("/v1/completions", ask).json
    said = server.post("/v1/completions", {**ask, "temperature": config["temperature"], "top_p": config["top_p"]}).json
    other = server.post("/v1/completions", {**ask, "temperature": 2, "top_p": 1}).json
    assert plain["choices"] == said["choices"] != other["choices"]


# ---- openapi ----

ONE_OF_EACH = {
    ("/v1/completions", "post"): {"prompt": "a", "max_tokens": 1, "logprobs": 2},
    ("/v1/chat/completions", "post"): {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "logprobs": True,
                                       "top_logprobs": 2},
    ("/tokenize", "post"): {"prompt": "a", "return_offsets": True, "return_token_strs": True},
    ("/detokenize", "post"): {"tokens": [5], "return_offsets": True},
    ("/apply-template", "post"): {"messages": [{"role": "user", "content": "a"}]},
    ("/v1/responses/input_tokens", "post"): {"input": "a"},
    ("/v1/responses", "post"): {"input": "a", "max_output_tokens": 1, "metadata": {"a": "b"}},
    ("/v1/messages", "post"): {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    ("/v1/messages/count_tokens", "post"): {"messages": [{"role": "user", "content": "a"}]},
    ("/v1/sessions", "post"): {"ttl_s": 60},
    ("/v1/sessions/{id}/fork", "post"): {},
    ("/v1/sessions/{id}/rewind", "post"): {"turns": 1},
    ("/v1/sessions/{id}/ask", "post"): {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    ("/finish_session", "post"): {"session_id": "to be finished"},
    ("/v1/sessions/{id}", "patch"): {"pin": False, "ttl_s": 60},
    ("/v1/prefixes/{id}", "put"): {"prompt": "Once upon a time " * 20},
}
METHODS = ("get", "post", "put", "delete", "patch", "head", "options")


def resolver(openapi):
    """Schemas of the document, references and all, as JSON Schema."""
    def validate(instance, schema):
        jsonschema.Draft202012Validator({**schema, "components": openapi.get("components", {})}).validate(instance)
    return validate


def operations(openapi):
    for path, item in openapi["paths"].items():
        for method in item:
            if method in METHODS:
                yield path, method, item[method]


def filled(path, id_="tales"):
    return path.replace("{model}", "tales").replace("{id}", id_)


def make_session(server):
    """The one that filled paths name, with a state; the state's bytes."""
    assert server.complete(session_id="tales", session_create=True)["session"]["id"] == "tales"
    return server.get("/v1/sessions/tales/state").body


def deref(openapi, thing):
    while "$ref" in thing:
        node = openapi
        for key in thing["$ref"].removeprefix("#/").split("/"):
            node = node[key]
        thing = node
    return thing


def test_openapi_json_is_openapi_yaml(server, openapi):
    served = server.get("/openapi.json")
    assert served.header("Content-Type").startswith("application/json")
    assert served.json == json.loads(json.dumps(openapi, default=str))


def test_openapi_schemas_are_schemas(openapi):
    assert openapi["openapi"].startswith("3.1")
    for name, schema in openapi["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
    text = json.dumps(openapi, default=str)
    for ref in set(re.findall(r'"\$ref": "([^"]+)"', text)):
        assert deref(openapi, {"$ref": ref}) is not None, ref


def test_every_documented_route_answers_as_documented(server, openapi):
    validate = resolver(openapi)
    for path, method, operation in operations(openapi):
        body, headers, id_ = ONE_OF_EACH.get((path, method)), {}, "tales"
        if path.startswith("/v1/responses/{id}"):
            id_ = server.post("/v1/responses", ONE_OF_EACH["/v1/responses", "post"]).json["id"]
        elif "{id}" in path:
            state = make_session(server)
        if (path, method) == ("/v1/sessions/{id}/state", "put"):
            body, headers = state, {"Content-Type": "application/octet-stream"}
        elif "requestBody" in operation:
            assert body is not None, f"{path} has a body that this test does not know"
            content = deref(openapi, operation["requestBody"])["content"]["application/json"]
            validate(body, content["schema"])
        if path == "/finish_session":
            say = {"messages": [{"role": "user", "content": "Once upon a time " * 50}], "max_tokens": 1}
            begun = server.post("/v1/chat/completions", say, headers={"X-Session-Id": body["session_id"]})
            assert begun.status == 200, begun
        answer = server.ask(method.upper(), filled(path, id_), body, headers)
        documented = operation["responses"]
        assert str(answer.status) in documented, (method, path, answer)
        assert answer.status not in (405, 500, 501) and (answer.status != 404 or "200" not in documented), (method, path, answer)
        response = deref(openapi, documented[str(answer.status)])
        kind = answer.header("Content-Type").split(";")[0]
        assert kind in response["content"], (method, path, kind)
        if kind == "application/json":
            validate(answer.json, response["content"][kind]["schema"])


def test_undocumented_routes_and_methods_do_not_answer(server, openapi):
    documented = {(filled(p), m) for p, m, _ in operations(openapi)}
    paths = {p for p, _ in documented}
    guesses = paths | {"/v1/embeddings", "/v1/responses/x/cancel", "/v1/sessions/tales/x", "/v1/sessions/", "/admin", "/v1/audio/speech", "/openapi.yaml", "/docs",
                       "/slots", "/apply-template", "/", "/config", "/generate", "/health/x", "/metrics/"}
    for path in sorted(guesses):
        for method in ("get", "post", "put", "delete", "patch"):
            if (path, method) in documented:
                continue
            status = server.ask(method.upper(), path, {} if method in ("post", "put", "patch") else None).status
            assert status == (405 if path in paths else 404), (method, path, status)


def test_errors_have_the_documented_shape(server, openapi):
    validate = resolver(openapi)
    for path, method, operation in operations(openapi):
        if "application/json" not in operation.get("requestBody", {}).get("content", {}):
            continue
        for body, status in ((b"{", "400"), (b'{"model": "gpt"}', "404")):
            answer = server.ask(method.upper(), filled(path), body)
            if str(answer.status) == status:
                content = deref(openapi, operation["responses"][status])["content"]["application/json"]
                validate(answer.json, content["schema"])
            else:
                assert status == "404", (path, answer)


def closed(schema, within=False):
    """The schema with no room for a member that it does not name."""
    if isinstance(schema, list):
        return [closed(s, within) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {k: {n: closed(s) for n, s in v.items()} if k == "properties" else closed(v, k == "allOf") for k, v in schema.items()}
    named = isinstance(schema.get("properties"), dict) or "allOf" in schema
    return {**out, "unevaluatedProperties": False} if named and not within and "additionalProperties" not in schema else out


def complaints(openapi, name, instance):
    """Where an answer has more than its schema names, or other than it says. Only for schemas that are no part of an allOf."""
    schemas = openapi["components"]["schemas"]
    parts = {"Choice"}  # joined with others
    components = {"schemas": {n: s if n in parts else closed(s) for n, s in schemas.items()}}
    validator = jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": components})
    return [f"{name} {'/'.join(map(str, e.path))}: {e.message[:200]}" for e in validator.iter_errors(instance)]


MORE = {  # what puts more into an answer
    "/v1/completions": [{}, {"logprobs": 2, "return_token_ids": True}, {"echo": True, "logprobs": 1, "prompt_logprobs": 1, "n": 2}, {"stop": "e"},
                        {"session_id": "shape-t", "session_create": True}, {"max_tokens": 0}],
    "/v1/chat/completions": [{}, {"logprobs": True, "top_logprobs": 2, "return_token_ids": True, "n": 2}, {"stop_token_ids": list(range(1, 600))},
                             {"session_id": "shape-c", "session_create": True}, {"session_id": "shape-c", "return_token_ids": True}],
    "/v1/responses": [{}, {"store": False}, {"metadata": {"a": "b"}, "instructions": "x", "text": {"format": {"type": "json_object"}}}],
    "/v1/messages": [{}, {"stop_sequences": ["e"]}, {"session_id": "shape-m", "session_create": True}, {"session_id": "shape-m"}],
}
SHAPES = {"/v1/completions": ("Completion", "Completion"), "/v1/chat/completions": ("ChatCompletion", "ChatCompletionChunk"),
          "/v1/responses": ("ResponseAnswer", "ResponseEvent"), "/v1/messages": ("AnthropicMessage", "MessageEvent")}


@pytest.mark.parametrize("path", MORE)
def test_answers_and_chunks_have_what_the_document_names_and_no_more(server, openapi, path):
    base = {"/v1/completions": {"prompt": "Once"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]}, "/v1/responses": {"input": "Hi"},
            "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}]}}[path]
    length = {"max_output_tokens" if "responses" in path else "max_tokens": 3}
    usages = [{}] if "responses" in path or "messages" in path else [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
    whole, piece = SHAPES[path]
    wrong, n = [], 0
    for more in MORE[path]:
        answer = server.post(path, {**base, **length, **more})
        assert answer.status == 200, (more, answer)
        wrong += complaints(openapi, whole, answer.json)
        for options in usages:
            for event in server.events(path, {**base, **length, **more, "stream": True, **({"stream_options": options} if options else {})}):
                if not event.comment and event.data != "[DONE]":
                    wrong += complaints(openapi, piece, event.data)
                    n += 1
    assert not wrong, "\n".join(sorted(set(wrong)))
    assert n > 10
    assert complaints(openapi, piece, {**event.data, "odd": 1} if event.data != "[DONE]" else {"odd": 1}), "the check sees what is too much"
    content = openapi["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]["properties"]["data"]
    assert piece in json.dumps(content)


def test_requests_of_the_tests_are_documented(openapi):
    """The fields that the server reads are all in the document."""
    wanted = {"prompt", "model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop", "stop_token_ids", "seed",
              "logit_bias", "logprobs", "stream", "stream_options", "frequency_penalty", "presence_penalty", "repetition_penalty",
              "ignore_eos", "min_tokens"}

    def properties(schema):
        schema = deref(openapi, schema)
        found = set(schema.get("properties", {}))
        for part in schema.get("allOf", []):
            found |= properties(part)
        return found

    for path in ("/v1/completions", "/v1/chat/completions"):
        schema = openapi["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        missing = (wanted - {"prompt"} if "chat" in path else wanted) - properties(schema)
        assert not missing, (path, missing)


def test_what_openai_has_and_this_server_has_not_is_a_404_that_says_so(server):
    for method, path, word in (("POST", "/v1/responses/compact", "compacted"), ("POST", "/responses/compact", "compacted"),
                               ("POST", "/v1/conversations", "previous_response_id"), ("GET", "/v1/conversations/c/items", "previous_response_id")):
        answer = server.ask(method, path, b"{}" if method == "POST" else None, {"Content-Type": "application/json"})
        assert answer.status == 404 and answer.error["code"] == "not_found" and word in answer.error["message"], answer
        assert f"There is no {method} {path}: " in answer.error["message"]
    assert server.get("/v1/responses/compact").status == 404
