"""Prompts said again and scored, read once for many choices, and what may not be said: raw HTTP and the openai package."""
import asyncio
import math
import threading

import openai
import pytest

from server import DEVICE, FREED_BYTES

FOX = "The fox said to the raven, \"How glossy are thy feathers"
SLACK = 2e-4  # against float64


def tokens_of(server, text):
    return server.post("/tokenize", {"prompt": text}).json["tokens"]


def text_of(server, ids):
    return server.post("/detokenize", {"tokens": ids}).json["prompt"]


def same_places(logprobs, text):
    """Every token stands in the text where text_offset says."""
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"])
    for token, at in zip(logprobs["tokens"], logprobs["text_offset"]):
        assert text[at:at + len(token)] == token


# ---- echo and logprobs: the legacy object ----
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("kind", ["text", "ids"])
def test_scores_equal_the_reference(server, cases, number, kind):
    case = cases[number]
    prompt = case["prompt"] if kind == "text" else case["prompt_ids"]
    answer = server.complete(prompt, max_tokens=3, echo=True, logprobs=2)
    choice = answer["choices"][0]
    got, n = choice["logprobs"], len(case["prompt_ids"])
    assert choice["text"] == case["prompt"] + text_of(server, case["greedy_ids"][:3])
    assert set(got) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len(got["tokens"]) == n + 3
    assert got["token_logprobs"][0] is None and got["top_logprobs"][0] is None
    want = case["prompt_logprobs"][1:n] + case["greedy_logprobs"][:3]
    worst = max(abs(a - b) for a, b in zip(got["token_logprobs"][1:], want))
    assert worst < SLACK, worst
    for token, logprob, top in zip(got["tokens"][1:], got["token_logprobs"][1:], got["top_logprobs"][1:]):
        assert 2 <= len(top) <= 3 and top[token] == logprob
        assert logprob <= max(top.values()) and sum(math.exp(p) for p in top.values()) <= 1.0001
    same_places(got, choice["text"])
    assert answer["usage"]["prompt_tokens"] == n and answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("logprobs", [None, 0, 1, 5, 20])
@pytest.mark.parametrize("max_tokens", [0, 1, 4])
@pytest.mark.parametrize("echo", [False, True])
def test_every_combination(server, logprobs, max_tokens, echo):
    n = len(tokens_of(server, FOX))
    answer = server.complete(FOX, max_tokens=max_tokens, echo=echo, logprobs=logprobs)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == n and answer["usage"]["completion_tokens"] == max_tokens
    assert choice["text"].startswith(FOX) == echo
    if max_tokens == 0:
        assert choice["text"] == (FOX if echo else "")
    if logprobs is None:
        assert choice["logprobs"] is None
        return
    got = choice["logprobs"]
    assert len(got["tokens"]) == (n if echo else 0) + max_tokens
    for i, (top, own) in enumerate(zip(got["top_logprobs"], got["token_logprobs"])):
        if echo and i == 0:
            assert top is None and own is None
        else:
            assert max(1, logprobs) <= len(top) <= logprobs + 1 and own in top.values()
    same_places(got, choice["text"])


def test_a_prompt_of_one_token(server):
    for more in ({"logprobs": 1}, {"logprobs": 1, "prompt_logprobs": 1}):
        choice = server.complete([300], max_tokens=0, echo=True, **more)["choices"][0]
        assert choice["logprobs"]["token_logprobs"] == [None] and choice["logprobs"]["top_logprobs"] == [None]
        assert choice.get("prompt_logprobs", [None]) == [None]


def test_special_and_broken_tokens(server):
    """A prompt whose tokens are parts of characters, and special ones, has a place for each."""
    ids = tokens_of(server, "<|endoftext|>Öl — 狐")
    choice = server.complete(ids, max_tokens=0, echo=True, logprobs=0)["choices"][0]
    assert choice["text"] == "<|endoftext|>Öl — 狐"
    assert len(choice["logprobs"]["tokens"]) == len(ids)
    assert choice["logprobs"]["text_offset"] == sorted(choice["logprobs"]["text_offset"])


