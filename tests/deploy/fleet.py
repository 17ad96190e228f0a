"""Servers of one store, to each of which any request may go, and conversations whose turns do: sessions, sessions with forks, chats that come whole, responses.
A conversation is drawn from its number alone, so that one server alone can have it, too: rows() of each are compared."""
import collections
import http.client
import os
import random
import threading
import time
import uuid

from replicas import Server
from server import PATIENCE_S, SLOWER

# Each entry of the prefix cache pays, and a conversation waits for its store, however busy the machine is.
EVERY = {"RODIMUS_TEST_CHECKPOINTS_PAY": "1", "RODIMUS_TEST_PATIENCE_MS": "60000"}
SMALL = ("--slots", 4, "--threads", 1, "--max-prompt-tokens", 16384, "--drain-notice-ms", 0)


class Lost(Exception):
    """No answer came; sent: the request may have been taken."""

    def __init__(self, sent):
        super().__init__(f"no answer, sent: {sent}")
        self.sent = sent


class Fleet:
    def __init__(self, store, n, *flags, env=None, name="fleet", draw=None):
        """env: of each server, by its number: env(i), or of all."""
        self.store, self.flags, self.name, self.draw = store, flags, name, draw or random.Random(0)
        self.env = env if callable(env) else lambda i: env or {}
        self.servers, self.ended = [None] * n, []
        try:
            for i in range(n):
                self.start(i)
        except BaseException:
            self.close()
            raise

    def start(self, i):
        self.servers[i] = Server(*SMALL, *self.store.flags, *self.flags, name=f"{self.name}-{i}", env={**EVERY, **self.store.env, **self.env(i)})
        return self.servers[i]

    def ask(self, method, path, body=None, headers=None, timeout=60, among=None):
        """To one of them at random."""
        server = self.draw.choice(among or self.servers)
        assert server.process.poll() in (None, 0, -9), f"a server ended with {server.process.returncode}: {server.log()[-2000:]}"
        try:
            return server.ask(method, path, body, headers=headers, timeout=timeout)
        except ConnectionRefusedError:
            raise Lost(False) from None
        except (OSError, http.client.HTTPException):
            raise Lost(True) from None

    def restart(self, i):
        """As an operator does it: SIGTERM, then another in its place."""
        code = self.servers[i].stop()
        assert code == 0, self.servers[i].log()[-2000:]
        self.start(i)

    def kill_and_start(self, i):
        self.servers[i].kill()
        return self.start(i)

    def metric(self, name):
        return sum(server.metric(name) for server in self.servers)

    def close(self):
        for server in self.servers:
            if server:
                server.kill()


class Talk:
    """One conversation. step(): its next turn, whoever it goes to; rows: what each got."""

    def __init__(self, number, n_turns, apart=""):
        self.number, self.n_turns, self.draw = number, n_turns, random.Random(f"talk {number}")
        self.id, self.rows, self.retries, self.replayed, self.forks = f"talk-{number}{apart}", [], 0, 0, 0
        self.dice = random.Random(uuid.uuid4().int)  # for what must not matter
        self.begin()

    def begin(self):
        pass

    def until_answered(self, fleet, method, path, body=None, headers=None):
        """The answer, and whether an earlier try may have been taken; 503 and 429 come with a time to wait."""
        end, again = time.monotonic() + PATIENCE_S * 2 * SLOWER, False
        while True:
            try:
                answer = fleet.ask(method, path, body, headers)
                if answer.status not in (503, 429):
                    return answer, again
                assert int(answer.header("Retry-After")) >= 1, answer
                said = answer
            except Lost as lost:
                again, said = again or lost.sent, lost
            self.retries += 1
            assert time.monotonic() < end, f"{self.id}: {said}"
            time.sleep(0.05)

    def ids(self, most=9):
        return [300 + self.draw.randrange(2000) for _ in range(1 + self.draw.randrange(most))]

    def step(self, fleet):
        raise NotImplementedError


def row_of(usage, again, **said):
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    return {**said, "prompt_tokens": usage.get("prompt_tokens", usage.get("input_tokens")), "cached_tokens": details["cached_tokens"], "again": again}


