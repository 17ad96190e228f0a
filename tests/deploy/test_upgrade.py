"""deploy/roll: replicas become new ones under load, and nobody sees it; if one does not come up, all are what they were."""
import contextlib
import http.client
import json
import os
import shutil
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

pytestmark = pytest.mark.timeout(600)  # the image is compiled, if no test before has made it

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


@pytest.mark.parametrize("mode, slow", [("compose", "stop c1"), ("systemd", "restart rodimus@8081")])
def test_one_roll_at_a_time_whatever_copy_and_a_killed_one_does_not_count(pretended, tmp_path, mode, slow):
    copy = shutil.copy(os.path.join(DEPLOY, "roll"), tmp_path / "copy")
    pretended.write("slow", slow)
    first = pretended.begin(mode)
    try:
        wait_for(lambda: any(slow in call for call in pretended.calls()))
        status, said = pretended.roll(mode, script=copy)
        assert status == 1 and "another roll is at work" in said, said
        first.kill()  # alone: its children go on
        first.wait()
        pretended.write("slow", "nothing")
        status, said = pretended.roll(mode, script=copy)
        assert status == 0 and "every replica is new" in said, said
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)
        first.stdout.close()


@pytest.mark.parametrize("mode, one, its_end", [("compose", "rodimus-2", "docker stop c2"), ("systemd", "rodimus@8082", "systemctl restart rodimus@8082.service")])
def test_one_replica_alone_becomes_new_if_others_serve(pretended, mode, one, its_end):
    status, said = pretended.roll(mode, one, one)
    assert status == 0, said
    assert [call for call in pretended.calls() if " stop " in call or " restart " in call] == [its_end]


@pytest.mark.parametrize("mode, one, other", [("compose", "rodimus-2", "rodimus-3"), ("systemd", "rodimus@8082", "rodimus@8083.service")])
def test_one_replica_alone_is_not_touched_while_another_is_down(pretended, mode, one, other):
    state = pretended.state
    state["containers"]["c3"]["State"]["Running"] = False
    state["units"]["rodimus@8083.service"]["ActiveState"] = "failed"
    pretended.state = state
    status, said = pretended.roll(mode, one)
    assert status == 1 and f"{other} is not ready" in said, said
    assert not [call for call in pretended.calls() if " stop " in call or " restart " in call]


def test_a_unit_that_nobody_wants_is_refused_if_named_and_else_left_alone(pretended):
    state = pretended.state
    state["units"]["rodimus@8083.service"] = {"ActiveState": "inactive"}
    pretended.state = state
    for unit, why in (("rodimus@9999", "neither active nor enabled nor failed"), ("rodimus@8083.service", "neither active"), ("rodimsu.service", "no unit here")):
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
    assert sorted(pretended.state["containers"]) == ["c1", "c2", "c3"] and not [call for call in pretended.calls() if " stop " in call]
    status, said = pretended.roll("compose", "--force")
    assert status == 0 and f"no longer {name}" in said, said


def test_the_way_back_of_the_tag_is_told_whether_the_upgrade_held_or_not(pretended):
    state = pretended.state
    pretended.state = {**state, "broken": ["rodimus-2"]}
    status, said = pretended.roll("compose")
    assert status == 1 and "docker tag old rodimus:cpu" in said and "no replica is new" in said, said
    pretended.state = state
    status, said = pretended.roll("compose")
    assert status == 0 and "to go back: docker tag old rodimus:cpu, and roll" in said, said
    status, said = pretended.roll("compose", "--force")
    assert status == 0 and "docker tag" not in said, said


@pytest.mark.parametrize("mode", ["compose", "systemd"])
def test_the_last_words_of_a_replica_are_not_its_requests(pretended, mode):
    json_line = '{"time":"2026-01-01T00:00:00.000Z","level":"%s","message":"%s"}'
    requests = [json_line % ("info", "Answered."), "2026-01-01T00:00:00.000Z info  Answered."] * 30
    pretended.state = {**pretended.state, "broken": ["rodimus-1", "rodimus@8081.service"], "log": [json_line % ("error", "A fault."), "ld.so: no luck", *requests]}
    status, said = pretended.roll(mode)
    assert status == 1 and "A fault." in said and "no luck" in said and "Answered." not in said, said
    pretended.state = {**pretended.state, "log": requests}
    status, said = pretended.roll(mode)
    assert status == 1 and said.count("Answered.") >= 20, said


def kill_while_the_second_restarts(pretended, *words):
    pretended.write("slow", "restart rodimus@8082")
    script = pretended.begin("systemd", "--settle", "0", *words)
    wait_for(lambda: any("restart rodimus@8082" in call for call in pretended.calls()))
    script.kill()
    script.wait()
    script.stdout.close()
    pretended.write("slow", "nothing")


def test_files_of_an_upgrade_that_was_killed_are_put_back_by_any_next_one(pretended):
    place, more, second = pretended.write("etc/rodimus", "1"), pretended.path("etc/more"), pretended.write("second", "2")
    kill_while_the_second_restarts(pretended, f"{second}={place}", f"{second}={more}")
    assert pretended.read("etc/rodimus") == "2" and os.path.exists(more)
    status, said = pretended.roll("systemd")
    assert status == 0 and f"cut short: {place} {more} as before" in said, said
    assert pretended.read("etc/rodimus") == "1" and os.listdir(pretended.path("etc")) == ["rodimus"] and os.listdir(pretended.path("var/lib")) == []

    kill_while_the_second_restarts(pretended, f"{second}={place}")
    third = pretended.write("third", "3")
    status, said = pretended.roll("systemd", f"{third}={place}")
    assert status == 0 and pretended.read("etc/rodimus") == "3" and pretended.read("etc/rodimus.old") == "1", said


