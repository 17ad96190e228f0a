"""No tenant finds another's: probes that send another tenant's exact prompts, names and header values, by other keys and other cache_salts, have no cached token, and
its answers are text to them, not the tokens that its model said. RODIMUS_TEST_SOAK=1 sends 3,000 of them."""
import json
import os
import random
import sys

import pytest

from access import bearer, key_file
from server import ROOT

sys.path.append(os.path.join(ROOT, "tests", "bench"))
from replayed import Claude, Codex, World, ask  # noqa: E402

PROBES = 120  # of a server; more victims would displace each other's states
SERVERS = 25 if os.environ.get("RODIMUS_TEST_SOAK") else 1
SEED = int(os.environ.get("RODIMUS_TEST_SEED", 0)) or random.randrange(1, 1 << 30)
EVERY = {"RODIMUS_TEST_CHECKPOINTS_PAY": "1"}
KEYS = ["key-of-ann", "key-of-bob", "key-of-eve"]


class Chat:
    """A lane whose name is where a client of chats may put it."""
    PATH = "/v1/chat/completions"

    def __init__(self, world):
        self.world, self.name, self.said = world, world.id(), []
        self.where = world.draw.choice(["x-session-affinity", "x-affinity", "x-session-id", "X-Amp-Thread-Id", "prompt_cache_key"])
        self.messages = [{"role": "system", "content": world.text("reminder", 80)}]

    def user(self):
        self.messages.append({"role": "user", "content": self.world.text("user", 20)})

    def ask(self, server, headers, **more):
        name = {"prompt_cache_key": self.name} if self.where == "prompt_cache_key" else {}
        body = {"messages": self.messages, "max_tokens": 30, "temperature": 1, **name, **more}
        return body, {**headers, **({} if name else {self.where: self.name})}


def victim(server, world, key):
    """A conversation of two turns: (path, body, headers without the key, prompt tokens as its owner has them)."""
    kind = world.draw.choice([Claude, Codex, Chat])
    lane = kind(world)
    lane.user()
    for i in range(2):
        if kind is Chat:
            body, names = lane.ask(server, {})
            answer = server.post(lane.PATH, body, headers={**names, **bearer(key)})
            assert answer.status == 200, answer
            lane.messages.append(answer.json["choices"][0]["message"])
            lane.user()
            if i:
                return lane.PATH, lane.ask(server, {})[0], names
        else:
            request = lane.request("text")
            request.headers.update(bearer(key))
            lane.take(ask(server, request))
            lane.user()
            if i:
                request = lane.request("text")
                return lane.PATH, {**request.body, "stream": False}, request.headers


def send(server, path, body, headers, key, **more):
    answer = server.post(path, {**body, **more}, headers={**headers, "Content-Type": "application/json", **bearer(key)})
    assert answer.status == 200, answer
    usage = answer.json["usage"]
    if path == Chat.PATH:
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    if path == Codex.PATH:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]


@pytest.mark.parametrize("number", range(SERVERS))
def test_no_probe_of_another_tenant_finds_anything(own_server, tmp_path, number):
    flags = ("--model-name", "tales,*", "--device", "null", "--api-key-file", key_file(tmp_path, "".join(f"{key} name={key[7:]}\n" for key in KEYS)))
    server, fresh = own_server(*flags, "--state-dir", tmp_path / "states", env=EVERY), own_server(*flags, "--prefix-cache-bytes", 0)
    draw, told_apart, sent = random.Random(f"{SEED} {number}"), 0, 0
    while sent < PROBES:
        world, owner = World(draw.randrange(1 << 30), 0.01, apart=sent), draw.choice(KEYS)
        path, body, headers = victim(server, world, owner)
        server.wait_metric("rodimus_slots_used", lambda n: n == 0, headers=bearer(owner))
        text, _ = send(fresh, path, body, headers, owner)  # the answers read as text
        for key, salt in [(key, None) for key in KEYS if key != owner] + [(key, f"salt {sent}") for key in KEYS]:
            probe = send(server, path, body, headers, key, **({"cache_salt": salt} if salt else {}))
            assert probe == (text, 0), f"RODIMUS_TEST_SEED={SEED}, server {number}: {key} with salt {salt} finds {probe} of {owner}, {text} as text: {path} {headers} {json.dumps(body)[:2000]}"
            sent += 1
        said, cached = send(server, path, body, headers, owner)
        assert cached > 0, f"RODIMUS_TEST_SEED={SEED}, server {number}: its owner finds {cached} of {said} at {path}"
        told_apart += said != text
    assert told_apart > PROBES // 50, (told_apart, sent)  # the answers that would have been seen
