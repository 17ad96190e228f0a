"""Who may call and from where: keys with their limits, the admin key and its listener, pages of other origins."""
import json
import re
import socket
import time

import pytest

from access import ENDLESS, bearer, certificate, key_file
from server import SLOWER, command, environment, free_port, read_events, status_of


# ---- keys ----

def test_no_route_but_health_and_the_page_without_a_key(own_server):
    s = own_server("--api-keys", "alpha,beta")
    routes = {("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/models/tales"),
              ("POST", "/tokenize"), ("POST", "/detokenize"), ("POST", "/apply-template"), ("GET", "/metrics"), ("GET", "/version"),
              ("GET", "/slots"), ("GET", "/openapi.json")}
    for method, path in routes:
        body = {} if method == "POST" else None
        for headers in ({}, bearer(""), bearer("alph"), bearer("alphaa"), {"X-Api-Key": "gamma"}, {"Authorization": "alpha"}):
            answer = s.ask(method, path, body, headers=headers)
            assert answer.status == 401 and answer.error["code"] == "invalid_api_key", (path, headers, answer)
        assert s.ask(method, path, body, headers=bearer("beta")).status in (200, 400), path
        assert s.ask(method, path, body, headers={"X-Api-Key": "alpha"}).status in (200, 400), path
    document = s.get("/openapi.json", headers=bearer("beta")).json
    for path, methods in document["paths"].items():
        for method in methods.keys() & {"get", "put", "post", "delete", "patch"}:
            status = s.ask(method.upper(), re.sub(r"{.*?}", "x", path), {} if method in ("put", "post", "patch") else None, headers={}).status
            assert status == (200 if path == "/" or path.startswith("/health") else 401), (method, path, status)
    assert s.get("/", headers={}).body == s.get("/", headers=bearer("beta")).body, "the page is the same for all"


def test_requests_in_flight_of_a_key_are_limited(own_server, tmp_path):
    s = own_server("--api-key-file", key_file(tmp_path, "one name=small requests=2\ntwo name=large\n"))
    streams = [s.open("POST", "/v1/completions", ENDLESS, headers=bearer("one")) for _ in range(2)]
    assert all(response.status == 200 for _, response in streams)
    answer = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=bearer("one"))
    assert answer.status == 429 and answer.error["code"] == "key_requests", answer
    assert int(answer.header("Retry-After")) >= 1
    assert s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=bearer("two")).status == 200
    metrics = s.metrics(headers=bearer("two"))
    assert metrics['rodimus_key_requests_in_flight{key="small"}'] == 2
    assert metrics['rodimus_key_rejected_total{key="small"}'] == 1
    for connection, _ in streams:
        connection.close()
    s.wait_metric('rodimus_key_requests_in_flight{key="small"}', lambda n: n == 0, headers=bearer("two"))
    assert s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=bearer("one")).status == 200


def test_tokens_a_minute_of_a_key_are_limited(own_server, tmp_path):
    s = own_server("--api-key-file", key_file(tmp_path, "one name=small tokens_per_minute=60\n"), key="one")
    ask = {"prompt": [300] * 20, "max_tokens": 20, "ignore_eos": True}
    assert s.post("/v1/completions", ask).status == 200  # 40 of 60
    answer = s.post("/v1/completions", {**ask, "prompt": [300] * 30})
    assert answer.status == 429 and answer.error["code"] == "key_tokens", answer
    wait = int(answer.header("Retry-After"))
    assert 25 <= wait <= 30, wait  # it may use 50, of which 30 are missing, and one a second comes
    assert s.post("/v1/completions", {**ask, "prompt": [300] * 5, "max_tokens": 1}).status == 200
    metrics = s.metrics()
    assert metrics['rodimus_key_tokens_total{key="small",kind="prompt"}'] == 25
    assert metrics['rodimus_key_tokens_total{key="small",kind="completion"}'] == 21


