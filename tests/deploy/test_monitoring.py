"""A real Prometheus with the files that deploy/ ships, over real servers that are in trouble of each kind: each alert fires, for its server alone. The
dashboard's queries, and those of the autoscaler's adapter, are asked of it too.

Counters that must not move do so before Prometheus first asks, and never again. Times of alerts.yml are divided by FASTER; with RODIMUS_TEST_FULL=1 they
are as they stand, for some 11 minutes."""
import contextlib
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import pytest
import yaml

from replicas import DEPLOY, Server, free_ports, held_loading, installed
from results import record
from server import MODEL
from stores import StandIn

FASTER = 1 if os.environ.get("RODIMUS_TEST_FULL") else 20
SCRAPE_S = max(0.5, 5 / FASTER)
SLOWEST_S = 1200 / FASTER + 30  # 10 minutes of samples, 10 more of the fault
KEY = "sk-monitoring"
# Which alerts each server must raise, and no others.
WANTED = {
    "well": set(),
    "ended": {"RodimusDown"},
    "frozen": {"RodimusDown"},
    "stalled": {"RodimusStalled", "RodimusNotReady"},
    "loading": {"RodimusNotReady"},
    "refusing": {"RodimusRefuses"},
    "slow": {"RodimusQueueLong", "RodimusSlowTokens"},
    "failing": {"RodimusErrors", "RodimusNotANumber"},
    "nan": {"RodimusNotANumber"},
    "crowded": {"RodimusFilesShort"},
    "unwritten": {"RodimusStatesNotSaved"},
    "unkept": {"RodimusConversationsNotSaved"},
    "storeless": {"RodimusStoreDown"},
    "pinned": {"RodimusStatesNoRoom"},
    "damaged": {"RodimusStatesRefused"},
    "unread": {"RodimusReloadFailed"},
    "mute": {"RodimusLogLost"},
}
pytestmark = [pytest.mark.timeout(240 if FASTER > 1 else 2400),
              pytest.mark.skipif(not installed("prometheus"), reason="prometheus (Debian's package) is not here")]


def sooner(match):
    """A duration of PromQL or of a rule."""
    seconds = int(match[2]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[3]] / FASTER
    return f"{match[1]}{seconds * 1000:.0f}ms"


def rules():
    with open(os.path.join(DEPLOY, "alerts.yml")) as f:
        text = f.read()
    text, n = re.subn(r"(\[|offset |for: )(\d+)([smhd])\b", sooner, text)
    text, n_ages = re.subn(r"(process_start_time_seconds < )(\d+)", lambda m: f"{m[1]}{int(m[2]) / FASTER:g}", text)
    assert n > 20 and n_ages == 7, (n, n_ages)
    return text


