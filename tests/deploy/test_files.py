"""The files of deploy/ that somebody else's program reads: each against its schema, or by that program, and against the server."""
import glob
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import time

import jsonschema
import pytest
import yaml

from replicas import DEPLOY, ROOT, Server, command, free_ports, held_loading
from server import DEFAULT

def text_of(name):
    with open(os.path.join(DEPLOY, name)) as f:
        return f.read()


def test_the_dashboard_asks_for_metrics_that_exist(served):
    dashboard = json.loads(text_of("grafana.json"))
    ids = [p["id"] for p in dashboard["panels"]]
    assert len(ids) == len(set(ids)) > 10
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            asked = set(re.findall(r"\b((?:rodimus|process|vllm)_[a-z_]+)", target["expr"]))
            assert asked and asked <= served, f"{panel['title']}: {asked - served}"


def test_no_panels_overlap():
    taken = {}
    for p in json.loads(text_of("grafana.json"))["panels"]:
        g = p["gridPos"]
        assert g["x"] + g["w"] <= 24
        for x in range(g["x"], g["x"] + g["w"]):
            for y in range(g["y"], g["y"] + g["h"]):
                assert taken.setdefault((x, y), p["title"]) == p["title"], (x, y, taken[x, y], p["title"])


def test_alerts_ask_for_metrics_that_exist_and_each_has_its_runbook(served):
    alerts = set()
    for group in yaml.safe_load(text_of("alerts.yml"))["groups"]:
        for rule in group["rules"]:
            asked = set(re.findall(r"\b((?:rodimus|process)_[a-z_]+)", rule["expr"]))
            assert asked <= served and (asked or "up{" in rule["expr"]), f"{rule['alert']}: {asked - served}"
            alerts.add(rule["alert"])
    told = re.findall(r"^## (\w+)\n(?=\S)", text_of("ALERTS.md"), re.M)
    assert sorted(told) == sorted(alerts), f"no runbook for {alerts - set(told)}, no alert for {set(told) - alerts}"


def test_each_counter_of_something_lost_has_an_alert(served):
    """But for what a key's own limits refuse: that is meant."""
    lost = {name for name in served if re.search("_(failed|failures|dropped|refused|rejected|nan|no_room)_total$", name)} - {"rodimus_key_rejected_total"}
    asked = set(re.findall(r"\b(rodimus_[a-z_]+)", text_of("alerts.yml")))
    assert len(lost) > 5 and lost <= asked, f"no alert for {lost - asked}"