def test_an_answer_uses_the_minute_up_while_it_comes(own_server, tmp_path):
    """Nobody else comes in from then on, but what has begun goes on to its end; what it owes a changed limit forgets, no other reload."""
    path = key_file(tmp_path, "one name=small tokens_per_minute=60\n")
    s = own_server("--device", "null:5", "--api-key-file", path, key="one")
    one = {"prompt": [300], "max_tokens": 1, "ignore_eos": True}
    connection, response = s.open("POST", "/v1/completions", {**one, "max_tokens": 500, "stream": True}, headers=bearer("one"))
    events = read_events(response)
    for _ in range(100):
        next(events)
    answer = s.post("/v1/completions", one)
    assert s.metric("rodimus_slots_used") == 1, "the answer had ended"
    assert answer.status == 429 and answer.error["code"] == "key_tokens", answer
    assert s.metrics()['rodimus_key_tokens_total{key="small",kind="completion"}'] >= 100
    assert len(list(events)) >= 400
    connection.close()
    metrics = s.metrics()
    assert metrics['rodimus_key_tokens_total{key="small",kind="completion"}'] == 500
    s.reload()
    answer = s.post("/v1/completions", one)
    assert answer.status == 429 and 430 - 20 * SLOWER < int(answer.header("Retry-After")) <= 442, answer
    path.write_text("one name=small tokens_per_minute=61\n")
    s.reload()
    assert s.post("/v1/completions", one).status == 200


def test_a_request_that_the_queue_refuses_takes_no_tokens_of_its_key(own_server, tmp_path):
    """Its choices are more than the places that its key may have, which is known when it is read and the key was asked."""
    s = own_server("--slots", 1, "--max-queue-requests", 4, "--device", "null:5", "--api-key-file",
                   key_file(tmp_path, "one name=small tokens_per_minute=60\ntwo name=other\n"), key="one")
    connection, response = s.open("POST", "/v1/completions", {**ENDLESS, "prompt": [300]}, headers=bearer("two"))
    next(read_events(response))
    ask = {"prompt": [300] * 50, "max_tokens": 1, "ignore_eos": True}
    for _ in range(3):
        answer = s.post("/v1/completions", {**ask, "n": 4})
        assert answer.status == 429 and answer.error["code"] == "queue_full", answer
    metrics = s.metrics()
    assert metrics['rodimus_key_tokens_total{key="small",kind="prompt"}'] == 0 and metrics["rodimus_prompt_tokens_total"] == 1
    connection.close()
    response.close()
    s.wait_metric("rodimus_slots_used", lambda n: n == 0)
    answer = s.post("/v1/completions", ask)
    assert answer.status == 200, answer
    metrics = s.metrics()
    assert metrics['rodimus_key_tokens_total{key="small",kind="prompt"}'] == 50 and metrics["rodimus_prompt_tokens_total"] == 51


def test_log_lines_name_the_key_and_never_hold_it(own_server, tmp_path):
    s = own_server("--api-key-file", key_file(tmp_path, "s3cret-one name=search\n"), "--admin-key", "s3cret-two", "--log-level",
                   "debug", key="s3cret-one")
    assert s.post("/v1/completions", {"prompt": "s3cret-text", "max_tokens": 1}).status == 200
    assert s.post("/v1/completions", {"prompt": "s3cret-text", "max_tokens": 1}, headers=bearer("s3cret-wrong")).status == 401
    assert s.get("/metrics", headers=bearer("s3cret-two")).status == 200
    assert s.get("/metrics", headers=bearer("s3cret-one")).status == 401
    s.stop()
    assert "key=search" in s.log() and "outcome=invalid_api_key" in s.log(), s.log()
    assert "s3cret" not in s.log()


def test_others_may_not_read_the_key_file(own_server, tmp_path):
    path = key_file(tmp_path, "one\n")
    assert "chmod 600" not in own_server("--api-key-file", path, key="one").log()
    path.chmod(0o644)
    assert "chmod 600" in own_server("--api-key-file", path, key="one").log()


