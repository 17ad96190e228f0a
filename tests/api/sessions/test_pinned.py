"""Pinned prefixes: an admin gives the beginning of prompts an id, and every key's prompts go on from its state."""
import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time

import pytest

from server import Server
from test_prefix import cached, words

ADMIN = {"Authorization": "Bearer root"}
KEYS = ("--api-keys", "one,two", "--admin-key", "root")
TEXT = words(7, 200)
SEES_S = 60  # another server of the folder looks at it once a second


def pin(server, name, body, headers=None):
    return server.ask("PUT", f"/v1/prefixes/{name}", body, headers=headers)


def complete(server, prompt, headers=None, **more):
    answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 3, **more}, headers=headers)
    assert answer.status == 200, answer
    return answer.json


def shown(body):
    return body["choices"][0]["text"], body["choices"][0]["logprobs"]


def until(what, why):
    end = time.monotonic() + SEES_S
    while not what():
        assert time.monotonic() < end, why
        time.sleep(0.1)


def files(folder):
    at = os.path.join(folder, "prefixes")
    return sorted(os.listdir(at)) if os.path.isdir(at) else []


def key(name):
    return {"Authorization": f"Bearer {name}"}


def test_every_key_goes_on_from_a_pinned_prefix_and_gets_the_cold_answer(tmp_path):
    server = Server("--state-dir", tmp_path, *KEYS, name="pinned")
    try:
        cold = complete(server, TEXT + " Then", key("one"), cache_salt="cold")
        made = pin(server, "tale", {"prompt": TEXT}, ADMIN)
        assert made.status == 200, made
        n_tok = made.json["tokens"]
        assert made.json["durable"] is True and made.json["id"] == "tale" and n_tok % 64 == 0 and n_tok > 64
        for who in ("one", "two"):
            for salt in (None, "mine"):
                warm = complete(server, TEXT + " Then", key(who), cache_salt=salt)
                assert shown(warm) == shown(cold) and cached(warm) >= n_tok
        assert cached(complete(server, words(8, 200), key("one"))) == 0
        assert server.get("/v1/prefixes", headers=ADMIN).json["data"] == [{**made.json, "used": 4}]
        for name in ("rodimus_pinned_prefixes", "rodimus_pinned_prefix_bytes", "rodimus_pinned_prefix_hits_total"):
            assert server.metric(name, headers=ADMIN) >= 1, name
    finally:
        server.end()


def test_a_pinned_prefix_survives_kill_9_and_other_servers_of_the_folder_share_it(tmp_path):
    first = Server("--state-dir", tmp_path, name="pinned-first")
    second = Server("--state-dir", tmp_path, name="pinned-second")
    try:
        made = pin(first, "tale", {"prompt": TEXT}).json
        until(lambda: second.get("/v1/prefixes/tale").status == 200, second.log)
        assert cached(complete(second, TEXT + " Then")) == made["tokens"]
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        first = Server("--state-dir", tmp_path, name="pinned-first")
        assert first.get("/v1/prefixes/tale").json == {**made, "used": 0}
        assert cached(complete(first, TEXT + " Then")) == made["tokens"]
        longer = pin(second, "tale", {"prompt": TEXT + " " + TEXT}).json  # in its place
        assert longer["tokens"] > made["tokens"]
        until(lambda: first.get("/v1/prefixes/tale").json.get("tokens") == longer["tokens"], first.log)
        assert first.ask("DELETE", "/v1/prefixes/tale").json == {"object": "prefix", "id": "tale", "deleted": True}
        assert files(tmp_path) == []
        until(lambda: second.get("/v1/prefixes/tale").status == 404, second.log)
        assert second.get("/v1/prefixes").json == {"object": "list", "data": []}
    finally:
        first.end()
        second.end()


def test_without_a_folder_it_is_there_until_the_server_ends(server):
    made = pin(server, "brief", {"prompt": words(9, 200)})
    assert made.status == 200 and made.json["durable"] is False
    assert cached(complete(server, words(9, 200) + " Then")) == made.json["tokens"]
    assert server.ask("DELETE", "/v1/prefixes/brief").status == 200
    assert server.ask("DELETE", "/v1/prefixes/brief").status == 404


