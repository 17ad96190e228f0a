"""The formats of states: how they are chosen, refused and told."""
import pytest

from server import MODEL, command

USED = {"serve": ("--port", "0"), "generate": ("-p", "Once", "-n", "1"), "bench": ("--batches", "1", "--prompts", "64"), "verify": ("--golden", f"{MODEL}/golden.safetensors")}


@pytest.mark.parametrize("name", USED)
@pytest.mark.parametrize("flag,value,there", [
    ("--window-dtype", "fp8", "window_dtype: \"fp8\" is not there on a CPU; there are auto"),
    ("--window-dtype", "bf16", "window_dtype: \"bf16\" is not there on a CPU; there are auto, fp32 (the activations' type)"),
    ("--state-dtype", "bf16", "state_dtype: \"bf16\" is not there on a CPU; there are auto and fp32."),
])
def test_a_format_that_a_cpu_lacks_is_refused_by_what_there_is(name, flag, value, there):
    model = "tests/vectors/rodimus-plus-small" if name == "verify" else MODEL
    golden = ("--golden", "tests/vectors/rodimus-plus-small/golden.safetensors") if name == "verify" else USED[name]
    done = command(name, "--model", model, "--device", "cpu", *golden, flag, value)
    assert done.returncode in (1, 2) and there.replace(" and ", ", ").rstrip(".") in done.stderr.replace(" and ", ", "), done
    if name == "serve":
        assert done.returncode == 2 and f"(flag {flag})" in done.stderr, done  # no restart cures it


def test_the_null_device_has_no_formats():
    done = command("serve", "--model", MODEL, "--device", "null", "--window-dtype", "int8")
    assert done.returncode == 2 and 'window_dtype: "int8" is not there on the null device' in done.stderr, done


def test_an_unknown_format_is_no_setting():
    done = command("serve", "--model", MODEL, "--window-dtype", "e5m2")
    assert done.returncode == 2 and "fp8|int8" in done.stderr, done


def test_a_server_says_its_formats(own_server):
    """Named or by default, they are the same ones."""
    prints = set()
    for flags in ((), ("--window-dtype", "fp32", "--state-dtype", "fp32")):
        s = own_server("--device", "cpu", *flags)
        for answer in (s.get("/v1/models").json["data"][0], s.get("/server_info").json):
            assert (answer["window_dtype"], answer["state_dtype"]) == ("fp32", "fp32"), answer
        assert 'window_dtype="fp32",state_dtype="fp32"} 1' in s.get("/metrics").body.decode()
        assert ", S fp32, window fp32) on http" in s.lines[0], s.lines
        prints.add(s.post("/v1/completions", {"prompt": "Once", "max_tokens": 1}).json["system_fingerprint"])
    assert len(prints) == 1, prints