class Prometheus:
    def __init__(self, folder, servers):
        """The shipped file with these targets, each with the labels of a pod; the key is given as the file says."""
        with open(os.path.join(DEPLOY, "prometheus.yml")) as f:
            text = f.read()
        text, n = re.subn(r"# (authorization: { credentials_file: )\S+( })", rf"\g<1>{folder}/key\g<2>", text)
        config = yaml.safe_load(text)
        assert n == 1 and config["rule_files"] == ["alerts.yml"]
        config["global"] = {key: f"{SCRAPE_S * 1000:.0f}ms" for key in config["global"]}
        job = next(j for j in config["scrape_configs"] if j["job_name"] == "rodimus")
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name, "namespace": "models", "pod": f"rodimus-{name}"}}
                                 for name, port in servers.items()]
        config["scrape_configs"] = [job]
        (folder / "key").write_text(KEY)
        (folder / "alerts.yml").write_text(rules())
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.port, = free_ports(1)
        self.log_path = folder / "log"
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", "--log.level=warn",
                                             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log)
        self.began = time.monotonic()
        # It takes up its targets some seconds after its rules: time in which none is there, which counts only when it is made shorter.
        while True:
            with contextlib.suppress(OSError):
                if len(self.query('up{job="rodimus"}')) == len(servers) and not any(name is None for name, _ in self.firing()):
                    break
            assert self.process.poll() is None and time.monotonic() - self.began < 60, self.log_path.read_text()[-2000:]
            time.sleep(0.1)

    def get(self, path, **fields):
        """The text of a page."""
        query = urllib.parse.urlencode(fields, doseq=True)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}?{query}", timeout=30) as answer:
            return answer.read()

    def api(self, path, **fields):
        answer = json.loads(self.get(f"/api/v1/{path}", **fields))
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression):
        """[(labels, value)]"""
        return [(r["metric"], float(r["value"][1])) for r in self.api("query", query=expression)["result"]]

    def firing(self):
        """{(instance, alert)}"""
        return {(a["labels"].get("instance"), a["labels"]["alertname"]) for a in self.api("alerts")["alerts"] if a["state"] == "firing"}

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def broken_model(folder):
    """tales with one weight that is not a number, in the norm before the logits."""
    shutil.copytree(MODEL, folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + n])
    name, = (key for key in header if re.fullmatch(r"model\.norm\w*\.weight", key))
    at = 8 + n + header[name]["data_offsets"][0]
    assert header[name]["dtype"] == "BF16"
    data[at:at + 2] = b"\xc0\x7f"
    path.write_bytes(data)
    return folder


class Trouble:
    """The servers by name, and the threads that keep asking them."""

    def __init__(self, folder):
        self.folder, self.servers, self.admin, self.threads, self.held, self.stores, self.ended = folder, {}, {}, [], [], [], threading.Event()

    def serve(self, name, *flags, wait=True, **more):
        port, self.admin[name] = free_ports(2)
        server = Server("--port", port, "--admin-port", self.admin[name], *flags, name=f"monitoring-{name}", key=KEY, wait=wait, **more)
        server.port = port
        self.servers[name] = server
        return server

    def store(self, name):
        self.stores.append(StandIn(self.folder / name))
        return self.stores[-1]

    def keep(self, n, ask, pause_s=0.0):
        """n clients that ask again and again."""
        def run():
            while not self.ended.is_set():
                with contextlib.suppress(OSError):
                    ask()
                self.ended.wait(pause_s)
        for _ in range(n):
            self.threads.append(threading.Thread(target=run, daemon=True))
            self.threads[-1].start()

    def close(self):
        self.ended.set()
        for server in self.servers.values():
            if server.process.poll() is None:
                server.process.send_signal(signal.SIGCONT)
            server.kill()
        for thread in self.threads:
            thread.join(10)
        for connection in self.held:
            connection.close()
        for store in self.stores:
            store.close()


def completion(server, session=None, n=2, **more):
    names = {"session_id": session, "session_create": True} if session else {}
    return server.post("/v1/completions", {"prompt": "Once", "max_tokens": n, "ignore_eos": True, **names, **more}, timeout=120)


