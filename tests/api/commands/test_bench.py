"""`rodimus bench` and the scripts that record it: bytes and ceilings as the checkpoint's sizes give them, the table as the JSON says, and
results that are whole JSON under a name of the device. Times are not looked at."""
import json
import os
import re
import subprocess
import time

import pytest

from server import MODEL, RODIMUS, ROOT, command

SCRIPTS = os.path.join(ROOT, "tests", "bench")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """(standard output, rows) of a short run: windows of 65 keys and full ones."""
    path = tmp_path_factory.mktemp("bench") / "rows.json"
    done = command("bench", "--model", MODEL, "--device", "cpu", "--seconds", "0.02", "--batches", "1,3", "--contexts", "64,300",
                   "--prompts", "64,300", "--packed", "1,2", "--json", str(path))
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(path.read_text())


def test_bytes_are_weights_and_states_as_inspect_has_them(measured):
    facts = json.loads(command("inspect", MODEL, "--json").stdout)
    session, seen = facts["session"], facts["sizes"]["attention"]["window_tokens"]
    for r in measured[1]:
        if r["phase"] == "decode":  # S is read and written; 4 bytes of the rest, of which inspect says 2
            keys = min(r["context"] + 1, seen)
            state = 2 * session["S_bytes"] + 2 * session["conv_bytes"] + 2 * session["window_bytes"] * keys / seen
            assert r["bytes"] == pytest.approx(facts["weight_bytes"] + r["batch"] * state, rel=1e-6), r
        tokens = r["batch"] * (r["context"] if r["phase"] == "prefill" else 1)
        assert r["ceiling"] == pytest.approx(tokens / max(r["bytes"] / r["read_bytes_per_s"], r["flop"] / r["flop_per_s"]), rel=2e-6), r
        assert r["fraction"] == pytest.approx(r["tokens_per_s"] / r["ceiling"], rel=2e-6), r
        assert r["moved_bytes"] == r["bytes"] and r["moved_fraction"] == r["fraction"], r  # a CPU writes every state
        assert 0 < r["ms_low"] <= r["ms"] <= r["ms_high"], r
        # every weight of a layer is used once by a token, the tied head by those that have logits
        head = facts["sizes"]["vocab_size"] * facts["sizes"]["d_model"]
        products = 2 * ((facts["parameters"] - head) * tokens + head * r["batch"])
        assert products < r["flop"] < 1.6 * products, r


def test_the_table_says_what_the_file_says(measured):
    text, rows = measured
    lines = [line.split() for line in text.splitlines() if re.match(r"(decode|prefill) ", line)]
    assert [(r["phase"], r["batch"], r["context"]) for r in rows] == [
        ("decode", 1, 64), ("decode", 3, 64), ("decode", 1, 300), ("decode", 3, 300),
        ("prefill", 1, 64), ("prefill", 1, 300), ("prefill", 2, 64), ("prefill", 2, 300)]
    for line, r in zip(lines, rows, strict=True):
        assert line[:3] == [r["phase"], str(r["batch"]), str(r["context"])] and line[-1] == "MB", (line, r)
        said = [r["tokens_per_s"], r["ms"], r["bytes"] / 1e6, r["read_bytes_per_s"] / 1e9, r["flop"] / 1e9, 100 * r["fraction"], r["resident_bytes"] / 1e6]
        for shown, value in zip(line[3:-1], said, strict=True):  # both are rounded, the file's to 7 digits
            places = len(shown.rstrip("%").partition(".")[2])
            assert abs(float(shown.rstrip("%")) - value) <= 0.501 * 10**-places + 1e-6 * value, (shown, value, line, r)
    assert any(f"{round(rows[0]['flop_per_s'] / 1e9 + slip)} GFLOP/s" in text for slip in (-1e-4, 0, 1e-4)), (rows[0], text)


