"""deploy/k8s: each overlay as kubectl builds it, each object against a strict schema, the numbers in them against each other and the server's own,
and by the programs that read them where those run without a cluster."""
import contextlib
import copy
import glob
import http.client
import http.server
import json
import os
import re
import shutil
import subprocess
import threading

import jsonschema
import kubernetes_validate
import pytest
import yaml

import sizes
from replicas import DEPLOY, ROOT, Server, command, free_ports, installed
from results import record

K8S = os.path.join(DEPLOY, "k8s")
SCHEMAS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schemas")
VERSIONS = ("1.29", "1.31", "1.33", "1.35", "1.37")
OVERLAYS = ("cpu", "gpu")
ALONE = ("podmonitor.yaml", "gateway.yaml", "ingress.yaml")  # applied by themselves
GIB = 2 ** 30


class OneOfEach(yaml.SafeLoader):
    """Refuses a key that stands twice, as kubectl does: the plain loader takes the last."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key twice{node.start_mark}"
        return super().construct_mapping(node, deep)


def documents_of(text):
    return list(yaml.load_all(text, OneOfEach))


def read(path):
    with open(os.path.join(K8S, path)) as f:
        return f.read()


@pytest.fixture(scope="module")
def built():
    """Overlay -> its objects, as `kubectl apply -k` would send them."""
    if not shutil.which("kubectl"):
        pytest.skip("kubectl (Debian's package kubernetes-client) is not here")

    def build(overlay):
        done = subprocess.run(["kubectl", "kustomize", os.path.join(K8S, "overlays", overlay)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return documents_of(done.stdout)
    return {overlay: build(overlay) for overlay in OVERLAYS}


def of_kind(objects, kind):
    one, = (o for o in objects if o["kind"] == kind)
    return one


def pod_of(objects):
    return of_kind(objects, "Deployment")["spec"]["template"]["spec"]


def env_of(objects):
    container, = pod_of(objects)["containers"]
    return {e["name"]: e.get("value") for e in container["env"]}


def ports_of(objects):
    container, = pod_of(objects)["containers"]
    return {p["name"]: p["containerPort"] for p in container["ports"]}


def quantity(text):
    number, unit = re.fullmatch(r"([\d.]+)(m|Ki|Mi|Gi|Ti)?", text).groups()
    return float(number) * {None: 1, "m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}[unit]


# ---- strict schemas ----

def validate(thing):
    """As an API server takes it; an unknown field is an error."""
    group, _, version = thing["apiVersion"].rpartition("/")
    path = os.path.join(SCHEMAS, f"{group}-{thing['kind']}-{version}.json".lower())
    if os.path.exists(path):
        with open(path) as f:
            jsonschema.Draft202012Validator(json.load(f)).validate(thing)
        return
    for version in VERSIONS:
        assert kubernetes_validate.validate(thing, version, strict=True) == version


def all_objects(built):
    objects = [o for overlay in OVERLAYS for o in built[overlay]]
    return objects + [o for name in ALONE for o in documents_of(read(name))]


def test_each_object_is_valid(built):
    kinds = set()
    for thing in all_objects(built):
        validate(thing)
        kinds.add(thing["kind"])
    assert kinds == {"PersistentVolumeClaim", "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy",
                     "PodMonitor", "Gateway", "HTTPRoute", "BackendTrafficPolicy", "Ingress"}


def test_each_file_is_one_that_is_checked():
    """Part of the base, of an overlay, or one of those that stand alone."""
    files = {os.path.relpath(f, K8S) for f in glob.glob(os.path.join(K8S, "**"), recursive=True) if os.path.isfile(f)}
    base = {f"base/{name}" for name in documents_of(read("base/kustomization.yaml"))[0]["resources"]}
    overlays = {f"overlays/{o}/{name}" for o in OVERLAYS for name in ("kustomization.yaml", "deployment.yaml")}
    assert files == base | overlays | {*ALONE, "adapter.yaml", "README.md", "base/kustomization.yaml"}


def mappings(thing, path=()):
    if isinstance(thing, dict):
        yield path
        for key, value in thing.items():
            yield from mappings(value, (*path, key))
    elif isinstance(thing, list):
        for i, value in enumerate(thing):
            yield from mappings(value, (*path, i))


def test_an_unknown_field_is_refused_wherever_it_stands(built):
    """That the check above checks: a field is added to each mapping of each object in turn. Labels and the like may have any key."""
    free = {"labels", "annotations", "matchLabels", "selector", "requests", "limits"}
    n = 0
    for thing in all_objects(built):
        for path in mappings(thing):
            if path and path[-1] in free and not (path[-1] == "selector" and thing["kind"] != "Service"):
                continue
            worse = copy.deepcopy(thing)
            at = worse
            for key in path:
                at = at[key]
            at["unknownField"] = {}
            with pytest.raises(jsonschema.ValidationError, match="unknownField"):
                validate(worse)
                pytest.fail(f"{thing['kind']} takes an unknown field at {path}")
            n += 1
    assert n > 150, n


def test_a_key_that_stands_twice_is_refused():
    with pytest.raises(AssertionError):
        documents_of("spec:\n  a: 1\n  a: 2\n")


def test_overlays_differ_in_the_device_alone(built):
    cpu, gpu = ({(o["kind"], o["metadata"]["name"]): o for o in built[overlay]} for overlay in OVERLAYS)
    assert {key for key in cpu.keys() | gpu.keys() if cpu.get(key) != gpu.get(key)} == {("Deployment", "rodimus")}
    assert {pod_of(built[o])["containers"][0]["image"] for o in OVERLAYS} == {"rodimus:cpu", "rodimus:cuda"}
    assert [env_of(built[o])["RODIMUS_DEVICE"] for o in OVERLAYS] == ["cpu", "cuda"]


# ---- room ----

@pytest.mark.parametrize("overlay", OVERLAYS)
def test_states_leave_a_fifth_of_the_claim(built, overlay):
    """For the file system's own, and for what other replicas write until this one has seen it."""
    claim = quantity(of_kind(built[overlay], "PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"])
    assert int(env_of(built[overlay])["RODIMUS_STATE_DISK_BYTES"]) == 0.8 * claim


