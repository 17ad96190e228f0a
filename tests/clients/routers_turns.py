"""Sessions whose turns go through a router while servers are killed, added and drained; each turn is what one server alone gives."""
import http.client
import json
import os
import re
import threading
import time
from collections import Counter

from replicas import Replica, free_ports
from routers_kinds import site
from server import MODEL, read_events

N_SESSIONS, N_TURNS, N_CLIENTS = 64, 6, 16
PATIENCE_S = 90  # of a client that repeats a turn
SERVER = ["--model", MODEL, "--slots", 16, "--listen", "ready", "--drain-notice-ms", 3000]


class Wrong(Exception):
    """An answer that no repetition mends."""


class Failed(Exception):
    """No answer, or half of one: the turn is repeated with its key."""


def body_of(i, turn):
    """Half of the sessions are chats, and half of the turns streams."""
    text = f"On day {turn} the fox number {i} went into the wood and met"
    fields = {"model": "tales", "max_tokens": 8, "temperature": 0, "session_id": f"fox-{i}", **({} if turn else {"session_create": True})}
    fields |= {"messages": [{"role": "user", "content": text}]} if i % 2 else {"prompt": " " + text}
    return fields | ({"stream": True, "stream_options": {"include_usage": True}} if (i + turn) % 2 else {})


def whole_of(response, streamed):
    """(text, usage, version) of an answer."""
    if not streamed:
        answer = json.loads(response.read())
        choice = answer["choices"][0]
        return choice["message"]["content"] if "message" in choice else choice["text"], answer["usage"], answer["session"]["version"]
    text, usage, version, done = "", None, None, False
    for event in read_events(response):
        if event.comment:
            continue
        done = event.data == "[DONE]"
        if done:
            break
        if "error" in event.data:
            raise Failed(f"in the stream: {event.data['error'].get('code')}")
        for choice in event.data["choices"]:
            text += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
        usage, version = event.data.get("usage") or usage, event.data.get("session", {}).get("version") or version
    if not done:
        raise Failed("the stream ends without [DONE]")
    return text, usage, version


def ask(port, body, headers, timeout=60, plain=False):
    """plain: no turn of a session, whose answer is not looked at."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        if response.status in (408, 429) or response.status >= 500:
            said = response.read().decode(errors="replace")
            code = re.search('"code": *"([a-z_]+)"', said)
            raise Failed(f"{response.status} {code[1] if code else said[:100]}")
        if response.status != 200:
            raise Wrong(f"{response.status} {response.read()[:400].decode(errors='replace')}")
        if plain:
            return response.read()
        text, usage, version = whole_of(response, body.get("stream"))
        return {"text": text, "cached": usage["prompt_tokens_details"]["cached_tokens"], "prompt": usage["prompt_tokens"], "version": version}
    except (OSError, http.client.HTTPException, ValueError, AssertionError) as broken:  # cut within a frame or a body
        raise Failed(repr(broken)) from broken
    finally:
        connection.close()


def alone(folder):
    """[[answer of each turn] of each session] by one server that nothing is done to."""
    server = Replica("alone", free_ports(1)[0], *SERVER, "--state-dir", os.path.join(folder, "alone"))
    try:
        return [[ask(server.port, body_of(i, turn), {}) for turn in range(N_TURNS)] for i in range(N_SESSIONS)]
    finally:
        server.kill()


class Clients:
    """N_CLIENTS at once, each with its sessions by turns."""

    def __init__(self, router):
        self.router, self.lock = router, threading.Lock()
        self.answers, self.failures, self.wrong, self.slowest_s, self.done = {}, Counter(), [], 0, 0
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(N_CLIENTS)]

    def turn(self, i, turn):
        """Repeats it until it has an answer."""
        name, key = f"fox-{i}", f"key-{i}-{turn}"
        body = body_of(i, turn) | ({} if self.router.keeps_key else {"idempotency_key": key})
        sent = {header: name for header in self.router.ways[i % len(self.router.ways)]} | ({"Idempotency-Key": key} if self.router.keeps_key else {})
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return ask(self.router.port, body, sent)
            except Failed as failure:
                with self.lock:
                    self.failures[re.sub(r"[0-9]{4,}", "N", str(failure))] += 1
                if time.monotonic() > end:
                    raise Wrong(f"no answer within {PATIENCE_S} s: {failure}") from failure
                time.sleep(0.2)

    def run(self, n):
        for turn in range(N_TURNS):
            for i in range(n, N_SESSIONS, N_CLIENTS):
                began = time.monotonic()
                try:
                    answer = self.turn(i, turn)
                except Wrong as wrong:
                    answer = {"wrong": str(wrong)}
                with self.lock:
                    self.answers[i, turn] = answer
                    self.done += 1
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def wait_done(self, share):
        while self.done < share * N_SESSIONS * N_TURNS:
            time.sleep(0.02)


def served(servers):
    """{(session, version): names of the servers that ended it}, by their logs."""
    found = {}
    for name, server in servers.items():
        for session, version in re.findall(r" session=(fox-\d+) .*?version=(\d+)", server.log()):
            found.setdefault((session, int(version)), []).append(name)
    return found


def wait_until(condition, what):
    """A server writes its log behind the answer."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def same_server(found, turns):
    """How many turns beside a session's first were where its turn before was."""
    pairs = [(found[s, v - 1], found[s, v]) for s, v in found if 1 < v <= turns and (s, v - 1) in found]
    return sum(before[-1] == after[-1] for before, after in pairs), len(pairs)


