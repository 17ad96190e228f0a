"""What clients and routers of other servers ask first: names of the model, tokenizer, limits, paths without /v1, keys of answers."""
import json
import os

import pytest
from openai.types import Completion
from openai.types import Model as ModelType
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from models import variant
from server import MODEL

HI = [{"role": "user", "content": "Hi"}]


def test_tokenizer_info_is_what_lm_evaluation_harness_asks_of_a_remote_tokenizer(server):
    info = server.get("/tokenizer_info").json
    assert info["eos_token"] == "<|endoftext|>" and info["bos_token"] == "<|startoftext|>" and info["pad_token"] is None
    assert info["add_bos_token"] is False and info["vocab_size"] == 4096
    for token, want in ((info["bos_token"], [0]), (info["eos_token"], [1])):  # the harness takes the first id of the text for the token's
        assert server.post("/tokenize", {"prompt": token, "add_special_tokens": False}).json["tokens"] == want


def test_a_router_of_sglang_finds_names_and_limits(server):
    slots = server.get("/slots").json["slots"]
    for path in ("/server_info", "/get_server_info"):
        info = server.get(path).json
        assert info["served_model_name"] == info["model_path"] == "tales" and info["max_running_requests"] == slots and info["dp_size"] == 1
        assert not ("model" in info and "model_id" in info)  # two names of one field, which its parser refuses
    for path in ("/model_info", "/get_model_info"):
        info = server.get(path).json
        assert info["is_generation"] is True and info["model_path"] == "tales" and info["architectures"] == ["RodimusForCausalLM"]


def test_paths_work_without_v1(server):
    for path, body in (("/completions", {"prompt": "Once", "max_tokens": 1}), ("/chat/completions", {"messages": HI, "max_tokens": 1}),
                       ("/responses", {"input": "Hi", "max_output_tokens": 1})):
        answer = server.post(path, body)
        assert answer.status == 200 and answer.json["model"] == "tales", (path, answer)
    assert server.get("/models").json == server.get("/v1/models").json
    assert server.get("/models/tales").json == server.get("/v1/models/tales").json
    made = server.post("/responses", {"input": "Hi", "max_output_tokens": 1}).json["id"]
    assert server.ask("DELETE", f"/responses/{made}").json["deleted"] is True
    for path in ("/v1/v1/completions", "/sessions", "/v1/tokenize"):
        assert server.get(path).status == 404, path


def test_each_name_of_a_model_is_taken_and_answers_have_the_first(own_server):
    s = own_server("--model-name", "first,second-name,Third/x")
    assert [(m["id"], m["root"]) for m in s.get("/v1/models").json["data"]] == [("first", "first"), ("second-name", "first"), ("Third/x", "first")]
    for name in ("first", "second-name", "Third/x"):
        answer = s.post("/v1/completions", {"prompt": "Once", "max_tokens": 1, "model": name})
        assert answer.status == 200 and answer.json["model"] == "first", (name, answer)
        assert s.get(f"/v1/models/{name}").json["id"] == name
    for name in ("second", "first,second-name", "Third", ",", "name"):
        assert s.post("/v1/completions", {"prompt": "Once", "model": name}).error["code"] == "model_not_found", name
        assert s.get(f"/v1/models/{name}").status == 404, name


def test_any_name_is_taken_and_said_again_where_the_last_is_a_star(own_server):
    for names, first in (("first,*", "first"), ("*", "tales")):
        s = own_server("--model-name", names)
        assert [m["id"] for m in s.get("/v1/models").json["data"]] == [first]
        for name in (first, "claude-sonnet-4-5", "vendor/any:model", "\u00e9" * 63):
            answer = s.post("/v1/completions", {"prompt": "Once", "max_tokens": 1, "model": name})
            assert answer.status == 200 and answer.json["model"] == name, (name, answer)
        assert s.get("/v1/models/claude-sonnet-4-5").json["id"] == "claude-sonnet-4-5"
        assert s.post("/v1/completions", {"prompt": "Once", "max_tokens": 1}).json["model"] == first
        turn = {"prompt": "Once", "max_tokens": 1, "model": "gpt-5", "session_id": f"any-{first}", "session_create": True}
        one, again = (s.post("/v1/completions", turn, headers={"Idempotency-Key": "k"}).json for _ in range(2))
        assert one == again and one["model"] == "gpt-5"
        for path, more in (("/v1/messages", {"max_tokens": 1}), ("/v1/responses", {"input": "Hi", "max_output_tokens": 1}), ("/v1/chat/completions", {"max_tokens": 1})):
            body = {**more, "model": "any"} if "input" in more else {**more, "messages": HI, "model": "any"}
            assert s.post(path, body).json["model"] == "any", path
        for name in ("x" * 128, "a\nb"):
            assert s.post("/v1/completions", {"prompt": "Once", "model": name}).error["code"] == "model_not_found", name


def test_a_star_stands_last(own_server):
    with pytest.raises(RuntimeError, match="names with \\* as the last one"):
        own_server("--model-name", "a,*,b")


def whole_and_chunks(server, path, body):
    yield server.post(path, body).json
    for event in server.events(path, {**body, "stream_options": {"include_usage": True}}):
        if not event.comment and event.data != "[DONE]":
            yield event.data