def figures(tmp_path, name="Rodimus+-Coder-1.6B"):
    """(bytes of its weights, of its sessions by device): of the model that the overlays are made for."""
    return sizes.weight_bytes(name), sizes.session_bytes(name, tmp_path)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_has_the_memory_that_its_settings_take(built, overlay, tmp_path):
    weights, session = figures(tmp_path)
    env = env_of(built[overlay])
    resources = pod_of(built[overlay])["containers"][0]["resources"]
    limit = quantity(resources["limits"]["memory"])
    assert limit == quantity(resources["requests"]["memory"]), "a node that is full would kill it in the middle of its work"
    taken = weights + int(env["RODIMUS_STATE_HOST_BYTES"]) + GIB
    if overlay == "cpu":
        taken += int(env["RODIMUS_SLOTS"]) * 1.05 * session["cpu"]
    assert taken < limit < 1.5 * taken, (taken / GIB, limit / GIB)


def test_a_pod_on_cpus_computes_with_the_cores_that_it_asks_for(built):
    requests = pod_of(built["cpu"])["containers"][0]["resources"]["requests"]
    assert float(env_of(built["cpu"])["RODIMUS_THREADS"]) == quantity(requests["cpu"])


def test_the_page_says_how_many_sessions_the_claim_holds(built, tmp_path):
    _, session = figures(tmp_path)
    row = re.search(r"^\| claim of states \| 100Gi, 80 GiB of it used: (\d+) sessions \| the same: (\d+) sessions \|$", read("README.md"), re.M)
    bound = int(env_of(built["gpu"])["RODIMUS_STATE_DISK_BYTES"])
    assert [int(n) for n in row.groups()] == [bound // (session[device] + 4096) for device in ("gpu", "cpu")]
    said = re.search(r"(\d+) sessions of Rodimus\+-Coder-1.6B$", read("overlays/gpu/deployment.yaml"), re.M)
    assert int(said.group(1)) == int(env_of(built["gpu"])["RODIMUS_STATE_HOST_BYTES"]) // session["gpu"]


@contextlib.contextmanager
def small_disk(folder, n_bytes):
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={n_bytes},mode=700", "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("bounded", [True, False])
def test_a_full_claim_fails_no_turns(built, tmp_path, bounded):
    """A disk with the claim's proportions takes three times the sessions that fit it. Without the bound, turns fail."""
    claim = quantity(of_kind(built["cpu"], "PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"])
    disk = 24 << 20
    bound = int(int(env_of(built["cpu"])["RODIMUS_STATE_DISK_BYTES"]) * disk / claim)
    with small_disk(tmp_path, disk):
        server = Server("--state-dir", tmp_path, "--state-disk-bytes", bound if bounded else 0, name="deploy-claim")
        try:
            statuses = [server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2, "session_id": f"s{i}", "session_create": True}).status
                        for i in range(90)]
            # the disk holds fewer than these: a state has some 0.8 MB
            assert server.metric("rodimus_session_bytes") > 2 << 20 and len(statuses) * (800 << 10) > 2.5 * disk
            if bounded:
                assert set(statuses) == {200} and server.metric("rodimus_sessions_evicted_total") > 30
                assert server.metric("rodimus_state_file_bytes") <= bound
            else:
                assert 503 in statuses and server.metric("rodimus_state_save_failures_total") > 0
            record(what="turns of new sessions on a claim that is too small for them", balancer="none",
                   event="state_disk_bytes at 0.8 of it" if bounded else "no state_disk_bytes", requests=len(statuses), lost=statuses.count(503))
        finally:
            server.kill()