def test_prometheus_takes_its_files():
    if not shutil.which("promtool"):
        pytest.skip("promtool (Debian's package prometheus) is not here")
    done = subprocess.run(["promtool", "check", "config", os.path.join(DEPLOY, "prometheus.yml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml", "compose.nginx.yaml", "compose.caddy.yaml"])
def test_compose_files_are_valid_for_compose_v2(name):
    """By its published schema, as a package carries it; Debian 12 has no Compose v2."""
    package = os.path.dirname(importlib.util.find_spec("check_jsonschema").origin)
    with open(os.path.join(package, "builtin_schemas", "vendor", "compose-spec.json")) as f:
        schema = json.load(f)
    jsonschema.Draft7Validator(schema).validate(yaml.safe_load(text_of(name)))


@pytest.mark.parametrize("names", [["compose.yaml", *more] for more in ([], ["compose.cuda.yaml"], ["compose.nginx.yaml"], ["compose.caddy.yaml"])], ids=" ".join)
def test_docker_compose_1_29_takes_the_compose_files(names):
    if not shutil.which("docker-compose"):
        pytest.skip("docker-compose is not here")
    files = [word for name in names for word in ("-f", os.path.join(DEPLOY, name))]
    for variables in ({}, {"MODEL_DIR": "/srv/my-model"}):
        done = subprocess.run(["docker-compose", *files, "config"], env={**os.environ, **variables}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for name, service in yaml.safe_load(done.stdout)["services"].items():
            if name.startswith("rodimus-"):
                host, inside = next(volume.split(":")[:2] for volume in service["volumes"] if ":/model" in volume)
                model = service["environment"]["RODIMUS_MODEL"].replace(inside, host, 1)
                assert model == variables.get("MODEL_DIR", os.path.join(ROOT, "config", "models", DEFAULT)), service
                assert service["build"]["target"] == ("cuda" if "compose.cuda.yaml" in names else "cpu")
                assert "compose.cuda.yaml" not in names or service["build"]["args"]["CUDA"] == "yes", "the classic builder is not told"


def test_containers_of_the_pages_get_the_time_that_a_drain_takes():
    """Docker and Podman kill after 10 s unless told."""
    with open(os.path.join(ROOT, "config", "default.json")) as f:
        settings = json.load(f)
    drain_s = (settings["drain_notice_ms"] + settings["drain_ms"]) / 1000
    runs = []
    for path in [os.path.join(ROOT, "README.md"), *glob.glob(os.path.join(DEPLOY, "**", "*.md"), recursive=True)]:
        with open(path) as f:
            runs += [(path, run) for run in re.findall(r"(?:docker|podman) run [^\n`]*\brodimus\b[^\n`]*", f.read())]
    assert len(runs) > 1
    for path, run in runs:
        stop = re.search(r"--stop-timeout[= ](\d+)", run)
        assert stop and int(stop[1]) > drain_s, f"{path}: {run}"
    for name in ("rodimus-1", "rodimus-2", "rodimus-3"):
        assert float(yaml.safe_load(text_of("compose.yaml"))["services"][name]["stop_grace_period"].rstrip("s")) > drain_s


def test_compose_mounts_files_that_exist():
    for name, service in yaml.safe_load(text_of("compose.yaml"))["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert os.path.isfile(os.path.join(DEPLOY, source)), f"{name}: {source}"


def test_prometheus_asks_the_port_that_the_replicas_open_for_it():
    """Their admin port: the other one refuses connections while the model is loaded, and takes nobody at its limit."""
    services = yaml.safe_load(text_of("compose.yaml"))["services"]
    job, = (j for j in yaml.safe_load(text_of("prometheus.yml"))["scrape_configs"] if j["job_name"] == "rodimus")
    replicas = {name: service for name, service in services.items() if "RODIMUS_ADMIN_PORT" in (service.get("environment") or {})}
    targets = [target.split(":") for asked in job["static_configs"] for target in asked["targets"]]
    assert set(job) & {"dns_sd_configs"} == set(), "a replica that is gone is gone from the name server too, and its `up` with it"
    assert sorted(name for name, _ in targets) == sorted(replicas)
    for name, port in targets:
        assert str(replicas[name]["environment"]["RODIMUS_ADMIN_PORT"]) == port and port in replicas[name]["expose"], name
        assert replicas[name]["environment"]["RODIMUS_ADMIN_HOST"] == "0.0.0.0", "Prometheus runs in a container of its own"


def test_systemd_allows_the_gpus_of_old_and_new_drivers():
    """By the names in /proc/devices, which changed with 550.40."""
    unit = text_of("rodimus.service")
    allowed = set(re.findall(r"^DeviceAllow=char-(\S+) rw$", unit, re.M))
    for driver, names in {"535": {"nvidia-frontend", "nvidia-uvm", "nvidia-caps"}, "550.40": {"nvidia", "nvidiactl", "nvidia-uvm", "nvidia-caps"}}.items():
        assert names <= allowed, f"driver {driver}: {names - allowed}"


def test_systemd_goes_on_trying_as_docker_and_kubernetes_do():
    """A driver that is reset, a name server or a disk that comes late: some minutes, in which exit status 1 comes at once each time."""
    unit = dict(re.findall(r"^(\w+)=(.*)$", text_of("rodimus.service"), re.M))
    tries_s = int(unit["StartLimitBurst"]) * float(unit["RestartSec"]) if int(unit["StartLimitIntervalSec"]) else float("inf")
    assert unit["Restart"] == "on-failure" and tries_s > 600, f"it gives up after {tries_s:.0f} s"
    assert unit["RestartPreventExitStatus"] == "2", "what no restart cures is not tried again"


# ---- the image's health check, run here as the image would ----

def healthcheck(**env):
    """(exit status, what it said) of the Dockerfile's HEALTHCHECK, with its settings and these over them."""
    recipe = text_of("Dockerfile").replace("\\\n", " ")
    check = json.loads(re.search(r"^HEALTHCHECK .*?CMD (\[.*)$", recipe, re.M).group(1))
    said = dict(word.split("=", 1) for word in re.search(r"^ENV (RODIMUS_HOST.*)$", recipe, re.M).group(1).split())
    done = subprocess.run(check, env={"PATH": os.environ["PATH"], **said, **{k: str(v) for k, v in env.items()}}, capture_output=True, text=True, timeout=20)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "a.crt", folder / "a.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost",
                    "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("admin", [False, True])
def test_the_healthcheck_sees_a_server_that_is_ready(certificate, tls, admin):
    port, admin_port = free_ports(2)
    flags = ["--tls-cert", certificate[0], "--tls-key", certificate[1]] if tls else []
    env = {"RODIMUS_PORT": port, "RODIMUS_ADMIN_PORT": admin_port if admin else 0, **({"RODIMUS_TLS_CERT": certificate[0]} if tls else {})}
    server = Server("--port", port, "--admin-port", admin_port if admin else 0, *flags, name="deploy-health")
    try:
        status, said = healthcheck(**env)
        assert status == 0, said
    finally:
        server.kill()
    assert healthcheck(**env)[0] != 0, "nobody is there any more"


def test_the_healthcheck_passes_when_all_connections_are_taken():
    """It would end a replica for being in full use."""
    port, admin_port = free_ports(2)
    server = Server("--port", port, "--admin-port", admin_port, "--connection-limit", 8, name="deploy-health")
    try:
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        time.sleep(0.3)
        status, said = healthcheck(RODIMUS_PORT=port, RODIMUS_ADMIN_PORT=admin_port)
        assert status == 0, said
        for c in held:
            c.close()
    finally:
        server.kill()


def test_the_healthcheck_fails_while_the_model_is_loaded(tmp_path):
    hold = tmp_path / "hold"
    hold.touch()
    port, admin_port = free_ports(2)
    server = Server("--port", port, "--admin-port", admin_port, name="deploy-health", env=held_loading(hold), wait=False)
    try:
        server.wait_log("loading ")
        assert healthcheck(RODIMUS_PORT=port, RODIMUS_ADMIN_PORT=admin_port)[0] != 0
        hold.unlink()
        server.wait_ready()
        status, said = healthcheck(RODIMUS_PORT=port, RODIMUS_ADMIN_PORT=admin_port)
        assert status == 0, said
    finally:
        server.kill()


def test_settings_in_files_are_settings_of_the_server():
    with open(os.path.join(ROOT, "config", "default.json")) as f:
        known = {"RODIMUS_" + key.upper() for key in json.load(f)}
    for name in ("compose.yaml", "Dockerfile"):
        said = set(re.findall(r"\bRODIMUS_[A-Z_]+\b", text_of(name)))
        assert said <= known, f"{name}: {said - known}"