def count_before_the_first_scrape(t):
    """What happened once, to servers that Prometheus does not know yet."""
    broken = broken_model(t.folder / "broken")
    assert completion(t.serve("nan", "--model", broken)).status == 500
    t.serve("failing", "--model", broken)
    states = t.folder / "unwritten"
    unwritten = t.serve("unwritten", "--state-dir", states)
    resource.prlimit(unwritten.process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    assert completion(unwritten, "a").status == 503
    unkept = t.serve("unkept", "--state-dir", t.folder / "unkept", env={"RODIMUS_TEST_CHECKPOINTS_PAY": "1"})
    resource.prlimit(unkept.process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    assert unkept.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a tale. " * 20}], "max_tokens": 2,
                                                 "prompt_cache_key": "a"}).status == 200
    unkept.wait_metric("rodimus_conversation_save_failures_total", lambda n: n > 0)
    store = t.store("lost")
    storeless = t.serve("storeless", *store.flags, env=store.env)
    assert completion(storeless, "a").status == 200
    store.kill()
    assert completion(storeless, "a").status == 503
    pinned = t.serve("pinned", "--state-dir", t.folder / "pinned", "--state-disk-bytes", 100_000)
    while (answer := pinned.post("/v1/sessions", {"pin": True})).status == 200:
        pass
    assert answer.error["code"] == "no_room", answer
    first = Server("--state-dir", t.folder / "damaged", name="monitoring-first")
    assert completion(first, "a").status == 200
    assert first.stop() == 0
    file, = (t.folder / "damaged").glob("*.state")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert completion(t.serve("damaged", "--state-dir", t.folder / "damaged"), "a").status == 412
    keys = t.folder / "keys"
    keys.write_text(f"{KEY} name=team\n")
    unread = t.serve("unread", "--api-key-file", keys)
    keys.write_text("sk-other no_such_word=1\n")
    assert "the settings stay" in unread.reload()
    reading, writing = os.pipe()
    mute = t.serve("mute", stderr=writing, wait=True)
    os.close(writing)
    t.held.append(os.fdopen(reading))
    for _ in range(2000):
        mute.get("/version")
        if mute.metric("rodimus_log_lines_dropped_total") > 0:
            break
    assert mute.metric("rodimus_log_lines_dropped_total") > 0


