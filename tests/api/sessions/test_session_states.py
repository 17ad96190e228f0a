"""What is kept of a session: its state on the way between servers, keys, kill -9, shared directories, gauges and the log."""
import contextlib
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import time

import pytest

from talk import COMPLETIONS, TEXTS, Talk, ids_of, new_id, turn

# ---- states ----

def state(server, session, **more):
    return server.get(f"/v1/sessions/{session}/state", **more)


def put(server, session, body, headers=None):
    return server.ask("PUT", f"/v1/sessions/{session}/state", body, {"Content-Type": "application/octet-stream", **(headers or {})})


def test_a_state_moves_to_another_server(server, own_server):
    talk = Talk(server)
    talk.go(TEXTS[0])
    answer = state(server, talk.id)
    assert answer.status == 200 and answer.header("Content-Type") == "application/octet-stream"
    assert answer.body[:8] == b"RODSTATE" and int(answer.header("Content-Length")) == len(answer.body)
    other = own_server()
    copied = put(other, talk.id, answer.body)
    assert copied.status == 200 and copied.json["version"] == 1, copied
    moved = Talk(other, talk.id, talk.said)
    moved.first = {}
    moved.go(TEXTS[1])
    # Under another name it is a copy, beside the one that went on.
    talk.go(TEXTS[2])
    copy = Talk(server, new_id(), moved.said[:2])
    copy.first = {}
    assert put(server, copy.id, answer.body).json["id"] == copy.id
    copy.go(TEXTS[1])


