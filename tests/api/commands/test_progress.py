"""How far something is: a rewritten line on a terminal, few plain lines elsewhere; and Ctrl-C, which ends cleanly."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest

from server import MODEL, RODIMUS, SLOWER, command, environment

BENCH = ["bench", "--model", MODEL, "--contexts", "8", "--threads", "1"]


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *args):
        self.master, slave = pty.openpty()
        self.seen = b""
        self.process = subprocess.Popen([RODIMUS, *map(str, args)], stdin=slave, stdout=slave, stderr=slave,
                                        env=environment(), preexec_fn=self._own)
        os.close(slave)

    @staticmethod
    def _own():
        import fcntl
        import termios
        os.setsid()
        fcntl.ioctl(2, termios.TIOCSCTTY, 0)

    def read_until(self, what=None, timeout=30):
        """Until `what` has come (bytes, or what a function of all that came says), or with None until the end."""
        deadline = time.monotonic() + timeout * SLOWER
        while what is None or not (what(self.seen) if callable(what) else what in self.seen):
            assert time.monotonic() < deadline, self.seen
            if not select.select([self.master], [], [], 0.2)[0]:
                continue
            try:
                data = os.read(self.master, 65536)
            except OSError:
                data = b""
            if not data:
                assert what is None, self.seen
                break
            self.seen += data
        return self.seen

    def type(self, keys):
        os.write(self.master, keys)

    def end(self, timeout=30):
        self.read_until(None, timeout)
        os.close(self.master)
        return self.process.wait(timeout * SLOWER)


def screen(raw):
    """What a terminal shows after these bytes: a list of lines, and where the cursor is."""
    lines, row, column = [""], 0, 0
    for c in raw.decode():
        if c == "\r":
            column = 0
        elif c == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif c == "\b":
            column = max(0, column - 1)
        else:
            lines[row] = lines[row].ljust(column)
            lines[row] = lines[row][:column] + c + lines[row][column + 1:]
            column += 1
    return [line.rstrip() for line in lines], row, column


def test_a_terminal_sees_a_line_that_is_gone_at_the_end():
    t = Terminal(*BENCH, "--batches", "1,2", "--prompts", "8", "--seconds", "0.3")
    t.read_until(b"measuring: 0 of 3 rows")
    t.read_until(b"measuring: 2 of 3 rows, ")
    assert t.end() == 0, t.seen
    assert b"reading weights: 0.0 of " in t.seen, t.seen
    lines, _, column = screen(t.seen)
    assert column == 0, lines
    assert not [l for l in lines if "measuring" in l or "ing weights" in l], lines
    rows = [l.split()[0] for l in lines if l.startswith(("decode", "prefill"))]
    assert rows == ["decode", "decode", "prefill"], lines
    assert b"\x1b" not in t.seen, t.seen


def test_elsewhere_there_are_few_lines_and_none_for_what_is_quick():
    quick = command(*BENCH, "--batches", "1", "--prompts", "8", "--seconds", "0.05")
    assert quick.returncode == 0 and quick.stderr == "", quick.stderr
    assert command("inspect", MODEL).stderr == ""
    began = time.monotonic()
    slow = command(*BENCH, "--batches", "1,2", "--prompts", "8,9", "--seconds", "1.2")
    assert slow.returncode == 0, slow.stderr
    lines, took_s = slow.stderr.splitlines(), time.monotonic() - began
    assert 1 <= len(lines) <= 1 + (took_s - 2) / 4, (lines, took_s)
    assert all(l.startswith("rodimus bench: measuring: ") and l.endswith(" s left") for l in lines), lines
    assert "\r" not in slow.stderr and "measuring" not in slow.stdout


def test_verify_against_the_cpu_shows_its_steps():
    t = Terminal("verify", "--synthetic", "tales", "--against", "cpu", "--device", "cpu", "--tokens", "300", "--threads", "1")
    assert t.end(60) == 0, t.seen
    # Drawing them is too quick to be told of where processors are fast.
    for phase in (b"packing weights: ", b"the CPU's answer: 0 of 300 tokens", b"prefill: 0 of 300 tokens", b"single steps: 0 of 300 tokens"):
        assert phase in t.seen, (phase, t.seen)
    lines, _, _ = screen(t.seen)
    assert "PASS" in lines and not [l for l in lines if ": 0 of 300" in l or " left" in l or "weights:" in l], lines


def test_quick_servers_log_no_progress(own_server):
    s = own_server()
    assert "weights:" not in s.log(), s.log()


def test_ctrl_c_ends_a_bench_by_the_signal_and_leaves_no_half_file(tmp_path):
    out = tmp_path / "rows.json"
    out.write_text("[1]\n")
    t = Terminal(*BENCH, "--batches", "1", "--prompts", "8", "--seconds", "60", "--json", out)
    t.read_until(b"measuring: 0 of 2 rows")
    t.type(b"\x03")
    assert t.end() == -signal.SIGINT, t.seen
    assert t.seen.endswith(b"\n"), t.seen
    assert out.read_text() == "[1]\n" and os.listdir(tmp_path) == ["rows.json"]


def test_a_json_file_is_whole_or_the_old_one(tmp_path):
    out = tmp_path / "rows.json"
    flags = [*BENCH, "--batches", "1", "--prompts", "8", "--seconds", "0.01", "--json"]
    assert command(*flags, out).returncode == 0
    assert len(json.loads(out.read_text())) == 2 and os.listdir(tmp_path) == ["rows.json"]
    assert '"phase": "prefill"' in command(*flags, "/dev/stdout").stdout
    refused = command(*flags, tmp_path / "none" / "rows.json")
    assert refused.returncode == 1 and "cannot write" in refused.stderr, refused


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_generate_ends_its_line_and_then_by_the_signal(number):
    t = Terminal("generate", "--model", MODEL, "-p", "Once", "-n", "1000000", "--ignore-eos")
    t.read_until(lambda seen: len(tale := re.split(rb"[\r\b]", seen)[-1]) > 40 and b"weights" not in tale)  # it is loaded, however long that took
    if number == signal.SIGINT:
        t.type(b"\x03")
    else:
        t.process.send_signal(number)
    assert t.end() == -number, t.seen
    assert t.seen.endswith(b"end: cancelled\r\n"), t.seen[-200:]


def test_ctrl_c_ends_generate_while_it_loads():
    t = Terminal("generate", "--model", MODEL, "-p", "Once", "-n", "1000000", "--ignore-eos")
    t.read_until(b"reading weights: 0.0 of ")
    t.type(b"\x03")
    assert t.end() == -signal.SIGINT, t.seen
    assert t.seen.endswith(b"\n"), t.seen[-200:]


def test_generate_to_a_pipe_is_text_alone():
    done = command("generate", "--model", MODEL, "-p", "Once", "-n", "40", "--ignore-eos", "--temperature", 0)
    assert done.returncode == 0 and not set("\x1b\r\b") & set(done.stdout + done.stderr), done
    assert len(done.stderr.splitlines()) == 1 and "end: length" in done.stderr, done.stderr


def test_generate_streams_to_a_pipe():
    p = subprocess.Popen([RODIMUS, "generate", "--model", MODEL, "-p", "Once", "-n", "1000000", "--ignore-eos"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert os.read(p.stdout.fileno(), 100)  # long before the end
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=30 * SLOWER)
    assert p.returncode == -signal.SIGINT and out.endswith(b"\n") and b"cancelled" in err, (p.returncode, err)
