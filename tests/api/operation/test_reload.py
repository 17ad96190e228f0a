"""SIGHUP changes keys, certificates and the log level while requests run; all of it, or nothing."""
import itertools
import json
import os
import random
import re
import string
import threading

import pytest

from access import ENDLESS, bearer, certificate, key_file, served_certificate
from server import SLOWER, command, free_port, read_events


def test_reload_takes_over_keys_and_log_level(own_server, tmp_path):
    path = key_file(tmp_path, "one name=a requests=1\n")
    config = tmp_path / "config.json"
    config.write_text('{"log_level": "info"}')
    s = own_server("--config", config, "--api-key-file", path)
    connection, response = s.open("POST", "/v1/completions", {**ENDLESS, "max_tokens": 3000 // SLOWER}, headers=bearer("one"))
    events = read_events(response)
    next(events)
    path.write_text("two name=a requests=2\nthree name=b\n")
    config.write_text('{"log_level": "debug", "slots": 3}')
    assert "need a restart: slots" in s.reload() or "need a restart: slots" in s.log()
    assert s.get("/v1/models", headers=bearer("one")).status == 401
    assert s.get("/v1/models", headers=bearer("three")).status == 200
    assert s.metrics(headers=bearer("two"))['rodimus_key_requests_in_flight{key="a"}'] == 1  # that of before
    assert list(events)[-1].data == "[DONE]"  # a key that is gone takes no answer away
    connection.close()
    s.get("/health")
    s.wait_log("path=/health")  # debug lines, now
    path.write_text("two name=a\nbroken line=x\n")
    assert "line 2" in s.reload()
    assert s.get("/v1/models", headers=bearer("three")).status == 200
    path.write_text("four\n")
    s.reload()
    assert s.get("/v1/models", headers=bearer("three")).status == 401
    metrics = s.metrics(headers=bearer("four"))
    assert metrics["rodimus_config_reloads_total"] == 2 and metrics["rodimus_config_reload_failures_total"] == 1


@pytest.mark.parametrize("flag", ["--config", "--api-key-file"])
def test_a_reload_waits_for_no_pipe(own_server, tmp_path, flag):
    """Settings and keys may come from a pipe (`<(...)`) at the start; who opened it again would wait for a writer, and nobody be served."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=('{"api_keys": ["one"]}' if flag == "--config" else "one\n",))
    writer.start()
    s = own_server(flag, path, key="one")
    writer.join()
    said = s.reload()
    assert "settings stay" in said and str(path) in said and "no regular file" in said, said
    assert s.get("/v1/models", timeout=10).status == 200 and s.metric("rodimus_config_reload_failures_total") == 1
    assert s.stop() == 0


def test_a_reload_takes_all_or_nothing_of_files_that_are_being_written(own_server, tmp_path):
    """A key file that is broken half of the time: where the settings stay, the certificate stays too."""
    keys = key_file(tmp_path, "one\n")
    pairs = [certificate(tmp_path, name) for name in ("a", "b")]
    cert, key = tmp_path / "now.crt", tmp_path / "now.key"

    def put(i):
        cert.write_bytes(pairs[i][0].read_bytes())
        key.write_bytes(pairs[i][1].read_bytes())
    put(0)
    s = own_server("--tls-cert", cert, "--tls-key", key, "--api-key-file", keys, key="one")
    stop = threading.Event()

    def write():
        for text in itertools.cycle(["one\n", "one broken\n"]):
            if stop.is_set():
                return
            (tmp_path / "next").write_text(text)
            os.replace(tmp_path / "next", keys)
    writer = threading.Thread(target=write)
    writer.start()
    served, results = 0, []
    try:
        for i in range(1, 120):
            put(i % 2)
            taken = "settings taken over" in s.reload()
            served = i % 2 if taken else served
            results.append(taken)
            assert served_certificate(s).strip() == pairs[served][0].read_text().strip(), f"reload {i}: the settings {'' if taken else 'do not '}hold"
    finally:
        stop.set()
        writer.join()
    assert set(results) == {True, False}


@pytest.mark.parametrize("flag", ["--config", "--api-key-file", "--tls-cert", "--tls-key"])
def test_a_file_that_is_too_large_is_named_and_holds_nobody_up(own_server, tmp_path, flag):
    """A log or an image that took its place: the loop reads it, and serves nobody until it has."""
    files = dict(zip(("--tls-cert", "--tls-key"), certificate(tmp_path, "one")))
    files["--api-key-file"], files["--config"] = key_file(tmp_path, "one\n"), tmp_path / "config.json"
    files["--config"].write_text("{}")
    s = own_server(*itertools.chain(*files.items()), key="one")
    with open(files[flag], "r+b") as file:
        file.truncate(64 << 20)
    said = s.reload()
    assert "settings stay" in said and str(files[flag]) in said and "4194304" in said, said
    assert s.get("/v1/models", timeout=10).status == 200
    assert s.stop() == 0
    done = command("serve", "--port", 0, *itertools.chain(*files.items()))
    assert done.returncode == 2 and f"{files[flag]} has more than 4194304 bytes" in done.stderr, done


def test_reloads_while_requests_come(own_server, tmp_path):
    """Keys come and go under load: each request is answered by what was true then, 200 or 401, and none is lost."""
    path = key_file(tmp_path, "stay name=stay\n")
    s = own_server("--api-key-file", path, "--admin-port", free_port())
    stop, statuses = threading.Event(), []

    def call(key):
        while not stop.is_set():
            statuses.append((key, s.post("/v1/completions", {"prompt": "a", "max_tokens": 2}, headers=bearer(key)).status))
            s.get("/metrics", port=s.admin_port, headers=bearer(key))
    threads = [threading.Thread(target=call, args=(k,)) for k in ("stay", "stay", "goes")]
    for t in threads:
        t.start()
    for i in range(20):
        path.write_text("stay name=stay\n" + ("goes name=goes\n" if i % 2 else ""))
        s.reload()
    stop.set()
    for t in threads:
        t.join()
    assert {st for k, st in statuses if k == "stay"} == {200}
    assert {st for k, st in statuses if k == "goes"} <= {200, 401}
    assert s.metrics(headers=bearer("stay"))['rodimus_key_requests_in_flight{key="stay"}'] == 0
    assert s.stop() == 0


# ---- what is left of old keys ----

def writable_memory(pid):
    """(address, bytes) of all that the process can write: its heaps, stacks and variables."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            begin, end = (int(x, 16) for x in span.split("-"))
            if rights.startswith("rw") and "[vvar]" not in line and end - begin < 1 << 30:
                try:
                    yield begin, os.pread(memory.fileno(), end - begin, begin)
                except OSError:
                    pass  # it has given it back meanwhile


def remains(pid, secrets):
    """{name: where a piece of 12 bytes or more of the secret is left}: freed memory loses its first bytes to the allocator."""
    found = {}
    for begin, bytes_ in writable_memory(pid):
        for name, secret in secrets.items():
            for at in range(0, len(secret) - 7, 4):
                where = bytes_.find(secret[at:at + 8].encode())
                if where >= 0:
                    found.setdefault(name, []).append((hex(begin + where), bytes_[max(0, where - 60):where + 60]))
    return found


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_of_exchanged_keys_nothing_is_left_in_memory(own_server, tmp_path, tls):
    """Each of the settings that holds keys, and what clients have sent: a dump of the process, or a fault that reads beyond a
    buffer, has none of the old ones. What others send with a wrong key is nobody's to keep either."""
    def secret():
        return "".join(random.choices(string.ascii_letters + string.digits, k=48))
    old = {"admin_key": secret(), "api_keys": secret(), "api_key_file": secret(), "wrong": secret()}
    new = {name: secret() for name in old}
    keys, config = tmp_path / "keys", tmp_path / "config.json"

    def write(of):
        keys.write_text(f"{of['api_key_file']} name=team\n")
        config.write_text(json.dumps({"admin_key": of["admin_key"], "api_keys": [of["api_keys"]], "api_key_file": str(keys)}))
        keys.chmod(0o600)
        config.chmod(0o600)
    write(old)
    flags = ["--tls-cert", certificate(tmp_path, "one")[0], "--tls-key", tmp_path / "one.key"] if tls else []
    s = own_server("--device", "null:5", "--config", config, *flags, key=old["api_keys"])
    try:
        next(writable_memory(s.process.pid))
    except PermissionError:
        pytest.skip("this user may not read /proc/PID/mem")

    def use(of):
        assert s.get("/metrics", headers=bearer(of["admin_key"])).status == 200
        for name in ("api_keys", "api_key_file"):
            assert s.post("/v1/completions", {"prompt": [300], "max_tokens": 2}, headers=bearer(of[name])).status == 200
            assert s.get("/v1/models", headers={"X-Api-Key": of[name]}).status == 200
        assert s.get("/v1/models", headers=bearer(of["wrong"])).status == 401
        s.raw(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nHost: y\r\nAuthorization: Bearer %s\r\n\r\n" % of["wrong"].encode(), timeout=10) if not tls else None
        s.raw(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: a\r\n\r\n" % of["wrong"].encode(), timeout=10) if not tls else None
    use(old)
    connection, response = s.open("POST", "/v1/completions", ENDLESS, headers=bearer(old["api_key_file"]))
    next(read_events(response))  # a stream that goes on under a key that is gone
    assert {"admin_key", "api_keys", "api_key_file"} <= {*remains(s.process.pid, old)}, "the search finds nothing"
    config.write_text(config.read_text()[:-3])  # a reload that fails holds them for a moment, too
    assert "settings stay" in s.reload()
    write(new)
    assert "settings taken over" in s.reload()
    found = remains(s.process.pid, old)
    assert not found, found
    connection.close()
    use(new)