def test_a_broken_state_is_refused(server):
    talk = Talk(server)
    talk.go(TEXTS[0])
    good = state(server, talk.id).body
    broken = {"empty": b"", "short": good[:50], "cut": good[:-1], "long": good + b"x", "magic": b"X" + good[1:],
              "middle": good[:len(good) // 2] + bytes([good[len(good) // 2] ^ 1]) + good[len(good) // 2 + 1:], "noise": os.urandom(5000)}
    for name, body in broken.items():
        answer = put(server, talk.id, body)
        assert answer.status == 412 and answer.error["code"] == "bad_state", (name, answer)
    assert put(server, talk.id, good, {"Content-Type": "application/json"}).status == 415
    assert put(server, "a%20b", good).status == 400
    talk.go(TEXTS[1])


def test_a_state_has_a_limit_of_its_own(own_server):
    s = own_server("--body-max-bytes", 1024)
    assert s.post(COMPLETIONS, {"prompt": "a" * 2000}).status == 413
    talk = Talk(s)
    talk.go(TEXTS[0])
    good = state(s, talk.id).body
    assert len(good) > 1024 and put(s, new_id(), good).status == 200
    limit = s.get("/v1/models/tales").json["session_bytes"] + (32 << 20)
    answer = put(s, new_id(), b"x" * (limit + 1))
    assert answer.status == 413 and str(limit) in answer.error["message"], answer


def test_two_states_come_in_at_a_time(own_server):
    s = own_server()
    head = "PUT /v1/sessions/a/state HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n"
    waiting = []
    for _ in range(2):
        waiting.append(s.socket())
        waiting[-1].sendall(head.encode() + b"x")
    time.sleep(0.3)
    answer = put(s, "b", b"x" * 100)
    assert answer.status == 503 and answer.header("Retry-After"), answer
    assert s.complete()["choices"], "requests do not wait for states"
    waiting[0].close()
    for _ in range(100):
        answer = put(s, "b", b"x" * 100)
        if answer.status != 503:
            break
        time.sleep(0.02)
    assert answer.status == 412, answer
    waiting[1].close()


def test_states_are_for_the_admin_key(own_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret-a name=a\nsecret-b name=b\n")
    keyed = own_server("--api-key-file", keys)
    a, b, admin = ({"Authorization": f"Bearer {k}"} for k in ("secret-a", "secret-b", "master"))
    session = new_id()
    turn(keyed, session, [5, 6], headers=a, session_create=True)
    answer = state(keyed, session, headers=a)
    assert answer.status == 403 and answer.error["code"] == "admin_key_missing", answer
    ruled = own_server("--api-key-file", keys, "--admin-key", "master")
    turn(ruled, session, [5, 6], headers=a, session_create=True)
    for headers in (a, b, {}):
        assert state(ruled, session, headers=headers).status == 401
    assert state(ruled, session, headers={**admin, "X-Tenant": "b"}).status == 404
    answer = state(ruled, session, headers={**admin, "X-Tenant": "a"})
    assert answer.status == 200
    assert put(ruled, session, answer.body, {**admin, "X-Tenant": "b"}).status == 200
    assert turn(ruled, session, [7], headers=b)["session"]["version"] == 2
    assert ruled.get(f"/v1/sessions/{session}", headers=a).json["version"] == 1
    for headers in ({"X-Tenant": "x" * 100}, {"X-Tenant": "nobody"}):
        assert state(ruled, session, headers={**admin, **headers}).status == 404


def test_a_file_names_a_key_without_a_name_by_half_of_its_sha256(own_server, tmp_path):
    """What stands in a file must not lead back to the key, however short that is."""
    s = own_server("--api-keys", "short", "--state-dir", tmp_path / "states")
    turn(s, new_id(), [5, 6], headers={"Authorization": "Bearer short"}, session_create=True)
    files = [p.read_bytes() for p in (tmp_path / "states").rglob("*") if p.is_file()]
    name = b"key-" + hashlib.sha256(b"short").hexdigest()[:32].encode()
    assert [name in f for f in files if f.startswith(b"RODSTATE")] == [True], [(len(f), f[:300]) for f in files]


def test_sessions_belong_to_their_key(own_server):
    s = own_server("--api-keys", "first,second")
    a, b = ({"Authorization": f"Bearer {k}"} for k in ("first", "second"))
    session = new_id()
    key = {"Idempotency-Key": "once"}
    one = turn(s, session, [5, 6, 7], headers={**a, **key}, session_create=True)
    for method, path, body in (("GET", "", None), ("DELETE", "", None), ("POST", "/fork", {})):
        assert s.ask(method, f"/v1/sessions/{session}{path}", body, b).status == 404
    assert s.post(COMPLETIONS, {"prompt": [5], "session_id": session}, headers=b).status == 404
    assert s.post("/v1/sessions", {"from": session}, headers=b).status == 404
    assert s.get("/v1/sessions", headers=b).json["data"] == []
    two = turn(s, session, [5, 6, 7], headers={**b, **key}, session_create=True)
    assert two["session"] == one["session"], "the other key has a session of the same name, at the same version"
    assert [x["id"] for x in s.get("/v1/sessions", headers=a).json["data"]] == [session]
    turn(s, session, [8], headers=a)
    assert s.get(f"/v1/sessions/{session}", headers=b).json["version"] == 1


# ---- restarts ----

def test_a_session_survives_kill_9(durable):
    first = durable()
    talk = Talk(first)
    talk.go(TEXTS[0])
    talk.go(TEXTS[1])
    body = {"prompt": [9, 8], "max_tokens": 3, "session_id": talk.id}
    once = first.post(COMPLETIONS, body, headers={"Idempotency-Key": "k"}).json
    first.process.send_signal(signal.SIGKILL)
    first.wait()
    second = durable()
    again = second.post(COMPLETIONS, body, headers={"Idempotency-Key": "k"}).json
    assert again["choices"] == once["choices"] and again["session"] == once["session"] == {"id": talk.id, "version": 3}
    found = second.get(f"/v1/sessions/{talk.id}").json
    assert found["version"] == 3 and found["state_bytes"] > 0
    listed = second.get("/v1/sessions").json["data"]
    assert [x["id"] for x in listed] == [talk.id]
    third = turn(second, talk.id, ids_of(second, TEXTS[2]), expected_version=3)
    assert third["usage"]["prompt_tokens_details"]["cached_tokens"] >= third["usage"]["prompt_tokens"] - len(ids_of(second, TEXTS[2])) - 1
    assert third["session"]["version"] == 4


def test_the_third_turn_after_kill_9_is_the_undisturbed_one(durable):
    first = durable()
    talk = Talk(first)
    talk.go(TEXTS[0])
    talk.go(TEXTS[1])
    first.process.send_signal(signal.SIGKILL)
    first.wait()
    assert talk.go(TEXTS[2], server=durable())["session"]["version"] == 3


def test_a_fork_that_was_answered_survives_kill_9(durable):
    """And so does a fork of it, and a session that was made from it; their source goes on and is deleted."""
    first = durable()
    talk = Talk(first)
    talk.go(TEXTS[0])
    talk.go(TEXTS[1])
    assert first.post(f"/v1/sessions/{talk.id}/fork", {"id": "one"}).status == 200
    turn(first, talk.id, TEXTS[2])
    assert first.post("/v1/sessions/one/fork", {"id": "two"}).status == 200
    assert first.ask("DELETE", f"/v1/sessions/{talk.id}").status == 200
    answer = first.post("/v1/sessions", {"id": "three", "from": "two", "pin": True})
    first.process.send_signal(signal.SIGKILL)
    first.wait()
    assert answer.status == 200 and answer.json["durable"] is True, answer
    files = [f for f in durable.dir.iterdir() if f.name != "names.key"]
    assert len({f.stat().st_ino for f in files}) == 4 and sum(f.stat().st_size > 100_000 for f in files) == 3, "one state by three names"
    second = durable()
    assert sorted(x["id"] for x in second.get("/v1/sessions").json["data"]) == ["one", "three", "two"]
    for name in ("two", "one", "three"):
        fork = Talk(second, name, talk.said)
        fork.first = {}
        assert fork.go(TEXTS[2])["session"] == {"id": name, "version": 3}
    assert [f.name for f in durable.dir.iterdir() if f.suffix != ".state"] == ["names.key"]


def test_a_drained_server_leaves_its_sessions(durable):
    first = durable("--session-durability", "lazy")
    talk = Talk(first)
    talk.go(TEXTS[0])
    assert first.stop() == 0
    talk.go(TEXTS[1], server=durable("--session-durability", "lazy"))


def test_a_drain_that_loses_a_session_is_a_failure(durable):
    s = durable("--session-durability", "lazy")
    talk = Talk(s)
    talk.go(TEXTS[0])
    small_files(s, 400_000)
    status = s.stop()
    assert status == 1, status
    assert f"session {talk.id} is not written and lost at its last version" in s.log() and "Lost 1 sessions" in s.log(), s.log()[-2000:]


def test_two_servers_share_a_directory(durable):
    a, b = durable(), durable()
    talk = Talk(a)
    for i in range(4):
        talk.go(TEXTS[i % 3], server=(a, b)[i % 2])
    assert a.get(f"/v1/sessions/{talk.id}").json["version"] == b.get(f"/v1/sessions/{talk.id}").json["version"] == 4


def test_a_directory_that_is_gone_fails_turns_and_nothing_else(durable):
    s = durable()
    session = new_id()
    turn(s, session, TEXTS[0], session_create=True)
    shutil.rmtree(durable.dir)
    for stream in (False, True):
        for path, body in ((COMPLETIONS, {"prompt": "a", "session_id": session, "session_create": True, "max_tokens": 2, "stream": stream}),
                           ("/v1/responses", {"input": "a", "max_output_tokens": 2, "stream": stream})):
            answer = s.post(path, body)
            assert answer.status == 503 and answer.error["code"] == "io" and "log" in answer.error["message"], answer
            assert answer.header("Retry-After") == "5", answer
            assert str(durable.dir) not in answer.body.decode(), "paths are nobody's business"
    for method, path in (("GET", f"/v1/sessions/{session}"), ("GET", "/v1/sessions"), ("DELETE", f"/v1/sessions/{session}"),
                         ("GET", f"/v1/sessions/{session}/state"), ("POST", f"/v1/sessions/{session}/fork")):
        answer = s.ask(method, path, b"{}" if method == "POST" else None, {"Content-Type": "application/json"})
        assert answer.status == 503 and answer.error["code"] == "io" and answer.header("Retry-After") == "5", (method, path, answer)
    assert s.complete()["choices"] and s.get("/health/ready").status == 200
    assert s.metric("rodimus_state_save_failures_total") == 4
    assert f"state of {session}: " in s.log() and str(durable.dir) in s.log()
    durable.dir.mkdir()
    talk = Talk(s)
    talk.go(TEXTS[0])
    talk.go(TEXTS[1])
    s.kill()
    assert durable().get(f"/v1/sessions/{talk.id}").json["version"] == 2, "the folder has the key of its names again"


@pytest.fixture
def disk(tmp_path):
    """The folder of `durable` as a disk of its own: room for one state of tales and for a second one beside it, twice as
    large as needed or not. mount(...) mounts something there, umount() takes it away; Linux lets root do so."""
    states = tmp_path / "states"
    states.mkdir()

    def mount(*options):
        done = subprocess.run(["mount", "-t", "tmpfs", *options, "rodimus-test", str(states)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"needs to mount a file system: {done.stderr.strip()}")
    mount.umount = lambda: subprocess.run(["umount", "-l", str(states)], capture_output=True)
    mount.remount = lambda option: subprocess.run(["mount", "-o", f"remount,{option}", str(states)], check=True)
    yield mount
    while os.path.ismount(states):
        if mount.umount().returncode:
            break


def refused_for_now(answer, directory):
    assert answer.status == 503 and answer.error["code"] == "io" and answer.header("Retry-After") == "5", answer
    assert str(directory) not in answer.body.decode(), "paths are nobody's business"


@pytest.mark.parametrize("how", ["full", "read-only", "gone"])
def test_a_disk_that_takes_nothing_later_refuses_turns_for_now(disk, durable, how):
    disk("-o", "size=16m")
    s, talk = durable(), None
    talk = Talk(s)
    talk.go(TEXTS[0])
    body = {"prompt": "a", "max_tokens": 2, "session_id": talk.id, "session_create": True}
    fill = durable.dir / "fill"
    if how == "full":
        with open(fill, "wb", buffering=0) as f, contextlib.suppress(OSError):
            while True:
                f.write(bytes(1 << 16))
    elif how == "read-only":
        disk.remount("ro")
    else:
        disk.umount()
    for answer in (s.post(COMPLETIONS, body), s.post(COMPLETIONS, {**body, "session_id": "new"}),
                   s.post("/v1/sessions", {"id": "made"}), s.post("/v1/responses", {"input": "a", "max_output_tokens": 2})):
        refused_for_now(answer, durable.dir)
    if how == "gone":
        refused_for_now(s.get(f"/v1/sessions/{talk.id}"), durable.dir)
        assert not list(durable.dir.iterdir()), "nothing is written where the disk was mounted"
    assert s.complete()["choices"] and s.get("/health/ready").status == 200
    if how == "full":
        fill.unlink()
    elif how == "read-only":
        disk.remount("rw")
    else:
        return
    talk.go(TEXTS[1])
    assert s.get(f"/v1/sessions/{talk.id}").json["version"] == 2


def small_files(server, n_bytes):
    """As a full disk: nothing of a state's size can be written; the log still can."""
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))


def test_lazy_turns_are_refused_at_once_when_neither_disk_nor_memory_has_room(durable):
    s = durable("--session-durability", "lazy", "--state-host-bytes", 12 << 20, "--prefix-cache-bytes", 0)
    talks = [Talk(s)]
    talks[0].go(TEXTS[0])
    while s.get(f"/v1/sessions/{talks[0].id}").json["tier"] != "file":
        assert len(talks) < 40
        talks.append(Talk(s))
        talks[-1].go(TEXTS[len(talks) % 3])
    small_files(s, 400_000)
    refused = 0
    for i in range(40):
        body = {"prompt": "a", "max_tokens": 2, "session_id": talks[0].id if i % 2 else f"new-{i}", "session_create": True}
        began = time.monotonic()
        answer = s.post(COMPLETIONS, body)
        took = time.monotonic() - began
        assert took < 20, took
        if i % 2 and answer.status == 200:
            talks[0].said = None
        assert answer.status in (200, 503), answer
        if answer.status == 503:
            refused += 1
            assert answer.error["code"] == "no_room" and answer.header("Retry-After") == "5", answer
            assert str(durable.dir) not in answer.body.decode()
    assert refused > 10, refused
    assert s.log().count("is not written") == 1 and s.log().count("turns are refused") == 1, s.log()[-3000:]
    assert s.complete()["choices"] and s.get("/health/ready").status == 200
    small_files(s, resource.RLIM_INFINITY)
    began = time.monotonic()
    while s.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1, "session_id": "another", "session_create": True}).status == 503:
        assert time.monotonic() - began < 60
        time.sleep(0.1)
    for talk in talks:
        if talk.said is not None:
            talk.go(TEXTS[0])