def test_others_may_not_read_settings_that_hold_keys(own_server, tmp_path):
    """One line that names file and mode, only where a key is in it."""
    path = tmp_path / "config.json"
    for text, mode, warned in (('{"admin_key": "boss"}', 0o640, 1), ('{"api_keys": ["one"]}', 0o644, 1), ('{"api_keys": ["one"]}', 0o600, 0),
                               ('{"log_level": "info"}', 0o644, 0)):
        path.write_text(text)
        path.chmod(mode)
        log = own_server("--config", path, key="one").log()
        lines = [line for line in log.splitlines() if "chmod 600" in line]
        assert len(lines) == warned, (text, log)
        assert all(str(path) in line and f"mode {mode:03o}" in line for line in lines), lines


def test_an_admin_key_that_is_an_api_key_ends_the_start(tmp_path):
    path = key_file(tmp_path, "s3cret-one name=search\n")
    done = command("serve", "--port", 0, "--api-key-file", path, "--admin-key", "s3cret-one")
    assert done.returncode == 2 and "admin_key" in done.stderr and "'search'" in done.stderr and "s3cret" not in done.stderr, done


def test_a_fault_of_keys_says_where_they_come_from(own_server, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"api_keys": ["s3cret-one"], "admin_key": "s3cret-two"}')
    path.chmod(0o600)
    done = command("serve", "--port", 0, env={**environment(), "RODIMUS_API_KEYS": "s3cret-one,s3cret-one"})
    assert done.returncode == 2 and "api_keys (environment variable RODIMUS_API_KEYS): " in done.stderr, done
    assert "twice" in done.stderr and "s3cret" not in done.stderr, done
    s = own_server("--config", path, key="s3cret-one")
    path.write_text('{"api_keys": ["s3cret-one"], "admin_key": "s3cret-one"}')
    said = s.reload()
    assert f"admin_key (file {path}): " in said and "'key-1'" in said and "s3cret" not in said, said


def test_keys_that_were_not_filled_in_end_the_start(tmp_path):
    """compose and CI make empty variables of what nobody set: that must not open the server that a file had closed."""
    config = tmp_path / "config.json"
    config.write_text('{"api_keys": ["one"]}')
    config.chmod(0o600)
    for name in ("RODIMUS_API_KEYS", "RODIMUS_API_KEY_FILE", "RODIMUS_ADMIN_KEY"):
        done = command("serve", "--port", 0, "--config", config, env={**environment(), name: ""})
        assert done.returncode == 2 and name in done.stderr and "is empty" in done.stderr, done


@pytest.mark.parametrize("text,word", [("", "contains no key"), ("secret1 colour=red\n", "line 1"), ("secret1\nsecret1\n", "line 2")])
def test_a_bad_key_file_ends_the_start(tmp_path, text, word):
    done = command("serve", "--port", 0, "--api-key-file", key_file(tmp_path, text))
    assert done.returncode == 2 and word in done.stderr and "secret1" not in done.stderr, done


# ---- the admin key and its listener ----

def test_the_admin_key_opens_admin_routes_and_nothing_else(own_server):
    s = own_server("--api-keys", "user", "--admin-key", "boss")
    for path in ("/metrics", "/slots"):
        assert s.get(path, headers=bearer("boss")).status == 200
        assert s.get(path, headers=bearer("user")).status == 401
        assert s.get(path, headers={}).status == 401
    assert s.get("/v1/models", headers=bearer("boss")).status == 401
    assert s.get("/v1/models", headers=bearer("user")).status == 200


def test_the_admin_key_alone_protects_only_the_admin_routes(own_server):
    s = own_server("--admin-key", "boss")
    assert s.get("/metrics", headers={}).status == 401
    assert s.get("/metrics", headers=bearer("boss")).status == 200
    assert s.complete(max_tokens=1)


