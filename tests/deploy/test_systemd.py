"""The units of deploy/ under systemd as PID 1: start, readiness, reload, watchdog, drain, and the socket that outlives a restart."""
import http.client
import json
import os
import threading
import time

import pytest

from load import Load
from losses import assert_nothing_lost, figures
from replicas import DEPLOY, read_events
from results import record
from server import DEFAULT

pytestmark = pytest.mark.timeout(600)  # the image is compiled, if no test before has made it


@pytest.fixture
def machine(booted):
    booted.reset()
    return booted


def ask(machine, method="POST", path="/v1/completions", body=None, headers=None, port=8080, timeout=60):
    """(status, JSON) from the machine's server."""
    connection = http.client.HTTPConnection(machine.address, port, timeout=timeout)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, json.loads(response.read() or "null")
    finally:
        connection.close()


def answer(machine, port=8080, headers=None, **more):
    return ask(machine, body={"prompt": "Once", "max_tokens": 4, "ignore_eos": True, **more}, headers=headers, port=port)


def wait_for(condition, timeout=20):
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.1)
    return found


def unit_lines(name):
    with open(os.path.join(DEPLOY, name)) as f:
        return [line.strip() for line in f if line.strip() and not line.startswith("#")]


def test_the_units_are_well_formed(machine):
    status, said = machine.try_run("systemd-analyze verify /etc/systemd/system/rodimus*.s*")
    assert status == 0 and not said, said


def test_the_template_is_the_service_but_for_name_user_and_port():
    one, many = unit_lines("rodimus.service"), unit_lines("rodimus@.service")
    assert [line for line in one if line not in many] == ["Description=Rodimus Server"]
    assert sorted({line.split("=")[0] for line in many if line not in one}) == ["Description", "Environment", "EnvironmentFile", "User"]


def test_start_returns_when_the_server_is_ready_and_it_runs_with_no_rights(machine):
    machine.run("systemctl start rodimus")
    assert ask(machine, "GET", "/health/ready")[0] == 200
    said = machine.run("cat /proc/$(systemctl show -P MainPID rodimus)/status")
    status = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert int(status["Uid"].split()[0]) >= 61184 and status["NoNewPrivs"] == "1" and int(status["CapBnd"], 16) == 0, said


def test_sessions_outlive_a_restart_in_the_units_own_folder(machine):
    machine.run("systemctl start rodimus")
    status, first = answer(machine, headers={"X-Session-Id": "fox"}, session_id="fox", session_create=True)
    assert status == 200 and first["session"]["version"] == 1, first
    uid = machine.run("stat -c %u /proc/$(systemctl show -P MainPID rodimus)")
    assert machine.run("stat -c '%a %u' /var/lib/rodimus/") == f"700 {uid}"
    machine.run("systemctl restart rodimus")
    status, second = answer(machine, headers={"X-Session-Id": "fox"}, session_id="fox", expected_version=1)
    assert status == 200 and second["session"]["version"] == 2, second


def test_a_wrong_setting_fails_the_start_once_and_says_why(machine):
    machine.write("/etc/rodimus/config.json", '{"slots": "many"}')
    status, _ = machine.try_run("systemctl start rodimus")
    assert status != 0 and machine.shown("rodimus", "ActiveState") == "failed"
    assert machine.shown("rodimus", "NRestarts") == "0" and "slots" in machine.log("rodimus")


