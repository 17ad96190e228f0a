"""Random checkpoints of all families, in shards and of mixed types, against float64 (tests/vectors/reference.py): sizes as `inspect` has
them, logits, states and greedy ids by `verify`, log-probabilities through HTTP. RODIMUS_TEST_CHECKPOINTS: how many, 16 by default;
RODIMUS_TEST_SEED sets the seed that a failure shows."""
import glob
import json
import math
import os
import random
import sys

import numpy as np
import pytest

from server import MODEL, ROOT, Server, command

sys.path.insert(0, os.path.join(ROOT, "tests", "vectors"))
import reference  # noqa: E402

SEED = int(os.environ.get("RODIMUS_TEST_SEED", random.randrange(1 << 30)))
COUNT = int(os.environ.get("RODIMUS_TEST_CHECKPOINTS", 16))


def published(pick, some):
    heads = pick([1, 2, 3, 4, 6])
    width = heads * pick([8, 10, 16, 24, 64])
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    mixer = some(d_conv=[1, 2, 3, 4, 5], mem_size=[8, 16, 24, 33, 64, 96, 130], expand_ratio=[0.5, 1.3, 2, 2.7],
                 input_gate_low_rank=["auto", 1, 8, 17], normalize_epsilon=[1e-12, 1e-5, 0.05, 0], mode=["chunk", None])
    attn = {"num_heads": heads, "window_size": pick([1, 2, 15, 63, 64, 127, 128, 200])} | some(
        num_heads_k=[*divisors, None], num_heads_v=[*divisors, None], rotary_emb_dim=[-1, 0, 2, 4, 8], rotary_emb_interleaved=[True, False],
        rotary_emb_base=[10, 500.0, 1e6], ffn_expand_ratio=[0.3, 1, 8 / 3], softmax_scale=[None])
    # memories of fewer than 8 rows are left out: their keys have so few entries that normalising them turns rounding into signs
    return {"d_model": width, "n_layer": pick([1, 2, 3]), "block_type": pick(["rodimus", "rodimus_plus", "rodimus_plus"]), "mixer_cfg": mixer,
            "attn_cfg": attn} | some(norm_epsilon=[1e-6, 1e-3], tie_word_embeddings=[True, False], use_scale_embedding=[True], use_norm_embedding=[True])


def fla(pick, some):
    heads = pick([1, 2, 3, 4])
    return {"hidden_size": heads * pick([8, 16, 24, 64]), "num_hidden_layers": pick([1, 2]), "block_type": pick(["rodimus", "rodimus_plus"]),
            "ska_attn": {"num_heads": heads} | some(window_size=[1, 16, 65, 128], rope_theta=[500.0], qk_norm=[True, False], qkv_bias=[False])} | some(
        expand_ratio=[8, 16, 33, 96], conv_size=[2, 3, 4], input_gate_low_rank=["auto", 8], hidden_ratio=[1, 2.5], intermediate_size=[None, 36, 51],
        norm_eps=[1e-6], k_norm_eps=[None, 0.01], tie_word_embeddings=[True, False])


def random_weights(sizes, draw):
    """Of each shape, so that every term of the equations counts: no zero biases, no norms of one."""
    found = {}
    for name, shape in reference.shapes(sizes).items():
        r = draw.standard_normal(shape)
        if name.endswith(("norm.weight", "norm_f.weight", "residual_weight")):
            found[name] = 1 + 0.2 * r
        elif name.endswith("mem_gate_proj.bias"):
            found[name] = 0.8 * r - np.repeat([1.5, 0], sizes.M)
        else:
            found[name] = r * (0.5 if "conv1d" in name else 0.3 if name.endswith("bias") else 0.6 if "embeddings" in name else 1 / math.sqrt(shape[-1]))
    return found


def write(folder, seed):
    """A checkpoint with its golden file; the reference that knows it."""
    rng = random.Random(seed)
    pick = rng.choice

    def some(**choices):
        return {key: pick(values) for key, values in choices.items() if rng.random() < 0.5}
    config = pick([published, published, fla])(pick, some) | {"vocab_size": pick([5, 31, 32, 33, 300])}
    sizes = reference.Sizes(config)
    weights = random_weights(sizes, np.random.default_rng(seed))
    if sizes.fla:
        weights = {part: half for name, values in weights.items() for names in [reference.fla_names(name)]
                   for part, half in zip(names, np.split(values, len(names)), strict=True)}
    names = list(weights)
    rng.shuffle(names)
    types = ["F32", "F16", "BF16"] if rng.random() < 0.3 else [pick(["F32", "F16", "BF16"])]
    dtypes, n_files = {name: pick(types) for name in names}, pick([1, 1, 2, 5])
    files = {f"model-{i}.safetensors" if n_files > 1 else "model.safetensors": names[i::n_files] for i in range(n_files)}
    for file, its in files.items():
        reference.write_safetensors(os.path.join(folder, file), {name: weights[name] for name in its}, dtypes)
    if n_files > 1:
        with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
            json.dump({"metadata": {}, "weight_map": {name: file for file, its in files.items() for name in its}}, f)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    model = reference.Reference(folder)
    draw, n_ids = np.random.default_rng(seed + 1), pick([1, 2, 40, 64, 65, 150, 300])  # why not 3: tests/vectors/README.md
    while True:  # where two ids are as good as equal in float64, fp32 may choose the other
        golden = model.golden(draw.integers(0, sizes.V, n_ids))
        rows = model.logits(np.concatenate([golden["input_ids"], golden["greedy_ids"][:-1]]))
        best = np.sort(rows, -1)[:, -2:]
        if (best[:, 1] - best[:, 0] > 2e-5 * rows.std(-1)).all():
            break
    reference.write_safetensors(os.path.join(folder, "golden.safetensors"), golden)
    return model