def test_a_chat_goes_on_from_pinned_messages_and_tools(server):
    system = [{"role": "system", "content": words(11, 120)}]
    tools = [{"type": "function", "function": {"name": f"tool_{i}", "description": words(i, 12), "parameters": {"type": "object", "properties": {}}}} for i in range(4)]
    made = pin(server, "agent", {"messages": system, "tools": tools}).json
    try:
        ask = {"messages": system + [{"role": "user", "content": "Hello"}], "tools": tools, "max_tokens": 4}
        assert cached(server.post("/v1/chat/completions", ask).json) == made["tokens"]
        message = {"system": system[0]["content"], "messages": [{"role": "user", "content": "Good day"}], "max_tokens": 4,
                   "tools": [{"name": t["function"]["name"], "description": t["function"]["description"], "input_schema": t["function"]["parameters"]} for t in tools]}
        assert server.post("/v1/messages", message).json["usage"]["cache_read_input_tokens"] > 0
        turn = server.post("/v1/chat/completions", {**ask, "session_id": "pinned-turn", "session_create": True}).json
        assert cached(turn) > 0  # a session's first turn goes on from it too
    finally:
        server.ask("DELETE", "/v1/prefixes/agent")
        server.ask("DELETE", "/v1/sessions/pinned-turn")


def test_a_pinned_prefix_stays_while_the_prefix_cache_turns_over():
    server = Server("--prefix-cache-bytes", 8 << 20, "--state-host-bytes", 64 << 20, name="pinned-small", env={"RODIMUS_TEST_CHECKPOINTS_PAY": "1"})
    try:
        made = pin(server, "tale", {"prompt": TEXT}).json
        for i in range(30):
            complete(server, words(100 + i, 300))
        assert server.metric("rodimus_prefix_evicted_total") > 0
        assert cached(complete(server, TEXT + " Then")) >= made["tokens"]
        answers = [pin(server, f"other-{i}", {"prompt": words(200 + i, 80)}) for i in range(20)]
        refused = [a for a in answers if a.status != 200]
        assert refused and all(a.status == 400 and "state_host_bytes" in a.error["message"] for a in refused), answers
        assert server.get("/v1/prefixes/tale").status == 200
    finally:
        server.end()


