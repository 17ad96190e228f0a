"""Compose v2: the plugin of the docker that is here or, on Debian 12, which has none, the program of Debian 13, which runs there."""
import glob
import os
import subprocess

LIST = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main\n"


def find(folder):
    """(words of the command, None), or (None, why not). What is fetched stays in `folder`."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"], None
    program = os.path.join(folder, "usr/libexec/docker/cli-plugins/docker-compose")
    if not os.path.exists(program):
        try:
            fetch(folder)
        except (subprocess.CalledProcessError, OSError, IndexError) as e:
            return None, f"no Compose v2: {e}"
    done = subprocess.run([program, "version"], capture_output=True, text=True)
    return ([program], None) if done.returncode == 0 else (None, f"no Compose v2: {done.stderr.strip()}")


def fetch(folder):
    """By apt, with a list and a cache of its own: what this machine installs does not change."""
    for name in ("lists/partial", "cache/archives/partial", "etc"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    with open(os.path.join(folder, "etc", "sources.list"), "w") as f:
        f.write(LIST)
    own = {"Dir::Etc::SourceList": f"{folder}/etc/sources.list", "Dir::Etc::SourceParts": "-", "Dir::State::Lists": f"{folder}/lists", "Dir::Cache": f"{folder}/cache",
           "APT::Sandbox::User": "root", "Acquire::Languages": "none"}
    options = [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
    subprocess.run(["apt-get", "-qq", *options, "update"], check=True, capture_output=True, timeout=120)
    subprocess.run(["apt-get", "-qq", *options, "download", "docker-compose/trixie"], check=True, capture_output=True, timeout=120, cwd=folder)
    subprocess.run(["dpkg", "-x", sorted(glob.glob(f"{folder}/docker-compose_2*.deb"))[-1], folder], check=True, capture_output=True)
