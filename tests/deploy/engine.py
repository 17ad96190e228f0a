"""A Docker engine for tests: a dockerd with a data root, a socket, a bridge and an address pool of its own, beside any other that runs.

No registry is asked. The base image is a Debian made by debootstrap, imported under the tag that the Dockerfile names. The other
images of compose.yaml have stand-ins: Debian's packages under the same tag, with the user, entrypoint and folders of the published image.
Containers reach one another and the host, no packages: builds use the host's network."""
import ctypes
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASE = "debian:bookworm-slim"
APT = "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends"

# What Debian's slim image leaves out, so that sizes compare with it.
SLIM = "usr/share/doc usr/share/man usr/share/info usr/share/locale var/cache/apt/archives var/lib/apt/lists var/log/apt var/log/bootstrap.log var/log/dpkg.log var/cache/debconf"
SLIM_LATER = "".join(f"path-exclude=/usr/share/{name}/*\n" for name in ("doc", "man", "info", "locale")) + "path-include=/usr/share/doc/*/copyright\n"

# As Debian's image has it: apt keeps neither packages nor what it has computed of their lists.
CLEAN = """DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache ""; Acquire::Languages "none";
"""
SOURCES = "".join(f"deb http://deb.debian.org/{archive} {suite} main\n" for archive, suite in
                  (("debian", "bookworm"), ("debian", "bookworm-updates"), ("debian-security", "bookworm-security")))

STAND_INS = {
    # Published: user 99, stops by SIGUSR1, an entrypoint that adds master-worker mode.
    "haproxy:2.6": f"""FROM {BASE}
RUN {APT} haproxy && groupmod --gid 99 haproxy && usermod --uid 99 --gid 99 haproxy && mkdir -p /var/lib/haproxy /usr/local/etc/haproxy && chown haproxy:haproxy /var/lib/haproxy \\
    && printf '#!/bin/sh\\nset -e\\ncase "$1" in -*) set -- haproxy "$@" ;; esac\\n[ "$1" != haproxy ] || {{ shift; set -- haproxy -W -db "$@"; }}\\nexec "$@"\\n' \\
        >/usr/local/bin/docker-entrypoint.sh && chmod +x /usr/local/bin/docker-entrypoint.sh
STOPSIGNAL SIGUSR1
USER haproxy
WORKDIR /var/lib/haproxy
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["haproxy", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
""",
    # Published: the master is root, workers are user 101; stops by SIGQUIT.
    "nginx:1.22": f"""FROM {BASE}
RUN groupadd --system --gid 101 nginx && useradd --system --uid 101 --gid 101 --home-dir /nonexistent --no-create-home nginx \\
    && {APT} nginx-light && mkdir -p /docker-entrypoint.d && ln -sf /dev/stdout /var/log/nginx/access.log && ln -sf /dev/stderr /var/log/nginx/error.log \\
    && printf '#!/bin/sh\\nset -e\\nexec "$@"\\n' >/docker-entrypoint.sh && chmod +x /docker-entrypoint.sh
STOPSIGNAL SIGQUIT
EXPOSE 80
ENTRYPOINT ["/docker-entrypoint.sh"]
CMD ["nginx", "-g", "daemon off;"]
""",
    # Published: root, and a file capability on the program: without NET_BIND_SERVICE in the bounding set the kernel does not start it.
    "caddy:2.6": f"""FROM {BASE}
RUN {APT} caddy libcap2-bin && mkdir -p /config/caddy /data/caddy /etc/caddy /srv && setcap cap_net_bind_service=+ep /usr/bin/caddy
ENV XDG_CONFIG_HOME=/config XDG_DATA_HOME=/data
EXPOSE 80 443 2019
WORKDIR /srv
CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]
""",
    # Published: user 65534, and a folder for data that is that user's.
    "prom/prometheus:v2.55.1": f"""FROM {BASE}
RUN {APT} prometheus && mkdir -p /etc/prometheus /prometheus && chown 65534:65534 /prometheus
USER 65534
EXPOSE 9090
VOLUME /prometheus
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
""",
    # Debian has no Grafana: this one reads, as Grafana's user, the files that Grafana would read, and waits on its port.
    "grafana/grafana:11.3.0": f"""FROM {BASE}
RUN useradd --system --uid 472 --gid 0 --no-create-home grafana && {APT} python3-minimal && rm -rf /var/lib/apt/lists/*
USER 472
EXPOSE 3000
ENTRYPOINT ["sh", "-c", "cat /etc/grafana/provisioning/dashboards/*.yaml /etc/grafana/provisioning/datasources/*.yaml /var/lib/grafana/dashboards/*.json >/dev/null \
&& exec python3 -c 'import socket as s; l = s.create_server((\\"0.0.0.0\\", 3000))\\nwhile 1: l.accept()[0].sendall(b\\"HTTP/1.0 200 OK\\\\r\\\\n\\\\r\\\\nstand-in\\")'"]
""",
}


