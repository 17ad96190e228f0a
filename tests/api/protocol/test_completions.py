"""POST /v1/completions through the openai package: the model's own words, and how many."""
import math

import pytest

FOX = "The fox said to the raven, \""


def collect(stream):
    """{index: text}, {index: finish_reason} of a streamed completion."""
    text, finish = {}, {}
    for chunk in stream:
        for choice in chunk.choices:
            assert choice.index not in finish, "text after the finish"
            text[choice.index] = text.get(choice.index, "") + choice.text
            if choice.finish_reason:
                finish[choice.index] = choice.finish_reason
    return text, finish


def expected(case):
    """How a greedy run of this length ends: the reference's own run may have met the end token."""
    ended = case["greedy_ids"][-1] == 1
    return ("stop", case["greedy_text"]) if ended else ("length", case["greedy_text"])


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("kind", ["text", "ids"])
@pytest.mark.parametrize("stream", [False, True])
def test_greedy_equals_the_reference(client, cases, number, kind, stream):
    case = cases[number]
    n = len(case["greedy_ids"])
    finish, text = expected(case)
    answer = client.completions.create(model="tales", prompt=case["prompt"] if kind == "text" else case["prompt_ids"],
                                       max_tokens=n, temperature=0, stream=stream)
    if stream:
        texts, finishes = collect(answer)
        assert texts == {0: text} and finishes == {0: finish}
        return
    assert answer.choices[0].text == text
    assert answer.choices[0].finish_reason == finish
    assert answer.usage.prompt_tokens == len(case["prompt_ids"])
    assert answer.usage.completion_tokens == n
    assert answer.usage.total_tokens == len(case["prompt_ids"]) + n


@pytest.mark.parametrize("number", range(4))
def test_logprobs_equal_the_reference(client, server, cases, number):
    case = cases[number]
    n = len(case["greedy_ids"])
    answer = client.completions.create(model="tales", prompt=case["prompt_ids"], max_tokens=n, temperature=0, logprobs=5)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == n
    worst = max(abs(a - b) for a, b in zip(logprobs.token_logprobs, case["greedy_logprobs"]))
    assert worst < 2e-4, worst
    top = logprobs.top_logprobs[0]
    want = dict((server.post("/detokenize", {"tokens": [i]}).json["prompt"], p) for i, p in case["next_top5"])
    assert len(top) == 5
    for text, p in want.items():
        assert abs(top[text] - p) < 2e-4, (text, top, want)


def test_logprobs_are_the_models_own(client):
    """Before temperature, penalties and masks: what sampling does to them does not show."""
    ask = dict(model="tales", prompt=FOX, max_tokens=1, logprobs=3)
    plain = client.completions.create(temperature=0, **ask).choices[0].logprobs.top_logprobs[0]
    changed = client.completions.create(temperature=2, seed=1, frequency_penalty=2, top_p=0.5, **ask).choices[0].logprobs
    changed = changed.top_logprobs[0]
    assert plain.items() <= changed.items()  # the sampled token is listed too, if it is not among the best
    assert 0 < sum(math.exp(p) for p in plain.values()) <= 1


def test_text_offsets_and_tokens_join_to_the_text(client):
    choice = client.completions.create(model="tales", prompt=FOX, max_tokens=24, temperature=0, logprobs=0).choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    at = choice.logprobs.text_offset[0]
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset):
        assert offset == at
        at += len(token)


def test_prompts_and_choices_are_numbered(client, cases):
    """Choice index = i + prompt * n."""
    prompts = [c["prompt"] for c in cases[:3]]
    answer = client.completions.create(model="tales", prompt=prompts, n=2, max_tokens=8, temperature=0)
    assert [c.index for c in answer.choices] == list(range(6))
    for c in answer.choices:
        alone = client.completions.create(model="tales", prompt=prompts[c.index // 2], max_tokens=8, temperature=0)
        assert c.text == alone.choices[0].text, c.index
    assert answer.usage.completion_tokens == 48
    texts, finishes = collect(client.completions.create(model="tales", prompt=prompts, n=2, max_tokens=8, temperature=0,
                                                        stream=True))
    assert texts == {c.index: c.text for c in answer.choices}
    assert finishes == {i: "length" for i in range(6)}


def test_arrays_of_token_ids(client, cases):
    ids = [c["prompt_ids"] for c in cases[:2]]
    answer = client.completions.create(model="tales", prompt=ids, max_tokens=6, temperature=0)
    for c, case in zip(answer.choices, cases):
        assert case["greedy_text"].startswith(c.text) and c.text


def test_max_tokens_default_is_16(client):
    answer = client.completions.create(model="tales", prompt=FOX, temperature=0)
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 300])
def test_max_tokens_is_exact(client, n):
    answer = client.completions.create(model="tales", prompt=FOX, max_tokens=n, temperature=0, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == n


def test_usage_counts_prompts_once(client, cases):
    """The prompt is read once whatever n is."""
    case = cases[0]
    answer = client.completions.create(model="tales", prompt=case["prompt"], n=3, max_tokens=5, temperature=0)
    assert answer.usage.prompt_tokens == len(case["prompt_ids"])
    assert answer.usage.completion_tokens == 15


def test_long_prompt(client, server, heldout):
    """Longer than the window and than many chunks; the end alone would give another answer, surely not an error."""
    text = heldout[:40000]
    n = len(server.post("/tokenize", {"prompt": text}).json["tokens"])
    answer = client.completions.create(model="tales", prompt=text, max_tokens=8, temperature=0)
    assert answer.usage.prompt_tokens == n > 5000
    assert answer.choices[0].text


def test_special_tokens_in_prompts_are_recognised(client):
    with_special = client.completions.create(model="tales", prompt="<|endoftext|>Once", max_tokens=1, temperature=0)
    without = client.completions.create(model="tales", prompt="Once", max_tokens=1, temperature=0)
    assert with_special.usage.prompt_tokens == without.usage.prompt_tokens + 1


def test_response_shape(client):
    answer = client.completions.create(model="tales", prompt=FOX, max_tokens=2)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == "tales"
    assert abs(answer.created - __import__("time").time()) < 60
    assert answer.choices[0].logprobs is None
