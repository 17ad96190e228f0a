"""What a server meets in years, in a minute: clients that vanish, reset, stall or half-close at each stage, no memory, no file
descriptors, no disk, a wall clock that jumps, a process that stands still. Nothing is lost but what had to be, nothing hangs."""
import contextlib
import ctypes
import http.client
import json
import mmap
import os
import random
import resource
import signal
import socket
import struct
import threading
import time

import pytest

import server
from server import FREED_BYTES, SLOWER, Server, free_port, read_events

ENDLESS = json.dumps({"prompt": [300] * 8, "max_tokens": 10000000, "ignore_eos": True, "stream": True}).encode()
SHORT = json.dumps({"prompt": [300], "max_tokens": 2, "ignore_eos": True}).encode()


def request(body):
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


# ---- clients, at each stage in each way ----

STAGES = {"connected": b"", "in the request line": b"POST /v1/comp", "in the headers": request(ENDLESS)[:60],
          "in the body": request(ENDLESS)[:-20], "queued": request(ENDLESS), "streaming": request(ENDLESS), "answered": request(SHORT)}
MANNERS = ("vanish", "reset", "stall", "half-close")


@pytest.fixture(scope="module")
def strict():
    """Two slots, little patience, small buffers: who does not read is known after a second, and a busy machine takes less from who reads."""
    s = Server("--device", "null:3", "--slots", 2, "--idle-timeout-ms", 1000, "--stream-buffer-bytes", 65536, name="hardship")
    s.complete([300], 1)
    s.files = s.n_files()
    yield s
    assert s.stop() == 0


def leave(client, manner):
    if manner == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if manner == "half-close":
        client.shutdown(socket.SHUT_WR)
    elif manner != "stall":
        client.close()


def read_on(response):
    try:
        while response.read1(65536):
            pass
    except (OSError, http.client.HTTPException):
        pass


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_client_leaves(strict, stage, manner):
    s, clients, busy = strict, [], []
    if stage == "queued":
        for _ in range(2):  # these read, and so keep their slots
            busy.append(s.open("POST", "/v1/completions", ENDLESS))
        sockets = [socket.socket(fileno=os.dup(response.fileno())) for _, response in busy]
        readers = [threading.Thread(target=read_on, args=(response,)) for _, response in busy]
        for t in readers:
            t.start()
    for _ in range(6 if stage != "streaming" else 2):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(5)
        client.connect((s.host, s.port))
        client.sendall(STAGES[stage])
        clients.append(client)
    if stage == "queued":
        s.wait_metric("rodimus_queue_requests", lambda n: n == 6)
    if stage in ("streaming", "answered"):
        for client in clients:
            assert client.recv(100)
    for client in clients:
        leave(client, manner)
    # Who stalls in the queue has a place there, as long as nobody can see that he is away.
    if stage == "queued" and manner == "stall":
        assert s.metric("rodimus_queue_requests") == 6
        for client in clients:
            client.close()
    began = time.monotonic()
    if busy:
        s.wait_metric("rodimus_queue_requests", lambda n: n == 0)
        assert s.metric("rodimus_slots_used") == 2, "those who read were not touched"
        for socket_ in sockets:
            socket_.shutdown(socket.SHUT_RDWR)
        for t in readers:
            t.join(5)
        for socket_ in sockets:
            socket_.close()
        for connection, response in busy:
            response.close()
            connection.close()
    s.wait_metric("rodimus_slots_used", lambda n: n == 0)
    s.wait_metric("rodimus_http_connections", lambda n: n <= 2)  # the one that asks, and one that is closing
    s.wait_metric("rodimus_http_streams", lambda n: n == 0)
    while s.n_files() > s.files + 2:
        assert time.monotonic() - began < 60, (s.n_files(), s.files)
        time.sleep(0.02)
    for client in clients:
        client.close()
    assert s.complete([300], 1)["choices"][0]["finish_reason"] == "length"


# ---- no file descriptors ----

def test_no_file_descriptors_are_left(own_server):
    """The limit is reached with streams open: they go on, the loop does not spin, and later connections work again."""
    s = own_server("--device", "null:20")
    connection, response = s.open("POST", "/v1/completions", {"prompt": [300], "max_tokens": 150, "ignore_eos": True, "stream": True})
    files = s.n_files()
    resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (files + 6, files + 6))
    crowd = [s.socket() for _ in range(40)]
    time.sleep(0.5)
    before = s.busy_s()
    time.sleep(1)
    assert s.busy_s() - before < 0.5, "it spins"
    assert list(read_events(response))[-1].data == "[DONE]"
    connection.close()
    for c in crowd:
        c.close()
    deadline = time.monotonic() + 10
    while True:
        try:
            assert s.complete([300], 1)
            break
        except OSError:
            assert time.monotonic() < deadline
    s.wait_metric("rodimus_http_connections", lambda n: n <= 2)
    assert s.stop() == 0


