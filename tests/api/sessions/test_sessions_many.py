"""How many sessions there may be, of all and of a key; what they count for; PATCH: pins and times that change."""
import shutil
import time

import pytest

from access import bearer, key_file
from server import SLOWER, command
from talk import COMPLETIONS, TEXTS, Talk, new_id, turn


def refused(answer, code, words):
    assert answer.status == 429 and answer.error["code"] == code, answer
    assert answer.error["type"] == "rate_limit" and words in answer.error["message"], answer
    assert int(answer.header("Retry-After")) >= 1, answer


def test_beyond_max_sessions_none_is_made(own_server):
    s = own_server("--max-sessions", 3)
    assert s.post("/v1/sessions", {"id": "pinned", "pin": True}).status == 200
    assert s.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1}).status == 200, "a response that is kept is a session"
    talk = Talk(s, "talk")
    talk.go(TEXTS[0])
    for answer in (s.post("/v1/sessions", {}), s.post("/v1/sessions", {"pin": True}), s.post("/v1/sessions", {"from": "talk"}),
                   s.post("/v1/sessions/talk/fork", {}), s.post(COMPLETIONS, {"prompt": "a", "session_id": "new", "session_create": True}),
                   s.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1}),
                   s.ask("PUT", "/v1/sessions/copy/state", s.get("/v1/sessions/talk/state").body, {"Content-Type": "application/octet-stream"})):
        refused(answer, "max_sessions", "max_sessions is 3")
    assert s.post(COMPLETIONS, {"prompt": "a", "session_id": "new"}).status == 404
    assert s.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1, "store": False}).status == 200
    talk.go(TEXTS[1])
    assert len(s.get("/v1/sessions").json["data"]) == s.metric("rodimus_sessions") == 3
    assert s.ask("DELETE", "/v1/sessions/pinned").status == 200
    turn(s, "new", TEXTS[0], session_create=True)
    refused(s.post("/v1/sessions", {}), "max_sessions", "max_sessions is 3")


def test_a_key_has_a_limit_of_its_own(own_server, tmp_path):
    path = key_file(tmp_path, "one name=small sessions=2\ntwo name=large\n")
    s = own_server("--api-key-file", path, key="one")
    other = {"headers": bearer("two")}
    for n in range(4):
        assert s.post("/v1/sessions", {"id": f"s{n}"}, **other).status == 200
    assert s.post("/v1/sessions", {"id": "a"}).status == 200
    assert s.post("/v1/sessions", {"id": "b", "pin": True}).status == 200
    for answer in (s.post("/v1/sessions", {"pin": True}), s.post("/v1/sessions/a/fork", {}),
                   s.post(COMPLETIONS, {"prompt": "a", "session_id": "c", "session_create": True, "stream": True}),
                   s.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1})):
        refused(answer, "key_sessions", "limit of 2 sessions")
    assert s.metrics()['rodimus_key_rejected_total{key="small"}'] == 4
    assert s.post("/v1/sessions", {"id": "more"}, **other).status == 200
    turn(s, "a", TEXTS[0])
    assert s.ask("DELETE", "/v1/sessions/b").status == 200
    assert s.post("/v1/sessions", {"id": "c"}).status == 200
    refused(s.post("/v1/sessions", {}), "key_sessions", "limit of 2 sessions")
    path.write_text("one name=small sessions=3\ntwo name=large\n")
    s.reload()
    assert s.post("/v1/sessions", {"id": "d"}).status == 200
    refused(s.post("/v1/sessions", {}), "key_sessions", "limit of 3 sessions")


@pytest.mark.parametrize("fields", ["", " sessions=0"])
def test_a_key_without_a_limit_leaves_others_sessions(own_server, tmp_path, fields):
    """Four times what is left free: of 20 one alone has 16, of the 4 left a second has 3, and a third has the last one."""
    s = own_server("--max-sessions", 20, "--api-key-file",
                   key_file(tmp_path, f"one name=flood{fields}\ntwo name=other\nthree name=last\nfour name=ruled sessions=2\n"))
    made = {}
    for key, want in (("one", 16), ("two", 3)):
        made[key] = 0
        while (answer := s.post("/v1/sessions", {"pin": True}, headers=bearer(key))).status == 200:
            made[key] += 1
        assert made[key] == want and answer.error["code"] == "key_sessions", (made, answer)
        refused(answer, "key_sessions", "share of max_sessions")
    refused(s.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1}, headers=bearer("one")), "key_sessions", "share of max_sessions")
    assert s.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1}, headers=bearer("three")).status == 200
    refused(s.post("/v1/sessions", {}, headers=bearer("four")), "max_sessions", "max_sessions is 20")