class Refused(Exception):
    """There is no engine here; the text says why, in one line."""


class Failed(subprocess.CalledProcessError):
    """A command that failed; the text has its end."""

    def __str__(self):
        return f"{' '.join(map(str, self.cmd))[:300]}: exit status {self.returncode}\n{self.stderr}"


def dies_with_its_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: a test run that is killed leaves no engine behind


def run_folder(n):
    return f"/run/rodimus-docker-{n}"  # paths of sockets are short


def filter_rule(word, n):
    """-I, -D: containers reach one another also where another engine has the kernel drop what is forwarded."""
    pool = f"10.{n}.0.0/16"
    return subprocess.run(["iptables", "-w", word, "FORWARD", "-s", pool, "-d", pool, "-j", "ACCEPT"], capture_output=True).returncode == 0


def sweep(n, *folders):
    """What an engine leaves behind: mounts, its bridge, its rule. One whose tests were killed may still be ending."""
    try:
        with open(os.path.join(run_folder(n), "pid")) as f:
            pid = int(f.read())
        for _ in range(300):
            os.kill(pid, 0)
            time.sleep(0.1)
    except (OSError, ValueError):
        pass
    with open("/proc/mounts") as f:
        for path in [line.split()[1] for line in f if line.split()[1].startswith(tuple(folder + "/" for folder in (run_folder(n), *folders)))]:
            subprocess.run(["umount", path], capture_output=True)
    subprocess.run(["ip", "link", "del", f"rodimus{n}"], capture_output=True)
    while filter_rule("-D", n):
        pass
    shutil.rmtree(run_folder(n), ignore_errors=True)


def address_pool():
    """(10.N, what keeps it): a network that no other engine of these tests has, and no interface."""
    for n in range(int(os.environ.get("RODIMUS_TEST_NETWORK", 201)), 255):
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0rodimus-test-network-10.{n}")  # the kernel ends it with this process
        except OSError:
            lock.close()
            continue
        sweep(n)
        if f" 10.{n}." not in subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True, check=True).stdout:
            return n, lock
        lock.close()
    raise Refused("no free network of 10.201.0.0/16 to 10.254.0.0/16")


