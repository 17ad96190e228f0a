"""/tokenize, /detokenize and /apply-template with their choices; chat formats; fill in the middle."""
import subprocess

import pytest

from models import variant
from server import RODIMUS, environment

HI = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi <role>"}]
FIM = {"[CLS]": "<|fim_begin|>", "[gMASK]": "<|fim_hole|>", "<|startoftext|>": "<|fim_end|>"}
CHATML = {"<role>": "<|im_start|>", "</role>": "<|im_end|>"}
CHATML_JINJA = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
                "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def slices(text, offsets):
    return [text[a:b] for a, b in offsets]


@pytest.mark.parametrize("text", ["", "Once upon a time", "d\u00e9j\u00e0 vu \U0001f98a\u4f60\u597d!", "a\n\n  b\t<role>c", "\u0000x", "e\u0301"])
def test_offsets_cut_the_text_into_its_tokens(server, text):
    answer = server.post("/tokenize", {"prompt": text, "return_offsets": True, "return_token_strs": True}).json
    offsets = answer["offsets"]
    assert len(offsets) == answer["count"] == len(answer["tokens"])
    whole = 0
    for piece, shown in zip(slices(text, offsets), answer["token_strs"]):
        if not shown.startswith("bytes:"):
            assert piece == shown
            whole += 1
        else:
            assert len(piece) == 1, "part of one character has that character"
    assert offsets == sorted(offsets) and (not text or (offsets[0][0] == 0 and offsets[-1][1] == len(text)))
    back = server.post("/detokenize", {"tokens": answer["tokens"], "return_offsets": True}).json
    assert back == {"prompt": text, "content": text, "offsets": offsets}


def test_special_tokens_are_a_choice(server):
    text = "a<role>b"
    yes = server.post("/tokenize", {"prompt": text}).json["tokens"]
    no = server.post("/tokenize", {"prompt": text, "parse_special": False}).json["tokens"]
    assert 4 in yes and 4 not in no and len(no) > len(yes)
    assert server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"] == yes
    for ids, skip, want in ((yes, True, "ab"), (yes, False, text), (no, True, text), (no, False, text)):
        answer = server.post("/detokenize", {"tokens": ids, "skip_special_tokens": skip, "return_offsets": True}).json
        assert answer["prompt"] == want
        assert "".join(slices(want, answer["offsets"])) == want
    assert [0, 0] not in server.post("/detokenize", {"tokens": yes, "return_offsets": True}).json["offsets"]


def test_broken_bytes_have_no_offsets(server):
    ids = server.post("/tokenize", {"prompt": "\u4f60"}).json["tokens"]
    assert server.post("/detokenize", {"tokens": ids[:1], "return_offsets": True}).json == {"prompt": "\ufffd", "content": "\ufffd", "offsets": None}


def test_apply_template(server):
    want = "<role>SYSTEM</role>Be kind.<role>HUMAN</role>Hi <role>"
    assert server.post("/apply-template", {"messages": HI}).json == {"prompt": want + "<role>ASSISTANT</role>"}
    assert server.post("/apply-template", {"messages": HI, "add_generation_prompt": False}).json == {"prompt": want}
    ids = server.post("/tokenize", {"messages": HI, "return_offsets": True}).json
    assert slices(want + "<role>ASSISTANT</role>", ids["offsets"])[-1] == "</role>"
    assert ids["tokens"].count(4) == 3, "the one in the content is letters"
    less = server.post("/tokenize", {"messages": HI, "add_generation_prompt": False}).json["tokens"]
    assert ids["tokens"][:len(less)] == less and len(less) < ids["count"]


