"""deploy/convert-checkpoint: files as torch.save writes them, made here by hand, become what the server reads; a pickle that
wants anything but tensors is refused by name and does nothing."""
import json
import os
import pickle
import shutil
import struct
import subprocess
import zipfile

import pytest

from server import ROOT, command

VECTORS = os.path.join(ROOT, "tests", "vectors")
STORAGE = {"F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage", "I64": "LongStorage"}
SIZE = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}


def number(n):
    return b"J" + struct.pack("<i", n)


def text(s):
    return b"X" + struct.pack("<I", len(s.encode())) + s.encode()


def numbers(values):
    return b"(" + b"".join(map(number, values)) + b"t"


EMPTY = b"ccollections\nOrderedDict\n)R"


def tensor(key, dtype, shape, n_stored, offset=0, stride=None, parameter=False):
    """The opcodes that torch writes for one tensor."""
    if stride is None:
        stride, step = [], 1
        for d in reversed(shape):
            stride.insert(0, step)
            step *= d
    storage = b"(" + text("storage") + b"ctorch\n" + STORAGE[dtype].encode() + b"\n" + text(str(key)) + text("cpu") + number(n_stored) + b"tQ"
    ops = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(offset) + numbers(shape) + numbers(stride) + b"\x89" + EMPTY + b"tR"
    return b"ctorch._utils\n_rebuild_parameter\n(" + ops + b"\x88" + EMPTY + b"tR" if parameter else ops


def save(path, items, storages, root="archive", metadata=True, **more):
    """items: name -> opcodes; storages: key -> bytes."""
    ops = b"\x80\x02" + EMPTY + b"(" + b"".join(text(k) + v for k, v in items.items()) + b"u"
    if metadata:
        ops += b"}" + text("_metadata") + EMPTY + b"sb"
    write_zip(path, ops + b".", storages, root, **more)


def write_zip(path, ops, storages, root="archive", compression=zipfile.ZIP_STORED, byteorder=b"little"):
    with zipfile.ZipFile(path, "w", compression) as z:
        z.writestr(f"{root}/data.pkl", ops)
        z.writestr(f"{root}/byteorder", byteorder)
        for key, data in storages.items():
            z.writestr(f"{root}/data/{key}", data)
        z.writestr(f"{root}/version", b"3\n")


def read(path):
    """A safetensors file: name -> (dtype, shape, bytes)."""
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        data = f.read()
    assert header.pop("__metadata__", None) in (None, {"format": "pt"}) and n % 8 == 0
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in header.items()}


def convert(*args):
    return subprocess.run([os.path.join(ROOT, "deploy", "convert-checkpoint"), *map(str, args)], capture_output=True, text=True, timeout=300)


