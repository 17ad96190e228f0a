"""A rodimus server as a child process, and a plain HTTP client for what the openai package cannot say."""
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD_DIR", "build"))
RODIMUS = os.path.join(BUILD, "rodimus")
MODEL = os.path.join(ROOT, "config", "models", "tales")  # the tests': they know its texts, ids and sizes
DEFAULT = "skills"  # the product's: of config/models, without a setting
START_S = 120
PATIENCE_S = 60  # of who waits for a condition: a machine with other work may take so long, and a server that never fulfils it fails


def sanitizer():
    """Which one the server is built with, "" for none: its entry is among the symbols that the program asks for."""
    with open(RODIMUS, "rb") as f:
        program = f.read()
    return next((name for name, symbol in (("thread", b"__tsan_init"), ("address", b"__asan_init"), ("undefined", b"__ubsan_handle"))
                 if symbol in program), "")


SANITIZER = sanitizer()
SLOWER = {"thread": 10, "address": 4, "undefined": 3, "": 1}[SANITIZER]  # bounds of time and the patience of clients, times this
FREED_BYTES = 128 << 20 if SANITIZER == "address" else 0  # freed memory that stays with the process: the quarantine and about as much
LOGS = os.path.join(BUILD, "api-logs", os.environ.get("PYTEST_XDIST_WORKER", ""))  # of servers; a folder for each process of pytest-xdist
REPORTS = os.path.join(BUILD, "reports")  # one file for each process that a sanitizer has something to say of: conftest.py
if SANITIZER:
    os.makedirs(REPORTS, exist_ok=True)
    for options in ("TSAN_OPTIONS", "ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS"):
        os.environ[options] = f"{os.environ.get(options, '')}:log_path={REPORTS}/{SANITIZER}"
    os.environ["ASAN_OPTIONS"] += ":quarantine_size_mb=64"
DEVICE = os.environ.get("RODIMUS_TEST_DEVICE", "cpu")
PRECISION = os.environ.get("RODIMUS_TEST_PRECISION", "fp32")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # of a shell's background; a child would inherit it, and Ctrl-C do nothing
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def header(self, name):
        values = [v for k, v in self.headers if k.lower() == name.lower()]
        return ", ".join(values) if values else None

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    def __repr__(self):
        return f"<{self.status} {self.headers} {self.body[:600]!r}>"


class Event:
    """One frame of a stream: data is the parsed JSON, or the string [DONE]."""

    def __init__(self, raw):
        self.raw = raw
        lines = raw.split(b"\n")
        self.comment = all(line.startswith(b":") for line in lines)
        data = b"\n".join(line[6:] if line.startswith(b"data: ") else line[5:] for line in lines if line.startswith(b"data:"))
        self.data = data.decode() if data == b"[DONE]" or self.comment else json.loads(data)


def read_events(response):
    """The frames of an SSE body, as they come."""
    pending = b""
    while True:
        piece = response.read1(65536)
        if not piece:
            assert pending == b"", f"unfinished frame {pending!r}"
            return
        pending += piece
        while b"\n\n" in pending:
            frame, pending = pending.split(b"\n\n", 1)
            yield Event(frame)


def environment(model=MODEL):
    """The settings of whoever runs the tests must not reach the server; its device is that of the tests, and its model the one whose
    texts they know (None: its own default). On a GPU the texts are the reference's in fp32; and as its states outside of slots are
    page-locked, the servers of several tests at once cannot each take the part of the memory that one would."""
    settings = {k: v for k, v in os.environ.items() if not k.startswith("RODIMUS_")}
    of_device = {} if DEVICE == "cpu" else {"RODIMUS_PRECISION": PRECISION, "RODIMUS_STATE_HOST_BYTES": "3000000000",
                                              "RODIMUS_TEST_CHECKPOINTS_PAY": "1"}
    of_model = {"RODIMUS_MODEL": model} if model else {}
    return {**settings, "RODIMUS_DEVICE": DEVICE, **of_model, **of_device}


def model_of(args, model=MODEL):
    return None if "--synthetic" in args else model


