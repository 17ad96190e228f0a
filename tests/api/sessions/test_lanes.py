"""Conversations that bring everything, in the large: an early text is edited, two requests of one lane come at once, many conversations share a
small memory. RODIMUS_TEST_SOAK=1 has 500 of them."""
import concurrent.futures
import os
import random
import sys

import pytest

from server import ROOT, SLOWER
from talk import CHAT

sys.path.append(os.path.join(ROOT, "tests", "bench"))
from replayed import Claude, World, ask  # noqa: E402

SOAK = bool(os.environ.get("RODIMUS_TEST_SOAK"))
EVERY = {"RODIMUS_TEST_CHECKPOINTS_PAY": "1"}  # each entry of the cache pays, however busy the machine is
SEED = int(os.environ.get("RODIMUS_TEST_SEED", 0)) or random.randrange(1, 1 << 30)
TURNS, CHUNK = 40, 64


def settle(server):
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)


def chats(server, messages, **more):
    answer = server.post(CHAT, {"messages": messages, "max_tokens": 16, "temperature": 0, "logprobs": True, **more})
    assert answer.status == 200, answer
    usage = answer.json["usage"]
    return answer.json["choices"][0], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("again", [False, True], ids=["one server", "the next server"])
@pytest.mark.parametrize("turn", [3, 10, 20, 39])
def test_an_edit_of_an_early_turn_reads_a_tenth_at_most(own_server, tmp_path, turn, again):
    """The client goes back to its text of that turn, changes it and drops what came after."""
    flags = ("--model-name", "tales,*", "--device", "null", "--state-dir", tmp_path / "states")
    server, world = own_server(*flags, env=EVERY), World(SEED, 0.05)
    main = Claude(world, opus=True)
    main.user("reminder", "user")
    before = None
    for i in range(1, TURNS + 1):
        if i > 1:
            main.user("reminder")
        if i == turn:
            before = list(main.messages)
        answer = ask(server, main.request("Bash", "Bash"))
        main.result("Bash", main.take(answer)[-1])
        answer = ask(server, main.request("text"))
        main.take(answer)
        settle(server)
    whole = answer.prompt
    main.messages = before[:-1]
    main.user("reminder")
    if again:
        server.kill()
        server = own_server(*flags, env=EVERY)
    edited = ask(server, main.request("text"))
    read = edited.prompt - edited.cached
    assert read <= whole / 10, f"RODIMUS_TEST_SEED={SEED}: turn {turn}: {read} of {edited.prompt} tokens read; the conversation had {whole}"


def test_two_requests_of_one_conversation_at_once_are_both_right(own_server):
    """The model's answers come back as the client's own words, so a server without the cache is the reference."""
    on, off, draw = own_server("--slots", 4, env=EVERY), own_server("--prefix-cache-bytes", 0), random.Random(SEED)
    world, messages = World(SEED, 0.2), [{"role": "system", "content": "Tell tales."}]
    for i in range(8):
        messages.append({"role": "user", "content": world.text("user", 30)})
        ways = [[*messages[:-1], {"role": "user", "content": messages[-1]["content"] + draw.choice(["", " please", "\n" + world.text("user", 90)])}] for _ in range(2)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda way: chats(on, way, prompt_cache_key="lane"), ways))
        settle(on)
        for way, got in zip(ways, both, strict=True):
            want = chats(off, way)
            assert got[:2] == want[:2], f"RODIMUS_TEST_SEED={SEED}, round {i}"
        longer = max(range(2), key=lambda k: both[k][1])
        _, n_tok, cached = chats(on, ways[longer], prompt_cache_key="lane")
        assert cached >= n_tok - CHUNK, f"RODIMUS_TEST_SEED={SEED}, round {i}: {cached} of {n_tok}"
        settle(on)
        messages = [*ways[longer], {"role": "assistant", "content": f"No. {i}"}]


def test_many_conversations_share_a_small_memory(own_server, tmp_path):
    """Ten times as many as their memory has states for: what is not in memory is in files, and no turn reads what was read."""
    n, state_bytes = (500 if SOAK else 40) // SLOWER, 3 << 20  # some 2.3 MB of tales' state at its full windows, and what stands beside it
    memory = n // 10 * state_bytes
    server = own_server("--model-name", "tales,*", "--state-dir", tmp_path / "states", "--state-host-bytes", 2 * memory, "--prefix-cache-bytes", memory, env=EVERY)
    world, draw = World(SEED, 0.01), random.Random(SEED)
    lanes, last = [Claude(world) for _ in range(n)], [None] * n
    for round_ in range(3):
        for i in draw.sample(range(n), n):
            lanes[i].user("reminder", "user")
            answer = ask(server, lanes[i].request("text"))
            lanes[i].take(answer)
            assert round_ == 0 or answer.cached >= last[i] - 1, f"RODIMUS_TEST_SEED={SEED}, round {round_}, conversation {i}: {answer.cached} of {last[i]} were known"
            last[i] = answer.prompt + answer.said
        assert server.metric("rodimus_prefix_bytes") <= memory
