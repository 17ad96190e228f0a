"""What a request that cannot be honoured gets: status, type, code, and the field at fault."""
import json
import re

import openai
import pytest

COMPLETION = {"prompt": "Once", "max_tokens": 1}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
HUGE = 10**15

# (what the request adds, the field that the error names). None as a value takes the field away.
BOTH = [
    ({"temperature": -0.1}, "temperature"), ({"temperature": 2.1}, "temperature"), ({"temperature": "hot"}, "temperature"),
    ({"temperature": [1]}, "temperature"), ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"), ({"top_p": 1.01}, "top_p"), ({"top_p": -1}, "top_p"), ({"top_p": "one"}, "top_p"),
    ({"top_k": -2}, "top_k"), ({"top_k": 1.5}, "top_k"), ({"top_k": "all"}, "top_k"), ({"top_k": HUGE}, "top_k"),
    ({"min_p": -0.1}, "min_p"), ({"min_p": 1.1}, "min_p"),
    ({"typical_p": 0}, "typical_p"), ({"typical_p": 2}, "typical_p"),
    ({"frequency_penalty": 2.1}, "frequency_penalty"), ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"), ({"presence_penalty": {}}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"), ({"repetition_penalty": -1}, "repetition_penalty"),
    ({"repeat_penalty": 0}, "repeat_penalty"), ({"repetition_penalty": 1001}, "repetition_penalty"),
    ({"seed": 2**63}, "seed"), ({"seed": -2**63 - 1}, "seed"), ({"max_tokens": 10**26}, "max_tokens"), ({"n": 2**64}, "n"),
    ({"n": 0}, "n"), ({"n": -1}, "n"), ({"n": 129}, "n"), ({"n": 1.5}, "n"), ({"n": "two"}, "n"), ({"n": HUGE}, "n"),
    ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "16x"}, "max_tokens"), ({"max_tokens": HUGE}, "max_tokens"), ({"max_tokens": 1e300}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"min_tokens": -1}, "min_tokens"), ({"min_tokens": 2}, "min_tokens"),
    ({"seed": 1.5}, "seed"), ({"seed": "x"}, "seed"),
    ({"stop": 1}, "stop"), ({"stop": [1]}, "stop"), ({"stop": ["a"] * 17}, "stop"), ({"stop": {}}, "stop"), ({"stop": [""]}, "stop"),
    ({"stop_token_ids": 1}, "stop_token_ids"), ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": [4096]}, "stop_token_ids"), ({"stop_token_ids": ["a"]}, "stop_token_ids"),
    ({"logit_bias": []}, "logit_bias"), ({"logit_bias": {"a": 1}}, "logit_bias"), ({"logit_bias": {"4096": 1}}, "logit_bias"),
    ({"logit_bias": {"05": 1, "5": 2}}, "logit_bias"), ({"logit_bias": {"00": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"), ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"1": -101}}, "logit_bias"), ({"logit_bias": {"1": "1"}}, "logit_bias"),
    ({"ignore_eos": 1}, "ignore_eos"), ({"include_stop_str_in_output": "yes"}, "include_stop_str_in_output"),
    ({"stream": 1}, "stream"), ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options"),
    ({"model": 7}, "model"),
    # what later versions will do: never ignored, never half done
    ({"best_of": 2}, "best_of"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"), ({"guided_json": {"type": 7}}, "guided_json"),
    ({"grammar": "root ::= a"}, "grammar"), ({"json_schema": {"type": 7}}, "json_schema"), ({"regex": "(a"}, "regex"),
    ({"ebnf": "root ::= a"}, "ebnf"), ({"guided_choice": "a"}, "guided_choice"), ({"n_predict": -2}, "n_predict"),
    ({"max_new_tokens": 5}, "max_new_tokens"), ({"mirostat": 2}, "mirostat"),
    ({"bad_words": "x"}, "bad_words"), ({"bad_words": [1]}, "bad_words"), ({"bad_words": [""]}, "bad_words"),
    ({"allowed_token_ids": 1}, "allowed_token_ids"), ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
    ({"allowed_token_ids": [1] * 5000}, "allowed_token_ids"), ({"bad_words": ["x y z " * 400] * 20}, "bad_words"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"), ({"tool_choice": "required"}, "tool_choice"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"), ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"truncation_side": "up"}, "truncation_side"), ({"return_tokens_as_token_ids": 1}, "return_tokens_as_token_ids"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"), ({"prompt_logprobs": -1}, "prompt_logprobs"), ({"echo": 1}, "echo"),
    ({"session_id": "a/b"}, "session_id"), ({"session_id": 7}, "session_id"), ({"session_create": True}, "session_create"),
    ({"expected_version": 0}, "expected_version"), ({"cache_salt": 7}, "cache_salt"), ({"idempotency_key": 7}, "idempotency_key"),
]
COMPLETION_ONLY = [
    ({"prompt": None}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": 7}, "prompt"),
    ({"prompt": {}}, "prompt"), ({"prompt": True}, "prompt"), ({"prompt": [[]]}, "prompt"), ({"prompt": [""]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"), ({"prompt": [1, "a"]}, "prompt"), ({"prompt": [[1], "a"]}, "prompt"),
    ({"prompt": [-1]}, "prompt"), ({"prompt": [4096]}, "prompt"), ({"prompt": [1.5]}, "prompt"), ({"prompt": [HUGE]}, "prompt"),
    ({"prompt": [None]}, "prompt"),
    ({"logprobs": 21}, "logprobs"), ({"logprobs": -1}, "logprobs"), ({"logprobs": "five"}, "logprobs"),
    ({"suffix": "x"}, "suffix"), ({"suffix": 1}, "suffix"), ({"suffix": "x", "prompt": [5]}, "suffix"),
]
CHAT_ONLY = [
    ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"messages": 7}, "messages"), ({"messages": CHAT["messages"][0]}, "messages"),
    ({"messages": [1]}, "messages"), ({"messages": [{}]}, "messages"), ({"messages": [{"role": "king", "content": "a"}]}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"), ({"messages": [{"role": "user", "content": 1}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    ({"messages": [{"role": 1, "content": "a"}]}, "messages"),
    ({"logprobs": 1}, "logprobs"), ({"top_logprobs": 3}, "top_logprobs"), ({"max_tokens": 0}, "max_tokens"),
    ({"echo": True}, "echo"), ({"add_special_tokens": True}, "add_special_tokens"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"tool_choice": "required"}, "tool_choice"), ({"suffix": "x"}, "suffix"),
    ({"add_generation_prompt": "xx"}, "add_generation_prompt"), ({"continue_final_message": True}, "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": True, "messages": [{"role": "assistant", "content": "a"}]}, "continue_final_message"),
]
ROWS = ([("/v1/completions", COMPLETION, *row) for row in BOTH + COMPLETION_ONLY] +
        [("/v1/chat/completions", CHAT, *row) for row in BOTH + CHAT_ONLY])


@pytest.mark.parametrize("stream", [False, True])
def test_bad_fields_are_named(server, stream):
    """One test for the whole table, so that the server is asked some 300 times in a second or two; all misses are listed."""
    wrong = []
    for path, base, add, param in ROWS:
        body = {k: v for k, v in {**base, **({"stream": True} if stream else {}), **add}.items()
                if not (v is None and k in ("prompt", "messages"))}
        if stream and "stream_options" in add and "stream" not in add:
            continue  # valid in a stream
        answer = server.post(path, body)
        if answer.status != 400:
            wrong.append(f"{path} {add}: {answer!r}")
            continue
        error = answer.error
        named = error["param"] or ""
        if set(error) != {"message", "type", "param", "code"} or error["type"] != "invalid_request_error" or \
                not named.startswith(param) or not any(word in error["message"] for word in (param, "include_usage")):
            wrong.append(f"{path} {add}: {error}")
    assert not wrong, "\n".join(wrong)


NULLS = ["model", "temperature", "top_p", "top_k", "min_p", "typical_p", "frequency_penalty", "presence_penalty",
         "repetition_penalty", "repeat_penalty", "n", "max_tokens", "max_completion_tokens", "min_tokens", "seed", "stop",
         "stop_token_ids", "logit_bias", "ignore_eos", "include_stop_str_in_output", "stream", "stream_options", "user", "best_of",
         "logprobs", "top_logprobs", "echo", "suffix", "response_format", "tools", "tool_choice", "structured_outputs", "bad_words",
         "allowed_token_ids", "truncate_prompt_tokens", "prompt_logprobs", "return_token_ids", "metadata", "store",
         "session_id", "session_create", "expected_version", "cache_salt", "idempotency_key"]


@pytest.mark.parametrize("path,base", [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
def test_null_means_absent(server, path, base):
    for field in NULLS:
        answer = server.post(path, {**base, field: None, **({} if field in ("max_tokens",) else {"max_tokens": 1})})
        assert answer.status == 200, (field, answer)
    assert server.post(path, {**dict.fromkeys(NULLS), **base}).status == 200


@pytest.mark.parametrize("path,base", [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
def test_what_asks_for_nothing_is_accepted(server, path, base):
    for add in ({"best_of": 1}, {"user": "me"}, {"unknown_field": {"deep": [1, 2]}}, {"x" * 5000: 1}, {"echo": False}, {"suffix": ""},
                {"response_format": {"type": "text"}}, {"stop": []}, {"tools": []}, {"logit_bias": {}}, {"metadata": {"a": "b"}},
                {"store": False}, {"stop_token_ids": []}, {"max_tokens": 1.0}, {"n": 1.0}):
        answer = server.post(path, {**base, **add})
        assert answer.status == 200, (add, answer)


Z = "\0x"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
RESPONSE = {"input": "Hi", "max_output_tokens": 1}
NAMES = [  # (route, what the request adds, the field that the error names)
    *[(path, add, param) for path in ("/v1/completions", "/v1/chat/completions") for add, param in [
        ({"model": "tales" + Z}, "model"), ({"model": "\0"}, "model"), ({"session_id": "a" + Z}, "session_id"),
        ({"cache_salt": "a" + Z}, "cache_salt"), ({"stop": "a" + Z}, "stop"), ({"stop": ["a", "b" + Z]}, "stop"),
        ({"tool_choice": "none" + Z}, "tool_choice"),
        ({"tool_choice": "auto" + Z}, "tool_choice"), ({"function_call": "none" + Z}, "function_call"), ({"modalities": ["text" + Z]}, "modalities"),
        ({"response_format": {"type": "text" + Z}}, "response_format"), ({"response_format": {"type": "json_object" + Z}}, "response_format"),
        ({"response_format": {"type": "json_schema" + Z, "json_schema": {"schema": SCHEMA}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a" + Z, "schema": SCHEMA}}}, "response_format.json_schema.name"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "string" + Z}}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {**SCHEMA, "required": ["a" + Z]}}}}, "response_format"),
        ({"structured_outputs": {"json": {"type": "integer" + Z}}}, "structured_outputs.json")]],
    ("/v1/chat/completions", {"messages": [{"role": "user" + Z, "content": "a"}]}, "messages[0].role"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text" + Z, "text": "a"}]}]}, "messages[0].content[0]"),
    ("/v1/responses", {"model": "tales" + Z}, "model"), ("/v1/responses", {"truncation": "disabled" + Z}, "truncation"),
    ("/v1/responses", {"previous_response_id": "resp_1" + Z}, "previous_response_id"),
    ("/v1/responses", {"text": {"format": {"type": "text" + Z}}}, "text.format"),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "a" + Z, "schema": SCHEMA}}}, "text.format.name"),
    ("/v1/responses", {"input": [{"role": "user" + Z, "content": "a"}]}, "input[0].role"),
    ("/v1/responses", {"input": [{"type": "message" + Z, "role": "user", "content": "a"}]}, "input[0].type"),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text" + Z, "text": "a"}]}]}, "input[0].content[0]"),
    ("/v1/responses", {"tool_choice": "auto" + Z}, "tool_choice"),
    *[(path, {"model": "tales" + Z}, "model") for path in ("/tokenize", "/detokenize", "/apply-template")],
    ("/v1/sessions", {"id": "a" + Z}, "id"), ("/v1/sessions", {"from": "a" + Z}, "from"),
]
BASES = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT, "/v1/responses": RESPONSE, "/tokenize": {"prompt": "a"},
         "/detokenize": {"tokens": [300]}, "/apply-template": {"messages": CHAT["messages"]}, "/v1/sessions": {}}


@pytest.mark.parametrize("path,add,param", NAMES, ids=lambda v: json.dumps(v)[:70] if isinstance(v, dict) else v)
def test_a_name_with_a_nul_is_another_name(server, path, add, param):
    """What stands behind the NUL is part of it: "tales\0x" is no way to say "tales"."""
    answer = server.post(path, {**BASES[path], **add})
    assert answer.status == 400 and answer.error["param"] == param, answer


@pytest.mark.parametrize("header", ["X-Session-Id", "Idempotency-Key", "X-Request-Id", "Authorization", "X-Tenant"])
def test_a_header_with_a_nul_is_refused(server, header):
    answer = server.raw(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{header}: a\0b\r\n\r\n".encode(), timeout=20)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"zero byte" in answer, answer


def test_text_may_hold_a_nul(server):
    """It is a character like others: it reaches the model, and what stands behind it too."""
    ids = server.post("/tokenize", {"prompt": "a\0b"}).json["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json["prompt"] == "a\0b"
    assert len(ids) > len(server.post("/tokenize", {"prompt": "a"}).json["tokens"]) + 1
    assert "a\0b" in server.post("/apply-template", {"messages": [{"role": "user", "content": "a\0b"}]}).json["prompt"]
    answer = server.post("/v1/completions", {"prompt": "a\0b", "max_tokens": 1, "echo": True})
    assert answer.json["choices"][0]["text"].startswith("a\0b") and answer.json["usage"]["prompt_tokens"] == len(ids), answer
    for add in ({"bad_words": ["a\0b"]}, {"user": "a\0b"}, {"metadata": {"a": "b\0c"}}):
        assert server.post("/v1/completions", {**COMPLETION, **add}).status == 200, add
    answer = server.post("/v1/completions", {**COMPLETION, "max_tokens": 9, "structured_outputs": {"choice": ["a\0b"]}})
    assert answer.json["choices"][0]["text"] == "a\0b", answer
    answer = server.post("/v1/responses", {**RESPONSE, "input": "a\0b", "instructions": "c\0d", "metadata": {"a": "b\0c"}})
    assert answer.json["metadata"] == {"a": "b\0c"} and answer.json["instructions"] == "c\0d", answer


def test_the_client_raises_its_own_errors(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model="tales", prompt="a", temperature=9)
    assert e.value.param == "temperature" and e.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as e:
        client.completions.create(model="another", prompt="a")
    assert e.value.code == "model_not_found" and e.value.param == "model"


def test_unknown_model(server):
    for path, base in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        answer = server.post(path, {**base, "model": "gpt"})
        assert answer.status == 404
        assert answer.error["code"] == "model_not_found" and answer.error["param"] == "model"
    assert server.get("/v1/models/gpt").status == 404


def test_too_long_prompt(own_server):
    s = own_server("--max-prompt-tokens", 100)
    assert s.post("/v1/completions", {"prompt": [5] * 100, "max_tokens": 1}).status == 200
    for body in ({"prompt": [5] * 101, "max_tokens": 1}, {"prompt": "a " * 300, "max_tokens": 1}):
        answer = s.post("/v1/completions", body)
        assert answer.status == 400, answer
        assert answer.error["code"] == "context_length_exceeded"
        assert answer.error["n_prompt_tokens"] >= 101 and answer.error["limit"] == 100
        assert "100" in answer.error["message"]


def test_queue_full_is_429_with_retry_after(own_server):
    s = own_server("--slots", 1, "--max-queue-requests", 1)
    endless = {"prompt": [5], "max_tokens": 1000000, "ignore_eos": True, "stream": True}
    running = s.open("POST", "/v1/completions", endless)
    body = json.dumps(endless).encode()
    waiting = s.socket()
    waiting.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                    % len(body) + body)
    s.wait_metric("rodimus_queue_requests", lambda n: n == 1)
    for stream in (False, True):
        answer = s.post("/v1/completions", {**COMPLETION, "stream": stream})
        assert answer.status == 429, answer
        assert answer.error["type"] == "rate_limit"
        assert int(answer.header("Retry-After")) >= 0
    # Choices count one by one: two cannot both be taken.
    assert s.post("/v1/completions", {**COMPLETION, "n": 2}).status == 429
    assert s.metric("rodimus_engine_requests_rejected_total") >= 2
    waiting.close()
    running[0].close()


def test_waiting_too_long_is_408(own_server):
    s = own_server("--slots", 1, "--request-timeout-ms", 300)
    connection, response = s.open("POST", "/v1/completions", {"prompt": [5], "max_tokens": 100000, "ignore_eos": True,
                                                               "stream": True})
    assert response.status == 200
    answer = s.post("/v1/completions", COMPLETION)
    assert answer.status == 408, answer
    assert answer.header("x-should-retry") == "false"
    connection.close()


def test_api_keys(own_server):
    s = own_server("--api-keys", "first,second")
    for headers in ({"Authorization": "Bearer first"}, {"Authorization": "Bearer second"}, {"X-Api-Key": "second"}):
        assert s.post("/v1/completions", COMPLETION, headers=headers).status == 200
        assert s.get("/v1/models", headers=headers).status == 200
    bodies = set()
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "firs"}, {"Authorization": "first"}, {"X-Api-Key": ""},
                    {"Authorization": "Bearer firstt"}):
        answer = s.post("/v1/completions", COMPLETION, headers=headers)
        assert answer.status == 401, headers
        bodies.add(answer.body)
        assert s.get("/v1/models", headers=headers).status == 401
        assert s.get("/metrics", headers=headers).status == 401
    assert len(bodies) == 1, "missing and wrong keys must look the same"
    for path in ("/health", "/health/live", "/health/ready"):
        assert s.get(path).status == 200
    assert "first" not in s.log() and "second" not in s.log()


def test_methods_and_paths(server):
    for method, path, status in (("GET", "/v1/completions", 405), ("DELETE", "/v1/chat/completions", 405), ("POST", "/v1/models", 405),
                                 ("PUT", "/health", 405), ("GET", "/nothing", 404), ("POST", "/v1/nothing", 404),
                                 ("GET", "/v1", 404), ("GET", "/v1/completions/", 404), ("GET", "/../etc/passwd", 404),
                                 ("GET", "/%2e%2e/etc/passwd", 404), ("GET", "//health", 404)):
        answer = server.ask(method, path, COMPLETION if method in ("POST", "PUT") else None)
        assert answer.status == status, (method, path, answer)
        assert answer.error["type"] == "invalid_request_error"
        if status == 405:
            assert answer.header("Allow")


def test_content_types(server):
    body = json.dumps(COMPLETION)
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        assert server.ask("POST", "/v1/completions", body, {"Content-Type": kind}).status == 200, kind
    for kind in ("text/xml", "multipart/form-data; boundary=x"):
        answer = server.ask("POST", "/v1/completions", body, {"Content-Type": kind})
        assert answer.status == 415, (kind, answer)


def test_request_ids(server):
    answer = server.post("/v1/completions", COMPLETION, headers={"X-Request-Id": "my-id.7"})
    assert answer.header("X-Request-Id") == "my-id.7"
    assert answer.json["id"] == "cmpl-my-id.7"
    made = [server.post("/v1/completions", COMPLETION).header("X-Request-Id") for _ in range(2)]
    assert all(made) and made[0] != made[1]
    # An error carries one too; and one that would break a header or a log line is not taken over.
    assert server.post("/v1/completions", {}).header("X-Request-Id")
    for evil in ("a b\tc", "x" * 5000, "\x7f", '"quoted"'):
        got = server.post("/v1/completions", COMPLETION, headers={"X-Request-Id": evil})
        assert got.status in (200, 400, 431), evil
        if got.status == 200:
            assert len(got.header("X-Request-Id")) <= 256
    assert "my-id.7" in server.log()


@pytest.mark.parametrize("path", ["/v1/models/" + "%CC%BA" * 200, "/v1/models/a" + "%CC%BA" * 200, "/v1/models/%FF%FE", "/%F0%9F%8C",
                                  "/" + "%E4%BD%A0" * 100, "/a" + "%E4%BD%A0" * 100, "/aa" + "%E4%BD%A0" * 100])
def test_what_is_quoted_is_whole_characters(server, path):
    answer = server.get(path)
    assert answer.status == 404 and answer.body.decode("utf-8")
    assert answer.error["message"]


def test_a_long_name_is_cut_between_characters(server):
    for first in ("", "a"):
        answer = server.post("/v1/completions", json.dumps({**COMPLETION, "model": first + "\u4f60" * 60}, ensure_ascii=False).encode())
        assert answer.status == 404 and answer.error["code"] == "model_not_found"
        answer = server.post("/v1/completions", ("{%s}" % ",".join(['"%s": 1' % (first + "\u4f60" * 60)] * 2)).encode())
        assert answer.status == 400 and answer.error["message"]


def test_what_is_said_of_a_limit_of_tokens_is_true(server):
    """Whoever does what the message says is answered, and the message names the field that was sent."""
    ask = {"/v1/completions": {"prompt": "Once"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
           "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}]}, "/v1/responses": {"input": "Hi", "store": False}}
    fields = {"/v1/messages": ["max_tokens"], "/v1/responses": ["max_output_tokens", "max_new_tokens", "n_predict"]}
    for path, body in ask.items():
        for field in fields.get(path, ["max_tokens", "max_completion_tokens", "max_new_tokens", "n_predict"]):
            lows = set()
            for wrong in (-2, 0, 2**31):
                answer = server.post(path, {**body, field: wrong})
                if wrong == 0 and path == "/v1/completions":
                    assert answer.status == 200, answer
                    lows.add("0")
                    continue
                message = answer.json["error"]["message"]
                found = re.fullmatch(rf"{field} must be (\d+) to 2147483647, not {wrong}\.", message)
                assert answer.status == 400 and answer.json["error"]["param"] == field and found, (path, field, wrong, message)
                lows.add(found.group(1))
            assert len(lows) == 1, (path, field, lows)
            assert server.post(path, {**body, field: max(int(lows.pop()), 1)}).status == 200


def test_min_tokens_names_the_limit_that_was_sent(server):
    for field in ("max_tokens", "max_completion_tokens", "max_new_tokens"):
        answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], field: 2, "min_tokens": 3})
        assert answer.status == 400 and answer.error["message"] == f"min_tokens is 3, more than {field} (2).", answer


def test_zero_tokens_are_for_turns_whichever_name_the_limit_has(server):
    for field in ("max_tokens", "max_completion_tokens"):
        turn = {"messages": [{"role": "user", "content": "Hi"}], "session_id": f"zero-{field}", "session_create": True}
        assert server.post("/v1/chat/completions", {**turn, field: 0}).status == 200
        answer = server.post("/v1/chat/completions", {**turn, field: -1})
        assert answer.status == 400 and answer.error["message"] == f"{field} must be 0 to 2147483647, not -1.", answer
