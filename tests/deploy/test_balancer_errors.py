"""A balancer's own errors: clients of the API read them as they read the server's."""
import http.client
import http.server
import os
import re
import shutil
import socket
import subprocess
import threading
import time

import openai
import pytest

from replicas import DEPLOY, KINDS, Balancer, installed

SHORT = {"haproxy": ("haproxy.cfg", "timeout server 10m", "timeout server 1s"), "nginx": ("nginx.conf", "proxy_read_timeout 10m", "proxy_read_timeout 1s"),
         "caddy": ("Caddyfile", "dial_timeout 2s", "dial_timeout 2s\n\t\tresponse_header_timeout 1s"),
         "envoy": ("envoy.yaml", "timeout: 0s, idle_timeout: 600s }", "timeout: 0s, idle_timeout: 1s }")}


class Stub(http.server.BaseHTTPRequestHandler):
    """A replica that is ready and ends every POST in the way that `self.server.manner` says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(431 if self.server.manner == "answers 431" and not self.path.startswith("/health") else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.n_posts += 1
        if self.server.manner == "answers 431":
            return self.do_GET()
        if self.server.manner == "is silent":
            time.sleep(5)
        elif self.server.manner == "answers 503":
            body = b'{"error": {"message": "Loading.", "type": "unavailable", "param": null, "code": "loading"}}'
            self.send_response(503)
            for name, value in {"Content-Type": "application/json", "Content-Length": len(body), "Retry-After": 7}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)
            return
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture(params=KINDS)
def site(request, tmp_path):
    """(balancer, stub): all three addresses are the stub's. Timeouts of minutes are a second."""
    kind = request.param
    if not installed(kind):
        pytest.skip(f"{kind} is not installed")
    name, old, new = SHORT[kind]
    files = tmp_path / "files"
    shutil.copytree(DEPLOY, files)
    text = (files / name).read_text()
    assert old in text
    (files / name).write_text(text.replace(old, new))
    stub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    stub.manner, stub.n_posts, stub.daemon_threads = "closes", 0, True
    threading.Thread(target=stub.serve_forever, args=(0.05,), daemon=True).start()
    balancer = Balancer(kind, [f"127.0.0.1:{stub.server_address[1]}"] * 3, tmp_path, files=files)
    yield balancer, stub
    balancer.stop()
    stub.shutdown()
    stub.server_close()


def post(balancer):
    return balancer.ask("POST", "/v1/completions", '{"prompt": "Once"}', {"Content-Type": "application/json"})


def exchange(balancer, sent):
    with socket.create_connection(("127.0.0.1", balancer.port), timeout=10) as s:
        s.sendall(sent)
        response = http.client.HTTPResponse(s)
        response.begin()
        return response.status, response.headers, response.read()


def check(answer, status, type_, code, retry=True):
    assert answer.status == status, answer
    assert answer.header("Content-Type") == "application/json", answer
    error = answer.error
    assert sorted(error) == ["code", "message", "param", "type"] and (error["type"], error["param"], error["code"]) == (type_, None, code), answer
    assert re.fullmatch(r"[A-Z].*\.", error["message"]), error
    assert (answer.header("Retry-After") or "").isdigit() == retry, answer


def test_a_replica_that_breaks_off_is_replica_lost_and_no_other_gets_the_request(site):
    balancer, stub = site
    check(post(balancer), 502, "server_error", "replica_lost")
    assert stub.n_posts == 1, f"a POST was sent {stub.n_posts} times"


def test_a_replica_that_is_silent_is_replica_silent(site):
    balancer, stub = site
    stub.manner = "is silent"
    check(post(balancer), 504, "server_error", "replica_silent")
    assert stub.n_posts == 1, f"a POST was sent {stub.n_posts} times"


def test_a_replicas_own_error_passes_as_it_is(site):
    balancer, stub = site
    stub.manner = "answers 503"
    answer = post(balancer)
    check(answer, 503, "unavailable", "loading")
    assert answer.header("Retry-After") == "7" and stub.n_posts == 1, answer


def test_without_a_replica_clients_read_no_replica(site):
    balancer, stub = site
    stub.shutdown()
    stub.server_close()
    for wait in (0, 2):  # found out by a refused connection, and by the checks
        time.sleep(wait)
        check(post(balancer), 503, "unavailable", "no_replica")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{balancer.port}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model="tales", prompt="Once")
    assert caught.value.code == "no_replica" and str(caught.value) == "Error code: 503 - No replica takes requests."


