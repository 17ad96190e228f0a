"""Balancers that know replicas by name, as on bare metal, in Docker, Podman and Kubernetes: with a name server of the tests' own."""
import os
import random
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from names import NameServer, inside, may_have_own_files
from replicas import DEPLOY, KINDS, N_REPLICAS, Balancer, Replica, free_ports, installed

WITHOUT = "fd00::7"  # an address that no name leads to anybody by: replicas listen on IPv4

pytestmark = pytest.mark.skipif(not may_have_own_files(), reason="needs root and a mount namespace")


class Site:
    """Three replicas, each on an address of its own on one port, and the name server that knows them."""

    def __init__(self, folder):
        self.folder = folder
        self.net = f"127.{random.randrange(1, 250)}.{random.randrange(1, 250)}"
        self.port, = free_ports(1)
        self.dns = NameServer(f"{self.net}.1")
        self.names = [f"rodimus-{i + 1}" for i in range(N_REPLICAS)]
        self.replicas = []
        for i in range(N_REPLICAS):
            self.start(i, f"{self.net}.{11 + i}")

    def start(self, i, address):
        replica = Replica(i + 1, self.port, "--host", address, "--device", "null:1", "--listen", "ready")
        replica.host = address
        self.replicas[i:i + 1] = [replica]
        self.dns.names[self.names[i]] = [address, WITHOUT]

    def balancer(self, kind, hosts="", files=DEPLOY, wait=True, dns=None):
        folder = self.folder / f"{kind}-{time.monotonic_ns()}"
        folder.mkdir()
        return Balancer(kind, [f"{name}:{self.port}" for name in self.names], folder, inside(folder, (dns or self.dns).address, hosts), files, wait)

    def hasty(self, changes):
        """A folder with the files of deploy/ and some of their times changed: {file: (old, new)}."""
        folder = self.folder / f"files-{time.monotonic_ns()}"
        shutil.copytree(DEPLOY, folder)
        for name, (old, new) in changes.items():
            text = (folder / name).read_text()
            assert re.search(old, text), f"{name} has no {old}"
            (folder / name).write_text(re.sub(old, new, text))
        return folder

    def stop(self):
        for r in self.replicas:
            r.kill()
        self.dns.stop()


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    site.stop()


@pytest.fixture
def start(site):
    """start(...): one balancer of each kind that is installed; all end with the test."""
    started = []

    def start(kinds=KINDS, **more):
        new = [site.balancer(kind, wait=False, **more) for kind in kinds if installed(kind)]
        started.extend(new)
        return new

    yield start
    for balancer in started:
        balancer.stop()


def ready(balancers):
    for b in balancers:
        b.wait_ready()
    return balancers


def asked(replica):
    return replica.metric("rodimus_completion_tokens_total")


def ask(balancers, n=1):
    for b in balancers:
        for _ in range(n):
            status, body = b.post({"prompt": "Once", "max_tokens": 1, "ignore_eos": True}, timeout=20)
            assert status == 200, f"{b.kind}: {status} {body} {b.log()[-2000:]}"


def wait_served(balancers, replicas, timeout=15):
    """Until each of these replicas gets requests of each balancer; none may fail meanwhile."""
    end = time.monotonic() + timeout
    for b in balancers:
        before = [asked(r) for r in replicas]
        while any(asked(r) <= count for r, count in zip(replicas, before)):
            ask([b], 3)
            assert time.monotonic() < end, f"{b.kind}: a replica gets nothing: {b.log()[-3000:]}"
            time.sleep(0.1)


def test_a_replica_that_comes_back_with_another_address_is_found(site, start):
    balancers = ready(start())
    wait_served(balancers, site.replicas)
    site.replicas[1].terminate()
    del site.dns.names[site.names[1]]  # as Docker does
    assert site.replicas[1].wait(30) == 0
    ask(balancers, 10)
    site.start(1, f"{site.net}.29")
    wait_served(balancers, site.replicas)