def test_a_low_limit_of_files_lowers_the_connections(own_server):
    """The limit that the shell gave; without the right to raise it (root has that) the log says what it means."""
    prctl = ctypes.CDLL(None).prctl

    def limit():
        prctl(24, 24, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_RESOURCE
        resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
    s = own_server(preexec_fn=limit)
    assert "connection_limit lowered from 4096" in s.log()
    crowd = [s.socket() for _ in range(300)]
    time.sleep(0.3)
    for c in crowd:
        c.close()
    s.wait_metric("rodimus_http_connections", lambda n: n <= 2)
    assert s.complete(max_tokens=1) and s.stop() == 0


@pytest.mark.parametrize("n_files", [40, 64, 100])
def test_a_very_low_limit_of_files_leaves_some_for_probes_and_sessions(own_server, tmp_path, n_files):
    """However many connect: the admin port answers, or a supervisor would end the process, and turns are written."""
    prctl = ctypes.CDLL(None).prctl

    def limit():
        prctl(24, 24, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, n_files))
    s = own_server("--device", "cpu", "--admin-port", free_port(), "--state-dir", tmp_path / "states", preexec_fn=limit)  # a GPU's driver takes some 30 files
    assert s.get("/health/live", port=s.admin_port).status == 200
    first = http.client.HTTPConnection(s.host, s.port, timeout=20 * SLOWER)
    first.connect()
    crowd = [s.socket() for _ in range(n_files + 20)]
    time.sleep(0.3)
    assert s.get("/health/live", port=s.admin_port, timeout=5).status == 200
    for i in range(3):
        first.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 2, "session_id": f"s{i}", "session_create": True}),
                      {"Content-Type": "application/json"})
        answer = first.getresponse()
        assert answer.status == 200 and len(list((tmp_path / "states").rglob("*"))) > i, answer.read()
        answer.read()
    for c in [first, *crowd]:
        c.close()
    s.wait_metric("rodimus_http_connections", lambda n: n <= 2)
    assert s.complete(max_tokens=1) and s.stop() == 0


# ---- no threads ----

def test_threads_run_out_at_the_start_or_never(own_server):
    """A limit of processes, a container's or a user's: what starts also takes long bodies, for which libuv has threads of its own."""
    long = {"prompt": [300] * 20000, "max_tokens": 2}
    n_started = 0
    for most in range(40):
        s = own_server("--device", "null", "--slots", 2, "--drain-notice-ms", 0, env=server.shimmed(RODIMUS_TEST_THREADS=str(most)), wait=False)
        s.ready.wait(60 * SLOWER)
        if s.port is None:
            assert s.wait() == 1 and "thread" in s.log(), (most, s.log())
            continue
        assert s.post("/v1/completions", long).status == 200, (most, s.process.poll())
        assert s.stop() == 0
        n_started += 1
        if n_started == 2:
            return
    raise AssertionError("it needs more than 40 threads")


# ---- no disk ----

def test_a_log_that_cannot_be_written_stops_nothing(own_server):
    with open("/dev/full", "w") as full:
        s = own_server("--log-level", "debug", stderr=full)
        for _ in range(20):
            s.complete(max_tokens=2)
        assert s.get("/nothing").status == 404
        assert s.stop() == 0


def test_a_log_file_that_was_full_goes_on_with_a_line_of_its_own(own_server):
    """A disk takes the beginning of a line and no more; what comes when there is room again is not stuck to it."""
    s = own_server("--log-format", "json")
    s.get("/v1/models")
    s.wait_log('"/v1/models"')
    before, n_before = resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE), len(s.log().splitlines())
    limit = os.path.getsize(s.log_path) + 40
    resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (limit, before[1]))
    for _ in range(5):
        s.get("/v1/models")
    s.wait_metric("rodimus_log_lines_dropped_total", lambda n: n >= 5)
    resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, before)
    assert s.stop() == 0
    torn, told, *rest = s.log().splitlines()[n_before:]
    assert len(torn) == 40 and not told.startswith(torn), (torn, told)
    assert "log lines: the reader was too slow" in json.loads(told)["message"], told
    assert [json.loads(line) for line in rest]


def test_a_log_that_nobody_reads_any_more_stops_nothing(own_server):
    reading, writing = os.pipe()
    s = own_server(stderr=writing)
    os.close(writing)
    s.complete(max_tokens=2)
    os.close(reading)
    for _ in range(5):
        s.complete(max_tokens=2)
    assert s.stop() == 0