def test_a_limit_of_its_own_may_be_beyond_the_share(own_server, tmp_path):
    s = own_server("--max-sessions", 10, "--api-key-file", key_file(tmp_path, "one name=all sessions=10\n"), key="one")
    assert [s.post("/v1/sessions", {}).status for _ in range(10)] == [200] * 10
    refused(s.post("/v1/sessions", {}), "max_sessions", "max_sessions is 10")


def test_without_keys_one_client_may_have_all_sessions(own_server):
    s = own_server("--max-sessions", 10)
    assert [s.post("/v1/sessions", {}).status for _ in range(10)] == [200] * 10
    refused(s.post("/v1/sessions", {}), "max_sessions", "max_sessions is 10")


def test_empty_sessions_count_with_what_they_take(own_server, tmp_path):
    """Of memory as the process has it, of the disk as the disk has it; within a budget the oldest files go."""
    s = own_server()
    before, n = s.metric("rodimus_state_host_bytes"), 1000
    for _ in range(n):
        assert s.post("/v1/sessions", {"ttl_s": 0}).status == 200
    each = (s.metric("rodimus_state_host_bytes") - before) / n
    assert 600 <= each <= 2000, each
    budget = 250_000
    s = own_server("--state-dir", tmp_path / "states", "--state-disk-bytes", budget)
    for _ in range(150):
        assert s.post("/v1/sessions", {}).status == 200
    files = [f.stat() for f in (tmp_path / "states").glob("*.state")]
    taken = sum(f.st_blocks * 512 for f in files)
    assert 0 < taken <= budget and s.metric("rodimus_state_file_bytes") <= budget, (taken, len(files))
    assert s.metric("rodimus_sessions") == len(files) and s.metric("rodimus_sessions_evicted_total") == 150 - len(files) > 0
    pinned = 0
    while (answer := s.post("/v1/sessions", {"pin": True})).status == 200:
        pinned += 1
        assert pinned < 150, "pinned sessions pass the budget"
    assert answer.status == 503 and answer.error["code"] == "no_room", answer
    assert sum(f.stat().st_blocks * 512 for f in (tmp_path / "states").glob("*.state")) <= budget


# ---- PATCH ----

def patch(server, session, body, **more):
    return server.ask("PATCH", f"/v1/sessions/{session}", body, **more)


def test_pin_and_time_change(server):
    session = server.post("/v1/sessions", {"id": new_id(), "pin": True, "ttl_s": 500}).json["id"]
    talk = Talk(server, session)
    talk.first = {}
    talk.go(TEXTS[0])
    was = server.get(f"/v1/sessions/{session}").json
    assert was["pinned"] is True and was["expires_at"] is None
    for body in (None, "", {}, {"pin": None, "ttl_s": None}):
        answer = patch(server, session, body)
        assert answer.status == 200 and answer.json == was, (body, answer)
    now = patch(server, session, {"pin": False}).json
    assert now["pinned"] is False and now["expires_at"] == now["used_at"] + 500, now
    assert {k: now[k] for k in ("version", "tokens", "state_bytes", "created_at", "parent", "id")} == \
        {k: was[k] for k in ("version", "tokens", "state_bytes", "created_at", "parent", "id")}
    now = patch(server, session, {"ttl_s": 90}).json
    assert now["pinned"] is False and now["expires_at"] == now["used_at"] + 90, now
    assert patch(server, session, {"ttl_s": 0}).json["expires_at"] is None
    now = patch(server, session, {"pin": True, "ttl_s": 60}).json
    assert now["pinned"] is True and now["expires_at"] is None
    assert server.get(f"/v1/sessions/{session}").json == now
    talk.go(TEXTS[1])
    assert patch(server, session, {"pin": False, "ttl_s": SLOWER}).status == 200
    time.sleep(1.2 + SLOWER)
    assert server.get(f"/v1/sessions/{session}").status == 404
    assert patch(server, session, {"pin": True}).status == 404