class Turns(Talk):
    """A session: each turn has a key, and one in four is asked for again with it, elsewhere."""
    more = True  # versions that are expected, right and wrong ones

    def begin(self):
        self.versions = {self.id: 0}

    def session_of_turn(self, fleet):
        return self.id

    def body(self, session, n):
        return {"session_id": session, "session_create": self.versions[session] == 0, "prompt": self.ids(), "max_tokens": 2 + n % 4, "ignore_eos": True, "temperature": 0.9,
                "seed": n, "frequency_penalty": 0.5 * (n % 2), "logprobs": 1, "return_token_ids": True}

    def step(self, fleet):
        n = len(self.rows)
        session = self.session_of_turn(fleet)
        body, headers = self.body(session, n), {"Idempotency-Key": f"{session}/{n}"}
        if self.more and self.dice.random() < 0.3 and self.versions[session]:
            body["expected_version"] = self.versions[session]
        answer, again = self.until_answered(fleet, "POST", "/v1/completions", body, headers)
        assert answer.status == 200, (self.id, n, again, answer)
        said = answer.json
        self.versions[session] += 1
        assert said["session"] == {"id": session, "version": self.versions[session]}, f"turn {n} of {session}, version {self.versions[session]}: {said['session']}"
        if self.dice.random() < 0.25:
            same, _ = self.until_answered(fleet, "POST", "/v1/completions", body, headers)
            assert same.status == 200 and same.json == said, (self.id, n, same, answer)
            self.replayed += 1
        if self.more and self.dice.random() < 0.1 and self.versions[session] > 1:
            stale, _ = self.until_answered(fleet, "POST", "/v1/completions", {**body, "session_create": False, "expected_version": self.versions[session] - 1}, {})
            assert stale.status == 412, (self.id, n, stale)
        choice = said["choices"][0]
        self.rows.append(row_of(said["usage"], again, ids=choice["token_ids"], logprobs=choice["logprobs"]["token_logprobs"]))

    def check_end(self, fleet):
        """What any server says at the end: each turn is there, once. A lazy turn is written when its session has not been used for 5 s; until then other
        servers show the version before."""
        end = time.monotonic() + 30
        for session, version in self.versions.items():
            answer, _ = self.until_answered(fleet, "GET", f"/v1/sessions/{session}")
            while answer.status == 200 and answer.json["version"] < version and time.monotonic() < end:
                time.sleep(0.2)
                answer, _ = self.until_answered(fleet, "GET", f"/v1/sessions/{session}")
            assert answer.status == 200 and answer.json["version"] == version, f"{session} has had {version} turns: {answer}"


