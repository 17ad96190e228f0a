"""The image of deploy/Dockerfile: its steps carried out under chroot (image.py), and the result run as a container would be: as
its user, with a root that is read-only. Skipped where that cannot be done; RODIMUS_TEST_IMAGE=0 leaves it out."""
import os
import shlex
import shutil
import signal
import subprocess
import time

import pytest

import image
from replicas import free_ports


pytestmark = pytest.mark.timeout(900)  # two Debians are unpacked and everything is compiled


def why_not():
    if os.environ.get("RODIMUS_TEST_IMAGE") == "0":
        return "RODIMUS_TEST_IMAGE=0"
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        return "needs root and debootstrap"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        return "may not make a mount namespace"
    return None


@pytest.fixture(scope="module")
def made():
    reason = why_not()
    if reason:
        print(f"note: the image is not built: {reason}")
        pytest.skip(reason)
    folder = os.path.join(image.ROOT, "build", "image")
    try:
        yield image.build("cpu", folder)
    except (subprocess.CalledProcessError, FileNotFoundError) as e:  # debootstrap without a network
        pytest.skip(f"no base system: {e}")
    finally:
        for name in ("build", "runtime", "cpu"):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def started(made, tmp_path, command, **env):
    """A process in the image: its user, its settings, a read-only root, a folder for states."""
    root, said = made
    states = tmp_path / "states"
    states.mkdir(exist_ok=True)
    uid, gid = map(int, said["user"].split(":"))
    os.chown(states, uid, gid)
    quoted = shlex.quote(root)
    setup = (f"mount --bind {quoted} {quoted} && mount --bind {shlex.quote(str(states))} {quoted}{said['volume']} && "
             f"mount -o remount,ro,bind {quoted} && mount -t proc proc {quoted}/proc; exec chroot --userspec={uid}:{gid} {quoted} "
             + " ".join(map(shlex.quote, command)))
    return subprocess.Popen(["unshare", "--mount", "sh", "-c", setup], env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **said["env"], **env},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_image_serves_as_its_user_from_a_read_only_root_and_is_healthy(made, tmp_path):
    root, said = made
    ports = dict(zip(("RODIMUS_PORT", "RODIMUS_ADMIN_PORT"), map(str, free_ports(2))))
    server = started(made, tmp_path, said["entrypoint"] + said["cmd"], **ports)
    try:
        end = time.monotonic() + 60
        while True:
            check = started(made, tmp_path, said["healthcheck"], **ports)
            output = check.communicate(timeout=20)[0]
            if check.returncode == 0:
                break
            assert server.poll() is None and time.monotonic() < end, f"not healthy: {output} {server.stdout.read() if server.poll() is not None else ''}"
            time.sleep(0.2)
        status = open(f"/proc/{server.pid}/status").read()
        assert f"Uid:\t{said['user'].split(':')[0]}\t" in status, status
        touch = started(made, tmp_path, ["touch", "/opt/rodimus/x"])
        assert "Read-only file system" in touch.communicate(timeout=20)[0] or touch.returncode != 0
        server.send_signal(getattr(signal, said["stopsignal"]))
        assert server.wait(40) == 0, server.stdout.read()
    finally:
        if server.poll() is None:
            server.kill()


def test_an_unhealthy_server_is_seen(made, tmp_path):
    _, said = made
    check = started(made, tmp_path, said["healthcheck"], RODIMUS_PORT=str(free_ports(1)[0]), RODIMUS_ADMIN_PORT=str(free_ports(1)[0]))
    check.communicate(timeout=20)
    assert check.returncode != 0


def test_the_image_is_small_and_has_no_compiler(made):
    root, _ = made
    assert not os.path.exists(root + "/usr/bin/gcc")
    assert os.path.exists(root + "/opt/rodimus/share/doc/rodimus/LICENSE")
    kib = int(subprocess.run(["du", "-sk", root + "/opt"], capture_output=True, text=True, check=True).stdout.split()[0])
    assert kib < 40 * 1024, f"{kib} KiB of our own in the image"