def test_the_admin_port_serves_health_and_admin_routes_alone(own_server):
    s = own_server("--admin-port", free_port(), "--admin-key", "boss")
    assert s.admin_port
    for path in ("/health", "/health/live", "/health/ready"):
        assert s.get(path, port=s.admin_port).status == 200
    for path in ("/metrics", "/slots", "/version"):
        assert s.get(path, port=s.admin_port).status == 401
        assert s.get(path, port=s.admin_port, headers=bearer("boss")).status == 200
    assert s.get("/v1/models", port=s.admin_port, headers=bearer("boss")).status == 404
    assert s.post("/v1/completions", {"prompt": "a"}, port=s.admin_port, headers=bearer("boss")).status == 404
    s.complete(max_tokens=3)
    main, admin = s.metrics(headers=bearer("boss")), s.metrics(headers=bearer("boss"), port=s.admin_port)
    assert admin["rodimus_completion_tokens_total"] == main["rodimus_completion_tokens_total"] == 3
    assert s.stop() == 0


def test_states_move_through_the_admin_port(own_server):
    """While streams run on the main port; a client that leaves in the middle costs nothing."""
    s = own_server("--admin-port", free_port(), "--admin-key", "boss")
    boss = bearer("boss")
    ask = {"prompt": "The fox", "max_tokens": 5, "temperature": 0, "session_id": "one", "session_create": True}
    assert s.post("/v1/completions", ask).status == 200
    stream, _ = s.open("POST", "/v1/completions", ENDLESS)
    assert s.get("/v1/sessions/one/state", port=s.admin_port).status == 401
    for i in range(10):
        got = s.get("/v1/sessions/one/state", port=s.admin_port, headers=boss)
        assert got.status == 200 and got.body[:8] == b"RODSTATE"
        put = s.ask("PUT", f"/v1/sessions/copy-{i}/state", got.body, {"Content-Type": "application/octet-stream", **boss}, port=s.admin_port)
        assert put.status == 200, put
        leaving, _ = s.open("GET", "/v1/sessions/one/state", headers=boss, port=s.admin_port)
        leaving.close()
    stream.close()
    answers = [s.post("/v1/completions", {"prompt": " said", "max_tokens": 8, "temperature": 0, "session_id": name}).json["choices"][0]["text"]
               for name in ("one", "copy-0", "copy-9")]
    assert answers[0] == answers[1] == answers[2] != ""
    assert s.stop() == 0

def test_the_admin_port_answers_while_all_connections_are_taken(own_server):
    s = own_server("--admin-port", free_port(), "--connection-limit", 8)
    held = [s.socket() for _ in range(40)]
    time.sleep(0.3)
    assert s.get("/health/ready", port=s.admin_port, timeout=30).status == 200  # those who hold the connections may for 60 s
    assert s.metric("rodimus_http_connections", port=s.admin_port, timeout=30) == 8
    for c in held:
        c.close()


def test_half_requests_do_not_block_the_admin_port(own_server):
    """It takes 64 connections. Where there are more, the one that has said nothing whole for longest goes, not the probe."""
    s = own_server("--admin-port", free_port())
    held = []
    for _ in range(200):
        c = socket.create_connection((s.host, s.admin_port), timeout=30)
        c.sendall(b"GET /health HTTP/1.1\r\nHost:")
        held.append(c)
        if len(held) % 50 == 0:
            for path in ("/health/ready", "/metrics"):
                assert s.get(path, port=s.admin_port, timeout=30).status == 200, (len(held), path)
    ended = 0
    for c in held:
        c.settimeout(0.02)
        try:
            ended += c.recv(100) == b""
        except TimeoutError:
            pass
        except ConnectionResetError:
            ended += 1
    assert 130 <= ended < 200, ended  # the newest are held for as long as idle_timeout_ms says
    held[-1].settimeout(5)
    held[-1].sendall(b" x\r\n\r\n")
    assert held[-1].recv(1000).startswith(b"HTTP/1.1 200 ")
    for c in held:
        c.close()


def test_who_reads_no_answer_keeps_no_probe_from_the_admin_port(own_server):
    s = own_server("--admin-port", free_port())
    held = []
    for _ in range(70):
        c = socket.create_connection((s.host, s.admin_port))
        c.setblocking(False)
        try:
            c.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 3000)
        except OSError:
            pass
        held.append(c)
    for _ in range(5):
        assert s.get("/health/ready", port=s.admin_port, timeout=30).status == 200
    for c in held:
        c.close()


