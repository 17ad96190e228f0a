"""rodimus states: a folder of states listed, copied and cleaned, also while a server uses it; what is in use or in doubt stays."""
import fcntl
import json
import os
import time

import pytest

from server import Server, command
from talk import CHAT, chat, new_id, turn


def states(verb, folder, *more, rc=0):
    done = command("states", *([verb] if isinstance(verb, str) else verb), "--state-dir", folder, *more)
    assert done.returncode == rc, f"{done.args}: {done.returncode} {done.stdout} {done.stderr}"
    return done


def listed(folder, *more, verb="ls"):
    return json.loads(states(verb, folder, "--json", *more).stdout)["files"]


def everything(folder):
    """Path and bytes of each file, but for leases."""
    found = {}
    for below, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(below, name)
            if not name.endswith(".lease"):
                with open(path, "rb") as f:
                    found[os.path.relpath(path, folder)] = f.read()
    return found


@pytest.fixture
def folder(tmp_path, own_server):
    """A folder with a file of each kind, and the server that made it."""
    where = tmp_path / "states"
    s = own_server("--state-dir", where)
    for more in ({"id": "plain"}, {"id": "kept", "keep_turns": 4}, {"id": "pinned", "ttl_s": 1, "pin": True}):
        assert s.post("/v1/sessions", more).status == 200
        for text in ("Once upon a time", " there was a king."):
            turn(s, more["id"], text)
    assert s.post("/v1/sessions/plain/fork", {"id": "fork"}).status == 200
    assert s.ask("PUT", "/v1/prefixes/tale", {"prompt": "Once upon a time there was a king who had three sons. " * 8}).status == 200
    answer = s.post(CHAT, {"messages": [{"role": "user", "content": "Once upon a time " * 30}], "max_tokens": 4}, headers={"X-Session-Id": "talk"})
    assert answer.status == 200, answer
    (where / f"{'a' * 32}.state.tmp-abcdef").write_bytes(b"RODSTATE")
    (where / f"{'b' * 32}.base").write_bytes(b"RODSTATE")
    return s, where


def test_a_list_has_every_kind_and_no_names_of_owners(folder):
    _, where = folder
    files = listed(where)
    by_kind = {}
    for f in files:
        by_kind.setdefault(f["kind"], []).append(f)
    assert {kind: len(of) for kind, of in by_kind.items() if kind not in ("kept", "conversation")} == \
        {"session": 4, "base": 2, "pinned": 1, "notes": 1, "part": 1}, by_kind
    assert by_kind["kept"] and by_kind["conversation"]
    on_disk = everything(where)
    for f in files:
        assert f["bytes"] == len(on_disk[f["name"]]), f
    whole = [f for f in files if f["kind"] in ("session", "kept", "pinned", "conversation")]
    assert len({f["fingerprint"] for f in whole}) == 1 and len(whole[0]["fingerprint"]) == 32, whole
    assert len({f["tenant"] for f in files if f["kind"] in ("session", "kept", "notes", "conversation")}) == 1
    assert [f["pinned"] for f in by_kind["session"]].count(True) == 1
    assert sorted(f["expires_at"] - f["used_at"] for f in by_kind["session"] if "expires_at" in f) == [86400, 86400, 86400]
    assert [f["name"] for f in listed(where, "--kind", "session", "--sort", "size")] == \
        [f["name"] for f in sorted(by_kind["session"], key=lambda f: (-f["bytes"], f["name"]))]
    assert not listed(where, "--fingerprint", "0123") and not listed(where, "--unused-s", 10000)
    text = states("ls", where).stdout
    assert all(f["name"] in text for f in files) and text.count("\n") == len(files) + 2, text


def test_a_copy_has_the_bytes(folder, tmp_path):
    _, where = folder
    on_disk = everything(where)
    for f in listed(where):
        if f["kind"] == "part":
            continue
        copy = tmp_path / "copy"
        states(["get", f["name"], str(copy)], where)
        assert copy.read_bytes() == on_disk[f["name"]] and copy.stat().st_mode & 0o777 == 0o600, f
        states(["get", f["name"], str(copy)], where, rc=1)  # which is there
        copy.unlink()
    for name in ("names.key", "conversations/" + os.pardir + "/names.key", "nothing.state"):
        states(["get", name, str(tmp_path / "no")], where, rc=1)
        states(["rm", name, "--yes"], where, rc=1)
    assert not (tmp_path / "no").exists() and everything(where) == on_disk