def test_what_is_wrong_with_a_change_is_named(server):
    session = server.post("/v1/sessions", {"id": new_id()}).json["id"]
    was = server.get(f"/v1/sessions/{session}").json
    for body, param in (({"pin": 1}, "pin"), ({"ttl_s": -1}, "ttl_s"), ({"ttl_s": 1.5}, "ttl_s"), ({"ttl_s": 2**63}, "ttl_s"),
                        ({"id": "other"}, "id"), ({"pin": False, "colour": "red"}, "colour"), ({"from": None}, "from")):
        answer = patch(server, session, body)
        assert answer.status == 400 and answer.error["param"] == param, (body, answer)
    for body in (b"[]", b"{", b"7"):
        assert patch(server, session, body).status == 400, body
    assert patch(server, session, b"{}", headers={"Content-Type": "text/plain"}).status == 415
    assert patch(server, new_id(), {"pin": True}).status == 404
    answer = patch(server, "a%20b", {"pin": True})
    assert answer.status == 400 and answer.error["param"] == "id", answer
    assert server.ask("PATCH", "/v1/sessions", {}).status == 405
    assert server.get(f"/v1/sessions/{session}").json == was


def test_only_its_owner_changes_a_session(own_server):
    s = own_server("--api-keys", "alpha,beta")
    assert s.post("/v1/sessions", {"id": "mine", "pin": True}, headers=bearer("alpha")).status == 200
    assert patch(s, "mine", {"pin": False}, headers=bearer("beta")).status == 404
    assert patch(s, "mine", {"pin": False}, headers={}).status == 401
    assert s.get("/v1/sessions/mine", headers=bearer("alpha")).json["pinned"] is True
    assert patch(s, "mine", {"pin": False}, headers=bearer("alpha")).json["pinned"] is False


def test_a_session_whose_turn_runs_is_not_changed(own_server):
    s = own_server("--device", "null:5")
    connection, response = s.open("POST", COMPLETIONS, {"prompt": [300], "max_tokens": 5000, "ignore_eos": True, "stream": True, "session_id": "s",
                                                        "session_create": True})
    assert response.status == 200
    answer = patch(s, "s", {"pin": True})
    assert answer.status == 429 and answer.error["code"] == "session_busy", answer
    connection.close()


@pytest.mark.parametrize("durability", ["turn", "lazy"])
def test_a_change_outlives_the_server(own_server, tmp_path, durability):
    flags = ("--state-dir", tmp_path / "states", "--session-durability", durability)
    s = own_server(*flags)
    talk = Talk(s)
    talk.go(TEXTS[0])
    assert patch(s, talk.id, {"pin": True, "ttl_s": 700}).json["durable"] is True
    unpinned = s.post("/v1/sessions", {"id": new_id(), "pin": True}).json["id"]
    assert patch(s, unpinned, {"pin": False, "ttl_s": 300}).status == 200
    s.kill()
    s = own_server(*flags)
    assert s.get(f"/v1/sessions/{talk.id}").json["pinned"] is True
    one = s.get(f"/v1/sessions/{unpinned}").json
    assert one["pinned"] is False and one["expires_at"] == one["used_at"] + 300, one
    again = Talk(s, talk.id, talk.said)
    again.first = {}
    again.go(TEXTS[1])
    one = patch(s, talk.id, {"pin": False}).json
    assert one["expires_at"] == one["used_at"] + 700 and one["version"] == 2, one


# ---- the folder ----

def test_a_folder_is_its_files_and_the_key_of_their_names(own_server, tmp_path):
    """In a copy of both all is there; with a damaged key, or without it, a server does not start, and the files stay."""
    states, copy = tmp_path / "states", tmp_path / "copy"
    s = own_server("--state-dir", states)
    assert s.post("/v1/sessions", {"id": "kept"}).status == 200
    s.kill()
    assert (states / "names.key").stat().st_mode & 0o777 == 0o600
    shutil.copytree(states, copy)
    assert own_server("--state-dir", copy).get("/v1/sessions/kept").status == 200
    (states / "names.key").write_text("rubbish")
    done = command("serve", "--port", 0, "--state-dir", states)
    assert done.returncode == 1 and "names.key is damaged" in done.stderr, done
    (states / "names.key").unlink()
    done = command("serve", "--port", 0, "--state-dir", states)
    assert done.returncode == 1 and "names.key is missing" in done.stderr, done
    assert len(list(states.glob("*.state"))) == 1 and not (states / "names.key").exists()
    shutil.copy(copy / "names.key", states)
    assert own_server("--state-dir", states).get("/v1/sessions/kept").status == 200