def test_an_answer_of_the_admin_port_is_not_cut_for_others(own_server):
    """States go out through it; their connections are at work, and stay."""
    s = own_server("--admin-port", free_port())
    assert s.post("/v1/sessions", {"id": "one"}).status == 200
    s.complete("Once upon a time", 3, session_id="one")
    kept, response = s.open("GET", "/v1/sessions/one/state", port=s.admin_port)
    flood = [socket.create_connection((s.host, s.admin_port), timeout=30) for _ in range(150)]
    assert len(response.read()) > 500000 and response.status == 200
    for c in (kept, *flood):
        c.close()


def others_reach(port):
    """Whether a connection to this machine's other loopback address is taken: what listens on 127.0.0.1 alone refuses it."""
    try:
        socket.create_connection(("127.0.0.2", port), timeout=5).close()
        return True
    except ConnectionRefusedError:
        return False


def test_the_admin_port_is_on_loopback_unless_it_is_told_where(own_server, tmp_path):
    """It speaks no TLS, and the admin key goes over it: who opens the server to all does not open this."""
    s = own_server("--host", "0.0.0.0", "--admin-port", free_port())
    assert others_reach(s.port) and not others_reach(s.admin_port)
    assert s.get("/health", port=s.admin_port).status == 200
    assert "without TLS" not in s.log()
    s = own_server("--admin-host", "0.0.0.0", "--admin-port", free_port())
    assert not others_reach(s.port) and others_reach(s.admin_port)
    cert, key = certificate(tmp_path, "one")
    s = own_server("--admin-host", "0.0.0.0", "--admin-port", free_port(), "--tls-cert", cert, "--tls-key", key)
    assert "admin_port" in s.log() and "without TLS" in s.log()


def warnings(server):
    """Those that no variable of the tests has made."""
    return [line for line in server.log().splitlines() if " warn " in line and "RODIMUS_TEST_" not in line]


def test_the_log_warns_of_ports_that_anybody_on_the_network_may_use(own_server):
    """Of the main one and of the admin port, each for what stands open there."""
    whole, states = "No API keys: anyone who reaches 0.0.0.0", "anyone who reaches admin_port on 0.0.0.0"
    beyond, admin = ("--host", "0.0.0.0"), ("--admin-host", "0.0.0.0")
    for flags, warned in (((), ()), (beyond, (whole,)), (admin, (states,)), (beyond + admin, (whole, states)),
                          (admin + ("--admin-key", "boss"), ()), (admin + ("--api-keys", "one"), ()),
                          (beyond + admin + ("--admin-key", "boss"), (whole,))):
        s = own_server("--admin-port", free_port(), *flags)
        lines = warnings(s)
        assert len(lines) == len(warned) and all(text in line for text, line in zip(warned, lines)), (flags, warned, lines)
        keyed = {"--admin-key", "--api-keys"} & set(flags)
        assert s.get("/slots", port=s.admin_port).status == (401 if keyed else 200), flags
    s = own_server(*admin)  # and no port there
    assert not warnings(s)


def test_an_admin_port_in_use_ends_the_start():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = command("serve", "--port", 0, "--admin-port", taken.getsockname()[1])
    assert done.returncode == 1 and "admin_port" in done.stderr and "in use" in done.stderr, done


# ---- other origins ----

def test_no_page_of_another_origin_may_call_by_default(server):
    answer = server.get("/v1/models", headers={"Origin": "http://page.example"})
    assert answer.status == 200 and not [k for k, _ in answer.headers if k.lower().startswith("access-control")]
    answer = server.ask("OPTIONS", "/v1/completions", headers={"Origin": "http://page.example",
                                                              "Access-Control-Request-Method": "POST"})
    assert answer.status == 405