@pytest.mark.parametrize("stream", [False, True])
def test_an_end_token_has_its_place_in_the_scores(client, stream):
    """lm-evaluation-harness takes the last entry for the one token that it lets be generated."""
    ask = dict(model="tales", prompt=FOX, max_tokens=1, temperature=0, echo=True, logprobs=1, logit_bias={"1": 100}, stream=stream)
    answer = client.completions.create(**ask)
    text, tokens, values, tops, offsets, finish = (joined(answer) if stream else whole(answer))[0]
    assert text == FOX and finish == "stop"
    assert tokens[-1] == "<|endoftext|>" and "".join(tokens[:-1]) == FOX and offsets[-1] == len(FOX)
    assert len(tokens) == len(values) == len(tops) and values[-1] == tops[-1]["<|endoftext|>"]
    if not stream:
        assert answer.usage.completion_tokens == 0


# ---- prompt_logprobs ----
def test_prompt_logprobs(server, cases):
    case = cases[0]
    choice = server.complete(case["prompt_ids"], max_tokens=1, prompt_logprobs=3)["choices"][0]
    got = choice["prompt_logprobs"]
    assert choice["logprobs"] is None and len(got) == len(case["prompt_ids"]) and got[0] is None
    for id_, entry, want in zip(case["prompt_ids"][1:], got[1:], case["prompt_logprobs"][1:]):
        own = entry[str(id_)]
        assert abs(own["logprob"] - want) < SLACK
        assert own["decoded_token"] == text_of(server, [id_])
        ranks = sorted(e["rank"] for e in entry.values())
        assert ranks[:3] == [1, 2, 3] and len(entry) == (3 if own["rank"] <= 3 else 4)
        by_rank = sorted(entry.values(), key=lambda e: e["rank"])
        assert [e["logprob"] for e in by_rank] == sorted((e["logprob"] for e in entry.values()), reverse=True)


def test_prompt_logprobs_and_logprobs_have_their_own_numbers(server):
    choice = server.complete(FOX, max_tokens=2, echo=True, logprobs=1, prompt_logprobs=4)["choices"][0]
    assert all(len(t) <= 2 for t in choice["logprobs"]["top_logprobs"][1:])
    assert all(len(t) >= 4 for t in choice["prompt_logprobs"][1:])
    choice = server.complete(FOX, max_tokens=2, echo=True, logprobs=4, prompt_logprobs=0)["choices"][0]
    assert all(len(t) >= 4 for t in choice["logprobs"]["top_logprobs"][1:])
    assert all(len(t) == 1 for t in choice["prompt_logprobs"][1:])


# ---- the openai package ----
def joined(chunks):
    """{index: (text, tokens, logprobs, tops, offsets, finish)} of a stream."""
    out = {}
    for chunk in chunks:
        for c in chunk.choices:
            text, *lists, finish = out.get(c.index, ("", [], [], [], [], None))
            if c.logprobs:
                more = (c.logprobs.tokens, c.logprobs.token_logprobs, c.logprobs.top_logprobs, c.logprobs.text_offset)
                lists = [a + b for a, b in zip(lists, more)]
            assert finish is None
            out[c.index] = (text + c.text, *lists, c.finish_reason)
    return out


def whole(answer):
    return {c.index: (c.text, c.logprobs.tokens, c.logprobs.token_logprobs, c.logprobs.top_logprobs, c.logprobs.text_offset,
                      c.finish_reason) for c in answer.choices}


