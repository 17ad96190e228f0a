"""Sampling and stopping: seeds, penalties, biases, stop strings and ids."""
import pytest

FOX = "The fox said to the raven, \""
SAMPLED = dict(model="tales", prompt=FOX, max_tokens=24, temperature=1.0, top_p=1.0)


def text_of(client, **more):
    return client.completions.create(**{**SAMPLED, **more}).choices[0].text


def test_same_seed_same_text(client):
    assert text_of(client, seed=7) == text_of(client, seed=7)
    assert len({text_of(client, seed=s) for s in range(6)}) > 3


def test_seeded_choices_differ_among_themselves_and_repeat(client):
    a = [c.text for c in client.completions.create(**SAMPLED, seed=11, n=4).choices]
    b = [c.text for c in client.completions.create(**SAMPLED, seed=11, n=4).choices]
    assert a == b and len(set(a)) > 1


def test_without_seed_texts_differ(client):
    assert len({text_of(client) for _ in range(5)}) > 1


def test_a_seeded_stream_equals_the_whole(client):
    text = "".join(c.choices[0].text for c in client.completions.create(**SAMPLED, seed=5, stream=True) if c.choices)
    assert text == text_of(client, seed=5)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**53, -1, 2**63 - 1])
def test_any_integer_is_a_seed(client, seed):
    assert text_of(client, seed=seed, max_tokens=8) == text_of(client, seed=seed, max_tokens=8)


@pytest.mark.parametrize("greedy", [dict(temperature=0), dict(extra_body={"top_k": 1}), dict(top_p=1e-6),
                                    dict(extra_body={"min_p": 1.0})], ids=["temperature", "top_k", "top_p", "min_p"])
def test_what_leaves_one_token_is_greedy(client, greedy):
    want = client.completions.create(model="tales", prompt=FOX, max_tokens=24, temperature=0).choices[0].text
    assert text_of(client, seed=3, **greedy) == want


def test_logit_bias_bans_and_forces(client, server):
    first = client.completions.create(model="tales", prompt=FOX, max_tokens=1, temperature=0).choices[0].text
    (banned,) = server.post("/tokenize", {"prompt": first}).json["tokens"]
    other = client.completions.create(model="tales", prompt=FOX, max_tokens=1, temperature=0, logit_bias={str(banned): -100})
    assert other.choices[0].text != first
    forced = client.completions.create(model="tales", prompt=FOX, max_tokens=3, temperature=0, logit_bias={"377": 100})
    assert forced.choices[0].text == server.post("/detokenize", {"tokens": [377] * 3}).json["prompt"]


def test_penalties_change_a_repeating_text(client):
    plain = client.completions.create(model="tales", prompt=FOX, max_tokens=48, temperature=0).choices[0].text
    assert plain.count("piece of advice") >= 2  # the reference repeats itself
    for more in (dict(frequency_penalty=2), dict(presence_penalty=2), dict(extra_body={"repetition_penalty": 1.5}),
                 dict(extra_body={"repeat_penalty": 1.5})):
        changed = client.completions.create(model="tales", prompt=FOX, max_tokens=48, temperature=0, **more).choices[0].text
        assert changed != plain, more


def test_neutral_values_change_nothing(client):
    plain = text_of(client, seed=9)
    neutral = dict(top_p=1, frequency_penalty=0, presence_penalty=0, logit_bias={},
                   extra_body={"top_k": -1, "min_p": 0, "repetition_penalty": 1, "typical_p": 1})
    assert text_of(client, seed=9, **neutral) == plain
    assert text_of(client, seed=9, extra_body={"top_k": 0}) == plain


# ---- stopping ----

GREEDY = dict(model="tales", prompt=FOX, max_tokens=48, temperature=0)


@pytest.fixture(scope="module")
def whole(client):
    """I will give you a piece of advice, and I will give you a piece of advice." ..."""
    return client.completions.create(**GREEDY).choices[0].text


@pytest.mark.parametrize("stop", ["advice", " piece of", "e of adv", "you a piece of advice, and I", ".\"", "I", " "],
                         ids=["word", "tokens", "inside-tokens", "long", "punctuation", "first", "blank"])
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_cut_before_the_match(client, whole, stop, stream):
    want = whole[:whole.index(stop)]
    answer = client.completions.create(**GREEDY, stop=stop, stream=stream)
    if stream:
        chunks = [c for c in answer if c.choices]
        assert "".join(c.choices[0].text for c in chunks) == want
        last = chunks[-1].choices[0]
    else:
        assert answer.choices[0].text == want
        last = answer.choices[0]
    assert last.finish_reason == "stop"
    assert last.stop_reason == stop


def test_the_earliest_of_several_stops_wins(client, whole):
    stops = ["advice", "will give", "you a", "never seen"]
    answer = client.completions.create(**GREEDY, stop=stops)
    assert answer.choices[0].text == whole[:min(whole.index(s) for s in stops[:3])]
    assert answer.choices[0].stop_reason == "will give"