class Forks(Turns):
    """A session that is forked twice; then its turns and those of its forks alternate."""

    def session_of_turn(self, fleet):
        n = len(self.rows)
        if n in (self.n_turns // 4, self.n_turns // 2):
            fork = f"{self.id}.{n}"
            answer, again = self.until_answered(fleet, "POST", f"/v1/sessions/{self.id}/fork", {"id": fork})
            made_before = again and answer.status == 412 and answer.error["code"] == "session_exists"
            assert made_before or (answer.status == 200 and answer.json["version"] == self.versions[self.id]), (fork, again, answer)
            self.versions[fork] = self.versions[self.id]
            self.forks += 1
        return list(self.versions)[n % len(self.versions)]


class Whole(Talk):
    """A chat that brings all messages each time, under a name."""

    def begin(self):
        self.messages = [{"role": "system", "content": f"Talk {self.number}. " + self.text(40)}]

    def text(self, n):
        return " ".join(self.draw.choice("the little dog ran to a big red house and saw one cat who was happy in the garden".split()) for _ in range(n))

    def step(self, fleet):
        n = len(self.rows)
        self.messages.append({"role": "user", "content": self.text(12)})
        body = {"messages": self.messages, "prompt_cache_key": self.id, "max_tokens": 4 + n % 3, "min_tokens": 3, "seed": n, "temperature": 0.8, "logprobs": True, "return_token_ids": True}
        answer, again = self.until_answered(fleet, "POST", "/v1/chat/completions", body)
        assert answer.status == 200, (self.id, n, answer)
        choice = answer.json["choices"][0]
        self.messages.append({"role": "assistant", "content": choice["message"]["content"]})
        self.rows.append(row_of(answer.json["usage"], again, ids=choice["token_ids"], logprobs=[t["logprob"] for t in choice["logprobs"]["content"]]))

    def check_end(self, fleet):
        pass


class Responses(Talk):
    """Responses that are stored, each behind the one before."""

    def begin(self):
        self.last = None

    def step(self, fleet):
        n = len(self.rows)
        body = {"input": f"Part {n} of {self.number}: " + " ".join(map(str, self.ids())), "max_output_tokens": 6, "temperature": 0, **({"previous_response_id": self.last} if self.last else {})}
        answer, again = self.until_answered(fleet, "POST", "/v1/responses", body)
        assert answer.status == 200, (self.id, n, answer)
        self.last = answer.json["id"]
        if self.dice.random() < 0.2:
            same, _ = self.until_answered(fleet, "GET", f"/v1/responses/{self.last}")
            assert same.status == 200 and same.json == answer.json, (self.id, n, same, answer)
        self.rows.append(row_of(answer.json["usage"], again, text=[part["text"] for item in answer.json["output"] for part in item.get("content", [])]))

    def check_end(self, fleet):
        pass


KINDS = (Turns, Forks, Whole, Responses)


def talks(n, n_turns, kinds=KINDS, apart=""):
    return [kinds[i % len(kinds)](i, n_turns, apart) for i in range(n)]


def drive(fleet, all_talks, n_threads=6, at=lambda done: False):
    """All steps of all talks, those of one in their order; at(done): called now and then with the number of steps that were done, and while it says True
    talks go on behind their last turn."""
    waiting, lock, over, more, faults, done = collections.deque(all_talks), threading.Lock(), threading.Event(), threading.Event(), [], [0]
    n_all = sum(t.n_turns - len(t.rows) for t in all_talks)

    def work():
        while not over.is_set():
            with lock:
                talk = next((t for t in waiting if len(t.rows) < t.n_turns or more.is_set()), None)
                if talk:
                    waiting.remove(talk)
            if not talk:
                if done[0] >= n_all and not more.is_set():
                    return
                time.sleep(0.01)
                continue
            try:
                talk.step(fleet)
            except BaseException as fault:  # the test's: it is raised below
                faults.append(fault)
                over.set()
                return
            if len(talk.rows) > talk.n_turns:  # a restart may take seconds: turns go on meanwhile, not thousands of them
                time.sleep(0.1)
            with lock:
                done[0] += 1
                waiting.append(talk)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            (more.set if at(done[0]) else more.clear)()
            time.sleep(0.02)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if faults:
        raise faults[0]


def alone(all_talks):
    """The same conversations on one server that is never restarted."""
    class Memory:
        flags, env = (), {}
    fleet = Fleet(Memory, 1, name="fleet-alone")
    try:
        same = [type(talk)(talk.number, talk.n_turns, "-alone") for talk in all_talks]
        for talk, other in zip(all_talks, same):
            for _ in talk.rows:
                other.step(fleet)
        return same
    finally:
        fleet.close()


def differences(all_talks, same):
    """Where a turn is another than alone; tokens that were read again. A turn whose first try was lost may find more than the first time."""
    wrong, read_again = [], 0
    for talk, other in zip(all_talks, same, strict=True):
        assert len(talk.rows) == len(other.rows) >= talk.n_turns
        for n, (row, want) in enumerate(zip(talk.rows, other.rows)):
            cached = row["cached_tokens"] - want["cached_tokens"]
            read_again += max(0, -cached)
            strip = lambda r: {k: v for k, v in r.items() if k not in ("again", "cached_tokens")}
            if strip(row) != strip(want) or (cached != 0 if not row["again"] else cached < 0):
                wrong.append((talk.id, n, row, want))
    return wrong, read_again
