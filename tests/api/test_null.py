"""The device that computes nothing: the whole path without a model's arithmetic, and the yardstick of the server's speed."""
import json

from server import command


def test_it_answers_like_any_device(own_server, tmp_path):
    s = own_server("--device", "null", "--slots", 40)
    assert "null" in s.lines[0]
    for stream in (False, True):
        ask = {"prompt": "a", "max_tokens": 30, "n": 3, "logprobs": 2, "stream": stream}
        if stream:
            events = [e for e in s.events("/v1/completions", ask) if not e.comment]
            chunks = [e.data for e in events[:-1]]
            texts = ["".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == i) for i in range(3)]
        else:
            texts = [c["text"] for c in s.post("/v1/completions", ask).json["choices"]]
        assert texts[0] == texts[1] == texts[2] != ""
    stop = texts[0][9:12]
    c = s.post("/v1/completions", {"prompt": "a", "max_tokens": 30, "stop": stop}).json["choices"][0]
    assert c["finish_reason"] == "stop" and c["stop_reason"] == stop and c["text"] == texts[0][:texts[0].index(stop)]
    report = tmp_path / "load.json"
    run = command("load", "--url", s.url, "--streams", 60, "--requests", 200, "--output-tokens", 50, "--json", report)
    assert run.returncode == 0, run.stderr
    counts = json.loads(report.read_text())
    assert counts["ok"] == 200 and counts["output_tokens_total"] == 200 * 50
    assert s.metric("rodimus_slots_used") == 0


def test_choices_read_their_prompt_once_but_for_its_end(own_server):
    """Where the device draws the tokens, each choice reads what is behind the last chunk of 64 itself; and all of it where
    the device counts what it reads, for repetition_penalty."""
    n_tok, end_tok = 1000, 1000 % 64
    s = own_server("--device", "null", "--slots", 40)
    ask = {"max_tokens": 5, "n": 4, "temperature": 1, "seed": 3}
    cases = ((1, {}, n_tok + 3 * end_tok), (2, {"repetition_penalty": 1.2}, 4 * n_tok), (3, {"n": 1}, n_tok), (4, {"n": 60}, n_tok + 59 * end_tok))
    for first, more, want in cases:
        before = s.metric("rodimus_prefill_tokens_total")
        answer = s.complete([300 + first] * n_tok, **{**ask, **more})
        assert answer["usage"]["prompt_tokens"] == n_tok and len({c["text"] for c in answer["choices"]}) == 1
        read = s.metric("rodimus_prefill_tokens_total") - before
        assert read == want, f"{more}: {read} tokens were read, want {want}"


def test_a_step_takes_as_long_as_it_is_told(own_server, tmp_path):
    s = own_server("--device", "null:20")
    report = tmp_path / "load.json"
    assert command("load", "--url", s.url, "--streams", 4, "--requests", 4, "--output-tokens", 20, "--json", report).returncode == 0
    assert 19 < json.loads(report.read_text())["per_token_ms"]["p50"] < 40
