"""Files of sessions in other formats: refused by name, made one of the other on demand, and those of before as they were."""
import os
import shutil
import struct
import sys

import pytest

from server import ROOT, command
from talk import TEXTS, Talk
from test_prefix import cached, words
from test_session_states import put, state
from test_stored_conversations import EVERY

sys.path.insert(0, os.path.join(ROOT, "tests"))
from object_stand_in import StandIn  # noqa: E402

SMALL = os.path.join(ROOT, "tests/vectors/rodimus-plus-small")
HEADER = struct.Struct("<8sIIQ")  # magic, version, n_header, n_payload
BOTH = "S in fp32, activations in fp32 and a window in {}, here they are fp32, fp32 and fp32"


def convert(source, to, *flags):
    done = command("states", "convert", source, to, *flags)
    assert done.returncode == 0, done
    return to.read_bytes()


def payload(body):
    return body[HEADER.unpack_from(body)[2]:]


@pytest.fixture
def kept(own_server, tmp_path):
    """(server, talk, path) of a session that has a file and is in no memory."""
    s = own_server("--state-dir", tmp_path / "states", "--device", "cpu")
    talk = Talk(s)
    talk.go(TEXTS[0])
    s.stop()
    s = own_server("--state-dir", tmp_path / "states", "--device", "cpu")
    talk.server = s
    path, = (tmp_path / "states").glob("*.state")
    return s, talk, path


@pytest.mark.parametrize("window", ["int8", "fp8"])
def test_a_file_in_another_format_is_refused_by_both_names_and_stays(kept, tmp_path, window):
    s, talk, path = kept
    before = path.read_bytes()
    narrow = convert(path, tmp_path / "narrow", "--window-dtype", window)
    assert HEADER.unpack_from(narrow)[:2] == (b"RODSTATE", 2) and len(narrow) < len(before)
    shutil.copyfile(tmp_path / "narrow", path)
    for answer in (s.post("/v1/completions", {"prompt": "and", "max_tokens": 1, "session_id": talk.id}), put(s, "another", narrow)):
        assert answer.status == 412 and answer.error["code"] == "bad_state" and BOTH.format(window) in answer.error["message"], answer
    assert path.read_bytes() == narrow
    back = convert(path, tmp_path / "back", "--window-dtype", "auto")
    assert HEADER.unpack_from(back)[:2] == (b"RODSTATE", 1) and len(back) == len(before)
    assert convert(tmp_path / "back", tmp_path / "again", "--window-dtype", window) == narrow  # what it holds is exact
    assert put(s, "another", back).status == 200
    assert s.post("/v1/completions", {"prompt": "and", "max_tokens": 4, "session_id": "another"}).status == 200


def test_a_state_that_is_converted_to_its_own_format_keeps_its_bytes(kept, tmp_path):
    _, _, path = kept
    assert convert(path, tmp_path / "same") == path.read_bytes()


def test_a_fork_is_converted_with_the_state_that_lies_beside_it(kept, tmp_path):
    s, talk, path = kept
    assert s.post(f"/v1/sessions/{talk.id}/fork", {"id": "fork"}).status == 200
    fork, = set(path.parent.glob("*.state")) - {path}
    assert fork.with_suffix(".base").exists() and fork.stat().st_size < path.stat().st_size
    whole = payload(convert(path, tmp_path / "whole", "--window-dtype", "int8"))
    assert payload(convert(fork, tmp_path / "fork", "--window-dtype", "int8")) == whole
    base = fork.with_suffix(".base").read_bytes()
    fork.with_suffix(".base").unlink()
    for left, said in ((None, "cannot be read"), (base[:50], "too short"), (base[:-1] + bytes([base[-1] ^ 1]), "the payload has changed")):
        if left is not None:
            fork.with_suffix(".base").write_bytes(left)
        done = command("states", "convert", fork, tmp_path / "none", "--window-dtype", "int8")
        assert done.returncode == 1 and said in done.stderr and not (tmp_path / "none").exists(), done


def test_converting_says_why_it_does_not(kept, tmp_path):
    s, talk, path = kept
    there = tmp_path / "there"
    there.write_bytes(b"x")
    (tmp_path / "noise").write_bytes(os.urandom(500))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for source, to, flags, said, rc in ((path, there, (), "is there already", 1), (path, tmp_path / "pipe", (), "is there already", 1),
                                        (path, tmp_path / "link", (), "is there already", 1), (tmp_path / "none", tmp_path / "n", (), "cannot be read", 1),
                                        (tmp_path / "noise", tmp_path / "n", (), "bad magic", 1), (path, tmp_path / "n", ("--window-dtype", "bf16"), "window_dtype: ", 2)):
        done = command("states", "convert", source, to, *flags)
        assert done.returncode == rc and said in done.stderr, done
    assert there.read_bytes() == b"x" and not (tmp_path / "n").exists()
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink() and not (tmp_path / "nowhere").exists()