def test_what_has_expired_or_is_left_over_goes_and_nothing_else(folder):
    s, where = folder
    assert s.post("/v1/sessions", {"id": "short", "ttl_s": 1}).status == 200
    turn(s, "short", "Once upon a time")
    s.kill()
    time.sleep(1.1)
    before = everything(where)
    shown = listed(where, verb="gc")
    assert sorted((f["kind"], f["note"]) for f in shown) == [("base", "left over"), ("part", "left over"), ("session", "expired")], shown
    assert everything(where) == before, "a dry run changes nothing"
    assert "--yes" in states("gc", where).stdout
    done = states("gc", where, "--yes")
    gone = set(before) - set(everything(where))
    assert gone == {f["name"] for f in shown} and "3 removed" in done.stdout, f"gone {gone}, shown {shown}"
    again = Server("--state-dir", where, name="states-again")
    try:
        assert again.get("/v1/sessions/short").status == 404
        for session in ("plain", "kept", "pinned", "fork"):
            assert turn(again, session, " And then")["session"]["version"] == 3
        assert again.post("/v1/sessions/kept/rewind", {"turns": 1}).status == 200
        assert again.get("/v1/prefixes/tale").status == 200
    finally:
        again.kill()


def test_a_session_in_use_stays(folder):
    _, where = folder
    name = next(f["name"] for f in listed(where, "--kind", "session") if f["bytes"] > 10000)
    before = everything(where)
    with open(where / f"{name}.lease", "w") as lease:
        fcntl.flock(lease, fcntl.LOCK_EX)
        assert "stays" in states(["rm", name, "--yes"], where, rc=1).stderr
    assert everything(where) == before
    with open(where / f"{'a' * 32}.state.tmp-abcdef", "r+") as part:
        fcntl.flock(part, fcntl.LOCK_EX)
        assert "being written" in states("gc", where, "--kind", "part", "--yes").stderr
    assert everything(where) == before


def test_a_server_beside_sees_what_was_removed(folder):
    s, where = folder
    one = new_id()
    known = {f["name"] for f in listed(where)}
    turn(s, one, "Once", session_create=True)
    name = next(f["name"] for f in listed(where) if f["name"] not in known)
    assert "--yes" in states(["rm", name], where).stdout and s.get(f"/v1/sessions/{one}").status == 200
    states(["rm", name, "--yes"], where)
    assert s.post("/v1/completions", {"session_id": one, "prompt": " upon", "max_tokens": 2}).status == 404
    kept = [f["name"] for f in listed(where, "--kind", "kept")]
    session = kept[0][:32] + ".state"
    states(["rm", session, "--yes"], where)
    assert not [f for f in everything(where) if f.startswith(kept[0][:32])], "earlier turns go with their session"
    assert chat(s, None, "Hm")["choices"]


def test_a_model_that_is_served_no_more_goes_whole(folder):
    s, where = folder
    model = listed(where, "--kind", "pinned")[0]["fingerprint"]
    s.kill()
    states("gc", where, "--fingerprint", model[:4], rc=2)
    states("gc", where, "--fingerprint", model, "--yes")
    left = everything(where)
    assert set(left) == {"names.key"} | {f for f in left if f.endswith("/notes")}, sorted(left)
    states("gc", where, "--unused-s", 0, "--yes")
    assert any(f.endswith("/notes") for f in everything(where)), "the answers of a conversation have no time of their own"
    time.sleep(1.1)
    states("gc", where, "--unused-s", 1, "--yes")
    assert set(everything(where)) == {"names.key"} and not os.listdir(where / "conversations")


def test_a_damaged_file_is_named_and_left(folder):
    s, where = folder
    s.kill()
    name = next(f["name"] for f in listed(where, "--kind", "session") if f["bytes"] > 10000 and "expires_at" in f)
    with open(where / name, "r+b") as f:
        f.seek(150)
        f.write(b"\xff\xff\xff\xff")
    row = next(f for f in listed(where) if f["name"] == name)
    assert row["fault"] and not row["fingerprint"], row
    time.sleep(1.1)
    states("gc", where, "--yes")
    assert (where / name).exists()
    states(["rm", name, "--yes"], where)
    assert not (where / name).exists()


def test_wrong_usage_says_what_is_missing(tmp_path):
    for args in ((), ("ls",), ("get", "--state-dir", tmp_path), ("rm", "--state-dir", tmp_path), ("gc", "x", "--state-dir", tmp_path),
                 ("ls", "--state-dir", tmp_path, "--sort", "colour"), ("tidy", "--state-dir", tmp_path)):
        done = command("states", *args)
        assert done.returncode == 2 and "rodimus states: " in done.stderr, done
    done = command("states", "ls", "--state-dir", tmp_path / "none")
    assert done.returncode == 1 and "state_dir: cannot open" in done.stderr, done
    assert not listed(tmp_path)
    (tmp_path / "conversations").write_text("no folder, so it cannot be opened")
    for verb in ("ls", "gc"):
        done = command("states", verb, "--state-dir", tmp_path)
        assert done.returncode == 1 and "conversations: " in done.stderr, done
    assert command("states", "--help").returncode == 0