class Engine:
    def __init__(self, folder):
        """Starts it; what it keeps (the base system, images) stays in `folder` for the next time."""
        self.folder = os.path.realpath(folder)
        self.made = set()
        if os.environ.get("RODIMUS_TEST_DOCKER") == "0":
            raise Refused("RODIMUS_TEST_DOCKER=0")
        for program in ("dockerd", "docker", "docker-compose", "debootstrap", "ip", "iptables"):
            if not shutil.which(program):
                raise Refused(f"{program} is not installed")
        if os.geteuid() != 0:
            raise Refused("needs root")
        os.makedirs(folder, exist_ok=True)
        self.n, self.pool_lock = address_pool()
        self.run_folder = run_folder(self.n)
        os.mkdir(self.run_folder, 0o700)
        self.bridge = f"rodimus{self.n}"
        self.socket = f"unix://{self.run_folder}/docker.sock"
        self.program = shutil.which("docker", path="/usr/bin:" + os.environ["PATH"])
        self.env = {**os.environ, "DOCKER_HOST": self.socket, "DOCKER_BUILDKIT": "0",
                    "DOCKER_CONFIG": self.run_folder, "COMPOSE_PROJECT_NAME": "rodimus"}
        self.process = None
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self):
        self.make_bridge()
        self.start_daemon()
        end = time.monotonic() + 180
        while subprocess.run([self.program, "version"], env=self.env, capture_output=True).returncode != 0:
            ended = self.process.poll() is not None
            # dockerd ends after 15 s without its containerd, which a loaded machine may take.
            if ended and "waiting for containerd" in self.daemon_said() and time.monotonic() < end:
                self.start_daemon()
            elif ended or time.monotonic() > end:
                raise Refused(f"dockerd does not run: {self.daemon_said()}")
            time.sleep(0.1)
        self.clear()
        self.make_base()
        try:
            self.docker("run", "--rm", BASE, "true")
        except Failed as e:
            raise Refused(f"containers do not run: {e.stderr.strip().splitlines()[-1:]}")

    def start_daemon(self):
        with open(os.path.join(self.folder, "dockerd.log"), "w") as log:
            self.process = subprocess.Popen(
                ["dockerd", "--data-root", os.path.join(self.folder, "data"), "--exec-root", os.path.join(self.run_folder, "exec"),
                 "--pidfile", os.path.join(self.run_folder, "pid"), "-H", self.socket, "--config-file", self.config_file(),
                 "--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip-forward=false", "--bridge", self.bridge,
                 "--default-address-pool", f"base=10.{self.n}.0.0/17,size=24", "--storage-driver", "overlay2"],
                stdout=log, stderr=log, preexec_fn=dies_with_its_parent)

    def daemon_said(self):
        with open(os.path.join(self.folder, "dockerd.log")) as log:
            return (log.read().strip().splitlines() or ["it says nothing"])[-1]

    def config_file(self):
        """Nothing of /etc/docker/daemon.json counts."""
        path = os.path.join(self.run_folder, "daemon.json")
        with open(path, "w") as f:
            f.write("{}")
        return path

    def make_bridge(self):
        filter_rule("-I", self.n)
        for words in (["link", "add", self.bridge, "type", "bridge"], ["addr", "add", f"10.{self.n}.128.1/24", "dev", self.bridge], ["link", "set", self.bridge, "up"]):
            done = subprocess.run(["ip", *words], capture_output=True, text=True)
            if done.returncode != 0:
                raise Refused(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def make_base(self):
        """A minimal Debian, slim as Debian's image is; its archive is kept, as debootstrap takes a minute."""
        archive = os.path.join(self.folder, "bookworm.tar")
        if not os.path.exists(archive):
            root = tempfile.mkdtemp(prefix="bookworm-", dir=self.folder)
            try:
                done = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root], capture_output=True, text=True)
                if done.returncode != 0:
                    raise Refused(f"no base system: {(done.stdout.strip().splitlines() or ['debootstrap says nothing'])[-1]}")
                for name in SLIM.split():
                    subprocess.run(["find", os.path.join(root, name), "-not", "-type", "d", "-not", "-name", "copyright", "-delete"], stderr=subprocess.DEVNULL)
                for name, text in (("etc/dpkg/dpkg.cfg.d/slim", SLIM_LATER), ("etc/apt/sources.list", SOURCES), ("etc/apt/apt.conf.d/clean", CLEAN)):
                    with open(os.path.join(root, name), "w") as f:
                        f.write(text)
                subprocess.run(["tar", "-C", root, "-cf", archive + ".part", "."], check=True)
                os.rename(archive + ".part", archive)
            finally:
                shutil.rmtree(root, ignore_errors=True)
        if subprocess.run([self.program, "image", "inspect", BASE], env=self.env, capture_output=True).returncode != 0:
            self.docker("import", "--change", 'CMD ["bash"]', archive, BASE)

    def docker(self, *words, timeout=600, **more):
        """What docker WORDS says on stdout; Failed if it fails."""
        return self.call([self.program, *words], timeout=timeout, **more)

    def compose(self, *words, timeout=600, **more):
        """docker-compose 1.29 in the root of the repository: compose("-f", "deploy/compose.yaml", "up", "-d")."""
        return self.call(["docker-compose", *words], timeout=timeout, **more)

    def call(self, command, timeout, env=None, **more):
        done = subprocess.run([str(word) for word in command], env={**self.env, **(env or {})}, cwd=ROOT, capture_output=True, text=True, timeout=timeout, **more)
        if done.returncode != 0:
            said = re.sub(r"\x1b\[\d+m", "", done.stdout[-2000:] + done.stderr[-4000:])  # the classic builder colours each piece that it reads
            raise Failed(done.returncode, command, done.stdout, said)
        return done.stdout.strip()

    def image(self, *tags):
        """Makes stand-ins, those that are not there yet."""
        for tag in tags:
            if tag not in self.made:
                self.docker("build", "--network", "host", "-t", tag, "-", input=STAND_INS[tag])
                self.made.add(tag)

    def commit(self):
        said = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        return said.stdout.strip() or "unknown"

    def server_image(self, *flags, tag="rodimus:cpu", target="cpu"):
        """deploy/Dockerfile, by the classic builder; built once in a run of the tests."""
        if tag not in self.made:
            self.docker("build", "--network", "host", "-f", "deploy/Dockerfile", "--target", target, "-t", tag, "--build-arg", f"COMMIT={self.commit()}",
                        *flags, ".", timeout=1200)
            self.made.add(tag)
        return tag

    def inspect(self, name):
        return json.loads(self.docker("inspect", name))[0]

    def address(self, container):
        """Its address on the first network that it has; "" where it runs no more."""
        networks = self.inspect(container)["NetworkSettings"]["Networks"]
        return next((network["IPAddress"] for network in networks.values() if network["IPAddress"]), "")

    def health(self, container):
        """starting, healthy or unhealthy; the status of a container that has no check."""
        state = self.inspect(container)["State"]
        return state.get("Health", {}).get("Status", state["Status"])

    def wait_healthy(self, *containers, timeout=60):
        end = time.monotonic() + timeout
        for container in containers:
            while self.health(container) not in ("healthy", "running"):
                assert time.monotonic() < end, f"{container} is {self.health(container)}: {self.logs(container)[-2000:]}"
                time.sleep(0.2)

    def wait_ready(self, container, port=8080, timeout=60):
        """Seconds before the first health check, which comes after its interval."""
        end = time.monotonic() + timeout
        while get(self.address(container), port, "/health/ready", timeout=1)[0] != 200:
            assert self.inspect(container)["State"]["Running"] and time.monotonic() < end, self.logs(container)[-2000:]
            time.sleep(0.05)

    def logs(self, container):
        return subprocess.run([self.program, "logs", container], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout

    def clear(self):
        """No containers, networks, volumes; also those of a run that was killed."""
        for listing, removal in ((["ps", "-aq"], ["rm", "-fv"]), (["network", "ls", "-q", "--filter", "type=custom"], ["network", "rm"]),
                                 (["volume", "ls", "-q"], ["volume", "rm", "-f"])):
            ids = subprocess.run([self.program, *listing], env=self.env, capture_output=True, text=True).stdout.split()
            if ids:
                subprocess.run([self.program, *removal, *ids], env=self.env, capture_output=True)

    def stop(self):
        """Ends the daemon and all that it runs; images stay in the folder, those without a tag for a day."""
        if self.process and self.process.poll() is None:
            self.clear()
            subprocess.run([self.program, "image", "prune", "-f", "--filter", "until=24h"], env=self.env, capture_output=True)
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        sweep(self.n, self.folder)
        self.pool_lock.close()


def get(address, port, path, timeout=5, headers={}):
    """(status, body) of GET; status 0 if nobody answers."""
    if not address:
        return 0, "no address"
    connection = http.client.HTTPConnection(address, port, timeout=timeout)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError as e:
        return 0, str(e)
    finally:
        connection.close()