def test_stop_kept_when_asked(client, whole):
    answer = client.completions.create(**GREEDY, stop="piece of", extra_body={"include_stop_str_in_output": True})
    assert answer.choices[0].text == whole[:whole.index("piece of") + len("piece of")]


def test_a_stop_that_only_begins_is_given_back(client, whole):
    """Text that may begin a stop string is held back, and must appear when it does not come to that."""
    near = whole[10:30] + "#"
    answer = client.completions.create(**GREEDY, stop=[near, whole[-3:] + "#"])
    assert answer.choices[0].text == whole
    assert answer.choices[0].finish_reason == "length"
    text = "".join(c.choices[0].text for c in client.completions.create(**GREEDY, stop=[near, whole[-3:] + "#"], stream=True)
                   if c.choices)
    assert text == whole


# A text that the model has to say, in tokens of whatever lengths it chooses: a character may be spread over several, a token
# may hold several characters.
SAID = "aaab abab caf\u00e9 na\u00efve \u4f60\u597d\u4f60\u597d\u5417 \U0001f98a\U0001f43a\U0001f98a. The end"


def first_end(text, stops):
    """The match that ends first, of equal ends the longest: its begin and end in bytes, and which."""
    data = text.encode()
    return min((data.index(s.encode()) + len(s.encode()), -len(s.encode()), s) for s in stops if s.encode() in data)


@pytest.mark.parametrize("stops", [
    ["aab"], ["abab"], ["bab", "abab"], ["ab ab", "b a", "aab "], ["aaab abab c"], ["\u00e9"], ["f\u00e9 n"], ["\u4f60\u597d\u5417"],
    ["\u597d\u4f60", "\u597d"], ["\u597d\u5417", "\u4f60\u597d\u5417"], ["\U0001f43a\U0001f98a"], ["\U0001f98a."], [" \U0001f98a\U0001f43a"],
    ["\U0001f98b", "\u4f61", "aaaab", "The end!", "end"], ["The end"], ["a"],
], ids=ascii)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_stops_anywhere_in_any_tokens(server, stops, stream):
    end, length, stop = first_end(SAID, stops)
    splits = set()
    for seed in range(6):
        for include in (False, True):
            body = {"prompt": "x", "max_tokens": 120, "temperature": 1.5, "seed": seed, "stop": stops, "stream": stream,
                    "include_stop_str_in_output": include, "return_token_ids": True, "structured_outputs": {"choice": [SAID]}}
            if stream:
                events = [e.data for e in server.events("/v1/completions", body) if not e.comment][:-1]
                choices = [e["choices"][0] for e in events if e["choices"]]
            else:
                choices = [server.post("/v1/completions", body).json["choices"][0]]
            want = SAID.encode()[:end if include else end + length].decode()
            assert "".join(c["text"] for c in choices) == want
            assert choices[-1]["finish_reason"] == "stop" and choices[-1]["stop_reason"] == stop
            splits.add(tuple(i for c in choices for i in c.get("token_ids") or []))
    assert len(splits) > 1 or len(want) < 8  # the same text in other tokens


def test_stop_token_ids(client, server, whole):
    (comma,) = server.post("/tokenize", {"prompt": ","}).json["tokens"]
    answer = client.completions.create(**GREEDY, extra_body={"stop_token_ids": [comma]})
    assert answer.choices[0].text in (whole[:whole.index(",")], whole[:whole.index(",") + 1])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == comma


def test_min_tokens_outlasts_stops(client, server):
    (comma,) = server.post("/tokenize", {"prompt": ","}).json["tokens"]
    answer = client.completions.create(**GREEDY, extra_body={"stop_token_ids": [comma], "min_tokens": 20})
    assert answer.usage.completion_tokens >= 20


def test_ignore_eos(client):
    """With the end token forced, a plain request ends at once; ignore_eos goes on."""
    force = dict(model="tales", prompt=FOX, max_tokens=5, temperature=0, logit_bias={"1": 100})
    answer = client.completions.create(**force)
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].text == ""
    answer = client.completions.create(**force, extra_body={"ignore_eos": True})
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 5


def test_sixteen_stops(client, whole):
    stops = [f"never {i}" for i in range(15)] + ["advice"]
    assert client.completions.create(**GREEDY, stop=stops).choices[0].text == whole[:whole.index("advice")]


def test_any_positive_repetition_penalty_is_taken(server):
    """Smaller ones than 0.001 count as that: what was there before is repeated either way."""
    def text(**more):
        answer = server.post("/v1/completions", {"prompt": FOX, "max_tokens": 8, "temperature": 0, **more})
        assert answer.status == 200, answer
        return answer.json["choices"][0]["text"]
    for name in ("repetition_penalty", "repeat_penalty"):
        assert text(**{name: 1e-9}) == text(**{name: 0.0005}) == text(**{name: 0.001}) != text(**{name: 1.5})