@pytest.mark.parametrize("number", range(COUNT))
def test_a_random_checkpoint_computes_what_float64_does(number, tmp_path):
    seed = SEED + number
    sizes = write(tmp_path, seed).s
    facts = json.loads(command("inspect", str(tmp_path), "--json").stdout)
    what = f"seed {seed}: {json.dumps(json.loads((tmp_path / 'config.json').read_text()))}"
    assert facts["parameters"] == sum(math.prod(shape) for shape in reference.shapes(sizes).values()), what
    assert facts["session"]["S_bytes"] == 4 * sizes.L * sizes.M * sizes.E and facts["session"]["conv_bytes"] == 2 * sizes.L * sizes.K * sizes.E, what
    assert facts["session"]["window_bytes"] == (2 * sizes.L * sizes.visible * (sizes.Hk + sizes.Hv) * sizes.P if sizes.plus else 0), what
    for flags in ([], ["--piece-tokens", str(1 + seed % 70), "--threads", "1"]):
        done = command("verify", "--model", str(tmp_path), "--golden", str(tmp_path / "golden.safetensors"), "--device", "cpu", *flags)
        assert done.returncode == 0, f"{what}\n{done.stdout}{done.stderr}"


def test_log_probabilities_through_http_are_those_of_float64(tmp_path):
    """Without a tokenizer, over several windows; the bound is that of verify."""
    seed = SEED + COUNT
    model = write(tmp_path, seed)
    ids = np.random.default_rng(seed).integers(0, model.s.V, 700).tolist()
    server = Server("--model", str(tmp_path), "--device", "cpu", name="checkpoints")
    try:
        answer = server.post("/v1/completions", {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0})
    finally:
        server.stop()
    assert answer.status == 200, (seed, answer)
    got = answer.json["choices"][0]["logprobs"]["token_logprobs"]
    want = model.logprobs(ids)[np.arange(len(ids) - 1), ids[1:]]
    assert got[0] is None
    error = np.linalg.norm(np.array(got[1:]) - want) / np.linalg.norm(want)
    assert error < 1e-5, (seed, error)


def test_matrices_of_several_types_are_told(tmp_path):
    """Vectors may be in fp32 beside them: norms and the residual weight are so in published files."""
    config = {"d_model": 16, "n_layer": 1, "vocab_size": 32, "block_type": "rodimus", "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = random_weights(reference.Sizes(config), np.random.default_rng(1))
    dtypes = {name: "F16" if values.ndim > 1 else "F32" for name, values in weights.items()}
    for name, told in ((None, 0), ("model.layers.0.mixer.out_proj.weight", 1)):
        if name:
            dtypes[name] = "BF16"
        reference.write_safetensors(tmp_path / "model.safetensors", weights, dtypes)
        warnings = json.loads(command("inspect", tmp_path, "--json").stdout)["warnings"]
        assert len(warnings) == told, warnings
    assert "1 matrix is not in fp16" in warnings[0] and f"{name} (BF16)" in warnings[0], warnings


def test_the_tokenizer_of_another_model_is_told_at_the_start(tmp_path):
    for name in ("config.json", "model.safetensors"):
        os.symlink(os.path.join(ROOT, "tests", "vectors", "rodimus-small", name), tmp_path / name)
    os.symlink(os.path.join(MODEL, "tokenizer.json"), tmp_path / "tokenizer.json")
    warnings = json.loads(command("inspect", str(tmp_path), "--json").stdout)["warnings"]
    assert [w for w in warnings if "ids up to 4095, vocab_size is 300" in w], warnings
    server = Server("--model", str(tmp_path), "--device", "cpu", name="checkpoints")
    try:
        answer = server.post("/v1/completions", {"prompt": "There was once a king", "max_tokens": 1})
    finally:
        server.stop()
    assert "ids up to 4095, vocab_size is 300" in server.log()
    assert answer.status == 400 and "vocabulary of 300" in answer.error["message"], answer


@pytest.mark.parametrize("pickle", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_pickled_weights_are_sent_to_the_converter(tmp_path, pickle):
    os.symlink(os.path.join(MODEL, "config.json"), tmp_path / "config.json")
    (tmp_path / pickle).write_text("{}")
    done = command("inspect", str(tmp_path))
    assert done.returncode == 1 and "deploy/convert-checkpoint" in done.stderr, done


GOLDEN = sorted(glob.glob(os.path.join(ROOT, "tests", "vectors", "*", "golden.safetensors")))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.split(os.sep)[-2])
def test_the_reference_agrees_with_the_golden_sets(path):
    """They were computed by another program from the same equations."""
    golden = reference.read_safetensors(path)
    found = reference.Reference(os.path.dirname(path)).golden(golden["input_ids"])
    assert set(found) == set(golden)
    for name, values in golden.items():
        assert np.linalg.norm(found[name] - values) <= 1e-7 * np.linalg.norm(values), name  # as stored, in fp32
