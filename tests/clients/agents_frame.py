"""What the scenarios of tests/clients/agents share: a program with a home of its own, on a terminal too, and what its requests have to be."""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time

LIMIT_S = 600


class Agent:
    """A program with a home and a folder to work in."""

    def __init__(self, program, home, env, asks_version=False):
        self.program, self.home, self.work, self.said = program, home, os.path.join(home, "work"), ""
        shutil.rmtree(home, ignore_errors=True)
        os.makedirs(self.work)
        self.env = {"PATH": os.environ["PATH"], "HOME": home, "TERM": "xterm", "LANG": "C.UTF-8", "NO_COLOR": "1", **env}
        self.version = None
        if asks_version:
            self.version = subprocess.run([*program, "--version"], capture_output=True, text=True, env=self.env, cwd=self.work, check=False).stdout.strip()

    def run(self, *args, env=None, fails=False):
        """What it printed. fails: it must end with an error."""
        done = subprocess.run([*self.program, *args], cwd=self.work, env={**self.env, **(env or {})}, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, check=False)
        self.said = done.stdout
        assert fails or done.returncode == 0, f"ended with status {done.returncode}: {done.stdout[-800:]} {done.stderr[-800:]}"
        return done.stdout

    def interrupt(self, proxy, *args):
        """Runs it until the first answer has come whole, and interrupts it as Ctrl-C does."""
        with subprocess.Popen([*self.program, *args], cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as runs:
            wait_for(lambda: runs.poll() is not None or (proxy.answered() and "seconds" in proxy.answered()[-1]))
            time.sleep(1)  # its tool begins
            assert runs.poll() is None, f"ended by itself with status {runs.returncode}"
            runs.send_signal(signal.SIGINT)
            runs.wait(60)

    def file(self, name, content=None):
        path = os.path.join(self.work, name)
        if content is None:
            return open(path, encoding="utf-8").read() if os.path.exists(path) else None
        with open(path, "wb") as f:
            f.write(content if isinstance(content, bytes) else content.encode())
        return path


class Terminal:
    """An agent on a terminal of its own, as a person has it."""

    def __init__(self, agent, *args):
        self.screen = ""
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.chdir(agent.work)
            os.execve(agent.program[0], [*agent.program, *args], agent.env)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def until(self, done, what, limit=120):
        """Reads what it shows until done() is true."""
        end = time.monotonic() + limit
        while not done():
            assert time.monotonic() < end, f"no {what} within {limit} s; the screen ends with {self.screen[-800:]!r}"
            if select.select([self.fd], [], [], 0.2)[0]:
                piece = os.read(self.fd, 65536).decode(errors="replace")
                self.screen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07]*\x07|\x1b[=>()][0-9A-B]?", "", piece)

    def rest(self, seconds=1.0):
        until = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > until, "rest")

    def type(self, text):
        """Enter comes alone: behind text at once it would be part of what was pasted."""
        os.write(self.fd, text.encode())
        self.rest()
        os.write(self.fd, b"\r")

    def press(self, key):
        os.write(self.fd, key)

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def wait_for(done, limit=120):
    end = time.monotonic() + limit
    while not done() and time.monotonic() < end:
        time.sleep(0.2)


# ---- what requests have to be ----

def error_of(record):
    """(the field that an answer names, its message)."""
    try:
        error = json.loads(record["answer"])["error"]
        return error.get("param"), error["message"]
    except (ValueError, KeyError, TypeError):
        return None, record["error"]


def refusals(proxy):
    return [f"{r['status']} {r['path'].split('?')[0]}: field {error_of(r)[0]}: {error_of(r)[1]}" for r in proxy.answered() if r["status"] != 200]


def statuses(proxy, *unlike):
    """Every request of the scenario was answered; unlike: statuses that it has beside, in order."""
    assert [r["status"] for r in proxy.answered() if r["status"] != 200] == list(unlike), f"refused: {refusals(proxy)}"
    assert not proxy.forces, f"not asked for: {[f.tool for f in proxy.forces]}"


def sent(proxy, pattern):
    """Whether the last request for an answer has what the pattern finds."""
    assert re.search(pattern, proxy.answered()[-1]["asked"].decode()), f"no {pattern} in the last request"


# Their members are the tools' and the caller's own.
OPEN = {"input_schema", "parameters", "schema", "metadata", "client_metadata", "definition", "properties", "extra_body"}


def fields(value, at=""):
    """The paths of the members of a body, with the type of what an array holds: messages[].content[text].cache_control."""
    if isinstance(value, list):
        for v in value:
            kind = v.get("type", "") if isinstance(v, dict) else ""
            yield from fields(v, f"{at}[{kind if isinstance(kind, str) else ''}]")
        return
    yield at
    for k, v in value.items() if isinstance(value, dict) else ():
        inner = f"{at}.{k}" if at else k
        if k in OPEN or (k in ("input", "arguments") and isinstance(v, dict)):
            yield inner
        else:
            yield from fields(v, inner)


def fields_of(records):
    """As the client sent them."""
    found = set()
    for r in records:
        try:
            found.update(f for f in fields(json.loads(r["asked"])) if f)
        except ValueError:
            continue
    return found
