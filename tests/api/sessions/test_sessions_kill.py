"""rodimus serve, killed with kill -9 at random moments, again and again on one state_dir, under clients that repeat what got
no answer with the same Idempotency-Key: each turn happens once, none that was answered is lost, and each conversation is the
one that nothing disturbed; with one server, and with two on the same folder that each turn goes to at random. RODIMUS_TEST_KILLS: how often (10); RODIMUS_TEST_SEED: when (printed)."""
import http.client
import os
import random
import threading
import time

import pytest

from server import DEVICE, SLOWER, Server

SESSIONS = 4
# on a GPU a row's bits may depend on how many share the step, unless it is told that they must not
EXACT = () if DEVICE == "cpu" else ("--deterministic",)


class Client:
    """Turns of one session, one after the other, whatever happens to the server."""

    def __init__(self, number, place):
        self.number, self.place = number, place
        self.id, self.turns, self.lost_answers = f"talk-{number}", [], 0
        self.fault = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def body(self, n):
        return {"session_id": self.id, "session_create": n == 0, "prompt": [300 + (self.number * 97 + n * 31 + i) % 2000 for i in range(1 + n % 9)],
                "max_tokens": 2 + n % 4, "ignore_eos": True, "temperature": 0.9, "seed": n, "frequency_penalty": 0.5 if n % 2 else 0,
                "logprobs": 1, "return_token_ids": True}

    def ask(self, n):
        """The answer of turn n, or None where the server went away."""
        try:
            server = random.choice(self.place["servers"])
            return server.post("/v1/completions", self.body(n), headers={"Idempotency-Key": f"{self.id}/{n}"}, timeout=20)
        except (OSError, http.client.HTTPException):
            return None

    def run(self):
        try:
            while not self.place["over"]:
                n, tries = len(self.turns), 0
                while (answer := self.ask(n)) is None or answer.status in (503, 429):
                    tries += 1
                    if self.place["over"]:
                        return
                    time.sleep(0.01)
                assert answer.status == 200, answer
                said = answer.json
                assert said["session"] == {"id": self.id, "version": n + 1}, (tries, said)
                self.lost_answers += tries > 0
                self.turns.append((said["choices"][0]["token_ids"], said["choices"][0]["logprobs"]["token_logprobs"], said["usage"]["prompt_tokens"]))
        except BaseException as fault:
            self.fault = fault


@pytest.mark.parametrize("n_servers", [1, 2])
def test_servers_under_kill_9_lose_no_turn_and_run_none_twice(tmp_path, n_servers, keep_figures):
    kills, seed = int(os.environ.get("RODIMUS_TEST_KILLS", 10)), int(os.environ.get("RODIMUS_TEST_SEED", time.time_ns() % 1000000))
    print(f"seed {seed}, {kills} kills")
    chance, states = random.Random(seed), tmp_path / "states"
    flags = ("--state-dir", states, "--slots", 4, "--threads", 1, *EXACT)
    kills //= n_servers
    place = {"servers": [Server(*flags, name=f"kill-9-{i}") for i in range(n_servers)], "over": False}
    clients = [Client(number, place) for number in range(SESSIONS)]
    try:
        for client in clients:
            client.thread.start()
        for _ in range(kills):
            time.sleep(chance.uniform(0.02, 0.5) * SLOWER)
            which = chance.randrange(n_servers)
            place["servers"][which].kill()
            told = [len(client.turns) for client in clients]
            server = place["servers"][which] = Server(*flags, name=f"kill-9-{which}")
            for client, version in zip(clients, told):
                answer = server.get(f"/v1/sessions/{client.id}")
                assert answer.status == (200 if version else answer.status), (client.id, version, answer)
                if answer.status == 200:
                    assert version <= answer.json["version"], (client.id, version, answer.json)
            metrics = server.metrics()
            assert metrics["rodimus_state_refused_total"] == 0, metrics
        time.sleep(0.3)
        place["over"] = True
        for client in clients:
            client.thread.join(30)
            assert not client.thread.is_alive() and client.fault is None, client.fault
        versions = [place["servers"][0].get(f"/v1/sessions/{client.id}").json["version"] for client in clients]
    finally:
        place["over"] = True
        for server in place["servers"]:
            server.kill()
    for client, version in zip(clients, versions):
        assert version == len(client.turns), "a turn was run that nobody was told of, or twice"
    plain = Server("--slots", 4, "--threads", 1, *EXACT, name="kill-9-plain")
    try:
        for client in clients:
            for n, (ids, logprobs, prompt_tokens) in enumerate(client.turns):
                answer = plain.post("/v1/completions", client.body(n))
                assert answer.status == 200, answer
                want = answer.json["choices"][0]
                assert ids == want["token_ids"], (client.id, n, ids, want["token_ids"])
                assert logprobs == want["logprobs"]["token_logprobs"], (client.id, n)
                assert prompt_tokens == answer.json["usage"]["prompt_tokens"]
    finally:
        plain.kill()
    n_turns = sum(len(client.turns) for client in clients)
    n_again = sum(client.lost_answers for client in clients)
    print(f"seed {seed}: {n_servers} servers, {kills} kills, {n_turns} turns, {n_again} asked again")
    assert n_turns > kills and n_again > 0
    left = sorted(name for name in os.listdir(states) if name != "names.key")
    assert left == [name for name in left if name.endswith(".state")] and len(left) == SESSIONS, left
    keep_figures(f"kill-9-soak-{n_servers}", "`rodimus serve` killed with kill -9 at random moments, clients that ask again with the same key", {
        "seed": seed, "servers_on_the_folder": n_servers, "kills": kills, "sessions": SESSIONS, "turns": n_turns,
        "turns_asked_again": n_again, "turns_lost_or_twice": 0, "wrong_turns": 0})