def go_wrong(t):
    """What goes on while Prometheus looks. The devices that take so many ms a step compute nothing."""
    store = t.store("states")
    well = t.serve("well", "--api-keys", KEY, *store.flags, env=store.env)
    numbers = iter(range(1 << 30))
    t.keep(1, lambda: (completion(well, f"s{next(numbers) % 8}", 8, stream=next(numbers) % 2 == 0), well.post("/tokenize", {"prompt": "Once"})), 0.3)
    t.serve("ended", "--device", "null").kill()
    t.serve("frozen", "--device", "null").process.send_signal(signal.SIGSTOP)
    stalled = t.serve("stalled", "--device", "null:999999", "--stall-ms", 300)
    t.keep(1, lambda: completion(stalled))
    (t.folder / "hold").touch()
    t.serve("loading", env=held_loading(t.folder / "hold"), wait=False)
    refusing = t.serve("refusing", "--device", "null:200", "--slots", 1, "--max-queue-requests", 0)
    t.keep(3, lambda: completion(refusing, n=8), 0.1)
    slow = t.serve("slow", "--device", "null:1000", "--slots", 1)
    t.keep(8, lambda: completion(slow))
    t.keep(1, lambda: completion(t.servers["failing"]), 0.2)
    crowded = t.serve("crowded", "--connection-limit", 10)
    t.held += [crowded.socket() for _ in range(9)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """(Prometheus, the servers, the folder)"""
    folder = tmp_path_factory.mktemp("monitoring")
    t, prometheus = Trouble(folder), None
    try:
        count_before_the_first_scrape(t)
        go_wrong(t)
        (folder / "prometheus").mkdir()
        prometheus = Prometheus(folder / "prometheus", t.admin)
        yield prometheus, t
    finally:
        if prometheus:
            prometheus.stop()
        t.close()


def keep_connections(t):
    """The server closes those that say nothing for a minute: they are made anew, as many."""
    crowded = t.servers["crowded"]
    for connection in t.held[-9:]:
        connection.close()
    t.held[-9:] = [crowded.socket() for _ in range(9)]


def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_each_alert_fires_for_the_server_in_trouble_alone(watched):
    prometheus, t = watched
    wanted = {(name, alert) for name, alerts in WANTED.items() for alert in alerts}
    assert set(WANTED) == set(t.admin) and {alert for _, alert in wanted} == set(re.findall(r"alert: (\w+)", rules()))
    after, renewed = {}, time.monotonic()
    while time.monotonic() - prometheus.began < SLOWEST_S and wanted - after.keys():
        for one in prometheus.firing() - after.keys():
            after[one] = round(time.monotonic() - prometheus.began, 1)
        if time.monotonic() - renewed > 50:
            keep_connections(t)
            renewed = time.monotonic()
        time.sleep(SCRAPE_S / 2)
    assert after.keys() == wanted, f"silent: {sorted(wanted - after.keys())}, false: {sorted(after.keys() - wanted)}"
    for (name, alert), s in after.items():
        if FASTER == 1:
            record(what=f"alert {alert}", balancer="none", event=f"server {name}", seconds_to_fire=s,
                   command="RODIMUS_TEST_FULL=1 RODIMUS_TEST_RESULTS=tests/bench/results tests/run build deploy -k test_monitoring")


def test_a_frozen_process_that_goes_on_is_no_longer_down(watched):
    prometheus, t = watched
    until(lambda: ("frozen", "RodimusDown") in prometheus.firing())
    t.servers["frozen"].process.send_signal(signal.SIGCONT)
    until(lambda: not {alert for name, alert in prometheus.firing() if name == "frozen"})


def test_the_dashboards_queries_have_data(watched):
    """As Grafana asks them, for all replicas and for one; legends name labels that there are."""
    prometheus, _ = watched
    with open(os.path.join(DEPLOY, "grafana.json")) as f:
        dashboard = json.load(f)
    variable, = dashboard["templating"]["list"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
    assert {"well", "stalled"} <= set(prometheus.api(f"label/{label}/values", **{"match[]": metric}))
    n = 0
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for replica in (variable["allValue"], "well"):
                expression = target["expr"].replace("$__rate_interval", f"{max(4 * SCRAPE_S, 15):.0f}s").replace("$instance", replica)
                assert "$" not in expression, expression
                for _ in range(300):
                    found = prometheus.query(expression)
                    if any(math.isfinite(value) for _, value in found):
                        break
                    time.sleep(0.1)
                else:
                    pytest.fail(f"{panel['title']}: {expression}: {found}")
                for labels, _ in found:
                    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels.keys(), (panel["title"], target["legendFormat"], labels)
            n += 1
    assert n >= 43


def test_the_adapters_queries_give_the_autoscaler_a_number_for_each_pod(watched):
    """As prometheus-adapter makes them: the series first, then the template with these pods."""
    prometheus, t = watched
    with open(os.path.join(DEPLOY, "k8s", "adapter.yaml")) as f:
        rules_ = yaml.safe_load(f)["rules"]
    answers = {name for name in t.admin if name not in ("ended", "loading")}  # while it loads, a server has no slots yet
    for rule in rules_:
        series = prometheus.api("series", **{"match[]": rule["seriesQuery"]})
        names = {one["__name__"] for one in series}
        assert len(names) == 1 and all({"namespace", "pod"} <= one.keys() for one in series)
        pods = "|".join(sorted(one["pod"] for one in series))
        query = (rule["metricsQuery"].replace("<<.Series>>", names.pop()).replace("<<.LabelMatchers>>", f'namespace="models",pod=~"{pods}"')
                 .replace("<<.GroupBy>>", "pod"))

        def values_now():
            return {labels["pod"].removeprefix("rodimus-"): value for labels, value in prometheus.query(query)}

        if "ratio" not in rule["seriesQuery"]:
            until(lambda: values_now().get("slow", 0) >= 5)
        values = values_now()
        assert answers <= values.keys() | {"frozen"}, (query, values)
        if "ratio" in rule["seriesQuery"]:
            assert values["slow"] == 1 and 0 <= values["well"] <= 1
        else:
            assert values["well"] < 3 <= values["slow"]  # one that comes waits for the next step


def test_prometheus_takes_what_its_file_has_in_comments(tmp_path):
    with open(os.path.join(DEPLOY, "prometheus.yml")) as f:
        text, n = re.subn(r"^( *)# (\w+: {.*})$", r"\1\2", f.read(), flags=re.M)
    assert n == 2 and {"alerting", "authorization"} <= set(re.findall(r"(\w+): {", text))
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/rodimus.key", str(tmp_path / "key")))
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "alerts.yml").write_text(rules())
    done = subprocess.run(["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
