"""The prefix cache through HTTP: clients that send the whole conversation each time."""
import random
import time

import pytest

from server import DEVICE

LONG = 900  # words that take so long to read that a checkpoint pays also where the machine's other work slows single steps
WORDS = "the little dog ran to a big red house and saw one cat who was happy in the garden with her mother".split()


def words(seed, n):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(n))


def chat(server, messages, key=None, **more):
    headers = {"Authorization": f"Bearer {key}"} if key else None
    answer = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 24, "temperature": 0, **more}, headers=headers)
    assert answer.status == 200, answer
    return answer.json


def cached(body):
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def user(text):
    return [{"role": "user", "content": text}]


def read_tok(server, key=None):
    headers = {"Authorization": f"Bearer {key}"} if key else None
    return server.metric("rodimus_prefill_tokens_total", headers=headers)


def settle(server, **more):
    """Until the states of answers are copied: a moment after the client has its last event."""
    server.wait_metric("rodimus_slots_used", lambda n: n == 0, **more)


def test_a_chat_sent_in_full_each_time_reads_its_new_turns_alone(server):
    messages = [{"role": "system", "content": words(0, 60)}]
    read, retokenised = 0, server.metric('rodimus_prefix_misses_total{reason="retokenised"}')
    short_turns = 0
    for turn in range(20):
        messages += user(words(turn + 1, 15))
        before = read_tok(server)
        body = chat(server, messages)
        usage = body["usage"]
        assert read_tok(server) - before == usage["prompt_tokens"] - cached(body)  # it says what it did
        if turn and cached(body) < read - 1:
            short_turns += 1
        assert not turn or cached(body) > 0
        read = usage["prompt_tokens"] + usage["completion_tokens"]
        messages.append(body["choices"][0]["message"])
    now = server.metric('rodimus_prefix_misses_total{reason="retokenised"}')
    assert short_turns <= now - retokenised, (short_turns, now - retokenised)
    assert short_turns <= 2  # greedy text of this model is nearly always spelt as it would spell it


def test_an_answer_is_the_same_with_and_without(own_server):
    """Prompts read as prompts: text, tokens and log-probabilities, to the last digit."""
    on, off = own_server(), own_server("--prefix-cache-bytes", 0)
    draw = random.Random(4)
    hits = 0
    for round_ in range(30):
        prompt = words(draw.randrange(3), draw.randrange(60, 250)) + " " + words(100 + draw.randrange(3), draw.randrange(0, 30))
        ask = {"prompt": prompt, "max_tokens": 1 + draw.randrange(2) * 20, "temperature": draw.choice([0, 1]), "seed": round_, "logprobs": 5}
        a, b = on.complete(**ask), off.complete(**ask)
        assert a["choices"] == b["choices"], ask
        assert cached(b) == 0
        hits += cached(a) > 0
        settle(on)
    assert hits >= 10
    assert off.metric("rodimus_prefix_checkpoints") == 0
    assert sum(v for k, v in off.metrics().items() if k.startswith("rodimus_prefix_misses")) == 0


