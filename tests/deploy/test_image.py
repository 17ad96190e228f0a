"""The image of deploy/Dockerfile, built and run by a Docker engine, with the commands of the README."""
import glob
import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
import time

import pytest

from engine import BASE, Failed, get
from replicas import DEPLOY, ROOT, free_ports, read_events
from results import record
from server import DEFAULT, MODEL

pytestmark = pytest.mark.timeout(900)  # two Debians are unpacked and everything is compiled
HARDENED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--memory", "1g", "--pids-limit", "256")


@pytest.fixture(scope="module")
def image(engine):
    return engine.server_image()


@pytest.fixture
def started(engine, image):
    """started(FLAGS of docker run..., serve=(FLAGS of serve...)): the name of a container; all are removed at the end."""
    names = []

    def start(*flags, serve=()):
        names.append(engine.docker("run", "-d", *flags, image, *(("serve", *serve) if serve else ())))
        return names[-1]

    yield start
    for name in names:
        engine.docker("rm", "-fv", name)


def ended(engine, name):
    """(exit status, whether it was killed for its memory) when it has ended."""
    status = int(engine.docker("wait", name, timeout=60))
    return status, engine.inspect(name)["State"]["OOMKilled"]


def post(address, body, path="/v1/completions", port=8080):
    connection = http.client.HTTPConnection(address, port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def turn(address, **more):
    connection, response = post(address, {"prompt": "Once", "max_tokens": 3, "ignore_eos": True, "session_id": "fox", **more})
    try:
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def size(engine, tag):
    return int(engine.docker("image", "inspect", "--format", "{{.Size}}", tag))


def bundled():
    return sorted(os.path.dirname(config) for config in glob.glob(os.path.join(ROOT, "config", "models", "*", "config.json")))


# ---- the builders ----

def test_the_image_is_small_and_has_no_compiler(engine, image):
    inside = engine.docker("run", "--rm", "--entrypoint", "sh", image, "-c", "ls /opt/rodimus/bin /opt/rodimus/share/doc/rodimus; command -v gcc make curl || echo none")
    assert inside.split() == ["/opt/rodimus/bin:", "rodimus", "/opt/rodimus/share/doc/rodimus:", "LICENSE", "none"]
    whole, base = size(engine, image), size(engine, BASE)
    models = sum(os.path.getsize(file) for folder in bundled() for file in glob.glob(os.path.join(folder, "*")))
    # Of this some 5 MB are libcurl and the libraries that it wants.
    assert whole - base - models < 16e6, f"{(whole - base) / 1e6:.1f} MB over the base system, {models / 1e6:.1f} of them models"
    record(what="image", event="size", builder="classic builder of Docker " + engine.docker("version", "--format", "{{.Server.Version}}"),
           image_mb=round(whole / 1e6, 1), base_mb=round(base / 1e6, 1), base="debootstrap, minbase, slim as Debian's image")


def test_the_image_has_each_bundled_model_and_nothing_beside_them(engine, image):
    inside = engine.docker("run", "--rm", "--entrypoint", "ls", image, "/opt/rodimus/share/rodimus/models")
    assert inside.split() == [os.path.basename(folder) for folder in bundled()]


def test_the_classic_builder_makes_no_cuda_part_unless_told(engine, image):
    """With no target it makes every stage of the file; only --build-arg CUDA=yes makes it ask for NVIDIA's packages."""
    build = ("build", "--network", "none", "-f", "deploy/Dockerfile", "--build-arg", f"COMMIT={engine.commit()}")
    said = engine.docker(*build, "-t", "rodimus:latest", ".", timeout=600)
    assert "no CUDA part is made" in said
    assert engine.inspect("rodimus:latest")["Id"] == engine.inspect(image)["Id"], "the image without a target is another one"
    with pytest.raises(Failed, match="Could not resolve host: developer.download.nvidia.com"):
        engine.docker(*build, "--target", "cuda", "--build-arg", "CUDA=yes", ".", timeout=600)


def test_an_image_for_gpus_without_its_cuda_part_says_so_and_ends(engine, image):
    tag = engine.server_image(target="cuda", tag="rodimus:cuda")
    done = subprocess.run([engine.program, "run", "--rm", tag], env=engine.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "this build has no CUDA part" in done.stderr, done


@pytest.mark.skipif(not os.environ.get("RODIMUS_TEST_FULL"), reason="RODIMUS_TEST_FULL=1: everything is compiled again")
def test_buildkit_makes_the_cuda_part_for_its_target_alone(engine):
    build = ("build", "--network", "host", "--add-host", "developer.download.nvidia.com:127.0.0.1", "-f", "deploy/Dockerfile")
    engine.docker(*build, "-t", "rodimus:buildkit", ".", env={"DOCKER_BUILDKIT": "1"}, timeout=900)
    with pytest.raises(Failed, match="Failed to connect to developer.download.nvidia.com"):
        engine.docker(*build, "--target", "cuda", ".", env={"DOCKER_BUILDKIT": "1"}, timeout=900)


# ---- a container ----

def test_it_serves_as_its_user_with_no_rights_and_a_read_only_root_and_is_healthy(engine, started):
    port, = free_ports(1)
    name = started(*HARDENED, "-p", f"127.0.0.1:{port}:8080")
    engine.wait_healthy(name)
    status, body = get("127.0.0.1", port, "/v1/models")
    assert status == 200 and json.loads(body)["data"][0]["id"] == DEFAULT
    with open(f"/proc/{engine.inspect(name)['State']['Pid']}/status") as f:
        process = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
    assert process["Uid"].split() == ["10001"] * 4 and process["Gid"].split() == ["10001"] * 4
    assert int(process["CapBnd"], 16) == 0 and int(process["CapEff"], 16) == 0 and process["NoNewPrivs"] == "1"
    with pytest.raises(Failed, match="Read-only file system"):
        engine.docker("exec", "--user", "0", name, "touch", "/opt/rodimus/x")
    engine.docker("stop", "--time", 40, name)
    assert ended(engine, name) == (0, False), engine.logs(name)


def test_a_server_that_stands_still_or_is_not_ready_is_unhealthy(engine, started):
    often = ("--health-interval", "1s", "--health-timeout", "1s", "--health-retries", "2", "--health-start-period", "1s")
    frozen, draining = started(*often), started(*often, serve=("--device", "null:100", "--drain-notice-ms", "20000"))
    engine.wait_healthy(frozen, draining)
    engine.docker("kill", "--signal", "STOP", frozen)
    engine.docker("kill", "--signal", "TERM", draining)
    end = time.monotonic() + 15
    while "unhealthy" not in (engine.health(frozen), engine.health(draining)) or engine.health(frozen) != engine.health(draining):
        assert time.monotonic() < end, (engine.health(frozen), engine.health(draining))
        time.sleep(0.3)
    engine.docker("kill", "--signal", "CONT", frozen)
    end = time.monotonic() + 10
    while engine.health(frozen) != "healthy":
        assert time.monotonic() < end, engine.health(frozen)
        time.sleep(0.3)


def readme_runs():
    """The lines of the pages of deploy/ that run a container, with this repository's model."""
    lines = []
    for path in sorted(glob.glob(os.path.join(DEPLOY, "*.md"))):
        with open(path) as f:
            lines += [(os.path.basename(path), m) for m in re.findall(r"^(?:    )?(docker run .*)$", f.read(), re.M)]
    assert lines, "no page runs a container"
    return [shlex.split(line.split(" #")[0]) for _, line in lines]


def test_docker_stop_waits_for_running_requests_of_a_container_run_as_the_readme_says(engine, started):
    """Docker kills after 10 s unless told: here a stream takes 13 s more."""
    words = next(w for w in readme_runs() if "--gpus" not in w)
    port, = free_ports(1)
    flags = [w.replace("/path/to/checkpoint", MODEL).replace("127.0.0.1:8080:", f"127.0.0.1:{port}:") for w in words[2:words.index("rodimus")] if w != "-d"]
    serve = words[words.index("rodimus") + 2:]
    name = started(*flags, serve=(*serve, "--device", "null:500"))
    engine.wait_ready(name)
    connection, response = post("127.0.0.1", {"prompt": "Once", "max_tokens": 26, "ignore_eos": True, "stream": True}, port=port)
    got = []
    reader = threading.Thread(target=lambda: got.extend(event.data for event in read_events(response)))
    reader.start()
    while not got:
        time.sleep(0.05)
    began = time.monotonic()
    engine.docker("stop", name, timeout=60)
    took = time.monotonic() - began
    reader.join()
    connection.close()
    assert got[-1] == "[DONE]" and len(got) == 28, f"{len(got)} events, the last {got[-1]}"
    assert ended(engine, name) == (0, False), engine.logs(name)
    assert 10.5 < took < 30, f"{took:.1f} s"


# ---- who owns what ----

def test_sessions_live_in_a_volume_longer_than_their_container(engine, started):
    engine.docker("volume", "create", "states-of-a-test")
    where = (*HARDENED, "-v", "states-of-a-test:/var/lib/rodimus")
    first = started(*where)
    engine.wait_ready(first)
    assert turn(engine.address(first), session_create=True)[0] == 200
    engine.docker("kill", first)
    engine.docker("rm", "-v", first)
    second = started(*where)
    engine.wait_ready(second)
    status, body = turn(engine.address(second), expected_version=1)
    assert status == 200 and body["session"]["version"] == 2, body
    engine.docker("volume", "inspect", "states-of-a-test")


@pytest.fixture
def folder(tmp_path):
    """folder(OWNER, mode): an empty one to mount; everybody may pass the folders above it."""
    for above in (tmp_path, *list(tmp_path.parents)[:3]):
        if str(above).startswith("/tmp/"):
            os.chmod(above, os.stat(above).st_mode | 0o111)

    def make(owner, mode=0o700):
        path = tmp_path / str(owner)
        path.mkdir()
        os.chmod(path, mode)
        os.chown(path, owner, owner)
        return path

    return make


@pytest.mark.parametrize("user", [10001, 1234])
def test_a_mounted_folder_takes_states_if_the_servers_user_owns_it(engine, started, folder, user):
    states = folder(user)
    name = started(*HARDENED, "-v", f"{states}:/var/lib/rodimus", *(() if user == 10001 else ("--user", f"{user}:{user}")))
    engine.wait_ready(name)
    assert turn(engine.address(name), session_create=True)[0] == 200
    inside = [os.stat(os.path.join(at, one)) for at, _, files in os.walk(states) for one in files]
    assert inside and all((s.st_uid, s.st_mode & 0o077) == (user, 0) for s in inside)


def test_a_mounted_folder_of_another_owner_ends_the_start_with_its_name_and_the_user(engine, started, folder):
    name = started("-v", f"{folder(0)}:/var/lib/rodimus")
    assert ended(engine, name)[0] == 1
    said = engine.logs(name)
    assert "state_dir /var/lib/rodimus" in said and "uid 10001" in said, said


def test_a_volume_belongs_to_the_images_user_and_takes_states_of_no_other(started, engine):
    name = started("--user", "1234:1234", "-v", "another-volume:/var/lib/rodimus")
    assert ended(engine, name)[0] == 1 and "uid 1234" in engine.logs(name), engine.logs(name)


def test_keys_in_a_mounted_file_are_for_the_servers_user_alone(engine, started, folder):
    keys = folder(10001)
    (keys / "keys").write_text("sk-test name=somebody\n")
    os.chown(keys / "keys", 10001, 10001)
    os.chmod(keys / "keys", 0o400)
    name = started("-v", f"{keys}:/keys:ro", "-e", "RODIMUS_API_KEY_FILE=/keys/keys")
    engine.wait_ready(name)
    assert get(engine.address(name), 8080, "/v1/models")[0] == 401
    assert get(engine.address(name), 8080, "/v1/models", headers={"Authorization": "Bearer sk-test"})[0] == 200


def test_a_mounted_model_must_be_readable_by_the_servers_user(engine, started, folder):
    for mode, wanted in ((0o700, 1), (0o755, None)):
        model = folder(1000 + mode, mode)
        shutil.copytree(MODEL, model / "tales")
        os.chmod(model / "tales", 0o755)
        name = started("-v", f"{model}:/model:ro", serve=("--model", "/model/tales"))
        if wanted is None:
            engine.wait_ready(name)
        else:
            assert ended(engine, name)[0] == wanted
            assert "/model/tales" in engine.logs(name) and "Permission denied" in engine.logs(name), engine.logs(name)


# ---- figures ----

def test_a_container_is_ready_and_answers_within_seconds(engine, image):
    """From `docker run` to ready, and to the first token; the demo model, five times."""
    ready, first = [], []
    for _ in range(5):
        began, port = time.monotonic(), free_ports(1)[0]
        name = engine.docker("run", "-d", *HARDENED, "-p", f"127.0.0.1:{port}:8080", image)
        try:
            while get("127.0.0.1", port, "/health/ready", timeout=1)[0] != 200:
                assert time.monotonic() - began < 30, engine.logs(name)
                time.sleep(0.005)
            ready.append(time.monotonic() - began)
            connection, response = post("127.0.0.1", {"prompt": "There was once a", "max_tokens": 2, "stream": True}, port=port)
            next(read_events(response))
            first.append(time.monotonic() - began)
            connection.close()
        finally:
            engine.docker("rm", "-fv", name)
    ready, first = sorted(ready), sorted(first)
    assert first[2] < 10, f"{first}"
    record(what="docker run", event="start", model=DEFAULT, runs=5, to_ready_s=round(ready[2], 2), slowest_to_ready_s=round(ready[-1], 2),
           to_first_token_s=round(first[2], 2), slowest_to_first_token_s=round(first[-1], 2))