def is_durable(server, session):
    return server.get(f"/v1/sessions/{session}").json["durable"]


def test_a_fork_says_whether_it_is_on_disk(durable, server):
    s, session = durable(), new_id()
    turn(s, session, TEXTS[0], session_create=True)
    assert is_durable(s, session)
    assert s.post(f"/v1/sessions/{session}/fork", {"id": "now"}).json["durable"] is True
    small_files(s, 400_000)
    assert s.post(f"/v1/sessions/{session}/fork", {"id": "small"}).json["durable"] is True, "it needs no room for a state"
    small_files(s, 10)
    answer = s.post(f"/v1/sessions/{session}/fork", {"id": "never"})
    assert answer.status == 503 and answer.error["code"] == "io" and answer.header("Retry-After") == "5", answer
    assert s.get("/v1/sessions/never").status == 404
    small_files(s, resource.RLIM_INFINITY)
    assert {x["id"]: x["durable"] for x in s.get("/v1/sessions").json["data"]} == {session: True, "now": True, "small": True}
    lazy = durable("--session-durability", "lazy")
    assert lazy.post(f"/v1/sessions/{session}/fork", {"id": "later"}).json["durable"] is False
    began = time.monotonic()
    while not is_durable(lazy, "later"):
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    assert server.post("/v1/sessions", {}).json["durable"] is False, "without a state_dir nothing is"


