"""SIGHUP changes keys, certificates and the log level while requests run; all of it, or nothing."""
import itertools
import os
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
    assert "wait for a restart: slots" in s.reload() or "wait for a restart: slots" in s.log()
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
