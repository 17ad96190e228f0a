"""What the program says of published shapes, from checkpoints without weights: a header and a hole in a file."""
import json
import math
import os
import subprocess
import sys

from server import MODEL, RODIMUS, ROOT  # noqa: F401

sys.path.insert(0, os.path.join(ROOT, "tests", "vectors"))
import reference  # noqa: E402

PUBLISHED = {"Rodimus-1.4B": "rodimus-1.4b-base", "Rodimus+-Coder-1.6B": "rodimus-plus-coder-1.6b", "Rodimus+-Coder-4B": "rodimus-plus-coder-4b"}


def configuration(name):
    with open(os.path.join(ROOT, "tests", "configs", PUBLISHED[name], "config.json"), encoding="utf-8") as f:
        return json.load(f)


def weight_bytes(name):
    return 2 * sum(map(math.prod, reference.shapes(reference.Sizes(configuration(name))).values()))


def inspected(folder):
    """Bytes of a session with a full window of the checkpoint in `folder`, on a GPU and on the CPU; with a narrow window there."""
    done = subprocess.run([RODIMUS, "inspect", folder, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    session = json.loads(done.stdout)["session"]
    return {"gpu": session["bytes"], "cpu": session["fp32_bytes"], "fp8": session["fp8_bytes"], "int8": session["int8_bytes"]}


def session_bytes(name, folder):
    """{"gpu": ..., "cpu": ...} of a session with a full window, as `rodimus inspect --json` says. A session is so many equal layers, so the
    program reads a checkpoint of one and of a small vocabulary: it hashes all weights that there are."""
    config = configuration(name)
    layers, = (config[key] for key in ("num_hidden_layers", "n_layer") if key in config)
    config.update({key: 1 for key in ("num_hidden_layers", "n_layer") if key in config}, vocab_size=64, bos_token_id=0, eos_token_id=1, pad_token_id=1)
    at, header = 0, {}
    for tensor, shape in reference.shapes(reference.Sizes(config)).items():
        end = at + 2 * math.prod(shape)
        header[tensor] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps(config))
    with open(folder / "model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + at)
    return {device: layers * bytes_ for device, bytes_ in inspected(folder).items()}