# ---- what operators see ----

def log_line(server, request_id):
    """The line is written when the answer has left."""
    began = time.monotonic()
    while True:
        lines = [x for x in server.log().splitlines() if f"id={request_id}" in x]
        if lines:
            return lines[-1]
        assert time.monotonic() - began < 60, f"no line with id={request_id}"
        time.sleep(0.01)


def test_gauges_and_the_log_know_of_sessions(durable):
    s = durable()
    names = [new_id() for _ in range(3)]
    for name in names:
        turn(s, name, TEXTS[0], session_create=True, headers={"X-Request-Id": name})
    m = s.metrics()
    assert m["rodimus_sessions"] == 3 and m['rodimus_sessions_by_tier{tier="host"}'] + m['rodimus_sessions_by_tier{tier="file"}'] == 3
    assert m["rodimus_state_saves_total"] >= 3 and m["rodimus_state_save_failures_total"] == 0
    files = [f.stat() for f in durable.dir.glob("*.state")]  # blocks, and for each an inode and an entry in the folder
    assert m["rodimus_state_file_bytes"] == sum(f.st_blocks * 512 + 320 for f in files)
    assert m["rodimus_state_host_bytes"] > 0
    line = log_line(s, names[0])
    assert f"session={names[0]}" in line and "version=1" in line and "cached_tokens=0" in line, line
    assert TEXTS[0].split()[3] not in s.log()
    s.post(COMPLETIONS, {"prompt": "a", "session_id": names[0], "expected_version": 9}, headers={"X-Request-Id": "failed-turn"})
    line = log_line(s, "failed-turn")
    assert f"session={names[0]}" in line and "status=412" in line and " version=" not in line, line
    for route in ('route="/v1/completions"',):
        assert m[f'rodimus_http_requests_total{{{route},code="200"}}'] == 3, m
    s.ask("DELETE", f"/v1/sessions/{names[0]}")
    s.post(f"/v1/sessions/{names[1]}/fork", {})
    s.wait_metric("rodimus_sessions", lambda n: n == 3)
    m = s.metrics()
    assert m['rodimus_http_requests_total{route="/v1/sessions/:id/fork",code="200"}'] == 1
    assert m['rodimus_http_requests_total{route="/v1/sessions/",code="200"}'] == 1
