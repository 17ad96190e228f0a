"""The process of serve: how it starts, what it says when it cannot, how it ends. The commands beside it: test_commands.py."""
import contextlib
import http.client
import json
import os
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from server import (DEFAULT, MODEL, RODIMUS, ROOT, SANITIZER, SLOWER, START_S, command, environment, free_port, model_of, read_all,
                    read_events, shimmed, status_of)

STREAM = {"prompt": "Once", "max_tokens": 150, "ignore_eos": True, "temperature": 0, "stream": True}


# ---- the end ----

def wait_ready(port):
    """Until a server whose output nobody has is ready."""
    began = time.monotonic()
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as c:
                c.sendall(b"GET /health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                if status_of(read_all(c)) == 200:
                    return
        except OSError:
            pass
        assert time.monotonic() - began < START_S * SLOWER
        time.sleep(0.05)


def start_stream(s, **more):
    """A stream whose first frame has come, and a function that reads the rest."""
    connection, response = s.open("POST", "/v1/completions", {**STREAM, **more})
    assert response.status == 200
    events = read_events(response)
    first = next(events)

    def rest():
        got = [first] + list(events)
        connection.close()
        return got
    return rest


def test_sigterm_drains(own_server):
    """A running stream finishes whole; new requests get 503; then exit 0."""
    s = own_server("--drain-ms", 120000 * SLOWER, "--device", "null:20")
    n = 150  # 3 s: long enough to see it refuse
    whole = s.complete("Once", n, ignore_eos=True)["choices"][0]["text"]
    rest = start_stream(s, max_tokens=n)
    idle = s.socket(5)
    idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in idle.recv(1000)
    s.terminate()
    deadline = time.monotonic() + 60
    refused = False
    while not refused and time.monotonic() < deadline:
        try:
            answer = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
            refused = answer.status == 503
            if refused:
                assert answer.error["code"] == "draining", answer
                assert answer.header("Connection") == "close"
                assert s.get("/health/ready").status == 503
                assert s.get("/health/live").status == 200
        except OSError:
            refused = True  # it no longer listens
    assert refused
    events = rest()
    assert events[-1].data == "[DONE]"
    assert "".join(e.data["choices"][0]["text"] for e in events[:-1] if not e.comment) == whole
    assert s.wait() == 0
    idle.close()


def test_sigterm_when_idle(own_server):
    s = own_server()
    assert s.stop() == 0
    assert s.log().count("Drain finished") == 1, s.log()


def test_sigint_drains_too(own_server):
    s = own_server()
    s.process.send_signal(signal.SIGINT)
    assert s.wait() == 0


def test_second_signal_ends_at_once(own_server):
    s = own_server()
    rest = start_stream(s, max_tokens=1000000)
    s.terminate()
    time.sleep(0.5)
    assert s.process.poll() is None
    s.terminate()
    code = s.wait(25)  # the drain would last for 30 s
    assert code in (0, 1, -signal.SIGTERM, 128 + signal.SIGTERM)
    with pytest.raises(Exception):
        if rest()[-1].data == "[DONE]":  # cut off, or an error and then [DONE]: never a whole answer
            raise RuntimeError


def test_the_log_says_how_many_the_drain_cut(own_server):
    s = own_server("--drain-ms", 300)
    streams = [s.open("POST", "/v1/completions", {**STREAM, "max_tokens": 1000000}) for _ in range(2)]
    readers = [threading.Thread(target=lambda r=r: list(read_events(r)), daemon=True) for _, r in streams]
    for r in readers:
        r.start()
    s.wait_metric("rodimus_requests_running", lambda n: n == 2)
    assert s.stop() == 0
    assert "2 requests cancelled at the deadline" in s.log() and "no requests left" not in s.log(), s.log()[-1000:]
    for r in readers:
        r.join(20)


def test_drain_has_a_limit(own_server):
    """drain_ms is up: what still runs is ended with an error, the exit code stays 0."""
    s = own_server("--drain-ms", 700)
    rest = start_stream(s, max_tokens=1000000)
    s.terminate()
    try:
        events = rest()
        assert any("error" in e.data for e in events if isinstance(e.data, dict))
        assert events[-1].data == "[DONE]"
    except (OSError, AssertionError, Exception) as e:
        assert "Read" in type(e).__name__ or "Reset" in type(e).__name__, e
    assert s.wait(25) == 0  # long before the answer's end, or drain_ms without the flag


def test_what_waits_for_the_pool_when_the_drain_is_over_keeps_nothing_from_ending(own_server):
    """One thread, and bodies for many seconds of it: it reads what the server's end takes away, and so ends first."""
    s = own_server("--device", "null", "--drain-ms", 0, env={"UV_THREADPOOL_SIZE": "1"})
    text = {"prompt": "once upon a time. " * 300000}

    def ask():
        with contextlib.suppress(OSError, http.client.HTTPException):
            s.post("/tokenize", text)
    began = time.monotonic()
    assert s.post("/tokenize", text).status == 200
    took = time.monotonic() - began
    threads = [threading.Thread(target=ask) for _ in range(min(60, 1 + int(16 / took)))]
    for t in threads:
        t.start()
    time.sleep(1)
    s.terminate()
    assert s.wait() == 0, s.log()[-2000:]
    assert "requests did not end" in s.log(), s.log()[-2000:]
    for t in threads:
        t.join(10)


def test_queued_requests_at_sigterm(own_server):
    """What waits when the drain begins is answered: whole, or 503; never silence."""
    s = own_server("--slots", 1)
    rest = start_stream(s, max_tokens=400)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(s.post("/v1/completions", {"prompt": "a", "max_tokens": 2})))
               for _ in range(3)]
    for t in threads:
        t.start()
    s.wait_metric("rodimus_queue_requests", lambda n: n == 3)
    s.terminate()
    assert rest()[-1].data == "[DONE]"
    for t in threads:
        t.join(20)
    assert len(answers) == 3 and all(a.status in (200, 503) for a in answers)
    assert s.wait() == 0