@pytest.mark.parametrize("full_at_start", [False, True])
def test_a_pipe_that_is_open_and_not_read_stops_nothing(own_server, full_at_start):
    """stderr and stdout are pipes that somebody holds open and does not read: requests, the admin port, the end."""
    reading, writing = os.pipe()
    if full_at_start:
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"." * 4096)
        os.set_blocking(writing, True)
    port, admin_port = free_port(), free_port()
    s = own_server("--port", port, "--admin-port", admin_port, "--log-level", "debug", stderr=writing, wait=False,
                   stdout=writing if full_at_start else None)
    s.port = port
    began = time.monotonic()
    while True:
        with contextlib.suppress(OSError):
            if s.get("/health/ready", timeout=10).status == 200:
                break
        assert time.monotonic() - began < server.START_S * SLOWER
        time.sleep(0.05)
    for _ in range(1500):
        assert s.get("/version", timeout=10).status == 200
    assert s.get("/health", port=admin_port, timeout=10).status == 200
    lost = s.metric("rodimus_log_lines_dropped_total", timeout=10)
    assert lost > 500, lost
    os.set_blocking(reading, False)
    text = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            text += os.read(reading, 65536)
    s.get("/version")
    time.sleep(0.5)
    text = os.read(reading, 65536).decode()
    assert "log lines: the reader was too slow" in text, text
    assert s.stop() == 0
    os.close(writing)
    os.close(reading)


# ---- no memory, and a wrong clock: the shim ----

class Shim:
    """tests/api/shim.c in the server, and the memory that it takes its orders from."""

    def __init__(self, folder):
        path = folder / "orders"
        path.write_bytes(bytes(16))
        self.env = server.shimmed(RODIMUS_TEST_SHIM=str(path))
        with open(path, "r+b") as f:
            self.orders = mmap.mmap(f.fileno(), 16)

    def fail_one_in(self, n):
        self.orders[0:4] = struct.pack("I", n)

    def n_failed(self):
        return struct.unpack("I", self.orders[4:8])[0]

    def skew(self, seconds):
        self.orders[8:16] = struct.pack("q", seconds)


@pytest.fixture
def shim(tmp_path):
    return Shim(tmp_path)


LOOK = {"name": "look"}  # a tool, and a call of it


def ask_somehow(s, rng):
    """One request of any kind; the status, or None where the connection ended without one."""
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    bodies = [("/v1/completions", {"prompt": "The fox", "max_tokens": 5, "n": 2, "logprobs": 2}),
              ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 5, "stream": True, "stop": ["x", "y"], "echo": True}),
              ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "response_format": schema}),
              ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "tool_calls": [{"function": LOOK}]}], "max_tokens": 60,
                                        "n": 2, "tools": [{"type": "function", "function": LOOK}], "tool_choice": "required", "stream": rng.random() < 0.5}),
              ("/v1/responses", {"input": "Hello", "max_output_tokens": 60, "tools": [{"type": "function", **LOOK}], "tool_choice": "required",
                                 "stream": rng.random() < 0.5}),
              ("/tokenize", {"prompt": "Once upon a time", "with_pieces": True}), ("/v1/completions", {"prompt": 5.5}),
              ("/v1/completions", {"prompt": [5], "max_tokens": 1, "user": "u" * 20000}),
              ("/v1/completions", {"prompt": "And", "max_tokens": 4, "session_id": f"s{rng.randrange(8)}", "session_create": True,
                                   "stream": rng.random() < 0.5}),
              (f"/v1/sessions/s{rng.randrange(8)}/fork", {"id": f"f{rng.randrange(1000)}"}),
              ("/v1/responses", {"input": "Hello", "max_output_tokens": 4, "instructions": "Be short.", "metadata": {"a": "b"}}),
              ("/v1/responses", {"input": [{"role": "user", "content": "Hello"}], "max_output_tokens": 4, "stream": True})]
    try:
        if rng.random() < 0.3:
            return s.get(rng.choice(["/metrics", "/health", "/v1/models", "/nothing", "/slots", "/openapi.json", "/v1/sessions", "/v1/sessions/s1"]),
                         timeout=20).status
        path, body = rng.choice(bodies)
        return s.post(path, body, timeout=20).status
    except TimeoutError:
        raise
    except Exception:  # closed in the middle, or an answer that is cut: what a client must live with then
        return None


