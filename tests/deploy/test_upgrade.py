"""deploy/roll: replicas become new ones under load, and nobody sees it; if one does not come up, the others are not touched."""
import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
import time

import pytest
import yaml

import compose_v2
from load import Load
from losses import assert_nothing_lost, figures
from replicas import DEPLOY, free_ports, read_events
from results import record
from stand_ins import StandIns

pytestmark = pytest.mark.timeout(1500)  # the image is compiled, if no test before has made it

PORTS = (8081, 8082, 8083)
REPLICAS = ["rodimus-1", "rodimus-2", "rodimus-3"]
FILES = {"haproxy": ["compose.yaml"], "nginx": ["compose.yaml", "compose.nginx.yaml"], "caddy": ["compose.yaml", "compose.caddy.yaml"]}
IMAGES = {"haproxy": "haproxy:2.6", "nginx": "nginx:1.22", "caddy": "caddy:2.6"}
FULL = os.environ.get("RODIMUS_TEST_FULL") == "1"


def roll(engine, *words, **env):
    """(exit status, output) of deploy/roll."""
    done = subprocess.run([os.path.join(DEPLOY, "roll"), *words], env={**engine.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    return done.returncode, done.stdout


def wait_for(condition, timeout=30):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


# ---- without an engine: what it refuses, and what a roll that was killed leaves ----

@pytest.fixture
def pretended(tmp_path):
    return StandIns(tmp_path)


@pytest.mark.parametrize("mode, slow", [("compose", "up -d --no-deps --no-build rodimus-1"), ("systemd", "restart rodimus@8081")])
def test_one_roll_at_a_time_and_a_killed_one_does_not_count(pretended, mode, slow):
    pretended.write("slow", slow)
    first = pretended.begin(mode)
    try:
        wait_for(lambda: any(slow in call for call in pretended.calls()))
        status, said = pretended.roll(mode)
        assert status == 1 and "another roll is at work" in said, said
        first.kill()  # alone: its children go on
        first.wait()
        pretended.write("slow", "nothing")
        status, said = pretended.roll(mode)
        assert status == 0 and "every replica is new" in said, said
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
        first.stdout.close()


@pytest.mark.parametrize("mode, one, its_end", [("compose", "rodimus-2", "docker-compose up -d --no-deps --no-build rodimus-2"), ("systemd", "rodimus@8082", "systemctl restart rodimus@8082.service")])
def test_one_replica_alone_becomes_new_if_others_serve(pretended, mode, one, its_end):
    status, said = pretended.roll(mode, one)
    assert status == 0, said
    assert [call for call in pretended.calls() if " up " in call or " restart " in call] == [its_end]


@pytest.mark.parametrize("mode, one, other", [("compose", "rodimus-2", "rodimus-3"), ("systemd", "rodimus@8082", "rodimus@8083.service")])
def test_one_replica_alone_is_not_touched_while_another_is_down(pretended, mode, one, other):
    state = pretended.state
    state["containers"]["c3"]["State"]["Running"] = False
    state["units"]["rodimus@8083.service"]["ActiveState"] = "failed"
    pretended.state = state
    status, said = pretended.roll(mode, one)
    assert status == 1 and f"{other} is not ready" in said, said
    assert not [call for call in pretended.calls() if " up " in call or " restart " in call]


def test_a_unit_that_nobody_wants_is_refused_if_named_and_else_left_alone(pretended):
    state = pretended.state
    state["units"]["rodimus@8083.service"] = {"ActiveState": "inactive"}
    pretended.state = state
    for unit, why in (("rodimus@9999", "neither active nor enabled nor failed"), ("rodimus@8083.service", "neither active"), ("rodimsu.service", "neither active")):
        status, said = pretended.roll("systemd", unit, "rodimus@8081")
        assert status == 1 and unit in said and why in said, said
    status, said = pretended.roll("systemd")
    assert status == 0 and "8083" not in said, said
    assert [call.split()[-1] for call in pretended.calls() if " restart " in call] == ["rodimus@8081.service", "rodimus@8082.service"]


@pytest.mark.parametrize("name", ["RODIMUS_API_KEYS", "RODIMUS_API_KEY_FILE", "RODIMUS_ADMIN_KEY", "RODIMUS_MODEL"])
def test_keys_and_models_are_not_lost_because_a_shell_lacks_them(pretended, name):
    state = pretended.state
    state["env"] = ["PATH=/bin", f"{name}="]
    for container in state["containers"].values():
        container["Config"]["Env"] = [f"{name}=sk-secret"]
    pretended.state = state
    status, said = pretended.roll("compose")
    assert status == 1 and f"would lose {name}, " in said and "--env-file" in said and "secret" not in said, said
    assert sorted(pretended.state["containers"]) == ["c1", "c2", "c3"] and not [call for call in pretended.calls() if " up " in call]
    pretended.state = {**state, "env_of": {"balancer": [f"{name}=another"]}}  # of another service alone
    status, said = pretended.roll("compose")
    assert status == 1 and f"would lose {name}, " in said, said
    state["env"] = ["PATH=/bin", f"{name}=another"]
    pretended.state = state
    status, said = pretended.roll("compose")
    assert status == 0, said


def test_an_upgrade_of_containers_ends_at_the_first_that_does_not_come_up_and_tells_the_way_back(pretended):
    state = pretended.state
    pretended.state = {**state, "broken": ["rodimus-2"]}
    status, said = pretended.roll("compose")
    assert status == 1 and "rodimus-2 does not come up" in said and "its words" in said and "docker tag old rodimus:cpu, and roll" in said, said
    assert [(c["service"], c["Image"]) for c in pretended.state["containers"].values()] == [("rodimus-3", "old"), ("rodimus-1", "new"), ("rodimus-2", "new")]
    pretended.state = {**pretended.state, "image": "old", "broken": []}  # the tag given back
    status, said = pretended.roll("compose")
    assert status == 0 and [c["Image"] for c in pretended.state["containers"].values()] == ["old"] * 3, said
    assert [call.split()[-1] for call in pretended.calls() if " up " in call][2:] == ["rodimus-2", "rodimus-1", "rodimus-3"], "the one that is down first"


def test_units_go_back_to_the_old_files_and_these_are_kept_after_an_upgrade_that_held(pretended):
    place, more, second = pretended.write("etc/rodimus", "1"), pretended.path("etc/more"), pretended.write("second", "2")
    state = pretended.state
    pretended.state = {**state, "broken": ["rodimus@8082.service"]}
    status, said = pretended.roll("systemd", f"{second}={place}", f"{second}={more}")
    assert status == 1 and "rodimus@8082.service does not come up" in said and "rolling back" in said and "its words" in said, said
    assert pretended.read("etc/rodimus") == "1" and os.listdir(pretended.path("etc")) == ["rodimus"]
    pretended.state = state
    status, said = pretended.roll("systemd", f"{second}={place}", f"{second}={more}")
    assert status == 0 and f"to go back: roll systemd {place}.old={place}" in said, said
    assert [pretended.read(f"etc/{name}") for name in ("rodimus", "rodimus.old", "more")] == ["2", "1", "2"]


def kill_a_roll(pretended, pair):
    """Of units, in the middle of a restart."""
    pretended.write("slow", "restart rodimus@8082")
    script = pretended.begin("systemd", "--settle", "0", pair)
    wait_for(lambda: any("restart rodimus@8082" in call for call in pretended.calls()))
    script.kill()
    script.wait()
    script.stdout.close()
    pretended.write("slow", "nothing")


def test_an_upgrade_that_was_killed_goes_on_and_the_old_file_stays(pretended):
    place, second = pretended.write("etc/rodimus", "1"), pretended.write("second", "2")
    kill_a_roll(pretended, f"{second}={place}")
    status, said = pretended.roll("systemd", f"{second}={place}")
    assert status == 0 and pretended.read("etc/rodimus") == "2" and pretended.read("etc/rodimus.old") == "1", said


def test_an_upgrade_that_goes_on_after_a_kill_still_goes_back_to_the_files_before_it(pretended):
    place, bad = pretended.write("etc/rodimus", "1"), pretended.write("bad", "2")
    kill_a_roll(pretended, f"{bad}={place}")
    pretended.state = {**pretended.state, "broken": ["rodimus@8082.service"]}
    status, said = pretended.roll("systemd", f"{bad}={place}")
    assert status == 1 and "rolling back" in said and pretended.read("etc/rodimus") == "1", said
    assert os.listdir(pretended.path("etc")) == ["rodimus"]


def test_no_file_is_replaced_if_one_of_the_new_ones_is_missing(pretended):
    place, second = pretended.write("etc/rodimus", "1"), pretended.write("second", "2")
    status, said = pretended.roll("systemd", f"{second}={place}", f"{pretended.path('missing')}={pretended.path('etc/more')}")
    assert status == 1 and "missing is no file" in said and os.listdir(pretended.path("etc")) == ["rodimus"], said
    assert pretended.read("etc/rodimus") == "1" and not [call for call in pretended.calls() if " restart " in call]


def test_a_replica_that_is_named_twice_becomes_new_once(pretended):
    status, said = pretended.roll("systemd", "rodimus@8082", "rodimus@8082.service")
    assert status == 0, said
    assert [call for call in pretended.calls() if " restart " in call] == ["systemctl restart rodimus@8082.service"]


def test_files_go_where_a_link_points_with_rights_that_a_service_can_use(pretended):
    target, link, new = pretended.write("etc/1.json", "1"), pretended.path("etc/config.json"), pretended.write("new", "2")
    os.symlink(target, link)
    os.chmod(new, 0o600)
    program = pretended.write("program", "x")
    os.chmod(program, 0o700)
    status, said = pretended.roll("systemd", f"{new}={link}", f"{new}={link}.more", f"{program}={pretended.path('etc/program')}")
    assert status == 0 and os.path.islink(link) and pretended.read("etc/1.json") == "2", said
    assert [os.stat(pretended.path(f"etc/{name}")).st_mode & 0o777 for name in ("config.json.more", "program")] == [0o644, 0o755]


def test_words_that_mean_nothing_are_refused_and_all_spellings_are_known(pretended):
    status, said = pretended.roll("compose", "--force")
    assert status == 2 and "--force is gone" in said and "--force-recreate" in said, said
    status, said = pretended.roll("compose", "--file=a.yaml", "-pp", "--env-file=e", "--settle=0")
    assert status == 0 and "docker-compose --file a.yaml -p p --env-file e config --services" in pretended.calls(), said


# ---- compose ----

@pytest.fixture(scope="module")
def images(engine):
    """rodimus:upgrade may be the first or the second of two that differ."""
    engine.server_image()
    engine.docker("tag", "rodimus:cpu", "rodimus:first")
    engine.docker("build", "-t", "rodimus:second", "-", input="FROM rodimus:first\nLABEL version=2\n")


class Site:
    """The compose files with three replicas of a device that does nothing, 20 ms a step, and a balancer."""

    def __init__(self, engine, folder, balancer):
        self.engine, self.folder, self.balancer = engine, folder, balancer
        files = [os.path.join(DEPLOY, name) for name in FILES[balancer]] + [str(folder / "more.yaml")]
        self.files = ["-p", f"upgrade-{balancer}", *(word for name in files for word in ("-f", name))]
        engine.env.update(zip(("API_PORT", "GRAFANA_PORT"), map(str, free_ports(2))))
        self.write({})
        self.image("first")
        self.compose("up", "-d", "--no-build", *REPLICAS, "balancer")
        engine.wait_healthy(*self.containers())
        self.address = engine.address(self.compose("ps", "-q", "balancer"))

    def write(self, more):
        """Settings of single replicas beside those of all: {"rodimus-3": {"RODIMUS_DRAIN_MS": "1"}}"""
        services = {name: {"image": "rodimus:upgrade", "environment": {"RODIMUS_DEVICE": "null:20", "RODIMUS_SLOTS": "64", **more.get(name, {})},
                           "healthcheck": {"interval": "1s"}} for name in REPLICAS}
        (self.folder / "more.yaml").write_text(yaml.safe_dump({"version": "3.7", "services": services}))

    def image(self, name):
        self.engine.docker("tag", f"rodimus:{name}", "rodimus:upgrade")

    def compose(self, *words):
        return self.engine.compose(*self.files, *words)

    def containers(self):
        """Of each replica the one that there is: an upgrade leaves no second one behind."""
        each = [self.engine.docker("ps", "-aq", "--filter", f"label=com.docker.compose.project=upgrade-{self.balancer}", "--filter", f"label=com.docker.compose.service={name}").split() for name in REPLICAS]
        assert all(len(ids) == 1 for ids in each), each
        return [ids[0] for ids in each]

    def images(self):
        return [self.engine.docker("inspect", "-f", "{{.Image}}", container) for container in self.containers()]

    def id(self, name):
        return self.engine.docker("image", "inspect", "-f", "{{.Id}}", f"rodimus:{name}")

    def load(self):
        return Load(self.address, 8000, n_each=6 if FULL else 3)

    def roll(self, *words, compose="docker-compose"):
        return roll(self.engine, "compose", *self.files, "--settle", "5" if FULL else "2", *words, COMPOSE=compose)

    def down(self):
        self.compose("down", "-v", "-t", "5")


@pytest.fixture(scope="module", params=list(FILES) if FULL else ["haproxy"])
def site(request, engine, images, tmp_path_factory):
    engine.image(IMAGES[request.param])
    site = Site(engine, tmp_path_factory.mktemp("site"), request.param)
    try:
        yield site
    finally:
        site.down()


def other_image(site):
    """The one of the two that does not run."""
    return "second" if site.images()[0] == site.id("first") else "first"


def upgrade(site, **how):
    """All three replicas get the other image under load; nothing is lost."""
    before, name = site.images(), other_image(site)
    site.image(name)
    with site.load() as load:
        status, said = site.roll(**how)
    assert status == 0 and site.images() == [site.id(name)] * 3, said
    assert_nothing_lost(load, 200, said)
    assert before[0] in said, f"{before[0]}, to go back, is not told: {said}"
    return load


def test_an_upgrade_under_load_loses_no_request_and_no_session(site):
    load = upgrade(site)
    record(what="deploy/roll compose, docker-compose 1.29", balancer=site.balancer, event="upgrade", **figures(load))
    before = site.containers()
    site.compose("up", "-d", "--no-build", *REPLICAS)
    assert site.containers() == before, "docker-compose finds everything as its files say"


@pytest.mark.skipif(not FULL, reason="RODIMUS_TEST_FULL=1")
def test_without_roll_requests_are_lost(site):
    """What it is for."""
    site.image(other_image(site))
    with site.load() as load:
        time.sleep(2)
        site.compose("up", "-d", "--no-build", *REPLICAS)
        site.engine.wait_healthy(*site.containers())
        time.sleep(2)
    record(what="docker-compose 1.29 up -d, without roll", balancer=site.balancer, event="upgrade", **figures(load))
    assert load.lost


@pytest.mark.skipif(not FULL, reason="RODIMUS_TEST_FULL=1")
def test_an_answer_of_half_a_minute_is_not_cut(site):
    """Longer than Docker's own patience with a container that shall stop, 10 s."""
    n = 1250
    connection = http.client.HTTPConnection(site.address, 8000, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": n, "ignore_eos": True, "stream": True}), {"Content-Type": "application/json"})
    events = read_events(connection.getresponse())
    next(events)
    site.image(other_image(site))
    roll = threading.Thread(target=site.roll, args=("--settle", "0"))
    roll.start()
    rest = [event.data for event in events]
    roll.join()
    connection.close()
    assert rest[-1] == "[DONE]" and len(rest) == n + 1


def test_replicas_that_do_not_change_are_not_touched(site):
    before = site.containers()
    status, said = site.roll()
    assert status == 0 and site.containers() == before, said


def test_compose_v2_upgrades_what_docker_compose_began(site):
    compose, why_not = compose_v2.find(os.path.join(site.engine.folder, "compose-v2"))
    if not compose:
        print(f"note: {why_not}")
        pytest.skip(why_not)
    load = upgrade(site, compose=" ".join(compose))
    record(what="deploy/roll compose, Compose v2", balancer=site.balancer, event="upgrade", **figures(load))
    before = site.containers()
    site.engine.call([*compose, *site.files, "up", "-d", "--no-build", *REPLICAS], timeout=100)
    assert site.containers() == before, "Compose v2 finds everything as its files say"


def test_an_upgrade_ends_at_the_first_that_does_not_come_up_and_the_way_back_is_another(site):
    before, images, name = site.containers(), site.images(), other_image(site)
    site.image(name)
    site.write({"rodimus-2": {"RODIMUS_DEVICE": "none"}})
    with site.load() as load:
        status, said = site.roll()
        assert status == 1 and "rodimus-1 is ready" in said and "device = 'none'" in said and images[0] in said, said
        assert site.images()[0] == site.id(name) and site.containers()[2] == before[2]
        site.write({})
        site.engine.docker("tag", images[0], "rodimus:upgrade")
        status, said = site.roll()
    assert status == 0 and site.images() == images, said
    record(what="deploy/roll compose, the second replica does not come up", balancer=site.balancer, event="upgrade, rollback", **figures(load))
    assert_nothing_lost(load, 200, said)


# ---- systemd ----

@pytest.fixture
def host(booted):
    """Three replicas of rodimus@.service on one host, behind its HAProxy on port 8000."""
    booted.reset()
    booted.put(os.path.join(DEPLOY, "haproxy.cfg"), "/etc/haproxy/haproxy.cfg")
    booted.write("/etc/default/haproxy", "".join(f"RODIMUS_{i + 1}=127.0.0.1:{port}\n" for i, port in enumerate(PORTS)))
    booted.run(f"systemctl start haproxy {' '.join(f'rodimus@{port}' for port in PORTS)}")
    time.sleep(2)  # HAProxy sees them
    # another program, which does the same
    booted.run("cp /usr/local/bin/rodimus /srv/rodimus && echo >>/srv/rodimus")
    return booted


def running(host):
    """[(process, whether it runs the program that is installed now)] of the replicas."""
    said = [host.run(f"pid=$(systemctl show -P MainPID rodimus@{port}); echo $pid; cmp -s /proc/$pid/exe /usr/local/bin/rodimus && echo same || echo other").split() for port in PORTS]
    return [(pid, same == "same") for pid, same in said]


def test_an_upgrade_of_units_under_load_loses_no_request_and_no_session(host):
    before = running(host)
    with Load(host.address, 8000) as load:
        said = host.run("roll systemd --settle 2 /srv/rodimus=/usr/local/bin/rodimus")
    after = running(host)
    assert all(old != new for (old, _), (new, _) in zip(before, after)) and all(same for _, same in after), said
    host.run("cmp /srv/rodimus /usr/local/bin/rodimus && cmp /opt/rodimus/bin/rodimus /usr/local/bin/rodimus.old")
    record(what="deploy/roll systemd, rodimus@.service", balancer="haproxy", event="upgrade", **figures(load))
    assert_nothing_lost(load, 200, said)


def test_all_units_go_back_if_one_does_not_come_up(host):
    host.write("/srv/8082.env", "RODIMUS_DEVICE=none\n")
    with Load(host.address, 8000) as load:
        status, said = host.try_run("roll systemd --settle 2 /srv/rodimus=/usr/local/bin/rodimus /srv/8082.env=/etc/rodimus/8082.env")
    assert status == 1 and "rodimus@8081.service is ready" in said and "device = 'none'" in said, said
    host.run("cmp /opt/rodimus/bin/rodimus /usr/local/bin/rodimus && test ! -e /etc/rodimus/8082.env && test ! -e /usr/local/bin/rodimus.old")
    assert all(same for _, same in running(host))
    record(what="deploy/roll systemd, the second replica does not come up", balancer="haproxy", event="upgrade, rollback", **figures(load))
    assert_nothing_lost(load, 200, said)


@pytest.mark.skipif(not FULL, reason="RODIMUS_TEST_FULL=1")
def test_units_go_back_if_one_ends_soon_after_it_was_ready(host):
    host.write("/srv/short", '#!/bin/bash\n(sleep 2; kill -KILL $$) &\nexec /opt/rodimus/bin/rodimus "$@"\n', 0o755)
    before = running(host)
    status, said = host.try_run("roll systemd --settle 4 /srv/short=/usr/local/bin/rodimus")
    assert status == 1 and "rodimus@8081.service does not come up" in said and "as it was" in said, said
    assert [same for _, same in running(host)] == [True] * 3 and running(host)[1:] == before[1:], said


def test_one_server_is_upgraded_only_if_a_socket_keeps_its_clients(host):
    host.run("systemctl stop 'rodimus@*'; systemctl start rodimus")
    status, said = host.try_run("roll systemd --settle 1 /srv/rodimus=/usr/local/bin/rodimus rodimus.service")
    assert status == 1 and "all there is" in said, said
    host.run("cmp /opt/rodimus/bin/rodimus /usr/local/bin/rodimus")
    host.dropin("rodimus.socket", "[Socket]\nListenStream=\nListenStream=8080\n")
    host.run("systemctl stop rodimus; systemctl start rodimus.socket rodimus")
    host.write("/srv/bad.json", '{"slots": "many"}')
    with Load(host.address, 8080) as load:
        status, said = host.try_run("roll systemd --settle 1 /srv/bad.json=/etc/rodimus/config.json rodimus.service")
        assert status == 1 and "slots" in said, said
        said = host.run("roll systemd --settle 1 /srv/rodimus=/usr/local/bin/rodimus rodimus.service")
    host.run("cmp /proc/$(systemctl show -P MainPID rodimus)/exe /srv/rodimus")
    record(what="deploy/roll systemd, rodimus.service with rodimus.socket", balancer="none", event="rollback, upgrade", **figures(load))
    assert_nothing_lost(load, 100, f"{said}\n{host.log()}")


def test_two_units_that_share_a_port_change_over_and_nobody_waits(host):
    host.run("systemctl stop 'rodimus@*'")
    for port in (8081, 8082):
        host.write(f"/etc/rodimus/{port}.env", "RODIMUS_PORT=8080\nRODIMUS_LISTEN=shared\n")
    host.run("systemctl start rodimus@8081")
    with Load(host.address, 8080) as load:
        for new, old in ((8082, 8081), (8081, 8082), (8082, 8081)):
            time.sleep(1)
            host.run(f"systemctl start rodimus@{new} && systemctl stop rodimus@{old}")
    record(what="two rodimus@.service with `listen` shared", balancer="none", event="3 changes over", **figures(load))
    assert_nothing_lost(load, 150, host.log())
    assert load.slowest_s < 3, "a client waited"