def test_steps_with_drafts_have_rows_of_their_own(tmp_path):
    path = tmp_path / "rows.json"
    asked = ["bench", "--model", MODEL, "--device", "cpu", "--seconds", "0.02", "--batches", "1,2", "--contexts", "64", "--prompts", "64"]
    done = command(*asked, "--drafts", "0,3", "--json", str(path))
    assert done.returncode == 0, done.stderr
    rows = [r for r in json.loads(path.read_text()) if r["phase"] == "verify"]
    assert [(r["batch"], r["drafts"]) for r in rows] == [(1, 0), (1, 3), (2, 0), (2, 3)], done.stdout
    for r in rows:
        tokens = r["batch"] * (1 + r["drafts"])
        assert r["tokens_per_s"] == pytest.approx(1e3 * tokens / r["ms"], rel=1e-5), r
        assert r["bytes"] == [x["bytes"] for x in rows if x["batch"] == r["batch"]][0], r  # read once for all rows
    too_many = command(*asked, "--drafts", "8")
    assert too_many.returncode == 2 and "8 drafts" in too_many.stderr, too_many.stderr


def test_rows_of_answers_with_drafts_name_the_format_of_the_weights(tmp_path):
    path = tmp_path / "rows.json"
    for asked, name in (("auto", "bf16"), ("int8", "int8")):
        done = command("bench", "--model", MODEL, "--device", "cpu", "--acceptance", "0.75", "--batches", "1", "--contexts", "64", "--tokens", "16",
                       "--weights", asked, "--json", str(path))
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(path.read_text())
        assert (row["dtype"], row["weights"], row["acceptance"]) == ("bf16", name, 0.75), row
        assert f"bf16, weights {name}, S fp32, window fp32: " in done.stdout, done.stdout


def test_rows_say_what_was_measured(measured):
    commit = re.search(r"commit (\w+)", command("version").stdout).group(1)
    for r in measured[1]:
        assert (r["model"], r["dtype"], r["commit"]) == ("tales", "bf16", commit)
        assert r["device"].startswith("cpu (") and abs(time.mktime(time.strptime(r["date"], "%Y-%m-%d")) - time.time()) < 2 * 86400


def test_threads_without_processors_of_their_own_raise_no_ceiling():
    """On a busy machine a run of the team may have one member: its FLOP were counted for all, so that four threads on one processor
    "made" four times what one does; and waking the others to read 1 MB took longer than reading it."""
    one = {min(os.sched_getaffinity(0))}
    rates, shares = {1: [], 4: []}, {1: [], 4: []}
    for threads in (1, 4, 1, 4, 1, 4):
        done = command("bench", "--model", os.path.join(ROOT, "tests", "vectors", "rodimus-small"), "--device", "cpu", "--threads", threads,
                       "--seconds", "0.02", "--batches", "1", "--contexts", "10", "--prompts", "10", preexec_fn=lambda: os.sched_setaffinity(0, one))
        assert done.returncode == 0, done.stderr
        rates[threads].append(float(re.search(r"([\d.]+) GFLOP/s", done.stdout).group(1)))
        shares[threads].append(max(float(share) for share in re.findall(r"([\d.]+)%", done.stdout)))
    assert all(min(of) < 400 for of in shares.values()), shares  # other work may take the processor while a ceiling is measured, not every time
    assert min(rates[4]) < 1.6 * max(rates[1]), rates


# In place of the program: published shapes are the model tales, and all is short.
STAND_IN = """#!/bin/sh
for word; do
    shift
    case $last in
    --synthetic) word=%(model)s ;;
    --contexts | --prompts) word=64 ;;
    --batches) word=1,2 ;;
    --vocab) word=4000 ;;
    --prompt-tokens | --output-tokens) word=3 ;;
    --requests) word=5 ;;
    --acceptance) word=0.5 ;;
    --tokens) word=16 ;;
    esac
    last=$word
    [ "$word" = --synthetic ] && word=--model
    set -- "$@" "$word"
done
exec %(program)s "$@"
"""


@pytest.mark.parametrize("script, flags, names", [
    ("record-gpu", ["--million", "--seconds", "0.01"], [f"{s}-cpu{more}.json" for s in ("rodimus-plus-1.6b", "rodimus-plus-1.6b-w1024", "rodimus-1.4b")
                                                        for more in ("", "-position")]),
    ("record-prompts", ["--seconds", "0.01", "--shapes", "rodimus-1.4b"], ["rodimus-1.4b-prompts-cpu.json", "rodimus-1.4b-prompts-server-cpu.json"]),
    ("record-load", ["--shapes", "rodimus-1.4b", "--streams", "1 2"], ["rodimus-1.4b-load-cpu.json"]),
    ("record", ["--seconds", "0.01"], ["tales-cpu.json", "tales-cpu-position.json", "rodimus-plus-1.6b-cpu.json", "drafts-skills-cpu.json"])])
