"""LoRA adapters: serve and generate take one, /v1/models and the start line name it, and what cannot be honoured ends the start."""
import json
import random
import struct

import pytest

from server import MODEL, command

CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 800, "target_modules": ["q_proj"], "bias": "none"}


def write_adapter(folder, config=None, seed=1):
    """Of the query projections of tales' first two layers, strong enough to change what it says."""
    r, tensors, data = random.Random(seed), {}, b""
    with open(f"{MODEL}/config.json", encoding="utf-8") as f:
        D = json.load(f)["d_model"]
    for layer in range(2):
        for half, shape in (("A", [2, D]), ("B", [D, 2])):
            values = struct.pack(f"<{2 * D}f", *[r.gauss(0, 0.5) for _ in range(2 * D)])
            tensors[f"base_model.model.model.layers.{layer}.attn.q_proj.lora_{half}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
            data += values
    header = json.dumps(tensors).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    return folder


def test_a_served_adapter_changes_answers_and_is_named(own_server, server, tmp_path):
    adapted = own_server("--adapter", write_adapter(tmp_path / "in-french"))
    model = adapted.get("/v1/models/tales").json
    assert (model["id"], model["adapter"]) == ("tales", "in-french")
    assert server.get("/v1/models/tales").json["adapter"] is None
    body = {"prompt": "Once upon a time there was", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    ours, base = (s.post("/v1/completions", body).json for s in (adapted, server))
    assert ours["choices"][0]["text"] != base["choices"][0]["text"]
    assert ours["system_fingerprint"] != base["system_fingerprint"]


def test_generate_takes_an_adapter(tmp_path):
    folder = write_adapter(tmp_path / "adapter")
    flags = ["--model", MODEL, "-p", "Once upon a time there was", "-n", 60, "-t", 0, "-q"]
    base, ours = command("generate", *flags), command("generate", *flags, "--adapter", folder)
    assert (base.returncode, ours.returncode) == (0, 0), ours.stderr
    assert base.stdout != ours.stdout


@pytest.mark.parametrize("config, said", [
    ({"peft_type": "IA3"}, "adapter: adapter_config.json: peft_type is \"IA3\": only LORA is supported"),
    ({"use_dora": True}, "adapter: adapter_config.json: use_dora is true: DoRA is not supported"),
    ({"r": 3}, "call for [3, "),
    ({"target_modules": ["k_proj"]}, "target_modules does not name"),
])
def test_an_adapter_that_cannot_be_honoured_ends_the_start(tmp_path, config, said):
    folder = write_adapter(tmp_path / "adapter", config)
    for done, status in ((command("serve", "--port", 0, "--model", MODEL, "--adapter", folder), 2),
                         (command("generate", "--model", MODEL, "-p", "x", "--adapter", folder), 1)):
        assert (done.returncode, said in done.stderr) == (status, True), done.stderr


def test_an_adapter_of_random_weights_is_refused(tmp_path):
    done = command("serve", "--port", 0, "--synthetic", "tales", "--adapter", tmp_path)
    assert (done.returncode, "adapter cannot be merged into a synthetic model." in done.stderr) == (2, True), done.stderr