def as_pytorch(name, folder, n_files=1):
    """The vectors' checkpoint as pytorch_model.bin, or as shards with an index."""
    source = os.path.join(VECTORS, name)
    tensors = read(os.path.join(source, "model.safetensors"))
    os.makedirs(folder)
    shutil.copy(os.path.join(source, "config.json"), folder)
    index = {}
    for i in range(n_files):
        file = "pytorch_model.bin" if n_files == 1 else f"pytorch_model-{i + 1:05d}-of-{n_files:05d}.bin"
        part = dict(list(tensors.items())[i::n_files])
        items = {k: tensor(j, d, s, len(b) // SIZE[d], parameter=j % 2) for j, (k, (d, s, b)) in enumerate(part.items())}
        save(os.path.join(folder, file), items, {j: b for j, (_, _, b) in enumerate(part.values())})
        index.update(dict.fromkeys(part, file))
    if n_files > 1:
        with open(os.path.join(folder, "pytorch_model.bin.index.json"), "w") as f:
            json.dump({"metadata": {}, "weight_map": index}, f)
    return tensors


@pytest.mark.parametrize("name", ["rodimus-small", "rodimus-plus-small", "rodimus-plus-options"])
@pytest.mark.parametrize("n_files", [1, 3])
def test_a_converted_checkpoint_passes_its_golden_file(tmp_path, name, n_files):
    tensors = as_pytorch(name, tmp_path / "in", n_files)
    run = convert(tmp_path / "in", tmp_path / "out")
    assert run.returncode == 0, run.stderr
    got = {}
    for file in os.listdir(tmp_path / "out"):
        if file.endswith(".safetensors"):
            got.update(read(tmp_path / "out" / file))
    assert got == tensors
    verify = command("verify", "--model", tmp_path / "out", "--golden", os.path.join(VECTORS, name, "golden.safetensors"))
    assert verify.returncode == 0, verify.stdout + verify.stderr
    again = convert(tmp_path / "in", tmp_path / "out")
    assert again.returncode == 1 and "--force" in again.stderr
    assert convert(tmp_path / "in", tmp_path / "out", "--force").returncode == 0


def test_views_and_shared_storages(tmp_path):
    data = struct.pack("<12f", *range(12))
    save(tmp_path / "pytorch_model.bin", {
        "whole": tensor(0, "F32", (3, 4), 12), "transposed": tensor(0, "F32", (4, 3), 12, stride=(1, 4)),
        "part": tensor(0, "F32", (2, 2), 12, offset=5, stride=(4, 1)), "scalar": tensor(0, "F32", (), 12, offset=7),
        "repeated": tensor(0, "F32", (2, 3), 12, offset=2, stride=(1, 0)), "none": tensor(0, "F32", (0, 4), 12),
        "cube": tensor(0, "F32", (2, 3, 2), 12, stride=(1, 4, 2))}, {0: data}, root="any name")
    assert convert(tmp_path).returncode == 0
    got = {k: (s, list(struct.unpack(f"<{len(b) // 4}f", b))) for k, (_, s, b) in read(tmp_path / "model.safetensors").items()}
    assert got["whole"] == ([3, 4], list(range(12)))
    assert got["transposed"] == ([4, 3], [r * 4 + c for c in range(4) for r in range(3)])
    assert got["part"] == ([2, 2], [5, 6, 9, 10])
    assert got["scalar"] == ([], [7])
    assert got["repeated"] == ([2, 3], [2, 2, 2, 3, 3, 3])
    assert got["none"] == ([0, 4], [])
    assert got["cube"] == ([2, 3, 2], [i + 4 * j + 2 * k for i in range(2) for j in range(3) for k in range(2)])


class Evil:
    def __init__(self, call, *args):
        self.call = call, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("call,name", [(lambda p: (os.system, f"touch {p}"), "system"), (lambda p: (eval, f"open({str(p)!r}, 'w')"), "eval"),
                                       (lambda p: (open, str(p), "w"), "open"), (lambda p: (getattr, dict, "pop"), "getattr")],
                         ids=["system", "eval", "open", "getattr"])
def test_code_in_a_pickle_is_refused_by_name(tmp_path, protocol, call, name):
    trace = tmp_path / "trace"
    write_zip(tmp_path / "pytorch_model.bin", pickle.dumps({"a": Evil(*call(trace))}, protocol), {})
    run = convert(tmp_path)
    assert run.returncode == 1 and f".{name}" in run.stderr and "refused" in run.stderr, run.stderr
    assert "Traceback" not in run.stderr and not trace.exists()
    assert sorted(os.listdir(tmp_path)) == ["pytorch_model.bin"], "nothing is left behind"


GOOD = {"w": tensor(0, "F32", (2,), 2)}
BYTES = {0: bytes(8)}


@pytest.mark.parametrize("make,word", [
    (lambda p: p.write_bytes(b"not a zip"), "no zip archive"),
    (lambda p: p.write_bytes(pickle.dumps({})), "no zip archive"),
    (lambda p: save(p, {"w": tensor(0, "F32", (3,), 2)}, BYTES), "beyond its storage"),
    (lambda p: save(p, {"w": tensor(0, "F32", (2,), 2, offset=1)}, BYTES), "beyond its storage"),
    (lambda p: save(p, {"w": tensor(0, "F32", (2,), 1 << 20)}, BYTES), "8 bytes"),
    (lambda p: save(p, {"w": tensor(0, "F32", (-2,), 2)}, BYTES), "shape"),
    (lambda p: save(p, {"w": tensor(7, "F32", (2,), 2)}, BYTES), "data/7 is missing"),
    (lambda p: save(p, {"w": tensor(os.path.join(os.pardir, "0"), "F32", (2,), 2)}, BYTES), "storage is described"),
    (lambda p: save(p, GOOD, BYTES, byteorder=b"big"), "byte order"),
    (lambda p: save(p, GOOD, BYTES, compression=zipfile.ZIP_DEFLATED), "compressed"),
    (lambda p: save(p, {"epoch": number(3)}, BYTES), "'epoch' is no tensor"),
    (lambda p: save(p, {}, {}), "no table"),
    (lambda p: write_zip(p, b"\x80\x02K\x01.", {}), "no table"),
    (lambda p: write_zip(p, b"\x80\x02(", {}), "broken"),
    (lambda p: write_zip(p, b"", {}), "broken"),
    (lambda p: write_zip(p, b"\x80\x02\x82\x01.", {}), "broken"),
], ids=lambda value: value if isinstance(value, str) else "file")
def test_broken_files_are_told_in_one_line(tmp_path, make, word):
    make(tmp_path / "pytorch_model.bin")
    run = convert(tmp_path)
    assert run.returncode == 1 and word in run.stderr and run.stderr.count("\n") == 1, run.stderr
    assert sorted(os.listdir(tmp_path)) == ["pytorch_model.bin"]


@pytest.mark.parametrize("index,word", [("{", "weight_map"), ("[]", "weight_map"), ({"weight_map": {}}, "empty"), ({"weight_map": {"a": 1}}, "weight_map"),
                                        ({"weight_map": {"a": os.path.join(os.pardir, "x.bin")}}, "beside"), ({"weight_map": {"a": "x.bin"}}, "x.bin"),
                                        ({"weight_map": {"a": "pytorch_model.bin"}}, "holds a")], ids=str)
def test_broken_indices(tmp_path, index, word):
    save(tmp_path / "pytorch_model.bin", GOOD, BYTES)
    (tmp_path / "pytorch_model.bin.index.json").write_text(index if isinstance(index, str) else json.dumps(index))
    run = convert(tmp_path)
    assert run.returncode == 1 and word in run.stderr and "Traceback" not in run.stderr, run.stderr


def test_no_checkpoint_at_all(tmp_path):
    """Neither there nor beside it: a name that was mistyped makes no folder."""
    for folder in (tmp_path, tmp_path / "mistyped"):
        run = convert(folder)
        assert run.returncode == 1 and run.stderr == f"convert-checkpoint: {folder}/pytorch_model.bin: No such file or directory\n", run.stderr
    (tmp_path / "pytorch_model.bin").mkdir()
    run = convert(tmp_path, tmp_path / "out")
    assert run.returncode == 1 and run.stderr == f"convert-checkpoint: {tmp_path}/pytorch_model.bin: Is a directory\n", run.stderr
    assert os.listdir(tmp_path) == ["pytorch_model.bin"]
