"""A Debian whose PID 1 is systemd, in a container: the units of deploy/ as an operator installs them, and run."""
import glob
import glob
import os
import subprocess
import time

from engine import APT, BASE
from replicas import DEPLOY

IMAGE = "rodimus-machine"
# A host as deploy/SYSTEMD.md has it installed; HAProxy as Debian runs it. Units that only a real machine needs are out.
RECIPE = f"""FROM {BASE}
RUN {APT} libmicrohttpd12 libjansson4 libuv1 libpcre2-8-0 libutf8proc2 libxxhash0 libgnutls30 libcurl4 systemd procps curl haproxy \\
    && systemctl disable -q haproxy && systemctl mask -q systemd-udevd.service systemd-udev-trigger.service systemd-logind.service getty.target apt-daily.timer apt-daily-upgrade.timer
COPY --from=rodimus:cpu /opt/rodimus /opt/rodimus
RUN cp /opt/rodimus/bin/rodimus /usr/local/bin/rodimus && ln -s /opt/rodimus/share/rodimus /usr/local/share/rodimus && mkdir -p /etc/rodimus
"""
# As on a machine: the tree of cgroups is systemd's, and mounts reach the services (credentials are such).
BOOT = "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && mount --make-rshared / && exec /lib/systemd/systemd"


class Machine:
    def __init__(self, engine, name="rodimus-machine"):
        self.engine, self.name = engine, name
        engine.server_image()
        engine.docker("build", "--network", "host", "-t", IMAGE, "-", input=RECIPE)
        engine.docker("run", "-d", "--name", name, "--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
                      "--cgroupns", "private", "-e", "container=docker", "--tmpfs", "/run", "--tmpfs", "/tmp", "--entrypoint", "sh", IMAGE, "-c", BOOT)
        try:
            end = time.monotonic() + 30
            while (state := self.try_run("systemctl is-system-running")[1]) not in ("running", "degraded"):
                assert time.monotonic() < end, f"systemd: {state} {engine.logs(name)[-2000:]}"
                time.sleep(0.1)
            for unit in sorted(glob.glob(os.path.join(DEPLOY, "rodimus*.s*"))):
                self.put(unit, f"/etc/systemd/system/{os.path.basename(unit)}")
            self.put(os.path.join(DEPLOY, "roll"), "/usr/local/sbin/roll")
            self.run("systemctl daemon-reload")
        except BaseException:
            self.remove()
            raise
        self.address = engine.address(name)

    def try_run(self, script, **more):
        """(exit status, output of both kinds) of a shell script on the machine."""
        done = subprocess.run([self.engine.program, "exec", self.name, "bash", "-c", script], env=self.engine.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=300, **more)
        return done.returncode, done.stdout.strip()

    def run(self, script):
        status, said = self.try_run(script)
        assert status == 0, f"{script}: exit status {status}: {said}\n{self.log()}"
        return said

    def put(self, source, place):
        """A file of this machine, as root's there."""
        with open(source, "rb") as f:
            self.write(place, f.read(), os.stat(source).st_mode & 0o777)

    def write(self, place, content, mode=0o644):
        content = content if isinstance(content, bytes) else content.encode()
        done = subprocess.run([self.engine.program, "exec", "-i", self.name, "sh", "-c", f"mkdir -p $(dirname {place}) && cat >{place} && chmod {mode:o} {place}"],
                              env=self.engine.env, input=content, capture_output=True)
        assert done.returncode == 0, done.stderr

    def dropin(self, unit, text):
        """What `systemctl edit` makes; it holds for later tests until reset()."""
        self.write(f"/etc/systemd/system/{unit}.d/test.conf", text)
        self.run("systemctl daemon-reload")

    def reset(self):
        """No server, no states, no drop-ins; settings for a device that does nothing, 20 ms a step."""
        self.try_run("systemctl stop rodimus.socket; systemctl kill -s KILL haproxy rodimus.service 'rodimus@*'; systemctl stop haproxy rodimus.service 'rodimus@*'; systemctl reset-failed; rm -rf /etc/systemd/system/rodimus*.d /etc/rodimus/* /var/lib/private/rodimus /var/lib/rodimus; "
                     "cp /opt/rodimus/bin/rodimus /usr/local/bin/rodimus.new && mv /usr/local/bin/rodimus.new /usr/local/bin/rodimus; rm -f /usr/local/bin/rodimus.*; systemctl daemon-reload")
        self.write("/etc/rodimus/config.json", '{"device": "null:20", "slots": 64, "host": "0.0.0.0"}')

    def shown(self, unit, what):
        return self.run(f"systemctl show -P {what} {unit}")

    def log(self, unit="rodimus*"):
        """Without the lines of requests."""
        return self.try_run(f"journalctl -q --no-pager -o cat -u '{unit}' | grep -v ' request id=' | tail -n 60")[1]

    def remove(self):
        subprocess.run([self.engine.program, "rm", "-fv", self.name], env=self.engine.env, capture_output=True)