@pytest.mark.parametrize("damage", ["truncated", "changed", "foreign", "renamed"])
def test_a_damaged_file_is_left_out_and_can_be_replaced_or_removed(tmp_path, damage):
    server = Server("--state-dir", tmp_path, name="pinned-damage")
    try:
        assert pin(server, "tale", {"prompt": TEXT}).status == 200
    finally:
        server.end()
    name = os.path.join(tmp_path, "prefixes", files(tmp_path)[0])
    with open(name, "rb") as f:
        data = bytearray(f.read())
    if damage == "truncated":
        data = data[:-1]
    elif damage == "changed":
        data[len(data) // 2] ^= 1
    elif damage == "foreign":
        data = b"hello"
    else:
        os.rename(name, name := name.replace("tale", "saga"))
    with open(name, "wb") as f:
        f.write(data)
    server = Server("--state-dir", tmp_path, name="pinned-damage")
    try:
        which = "saga" if damage == "renamed" else "tale"
        assert server.get("/v1/prefixes").json["data"] == []
        assert server.log().count("pinned prefix is left out") == 1, server.log()
        assert cached(complete(server, TEXT + " Then")) == 0
        assert files(tmp_path) == [os.path.basename(name)]
        assert pin(server, which, {"prompt": TEXT}).status == 200
        assert server.get(f"/v1/prefixes/{which}").status == 200
        assert server.ask("DELETE", f"/v1/prefixes/{which}").status == 200
        assert files(tmp_path) == []
    finally:
        server.end()


def test_only_the_admin_key_pins(tmp_path):
    server = Server(*KEYS, name="pinned-keys")
    bare = Server("--api-keys", "one", name="pinned-bare")
    try:
        for ask in (lambda s, h: pin(s, "tale", {"prompt": TEXT}, h), lambda s, h: s.get("/v1/prefixes", headers=h),
                    lambda s, h: s.get("/v1/prefixes/tale", headers=h), lambda s, h: s.ask("DELETE", "/v1/prefixes/tale", headers=h)):
            assert ask(server, key("one")).status == 401
            assert ask(server, {}).status == 401
            answer = ask(bare, key("one"))
            assert (answer.status, answer.error["code"]) == (403, "admin_key_missing"), answer
    finally:
        server.end()
        bare.end()


@pytest.mark.parametrize("body,param", [({"prompt": "short"}, "prompt"), ({"messages": [{"role": "user", "content": "Hi"}]}, "messages"), ({}, "prompt"),
                                        ({"prompt": TEXT, "messages": []}, "messages"), ({"prompt": 7}, "prompt"), ({"prompt": TEXT, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools")])
def test_what_is_no_prefix_names_the_field(server, body, param):
    answer = pin(server, "none", body)
    assert answer.status == 400 and answer.error["param"] == param, answer
    assert server.get("/v1/prefixes/none").status == 404


@pytest.mark.parametrize("name", ["a%20b", "x" * 129, "%2e%2e", "a%2fb", "a.tmp-b", "caf%C3%A9", "a%00b"])
def test_an_id_that_is_none_is_refused(server, name):
    answer = pin(server, name, {"prompt": TEXT})
    assert answer.status in (400, 404) and answer.error["message"], answer
    assert server.get("/v1/prefixes").json["data"] == []


def test_prefixes_that_are_pinned_at_once_are_all_there_or_say_that_one_is_read(server):
    answers = [None] * 6

    def one(i):
        answers[i] = pin(server, f"at-once-{i}", {"prompt": words(300 + i, 400)})

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    made = {f"at-once-{i}" for i, a in enumerate(answers) if a.status == 200}
    assert made and all(a.status == 200 or (a.status == 429 and a.header("Retry-After")) for a in answers), answers
    assert {p["id"] for p in server.get("/v1/prefixes").json["data"]} == made
    for name in made:
        assert server.ask("DELETE", f"/v1/prefixes/{name}").status == 200


LONG = words(400, 60000)  # seconds of reading


def test_a_reading_ends_with_its_client(own_server):
    server = own_server()
    connection = socket.create_connection(("127.0.0.1", server.port))
    body = json.dumps({"prompt": LONG}).encode()
    connection.sendall(b"PUT /v1/prefixes/long HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    server.wait_metric("rodimus_slots_used", lambda n: n == 1)
    assert pin(server, "short", {"prompt": TEXT}).status == 429
    connection.close()
    until(lambda: pin(server, "short", {"prompt": TEXT}).status == 200, server.log)
    assert server.metric("rodimus_engine_requests_cancelled_total") == 1
    assert [p["id"] for p in server.get("/v1/prefixes").json["data"]] == ["short"]


@pytest.mark.parametrize("signals", [1, 2])
def test_a_reading_ends_with_the_drain_or_at_the_second_signal(own_server, signals):
    server = own_server("--drain-ms", 300 if signals == 1 else 60000)
    answers = []

    def ask():
        with contextlib.suppress(OSError, http.client.HTTPException):
            answers.append(pin(server, "long", {"prompt": LONG * 3}))

    thread = threading.Thread(target=ask)
    thread.start()
    server.wait_metric("rodimus_slots_used", lambda n: n == 1)
    server.terminate()
    if signals == 2:
        until(lambda: "draining" in server.log(), server.log)
        server.terminate()
    assert server.wait(25) == (0 if signals == 1 else 128 + signal.SIGTERM), server.log()  # before drain_ms are over
    thread.join()
    assert all(a.status == 503 for a in answers), answers


def test_what_found_no_room_is_loaded_when_there_is_some(tmp_path):
    large = Server("--state-dir", tmp_path, name="pinned-large")
    small = Server("--state-dir", tmp_path, "--state-host-bytes", 30000000, name="pinned-little")
    try:
        for i in range(5):
            assert pin(large, f"p{i}", {"prompt": words(500 + i, 150)}).status == 200

        def there(server):
            return {p["id"] for p in server.get("/v1/prefixes").json["data"]}

        until(lambda: "left out" in small.log(), small.log)
        for _ in range(5):
            if some := there(small):
                gone = min(some)
                assert small.ask("DELETE", f"/v1/prefixes/{gone}").status == 200
                until(lambda: gone not in there(large) and there(small) and there(small) <= there(large) or not there(large), small.log)
        until(lambda: there(small) == there(large), small.log)
    finally:
        large.end()
        small.end()


def test_damaged_files_take_no_places(tmp_path):
    os.mkdir(tmp_path / "prefixes")
    server = Server("--state-dir", tmp_path, name="pinned-places")
    try:
        assert pin(server, "one", {"prompt": TEXT}).status == 200
        name = files(tmp_path)[0]
        for i in range(70):
            (tmp_path / "prefixes" / name.replace("one", f"bad{i}")).write_bytes(b"hello")
        until(lambda: server.log().count("left out") >= 60, server.log)
        assert pin(server, "two", {"prompt": words(8, 200)}).status == 200
        (tmp_path / "prefixes" / name).write_bytes(b"hello")  # one more, of a prefix that was there
        until(lambda: server.get("/v1/prefixes/one").status == 404, server.log)
        assert pin(server, "one", {"prompt": TEXT}).status == 200
        time.sleep(3)
        assert server.log().count("left out") <= 80, server.log()
    finally:
        server.end()


def test_without_the_prefix_cache_it_says_what_is_missing():
    server = Server("--prefix-cache-bytes", 0, name="pinned-none")
    try:
        answer = pin(server, "tale", {"prompt": TEXT})
        assert answer.status == 400 and "prefix_cache_bytes" in answer.error["message"], answer
    finally:
        server.end()