def test_a_file_of_before_loads_to_the_bit(own_server):
    """It was written by a server that knew one version, after 50 tokens and 20 answered ones."""
    s = own_server("--model", SMALL, "--device", "cpu")
    with open(os.path.join(SMALL, "before.state"), "rb") as f:
        before = f.read()
    assert put(s, "before", before).status == 200
    after = state(s, "before").body
    assert HEADER.unpack_from(after) == HEADER.unpack_from(before) and payload(after) == payload(before)
    answer = s.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 12, "ignore_eos": True, "session_id": "before", "temperature": 0, "return_token_ids": True})
    assert answer.json["choices"][0]["token_ids"] == [7] * 12 and answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 69, answer


@pytest.fixture(params=["folder", "store"])
def begin(request, own_server, tmp_path):
    """Starts a server over the one place of all of them."""
    with StandIn() as store:
        place = ("--state-dir", tmp_path) if request.param == "folder" else ("--state-url", f"{store.url}/fleet", "--state-endpoint", store.endpoint)
        env = {**EVERY, **(store.env if request.param == "store" else {})}
        yield lambda *flags: own_server(*place, "--device", "cpu", *flags, env=env)


def ends(server):
    """With all that is to be written."""
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)
    assert server.stop() == 0


def test_servers_of_other_formats_share_a_place_and_nothing_in_it(begin):
    """A conversation, and a pinned prefix, is found in its own format again and in no other one; each reads what the first one read."""
    text, says = words(7, 200), [{"role": "user", "content": "Tell me a tale about a fox. " * 20}]
    for turn, flags in enumerate([("--window-dtype", "int8"), (), ("--window-dtype", "int8"), ()]):
        s = begin(*flags)
        body = {"messages": says, "max_tokens": 4, "temperature": 0}
        found = s.post("/v1/chat/completions", body, headers={"X-Session-Id": "fox"})
        assert found.status == 200 and (found.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) == (turn >= 2), (turn, found)
        there = [p["id"] for p in s.get("/v1/prefixes").json["data"]]
        assert there == (["tale"] if turn >= 2 else []), (turn, there)
        if turn < 2:
            assert cached(s.post("/v1/completions", {"prompt": text, "max_tokens": 1}).json) == 0
            assert s.ask("PUT", "/v1/prefixes/tale", {"prompt": text}).status == 200
        ends(s)
    s = begin("--window-dtype", "int8")
    s.complete(max_tokens=2, session_id="of-int8", session_create=True)
    ends(s)
    s = begin()
    answer = s.post("/v1/completions", {"prompt": "and", "max_tokens": 1, "session_id": "of-int8"})
    assert answer.status == 412 and BOTH.format("int8") in answer.error["message"], answer
    ends(s)
    s = begin("--window-dtype", "int8")
    assert s.post("/v1/completions", {"prompt": "and", "max_tokens": 1, "session_id": "of-int8"}).status == 200


def test_a_session_moves_into_another_format_when_asked_to(own_server, tmp_path):
    """From fp32 to a server with windows of int8, and back."""
    wide, narrow = own_server("--device", "cpu"), own_server("--device", "cpu", "--window-dtype", "int8")
    talk = Talk(wide)
    talk.go(TEXTS[0])
    (tmp_path / "wide").write_bytes(state(wide, talk.id).body)
    convert(tmp_path / "wide", tmp_path / "narrow", "--window-dtype", "int8")
    moved = put(narrow, "moved", (tmp_path / "narrow").read_bytes())
    assert moved.status == 200, moved
    assert payload(state(narrow, "moved").body) == payload((tmp_path / "narrow").read_bytes())
    assert narrow.post("/v1/completions", {"prompt": "and", "max_tokens": 8, "session_id": "moved"}).status == 200
    (tmp_path / "again").write_bytes(state(narrow, "moved").body)
    assert put(wide, "back", convert(tmp_path / "again", tmp_path / "back", "--window-dtype", "auto")).status == 200
    assert wide.post("/v1/completions", {"prompt": "and", "max_tokens": 8, "session_id": "back"}).status == 200