def test_what_the_scripts_record_is_whole(script, flags, names, tmp_path):
    stand_in = tmp_path / "rodimus"
    stand_in.write_text(STAND_IN % {"model": MODEL, "program": RODIMUS})
    stand_in.chmod(0o755)
    out = tmp_path / "results"
    if script == "record":  # it looks for a GPU itself; here it finds none
        stand_in.write_text(stand_in.read_text().replace("exec ", '[ "$1" = version ] && exit\nexec '))
    else:
        flags = ["--device", "cpu", *flags]
    done = subprocess.run([os.path.join(SCRIPTS, script), str(stand_in), str(out), *flags], capture_output=True, text=True, timeout=500, cwd=ROOT)
    # the CPU has no fp16 of its own: record-gpu keeps the other rows and says so
    assert done.returncode == (script == "record-gpu"), done.stdout + done.stderr
    assert sorted(os.listdir(out)) == sorted(names)
    for name in names:
        found = json.loads((out / name).read_text())
        if isinstance(found, list):
            assert found and all((r["fraction"] if "fraction" in r else r["plain_tokens_per_s"]) > 0 and r["commit"] and r["date"] for r in found), name
            continue
        assert found["device"] == "cpu" and found["commit"] and found["date"], name
        reports = found.get("runs") or [part for part in found.values() if isinstance(part, dict)]
        assert reports and all(r["ok"] == 5 and r["failed"] == 0 for r in reports), name


@pytest.mark.parametrize("flags", [("--decode-kernel", "persistent"), ("--prompt-products", "library")], ids=lambda f: f[1])
def test_a_cpu_refuses_what_a_gpu_alone_has(flags):
    done = subprocess.run([RODIMUS, "bench", "--device", "cpu", *flags], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert f"{flags[0][2:].replace('-', '_')} {flags[1]}: a CPU" in done.stderr


# In place of a program that sees a GPU on which cuBLASLt runs in 16 bits alone: the CPU computes.
SEES_A_GPU = """#!/bin/sh
[ "$1" = version ] && { %(program)s version | sed 's/^device .*/device cuda:0 Some GPU, 80 GiB, compute capability 9.0; weights fp32/; s/^cuda .*/cuda rodimus_cuda.so is loaded, cuBLASLt 1.2.3/'; exit; }
case "$*" in *"--precision fp32 --prompt-products library"*)
    echo "rodimus: prompt_products library: cuBLASLt 1.2.3 does not run here." >&2
    exit 1
    ;;
esac
exec %(program)s $(echo "$*" | sed 's/--device cuda/--device cpu/; s/fp16/fp32/; s/bf16/fp32/; s/ --prompt-products library//')
"""


def test_golden_sets_on_a_gpu_are_recorded_by_precision_and_by_whose_products(tmp_path):
    program, out = tmp_path / "rodimus", tmp_path / "golden.json"
    program.write_text(SEES_A_GPU % {"program": RODIMUS})
    program.chmod(0o755)
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "rodimus-plus-short").symlink_to(os.path.join(ROOT, "tests", "vectors", "rodimus-plus-short"))
    record = [os.path.join(SCRIPTS, "record-golden"), program, out, "--sets", tmp_path / "sets", "--device"]
    done = subprocess.run([*map(str, record), "cuda"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert [(r["precision"], r["prompt_products"]) for r in found] == [(p, w) for p in ("fp32", "fp16", "bf16") for w in ("own", "library")]
    assert all(r["device"] == "cuda:0 (Some GPU)" and r["commit"] and r["date"] and r["set"] == "rodimus-plus-short" for r in found)
    assert ["refused" in r for r in found] == [False, True, False, False, False, False]
    assert all(0 < r["logits"] < r["bound"] and r["ok"] for r in found if "refused" not in r), found
    done = subprocess.run([RODIMUS if word == program else str(word) for word in record] + ["cpu"], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(r["window"], r["weights"], r["ok"]) for r in json.loads(out.read_text())] == [
        ("int8", "auto", True), *(("auto", weights, True) for weights in ("auto", "int8", "fp8", "int4"))]