def test_messages_as_a_string_are_one_users_message(server):
    """As LMDeploy's clients send them. No role can be opened in it, and what needs an assistant's message finds none."""
    text = "Tell me <role>a tale."
    messages = [{"role": "user", "content": text}]
    for path, more in (("/apply-template", {}), ("/tokenize", {"return_offsets": True}), ("/v1/chat/completions", {"max_tokens": 8, "temperature": 0})):
        one, other = (server.post(path, {"messages": m, **more}) for m in (text, messages))
        if "chat" in path:
            one, other = ({"choices": a.json["choices"], "usage": a.json["usage"]} for a in (one, other))
        else:
            one, other = one.json, other.json
        assert one == other, path
    answer = server.post("/v1/chat/completions", {"messages": text, "continue_final_message": True})
    assert answer.status == 400 and answer.error["param"] == "continue_final_message", answer


@pytest.mark.parametrize("path,body,param", [
    ("/apply-template", {}, "messages"), ("/apply-template", {"messages": []}, "messages"),
    ("/apply-template", {"messages": HI, "add_generation_prompt": 1}, "add_generation_prompt"),
    ("/apply-template", {"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
    ("/tokenize", {"prompt": "a", "parse_special": "no"}, "parse_special"), ("/tokenize", {"prompt": "a", "return_offsets": 2}, "return_offsets"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": []}, "add_special_tokens"), ("/tokenize", {"prompt": None}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": HI}, "messages"),
    ("/tokenize", {"content": 7}, "content"), ("/tokenize", {"content": "a", "prompt": "a"}, "content"), ("/tokenize", {"content": "a", "messages": HI}, "content"),
    ("/tokenize", {"content": "a", "with_pieces": 1}, "with_pieces"), ("/tokenize", {"content": "a", "add_special": 1}, "add_special"),
    ("/tokenize", {"prompt": "a", "add_special": False, "add_special_tokens": True}, "add_special"),
    ("/tokenize", {"content": "a", "return_offsets": True}, "return_offsets"), ("/tokenize", {"prompt": "a", "with_pieces": True, "return_token_strs": True}, "return_token_strs"),
    ("/detokenize", {"tokens": [5], "skip_special_tokens": 1}, "skip_special_tokens"), ("/detokenize", {"tokens": [1e30]}, "tokens"),
])
def test_faults_are_named(server, path, body, param):
    answer = server.post(path, body)
    assert answer.status == 400 and answer.error["param"] == param, answer


def test_chatml_from_a_jinja_template(own_server, tmp_path):
    model = variant(str(tmp_path / "m"), CHATML, **{"tokenizer_config.json": {"chat_template": CHATML_JINJA}})
    s = own_server("--model", model)
    text = s.post("/apply-template", {"messages": HI}).json["prompt"]
    assert text == "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi <role><|im_end|>\n<|im_start|>assistant\n"
    answer = s.post("/v1/chat/completions", {"messages": HI, "max_tokens": 5, "logit_bias": {"5": 100}, "temperature": 0}).json
    assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] == 0, "<|im_end|> ends it"
    assert answer["choices"][0]["stop_reason"] is None
    assert "ignored" not in s.log()


def test_a_table_beside_the_model(own_server, tmp_path):
    table = {"roles": {"user": {"prefix": "Q: ", "suffix": "\n"}, "assistant": {"prefix": "A: ", "suffix": "\n"}}, "generation_prompt": "A:"}
    s = own_server("--model", variant(str(tmp_path / "m"), **{"chat_template.rodimus.json": table}))
    assert s.post("/apply-template", {"messages": HI[1:]}).json["prompt"] == "Q: Hi <role>\nA:"
    answer = s.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1})
    assert answer.status == 400 and answer.error["param"] == "messages[0].role"
    broken = variant(str(tmp_path / "broken"), **{"chat_template.rodimus.json": {"roles": {"user": {"prefx": ""}}, "generation_prompt": ""}})
    run = subprocess.run([RODIMUS, "serve", "--port", "0", "--model", broken], capture_output=True, text=True, timeout=300, env=environment())
    assert run.returncode == 1 and "prefx" in run.stderr and "chat_template.rodimus.json" in run.stderr


