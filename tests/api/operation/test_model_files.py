"""The files of a model as Python writes them: numbers without bounds, halves of characters, NUL; tokens that end an answer."""
import json
import os
import struct

import pytest

from models import variant
from server import MODEL, command

ODD = {"model_max_length": 1000000000000000019884624838656, "odd": [float("inf"), -float("inf"), float("nan"), 2**64, -2**63 - 1, 10**400],
       "half": ["\ud800", "a\udfff\ud83d\ude00", "\udc00\ud800"], "nul": "a\u0000b", "key\u0000": {"\ud83d": 1, "\u0000": "\u0000"}}
CHATML = {"<role>": "<|im_start|>", "</role>": "<|im_end|>"}
CHATML_JINJA = "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
HI = [{"role": "user", "content": "Hi"}]


def read(name):
    with open(os.path.join(MODEL, name), encoding="utf-8") as f:
        return json.load(f)


def write_header(folder, change):
    """model.safetensors with its header changed by a function, which gives bytes to add to the data."""
    with open(os.path.join(MODEL, "model.safetensors"), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    data += change(header, len(data))
    text = json.dumps(header).encode()
    os.unlink(os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def test_what_nobody_reads_ends_no_start_whatever_python_wrote(server, own_server, tmp_path):
    files = {name: {**ODD, **read(name)} for name in ("config.json", "generation_config.json", "tokenizer_config.json")}
    tokenizer = {**ODD, **read("tokenizer.json"), "padding": ODD, "truncation": ODD}
    tokenizer["model"] |= {"unk_token": "\ud800", "odd": ODD}
    files |= {"tokenizer.json": tokenizer, "special_tokens_map.json": ODD, "added_tokens.json": ODD}
    model = variant(str(tmp_path / "m"), **files)

    def unused(header, n):
        header["__metadata__"] = {"format": "pt", **ODD}
        header["unused.codes"] = {"dtype": "F4_E2M1", "shape": [2, 3], "data_offsets": [n, n + 3], "odd": ODD}
        header["unused\u0000\ud800\n"] = {"dtype": "F4\u0000\udc00", "shape": [1], "data_offsets": [n + 3, n + 4]}
        return b"abcd"

    write_header(model, unused)
    s = own_server("--model", model)
    body = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}
    assert s.post("/v1/completions", body).json["choices"] == server.post("/v1/completions", body).json["choices"]
    assert "2 tensors are in the files that this model does not use, unused.codes first" in s.log(), "they are told as each tensor without a use"


def test_the_last_of_a_key_that_stands_twice_counts(server, own_server, tmp_path):
    model = variant(str(tmp_path / "m"))
    write_header(model, lambda header, n: header.update(__metadata__={"format": "pt", "twicE": "1", "twice": "2"}) or b"")
    path = os.path.join(model, "model.safetensors")
    with open(path, "rb") as f:
        data = f.read().replace(b"twicE", b"twice", 1)
        names = [name for name in json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]]) if name != "__metadata__"]
    os.unlink(path)
    with open(os.path.join(model, "m-1.safetensors"), "wb") as f:
        f.write(data)
    index = {"metadata": {"x": 1, "y": 2}, "weight_map": {"twice": "none.safetensors", **dict.fromkeys(names, "m-1.safetensors")}}
    with open(os.path.join(model, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(index).replace('"y"', '"x"').replace('"twice"', json.dumps(names[0])))
    s = own_server("--model", model)
    body = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}
    assert s.post("/v1/completions", body).json["choices"] == server.post("/v1/completions", body).json["choices"]


@pytest.mark.parametrize("file,key,value", [
    ("config.json", "d_model", 2**70), ("config.json", "norm_epsilon", float("nan")), ("config.json", "model_type", "rodimus\u0000"),
    ("config.json", "block_type", "rodimus\ud800"), ("config.json", "eos_token_id", 10**30), ("config.json", "vocab_size", float("inf")),
    ("generation_config.json", "temperature", float("inf")), ("generation_config.json", "top_k", 2**63),
    ("generation_config.json", "eos_token_id", [float("nan")]),
    ("tokenizer_config.json", "eos_token", "\ud800"), ("tokenizer_config.json", "eos_token", float("nan")),
    ("tokenizer_config.json", "chat_template", float("nan")), ("tokenizer_config.json", "add_bos_token", 2**64),
    ("tokenizer.json", "added_tokens", [{"id": 2**70, "content": "x"}]), ("tokenizer.json", "added_tokens", [{"id": 5000, "content": "\ud800"}]),
    ("tokenizer.json", "pre_tokenizer", {"type": "Split", "pattern": {"String": "\ud800"}, "behavior": "Isolated"}),
    ("tokenizer.json", "normalizer", {"type": "NFC\u0000"}),
], ids=lambda x: None if isinstance(x, str) and "." in x else repr(x).encode("ascii", "backslashreplace").decode()[:40])
def test_an_odd_value_of_what_is_read_is_named(tmp_path, file, key, value):
    done = command("serve", "--port", 0, "--model", variant(str(tmp_path / "m"), **{file: {**read(file), key: value}}))
    word = {"added_tokens": "added", "d_model": "d_model is 1.18"}.get(key, key)
    assert done.returncode == 1 and file in done.stderr and word in done.stderr, done


