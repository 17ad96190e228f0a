"""compose.yaml brought up by docker-compose 1.29 in a Docker engine, with stand-ins of the images of a registry (engine.py)."""
import http.client
import json
import os
import shutil
import time

import pytest

from engine import get
from replicas import free_ports
from results import record
from server import DEFAULT, MODEL

pytestmark = pytest.mark.timeout(900)  # the image is built if it is not there
REPLICAS = [f"rodimus_rodimus-{i}_1" for i in (1, 2, 3)]
IMAGES = ("haproxy:2.6", "prom/prometheus:v2.55.1", "grafana/grafana:11.3.0")


@pytest.fixture(scope="module")
def up(engine):
    """up(**VARIABLES): the port of the API when all are up; what is up is changed where the variables say so."""
    engine.server_image()
    engine.image(*IMAGES)
    api, grafana = free_ports(2)
    env = {"API_PORT": str(api), "GRAFANA_PORT": str(grafana)}

    def bring(**variables):
        env.update(variables)
        began, first = time.monotonic(), not engine.docker("ps", "-aq", "--filter", "name=rodimus_")
        engine.compose("-f", "deploy/compose.yaml", "up", "-d", "--no-build", env=env)
        engine.wait_healthy(*REPLICAS)
        end = time.monotonic() + 20
        while get("127.0.0.1", api, "/health/ready")[0] != 200:
            assert time.monotonic() < end, engine.logs("rodimus_balancer_1")[-2000:]
            time.sleep(0.2)
        if first:
            record(what="compose up", balancer="haproxy", event="start", model=DEFAULT, replicas=3, to_ready_s=round(time.monotonic() - began, 1))
        return api, grafana

    yield bring
    engine.compose("-f", "deploy/compose.yaml", "down", "-v", "--timeout", "1", env=env)


@pytest.mark.skipif(not os.environ.get("RODIMUS_TEST_FULL"), reason="RODIMUS_TEST_FULL=1: everything is compiled again")
def test_docker_compose_builds_the_image_without_its_cuda_part(engine, tmp_path):
    """1.29 brings a builder of its own. Packages are fetched over the host's network."""
    with open(tmp_path / "network.yaml", "w") as f:
        json.dump({"services": {f"rodimus-{i}": {"image": "rodimus:by-compose", "build": {"network": "host"}} for i in (1, 2, 3)}}, f)
    engine.image(*IMAGES)
    engine.compose("-f", "deploy/compose.yaml", "-f", tmp_path / "network.yaml", "build", timeout=800)
    inside = engine.docker("run", "--rm", "--entrypoint", "ls", "rodimus:by-compose", "/opt/rodimus/bin")
    assert inside == "rodimus"


def ask(port, path, body=None, key=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
    response = connection.getresponse()
    try:
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_three_replicas_serve_behind_the_balancer_and_share_their_sessions(engine, up):
    port, _ = up()
    assert ask(port, "/v1/models")[1]["data"][0]["id"] == DEFAULT
    turn = {"prompt": "Once", "max_tokens": 2, "session_id": "fox"}
    for version in range(1, 7):  # without the header each turn may meet another replica
        status, body = ask(port, "/v1/completions", {**turn, "session_create": version == 1})
        assert status == 200 and body["session"]["version"] == version, body
    served = [name for name in REPLICAS if '"path":"/v1/completions"' in engine.logs(name)]
    assert len(served) > 1, f"all turns met {served}"


def test_containers_run_without_rights_and_on_read_only_roots(engine, up):
    up()
    for name in [*REPLICAS, "rodimus_balancer_1"]:
        with open(f"/proc/{engine.inspect(name)['State']['Pid']}/status") as f:
            process = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
        assert process["Uid"].split()[0] != "0" and int(process["CapBnd"], 16) == 0 and process["NoNewPrivs"] == "1", (name, process)
        assert engine.inspect(name)["HostConfig"]["ReadonlyRootfs"], name


def test_prometheus_scrapes_every_replica_and_the_balancer(engine, up):
    up()
    address, end = engine.address("rodimus_prometheus_1"), time.monotonic() + 20
    while True:
        targets = json.loads(get(address, 9090, "/api/v1/targets")[1])["data"]["activeTargets"]
        health = {t["labels"]["instance"]: t["health"] for t in targets}
        if set(health.values()) == {"up"}:
            break
        assert time.monotonic() < end, health
        time.sleep(0.5)
    assert set(health) == {"rodimus-1:8081", "rodimus-2:8081", "rodimus-3:8081", "balancer:8404"}
    rules = json.loads(get(address, 9090, "/api/v1/rules")[1])["data"]["groups"]
    assert sum(len(group["rules"]) for group in rules) > 10


def test_grafanas_user_reads_what_is_mounted_for_it(up):
    """The stand-in is up only if it could read its three files; no panel is drawn here."""
    _, grafana = up()
    assert get("127.0.0.1", grafana, "/")[0] == 200


def test_a_model_and_keys_of_ones_own_come_by_variables(engine, up, tmp_path):
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(folder.stat().st_mode | 0o755)
    shutil.copytree(MODEL, tmp_path / "my-tales")
    port, _ = up(MODEL_DIR=str(tmp_path / "my-tales"), RODIMUS_API_KEYS="sk-test", RODIMUS_ADMIN_KEY="sk-admin")
    assert ask(port, "/v1/models")[0] == 401
    status, body = ask(port, "/v1/models", key="sk-test")
    assert status == 200 and body["data"][0]["id"] == "my-tales", body


def test_stopped_replicas_end_by_themselves(engine, up):
    up()
    engine.compose("-f", "deploy/compose.yaml", "stop", "rodimus-1", "rodimus-2", "rodimus-3")
    ends = {name: engine.inspect(name)["State"]["ExitCode"] for name in REPLICAS}
    assert set(ends.values()) == {0}, ends