def test_what_an_operator_changed_after_an_upgrade_was_killed_is_not_overwritten(pretended):
    place, second = pretended.write("etc/rodimus", "1"), pretended.write("second", "2")
    kill_while_the_second_restarts(pretended, f"{second}={place}")
    pretended.write("etc/rodimus", "mine")
    status, said = pretended.roll("systemd")
    assert status == 1 and f"remove {pretended.path('var/lib/rodimus-roll')} and" in said and f"{place}.before" in said, said
    os.remove(pretended.path("var/lib/rodimus-roll"))
    status, said = pretended.roll("systemd", f"{second}={place}")
    assert status == 1 and f"{place}.before is left" in said and pretended.read("etc/rodimus") == "mine", said
    os.remove(f"{place}.before")
    status, said = pretended.roll("systemd", f"{second}={place}")
    assert status == 0 and pretended.read("etc/rodimus") == "2", said


def test_an_upgrade_killed_when_it_had_held_is_not_undone(pretended):
    place = pretended.write("etc/rodimus", "2")
    pretended.write("etc/rodimus.before", "1")
    pretended.write("var/lib/rodimus-roll", f"replaced sum {place}\nheld\n")
    status, said = pretended.roll("systemd")
    assert status == 0 and pretended.read("etc/rodimus") == "2" and pretended.read("etc/rodimus.old") == "1", said
    assert os.listdir(pretended.path("var/lib")) == []


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
    new, place = pretended.write("new", "2"), pretended.write("etc/x", "1")
    status, said = pretended.roll("systemd", f"{new}={place}", f"{new}={pretended.path('etc/../etc/x')}")
    assert status == 1 and f"{place} is named twice" in said and pretended.read("etc/x") == "1", said
    status, said = pretended.roll("systemd", "--force")
    assert status == 2 and "--force is for compose" in said, said
    status, said = pretended.roll("compose", "--file=a.yaml", "-pp", "--env-file=e", "--settle=0")
    assert status == 0 and "docker-compose --file a.yaml -p p --env-file e config --services" in pretended.calls(), said


# ---- compose ----

@pytest.fixture(scope="module")
def images(engine):
    """rodimus:upgrade may be the first or the second of two that differ, or one that ends at once."""
    engine.server_image()
    engine.docker("tag", "rodimus:cpu", "rodimus:first")
    engine.docker("build", "-t", "rodimus:second", "-", input="FROM rodimus:first\nLABEL version=2\n")
    engine.docker("build", "-t", "rodimus:broken", "-", input="FROM rodimus:first\nENTRYPOINT [\"/bin/sh\", \"-c\", \"echo no luck; exit 1\"]\n")


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

    def begin_roll(self, *words):
        """Until the old container of the first replica has ended and the new one has not begun."""
        first = self.containers()[0]
        script = subprocess.Popen([os.path.join(DEPLOY, "roll"), "compose", *self.files, *words], env={**self.engine.env, "COMPOSE": "docker-compose"},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        wait_for(lambda: not self.engine.inspect(first)["State"]["Running"])
        return script

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


def test_all_replicas_go_back_if_one_does_not_come_up(site):
    before = site.containers()
    site.image(other_image(site))
    site.write({"rodimus-2": {"RODIMUS_DEVICE": "none"}})
    with site.load() as load:
        status, said = site.roll()
    site.write({})
    assert status == 1 and "rodimus-1 is ready" in said and "device = 'none'" in said, said
    assert site.containers() == before, said
    site.engine.wait_healthy(*before)
    record(what="deploy/roll compose, the second replica does not come up", balancer=site.balancer, event="upgrade, rollback", **figures(load))
    assert_nothing_lost(load, 200, said)


def test_an_upgrade_that_is_interrupted_goes_back(site):
    before = site.containers()
    site.image(other_image(site))
    script = site.begin_roll("--settle", "0", "rodimus-1", "rodimus-2")
    os.killpg(script.pid, signal.SIGINT)  # as a terminal does: to all its processes
    said = script.communicate(timeout=100)[0]
    assert script.returncode == 1 and "interrupted" in said and site.containers() == before, said


@pytest.mark.skipif(not FULL, reason="RODIMUS_TEST_FULL=1")
def test_an_upgrade_that_is_killed_is_mended_by_the_next(site):
    site.image("broken")
    script = site.begin_roll("--settle", "0", "rodimus-1", "rodimus-2")
    os.killpg(script.pid, signal.SIGKILL)
    script.communicate()
    site.image("second")
    status, said = site.roll("--settle", "0", "rodimus-1", "rodimus-2")
    assert status == 0 and "cut short" in said, said
    assert site.images()[:2] == [site.id("second")] * 2


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
    host.run("cmp /opt/rodimus/bin/rodimus /usr/local/bin/rodimus && test ! -e /etc/rodimus/8082.env && test ! -e /usr/local/bin/rodimus.before")
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