def test_nothing_of_one_key_is_found_by_another(own_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret-of-ann name=ann\nsecret-of-bob name=bob\nsecret-of-eve\n")
    server = own_server("--api-key-file", keys)
    ann, names = {"key": "secret-of-ann"}, ["secret-of-ann", "secret-of-bob", "secret-of-eve"]
    prompt = user(words(1, LONG))
    for round_ in range(2):
        for key in names:
            before = read_tok(server, **ann)
            body = chat(server, prompt, key=key)
            assert (cached(body) > 200) == (round_ == 1)
            assert cached(body) % 64 == 0
            assert read_tok(server, **ann) - before == body["usage"]["prompt_tokens"] - cached(body)  # so no shorter time either
            settle(server, headers={"Authorization": "Bearer secret-of-ann"})
    metrics = server.metrics(headers={"Authorization": "Bearer secret-of-ann"})
    assert metrics['rodimus_prefix_misses_total{reason="cold"}'] == 3
    assert metrics['rodimus_prefix_misses_total{reason="salt"}'] == 0


def test_a_cache_salt_parts_what_one_key_asks(own_server):
    server = own_server("--log-level", "debug")  # its log says why, should a prompt be read again
    prompt, texts = user(words(2, LONG)), set()
    for round_ in range(2):
        for salt in ("one", "two", None, ""):
            body = chat(server, prompt, cache_salt=salt)
            assert (cached(body) > 0) == (round_ == 1 or salt == ""), (round_, salt, server.log()[-2000:])  # none is the empty one
            texts.add(body["choices"][0]["message"]["content"])
            settle(server)
    assert len(texts) == 1
    assert server.post("/v1/chat/completions", {"messages": prompt, "cache_salt": 5}).error["param"] == "cache_salt"


def test_the_system_prompt_of_one_chat_serves_the_next(server):
    system = [{"role": "system", "content": words(3, 250)}]
    first = chat(server, system + user(words(31, 20)))
    settle(server)
    second = chat(server, system + user(words(32, 20)))
    alone = chat(server, system + user(""))["usage"]["prompt_tokens"]
    assert cached(first) == 0
    assert alone - 80 < cached(second) <= alone


def test_an_answer_with_other_words_is_told_apart(server):
    """The client changed the answer: from the end of its prompt on it is read again."""
    messages = user(words(5, 200))
    body = chat(server, messages)
    before = server.metric('rodimus_prefix_misses_total{reason="retokenised"}')
    settle(server)
    changed = messages + [{"role": "assistant", "content": "No. " + body["choices"][0]["message"]["content"]}] + user("And then?")
    again = chat(server, changed)
    assert body["usage"]["prompt_tokens"] - 64 <= cached(again) <= body["usage"]["prompt_tokens"]
    assert server.metric('rodimus_prefix_misses_total{reason="retokenised"}') == before + 1


def test_many_choices_begin_from_one_checkpoint(server):
    ask = {"prompt": words(6, 300), "max_tokens": 8, "temperature": 1, "seed": 5, "n": 4, "logprobs": 2}
    cold = server.complete(**ask)
    settle(server)
    before = read_tok(server)
    warm = server.complete(**ask)
    assert warm["choices"] == cold["choices"]
    assert cached(cold) == 0 and cached(warm) > 200
    readers = 1 if DEVICE == "cpu" else 4  # where the device draws, each choice reads the end itself
    assert read_tok(server) - before <= readers * (warm["usage"]["prompt_tokens"] - cached(warm))
    if DEVICE == "cpu":
        assert read_tok(server) - before == warm["usage"]["prompt_tokens"] - cached(warm)  # by one, for all


def test_what_scores_its_prompt_reads_it(server):
    ask = {"prompt": words(7, 200), "max_tokens": 0, "echo": True, "logprobs": 1}
    server.complete(prompt=ask["prompt"])
    before = server.metric('rodimus_prefix_misses_total{reason="scored"}')
    settle(server)
    body = server.complete(**ask)
    assert cached(body) == 0
    assert len(body["choices"][0]["logprobs"]["tokens"]) == body["usage"]["prompt_tokens"]
    assert server.metric('rodimus_prefix_misses_total{reason="scored"}') == before + 1


def test_a_client_that_leaves_spoils_nothing(server):
    prompt = words(8, 600)
    for wait_s in (0, 0.01, 0.03, 0.06, 0.1):
        with server.socket() as s:
            body = f'{{"prompt": "{prompt}", "max_tokens": 500, "stream": true}}'.encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(wait_s)
        settle(server)
    kept = server.complete(prompt=prompt, logprobs=3)
    fresh = server.complete(prompt=prompt, logprobs=3, cache_salt="fresh")
    assert cached(fresh) == 0
    assert kept["choices"] == fresh["choices"]


def test_a_small_budget_lets_the_least_worth_go(own_server):
    """Room for a few: what is asked for all the time stays, the others come and go, and every answer is right."""
    server = own_server("--prefix-cache-bytes", 24_000_000)
    often, want = user(words(9, 400)), {}
    for round_ in range(12):
        a = chat(server, often)
        assert round_ < 2 or cached(a) > 300, round_
        b = chat(server, user(words(50 + round_ % 6, 200)))
        for name, body in (("often", a), (round_ % 6, b)):
            text = body["choices"][0]["message"]["content"]
            assert want.setdefault(name, text) == text
        settle(server)
        assert server.metric("rodimus_prefix_bytes") <= 24_000_000
    assert server.metric("rodimus_prefix_evicted_total") > 0


@pytest.mark.parametrize("n", [1, 63, 64, 448, 449, 450, 511, 512, 513, 514])
def test_prompts_at_the_edges_of_chunks(server, n):
    ids = [300 + (i * i) % 700 for i in range(n)]
    cold = server.complete(prompt=ids, cache_salt=f"edge {n}", logprobs=3)
    settle(server)
    warm = server.complete(prompt=ids, cache_salt=f"edge {n}", logprobs=3)
    assert warm["choices"] == cold["choices"]
    assert cached(warm) == (n - 1) // 64 * 64
    fresh = server.complete(prompt=ids + [500], cache_salt=f"fresh {n}", logprobs=3)
    settle(server)
    more = server.complete(prompt=ids + [500], cache_salt=f"edge {n}", logprobs=3)
    assert more["choices"] == fresh["choices"]


def test_the_debug_log_says_why(own_server):
    server = own_server("--log-level", "debug")
    chat(server, user(words(10, 300)))
    settle(server)
    body = chat(server, user(words(10, 300)))
    lines = [line for line in server.log().splitlines() if "prefix cache" in line]
    total = body["usage"]["prompt_tokens"]
    assert len(lines) == 2
    assert lines[0].endswith(f"prefix cache: 0 of {total} tokens: cold")
    assert lines[1].endswith(f"prefix cache: {cached(body)} of {total} tokens")
    assert "dog" not in server.log()  # no text


def test_a_session_keeps_its_own_and_begins_from_what_is_there(own_server):
    """Its first turn may begin from a checkpoint; from then on its state is its own and is not kept twice."""
    server = own_server()
    text = words(11, 300)
    alone = server.complete(prompt=text, max_tokens=8)
    settle(server)
    first = server.complete(prompt=text, max_tokens=8, session_id="s", session_create=True)
    assert first["choices"][0]["text"] == alone["choices"][0]["text"]
    assert cached(first) > 200
    kept, hits = server.metric("rodimus_prefix_checkpoints"), server.metric("rodimus_prefix_hits_total")
    length = first["usage"]["total_tokens"]
    for turn in range(3):
        body = server.complete(prompt=" " + words(40 + turn, 90), max_tokens=8, session_id="s")
        assert length - 1 <= cached(body) <= length  # the last token of an answer cut short is read with the next
        length = body["usage"]["total_tokens"]
    assert server.metric("rodimus_prefix_checkpoints") == kept
    assert server.metric("rodimus_prefix_hits_total") == hits


MARK = {"cache_control": {"type": "ephemeral"}}


def part(text, **more):
    return {"type": "text", "text": text, **more}


def message(server, **body):
    answer = server.post("/v1/messages", {"model": "tales", "max_tokens": 4, "temperature": 0, **body})
    assert answer.status == 200, answer
    usage = answer.json["usage"]
    return usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"], usage["input_tokens"]


@pytest.mark.parametrize("where", ["part", "message", "top"])
def test_a_marked_beginning_is_kept_and_read_by_what_goes_on_from_it(own_server, where):
    server = own_server("--device", "null")
    first = None
    for round_ in range(2):
        ask = part(f"question {round_}?")
        text = part(words(7, 200), **(MARK if where == "part" else {}))
        messages = {"part": user([text, ask]), "message": [{**user([text])[0], **MARK}, *user([ask])], "top": user([text])}[where]
        body = chat(server, messages, max_tokens=1, **(MARK if where == "top" else {}))
        settle(server)
        details = body["usage"]["prompt_tokens_details"]
        kept = details["cached_tokens"] if round_ else details.get("cache_creation_tokens", 0)
        assert kept % 64 == 0 and kept > 128, details
        assert round_ == 0 or (details["cached_tokens"], details.get("cache_creation_tokens")) == (first, None)
        first = kept


def test_a_place_inside_a_message_is_kept_only_where_it_is_marked(own_server):
    server = own_server("--device", "null")
    for seed, mark in ((8, {}), (9, MARK)):
        for round_ in range(2):
            body = chat(server, user([part(words(seed, 200), **mark), part(words(50 + round_, 80))]), max_tokens=1)
            settle(server)
        assert (cached(body) > 128) == bool(mark), (mark, body["usage"])


def test_a_message_says_what_it_created_and_what_it_read(server):
    tool = {"name": "look", "description": words(30, 150), "input_schema": {"type": "object"}}
    ask = [{"role": "user", "content": "Well?"}]
    for asked in ({"system": [part(words(31, 150), **MARK)]}, {"tools": [{**tool, **MARK}]},
                  {"tools": [tool], "system": [part(words(32, 90), **MARK), part(words(33, 90))]}):
        created, read, rest = message(server, messages=ask, **asked)
        settle(server)
        assert created >= 64 and (created + read) % 64 == 0, (asked, created, read, rest)
        other = [{"role": "user", "content": "No. " + words(34, 40)}]
        again, found, _ = message(server, messages=other, **asked)
        assert again == 0 and found >= created + read, (asked, created, read, again, found)
        settle(server)


def test_a_message_says_how_long_what_it_created_is_kept(server):
    long = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [part(words(61, 120), **long), part(words(62, 120), **MARK)]
    body = {"model": "tales", "max_tokens": 4, "temperature": 0, "system": system, "messages": [{"role": "user", "content": "Well?"}]}
    usage = server.post("/v1/messages", body).json["usage"]
    settle(server)
    kept = usage["cache_creation"]
    assert kept["ephemeral_1h_input_tokens"] >= 64 and kept["ephemeral_5m_input_tokens"] >= 64, usage
    assert sum(kept.values()) == usage["cache_creation_input_tokens"], usage
    again = server.post("/v1/messages", body).json["usage"]
    assert sum(again["cache_creation"].values()) == 0 and again["cache_read_input_tokens"] >= sum(kept.values()), (usage, again)


def test_at_most_four_places_are_kept(server):
    five = [part("a", **MARK) for _ in range(5)]
    chat_fault = server.post("/v1/chat/completions", {"messages": user(five)})
    assert (chat_fault.status, chat_fault.json["error"]["param"]) == (400, "cache_control"), chat_fault
    fault = server.post("/v1/messages", {"max_tokens": 1, "messages": user(five)})
    assert (fault.status, fault.json["error"]["param"]) == (400, "cache_control"), fault
    assert server.post("/v1/messages", {"max_tokens": 1, "messages": user(five[:4])}).status == 200