def test_listed_origins_may_call(own_server):
    s = own_server("--cors-origins", "https://a.example,https://b.example", "--api-keys", "k")
    question = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    answer = s.ask("OPTIONS", "/v1/completions", headers={"Origin": "https://b.example", **question})
    assert answer.status == 204 and answer.body == b"", answer
    assert answer.header("Access-Control-Allow-Origin") == "https://b.example"
    assert "POST" in answer.header("Access-Control-Allow-Methods")
    assert "authorization" in answer.header("Access-Control-Allow-Headers").lower()
    answer = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"Origin": "https://a.example", **bearer("k")})
    assert answer.status == 200 and answer.header("Access-Control-Allow-Origin") == "https://a.example"
    assert answer.header("Vary") == "Origin"
    denied = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"Origin": "https://a.example"})
    assert denied.status == 401 and denied.header("Access-Control-Allow-Origin") == "https://a.example"
    for origin in ("https://c.example", "https://a.example.evil", "null", "http://a.example"):
        assert s.get("/v1/models", headers={"Origin": origin, **bearer("k")}).header("Access-Control-Allow-Origin") is None
        assert s.ask("OPTIONS", "/v1/models", headers={"Origin": origin, **question}).status == 405


def test_a_foreign_page_cannot_post_without_a_type(own_server):
    """What a browser sends without asking first: a body of plain bytes (a Blob, a beacon) has no Content-Type, nor has a POST without a body."""
    s = own_server("--cors-origins", "https://a.example")
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    for path, sent in (("/v1/completions", body), ("/v1/sessions", b"{}"), ("/v1/sessions", None)):
        def post(**headers):
            lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
            length = "" if sent is None else f"Content-Length: {len(sent)}\r\n"
            return status_of(s.raw(f"POST {path} HTTP/1.1\r\nHost: {s.host}:{s.port}\r\nConnection: close\r\n{lines}{length}\r\n".encode() + (sent or b"")))
        for origin in ("http://page.example", "null", "http://127.0.0.1", f"http://127.0.0.1:{s.port + 1}", f"http://{s.host}:{s.port}.example", ""):
            assert post(Origin=origin) == 415, (path, sent, origin)
        for headers in ({}, {"Origin": f"http://{s.host}:{s.port}"}, {"Origin": "https://a.example"},
                        {"Origin": "http://page.example", "Content_Type": "application/json"}):  # the browser asks before it sends this
            assert post(**headers) == 200, (path, sent, headers)
    assert len(s.get("/v1/sessions").json["data"]) == 8


def browser_sends(answer, names):
    """The check of a browser (fetch, without cookies): each name is listed, or a star is, which stands for all but Authorization."""
    allowed = {name.strip().lower() for name in answer.header("Access-Control-Allow-Headers").split(",")}
    return all(n in allowed or ("*" in allowed and n != "authorization") for n in names)


def test_pages_with_the_openai_package_may_call(own_server):
    """openai for JavaScript puts headers of its own on each request, more with each version; and it asks again after a 408 unless it
    can read x-should-retry."""
    s = own_server("--cors-origins", "https://a.example", "--session-header", "X-Talk")
    names = ["authorization", "content-type", "x-stainless-arch", "x-stainless-helper-method", "x-stainless-lang", "x-stainless-os",
             "x-stainless-package-version", "x-stainless-retry-count", "x-stainless-runtime", "x-stainless-timeout", "openai-organization",
             "x-talk", "x-tenant"]
    answer = s.ask("OPTIONS", "/v1/chat/completions", headers={"Origin": "https://a.example", "Access-Control-Request-Method": "POST",
                                                               "Access-Control-Request-Headers": ",".join(names)})
    assert answer.status == 204 and browser_sends(answer, names), answer
    answer = s.get("/v1/models", headers={"Origin": "https://a.example"})
    exposed = answer.header("Access-Control-Expose-Headers").lower()
    assert all(name in exposed for name in ("x-request-id", "retry-after", "x-should-retry")), exposed


def test_a_star_is_every_origin(own_server):
    s = own_server("--cors-origins", "*")
    assert s.get("/v1/models", headers={"Origin": "https://any.example"}).header("Access-Control-Allow-Origin") == "*"
