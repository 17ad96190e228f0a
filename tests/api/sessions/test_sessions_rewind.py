"""Sessions that keep earlier turns and go back to them, over the API and under kill -9: after each way back the session is the one that took
the turns which count. RODIMUS_TEST_KILLS: how often (10); RODIMUS_TEST_SEED: when (printed)."""
import http.client
import os
import random
import shutil
import threading
import time

from server import DEVICE, Server
from talk import TEXTS, made, new_id, turn, undisturbed

# on a GPU a row's bits may depend on how many share the step, unless it is told that they must not
EXACT = () if DEVICE == "cpu" else ("--deterministic",)


def make(server, keep_turns, **more):
    answer = server.post("/v1/sessions", {"keep_turns": keep_turns, **more})
    assert answer.status == 200 and answer.json["keep_turns"] == keep_turns, answer
    return answer.json["id"]


def back(server, session, **to):
    answer = server.post(f"/v1/sessions/{session}/rewind", to)
    assert answer.status == 200, answer
    return answer.json


def shown(server, session):
    return server.get(f"/v1/sessions/{session}").json


def test_a_session_goes_back_to_a_turn_and_another_way_on(server):
    session = make(server, 16)
    answers = [turn(server, session, text) for text in TEXTS]
    assert [a["session"]["version"] for a in answers] == [1, 2, 3]
    assert shown(server, session)["kept"] == [{"version": 0, "turns": 3}, {"version": 1, "turns": 2}, {"version": 2, "turns": 1}]
    rewinds = server.metric("rodimus_session_rewinds_total")
    now = back(server, session, turns=2)
    assert now["version"] == 4 and now["kept"] == [{"version": 0, "turns": 1}] and now["tokens"] == answers[0]["usage"]["total_tokens"] - 1
    assert server.metric("rodimus_session_rewinds_total") == rewinds + 1
    again = turn(server, session, TEXTS[1])
    assert made(again) == made(answers[1]) and again["usage"]["prompt_tokens"] == answers[1]["usage"]["prompt_tokens"]
    assert again["session"]["version"] == 5
    assert back(server, session, version=4)["version"] == 6, "the place that it went back to has its new version"
    assert server.ask("DELETE", f"/v1/sessions/{session}").status == 200


def test_what_is_wrong_with_a_way_back_is_told(server):
    session, plain = make(server, 2), new_id()
    turn(server, plain, TEXTS[0], session_create=True)
    for text in TEXTS:
        turn(server, session, text)
    cases = [({}, session, 400, None, "turns"), ({"turns": 0}, session, 400, None, "turns"), ({"turns": 1, "version": 2}, session, 400, None, "version"),
             ({"turns": "two"}, session, 400, None, "turns"), ({"version": -1}, session, 400, None, "version"), ({"turns": 1}, new_id(), 404, "not_found", None),
             ({"turns": 2}, session, 412, "turn_not_kept", "turns"), ({"version": 1}, session, 412, "turn_not_kept", "version"),
             ({"turns": 9}, session, 412, "turn_not_kept", "turns"), ({"turns": 1}, plain, 412, "turn_not_kept", "turns"),
             ({"turns": 1, "expected_version": 2}, session, 412, "version_mismatch", "expected_version")]
    for body, name, status, code, param in cases:
        answer = server.post(f"/v1/sessions/{name}/rewind", body)
        assert answer.status == status and answer.error["param"] == param and (not code or answer.error["code"] == code), (body, answer)
    assert "the nearest kept turn is version 0, 3 turns back" in server.post(f"/v1/sessions/{session}/rewind", {"version": 1}).error["message"]
    assert server.post("/v1/sessions", {"keep_turns": 17}).error["param"] == "keep_turns"
    assert server.ask("PATCH", f"/v1/sessions/{session}", '{"keep_turns": -1}', {"Content-Type": "application/json"}).error["param"] == "keep_turns"
    assert shown(server, session)["version"] == 3


def test_turns_are_kept_where_session_or_operator_ask_for_it(own_server, tmp_path):
    folder = tmp_path / "states"
    s = own_server("--state-dir", str(folder), "--session-keep-turns", "3")
    session = new_id()
    for n in range(6):
        turn(s, session, TEXTS[n % 3], session_create=n == 0)
    assert shown(s, session)["keep_turns"] == 3 and len(shown(s, session)["kept"]) == 3
    assert s.metric("rodimus_kept_turns") == 3 == sum(name.endswith(".kept") for name in os.listdir(folder))
    assert s.metric("rodimus_state_file_bytes") > 3 * shown(s, session)["state_bytes"], "kept turns count"
    changed = s.ask("PATCH", f"/v1/sessions/{session}", '{"keep_turns": 0}', {"Content-Type": "application/json"}).json
    assert changed["kept"] == [] and changed["version"] == 6
    assert not [name for name in os.listdir(folder) if name.endswith(".kept")]
    assert make(s, 0) and shown(s, make(s, 0))["keep_turns"] == 0


