"""compose.yaml with each balancer in a Docker engine: what becomes of requests when replicas are restarted, recreated, killed and paused.

The figures of tests/bench/results/deploy.json: RODIMUS_TEST_FULL=1 RODIMUS_TEST_RESULTS=tests/bench/results tests/run build deploy -k balanced_containers"""
import json
import os
import re
import signal
import time
from contextlib import ExitStack

import pytest

from engine import BASE, get
from load import Load, borne
from replicas import free_ports
from results import record

pytestmark = pytest.mark.timeout(900)  # the image is built if it is not there

IMAGES = ["haproxy:2.6", "nginx:1.22", "caddy:2.6"]
FILES = {"haproxy": (), "nginx": ("deploy/compose.nginx.yaml",), "caddy": ("deploy/compose.caddy.yaml",)}
KINDS = list(FILES)
REPLICAS = ["rodimus-1", "rodimus-2", "rodimus-3"]
FULL = os.environ.get("RODIMUS_TEST_FULL") == "1"
COMMAND = "RODIMUS_TEST_FULL=1 tests/run build deploy -k balanced_containers"
PAUSE_S = 10

# The device computes nothing, 20 ms a step: what is tested is the way.
NULL = {"services": {name: {"environment": {"RODIMUS_DEVICE": "null:20", "RODIMUS_SLOTS": "64"}} for name in REPLICAS}}


class Site:
    """Three replicas, and on their network each balancer as the files of deploy/ start it."""

    def __init__(self, engine, folder):
        self.engine, self.folder, self.network = engine, folder, "rodimusb_default"
        self.projects = {"haproxy": "rodimusb", "nginx": "rodimusb-nginx", "caddy": "rodimusb-caddy"}

    def compose(self, *words, kind="haproxy"):
        more = NULL if kind == "haproxy" else {"version": "3.5", "networks": {"default": {"external": True, "name": self.network}}}
        path = self.folder / f"{kind}.yaml"
        path.write_text(json.dumps(more))
        api, grafana = free_ports(2)
        files = [word for name in ("deploy/compose.yaml", *FILES[kind], path) for word in ("-f", str(name))]
        return self.engine.compose(*files, *words, env={"API_PORT": str(api), "GRAFANA_PORT": str(grafana), "COMPOSE_PROJECT_NAME": self.projects[kind]})

    def container(self, service):
        """service: one of REPLICAS or of KINDS."""
        return f"{self.projects[service]}_balancer_1" if service in KINDS else f"rodimusb_{service}_1"

    def address(self, service):
        return self.engine.address(self.container(service))

    def pid(self, service):
        return self.engine.inspect(self.container(service))["State"]["Pid"]

    def up(self):
        self.compose("up", "-d", "--no-build", *REPLICAS, "balancer")
        for kind in KINDS[1:]:
            self.compose("up", "-d", "--no-build", "--no-deps", "balancer", kind=kind)
        self.wait(*REPLICAS, *KINDS)

    def ready(self, service):
        state = self.engine.inspect(self.container(service))
        running = state["State"]["Running"] and any(n["IPAddress"] for n in state["NetworkSettings"]["Networks"].values())
        return running and get(self.address(service), 8000 if service in KINDS else 8080, "/health/ready")[0] == 200

    def wait(self, *services, timeout=60):
        end = time.monotonic() + timeout
        for service in services:
            while not self.ready(service):
                assert time.monotonic() < end, self.engine.logs(self.container(service))[-3000:]
                time.sleep(0.1)

    def metric(self, service, name):
        text = get(self.address(service), 8081, "/metrics")[1]
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " "))

    def wait_served(self, service, kinds):
        """Until it gets requests by each balancer. Each tells its address in the requests that it passes on, and the log of a replica has them."""
        missing, end = [self.address(kind) for kind in kinds], time.monotonic() + 20
        while missing:
            log = self.engine.logs(self.container(service))
            missing = [address for address in missing if f'"peer":"{address}"' not in re.sub(r'.*"path":"/health.*', "", log)]
            assert time.monotonic() < end, f"{service} gets nothing of {missing}"
            time.sleep(0.2)

    def recreate(self, service):
        """A new container with another address: some other one has its own now."""
        before, takers = self.address(service), []
        self.compose("rm", "--stop", "--force", service)
        try:
            while not takers or self.engine.address(takers[-1]) != before:
                takers.append(self.engine.docker("run", "-d", "--network", self.network, BASE, "sleep", "600"))
            self.compose("up", "-d", "--no-build", "--no-deps", service)
            self.wait(service)
            assert self.address(service) != before, "its address did not change"
        finally:
            self.engine.docker("rm", "-f", *takers)

    def down(self):
        for kind in reversed(KINDS):
            self.compose("rm", "--stop", "--force", "balancer", kind=kind)
        self.compose("down", "-v", "--timeout", "1")


