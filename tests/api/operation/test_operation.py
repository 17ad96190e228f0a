"""What an operator sees: metrics, log lines, health of an engine that is stuck, and what systemd is told."""
import ctypes
import glob
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import unicodedata
import urllib.parse

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server import RODIMUS, ROOT, SLOWER, read_events, shimmed

UNITS = ("_seconds", "_bytes", "_tokens", "_requests", "_total", "_info", "_ratio")
PLAIN = {  # gauges and histograms of things that are counted, or yes and no
    "rodimus_ready", "rodimus_stalled", "rodimus_slots", "rodimus_slots_used", "rodimus_requests_running",
    "rodimus_queue_requests_limit", "rodimus_http_connections", "rodimus_http_connections_limit", "rodimus_http_streams", "rodimus_key_requests_in_flight",
    "rodimus_step_batch_rows", "rodimus_sessions", "rodimus_sessions_by_tier", "rodimus_prefix_checkpoints", "rodimus_pinned_prefixes", "rodimus_kept_turns", "rodimus_conversations", "rodimus_conversation_lanes", "rodimus_conversation_states",
    "rodimus_store_down",
    "process_max_fds"}


def families(s, **more):
    text = s.get("/metrics", **more).body.decode()
    return text, {f.name: f for f in text_string_to_metric_families(text)}


# ---- metrics ----

def test_a_parser_of_prometheus_reads_every_metric(own_server):
    s = own_server("--api-keys", "k", key="k")
    s.complete(max_tokens=20, ignore_eos=True)
    text, found = families(s)
    assert len(found) > 40
    for name, family in found.items():
        assert family.documentation.endswith("."), name
        assert family.type in ("counter", "gauge", "histogram"), name
        full = name + ("_total" if family.type == "counter" else "")
        if full.startswith("rodimus_"):
            assert full.endswith(UNITS) or full in PLAIN, f"{full} names no unit"
        if family.type == "histogram":
            assert {x.name[len(name):] for x in family.samples} == {"_bucket", "_sum", "_count"}, name
    for name in ("rodimus_queue_duration_seconds", "rodimus_time_to_first_token_seconds", "rodimus_request_duration_seconds"):
        assert found[name].samples[-1].value == 1, name
    rows = {x.labels.get("le"): x.value for x in found["rodimus_step_batch_rows"].samples if x.name.endswith("_bucket")}
    assert rows["1"] == rows["+Inf"] >= 20  # one request: every step had one row
    steps = [x.value for x in found["rodimus_step_duration_seconds"].samples if x.name.endswith("_count")]
    assert steps == [rows["+Inf"]]


@pytest.mark.parametrize("name, wanted", [(b"mod\xe8le \"1\"", 'mod\ufffdle "1"'), ("é".encode() * 100, "é" * 63), (b"a\nb\\", "a\nb\\")], ids=["bytes", "long", "escaped"])
def test_a_models_name_is_text_in_answers_and_metrics(own_server, name, wanted):
    """A directory's name, or this, may be any bytes; Prometheus refuses all of a text that is no UTF-8."""
    s = own_server("--model-name", os.fsdecode(name))
    _, found = families(s)
    assert [x.labels["model"] for x in found["rodimus_model_info"].samples] == [wanted]
    assert s.get("/v1/models").json["data"][0]["id"] == wanted and s.complete(max_tokens=1)["model"] == wanted


def test_the_readme_lists_the_metrics(own_server):
    """server/METRICS.md names every metric that there is, and no other."""
    s = own_server("--api-keys", "k", key="k")
    s.complete(max_tokens=1)
    _, found = families(s)
    names = {name + ("_total" if f.type == "counter" else "") for name, f in found.items()}
    with open(os.path.join(ROOT, "server", "METRICS.md"), encoding="utf-8") as f:
        section = re.search(r"^## Metrics\n(.*?)^## ", f.read(), re.M | re.S).group(1)
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| ")][1:]
    listed = {re.sub(r"\{.*?\}", "", name).strip() for row in rows for name in re.sub(r"\{[^}]*\}", "", row).split(",")}
    assert listed == names, (sorted(listed - names), sorted(names - listed))


def test_metrics_say_when_the_process_began(own_server):
    """Constant while it lives: alerts tell by it what happened since a process is new, and dashboards that it is another one."""
    before = int(time.time())
    s = own_server()
    began = s.metric("process_start_time_seconds")
    assert before <= began <= time.time()
    time.sleep(1.1)
    assert s.metric("process_start_time_seconds") == began


def test_counters_by_route_and_status(own_server):
    s = own_server()
    s.complete(max_tokens=1)
    s.post("/v1/completions", {"prompt": 5.5})
    s.get("/nothing")
    metrics = s.metrics()
    assert metrics['rodimus_http_requests_total{route="/v1/completions",code="200"}'] == 1
    assert metrics['rodimus_http_requests_total{route="/v1/completions",code="400"}'] == 1
    assert metrics['rodimus_http_requests_total{route="other",code="404"}'] == 1