def test_a_reload_takes_a_new_key_and_ends_an_old_one(machine):
    """In the files that the unit's comment names."""
    machine.run("getent group rodimus-keys || groupadd --system rodimus-keys")
    machine.run("umask 077; echo 'sk-old' >/etc/rodimus/keys; chgrp rodimus-keys /etc/rodimus/keys; chmod 640 /etc/rodimus/keys")
    lines = [line[1:].strip() for line in open(os.path.join(DEPLOY, "rodimus.service")) if line.startswith("#") and "=" in line.split()[0]]
    group, = (line for line in lines if line.startswith("SupplementaryGroups="))
    machine.dropin("rodimus.service", f"[Service]\n{group}\nEnvironment=RODIMUS_API_KEY_FILE=%E/rodimus/keys\n")
    assert any("RODIMUS_API_KEY_FILE=%E/rodimus/keys" in line for line in lines), lines
    machine.run("systemctl start rodimus")
    asked = lambda key: ask(machine, "GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0]
    assert (asked("sk-old"), asked("sk-new")) == (200, 401)
    before = machine.shown("rodimus", "MainPID")
    machine.run("echo 'sk-new' >/etc/rodimus/keys; systemctl reload rodimus")
    assert (asked("sk-old"), asked("sk-new")) == (401, 200), machine.log("rodimus")
    assert machine.shown("rodimus", "MainPID") == before and machine.shown("rodimus", "ActiveState") == "active"


@pytest.mark.parametrize("fault", ["a process that stands still", "an engine that hangs"])
def test_the_watchdog_starts_a_server_again(machine, fault):
    hangs = fault == "an engine that hangs"
    settings = "Environment=RODIMUS_DEVICE=null:600000 RODIMUS_STALL_MS=1000\n" if hangs else ""
    machine.dropin("rodimus.service", f"[Service]\nWatchdogSec=2\nRestartSec=0\nTimeoutAbortSec=2\nTimeoutStopSec=2\n{settings}")
    machine.run("systemctl start rodimus")
    before = machine.shown("rodimus", "MainPID")
    time.sleep(3)
    assert machine.shown("rodimus", "MainPID") == before, "a server that works, or has nothing to do, is left alone"
    if hangs:
        with pytest.raises((OSError, http.client.HTTPException)):
            answer(machine, timeout=20)
    else:
        machine.run(f"kill -STOP {before}")
    wait_for(lambda: machine.shown("rodimus", "MainPID") not in (before, "0"))
    wait_for(lambda: machine.shown("rodimus", "ActiveState") == "active")
    assert "watchdog" in machine.log("rodimus").lower()
    assert ask(machine, "GET", "/health/ready")[0] == 200


def test_a_server_that_is_killed_comes_again(machine):
    machine.dropin("rodimus.service", "[Service]\nRestartSec=1\n")
    machine.run("systemctl start rodimus && systemctl kill -s KILL rodimus")
    wait_for(lambda: machine.shown("rodimus", "NRestarts") == "1" and machine.shown("rodimus", "ActiveState") == "active")
    assert answer(machine)[0] == 200


def test_stop_lets_running_requests_end(machine):
    machine.run("systemctl start rodimus")
    connection = http.client.HTTPConnection(machine.address, 8080, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 150, "ignore_eos": True, "stream": True}), {"Content-Type": "application/json"})
    events = read_events(connection.getresponse())
    next(events)
    stopped = threading.Thread(target=machine.run, args=("systemctl stop rodimus",))
    stopped.start()
    rest = [event.data for event in events]
    stopped.join()
    connection.close()
    assert rest[-1] == "[DONE]" and len(rest) == 151
    assert machine.shown("rodimus", "Result") == "success" and machine.shown("rodimus", "ExecMainStatus") == "0"


# ---- the socket ----

@pytest.fixture
def socket(machine):
    machine.dropin("rodimus.socket", "[Socket]\nListenStream=\nListenStream=8080\n")
    machine.run("systemctl start rodimus.socket rodimus.service")
    return machine


def test_restarts_with_a_socket_unit_refuse_no_request(socket):
    served = set()
    with Load(socket.address, 8080) as load:
        for _ in range(3):
            time.sleep(1)
            served.add(socket.shown("rodimus", "MainPID"))
            socket.run("systemctl restart rodimus")
        time.sleep(1)
    assert len(served) == 3
    record(what="rodimus.service with rodimus.socket, systemctl restart", balancer="none", event="3 restarts", **figures(load))
    assert_nothing_lost(load, 150, socket.log())


def test_a_client_that_comes_while_the_server_is_down_waits_and_starts_it(socket):
    socket.run("systemctl stop rodimus.service")
    assert socket.shown("rodimus.service", "ActiveState") == "inactive"
    assert answer(socket)[0] == 200
    assert socket.shown("rodimus.service", "ActiveState") == "active"


# ---- the template ----

def test_a_session_goes_on_in_another_replica_of_the_host(machine):
    machine.run("systemctl start rodimus@8081 rodimus@8082")
    for version, port in enumerate([8081, 8082, 8081]):
        where = {"expected_version": version} if version else {"session_create": True}
        status, body = answer(machine, port, {"X-Session-Id": "fox"}, session_id="fox", **where)
        assert status == 200 and body["session"]["version"] == version + 1, body


def test_a_replica_has_settings_of_its_own(machine):
    machine.write("/etc/rodimus/8082.env", "RODIMUS_MODEL_NAME=other\n", 0o600)
    machine.run("systemctl start rodimus@8081 rodimus@8082")
    named = [ask(machine, "GET", "/v1/models", port=port)[1]["data"][0]["id"] for port in (8081, 8082)]
    assert named == [DEFAULT, "other"]
    assert machine.run("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:18082/health/ready") == "200"