# ---- pods that come, go and are asked ----

@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_the_port_that_answers_when_all_connections_are_taken(built, overlay):
    container, = pod_of(built[overlay])["containers"]
    env, ports = env_of(built[overlay]), ports_of(built[overlay])
    assert env.get("RODIMUS_ADMIN_HOST") == "0.0.0.0", "the kubelet and Prometheus come from outside of the pod"
    admin = int(env["RODIMUS_ADMIN_PORT"])
    assert admin == ports["admin"] != ports["http"] == 8080
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = container[probe]["httpGet"]
        assert get["port"] == "admin" and "scheme" not in get, f"{probe}: {get}"
    service = of_kind(built[overlay], "Service")
    assert [p["targetPort"] for p in service["spec"]["ports"]] == ["http"], "the admin port is nobody's from outside"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_has_the_time_to_drain(built, overlay):
    env = env_of(built[overlay])
    needed_s = (int(env["RODIMUS_DRAIN_NOTICE_MS"]) + int(env["RODIMUS_DRAIN_MS"])) / 1000
    assert needed_s + 5 <= pod_of(built[overlay])["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_all_select_the_replicas(built, overlay):
    objects = built[overlay]
    template = of_kind(objects, "Deployment")["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    monitor, = documents_of(read("podmonitor.yaml"))
    selectors = [of_kind(objects, "Deployment")["spec"]["selector"], of_kind(objects, "PodDisruptionBudget")["spec"]["selector"],
                 {"matchLabels": of_kind(objects, "Service")["spec"]["selector"]}, of_kind(objects, "NetworkPolicy")["spec"]["podSelector"],
                 monitor["spec"]["selector"], *(c["labelSelector"] for c in template["spec"]["topologySpreadConstraints"])]
    assert len(selectors) == 7 and all(set(s) == {"matchLabels"} and s["matchLabels"] and s["matchLabels"].items() <= labels for s in selectors)
    assert of_kind(objects, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "rodimus"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_one_replica_at_a_time_is_taken_away_however_many_there_are(built, overlay):
    budget = of_kind(built[overlay], "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1 and "minAvailable" not in budget
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow", "one replica that does not come up would hold every drain of a node"
    rolling = of_kind(built[overlay], "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == ({"maxUnavailable": 1, "maxSurge": 0} if overlay == "gpu" else {"maxUnavailable": 0, "maxSurge": 1})
    down = of_kind(built[overlay], "HorizontalPodAutoscaler")["spec"]["behavior"]["scaleDown"]["policies"]
    assert [p["value"] for p in down] == [1]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_autoscaler_alone_has_the_number_of_replicas(built, overlay):
    """A number in the Deployment would be taken at each apply, whatever the load."""
    assert "replicas" not in of_kind(built[overlay], "Deployment")["spec"]
    assert of_kind(built[overlay], "HorizontalPodAutoscaler")["spec"]["minReplicas"] >= 2


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_replicas_spread_over_nodes_and_zones(built, overlay):
    spread = pod_of(built[overlay])["topologySpreadConstraints"]
    assert {c["topologyKey"] for c in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    assert all(c["whenUnsatisfiable"] == "ScheduleAnyway" for c in spread), "a cluster of one node has to run them, too"


def test_a_replica_with_a_gpu_may_go_to_a_node_that_takes_nothing_else(built):
    pod = pod_of(built["gpu"])
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert "tolerations" not in pod_of(built["cpu"]) and "nvidia.com/gpu" not in pod_of(built["cpu"])["containers"][0]["resources"]["limits"]


def test_a_missing_gpu_ends_the_start():
    done = command("serve", "--port", 0, env={**os.environ, "RODIMUS_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode in (1, 2) and "device" in done.stderr, done


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_the_scrapers_namespace_reaches_the_admin_port(built, overlay):
    policy = of_kind(built[overlay], "NetworkPolicy")["spec"]
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"] and policy["egress"] == [], "the server calls nobody"
    ways = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["ingress"]}
    assert all(len(rule["ports"]) == 1 for rule in policy["ingress"]) and set(ways) == {"http", "admin"} <= set(ports_of(built[overlay]))
    assert ways["http"] is None and ways["admin"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_more_replicas_come_when_slots_are_nearly_all_in_use(built, served, overlay):
    """By their share: how many a GPU has depends on it and on the model, and is said nowhere unless somebody sets it."""
    slots = env_of(built[overlay]).get("RODIMUS_SLOTS")
    pods = [m["pods"] for m in of_kind(built[overlay], "HorizontalPodAutoscaler")["spec"]["metrics"]]
    targets = {p["metric"]["name"]: quantity(p["target"]["averageValue"]) for p in pods}
    assert set(targets) <= served, f"nobody says {set(targets) - served}"
    shares = [targets[name] for name in targets if name.endswith("_ratio")]
    if "rodimus_slots_used" in targets:
        assert slots, f"at {targets['rodimus_slots_used']} slots in use of nobody knows how many"
        shares.append(targets["rodimus_slots_used"] / int(slots))
    assert shares and all(0.5 <= share < 1 for share in shares), f"at these shares of the slots: {shares}"
    offered = {re.match(r"\w+", rule["seriesQuery"]).group(0) for rule in documents_of(read("adapter.yaml"))[0]["rules"]}
    assert offered == set(targets), "what the adapter offers and the autoscaler asks for"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_of_the_namespace_make_no_settings(built, overlay):
    """Kubernetes gives a container RODIMUS_CANARY_SERVICE_HOST for a Service rodimus-canary, and the server refuses what it does not know."""
    done = command("serve", env={**os.environ, "RODIMUS_CANARY_SERVICE_HOST": "10.0.0.1"})
    assert done.returncode == 2 and "RODIMUS_CANARY_SERVICE_HOST" in done.stderr, done
    assert pod_of(built[overlay])["enableServiceLinks"] is False


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_variables_of_a_pod_are_settings_of_the_server(built, overlay):
    with open(os.path.join(ROOT, "config", "default.json")) as f:
        known = {"RODIMUS_" + key.upper() for key in json.load(f)}
    assert set(env_of(built[overlay])) <= known, set(env_of(built[overlay])) - known


# ---- Prometheus, its operator and its adapter ----

def test_alerts_know_the_job_of_the_monitor():
    monitor, = documents_of(read("podmonitor.yaml"))
    endpoint, = monitor["spec"]["podMetricsEndpoints"]
    with open(os.path.join(DEPLOY, "alerts.yml")) as f:
        jobs = set(re.findall(r'job="(\w+)"', f.read()))
    assert {(r["targetLabel"], r["replacement"]) for r in endpoint["relabelings"]} == {("job", job) for job in jobs}
    assert endpoint["port"] == "admin"


def example(language, begins):
    found = [code for code in re.findall(rf"^```{language}\n(.*?)^```$", read("README.md"), re.M | re.S) if begins in code]
    assert len(found) == 1, begins
    return found[0]


def test_the_pages_rules_for_the_operator_are_those_of_alerts_yml(tmp_path):
    """The command of the page, with a kubectl that writes down what it is given."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nif [ "$3" = - ]; then cat >{tmp_path}/applied; else cp "$3" {tmp_path}/monitor; fi\n')
    kubectl.chmod(0o755)
    subprocess.run(["sh", "-euc", example("bash", "PrometheusRule")], cwd=ROOT, check=True, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    rule, = documents_of((tmp_path / "applied").read_text())
    validate(rule)
    with open(os.path.join(DEPLOY, "alerts.yml")) as f:
        assert rule["kind"] == "PrometheusRule" and rule["spec"] == yaml.safe_load(f)
    assert (tmp_path / "monitor").read_text() == read("podmonitor.yaml")


def test_prometheus_takes_the_pages_job(tmp_path):
    """With fixed targets: Debian's Prometheus is built without Kubernetes."""
    if not shutil.which("promtool"):
        pytest.skip("promtool (Debian's package prometheus) is not here")
    text, n = re.subn(r"kubernetes_sd_configs:\n      - { role: pod }\n", 'static_configs:\n      - targets: ["a:1"]\n', example("yaml", "kubernetes_sd_configs"))
    assert n == 1
    (tmp_path / "prometheus.yml").write_text(text)
    done = subprocess.run(["promtool", "check", "config", "--syntax-only", tmp_path / "prometheus.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_adapters_file_has_its_fields_alone():
    """Those of prometheus-adapter's pkg/config (v0.12.0), which reads its file strictly."""
    rule = {"type": "object", "additionalProperties": False, "required": ["seriesQuery", "metricsQuery", "resources"], "properties": {
        "seriesQuery": {"type": "string"}, "metricsQuery": {"type": "string"},
        "seriesFilters": {"type": "array", "items": {"type": "object", "additionalProperties": False,
                                                       "properties": {"is": {"type": "string"}, "isNot": {"type": "string"}}}},
        "name": {"type": "object", "additionalProperties": False, "properties": {"matches": {"type": "string"}, "as": {"type": "string"}}},
        "resources": {"type": "object", "additionalProperties": False, "properties": {
            "template": {"type": "string"}, "namespaced": {"type": "boolean"},
            "overrides": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": False, "required": ["resource"],
                                                                        "properties": {"group": {"type": "string"}, "resource": {"type": "string"}}}}}}}}
    schema = {"type": "object", "additionalProperties": False, "required": ["rules"], "properties": {"rules": {"type": "array", "items": rule}}}
    config, = documents_of(read("adapter.yaml"))
    jsonschema.Draft202012Validator(schema).validate(config)
    for path in mappings(config):
        if path and path[-1] == "overrides":
            continue
        worse = copy.deepcopy(config)
        at = worse
        for key in path:
            at = at[key]
        at["unknownField"] = {}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema).validate(worse)


# ---- the ways in ----

def session_header():
    with open(os.path.join(ROOT, "config", "default.json")) as f:
        return json.load(f)["session_header"]


def test_the_gateway_takes_all_routes_but_the_watchers(built):
    _, route, policy = documents_of(read("gateway.yaml"))
    rule, = route["spec"]["rules"]
    service = of_kind(built["gpu"], "Service")
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}]
    assert rule["timeouts"] == {"request": "0s"}, "Envoy would end an answer after 15 s"

    def passes(path):
        return any(path == m["path"]["value"] or m["path"]["type"] == "PathPrefix" and path.startswith(m["path"]["value"] + "/") for m in rule["matches"])

    with open(os.path.join(ROOT, "openapi.yaml")) as f:
        paths = set(yaml.safe_load(f)["paths"])
    assert {"/metrics", "/slots", "/v1/completions"} < paths
    assert {p for p in paths if not passes(p)} == {"/metrics", "/slots"}
    target, = policy["spec"]["targetRefs"]
    assert (target["kind"], target["name"]) == ("HTTPRoute", route["metadata"]["name"])
    assert policy["spec"]["loadBalancer"]["consistentHash"]["headers"] == [{"name": session_header()}]
    assert policy["spec"]["retry"]["retryOn"] == {"triggers": ["connect-failure"]}, "a POST that may have run is not sent again"


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with its port."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = str(self.server.server_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", len(body))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_the_ingress_lines_do_in_haproxy_what_they_are_there_for(built, tmp_path):
    """In a backend as HAProxy's controller writes it: sessions stay, other requests are spread, /metrics is no way in, and a replica that refuses
    connections costs no request."""
    if not installed("haproxy"):
        pytest.skip("haproxy is not installed")
    ingress, = documents_of(read("ingress.yaml"))
    service = of_kind(built["gpu"], "Service")
    way = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert way == {"name": service["metadata"]["name"], "port": {"name": service["spec"]["ports"][0]["name"]}}
    said = {key.removeprefix("haproxy.org/"): value for key, value in ingress["metadata"]["annotations"].items()}
    assert said["load-balance"] == f"hdr({session_header()})"
    replicas = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) for _ in range(3)]
    threads = [threading.Thread(target=r.serve_forever, args=(0.01,)) for r in replicas]
    for t in threads:
        t.start()
    port, = free_ports(1)
    lines = said["backend-config-snippet"].strip().splitlines()
    servers = [f"server SRV_{i + 1} 127.0.0.1:{r.server_address[1]} enabled" for i, r in enumerate(replicas)]
    config = ["defaults", "  mode http", "  timeout client 50s", "  timeout connect 5s", "  timeout server 50s", "frontend http", f"  bind 127.0.0.1:{port}",
              "  default_backend rodimus", "backend rodimus", f"  balance {said['load-balance']}", f"  timeout server {said['timeout-server']}",
              *(f"  {line}" for line in lines + servers), ""]
    (tmp_path / "haproxy.cfg").write_text("\n".join(config))
    done = subprocess.run(["haproxy", "-c", "-f", tmp_path / "haproxy.cfg"], capture_output=True, text=True)
    assert done.returncode == 0 and "WARNING" not in done.stdout + done.stderr, done
    balancer = subprocess.Popen(["haproxy", "-db", "-f", tmp_path / "haproxy.cfg"], stderr=subprocess.DEVNULL)

    def ask(session=None, path="/v1/models"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", path, headers={session_header(): session} if session else {})
        answer = connection.getresponse()
        said = answer.status, answer.read().decode()
        connection.close()
        return said

    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                ask()
                break
            threading.Event().wait(0.05)
        homes = {f"s{i}": ask(f"s{i}") for i in range(24)}
        assert len(set(homes.values())) == 3 and all(ask(session) == home for session, home in homes.items())
        assert len({ask() for _ in range(12)}) == 3
        assert [ask(path=p)[0] for p in ("/metrics", "/slots", "/%6Detrics", "/v1/models")] == [404, 404, 404, 200]
        gone = replicas[0]
        gone.shutdown()
        gone.server_close()
        after = {session: ask(session) for session in homes}
        assert all(status == 200 and said != str(gone.server_address[1]) for status, said in after.values())
    finally:
        balancer.terminate()
        balancer.wait(10)
        for r, t in zip(replicas, threads):
            r.shutdown()
            t.join()
            r.server_close()
