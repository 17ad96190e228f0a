"""Files of sessions in other formats: refused by name, made one of the other on demand, and those of before as they were."""
import os
import shutil
import struct

import pytest

from server import ROOT, command
from test_session_states import put, state
from talk import TEXTS, Talk

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


def test_converting_says_why_it_does_not(kept, tmp_path):
    s, talk, path = kept
    there = tmp_path / "there"
    there.write_bytes(b"x")
    (tmp_path / "noise").write_bytes(os.urandom(500))
    for source, to, flags, said, rc in ((path, there, (), "is there already", 1), (tmp_path / "none", tmp_path / "n", (), "cannot be read", 1),
                                        (tmp_path / "noise", tmp_path / "n", (), "bad magic", 1), (path, tmp_path / "n", ("--window-dtype", "bf16"), "window_dtype: ", 2)):
        done = command("states", "convert", source, to, *flags)
        assert done.returncode == rc and said in done.stderr, done
    assert there.read_bytes() == b"x" and not (tmp_path / "n").exists()


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
