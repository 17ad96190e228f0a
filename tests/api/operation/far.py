"""Two network namespaces with a slow line between them, for clients that are far. As a program: the line itself."""
import contextlib
import ctypes
import fcntl
import heapq
import os
import select
import shutil
import struct
import subprocess
import sys
import threading
import time

ADDRESSES = ("10.99.0.1", "10.99.0.2")  # in namespaces of their own, so nobody else's
TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 1, 0x1000, 0x40000000


def inside(pid, work):
    """The result of work(), done by a thread in the network namespace of a process; what it starts is there, too."""
    got = []

    def run():
        with open(f"/proc/{pid}/ns/net") as f:
            assert not ctypes.CDLL(None, use_errno=True).setns(f.fileno(), CLONE_NEWNET), os.strerror(ctypes.get_errno())
        got.append(work())
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return got[0]


@contextlib.contextmanager
def line(delay_s):
    """The processes that hold the two namespaces, ADDRESSES in this order; None where this user or kernel makes no such thing."""
    if os.geteuid() or not os.path.exists("/dev/net/tun") or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        yield None
        return
    children = [subprocess.Popen(["unshare", "-n", "sleep", "600"], stderr=subprocess.DEVNULL) for _ in ADDRESSES]
    try:
        time.sleep(0.3)
        children.append(subprocess.Popen([sys.executable, __file__, str(delay_s), *(str(c.pid) for c in children)],
                                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        yield [c.pid for c in children[:2]] if children[2].stdout.readline() == "up\n" else None
    finally:
        for c in children:
            c.kill()
            c.wait()


def open_end(name, pid, address):
    """A network interface whose packets this process carries, in the namespace of a process."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "link", "set", name, "netns", pid], check=True)
    for words in (["addr", "add", f"{address}/24", "dev", name], ["link", "set", name, "up"]):
        subprocess.run(["nsenter", "-t", pid, "-n", "ip", *words], check=True)
    return fd


def carry(delay_s, pids):
    with contextlib.suppress(OSError):  # before all other work of the machine: a late packet is a longer line
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    ends = [open_end(f"far{os.getpid()}-{i}"[-15:], pid, address) for i, (pid, address) in enumerate(zip(pids, ADDRESSES))]
    print("up", flush=True)
    waiting, n = [], 0
    while True:
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):
                os.write(to, packet)
        for end in select.select(ends, [], [], max(0, waiting[0][0] - time.monotonic()) if waiting else 1)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    n += 1
                    heapq.heappush(waiting, (time.monotonic() + delay_s, n, ends[1 - ends.index(end)], os.read(end, 70000)))


if __name__ == "__main__":
    carry(float(sys.argv[1]), sys.argv[2:])