# ---- log lines ----

def request_lines(s):
    return [line for line in map(json.loads, s.log().splitlines()) if line["message"] == "request"]


def test_autoscalers_are_told_the_share_of_slots_in_use(own_server):
    s = own_server("--slots", 4)
    assert s.metric("rodimus_slots_used_ratio") == 0
    connection, response = s.open("POST", "/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 1000000, "ignore_eos": True, "stream": True})
    s.wait_metric("rodimus_slots_used", lambda n: n == 3)
    metrics = s.metrics()
    assert [metrics[name] for name in ("rodimus_slots_used_ratio", "vllm:kv_cache_usage_perc")] == [0.75, 0.75], metrics
    response.close()
    connection.close()
    s.wait_metric("rodimus_slots_used_ratio", lambda n: n == 0)


def test_one_line_a_request_with_all_that_is_known(own_server, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k name=team\n")
    keys.chmod(0o600)
    s = own_server("--log-format", "json", "--api-key-file", keys, key="k")
    key = {"Authorization": "Bearer k"}
    s.post("/v1/completions", {"prompt": [300] * 7, "max_tokens": 5, "ignore_eos": True}, headers={"X-Request-Id": "r-1", **key})
    s.post("/v1/completions", {"prompt": "The fox", "max_tokens": 500, "stop": ["e"]}, headers={"X-Request-Id": "r-2", **key})
    s.post("/v1/completions", {"prompt": "a", "max_tokens": -1}, headers={"X-Request-Id": "r-3", **key})
    connection, response = s.open("POST", "/v1/completions", {"prompt": "a", "max_tokens": 100000, "ignore_eos": True, "stream": True},
                                  headers={"X-Request-Id": "r-4", **key})
    next(read_events(response))
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, whose socket has no peer any more
    connection.close()
    response.close()
    s.wait_metric("rodimus_slots_used", lambda n: n == 0)
    s.wait_log('"r-4"')
    lines = {line["id"]: line for line in request_lines(s)}
    whole = lines["r-1"]
    assert whole["key"] == "team" and whole["path"] == "/v1/completions" and whole["status"] == 200
    assert (whole["prompt_tokens"], whole["completion_tokens"], whole["outcome"]) == (7, 5, "length")
    assert whole["ms"] >= whole["ttft_ms"] >= whole["queue_ms"] >= 0, whole
    assert whole["stream"] is False and lines["r-4"]["stream"] is True
    kinds = {"ms": (int, float), "ttft_ms": (int, float), "queue_ms": (int, float), "bytes": int, "status": int, "stream": bool, "cached_tokens": int,
             "prompt_tokens": int, "completion_tokens": int}
    for line in lines.values():
        for name, value in line.items():
            assert isinstance(value, kinds.get(name, str)), (name, value, line)
    assert lines["r-2"]["outcome"] == "stop"
    assert lines["r-3"]["status"] == 400 and lines["r-3"]["outcome"] == "invalid_request_error"
    assert lines["r-4"]["status"] == 499 and lines["r-4"]["outcome"] == "client_left" and lines["r-4"]["completion_tokens"] >= 1
    assert {line["peer"] for line in lines.values()} == {"127.0.0.1"}, lines
    assert len([line for line in request_lines(s) if line["id"].startswith("r-")]) == 4


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_nothing_that_a_client_sends_hides_in_the_log(own_server, log_format):
    """Wherever its bytes may come into a line, as they are or behind percent signs: a viewer shows what is there, in its order."""
    s = own_server("--device", "null", "--log-format", log_format, "--log-level", "debug")
    unseen = "".join(map(chr, [*range(0x202a, 0x202f), *range(0x2066, 0x206a), 0x200b, 0x200e, 0x200f, 0x61c, 0x2028, 0x2029, 0xfeff,
                               0x85, 0x9b, 0xad, 0xe0001, 0xe0041, 0x1b, 0x7f]))
    text = f"a{unseen}b"
    for path in (text.encode(), urllib.parse.quote(text).encode(), b"v1/models/" + text.encode(), b"v1/sessions/" + urllib.parse.quote(text).encode()):
        for method in (b"GET", b"DELETE", text.encode()):
            head = b"X-Request-Id: %s\r\nX-Session-Id: %s\r\nAuthorization: Bearer %s\r\nUser-Agent: %s\r\n" % ((text.encode(),) * 4)
            s.raw(method + b" /" + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + head + b"\r\n")
    n = 12
    for field in ("model", "session_id", "user", "cache_salt"):
        s.post("/v1/completions", {"prompt": [300], "max_tokens": 1, field: text})
        n += 1
    began = time.monotonic()
    while s.log().count("outcome") < n:
        assert time.monotonic() - began < 60 * SLOWER, s.log()
        time.sleep(0.01)
    with open(s.log_path, encoding="utf-8") as f:  # which must be UTF-8
        log = f.read()
    hidden = {f"U+{ord(c):04X}" for c in log if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cn")}
    assert not hidden, hidden
    assert "/a\\u202a\\u202b" in log and "\\udb40\\udc41" in log, log[-2000:]
    if log_format == "json":
        paths = [json.loads(line).get("path") for line in log.splitlines()]
        assert f"/{text}" in paths and f"/v1/models/{text}" in paths, paths


def test_the_readme_lists_the_fields_of_log_lines(own_server):
    """Those that the code can write, and what stands in every line."""
    fields = set()
    for path in glob.glob(os.path.join(ROOT, "server", "**", "*.c"), recursive=True):
        with open(path, encoding="utf-8") as f:
            fields |= set(re.findall(r'\blog_(?:words|number|truth)\("(\w+)"', f.read()))
    s = own_server("--log-format", "json")
    s.complete(max_tokens=1)
    for line in map(json.loads, s.log().splitlines()):
        fields |= set(line) - {"message"}
    with open(os.path.join(ROOT, "server", "METRICS.md"), encoding="utf-8") as f:
        section = f.read().split("\n## Log lines\n")[1]
    listed = {name for row in re.findall(r"^\| (`.*?) \|", section, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert listed == fields and len(fields) > 15, (sorted(listed - fields), sorted(fields - listed))


# ---- a stuck engine ----

def test_health_notices_an_engine_that_takes_no_step(own_server):
    """A device whose step takes 4 s, where a step may take 0.3: not ready, not alive, until it moves again."""
    s = own_server("--device", "null:4000", "--stall-ms", 300)
    assert s.get("/health/ready").status == 200 and s.get("/health/live").status == 200
    s.complete([300], 1)
    time.sleep(0.5)  # an idle engine takes no steps either, and is well
    assert s.get("/health").status == 200 and s.metric("rodimus_stalled") == 0
    thread = threading.Thread(target=lambda: s.complete([300], 1))
    began = time.monotonic()
    thread.start()
    while s.get("/health/ready").status == 200:
        assert time.monotonic() - began < 60
        time.sleep(0.02)
    answer = s.get("/health/ready")
    assert answer.status == 503 and answer.json["status"] == "stalled", answer
    assert s.get("/health/live").status == 503
    assert s.metric("rodimus_stalled") == 1 and s.metric("rodimus_ready") == 0
    thread.join()
    assert s.get("/health/ready").status == 200 and s.get("/health/live").status == 200


def test_a_stalled_server_still_ends_at_sigterm(own_server):
    s = own_server("--device", "null:1000", "--stall-ms", 200, "--drain-ms", 500)
    connection, _ = s.open("POST", "/v1/completions", {"prompt": [300], "max_tokens": 1000, "ignore_eos": True, "stream": True})
    assert s.stop() == 0  # long before its 1,000 s
    connection.close()


def endless(s):
    """A stream that runs until the server or the test ends it."""
    connection, _ = s.open("POST", "/v1/completions", {"prompt": [300], "max_tokens": 100000, "ignore_eos": True, "stream": True})
    return connection


@pytest.mark.parametrize("hangs", ["the engine", "the loop", "the engine and the log"])
def test_after_a_stall_the_process_ends_with_status_3(own_server, tmp_path, hangs):
    """The engine's thread is in a step that does not end, or the loop does not turn: whatever waits for them. 2 s, and not before."""
    s = own_server("--device", "null:600000" if "engine" in hangs else "null:20", "--stall-exit-s", 2, env=shimmed(RODIMUS_TEST_HANG=str(tmp_path / "hang")))
    time.sleep(2.5)  # an idle engine takes no steps, and is well
    assert s.process.poll() is None and s.get("/health").status == 200
    began = time.monotonic()
    connection = endless(s)
    if "loop" in hangs:
        time.sleep(2.5)  # steps end
        assert s.process.poll() is None
        began = time.monotonic()
        (tmp_path / "hang.loop").touch()
    if "log" in hangs:
        (tmp_path / "hang.log").touch()
    assert s.wait() == 3
    early = 1 if "loop" in hangs else 0.1  # the loop's last sign of life may lie before it hangs, on a busy machine
    assert 2 - early < time.monotonic() - began
    assert ("stall_exit_s: no step has ended for 2 s though work waits; exiting with status 3." in s.log()) == ("log" not in hangs)
    connection.close()


def test_a_slow_step_is_no_stall_and_without_the_setting_none_ends_the_process(own_server):
    slow, never = own_server("--device", "null:900", "--stall-exit-s", 2), own_server("--device", "null:600000", "--stall-ms", 300)
    connections = [endless(s) for s in (slow, never)]
    time.sleep(4)
    assert slow.process.poll() is None and never.process.poll() is None
    assert never.get("/health/live").status == 503
    for c in connections:
        c.close()


def test_a_process_that_stood_still_as_a_whole_goes_on(own_server):
    """SIGSTOP, as of a machine that is suspended: when it wakes, nothing of it hangs."""
    s = own_server("--device", "null:20", "--stall-exit-s", 1)
    connection, response = s.open("POST", "/v1/completions", {"prompt": [300], "max_tokens": 200, "ignore_eos": True, "stream": True})
    events = read_events(response)
    next(events)
    for seconds in (1.2, 1.6, 3, 1.4):
        s.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        s.process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
    assert [e.data for e in events][-1] == "[DONE]"
    connection.close()
    assert s.stop() == 0


def test_the_end_of_a_drain_is_no_stall(own_server):
    """What comes behind the loop may take its time: here a last step, of 5 s, elsewhere the writing of sessions."""
    s = own_server("--device", "null:5000", "--stall-exit-s", 4, "--drain-notice-ms", 0, "--drain-ms", 0)
    connection = endless(s)
    began = time.monotonic()
    assert s.stop() == 0 and time.monotonic() - began > 4, s.log()
    assert "Drain aborted" in s.log() and "stall_exit_s" not in s.log(), s.log()
    connection.close()


# ---- systemd ----

class Notified:
    """The socket that systemd gives a service."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.settimeout(10)

    def next(self):
        return self.socket.recv(4096).decode()

    def until(self, text):
        while True:
            got = self.next()
            if text in got.split("\n"):
                return got


def test_systemd_is_told_ready_reloading_stopping(own_server, tmp_path):
    for path in (str(tmp_path / "notify"), "\0rodimus-test-" + tmp_path.name):
        systemd = Notified(path)
        s = own_server(env={"NOTIFY_SOCKET": path.replace("\0", "@")})
        assert systemd.next().startswith("READY=1")
        before = time.monotonic_ns() // 1000
        s.reload()
        got = systemd.next().split("\n")
        assert got[0] == "RELOADING=1" and got[1].startswith("MONOTONIC_USEC=")
        assert before <= int(got[1].partition("=")[2]) <= time.monotonic_ns() // 1000
        assert systemd.next() == "READY=1"
        s.terminate()
        assert systemd.next() == "STOPPING=1"
        assert s.wait() == 0


def test_the_watchdog_is_fed_while_steps_end_and_no_longer(own_server, tmp_path):
    systemd = Notified(str(tmp_path / "notify"))
    s = own_server("--device", "null:6000", "--stall-ms", 500,
                   env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"})
    systemd.until("WATCHDOG=1")
    systemd.until("WATCHDOG=1")
    connection, _ = s.open("POST", "/v1/completions", {"prompt": [300], "max_tokens": 9, "ignore_eos": True, "stream": True})
    time.sleep(1.5)
    systemd.socket.settimeout(0.01)
    try:
        while systemd.next():  # what was said before it was stuck
            pass
    except TimeoutError:
        pass
    systemd.socket.settimeout(1.5)
    try:
        got = systemd.next()
        raise AssertionError(f"a stuck server says {got}")
    except TimeoutError:
        pass
    connection.close()


def test_no_socket_is_no_trouble(own_server):
    s = own_server(env={"NOTIFY_SOCKET": "/nowhere/at/all", "WATCHDOG_USEC": "1000000"})
    s.complete(max_tokens=1)
    assert s.stop() == 0



@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_the_unit_is_valid_and_tight(tmp_path):
    with open(os.path.join(ROOT, "deploy", "rodimus.service"), encoding="utf-8") as f:
        text = f.read()
    unit, program = tmp_path / "rodimus.service", tmp_path / "rodimus"
    program.symlink_to(RODIMUS)
    unit.write_text(text.replace("/usr/local/bin/rodimus", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert done.returncode == 0 and "rodimus.service" not in done.stderr, done
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout[-300:]


def test_it_runs_where_no_memory_may_become_code(own_server, tokenizer_cases):
    """MemoryDenyWriteExecute of the unit: the tokenizer's pattern is not compiled then, and gives the same tokens."""
    prctl = ctypes.CDLL(None).prctl
    if prctl(66, 0, 0, 0, 0) < 0:  # PR_GET_MDWE
        pytest.skip("the kernel has no PR_SET_MDWE")
    s = own_server(preexec_fn=lambda: prctl(65, 1, 0, 0, 0))
    for case in tokenizer_cases[:40]:
        assert s.post("/tokenize", {"prompt": case["text"]}).json["tokens"] == case["ids"]
    s.complete("The fox", 5)
    assert s.stop() == 0