def test_requests_are_taken_while_the_notice_lasts(own_server):
    """SIGTERM: not ready at once, for balancers; but who still comes is served, until the port closes."""
    s = own_server("--drain-notice-ms", 1500)
    s.terminate()
    s.wait_log("draining")
    assert s.get("/health/ready").status == 503 and s.get("/health/live").status == 200
    answered = 0
    with pytest.raises(ConnectionRefusedError):
        while True:
            answer = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
            assert answer.status == 200 and answer.header("Connection") == "close", answer
            answered += 1
    assert answered > 0 and s.wait() == 0


def test_the_port_closes_while_streams_go_on(own_server):
    s = own_server("--drain-notice-ms", 100, "--device", "null:20")
    rest = start_stream(s, max_tokens=100)
    idle = s.socket(5)
    idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in idle.recv(1000)
    s.terminate()
    time.sleep(0.5)
    with pytest.raises(ConnectionRefusedError):
        s.get("/health")
    idle.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n{"prompt":[5]')
    got = idle.recv(4096)
    assert b" 503 " in got and b"draining" in got and b"Connection: close" in got, got
    assert rest()[-1].data == "[DONE]"
    assert s.wait() == 0
    idle.close()


@pytest.mark.parametrize("late_ms", [0, 0, 30], ids=["at once", "and again", "slowly"])
def test_who_is_connected_when_the_port_closes_gets_an_answer(own_server, late_ms):
    """16 clients with a connection a request, through a drain: refused or 200, never a 503, never a reset. So nginx, which finds
    out by a refused connection, loses nothing. Slowly: who connects after the last one was accepted has 30 ms for it."""
    s = own_server("--device", "null", "--drain-notice-ms", 200, env=shimmed(RODIMUS_TEST_CLOSE_MS=str(late_ms)))
    lost, answered = [], []

    def client():
        while True:
            try:
                connection, response = s.open("POST", "/v1/completions", {"prompt": [300], "max_tokens": 1}, timeout=10)
                answered.append(response.status)
                response.read()
                connection.close()
            except ConnectionRefusedError:
                return
            except Exception as e:
                lost.append(repr(e))
    threads = [threading.Thread(target=client) for _ in range(16)]
    for t in threads:
        t.start()
    time.sleep(0.2)
    s.terminate()
    for t in threads:
        t.join(20)
    assert s.wait() == 0
    assert len(answered) > 50 and set(answered) == {200} and not lost, (len(answered), set(answered), lost)


# ---- the start ----

def test_port_in_use(server):
    done = command("serve", "--port", server.port)
    assert done.returncode == 1
    assert "127.0.0.1" in done.stderr and str(server.port) in done.stderr and "in use" in done.stderr
    assert len(done.stderr.splitlines()) <= 3


@pytest.mark.parametrize("flags,word", [
    (["--no-such-flag"], "no-such-flag"), (["--port"], "port"), (["--port", "70000"], "port"), (["--port", "x"], "port"),
    (["--slots", "0"], "slots"), (["--log-level", "loud"], "log_level"), (["positional"], "positional"), (["--device", "tpu"], "device"),
    (["--config", "/nonexistent.json"], "nonexistent.json"),
])
def test_bad_flags_are_usage_errors(flags, word):
    done = command("serve", *flags)
    assert done.returncode == 2, done
    assert word.replace("_", "-") in done.stderr.replace("_", "-")
    assert done.stdout == ""


def test_environment_and_file(own_server, tmp_path):
    """Flag over environment over file over default."""
    config = tmp_path / "rodimus.json"
    config.write_text(json.dumps({"slots": 3, "max_queue_requests": 7, "model_name": "from-file"}))
    s = own_server("--config", config, "--max-queue-requests", 9, env={"RODIMUS_SLOTS": "4", "RODIMUS_MAX_QUEUE_REQUESTS": "8"})
    metrics = s.metrics()
    assert metrics["rodimus_slots"] == 4
    assert metrics["rodimus_queue_requests_limit"] == 9
    assert s.get("/v1/models").json["data"][0]["id"] == "from-file"
    config.write_text(json.dumps({"slotz": 3}))
    done = command("serve", "--config", config)
    assert done.returncode == 2 and "slotz" in done.stderr
    done = command("serve", env={**os.environ, "RODIMUS_SLOTZ": "1"})
    assert done.returncode == 2 and "RODIMUS_SLOTZ" in done.stderr


def spoil_nothing(folder):
    (folder / "config.json").unlink()


def spoil_weights(folder):
    (folder / "model.safetensors").unlink()


def spoil_short(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:len(data) // 2])


def spoil_header(folder):
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[0:8] = b"\xff" * 8
    (folder / "model.safetensors").write_bytes(data)


def spoil_json(folder):
    (folder / "config.json").write_text("{")


def spoil_option(folder):
    config = json.loads((folder / "config.json").read_text())
    config["attn_cfg"]["softmax_scale"] = 0.5
    (folder / "config.json").write_text(json.dumps(config))


def spoil_size(folder):
    config = json.loads((folder / "config.json").read_text())
    config["d_model"] = 512
    (folder / "config.json").write_text(json.dumps(config))


def spoil_tokenizer(folder):
    (folder / "tokenizer.json").write_text('{"model": {}}')


@pytest.mark.parametrize("spoil,word", [
    (spoil_nothing, "config.json"), (spoil_weights, "safetensors"), (spoil_short, "model.safetensors"),
    (spoil_header, "model.safetensors"), (spoil_json, "config.json"), (spoil_option, "softmax_scale"), (spoil_size, "model."),
    (spoil_tokenizer, "tokenizer.json"),
], ids=lambda x: getattr(x, "__name__", None))
def test_bad_checkpoints_are_told_in_one_line(tmp_path, spoil, word):
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    spoil(folder)
    done = command("serve", "--port", 0, "--model", folder)
    assert done.returncode == 1, done
    assert word in done.stderr, done.stderr
    assert str(folder) in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 6, done.stderr


@pytest.mark.parametrize("flags, variables, words", [
    (("--slots", 64, "--max-batch-tokens", 80), {}, ("max_batch_tokens 80", "128", "flag --max-batch-tokens")),
    ((), {"RODIMUS_STATE_HOST_BYTES": "100"}, ("state_host_bytes is 100", "at least", "environment variable RODIMUS_STATE_HOST_BYTES")),
    (("--slots", 65536), {}, ("65536 slots", "more than the memory", "flag --slots")),
    (("--state-host-bytes", 10**15), {}, ("state_host_bytes is 1000000000000000", "more than the memory", "flag --state-host-bytes")),
    (("--max-batch-tokens", 1048576), {}, ("max_batch_tokens 1048576", "more than the memory", "flag --max-batch-tokens")),
    (("--host", "300.1.1.1"), {}, ("host", "300.1.1.1", "flag --host")),
    (("--host", "no..such"), {}, ("host", "'no..such'", "flag --host")),
    (("--admin-port", free_port()), {"RODIMUS_ADMIN_HOST": "fe80::1%nosuch0"},
     ("admin_host", "'fe80::1%nosuch0'", "environment variable RODIMUS_ADMIN_HOST")),
    (("--synthetic", "rodimus-9b"), {}, ("rodimus-9b", "rodimus-plus-1.6b", "flag --synthetic")),
    (("--device", "cpu"), {"RODIMUS_PRECISION": "fp16"}, ("fp16", "bf16", "environment variable RODIMUS_PRECISION")),
])
def test_a_setting_that_is_found_wrong_late_names_its_source_too(flags, variables, words):
    if "more than the memory" in words:
        memory, flags = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE"), (*flags, "--device", "cpu")
        if memory > {"--slots": 200e9, "--max-batch-tokens": 40e9}.get(flags[0], 1e15):
            pytest.skip("this machine has the memory")
    done = command("serve", "--port", 0, *flags, env={**environment(model_of(flags)), **variables})
    assert done.returncode == 2 and all(w in done.stderr for w in words), done


@pytest.mark.skipif(SANITIZER != "", reason="a sanitizer needs terabytes of addresses")
def test_sizes_are_those_of_the_address_space_that_a_limit_leaves(own_server):
    """ulimit -v: slots and states are a part of it, as they are of a container's memory."""
    s = own_server("--device", "cpu", env={"RODIMUS_STATE_HOST_BYTES": "auto"}, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)))
    assert s.complete(max_tokens=5)["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("target", ["itself", "nothing"])
@pytest.mark.parametrize("file", ["chat_template.rodimus.json", "chat_template.jinja", "tokenizer_config.json", "generation_config.json",
                                  "tokenizer.json"])
def test_an_optional_file_that_cannot_be_read_is_not_taken_for_none(tmp_path, file, target):
    """A link that leads to itself cannot be opened by root either, and one that leads nowhere is there."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    (folder / file).unlink(missing_ok=True)
    (folder / file).symlink_to(file if target == "itself" else "nothing")
    done = command("serve", "--port", 0, "--model", folder)
    assert done.returncode == 1 and str(folder / file) in done.stderr, done


def folder_of_another(tmp_path):
    """A server of another user than the folder's: of root's, if the tests run as root."""
    if os.geteuid():
        pytest.skip("needs root, which may run a server as somebody else")
    tmp_path.chmod(0o755)
    for above in tmp_path.parents[:2]:
        above.chmod(0o755)
    (tmp_path / "states").mkdir(0o755)
    return tmp_path / "states", 65534


def folder_that_takes_nothing(tmp_path):
    return "/sys", os.geteuid()  # neither from root


def folder_that_is_a_file(tmp_path):
    (tmp_path / "states").write_text("")
    return tmp_path / "states", os.geteuid()


def folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "states", os.geteuid()


@pytest.mark.parametrize("folder", [folder_of_another, folder_that_takes_nothing, folder_that_is_a_file, folder_that_cannot_be_made])
def test_a_state_dir_that_cannot_be_written_ends_the_start(tmp_path, folder):
    states, uid = folder(tmp_path)
    done = command("serve", "--port", 0, "--state-dir", states, preexec_fn=None if uid == os.geteuid() else lambda: os.setuid(uid))
    assert done.returncode == 1, done
    assert f"state_dir {states} cannot be" in done.stderr and f"uid {uid}" in done.stderr, done.stderr


def test_missing_model_directory():
    done = command("serve", "--port", 0, "--model", "/nonexistent/model")
    assert done.returncode == 1 and "/nonexistent/model" in done.stderr


def test_bundled_model_is_found_from_anywhere(own_server, tmp_path):
    s = own_server(model=None, cwd=tmp_path)
    assert s.get("/v1/models").json["data"][0]["id"] == DEFAULT


@pytest.mark.parametrize("program, models", [("rodimus", "config/models"), ("build/rodimus", "config/models"), ("build/asan/rodimus", "config/models"),
                                             ("bin/rodimus", "share/rodimus/models")])
def test_the_program_finds_the_bundled_model_from_its_own_place(tmp_path, program, models):
    for place in (program, models):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(RODIMUS, tmp_path / program)
    done = subprocess.run([tmp_path / program, "generate", "-p", "Once", "-n", "1"], capture_output=True, text=True, timeout=300 * SLOWER, env=environment(None))
    assert done.returncode == 1 and f"{tmp_path / os.path.dirname(program)}" in done.stderr and f"/{DEFAULT};" in done.stderr, done
    (tmp_path / models).symlink_to(os.path.join(ROOT, "config", "models"))
    done = subprocess.run([tmp_path / program, "generate", "-p", "Once", "-n", "1"], capture_output=True, text=True, timeout=300 * SLOWER, env=environment(None))
    assert done.returncode == 0, done


def test_checkpoint_without_tokenizer_serves_token_ids(own_server, cases):
    s = own_server("--model", os.path.join(ROOT, "tests/vectors/rodimus-plus-small"))
    with open(os.path.join(ROOT, "tests/vectors/rodimus-plus-small/config.json")) as f:
        assert json.load(f)["vocab_size"] > 20
    answer = s.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "return_token_ids": True,
                                        "ignore_eos": True})
    assert answer.status == 200, answer
    assert len(answer.json["choices"][0]["token_ids"]) == 4
    for path, body in (("/v1/completions", {"prompt": "text"}), ("/tokenize", {"prompt": "text"}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        answer = s.post(path, body)
        assert answer.status == 400 and "tokenizer" in answer.error["message"], answer


def test_two_servers_at_once(own_server):
    a, b = own_server("--slots", 2), own_server("--slots", 3)
    assert a.complete(max_tokens=8)["choices"] == b.complete(max_tokens=8)["choices"]


def test_pings_in_silence(own_server):
    """A queued stream's headers and comments come before its first token, if the server says so in time; then the data."""
    s = own_server("--slots", 1, "--sse-ping-ms", 100)
    rest = start_stream(s, max_tokens=600)
    connection, response = s.open("POST", "/v1/completions", {**STREAM, "max_tokens": 2})
    events = list(read_events(response))
    connection.close()
    assert events[-1].data == "[DONE]"
    assert all(e.raw.startswith(b":") for e in events if e.comment)
    rest()


@pytest.mark.parametrize("flags, key", [([], None), (["--host", "0.0.0.0"], None), (["--api-keys", "sk-one"], "sk-one")],
                         ids=["loopback", "any address", "keys"])
def test_the_first_lines_lead_to_the_page_and_to_an_answer(own_server, flags, key):
    s = own_server(*flags)
    said = dict(line.rstrip("\n").split(": ", 1) for line in s.lines if line.startswith(("playground: ", "try: ")))
    page = subprocess.run(["curl", "-sS", "-w", "%{http_code} %{content_type}", said["playground"]], capture_output=True, text=True, timeout=300)
    assert page.stdout.startswith("<!doctype html>") and page.stdout.endswith("200 text/html; charset=utf-8"), page
    done = subprocess.run(["bash", "-c", said["try"].replace("KEY", key or "")], capture_output=True, text=True, timeout=300)
    assert done.stdout.count("data: ") > 1 and done.stdout.endswith("data: [DONE]\n\n"), done


def test_json_log_lines(own_server):
    s = own_server("--log-format", "json")
    s.complete("secret words of a client", 1)
    assert s.get("/v1/models/%FF%22%0A%CC").status == 404  # what is no character must not break the line
    s.stop()
    with open(s.log_path, encoding="utf-8") as log:
        lines = [json.loads(line) for line in log.read().splitlines() if line]
    assert [line["path"] for line in lines if line.get("status") == 404] == ['/v1/models/\ufffd"\n\ufffd']
    assert "secret words" not in s.log()


@pytest.mark.parametrize("flags, code, word", [
    (["--port", "{taken}"], 1, "in use"), (["--port", "0", "--model", "/nonexistent"], 1, "/nonexistent"), (["--port", "70000"], 2, "70000"),
    (["--port", "0", "--listen", "ready", "--api-key-file", "/nonexistent/keys"], 2, "/nonexistent/keys"),
    (["--port", "0", "--model", "/nonexistent", "--synthetic", "small"], 2, "synthetic")])
@pytest.mark.parametrize("by", ["flag", "variable", "file"])
def test_what_ends_the_start_is_a_line_of_a_json_log(server, tmp_path, flags, code, word, by):
    flags, settings = [f.replace("{taken}", str(server.port)) for f in flags], environment()
    if by == "flag":
        flags = [*flags, "--log-format", "json"]
    elif by == "variable":
        settings["RODIMUS_LOG_FORMAT"] = "json"
    else:
        (tmp_path / "settings.json").write_text('{"log_format": "json"}')
        flags += ["--config", str(tmp_path / "settings.json")]
    done = command("serve", *flags, env=settings)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == code and lines[-1]["level"] == "error" and word in lines[-1]["message"], done


@pytest.mark.parametrize("text, word", [
    ('{"prot": 1, "log_format": "json"}', "prot"), ('{"port": "x", "log_level": "info", "log_format" :\n "json"}', "port"),
    ('{"log_format": "json", "port": 80', "line 1"), ('{"log_format": "json"', "line 1")])
def test_a_fault_of_the_settings_file_is_told_in_the_log_that_it_asks_for(tmp_path, text, word):
    """Also where the format stands behind the fault, or the file was written by half."""
    path = tmp_path / "settings.json"
    path.write_text(text)
    done = command("serve", "--config", path)
    line = json.loads(done.stderr)
    assert done.returncode == 2 and line["level"] == "error" and word in line["message"] and str(path) in line["message"], done
    plain = command("serve", "--config", path, "--log-format", "text")
    assert plain.stderr.startswith("rodimus serve: "), plain
    plain = command("serve", "--config", path, env={**environment(), "RODIMUS_LOG_FORMAT": "text"})
    assert plain.stderr.startswith("rodimus serve: "), plain


def test_a_json_log_says_when_the_server_is_ready(own_server):
    s = own_server("--log-format", "json")
    lines = [json.loads(line) for line in s.log().splitlines()]
    ready = [line for line in lines if line["message"].startswith("serves ")]
    assert len(ready) == 1 and f":{s.port}" in ready[0]["message"] and ready[0]["level"] == "info", lines


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_files_are_not_taken_for_others(closed):
    """`2>&-`: the number would go to the loop's own file, and the log into it."""
    port = free_port()
    process = subprocess.Popen(["sh", "-c", f'exec "$0" "$@" {closed}', RODIMUS, "serve", "--port", str(port)], env=environment(),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_ready(port)
        for fd in range(3):
            file = os.readlink(f"/proc/{process.pid}/fd/{fd}")
            assert "anon_inode" not in file and "socket" not in file, (fd, file)
        process.terminate()
        assert process.wait(60 * SLOWER) == 0
    finally:
        process.kill()
        process.wait()


def test_a_closed_standard_output_is_a_failure():
    done = subprocess.run(["sh", "-c", f'exec {shlex.quote(RODIMUS)} version >&-'], stderr=subprocess.PIPE, text=True, timeout=300, env=environment())
    assert done.returncode == 1 and "cannot write to standard output" in done.stderr, done


def test_sighup_before_the_handler_is_a_reload(own_server, tmp_path):
    """It comes while the settings are read, from a pipe here: it waits, and then the settings are read again."""
    path = tmp_path / "settings.json"
    os.mkfifo(path)
    s = own_server("--config", path, wait=False)
    began = time.monotonic()
    while True:
        try:
            writing = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError:  # not yet
            assert time.monotonic() - began < 20 * SLOWER
            time.sleep(0.01)
    s.process.send_signal(signal.SIGHUP)
    (tmp_path / "next.json").write_text("{}")
    os.replace(tmp_path / "next.json", path)  # what is read after SIGHUP
    os.write(writing, b"{}")
    os.close(writing)
    s.wait_ready()
    s.wait_log("SIGHUP: settings taken over")
    assert s.stop() == 0, s.log()


def test_a_second_signal_ends_a_server_whose_device_hangs_after_the_drain(own_server):
    s = own_server("--device", "null:60000", "--drain-ms", 200, "--drain-notice-ms", 0)
    asking = threading.Thread(target=lambda: s.raw(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                                                   b"Content-Length: 29\r\n\r\n" + b'{"prompt":"a","max_tokens":5}', timeout=20))
    asking.start()
    s.wait_metric("rodimus_slots_used", lambda n: n == 1)
    s.terminate()
    time.sleep(2.5)  # the drain is over, the step is not
    assert s.process.poll() is None
    s.terminate()
    assert s.wait() != 0
    asking.join()


# ---- the threads that compute ----

def quota_groups(name, cpus):
    """A control group with a quota of processor time, and one in it without: the inner one's folder, and both to be removed."""
    for top, files in (("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": str(cpus * 100000)}),
                       ("/sys/fs/cgroup", {"cpu.max": f"{cpus * 100000} 100000"})):
        outer, made = os.path.join(top, name), []
        try:
            for folder in (outer, os.path.join(outer, "inner")):
                os.mkdir(folder)
                made.insert(0, folder)
            for file, text in files.items():
                with open(os.path.join(outer, file), "w") as f:
                    f.write(text)
            return made
        except OSError:
            for folder in made:
                os.rmdir(folder)
    return []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_a_quota_of_a_control_group_sets_the_compute_threads(own_server):
    """Also where the quota is that of a group above."""
    groups = quota_groups(f"rodimus-test-{os.getpid()}", 1)
    if not groups:
        pytest.skip("this user may make no control group with a quota of processor time")
    try:
        for inside, flags, wanted in ((False, (), len(os.sched_getaffinity(0))), (True, (), 1), (True, ("--threads", 2), 2)):
            def enter(inside=inside):
                if inside:
                    with open(os.path.join(groups[0], "cgroup.procs"), "w") as f:
                        f.write("0")
            s = own_server("--device", "cpu", *flags, preexec_fn=enter)
            got = int(re.search(r"(\d+) threads?\b", s.lines[0]).group(1))
            assert s.complete(max_tokens=1) and s.stop() == 0
            assert got == wanted, s.lines
    finally:
        for folder in groups:
            with contextlib.suppress(OSError):  # a server that is still there
                os.rmdir(folder)
