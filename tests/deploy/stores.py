"""Where servers of one fleet keep their states: a shared folder, the tests' own object store, SeaweedFS, moto behind a lock. Each is a process that a test
may kill, stop and start again; `flags` and `env` lead a server to it."""
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import time

from replicas import ROOT, free_ports

sys.path.insert(0, os.path.join(ROOT, "tests"))
import object_stand_in  # noqa: E402

KEY, SECRET, REGION, BUCKET = "FLEET", "fleet+/secret", "us-east-1", "states"


class Folder:
    """What the servers of one machine share without a store."""
    name, process = "folder", None

    def __init__(self, folder):
        self.folder, self.env = str(folder), {}
        self.flags = ("--state-dir", self.folder)

    def bytes(self):
        return sum(f.stat().st_size for f in os.scandir(self.folder))

    def close(self):
        pass


class Store:
    """Of self.process, at self.port."""
    name = None

    def lead(self, endpoint, url, env):
        self.endpoint, self.url, self.env = endpoint, url, env
        self.flags = ("--state-url", url, "--state-endpoint", endpoint)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        if self.process.poll() is None:
            self.go_on()
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


class StandIn(Store):
    """tests/object_stand_in.py: conditions under a lock, signatures checked, faults on demand."""
    name = "stand-in"

    def __init__(self, folder):
        self.store = object_stand_in.start(["--dir", folder])
        self.faults, self.requests, self.objects_now, self.ask = self.store.faults, self.store.requests, self.store.objects_now, self.store.ask
        self.lead(self.store.endpoint, self.store.url, self.store.env)

    @property
    def process(self):
        return self.store.process

    def again(self):
        self.store.process.stdout.close()
        self.store.again()

    def bytes(self):
        return sum(o["bytes"] for o in self.objects_now().values())


class Program(Store):
    """A server of another's making, which is ready when it takes a bucket. self.command(port, folder) starts it."""
    environment = {}

    def __init__(self, folder, address="127.0.0.1"):
        """address: that servers have to ask."""
        self.folder, self.address = str(folder), address
        self.port, *self.others = free_ports(8)
        self.prepare()
        self.again()
        self.lead(f"http://{self.address}:{self.port}", f"s3://{BUCKET}/states", {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION})

    def prepare(self):
        pass

    def again(self):
        with open(os.path.join(self.folder, "log"), "a") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, cwd=self.folder, env={**os.environ, **self.environment})
        end = time.monotonic() + 60
        while not self.has_bucket():
            assert self.process.poll() is None and time.monotonic() < end, f"{self.name} does not run: {self.log()[-2000:]}"
            time.sleep(0.1)

    def has_bucket(self):
        """Made by a signed request, of the stand-in's own signature."""
        path, date = f"/{BUCKET}", time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers = {"host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": object_stand_in.NO_BODY, "x-amz-date": date}
        names, scope = sorted(headers), [date[:8], REGION, "s3", "aws4_request"]
        sign = object_stand_in.signature(SECRET, "PUT", path, "", headers, names, object_stand_in.NO_BODY, date, scope)
        authorization = f"AWS4-HMAC-SHA256 Credential={KEY}/{'/'.join(scope)}, SignedHeaders={';'.join(names)}, Signature={sign}"
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            connection.request("PUT", path, headers={**headers, "authorization": authorization})
            return connection.getresponse().status in (200, 409)
        except OSError:
            return False

    def log(self):
        with open(os.path.join(self.folder, "log"), errors="replace") as f:
            return f.read()

    def bytes(self):
        return sum(os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(self.folder) for f in files)


class SeaweedFS(Program):
    name = "seaweedfs"

    def prepare(self):
        os.makedirs(os.path.join(self.folder, "data"), exist_ok=True)
        with open(os.path.join(self.folder, "s3.json"), "w") as f:
            json.dump({"identities": [{"name": "fleet", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}, f)

    def command(self):
        of_s3, *own = self.others
        ports = [f"-{part}.port{kind}={port}" for (part, kind), port in zip(itertools.product(("master", "volume", "filer"), ("", ".grpc")), own)]
        return [os.path.join(os.path.dirname(sys.executable), "weed"), "server", f"-dir={self.folder}/data", "-ip=127.0.0.1", f"-ip.bind={'127.0.0.1' if self.address == '127.0.0.1' else '0.0.0.0'}", "-master.telemetry=false",
                "-master.peers=none", "-master.volumeSizeLimitMB=1024", "-volume.max=40", "-filer", "-s3", f"-s3.port={self.port}", f"-s3.port.grpc={of_s3}", "-s3.port.iceberg=0",
                "-s3.port.lance=0", "-s3.domainName=localhost", f"-s3.config={self.folder}/s3.json", *ports]


# moto looks at a condition and writes without a lock: of two writers at once both may win.
MOTO = """import io, sys, threading
from werkzeug.serving import run_simple
from moto.server import DomainDispatcherApplication, create_backend_app
moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
def one_by_one(env, start):
    n = int(env.get('CONTENT_LENGTH') or 0)
    body = env['wsgi.input'].read(n)
    if len(body) < n:
        start('400 Bad Request', [('Content-Length', '0')])
        return [b'']
    env['wsgi.input'] = io.BytesIO(body)
    with lock:
        answer = moto(env, start)
        try:
            return [b''.join(answer)]
        finally:
            getattr(answer, 'close', lambda: None)()
run_simple(sys.argv[1], int(sys.argv[2]), one_by_one, threaded=True)
"""


class Moto(Program):
    """In memory: again() begins empty."""
    name = "moto"

    def command(self):
        return [sys.executable, "-c", MOTO, self.address, str(self.port)]


KINDS = {kind.name: kind for kind in (Folder, StandIn, SeaweedFS, Moto)}
