"""tests/bench/ablate without a GPU: what it keeps of a program that falls, and a step timed against itself."""
import json
import os
import subprocess
import sys

from server import BUILD, ROOT

ABLATE = os.path.join(ROOT, "tests", "bench", "ablate")

# One job of two cases with two rules each. Rule 1 of d1 brings the program down, rule 0 of d8 is worth 5 percent.
PROGRAM = """#!%s
import json, os, signal, sys
done = sys.argv[sys.argv.index("--done") + 1].split(",")
with open(__file__ + ".runs", "a") as f:
    f.write(",".join(sorted(done)) + "\\n")
def say(**line):
    print(json.dumps(line), flush=True)
rules = [{"what": "product", "device": "9.x", "dtype": "any", "when": "else", "kernel": f"kernel_{i}"} for i in range(3)]
say(model="m", weights="auto", dtype="bf16", device="cuda:0 (X)", commit="abc", date="2026-01-01", open_s=1.0, rules=rules)
for case in ("d1", "d8"):
    if case in done:
        continue
    say(case=case, kind="d", n=int(case[1:]), drafts=0, context=64, ms=1.0, fires={"0": 4, "1": 2})
    for rule in (0, 1):
        key = f"{case}:{rule}"
        if key in done:
            continue
        say(begin=key)
        if key == "d1:1":
            sys.stderr.write("an assertion failed\\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGABRT)
        say(key=key, case=case, bits="equal", rules=[rule], instead=[2], loss_percent=5.0 if key == "d8:0" else 0.1,
            low=0, high=6, with_ms=1, without_ms=1.05, pairs=7)
    say(end=case)
""" % sys.executable


def ablate(program, out, *flags):
    return subprocess.run([sys.executable, ABLATE, str(program), str(out), *flags], capture_output=True, text=True, timeout=500, check=True).stdout


def test_a_program_that_falls_is_run_again_without_what_it_fell_at(tmp_path):
    program, out, jobs = tmp_path / "program", tmp_path / "out.json", tmp_path / "jobs.json"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    jobs.write_text(json.dumps([["m", "bf16", "auto", "d1,d8"], ["other", "bf16", "auto", "d1"]]))
    said = ablate(program, out, "--jobs", str(jobs), "--only", "m bf16")
    found = json.loads(out.read_text())
    d1, d8 = found["shapes"]
    assert d1["whole"] and d8["whole"] and d1["fires"] == {"0": 4, "1": 2}
    assert [(row["rule"], row["bits"]) for row in d1["rules"]] == [(0, "equal"), (1, "fell")]
    assert "an assertion failed" in d1["rules"][1]["error"]
    assert [row["loss_percent"] for row in d8["rules"]] == [5.0, 0.1]
    assert (tmp_path / "program.runs").read_text().splitlines() == ["", "d1:0,d1:1"]
    assert "+5.00 % worth m bf16 auto d8" in said and "+0.10 % under" in said
    ablate(program, out, "--jobs", str(jobs), "--only", "m bf16")  # all is there: nothing runs
    assert len((tmp_path / "program.runs").read_text().splitlines()) == 2
    assert json.loads(out.read_text())["shapes"] == found["shapes"]


def test_a_budget_that_is_over_starts_nothing(tmp_path):
    ablate("/bin/false", tmp_path / "out.json", "--budget", "0")
    assert not (tmp_path / "out.json").exists()


def test_steps_timed_against_themselves_have_equal_bits(tmp_path):
    jobs, out = tmp_path / "jobs.json", tmp_path / "out.json"
    jobs.write_text(json.dumps([["tales", "auto", "auto", "d1,d3,v2x2,p70"]]))
    ablate(os.path.join(BUILD, "tests", "bench", "ablate_steps"), out, "--jobs", str(jobs), "--device", "cpu", "--flags", "--context 65 --ms 1 --pairs 2")
    found = json.loads(out.read_text())
    assert [(shape["case"], shape["n"], shape["drafts"]) for shape in found["shapes"]] == [("d1", 1, 0), ("d3", 3, 0), ("v2x2", 2, 2), ("p70", 70, 0)]
    for shape in found["shapes"]:
        assert shape["whole"] and [row["bits"] for row in shape["kernels"]] == ["equal"], shape
        assert shape["kernels"][0]["with_ms"] > 0
    assert found["rules"][0]["kernel"] == "linear_f32_kernel" and found["commit"] and found["date"]
