"""The commands of the one binary: their flags and help, and what those beside serve do."""
import glob
import json
import os
import re
import shutil
import socket
import subprocess

import pytest

from server import DEFAULT, DEVICE, MODEL, RODIMUS, ROOT, SLOWER, command, environment

COMMANDS = ["serve", "generate", "verify", "inspect", "quantise", "bench", "load", "version"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_refuses_unknown_flags(name):
    done = command(name, "--help")
    assert done.returncode == 0 and len(done.stdout) > 60 and done.stderr == "", done
    done = command(name, "--no-such-flag")
    assert done.returncode == 2 and "no-such-flag" in done.stderr, done


@pytest.mark.parametrize("name, slip, meant", [("serve", "--prt", "--port"), ("generate", "--modle", "--model"), ("verify", "--gold", "--golden"),
                                               ("bench", "--prompt", "--prompts"), ("load", "--steams", "--streams")])
def test_every_command_says_which_flag_was_meant_and_where_they_are_listed(name, slip, meant):
    done = command(name, slip, "1")
    assert done.returncode == 2 and f"did you mean {meant}?" in done.stderr and f"'rodimus {name} --help'" in done.stderr, done


def test_a_flag_of_several_commands_says_and_takes_the_same_in_each():
    flags = {name: re.sub(r"\n {30,}", " ", command(name, "--help").stdout) for name in ("serve", "generate", "bench", "verify")}
    for flag in ("--threads N", "--precision NAME"):
        rows = {name: re.search(rf"^  {flag} +(.*)$", text, re.M)[1] for name, text in flags.items()}
        assert len(set(rows.values())) == 1, rows
    for name, more in (("bench", []), ("verify", ["--golden", "/nonexistent/golden"])):
        done = command(name, "--model", "/nonexistent", "--threads", "auto", *more)
        assert done.returncode == 1 and "/nonexistent" in done.stderr, done


@pytest.mark.parametrize("flags, word", [(["--model", "x"], "--golden"), (["--golden", "x"], "--model"), (["--model", "x", "--against", "gpu"], "gpu"),
                                         (["--synthetic", "tales", "--golden", "x"], "--golden"),
                                         (["--model", "x", "--golden", "x", "--tokens", "3"], "--tokens")])
def test_verify_says_what_is_missing_or_does_not_go_together(flags, word):
    done = command("verify", *flags)
    assert done.returncode == 2 and word in done.stderr and len(done.stderr.splitlines()) <= 2, done


def test_usage():
    done = command()
    assert done.returncode == 2 and "serve" in done.stderr
    done = command("dance")
    assert done.returncode == 2 and "dance" in done.stderr
    done = command("--help")
    assert done.returncode == 0 and all(c in done.stdout for c in COMMANDS)


@pytest.mark.parametrize("flags, word", [
    (("bench", "--synthetic", "rodimus-9b"), "rodimus-9b"), (("bench", "--model", MODEL, "--batches", "0"), "batch"),
    (("bench", "--model", MODEL, "--synthetic", "rodimus-1.4b"), "either"),
    (("quantise", MODEL, "--weights", "int8"), "two directories"),
    (("verify", "--synthetic", "rodimus-9b", "--against", "cpu"), "rodimus-9b"),
    (("verify", "--synthetic", "tales", "--against", "cpu", "--device", "tpu"), "tpu"),
    (("generate", "--model", MODEL, "-p", "Once", "--device", "cpu", "--precision", "fp16"), "fp16")], ids=lambda v: str(v)[-20:])
def test_a_name_or_number_that_means_nothing_is_wrong_usage(flags, word):
    """Exit status 2, also where it is the engine that knows the names."""
    done = command(*flags)
    assert done.returncode == 2 and word in done.stderr, done


def test_bench_measures_the_bundled_model_where_none_is_named(tmp_path):
    rows = tmp_path / "rows.json"
    done = command("bench", "--device", "cpu", "--batches", "1,2", "--contexts", "8", "--prompts", "8,16", "--seconds", "0.01", "--json", rows)
    assert done.returncode == 0, done
    rows = json.loads(rows.read_text())
    assert [(r["model"], r["phase"]) for r in rows] == [(DEFAULT, "decode")] * 2 + [(DEFAULT, "prefill")] * 2
    named = {"model", "phase", "device", "commit", "date", "dtype", "batch", "context", "tokens_per_s", "ms", "bytes", "flop",
             "ceiling", "fraction"}
    assert all(named <= set(r) for r in rows), rows


def test_version():
    done = command("version")
    assert done.returncode == 0
    assert re.search(r"\d+\.\d+\.\d+", done.stdout) and "cpu" in done.stdout.lower()
    for library in ("libmicrohttpd", "GnuTLS", "libcurl", "libuv", "jansson", "PCRE2", "utf8proc", "xxHash"):
        assert re.search(library + r" \d+\.\d+", done.stdout), done.stdout
    cuda = re.search("^cuda .*rodimus_cuda.so.*", done.stdout, re.M)[0]
    assert "is loaded" not in cuda or re.search(r"is loaded, (cuBLASLt \d+\.\d+\.\d+|no cuBLASLt \(.*\)|a cuBLASLt without \w+)$", cuda), cuda
    assert re.search(r"^device cpu, \d+ cores; weights fp32, fp16, bf16, int8, int4$", done.stdout, re.M), done.stdout


def test_bench_help_is_tidy():
    text = command("bench", "--help").stdout
    assert "--device NAME" in text and "--precision NAME" in text and "\n\n\n" not in text, text


@pytest.mark.parametrize("flags", [["version"], ["--help"], ["bench", "--help"], ["inspect", MODEL], ["inspect", MODEL, "--json"],
                                   ["generate", "--model", MODEL, "-p", "Once", "-n", "2000", "--ignore-eos"],
                                   ["bench", "--model", MODEL, "--batches", "1", "--contexts", "8", "--prompts", "8",
                                    "--seconds", "0.01"]], ids=lambda f: " ".join(f[:1] + f[-1:])[:30])
def test_output_that_cannot_be_written_is_a_failure(flags):
    with open("/dev/full", "w") as full:
        done = subprocess.run([RODIMUS, *flags], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, env=environment())
    assert done.returncode == 1 and "cannot write to standard output" in done.stderr, done


@pytest.mark.skipif(SLOWER != 1, reason="nobody ships a sanitizer's build, whose runtime library a bundle does not take along")
@pytest.mark.skipif(DEVICE != "cpu", reason="of a build without CUDA; what is tried on a GPU is a bundle already")
def test_a_bundle_without_cuda_runs_where_it_is_put(tmp_path):
    bundle, moved = tmp_path / "bundle", tmp_path / "moved"
    subprocess.run(["make", "NVCC=", f"BUILD={os.path.relpath(os.path.dirname(RODIMUS), ROOT)}", f"BUNDLE={bundle}", "bundle"], cwd=ROOT, check=True, timeout=500,
                   stdout=subprocess.DEVNULL)
    shutil.move(bundle, moved)
    assert not (moved / "rodimus_cuda.so").exists()
    flags = ["generate", "-p", "Once upon a time", "-n", "4", "-t", "0"]
    done, built = subprocess.run([moved / "rodimus", *flags], capture_output=True, text=True, cwd="/", timeout=300), command(*flags)
    assert done.returncode == 0 and done.stdout == built.stdout and len(done.stdout) > 4, (done, built)


def test_generate(cases):
    case = cases[0]
    done = command("generate", "--model", MODEL, "-p", case["prompt"], "-n", len(case["greedy_ids"]), "--temperature", 0)
    assert done.returncode == 0, done
    assert done.stdout.rstrip("\n").endswith(case["greedy_text"].rstrip("\n")), done.stdout
    assert "token" in done.stderr


VECTORS = sorted(os.path.basename(os.path.dirname(f)) for f in glob.glob(os.path.join(ROOT, "tests/vectors/*/golden.safetensors")))


@pytest.mark.parametrize("name", VECTORS)
def test_verify_passes(name):
    folder = os.path.join(ROOT, "tests", "vectors", name)
    done = command("verify", "--model", folder, "--golden", os.path.join(folder, "golden.safetensors"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_verify_fails_on_one_changed_value(tmp_path):
    import struct
    folder = os.path.join(ROOT, "tests", "vectors", "rodimus-plus-small")
    with open(os.path.join(folder, "golden.safetensors"), "rb") as f:
        data = bytearray(f.read())
    n_header = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n_header])
    for name in ("logits", "state.0.S"):
        at = 8 + n_header + header[name]["data_offsets"][0] + 40
        changed = bytearray(data)
        value = struct.unpack_from("<f", data, at)[0]
        struct.pack_into("<f", changed, at, value + 0.5)
        golden = tmp_path / f"{name}.safetensors"
        golden.write_bytes(changed)
        done = command("verify", "--model", folder, "--golden", golden, "--precision", "fp32")
        assert done.returncode == 1, (name, done.stdout + done.stderr)


def test_inspect():
    done = command("inspect", MODEL)
    assert done.returncode == 0 and "bf16" in done.stdout.lower(), done
    done = command("inspect", MODEL, "--json")
    assert done.returncode == 0
    assert isinstance(json.loads(done.stdout), dict)
    done = command("inspect", "/nonexistent")
    assert done.returncode == 1 and "/nonexistent" in done.stderr


@pytest.mark.parametrize("shape", ["rodimus-1.4b-base", "rodimus-plus-coder-1.6b", "rodimus-plus-coder-4b"])
def test_inspect_names_the_fault_of_a_bare_config(shape):
    """The published configurations are understood; what is missing here is the weights, and it says so."""
    done = command("inspect", os.path.join(ROOT, "tests", "configs", shape))
    assert done.returncode == 1 and "safetensors" in done.stderr, done


def test_load(server, tmp_path):
    report = tmp_path / "load.json"
    done = command("load", "--url", server.url, "--streams", 6, "--requests", 18, "--prompt-tokens", "5:60", "--output-tokens", "3:20",
                   "--json", report)
    assert done.returncode == 0, done
    got = json.loads(report.read_text())
    assert got["ok"] == 18 and got["failed"] == 0
    assert 18 * 3 <= got["output_tokens_total"] <= 18 * 20
    for name in ("first_token_ms", "inter_token_ms", "per_token_ms", "end_to_end_ms"):
        p = got[name]
        assert 0 <= p["p50"] <= p["p90"] <= p["p99"] <= p["max"], name
    again = command("load", "--url", server.url, "--streams", 3, "--requests", 18, "--prompt-tokens", "5:60", "--output-tokens",
                    "3:20", "--json", "-")
    assert f'"output_tokens_total": {got["output_tokens_total"]}' in again.stdout, "the same seed asks the same"
    text = command("load", "--url", server.url + "/", "--requests", 10, "--rate", 100, "--text", os.path.join(MODEL, "heldout.txt"),
                   "--output-tokens", 4, "--temperature", 1)
    assert text.returncode == 0, text


def test_load_reports_failures(server):
    done = command("load", "--url", server.url, "--requests", 3, "--vocab", 100000, "--prompt-tokens", 200)
    assert done.returncode == 1 and done.stdout.count("HTTP 400: prompt[") >= 1, done
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        done = command("load", "--url", f"http://127.0.0.1:{free.getsockname()[1]}", "--requests", 2)
    assert done.returncode == 1 and "connection refused" in done.stdout
    for flags in (["--url", "ftp://x"], ["--streams", "0", "--url", server.url], []):
        assert command("load", *flags).returncode == 2