def disturb(clients, router, servers, start):
    """Kills a in the middle of a turn, adds c, drains b; (what had been served before, b's status)."""
    clients.wait_done(1 / 4)
    before = served(servers)
    while not servers["a"].metric("rodimus_slots_used"):
        time.sleep(0.001)
    servers["a"].kill()
    clients.wait_done(1 / 2)
    servers["c"] = start()
    router.add(servers["c"].port)
    clients.wait_done(3 / 4)
    servers["b"].terminate()
    return before, servers["b"].wait()


def scenario(kind, folder, expected):
    """What came of it; an AssertionError where a turn is not what it should be."""
    flags = [*SERVER, "--state-dir", os.path.join(folder, "states")]
    with site(kind, folder, *flags) as (router, servers):
        clients = Clients(router)
        for thread in clients.threads:
            thread.start()
        before, drained = disturb(clients, router, servers, lambda: Replica("scenario-c", free_ports(1)[0], *flags))
        for thread in clients.threads:
            thread.join()
        kept, pairs = same_server(before, N_TURNS)
        ended = [servers["c"].get(f"/v1/sessions/fox-{i}").json["version"] for i in range(N_SESSIONS)]
        wrong = [(i, turn, answer, expected[i][turn]) for (i, turn), answer in sorted(clients.answers.items()) if answer != expected[i][turn]]
        shares = Counter(names[-1] for names in served(servers).values())
        figures = {"turns": len(clients.answers), "wrong": len(wrong), "doubled": sum(v != N_TURNS for v in ended), "repeated_by_clients": sum(clients.failures.values()),
                   "failures": dict(clients.failures.most_common(6)), "slowest_turn_s": round(clients.slowest_s, 1), "by_server": dict(sorted(shares.items())),
                   "at_the_server_of_the_turn_before": f"{kept} of {pairs}"}
        assert not wrong, f"{len(wrong)} turns are wrong, the first {wrong[0]}; {figures}"
        assert not figures["doubled"], f"versions {ended}"
        assert drained == 0, f"the drained server ended with {drained}"
        assert kept == pairs > 20, f"while no server changed {kept} of {pairs} turns stayed where their session was"
        assert shares["b"] and shares["c"], shares
        return figures


def names(kind, folder):
    """Whether a session that the body alone names stays at its server, and whether the name of a conversation reaches one."""
    flags = ["--device", "null", "--slots", 16, "--model-name", "tales", "--session-header", kind.header_kept, "--state-dir", os.path.join(folder, "states")]
    with site(kind, folder, *flags) as (router, servers):
        for turn in range(4):
            for i in range(16):
                ask(router.port, body_of(2 * i, 2 * turn) | {"session_create": True, "user": f"fox-{2 * i}"}, {})
        wait_until(lambda: len(served(servers)) == 64, "turns that no server logged")
        stayed, pairs = same_server(served(servers), 4)
        ask(router.port, {"model": "tales", "messages": [{"role": "user", "content": "Hm"}], "max_tokens": 2}, {kind.header_kept: "a-conversation"}, plain=True)
        wait_until(lambda: any("conversation=a-conversation" in server.log() for server in servers.values()), f"no server read the header {kind.header_kept}")
        return {"taken_for": kind.taken_for, "conversation_named_by": kind.header_kept, "session_id_and_user_of_the_body": "ok" if stayed == pairs else f"skipped: {kind.body_unread}", "stayed": f"{stayed} of {pairs}"}