def test_a_nul_beside_it_does_not_lose_the_chat_template(own_server, tmp_path):
    config = {"chat_template": CHATML_JINJA, "extra": "\u0000", **ODD}
    s = own_server("--model", variant(str(tmp_path / "m"), CHATML, **{"tokenizer_config.json": config}))
    assert s.post("/apply-template", {"messages": HI}).json["prompt"].startswith("<|im_start|>user\nHi")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"chat_template": "x"', '{"a": 01}'])
def test_a_file_that_cannot_be_parsed_is_not_taken_for_none(tmp_path, text):
    for file in ("tokenizer_config.json", "generation_config.json", "chat_template.rodimus.json"):
        done = command("serve", "--port", 0, "--model", variant(str(tmp_path / file), **{file: text}))
        assert done.returncode == 1 and file in done.stderr, done


@pytest.mark.parametrize("eos_token", [".", {"content": ".", "__type": "AddedToken"}], ids=["text", "object"])
def test_the_tokenizers_eos_token_ends_an_answer_and_a_difference_is_logged(own_server, tmp_path, eos_token):
    dot = read("tokenizer.json")["model"]["vocab"]["."]
    config = {**read("tokenizer_config.json"), "eos_token": eos_token}
    s = own_server("--model", variant(str(tmp_path / "m"), **{"tokenizer_config.json": config}))
    for end in (1, dot):
        answer = s.post("/v1/completions", {"prompt": "Once", "max_tokens": 5, "logit_bias": {str(end): 100}, "temperature": 0}).json
        assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] == 0, answer
    lines = [line for line in s.log().splitlines() if "end tokens differ" in line]
    assert len(lines) == 1 and "eos_token_id of config.json is 1; eos_token_id of generation_config.json is 1; " in lines[0], lines
    assert f"eos_token of tokenizer_config.json is {dot}" in lines[0], lines


def test_end_tokens_that_agree_are_not_told(own_server, tmp_path):
    files = {"config.json": {**read("config.json"), "eos_token_id": [1] * 12}, "tokenizer_config.json": {"eos_token": {"content": "<|endoftext|>"}}}
    s = own_server("--model", variant(str(tmp_path / "m"), **files))
    assert "end tokens" not in s.log()
    out = command("inspect", str(tmp_path / "m"))
    assert out.returncode == 0 and "end tokens 1\n" in out.stdout, out


def test_an_eos_token_that_is_no_token_is_told(own_server, tmp_path):
    s = own_server("--model", variant(str(tmp_path / "m"), **{"tokenizer_config.json": {"eos_token": "</nothing>"}}))
    assert "eos_token of tokenizer_config.json is no token of tokenizer.json" in s.log()


def test_quantise_keeps_the_spelling_of_what_it_does_not_change(tmp_path):
    config = {**ODD, **read("config.json"), "quantization_config": {}, "tie_word_embeddings": True, "text": "},{\"\\"}
    model = variant(str(tmp_path / "m"), **{"config.json": config})
    done = command("quantise", model, str(tmp_path / "out"), "--weights", "int8")
    assert done.returncode == 0, done
    with open(tmp_path / "out" / "config.json", encoding="utf-8") as f:
        text = f.read()
    assert "1000000000000000019884624838656" in text and str(10**400) in text
    kept, source = json.loads(text), json.loads(json.dumps(config))
    assert kept.pop("tie_word_embeddings") is False and kept.pop("quantization_config")["quant_method"] == "compressed-tensors"
    del source["tie_word_embeddings"], source["quantization_config"]
    assert json.dumps(kept) == json.dumps(source)
    assert command("inspect", str(tmp_path / "out")).returncode == 0