def test_memory_runs_out_in_the_loop_thread(own_server, shim, tmp_path):
    """Some allocations fail, of every kind: a request may fail, no client hangs, the process lives; then all is as before."""
    s = own_server("--slots", 4, "--state-dir", tmp_path / "states", "--state-host-bytes", 16 << 20, env=shim.env)
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    crowd = [s.socket() for _ in range(60)]  # libuv's own table of descriptors grows by abort()
    for i in range(8):
        s.complete("Once", 2, session_id=f"s{i}", session_create=True)
    for _ in range(40):
        ask_somehow(s, rng)
    for c in crowd:
        c.close()
    time.sleep(0.2)
    files, rss = s.n_files(), s.rss_bytes()
    statuses = []

    def clients():
        mine = random.Random(rng.random())
        for _ in range(60):
            statuses.append(ask_somehow(s, mine))
    for one_in in (400, 100, 25, 7):
        shim.fail_one_in(one_in)
        threads = [threading.Thread(target=clients) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        shim.fail_one_in(0)
        assert s.process.poll() is None, f"seed {seed}: it died with {s.process.returncode} at one in {one_in}: {s.log()[-2000:]}"
        assert s.complete(max_tokens=3)["usage"]["completion_tokens"] == 3, f"seed {seed}"
    assert shim.n_failed() > 100, shim.n_failed()
    assert statuses.count(200) > 50 and len(statuses) == 720, statuses
    assert set(statuses) <= {200, 400, 404, 409, 412, 413, 429, 431, 500, 503, None}, set(statuses)
    for name in ("rodimus_slots_used", "rodimus_queue_requests", "rodimus_http_streams"):
        s.wait_metric(name, lambda n: n == 0)
    s.wait_metric("rodimus_http_connections", lambda n: n <= 2)
    assert s.n_files() <= files + 3 and s.rss_bytes() < rss + (48 << 20) + FREED_BYTES, (s.n_files(), files, s.rss_bytes(), rss)
    assert s.stop() == 0, f"seed {seed}"


def test_a_wall_clock_that_jumps_changes_no_deadline(own_server, shim):
    """A day forwards and backwards: no request times out, no stream stops; only what is dated shows it."""
    s = own_server("--device", "null:10", "--slots", 1, "--request-timeout-ms", 30000, "--sse-ping-ms", 20000, env=shim.env)
    now = s.complete([300], 1)["created"]
    assert abs(now - time.time()) < 5
    connection, response = s.open("POST", "/v1/completions", {"prompt": [300], "max_tokens": 200, "ignore_eos": True, "stream": True})
    events, waiting = read_events(response), []
    next(events)
    thread = threading.Thread(target=lambda: waiting.append(s.post("/v1/completions", SHORT)))
    thread.start()
    s.wait_metric("rodimus_queue_requests", lambda n: n == 1)
    for days in (1, -1, 400):
        shim.skew(days * 86400)
        time.sleep(0.3)
        assert s.get("/health").status == 200
    rest = list(events)
    assert rest[-1].data == "[DONE]" and len([e for e in rest if not e.comment]) >= 199
    assert not [e for e in rest if e.comment]
    connection.close()
    thread.join()
    assert waiting[0].status == 200
    assert abs(waiting[0].json["created"] - time.time()) < 5 + 401 * 86400
    assert s.complete([300], 1)["created"] - now > 399 * 86400
    shim.skew(0)
    assert s.stop() == 0


def test_a_clock_that_was_set_back_and_forward_again_ends_no_session(own_server, shim):
    """Its last use lay days ago by that clock; its time begins when it was made, or was used before."""
    s = own_server("--session-ttl-s", 3600, env=shim.env)
    turn = {"prompt": "Once", "max_tokens": 2, "session_id": "one", "session_create": True}
    assert s.post("/v1/completions", turn).status == 200
    made = s.get("/v1/sessions/one").json
    shim.skew(-2 * 86400)
    assert s.post("/v1/completions", turn).status == 200
    shim.skew(0)
    got = s.get("/v1/sessions/one")
    assert got.status == 200, got
    assert got.json["version"] == 2 and got.json["expires_at"] >= made["expires_at"], (made, got)
    shim.skew(3601)
    assert s.get("/v1/sessions/one").status == 404
    shim.skew(0)
    assert s.stop() == 0


# ---- a process that stands still ----

def test_five_seconds_of_standstill(own_server):
    """SIGSTOP and SIGCONT, as when a machine is moved: streams and waiting requests go on, nobody is thrown out."""
    s = own_server("--device", "null:10", "--slots", 1, "--stall-ms", 2000, "--admin-port", free_port())
    connection, response = s.open("POST", "/v1/completions", {"prompt": [300], "max_tokens": 100, "ignore_eos": True, "stream": True})
    events, waiting = read_events(response), []
    next(events)
    kept = s.socket()
    kept.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in kept.recv(4096)
    threads = [threading.Thread(target=lambda: waiting.append(s.post("/v1/completions", SHORT))) for _ in range(3)]
    for t in threads:
        t.start()
    s.wait_metric("rodimus_queue_requests", lambda n: n == 3)
    s.process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    s.process.send_signal(signal.SIGCONT)
    assert list(events)[-1].data == "[DONE]"
    connection.close()
    for t in threads:
        t.join(20)
    assert [a.status for a in waiting] == [200] * 3
    kept.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in kept.recv(4096)
    kept.close()
    assert s.get("/health").status == 200 and s.get("/health", port=s.admin_port).status == 200
    assert s.stop() == 0