@pytest.mark.parametrize("max_tokens", [0, 1, 6])
@pytest.mark.parametrize("n", [1, 3])
def test_streams_say_what_whole_answers_say(client, cases, max_tokens, n):
    """Lists of token ids, n choices each, interleaved by index."""
    ask = dict(model="tales", prompt=[c["prompt_ids"] for c in cases[:2]], n=n, max_tokens=max_tokens, echo=True, logprobs=2,
               temperature=0.8, seed=4, extra_body={"return_token_ids": True})
    answer = client.completions.create(**ask)
    want = whole(answer)
    assert sorted(want) == list(range(2 * n))
    chunks = list(client.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
    assert joined(chunks) == want
    assert chunks[-1].usage == answer.usage
    assert answer.usage.prompt_tokens == sum(len(c["prompt_ids"]) for c in cases[:2])
    assert answer.usage.completion_tokens == 2 * n * max_tokens
    for c in answer.choices:
        assert c.model_extra["prompt_token_ids"] == cases[c.index // n]["prompt_ids"]
        assert len(c.model_extra["token_ids"]) == max_tokens
    first = {}
    for chunk in chunks:
        for c in chunk.choices:
            first.setdefault(c.index, c)
    for i, c in first.items():
        assert c.text == cases[i // n]["prompt"] and c.logprobs.token_logprobs[0] is None
        assert c.model_extra["prompt_token_ids"] == cases[i // n]["prompt_ids"]


def test_prompt_logprobs_in_a_stream_come_with_the_first_chunk(server):
    ask = {"prompt": FOX, "max_tokens": 3, "temperature": 0, "prompt_logprobs": 2}
    want = server.post("/v1/completions", ask).json["choices"][0]
    events = [e.data for e in server.events("/v1/completions", ask)][:-1]
    assert events[0]["choices"][0]["prompt_logprobs"] == want["prompt_logprobs"] and events[0]["choices"][0]["text"] == ""
    assert "".join(e["choices"][0]["text"] for e in events) == want["text"]
    assert not any("prompt_logprobs" in e["choices"][0] for e in events[1:])


def test_async_client(server, cases):
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*[
                client.completions.create(model="tales", prompt=c["prompt_ids"], max_tokens=0, echo=True, logprobs=0)
                for c in cases[:4] * 4])
    for case, answer in zip(cases[:4] * 4, asyncio.run(all_of_them())):
        got = answer.choices[0].logprobs.token_logprobs
        assert max(abs(a - b) for a, b in zip(got[1:], case["prompt_logprobs"][1:])) < SLACK


def test_chats_are_not_echoed_but_have_logprobs(client, server):
    ask = dict(model="tales", messages=[{"role": "user", "content": "Hi"}], max_tokens=3, temperature=0)
    answer = client.chat.completions.create(logprobs=True, top_logprobs=20, **ask)
    assert [len(t.top_logprobs) for t in answer.choices[0].logprobs.content] == [20] * 3
    for field, value in (("echo", True), ("max_tokens", 0)):
        with pytest.raises(openai.BadRequestError) as e:
            client.chat.completions.create(**{**ask, "extra_body": {field: value}})
        assert e.value.param == field


# ---- the same numbers however they are computed ----
def test_scores_depend_neither_on_the_load_nor_on_the_slots(own_server, heldout):
    """To the last digit: alone, in chunks of one slot, and beside other requests."""
    prompt = heldout[3000:9000]
    ask = {"prompt": prompt, "max_tokens": 2, "echo": True, "logprobs": 3, "temperature": 0}
    answers = []
    for slots, load in ((1, 0), (8, 0), (8, 6)):
        s = own_server("--slots", slots)
        threads = [threading.Thread(target=s.complete, args=(heldout[i * 500:i * 500 + 900],), kwargs={"max_tokens": 60, "ignore_eos": True})
                   for i in range(load)]
        for t in threads:
            t.start()
        answers.append(s.post("/v1/completions", ask, timeout=120).json["choices"])
        for t in threads:
            t.join()
        assert s.stop() == 0
    assert answers[0] == answers[1] == answers[2]


def test_memory_of_scoring_a_long_prompt_is_flat(own_server, heldout):
    """20,000 tokens at 4,096 logits would be 330 MB; what stays is the answer."""
    s = own_server("--slots", 2)
    ids = tokens_of(s, heldout)[:20000]
    assert len(ids) == 20000
    s.complete(ids[:2000], max_tokens=0, echo=True, logprobs=1)
    before, peak, done = s.rss_bytes(), [0], threading.Event()

    def watch():
        while not done.wait(0.02):
            peak[0] = max(peak[0], s.rss_bytes())
    watcher = threading.Thread(target=watch)
    watcher.start()
    answer = s.post("/v1/completions", {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}, timeout=200)
    done.set()
    watcher.join()
    got = answer.json["choices"][0]["logprobs"]
    assert len(got["token_logprobs"]) == 20000
    assert -12 < sum(got["token_logprobs"][1:]) / 19999 < -1
    assert peak[0] - before < (32 << 20) + FREED_BYTES, (peak[0] - before) / 2**20


def test_a_long_scored_prompt_in_a_stream_is_no_slow_client(own_server, heldout):
    s = own_server("--slots", 2, "--stream-buffer-bytes", 4096)
    ask = {"prompt": heldout[:20000], "max_tokens": 2, "echo": True, "logprobs": 5}
    events = [e for e in s.events("/v1/completions", ask) if not e.comment]
    first = events[0].data["choices"][0]
    assert first["text"] == heldout[:20000] and len(first["logprobs"]["tokens"]) > 2000
    assert events[-1].data == "[DONE]" and s.metric("rodimus_http_slow_clients_total") == 0


def test_the_ids_of_a_long_prompt_in_a_stream_are_no_slow_client(own_server):
    s = own_server("--device", "null", "--stream-buffer-bytes", 4096)
    ask = {"prompt": [300] * 5000, "max_tokens": 2, "ignore_eos": True, "return_token_ids": True}
    events = [e for e in s.events("/v1/completions", ask) if not e.comment]
    assert events[0].data["choices"][0]["prompt_token_ids"] == [300] * 5000
    assert events[-1].data == "[DONE]" and s.metric("rodimus_http_slow_clients_total") == 0


# ---- n: the prompt is read once ----
def end_of(n_tok, chunk=64):
    """What is behind the last chunk: where the device draws the tokens, each choice reads it itself."""
    return n_tok - (n_tok - 1) // chunk * chunk


@pytest.mark.parametrize("more", [{}, {"echo": True, "logprobs": 1}])
@pytest.mark.parametrize("slots", [8, 6, 3, 2])  # with fewer slots than choices, one keeps the prompt's state for the others
def test_n_choices_read_the_prompt_once(own_server, heldout, slots, more):
    s = own_server("--slots", slots)
    prompt = heldout[:3000]
    n_tok = len(tokens_of(s, prompt))
    ask = {"prompt": prompt, "max_tokens": 8, "temperature": 1, "seed": 5, "logprobs": 0, **more}
    together = s.post("/v1/completions", {**ask, "n": 6}).json
    draws, read = DEVICE != "cpu" and "echo" not in more, s.metric("rodimus_prefill_tokens_total")
    least = n_tok + (5 * end_of(n_tok) if draws else 0)
    assert least <= read <= least + (draws and slots < 6) * 6 // slots * n_tok, (read, least)  # those that wait begin from a checkpoint, if it is there
    assert together["usage"]["prompt_tokens"] == n_tok and together["usage"]["completion_tokens"] == 48
    for c in together["choices"]:  # choice i draws with seed + i
        alone = s.post("/v1/completions", {**ask, "seed": 5 + c["index"]}).json["choices"][0]
        assert {**c, "index": 0} == alone


@pytest.mark.parametrize("n", [65, 128])
def test_twice_as_many_choices_as_slots_read_the_prompt_once(own_server, heldout, n):
    s = own_server("--slots", 64)
    answer = s.complete(heldout[:8000], n=n, max_tokens=1, temperature=1, seed=3)
    assert len(answer["choices"]) == n and answer["usage"]["completion_tokens"] == n
    n_tok, read = answer["usage"]["prompt_tokens"], s.metric("rodimus_prefill_tokens_total")
    if DEVICE == "cpu":
        assert read == n_tok
    else:
        assert n_tok <= read - (n - 1) * end_of(n_tok) <= n_tok + n // 64 * n_tok, (read, n_tok)


def test_more_choices_than_slots(own_server):
    s = own_server("--slots", 2)
    answer = s.complete(FOX, n=7, max_tokens=5, temperature=1, seed=3, echo=True, logprobs=1)
    assert [c["index"] for c in answer["choices"]] == list(range(7))
    assert len({c["text"] for c in answer["choices"]}) > 1
    assert all(c["logprobs"]["token_logprobs"][1:5] == answer["choices"][0]["logprobs"]["token_logprobs"][1:5] for c in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 35


# ---- what may be said ----
@pytest.mark.parametrize("chat", [False, True])
def test_allowed_token_ids(server, client, chat):
    allowed = tokens_of(server, " fox raven tree")
    more = {"allowed_token_ids": allowed, "return_token_ids": True}
    if chat:
        answer = client.chat.completions.create(model="tales", messages=[{"role": "user", "content": "Hi"}], max_tokens=20, extra_body=more)
    else:
        answer = client.completions.create(model="tales", prompt=FOX, max_tokens=20, temperature=1.5, extra_body=more)
    ids = answer.choices[0].model_extra["token_ids"]
    assert len(ids) == 20 and set(ids) <= set(allowed)


@pytest.mark.parametrize("stream", [False, True])
def test_bad_words(server, client, cases, stream):
    """What the greedy run says is not said, and a word of several tokens only as a whole is bad."""
    plain = client.completions.create(model="tales", prompt=FOX, max_tokens=30, temperature=0).choices[0].text
    words = [w for w in plain.replace(",", " ").replace(".", " ").replace('"', " ").split() if len(w) > 3][:3]
    assert words
    ask = dict(model="tales", prompt=FOX, max_tokens=30, temperature=0, extra_body={"bad_words": words}, stream=stream)
    answer = client.completions.create(**ask)
    text = "".join(c.choices[0].text for c in answer if c.choices) if stream else answer.choices[0].text
    assert text != plain
    assert not any(w in text.replace(",", " ").split() for w in words), (words, text)
    phrase = text_of(server, tokens_of(server, plain)[4:9])
    again = client.completions.create(model="tales", prompt=FOX, max_tokens=30, temperature=0, extra_body={"bad_words": [phrase]}).choices[0].text
    assert phrase in plain and phrase not in again and again.startswith(text_of(server, tokens_of(server, plain)[:4]))


def test_offsets_of_the_parts_of_a_character(server):
    """As /tokenize has them: each byte of a character where the character begins."""
    text = "na\u00efve, \u732b and \U0001f98a"
    cut = server.post("/tokenize", {"prompt": text, "return_offsets": True}).json
    got = server.complete(cut["tokens"], max_tokens=0, echo=True, logprobs=0)["choices"][0]["logprobs"]
    assert any("bytes:" in t for t in got["tokens"])
    assert got["text_offset"] == [begin for begin, _ in cut["offsets"]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("keep", [False, True], ids=["special-left-out", "special-shown"])
def test_offsets_are_places_in_the_text_that_is_shown(server, stream, keep):
    """Where special tokens are left out of it, and where bytes are no characters and it has U+FFFD for them."""
    fox, [end], cat = tokens_of(server, " fox")[0], tokens_of(server, "<|endoftext|>"), tokens_of(server, "\u732b")
    assert len(cat) == 3
    ask = {"prompt": [fox, cat[0], cat[1]], "echo": True, "max_tokens": 70, "logprobs": 0, "temperature": 0, "frequency_penalty": 2, "ignore_eos": True,
           "allowed_token_ids": [fox, end, *cat], "skip_special_tokens": not keep, "return_token_ids": True}  # the penalty makes them take turns
    if stream:
        choices = [e.data["choices"][0] for e in server.events("/v1/completions", ask) if not e.comment and e.data != "[DONE]"]
    else:
        choices = server.post("/v1/completions", ask).json["choices"]
    text = "".join(c["text"] for c in choices)
    tokens, at = ([x for c in choices if c["logprobs"] for x in c["logprobs"][name]] for name in ("tokens", "text_offset"))
    assert len(tokens) == len(at) == 73 and {" fox", "<|endoftext|>"} <= set(tokens) and "\ufffd fox" in text, tokens
    assert text.startswith(" fox\ufffd") and ("<|endoftext|>" in text) == keep
    for token, place in zip(tokens, at):
        if token == " fox" or (keep and token == "<|endoftext|>"):
            assert text[place:place + len(token)] == token, (token, place, text)
        elif token.startswith("bytes:"):
            assert text[place] > "\x7f", (token, place, text)


def test_log_probabilities_of_prompts_have_a_limit(server):
    """They would take memory and the server's time: tokens, times choices, times alternatives and one."""
    ask = {"prompt": [5] * 2000, "n": 64, "max_tokens": 1, "echo": True, "logprobs": 20, "prompt_logprobs": 20}
    for less, field in (({}, "prompt_logprobs"), ({"prompt_logprobs": None}, "logprobs"), ({"logprobs": None}, "prompt_logprobs"),
                        ({"n": 1, "prompt": [[5] * 2000] * 60}, "prompt_logprobs")):
        answer = server.post("/v1/completions", {**ask, **less})
        assert answer.status == 400 and answer.error["param"] == field and "2097152" in answer.error["message"]
    for more in ({"n": 2}, {"prompt": [5, 6, 7]}, {"echo": False, "prompt_logprobs": None, "n": 2}):
        assert server.post("/v1/completions", {**ask, **more}).status == 200


def test_forbidding_everything_is_an_error_with_the_reason(server):
    answer = server.post("/v1/completions", {"prompt": FOX, "allowed_token_ids": [1], "min_tokens": 4, "max_tokens": 5})
    assert answer.status == 400 and "allowed_token_ids" in answer.json["error"]["message"]
    assert answer.error["param"] == "allowed_token_ids"


# ---- truncate_prompt_tokens ----
def test_truncate_prompt_tokens(server, client):
    ids = tokens_of(server, FOX)
    for k in (1, 5, len(ids), len(ids) + 9, -1):
        kept = ids if k < 0 else ids[-k:]
        cut = client.completions.create(model="tales", prompt=FOX, max_tokens=4, temperature=0, echo=True, extra_body={"truncate_prompt_tokens": k})
        want = client.completions.create(model="tales", prompt=kept, max_tokens=4, temperature=0, echo=True)
        assert cut.choices[0].text == want.choices[0].text
        assert cut.usage == want.usage and cut.usage.prompt_tokens == len(kept)


def test_truncation_makes_a_long_prompt_fit(own_server):
    s = own_server("--max-prompt-tokens", 20)
    body = {"prompt": list(range(5, 65)), "max_tokens": 1, "return_token_ids": True}
    assert s.post("/v1/completions", body).json["error"]["code"] == "context_length_exceeded"
    for k, n in ((-1, 20), (20, 20), (7, 7)):
        assert s.post("/v1/completions", {**body, "truncate_prompt_tokens": k}).json["choices"][0]["prompt_token_ids"] == list(range(65 - n, 65))
    assert s.post("/v1/completions", {**body, "truncate_prompt_tokens": 21}).json["error"]["code"] == "context_length_exceeded"