def test_paths_that_the_balancer_keeps_back_are_not_found(site):
    balancer, _ = site
    check(balancer.ask("GET", "/metrics"), 404, "invalid_request_error", "not_found", retry=False)


def test_what_is_no_http_is_bad_framing(site):
    balancer, _ = site
    if balancer.kind not in ("nginx", "envoy"):
        pytest.skip("its parser answers before its configuration counts (deploy/BALANCERS.md)")
    head = b"GET / HTTP/1.1\r\nHost: a\r\n"
    its_own = {"nginx": head + b"X-Long: " + b"a" * 40000 + b"\r\n\r\n", "envoy": head + b"Transfer-Encoding: foo\r\n\r\n"}[balancer.kind]
    for sent in (b"GET / HTTP/1.1 HTTP/1.1\r\n\r\n", head + b"Content-Length: x\r\n\r\n", its_own):
        status, headers, body = exchange(balancer, sent)
        assert status == 400 and b'"code":"bad_framing"' in body and headers["Content-Type"] == "application/json", (sent[:60], body)


@pytest.mark.parametrize("sent, status, code", [(b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405, b"method_not_allowed"), (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 400, b"bad_framing"),
                                                (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: foo\r\n\r\n", 400, b"bad_framing")], ids=["TRACE", "HTTP/2.0", "Transfer-Encoding"])
def test_what_nginx_does_not_speak_is_answered_as_json(site, sent, status, code):
    balancer, _ = site
    if balancer.kind != "nginx":
        pytest.skip("the others pass it on, or answer before their configuration counts (deploy/BALANCERS.md)")
    answered, headers, body = exchange(balancer, sent)
    assert answered == status and b'"code":"%s"' % code in body and headers["Content-Type"] == "application/json", (answered, body)


@pytest.mark.parametrize("headers", [b"X-Long: " + b"a" * 100000 + b"\r\n", b"X-A: b\r\n" * 200], ids=["long", "many"])
def test_headers_that_envoy_finds_too_large_are_headers_too_large(site, headers):
    balancer, _ = site
    if balancer.kind != "envoy":
        pytest.skip("HAProxy and nginx answer 400, Caddy's parser before its configuration counts (deploy/BALANCERS.md)")
    status, answered, body = exchange(balancer, b"GET / HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\n")
    assert status == 431 and b'"code":"headers_too_large"' in body and answered["Content-Type"] == "application/json", (status, body)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_headers_that_a_replica_finds_too_large_are_headers_too_large_behind_caddy(site, method):
    balancer, stub = site
    if balancer.kind != "caddy":
        pytest.skip("nginx cannot replace this one alone; HAProxy refuses them itself (deploy/BALANCERS.md)")
    stub.manner = "answers 431"
    answer = balancer.ask(method, "/v1/models", "{}" if method == "POST" else None)
    check(answer, 431, "invalid_request_error", "headers_too_large", retry=False)


def test_a_body_that_nginx_finds_too_large_is_body_too_large(site):
    balancer, _ = site
    if balancer.kind != "nginx":
        pytest.skip("the others leave it to the replica")
    with socket.create_connection(("127.0.0.1", balancer.port), timeout=10) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n")
        response = http.client.HTTPResponse(s)
        response.begin()
        assert response.status == 413 and b'"code":"body_too_large"' in response.read()


def test_envoy_start_says_that_a_replica_wants_a_port(tmp_path):
    for value in ("localhost", "http://localhost:8080", "::1:8080", "[::1]", 'a":80'):
        ended = subprocess.run([f"{DEPLOY}/envoy-start"], env={**os.environ, "RUNTIME_DIRECTORY": str(tmp_path / "envoy"), "RODIMUS_1": "127.0.0.1:8080", "RODIMUS_2": value},
                               capture_output=True, text=True, timeout=20)
        assert (ended.returncode, ended.stderr) == (1, f'envoy-start: wants name:port or address:port and has "{value}".\n'), ended


@pytest.mark.parametrize("value", ["localhost", "", "localhost:", "localhost:http", "http://localhost:8080", "::1:8080", "[::1]"])
def test_nginx_start_says_that_a_replica_wants_a_port(value, tmp_path):
    ended = subprocess.run([f"{DEPLOY}/nginx-start"], env={**os.environ, "RUNTIME_DIRECTORY": str(tmp_path / "nginx"), "RODIMUS_1": "127.0.0.1:8080", "RODIMUS_2": value},
                           capture_output=True, text=True, timeout=20)
    assert (ended.returncode, ended.stderr) == (1, f'nginx-start: RODIMUS_2 wants name:port or address:port and has "{value}".\n'), ended
