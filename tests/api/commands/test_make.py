"""What the Makefile would do, by `make -n`: with an nvcc and without, on a machine with a GPU and without."""
import os
import subprocess

import pytest

from server import ROOT

ONE, ALL = ["sm_90a"], ["compute_80", "sm_80", "sm_90a"]


@pytest.fixture
def make(tmp_path):
    def make(target, *settings, gpu=""):
        """The commands of a target, in a build folder of their own; gpu: the device file that is there, None: the machine's own."""
        device = [] if gpu is None else [f"GPU={gpu}"]
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}  # `make test` has its own flags
        done = subprocess.run(["make", "-n", "V=1", target, f"BUILD={tmp_path / 'build'}", "NVCC=/somewhere/nvcc", *device, *settings], cwd=ROOT, env=own,
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()
    return make


def nvcc(commands):
    return [line for line in commands if line.startswith("/somewhere/nvcc ")]


def architectures(commands):
    """Those of machine code and PTX that each call of nvcc makes."""
    made = {tuple(sorted(word.rpartition("code=")[2] for word in line.split() if "code=" in word)) for line in nvcc(commands)}
    assert len(made) == 1, made
    return list(made.pop())


def test_run_builds_for_gpus_first_only_where_one_is_or_is_wished_for(make):
    commands = make("run")
    assert not nvcc(commands) and commands[-1].endswith("serve --port 8080"), commands[-3:]
    assert sum("no GPU is here" in line for line in commands) == 1, commands[-3:]
    commands = make("run", "CUDA=1", gpu=None)
    assert nvcc(commands) and commands[-1].endswith("serve --port 8080") and not any("no GPU is here" in line for line in commands), commands[-3:]


def test_run_without_nvcc_says_nothing_of_gpus(make):
    commands = make("run", "NVCC=")
    assert not any("no GPU is here" in line for line in commands) and commands[-1].endswith("serve --port 8080"), commands[-3:]


def test_all_builds_both_parts_for_every_architecture(make):
    commands = make("all")
    assert architectures(commands) == ALL and any("/rodimus_cuda.so" in line for line in nvcc(commands)), nvcc(commands)[-1:]


def test_tests_without_a_gpu_build_for_one_architecture(make):
    assert architectures(make("test-ci")) == ONE
    assert architectures(make("test-ci", gpu="/dev/nvidiactl")) == ALL


def test_tests_keep_objects_of_all_architectures(make, tmp_path):
    stamp = tmp_path / "build" / "cuda" / "arch.stamp"
    stamp.parent.mkdir(parents=True)
    stamp.write_text("all\n")
    assert architectures(make("test-ci")) == ALL