def test_the_fingerprint_is_the_same_in_each_answer_and_chunk(server):
    found = set()
    for path, body in (("/v1/completions", {"prompt": "Once", "max_tokens": 3}), ("/v1/chat/completions", {"messages": HI, "max_tokens": 3})):
        found |= {answer["system_fingerprint"] for answer in whole_and_chunks(server, path, body)}
    assert len(found) == 1 and found.pop().startswith("fp_")


def test_servers_that_compute_with_other_numbers_have_other_fingerprints(server, own_server):
    """The same weights in fp32: other last bits."""
    ours, other = (s.post("/v1/completions", {"prompt": "Once", "max_tokens": 1}).json["system_fingerprint"] for s in (server, own_server("--precision", "fp32")))
    assert ours != other


def test_answers_have_every_key_that_the_openai_package_requires(server):
    """The package itself reads without looking: its types, asked to validate, miss a key that they require."""
    chat = {"messages": HI, "max_tokens": 3, "logprobs": True, "top_logprobs": 1}
    whole, *chunks = whole_and_chunks(server, "/v1/chat/completions", chat)
    ChatCompletion.model_validate(whole)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    assert len(chunks) > 3
    text = whole_and_chunks(server, "/v1/completions", {"prompt": "Once", "max_tokens": 3, "logprobs": 1})
    Completion.model_validate(next(text))
    Response.model_validate(server.post("/v1/responses", {"input": "Hi", "max_output_tokens": 3}).json)
    ModelType.model_validate(server.get("/v1/models/tales").json)


def test_prompt_logprobs_of_a_chat_stand_beside_its_choices(server):
    ids = server.post("/tokenize", {"messages": HI}).json["tokens"]
    scored = server.post("/v1/completions", {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 2}).json["choices"][0]["prompt_logprobs"]
    body = {"messages": HI, "max_tokens": 1, "prompt_logprobs": 2}
    answer = server.post("/v1/chat/completions", body).json
    assert answer["prompt_logprobs"] == scored and len(scored) == len(ids) and scored[0] is None
    assert "prompt_logprobs" not in answer["choices"][0]
    first, *rest = [e.data for e in server.events("/v1/chat/completions", body) if not e.comment and e.data != "[DONE]"]
    assert first["prompt_logprobs"] == scored and not any("prompt_logprobs" in chunk for chunk in rest)


def test_truncation_side_chooses_the_end_that_stays(server):
    prompt = [5, 6, 7, 8, 9]
    for side, want in ((None, [7, 8, 9]), ("left", [7, 8, 9]), ("right", [5, 6, 7])):
        answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "truncate_prompt_tokens": 3, "truncation_side": side, "return_token_ids": True})
        assert answer.json["choices"][0]["prompt_token_ids"] == want, side


def test_tokens_may_be_shown_as_their_ids(server):
    body = {"prompt": "Once", "max_tokens": 2, "temperature": 0, "logprobs": 1, "return_tokens_as_token_ids": True, "return_token_ids": True}
    choice = server.post("/v1/completions", body).json["choices"][0]
    want = [f"token_id:{i}" for i in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == want and [set(top) for top in choice["logprobs"]["top_logprobs"]] == [{token} for token in want]
    chat = server.post("/v1/chat/completions", {"messages": HI, "max_tokens": 2, "temperature": 0, "logprobs": True, "top_logprobs": 1,
                                                "return_tokens_as_token_ids": True, "return_token_ids": True}).json["choices"][0]
    assert [t["token"] for t in chat["logprobs"]["content"]] == [f"token_id:{i}" for i in chat["token_ids"]]
    assert bytes(b for t in chat["logprobs"]["content"] for b in t["bytes"]).decode() == chat["message"]["content"]


def test_a_prompt_without_special_tokens_has_no_beginning(own_server, tmp_path):
    with open(os.path.join(MODEL, "tokenizer_config.json"), encoding="utf-8") as f:
        config = {**json.load(f), "add_bos_token": True}
    s = own_server("--model", variant(tmp_path / "begins", **{"tokenizer_config.json": config}))
    assert s.get("/tokenizer_info").json["add_bos_token"] is True
    body = {"prompt": "Once", "max_tokens": 1, "return_token_ids": True}
    plain, without = (s.post("/v1/completions", {**body, **more}).json["choices"][0]["prompt_token_ids"] for more in ({}, {"add_special_tokens": False}))
    assert plain == [0, *without]
    for more, want in (({"prompt": "Once"}, plain), ({"prompt": "Once", "add_special": False}, without), ({"content": "Once"}, without),
                       ({"content": "Once", "add_special": True}, plain), ({"content": "Once", "add_special_tokens": True}, plain)):
        assert s.post("/tokenize", more).json["tokens"] == want, more  # llama.cpp's content asks for no beginning
    turn = s.post("/v1/completions", {**body, "session_id": "a", "session_create": True, "add_special_tokens": False}).json
    assert turn["usage"]["prompt_tokens"] == len(without)
    assert s.post("/v1/completions", {**body, "session_id": "b", "session_create": True}).json["usage"]["prompt_tokens"] == len(plain)
