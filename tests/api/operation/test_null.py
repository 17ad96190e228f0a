"""The device that computes nothing: the whole path without a model's arithmetic, and the yardstick of the server's speed."""
import json
import threading
import time

from server import SLOWER, command


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
    cases = ((1, {}, n_tok + 3 * end_tok, 0), (2, {"repetition_penalty": 1.2}, 4 * n_tok, 0), (3, {"n": 1}, n_tok, 0),
             (4, {"n": 60}, n_tok + 59 * end_tok, n_tok - end_tok))  # 20 have to wait for a slot: one of them reads it again, or a checkpoint pays
    for first, more, want, again in cases:
        before = s.metric("rodimus_prefill_tokens_total")
        answer = s.complete([300 + first] * n_tok, **{**ask, **more})
        assert answer["usage"]["prompt_tokens"] == n_tok and len({c["text"] for c in answer["choices"]}) == 1
        read = s.metric("rodimus_prefill_tokens_total") - before
        assert read in (want, want + again), f"{more}: {read} tokens were read, want {want} or {again} more"


def test_choices_that_share_a_prompt_do_not_put_other_keys_back(own_server):
    """What one choice reads for 64 is served once: a key that comes then waits for a little of the flood, not for 63 prompts' worth of it: 8 minutes."""
    s = own_server("--device", "null:5", "--slots", 32, "--api-keys", "aaa,bbb", "--prefix-cache-bytes", 0, key="aaa")
    over = threading.Event()

    def flood():
        while not over.is_set():
            s.complete([300] * 10, max_tokens=200, ignore_eos=True)

    clients = [threading.Thread(target=s.complete, args=([300] * 50000,), kwargs={"n": 64, "max_tokens": 5, "temperature": 1}, daemon=True)]
    clients += [threading.Thread(target=flood, daemon=True) for _ in range(64)]
    clients[0].start()
    time.sleep(0.05)
    for c in clients[1:]:
        c.start()
    clients[0].join()
    time.sleep(0.5)
    began = time.monotonic()
    other = s.post("/v1/completions", {"prompt": [300] * 10, "max_tokens": 1}, headers={"Authorization": "Bearer bbb"})
    waited_s = time.monotonic() - began
    over.set()
    for c in clients:
        c.join()
    assert other.status == 200 and waited_s < 60 * SLOWER, (other.status, waited_s)


def test_a_step_takes_as_long_as_it_is_told(own_server, tmp_path):
    s = own_server("--device", "null:20")
    report = tmp_path / "load.json"
    assert command("load", "--url", s.url, "--streams", 4, "--requests", 4, "--output-tokens", 20, "--json", report).returncode == 0
    assert 19 < json.loads(report.read_text())["per_token_ms"]["p50"] < 200