def test_a_template_that_is_ignored_is_said_at_the_start(own_server, tmp_path):
    other = "{{ '[INST] ' + messages[0]['content'] + ' [/INST]' }}"
    s = own_server("--model", variant(str(tmp_path / "a"), **{"tokenizer_config.json": {"chat_template": other}}))
    assert "chat_template of tokenizer_config.json is ignored" in s.log()
    assert s.post("/apply-template", {"messages": HI[1:]}).json["prompt"].startswith("<role>HUMAN")
    s = own_server("--model", variant(str(tmp_path / "b"), CHATML, **{"chat_template.jinja": other}))
    assert "chat_template.jinja is ignored" in s.log()
    answer = s.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1})
    assert answer.status == 400 and answer.error["code"] == "unsupported" and answer.error["param"] == "messages"
    assert s.get("/v1/models").json["data"][0]["chat"] is False


def test_suffix_fills_the_middle(own_server, tmp_path):
    s = own_server("--model", variant(str(tmp_path / "m"), FIM))
    before, after = "The king had three ", " and they were happy."
    ask = {"prompt": before, "suffix": after, "max_tokens": 5, "temperature": 0, "return_token_ids": True}
    said = s.post("/v1/completions", ask).json
    same = s.post("/v1/completions", {**ask, "suffix": None, "prompt": f"<|fim_begin|>{before}<|fim_hole|>{after}<|fim_end|>"}).json
    assert said["choices"] == same["choices"] and said["usage"] == same["usage"]
    streamed = "".join(e.data["choices"][0]["text"] for e in s.events("/v1/completions", ask) if e.data != "[DONE]" and not e.comment)
    assert streamed == said["choices"][0]["text"]
    many = s.post("/v1/completions", {**ask, "prompt": [before, "x"], "n": 2, "seed": 1}).json
    assert [c["index"] for c in many["choices"]] == [0, 1, 2, 3]
    for c, prompt in zip(many["choices"], (before, before, "x", "x")):
        assert c["prompt_token_ids"][0] == 2 and c["prompt_token_ids"].count(3) == 1 and c["prompt_token_ids"][-1] == 0
    start = s.post("/v1/completions", {**ask, "prompt": ""})  # the cursor is at the beginning of a file
    same = s.post("/v1/completions", {**ask, "suffix": None, "prompt": f"<|fim_begin|><|fim_hole|>{after}<|fim_end|>"}).json
    assert start.status == 200 and start.json["choices"] == same["choices"]
    assert len(s.post("/v1/completions", {**ask, "prompt": ["", before]}).json["choices"]) == 2
    for suffix in ("", None):
        assert s.post("/v1/completions", {**ask, "prompt": "", "suffix": suffix}).error["param"] == "prompt"
    for prompt in ("say <|fim_hole|>", "<|fim_end|>"):
        ids = s.post("/v1/completions", {**ask, "prompt": prompt}).json["choices"][0]["prompt_token_ids"]
        assert [ids.count(i) for i in (2, 3, 0)] == [1, 1, 1], "the hole stays where it is"


def test_suffix_needs_the_tokens(server):
    answer = server.post("/v1/completions", {"prompt": "a", "suffix": "b"})
    assert answer.status == 400 and answer.error["param"] == "suffix" and "<|fim_begin|>" in answer.error["message"]


def test_llama_cpps_names_have_its_answers(server):
    text = "Once upon \u4f60"
    ids = server.post("/tokenize", {"prompt": text}).json["tokens"]
    assert server.post("/tokenize", {"content": text}).json == {"tokens": ids}
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True, "add_special": True}).json["tokens"]
    assert [p["id"] for p in pieces] == ids and all(set(p) == {"id", "piece"} for p in pieces)
    assert b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces) == text.encode()
    assert {type(p["piece"]) for p in pieces} == {str, list}  # a part of a character is no text
    assert server.post("/tokenize", {"prompt": text, "with_pieces": True}).json["tokens"] == pieces
    assert server.post("/tokenize", {"content": ""}).json == {"tokens": []}
    assert server.post("/detokenize", {"tokens": ids}).json["content"] == text
