"""The image under Debian 12's Podman (4.3), and the quadlet: that Podman has no generator for it, so its keys are held against those
that Podman 4.4 takes, and its container is run by the command that 4.4 would make of it."""
import os
import pathlib
import re
import resource
import shlex
import shutil
import socket
import subprocess
import tempfile
import time

import pytest

from engine import BASE
from replicas import DEPLOY, ROOT, free_ports

pytestmark = pytest.mark.timeout(900)

# The keys of [Container] in Podman 4.4, from its podman-systemd.unit(5), and what `podman run` gets for those used here.
KEYS = """AddCapability AddDevice Annotation ContainerName DropCapability Environment Exec ExposeHostPort Group Image Label Network NoNewPrivileges Notify
PodmanArgs PublishPort ReadOnly RemapGid RemapUid RemapUidSize RemapUsers RunInit SeccompProfile Timezone User VolatileTmp Volume""".split()
FLAGS = {"ContainerName": "--name={}", "Environment": "--env={}", "PublishPort": "--publish={}", "Volume": "--volume={}", "DropCapability": "--cap-drop={}"}
SWITCHES = {"ReadOnly": "--read-only", "NoNewPrivileges": "--security-opt=no-new-privileges", "Notify": "--sdnotify=container", "RunInit": "--init"}


def quadlet():
    """{section: [(key, value)]} of the file."""
    found, section = {}, None
    with open(os.path.join(DEPLOY, "rodimus.container")) as f:
        for line in filter(None, (line.strip() for line in f)):
            if line.startswith("["):
                section = found.setdefault(line.strip("[]"), [])
            elif not line.startswith("#"):
                section.append(tuple(line.split("=", 1)))
    return found


def run_words(pairs):
    """What stands behind `podman run`: flags, image, command."""
    last, words = dict(pairs), []
    for key, value in pairs:
        if key in FLAGS:
            words.append(FLAGS[key].format(value))
        elif key in SWITCHES:
            words += [SWITCHES[key]] if value == "true" else []
        elif key == "PodmanArgs":
            words += shlex.split(value)
        else:
            assert key in ("Image", "Exec"), f"{key}: add what podman run gets for it"
    return words, last["Image"], shlex.split(last["Exec"])


class Podman:
    """With storage of its own, runc where it is (crun refuses some cgroups), and no more open files than there are here."""

    def __init__(self, folder):
        self.folder = folder
        self.words = ["podman", "--root", f"{folder}/root", "--runroot", f"{folder}/run", "--tmpdir", f"{folder}/tmp", "--cgroup-manager", "cgroupfs",
                      "--events-backend", "file", "--storage-driver", "overlay", *(["--runtime", "runc"] if shutil.which("runc") else [])]

    def __call__(self, *words, env=None, timeout=900):
        done = subprocess.run([*self.words, *map(str, words)], env={**os.environ, **(env or {})}, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f"podman {' '.join(map(str, words))[:200]}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
        return done.stdout.strip()

    def end(self):
        subprocess.run([*self.words, "rm", "-fa"], capture_output=True)
        with open("/proc/mounts") as f:
            for path in [line.split()[1] for line in f if line.split()[1].startswith(self.folder + "/")]:
                subprocess.run(["umount", path], capture_output=True)


@pytest.fixture(scope="module")
def podman(engine):
    """It has the base system and the image that Docker built."""
    if not shutil.which("podman"):
        pytest.skip("podman is not installed")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="podman-", dir="/tmp"))  # podman takes no runroot of more than 50 characters
    podman = Podman(str(folder))
    try:
        for tag in (BASE, engine.server_image()):
            engine.docker("save", "-o", folder / "image.tar", tag)
            podman("load", "-i", folder / "image.tar")
        podman("tag", f"localhost/{BASE}", f"docker.io/library/{BASE}")
        yield podman
    finally:
        podman.end()
        shutil.rmtree(folder, ignore_errors=True)


def limits():
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return ("--ulimit", f"nofile={files}:{files}", "--ulimit", "nproc=4096:4096", "--network", "host")


def serves_until_stopped(podman, name, listener=None):
    end = time.monotonic() + 30
    while subprocess.run([*podman.words, "healthcheck", "run", name], capture_output=True).returncode != 0:
        assert time.monotonic() < end, podman("logs", name)
        time.sleep(0.3)
    podman("stop", name)
    assert podman("inspect", name, "--format", "{{.State.ExitCode}}") == "0", podman("logs", name)


def test_the_quadlet_has_keys_that_podman_4_4_takes():
    sections = quadlet()
    assert set(sections) == {"Unit", "Container", "Service", "Install"}
    keys = [key for key, _ in sections["Container"]]
    assert set(keys) <= set(KEYS), set(keys) - set(KEYS)
    service = dict(sections["Service"])
    stop, = re.findall(r"--stop-timeout=(\d+)", dict(sections["Container"])["PodmanArgs"])
    assert 32 <= int(stop) < int(service["TimeoutStopSec"]), "drain_notice_ms and drain_ms, then Podman's patience, then systemd's"


def test_the_quadlets_container_says_when_it_is_ready_and_is_healthy(podman, tmp_path):
    """Its health check needs systemd's timers to be repeated; it is run by hand here."""
    ports = dict(zip(("RODIMUS_PORT", "RODIMUS_ADMIN_PORT"), free_ports(2)))
    flags, image, command = run_words(quadlet()["Container"])
    flags = [flag for flag in flags if not flag.startswith("--publish")]  # this Podman's network plug-ins are not installed
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(tmp_path / "notify"))
    notify.settimeout(30)
    podman("run", "-d", *flags, *limits(), *(f"--env={k}={v}" for k, v in ports.items()), image, *command, env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
    said = ""
    while "READY=1" not in said:
        said += notify.recv(4096).decode() + "\n"
    serves_until_stopped(podman, "rodimus")
    podman("rm", "rodimus")


@pytest.mark.skipif(not os.environ.get("RODIMUS_TEST_FULL"), reason="RODIMUS_TEST_FULL=1: everything is compiled again")
def test_podman_builds_the_image_with_its_health_check(podman):
    podman("build", "--format", "docker", "--network", "host", "--isolation", "chroot", "-f", "deploy/Dockerfile", "-t", "rodimus:podman", ".")
    ports = dict(zip(("RODIMUS_PORT", "RODIMUS_ADMIN_PORT"), free_ports(2)))
    podman("run", "-d", "--name", "built", "--read-only", "--cap-drop", "all", "--stop-timeout", 40, *limits(), *(f"--env={k}={v}" for k, v in ports.items()), "rodimus:podman")
    serves_until_stopped(podman, "built")
