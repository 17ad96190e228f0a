"""A name server of the tests' own, and programs for which it is the only one: /etc/resolv.conf and /etc/hosts are theirs alone."""
import os
import shlex
import socket
import struct
import subprocess
import threading

A, AAAA = 1, 28
NO_ERROR, FAILED, UNKNOWN = 0, 2, 3


class NameServer:
    """Answers by UDP on `address`, port 53. names: {name: [addresses]}; mode: answers, silent (an outage), failing (SERVFAIL); silent: names
    that it never answers for."""

    def __init__(self, address):
        self.address, self.names, self.mode, self.silent, self.n_asked = address, {}, "answers", set(), 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, 53))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                packet, peer = self.socket.recvfrom(4096)
            except OSError:
                return
            if not packet:
                return
            self.n_asked += 1
            labels, at = [], 12
            while packet[at]:
                labels.append(packet[at + 1:at + 1 + packet[at]].decode())
                at += 1 + packet[at]
            name = ".".join(labels).lower()
            if self.mode != "silent" and name not in self.silent:
                self.socket.sendto(self.answer(packet, name, at), peer)

    def answer(self, packet, name, at):
        kind, = struct.unpack("!H", packet[at + 1:at + 3])
        addresses = self.names.get(name)
        code = FAILED if self.mode == "failing" else UNKNOWN if addresses is None else NO_ERROR
        records = [socket.inet_pton(family, address) for address in addresses or [] if code == NO_ERROR
                   for family, wanted in [(socket.AF_INET6, AAAA) if ":" in address else (socket.AF_INET, A)] if wanted == kind]
        head = packet[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(records), 0, 0)
        name_is_above, internet, lives_s = 0xC00C, 1, 1
        return head + packet[12:at + 5] + b"".join(struct.pack("!HHHIH", name_is_above, kind, internet, lives_s, len(r)) + r for r in records)

    def stop(self):
        self.socket.sendto(b"", (self.address, 53))
        self.thread.join()
        self.socket.close()


def may_have_own_files():
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


def inside(folder, name_server, hosts=""):
    """Words before a command, for which `name_server` is the only one and `hosts` the lines of /etc/hosts."""
    for name, text in {"resolv.conf": f"nameserver {name_server}\n", "hosts": hosts}.items():
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    mounts = " && ".join(f"mount --bind {shlex.quote(os.path.join(folder, name))} /etc/{name}" for name in ("resolv.conf", "hosts"))
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