def test_a_key_repeated_after_a_way_back_runs_no_second_time(server):
    session = make(server, 4)
    body = {"session_id": session, "max_tokens": 4, "ignore_eos": True, "temperature": 0}
    for n, text in enumerate(TEXTS):
        assert server.post("/v1/completions", {**body, "prompt": text}, headers={"Idempotency-Key": f"k{n}"}).status == 200
    back(server, session, turns=2)
    first = server.post("/v1/completions", {**body, "prompt": TEXTS[0]}, headers={"Idempotency-Key": "k0"})
    assert first.status == 200 and first.json["session"]["version"] == 1
    gone = server.post("/v1/completions", {**body, "prompt": TEXTS[2]}, headers={"Idempotency-Key": "k2"})
    assert gone.status == 400 and gone.error["param"] == "Idempotency-Key", gone
    assert shown(server, session)["version"] == 4


class Life:
    """A session, its turns that count, and in which version it stood behind each."""

    def __init__(self, session):
        self.session, self.version, self.parts, self.made, self.n = session, 0, [], [0], 0

    def turn(self, server, prompt, key):
        body = {"session_id": self.session, "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        return server.post("/v1/completions", body, headers={"Idempotency-Key": key}, timeout=20)

    def took(self, prompt, answer):
        self.parts += [prompt, made(answer)]
        self.version += 1
        self.made.append(self.version)
        assert answer["session"]["version"] == self.version

    def went_back(self, turns):
        self.parts = self.parts[: len(self.parts) - 2 * turns]
        self.made = self.made[: len(self.made) - turns]
        self.version += 1
        self.made[-1] = self.version

    def check(self, server):
        now = shown(server, self.session)
        assert now["version"] == self.version, now
        for place in now["kept"]:
            assert self.made[-1 - place["turns"]] == place["version"], (now, self.made)


def killed_at_random(draw, server, request):
    """The answer, or None where the server was killed before it came."""
    answers = []

    def run():
        try:
            answers.append(request(server))
        except (OSError, http.client.HTTPException):
            pass

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(draw.random() * 0.08)
    server.kill()
    thread.join()
    return answers[0] if answers else None


def test_a_life_under_kill_9_goes_back_where_it_was(tmp_path):
    seed = int(os.environ.get("RODIMUS_TEST_SEED", random.randrange(1 << 30)))
    kills = int(os.environ.get("RODIMUS_TEST_KILLS", 10))
    print("seed", seed)
    draw, folder = random.Random(seed), tmp_path / "states"
    start = lambda: Server(*EXACT, "--state-dir", str(folder), name="rewind")
    server = start()
    life = Life(make(server, 5))
    try:
        while kills > 0:
            dies = draw.random() < 0.3
            kind = draw.choice(["turn", "turn", "turn", "back", "ask"])
            kept = shown(server, life.session)["kept"]
            life.n += 1
            if kind == "turn":
                prompt, key = [300 + draw.randrange(2000) for _ in range(1 + draw.randrange(9))], f"k{life.n}"
                request = lambda s: life.turn(s, prompt, key)
            elif kind == "back" and kept:
                place, before = draw.choice(kept), life.version
                request = lambda s: s.post(f"/v1/sessions/{life.session}/rewind", {"turns": place["turns"], "expected_version": before}, timeout=20)
            else:
                kind = "ask"
                question = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 3, "temperature": 0}
                request = lambda s: s.post(f"/v1/sessions/{life.session}/ask", question, timeout=20)
            answer = killed_at_random(draw, server, request) if dies else request(server)
            if dies:
                kills, server = kills - 1, start()
            if answer is None and not (kind == "back" and shown(server, life.session)["version"] == before + 1):
                answer = request(server)
            assert answer is None or answer.status == 200, (seed, answer)
            if kind == "turn":
                life.took(prompt, answer.json)
            elif kind == "back":
                life.went_back(place["turns"])
            elif answer:
                assert answer.json["session"]["version"] == life.version
            life.check(server)
            if len(life.parts) > 60:
                place = shown(server, life.session)["kept"][0]
                back(server, life.session, version=place["version"])
                life.went_back(place["turns"])
        prompt = [400, 401, 402]
        want = undisturbed(server, [*life.parts, prompt], 6)
        assert made(turn(server, life.session, prompt)) == want, f"seed {seed}"
        for at in range(1, len(life.parts), 2):
            whole = [i for part in life.parts[:at] for i in part]
            assert undisturbed(server, [whole], 4) == life.parts[at], f"seed {seed}: turn {at // 2 + 1} that counts"
        listed = {f".{place['version']:016x}.kept" for place in shown(server, life.session)["kept"]}
        server.kill()
        server = start()
        assert {name[32:] for name in os.listdir(folder) if name.endswith(".kept")} == listed, "what a crash left is gone"
        assert server.ask("DELETE", f"/v1/sessions/{life.session}").status == 200
        assert os.listdir(folder) == ["names.key"]
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