@pytest.fixture(scope="module")
def site(engine, tmp_path_factory):
    engine.server_image()
    engine.image(*IMAGES)
    site = Site(engine, tmp_path_factory.mktemp("compose"))
    try:
        site.up()
        yield site
    finally:
        site.down()


@pytest.mark.parametrize("kind", KINDS)
def test_a_balancer_runs_without_rights_on_a_read_only_root(site, kind):
    held = site.engine.inspect(site.container(kind))["HostConfig"]
    assert held["ReadonlyRootfs"] and held["CapDrop"] == ["ALL"] and "no-new-privileges:true" in held["SecurityOpt"], held
    with open(f"/proc/{site.pid(kind)}/status") as f:
        bounds = {name: value.strip() for name, _, value in (line.partition(":") for line in f)}
    net_bind_service = 1 << 10
    assert int(bounds["CapBnd"], 16) == (net_bind_service if kind == "caddy" else 0), bounds["CapBnd"]
    assert kind == "caddy" or bounds["Uid"].split()[0] != "0", bounds["Uid"]


def test_a_recreated_replica_gets_requests_at_its_new_address_and_none_is_lost(site):
    with ExitStack() as stack:
        loads = {kind: stack.enter_context(Load(site.address(kind), 8000, n_each=1)) for kind in KINDS}
        site.recreate("rodimus-2")
        site.wait_served("rodimus-2", KINDS)
        time.sleep(2)
    lost = {kind: (len(load.lost), len(load.outcomes), load.lost[:3]) for kind, load in loads.items() if len(load.lost) > borne(kind)}
    assert not lost and all(len(load.outcomes) > 20 for load in loads.values()), lost


# ---- the figures: six minutes, and no test of each day ----

@pytest.fixture(params=KINDS)
def measured(request, site):
    """(balancer, load, note): what note() adds goes to the row of the results, which the test names by its event. kills: their times."""
    if not FULL:
        pytest.skip("RODIMUS_TEST_FULL=1; test_balancers.py has it on loopback")
    more = {}
    with Load(site.address(request.param), 8000) as load:
        time.sleep(2)
        yield request.param, load, more.update
        time.sleep(3)
    died_s = 0.05  # a process that is killed takes some milliseconds to be gone
    kills = more.pop("kills", [])
    lost_later = [one for one in load.outcomes if one[3] and not any(one[1] <= kill + died_s and one[1] + one[2] >= kill for kill in kills)]
    if kills:
        more["begun_after_the_kill"] = len(lost_later)
    row = dict(what="losses", balancer=request.param, requests=len(load.outcomes), lost=len(load.lost), slowest_s=round(load.slowest_s, 1), **more)
    print(row, load.lost[:8])
    record(COMMAND, **row)
    # Caddy does not repeat the request that finds a death out.
    assert len(lost_later) <= borne(request.param) + (2 * len(kills) if request.param == "caddy" else 0), lost_later[:8]


def test_restarts_lose_nothing(site, measured):
    _, _, note = measured
    note(event="restart")
    for service in REPLICAS:
        site.engine.docker("restart", site.container(service))
        site.wait(service)
        time.sleep(3)


def test_recreated_replicas_lose_nothing(site, measured):
    kind, _, note = measured
    note(event="recreate")
    for service in REPLICAS:
        site.recreate(service)
        site.wait_served(service, [kind])
        time.sleep(3)


def test_a_killed_replica_loses_its_own_requests(site, measured):
    """The engine starts it again by itself."""
    _, _, note = measured
    kills = []
    for service in REPLICAS:
        pid = site.pid(service)
        kills.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)
        time.sleep(2)
        site.wait(service)
        time.sleep(3)
    note(event="kill", kills=kills)


def test_a_paused_replica_goes_on_afterwards_and_loses_nothing(site, measured):
    _, load, note = measured
    for service in REPLICAS:
        site.engine.docker("pause", site.container(service))
        time.sleep(PAUSE_S)
        site.engine.docker("unpause", site.container(service))
        time.sleep(3)
    note(event="pause", seconds=PAUSE_S, later_than_5_s=sum(seconds > 5 for _, _, seconds, _ in load.outcomes))