def command(*args, timeout=300, **more):
    """Runs a rodimus command to its end."""
    return subprocess.run([RODIMUS, *map(str, args)], capture_output=True, text=True, timeout=timeout * SLOWER,
                          env=more.pop("env", environment(model_of(args))), **more)


def shim():
    """tests/api/shim.c, made into a library to preload; frames of its own, so that a sanitizer sees who allocates through it."""
    os.makedirs(LOGS, exist_ok=True)
    library, made = os.path.join(LOGS, "shim.so"), os.path.join(LOGS, f"shim.so.{os.getpid()}")
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-fno-omit-frame-pointer", "-ftls-model=initial-exec", "-fPIC", "-shared", "-o", made,
                    os.path.join(ROOT, "tests/api/shim.c")], check=True)
    os.replace(made, library)
    return library


def shimmed(**settings):
    """The environment of a server with the shim, in front of a sanitizer's library too."""
    library = os.path.relpath(shim())  # a blank in the path before it would end the name
    return {"LD_PRELOAD": library, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0", **settings}


def held_loading(file):
    """The environment of a server that does not get its model loaded while `file` exists."""
    return shimmed(RODIMUS_TEST_HOLD=str(file))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# What systemd does between fork and exec: the sockets become the descriptors from 3 on, and LISTEN_PID is the process itself.
HAND_OVER = """import os, sys
n = int(sys.argv[1])
high = [os.dup2(int(fd), 100 + i) for i, fd in enumerate(sys.argv[2:2 + n])]
for i, fd in enumerate(high):
    os.dup2(fd, 3 + i)
    os.close(fd)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(n))
os.execv(sys.argv[2 + n], sys.argv[2 + n:])
"""


def handing_over(*sockets):
    """What goes before a command so that it is handed these sockets, and what Popen needs for it."""
    fds = [s.fileno() for s in sockets]
    return [sys.executable, "-S", "-c", HAND_OVER, str(len(fds)), *map(str, fds)], {"pass_fds": fds}


class Server:
    """Starts `rodimus serve --port 0 FLAGS` and waits for the line with its address. stop() ends this process only."""

    def __init__(self, *flags, name="server", model=MODEL, env=None, cwd=None, key=None, stdout=None, stderr=None, wait=True, sockets=(), **popen):
        """model: None is the product's default. key: sent with every request that brings no headers of its own. wait=False: not until it is ready; then the flags
        give it a port, and who asks names it. sockets: handed over, as systemd does it."""
        self.key, self.tls = key, None
        os.makedirs(LOGS, exist_ok=True)
        self.log_path = os.path.join(LOGS, f"{name}.log")
        self.lines = []
        self.ready = threading.Event()
        before, more = handing_over(*sockets) if sockets else ([], {})
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen([*before, RODIMUS, "serve", "--port", "0", *map(str, flags)], stdout=stdout or subprocess.PIPE,
                                            stderr=stderr or log, text=True, env={**environment(model_of(flags, model)), **(env or {})}, cwd=cwd or ROOT, **more, **popen)
        self.host, self.port, self.admin_port = "127.0.0.1", None, None
        self.reader = threading.Thread(target=self._read_stdout, daemon=True)
        if self.process.stdout:
            self.reader.start()
        if wait:
            self.wait_ready()

    def wait_ready(self):
        if not self.ready.wait(START_S * SLOWER) or self.port is None:
            self.kill()
            raise RuntimeError(f"the server did not start: {''.join(self.lines)} {self.log()}")

    def _read_stdout(self):
        for line in self.process.stdout:
            self.lines.append(line)
            m = re.search(r"(https?)://[^\s/]*:(\d+)", line)
            if m and self.port is None:
                self.port = int(m.group(2))
                self.tls = ssl._create_unverified_context() if m.group(1) == "https" else None
            if m and line.startswith("admin: "):
                self.admin_port = int(m.group(2))
            if line.startswith("try: "):  # the last line
                self.ready.set()
        self.ready.set()

    def log(self):
        with open(self.log_path, errors="replace") as log:
            return log.read()

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    # ---- requests ----
    def open(self, method, path, body=None, headers=None, timeout=60, port=None):
        """The connection and its response, body unread."""
        timeout *= SLOWER
        if self.tls and not port:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=self.tls)
        else:
            connection = http.client.HTTPConnection(self.host, port or self.port, timeout=timeout)
        if headers is None and self.key:
            headers = {"Authorization": f"Bearer {self.key}"}
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        headers = {"Content-Type": "application/json", **(headers or {})} if body is not None else headers or {}
        connection.request(method, path, body, headers)
        return connection, connection.getresponse()

    def ask(self, method, path, body=None, headers=None, timeout=60, port=None):
        connection, response = self.open(method, path, body, headers, timeout, port)
        try:
            return Answer(response.status, response.getheaders(), response.read())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.ask("GET", path, **more)

    def post(self, path, body, **more):
        return self.ask("POST", path, body, **more)

    def complete(self, prompt="Once upon a time", max_tokens=4, **more):
        """A completion that must succeed: its JSON."""
        answer = self.post("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more})
        assert answer.status == 200, answer
        return answer.json

    def events(self, path, body, timeout=60):
        """All frames of a streamed answer."""
        connection, response = self.open("POST", path, {**body, "stream": True}, timeout=timeout)
        try:
            assert response.status == 200, response.read()
            return list(read_events(response))
        finally:
            connection.close()

    def socket(self, timeout=30):
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def raw(self, bytes_, timeout=30, shut=False):
        """Sends bytes as they are; returns all that comes until the server closes, or is silent for `timeout`."""
        with self.socket(timeout) as s:
            try:
                s.sendall(bytes_)
                if shut:
                    s.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it may answer and close before it has read everything
            return read_all(s)

    # ---- what it says about itself ----
    def metrics(self, **more):
        answer = self.get("/metrics", **more)
        assert answer.status == 200, answer
        values = {}
        for line in answer.body.decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        return values

    def metric(self, name, **more):
        return self.metrics(**more)[name]

    def wait_metric(self, name, good, timeout=PATIENCE_S, **more):
        """Waits until good(value); returns the seconds it took."""
        began = time.monotonic()
        while True:
            value = self.metric(name, **more)
            if good(value):
                return time.monotonic() - began
            assert time.monotonic() - began < timeout * SLOWER, f"{name} is still {value} after {timeout} s"
            time.sleep(0.01)

    def rss_bytes(self):
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def n_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def busy_s(self):
        """Of the processor, since it began."""
        with open(f"/proc/{self.process.pid}/stat") as f:
            return sum(map(int, f.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    # ---- its end ----
    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait_log(self, text, count=1, timeout=PATIENCE_S):
        """Until the log has the text so often."""
        began = time.monotonic()
        while self.log().count(text) < count:
            assert time.monotonic() - began < timeout * SLOWER, f"'{text}' is not in the log {count} times: {self.log()[-2000:]}"
            time.sleep(0.01)

    def reload(self):
        """SIGHUP, and waits until the settings are read; what the log says about it."""
        before = self.log().count("SIGHUP: settings"), self.log().count("SIGHUP: the settings stay")
        self.process.send_signal(signal.SIGHUP)
        began = time.monotonic()
        while (self.log().count("SIGHUP: settings"), self.log().count("SIGHUP: the settings stay")) == before:
            assert time.monotonic() - began < PATIENCE_S * SLOWER, self.log()[-2000:]
            time.sleep(0.01)
        return self.log()[self.log().rindex("SIGHUP: the" if "SIGHUP: the settings stay" in self.log().splitlines()[-1] else "SIGHUP: settings"):]

    def wait(self, timeout=PATIENCE_S):
        return self.process.wait(timeout * SLOWER)

    def end(self):
        """SIGTERM, and killed if it does not end: whatever the test left of it."""
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    def stop(self):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            raise


def read_all(s):
    """Everything until the peer closes or resets, or the socket's timeout."""
    got = b""
    while True:
        try:
            piece = s.recv(65536)
        except (TimeoutError, ConnectionResetError):
            return got
        if not piece:
            return got
        got += piece


def status_of(raw):
    """The status code of a raw answer, None if there is none."""
    m = re.match(rb"HTTP/1\.1 (\d{3}) ", raw)
    return int(m.group(1)) if m else None