def test_names_of_etc_hosts_are_known_though_no_name_server_knows_them(site, start):
    """HAProxy asks name servers alone once it runs: it took such replicas down for good, 30 s after its start."""
    hosts = "".join(f"{site.dns.names.pop(name)[0]} {name}\n" for name in site.names)
    balancers = ready(start(hosts=hosts, files=site.hasty({"haproxy.cfg": ("hold nx 20d", "hold nx 1s")})))
    end = time.monotonic() + 6
    while time.monotonic() < end:
        ask(balancers, 2)
        time.sleep(0.2)
    assert site.dns.n_asked, "HAProxy did not ask the name server"
    wait_served(balancers, site.replicas)


def test_balancers_that_start_before_the_name_server_find_the_replicas_later(site, start):
    site.dns.mode = "silent"
    balancers = start()
    time.sleep(5)
    assert all(b.process.poll() is None for b in balancers), [b.log()[-1000:] for b in balancers]
    site.dns.mode = "answers"
    ready(balancers)
    time.sleep(3)
    wait_served(balancers, site.replicas)


def test_a_name_that_no_name_server_answers_for_does_not_delay_the_start(site, start):
    """Docker's asks others for a container that is away, which takes seconds. Nothing is served before HAProxy has looked all names up."""
    away = site.names[2]
    del site.dns.names[away]
    site.dns.silent = {away}
    began = time.monotonic()
    for b in start():
        b.wait_ready()
        assert time.monotonic() - began < 8, f"{b.kind} took {time.monotonic() - began:.1f} s"


def test_nginx_forgets_a_replica_whose_name_is_gone(site, start):
    """Its address may be somebody else's by then. While no name is answered for nginx forgets none."""
    if not installed("nginx"):
        pytest.skip("nginx is not installed")
    balancer, = ready(start(["nginx"], files=site.hasty({"nginx-start": ("gone_after_s=30", "gone_after_s=2")})))
    servers = lambda: open(os.path.join(balancer.folder, "nginx", "replicas.conf")).read().count("server ")
    site.dns.mode = "silent"
    time.sleep(8)
    assert servers() == 3
    del site.dns.names[site.names[2]]
    site.dns.mode = "answers"
    end = time.monotonic() + 15
    while servers() != 2:
        assert time.monotonic() < end, "nginx still has its address"
        time.sleep(0.2)
    ask([balancer], 10)


def live_through_an_outage(folder):
    """None, or what went wrong. 35 s in which one name server is silent, one answers that it fails and one that it knows no name."""
    site, balancers = Site(folder), []
    servers = [site.dns, *(NameServer(f"{site.net}.{n}") for n in (2, 3))]
    try:
        for server in servers:
            server.names = dict(site.dns.names)
            balancers += ready([site.balancer(kind, dns=server, wait=False) for kind in KINDS if installed(kind)])
        steady, asking = ([b for b in balancers if (b.kind == "caddy") == caddy] for caddy in (False, True))
        servers[0].mode, servers[1].mode, servers[2].names = "silent", "failing", {}
        end = time.monotonic() + 35
        while time.monotonic() < end:
            ask(steady)
            time.sleep(0.5)
        wait_served(steady, site.replicas)
        servers[0].mode = servers[1].mode = "answers"
        servers[2].names = servers[0].names
        time.sleep(10 if asking else 3)  # a look-up of Caddy's may take its time still
        wait_served(balancers, site.replicas)
    except AssertionError as e:
        return e
    finally:
        for b in balancers:
            b.stop()
        for server in servers[1:]:
            server.stop()
        site.stop()


@pytest.fixture(scope="module", autouse=True)
def outage(tmp_path_factory):
    """It goes on beside the other tests."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(live_through_an_outage, tmp_path_factory.mktemp("outage"))


def test_an_outage_of_the_name_servers_takes_no_replica_down(outage):
    """HAProxy's own bounds are 30 s. Caddy asks for each connection, so it is back when the name servers are."""
    assert outage.result() is None
