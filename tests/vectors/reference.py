#!/usr/bin/env python3
"""tests/vectors/reference.py DIR OUT [--tokens N] [--seed S]: what the model of the checkpoint DIR computes of N random ids, in float64
and as plainly as the equations (kernels/README.md), as a golden file for `rodimus verify` (README.md beside this says what is in it).
Needs numpy. A recurrence is a loop over the tokens, so this is slow: for small models, or few tokens.

Nothing of the engine is used: the tests hold the engine against this, and this against the golden sets.
"""
import argparse
import json
import math
import os
import struct
import sys

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}


def read_safetensors(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(n)), f.read()
    tensors = {}
    for name, t in header.items():
        if name != "__metadata__":
            values = np.frombuffer(data[slice(*t["data_offsets"])], DTYPES[t["dtype"]])
            if t["dtype"] == "BF16":
                values = (values.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = values.reshape(t["shape"])
    return tensors


def write_safetensors(path, tensors, dtypes=None):
    """dtypes: name -> F32, F16 or BF16; without it floats are F32 and integers I32."""
    header, blobs, at = {}, [], 0
    for name, values in tensors.items():
        dtype = dtypes[name] if dtypes else "I32" if values.dtype.kind == "i" else "F32"
        if dtype == "BF16":  # to the nearest, to even where two are as near
            bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
            values = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
        blobs.append(np.ascontiguousarray(values).astype(DTYPES[dtype]).tobytes())
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + len(blobs[-1])]}
        at += len(blobs[-1])
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read_weights(folder):
    path = os.path.join(folder, "model.safetensors")
    if os.path.exists(path):
        return read_safetensors(path)
    with open(path + ".index.json", encoding="utf-8") as f:
        shards = sorted(set(json.load(f)["weight_map"].values()))
    return {name: values for shard in shards for name, values in read_safetensors(os.path.join(folder, shard)).items()}


def align8(x):
    return -(-int(x) // 8) * 8


class Sizes:
    """config.json of either layout under the letters of the equations; null is absent."""

    def __init__(self, config):
        def get(where, key, default):
            found = (config.get(where) or {}) if where else config
            return default if found.get(key) is None else found[key]
        self.fla = config.get("hidden_size") is not None
        self.plus = get(None, "block_type", "rodimus_plus") == "rodimus_plus"
        self.V = config["vocab_size"]
        self.scale_embedding, self.norm_embedding = get(None, "use_scale_embedding", False), get(None, "use_norm_embedding", False)
        self.tied = get(None, "tie_word_embeddings", self.fla)
        if self.fla:
            attn, rank = "ska_attn", get(None, "input_gate_low_rank", "auto")
            self.D, self.L, self.M, self.K = config["hidden_size"], config["num_hidden_layers"], get(None, "expand_ratio", 64), get(None, "conv_size", 4)
            self.E, self.norm_epsilon, self.key_epsilon = align8(2 * self.D), get(None, "norm_eps", 1e-5), get(None, "k_norm_eps", 1e-12)
            self.F = get(None, "intermediate_size", 0) or align8(self.D * get(None, "hidden_ratio", 4 / 3))
            self.visible, self.rotary_base, self.interleaved = get(attn, "window_size", 1024), get(attn, "rope_theta", 10000.0), False
            self.qk_norm = get(attn, "qk_norm", False)
        else:
            attn, rank = "attn_cfg", get("mixer_cfg", "input_gate_low_rank", "auto")
            self.D, self.L, self.M, self.K = config["d_model"], config["n_layer"], get("mixer_cfg", "mem_size", 64), get("mixer_cfg", "d_conv", 4)
            self.E, self.norm_epsilon = align8(self.D * get("mixer_cfg", "expand_ratio", 2)), get(None, "norm_epsilon", 1e-5)
            self.key_epsilon = get("mixer_cfg", "normalize_epsilon", 1e-12)
            self.F = align8(self.D * get(attn, "ffn_expand_ratio", 4 / 3))
            self.visible, self.rotary_base = get(attn, "window_size", 0) // 2 + 1, get(attn, "rotary_emb_base", 10000.0)
            self.interleaved, self.qk_norm = get(attn, "rotary_emb_interleaved", False), False
        self.R = max(self.D // 64, 16) if rank == "auto" else rank
        if self.plus:
            self.H = get(attn, "num_heads", self.D // 128)
            self.P = self.D // self.H
            self.Hk, self.Hv = (1, self.H) if self.fla else (get(attn, "num_heads_k", self.H), get(attn, "num_heads_v", self.H))
            self.rotary = get(attn, "rotary_emb_dim", -1)
            self.rotary = self.P if self.rotary < 0 else self.rotary


# The FLA layout's names of what the published one calls otherwise; where there are two they are the halves of one matrix.
FLA_NAMES = {
    "norm_f.weight": ["norm.weight"],
    "mixer.fc.weight": ["mixer.up_proj.weight", "mixer.gate_proj.weight"],
    "mixer.inner_mixer.in_proj.weight": ["mixer.q_proj.weight", "mixer.k_proj.weight"],
    "mixer.inner_mixer.mem_gate_proj.weight": ["mixer.g_gate_proj.weight", "mixer.tau_gate_proj.weight"],
    "mixer.inner_mixer.mem_gate_proj.bias": ["mixer.g_gate_proj.bias", "mixer.tau_gate_proj.bias"],
    "mixer.inner_mixer.short_conv.conv1d.weight": ["mixer.short_conv.weight"],
    "mixer.inner_mixer.short_conv.conv1d.bias": ["mixer.short_conv.bias"],
    "mixer.inner_mixer.residual_weight": ["mixer.residual_weight"],
    **{f"mixer.inner_mixer.ch_gate_proj.{end}": [f"mixer.i_gate_proj.{end}"] for end in ("0.weight", "1.weight", "1.bias")},
    "mixer.act_norm.weight": ["mixer.activation_norm.weight"], "mixer.out_proj.weight": ["mixer.down_proj.weight"],
    "attn_norm.weight": ["ska_attn_norm.weight"], "attn.out_proj.weight": ["ska_attn.o_proj.weight"],
    **{f"attn.{name}.weight": [f"ska_attn.{name}.weight"] for name in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm")},
    "ffn_norm.weight": ["mlp_norm.weight"], "ffn.fc.weight": ["mlp.up_proj.weight", "mlp.gate_proj.weight"],
    "ffn.out_proj.weight": ["mlp.down_proj.weight"],
}


def shapes(s):
    """Published name -> shape, of all that a model of these sizes has."""
    found = {"model.embeddings.weight": (s.V, s.D), "model.norm_f.weight": (s.D,)}
    if s.norm_embedding:
        found["model.embed_norm.weight"] = (s.D,)
    if not s.tied:
        found["lm_head.weight"] = (s.V, s.D)
    inner = "mixer.inner_mixer."
    layer = {"mixer_norm.weight": (s.D,), "mixer.fc.weight": (2 * s.E, s.D), "mixer.out_proj.weight": (s.D, s.E), "mixer.act_norm.weight": (s.E,),
             inner + "short_conv.conv1d.weight": (s.E, 1, s.K), inner + "short_conv.conv1d.bias": (s.E,), inner + "residual_weight": (s.E,),
             inner + "in_proj.weight": (2 * s.M, s.E), inner + "ch_gate_proj.0.weight": (s.R, s.E), inner + "ch_gate_proj.1.weight": (s.E, s.R),
             inner + "ch_gate_proj.1.bias": (s.E,), inner + "mem_gate_proj.weight": (2 * s.M, s.E), inner + "mem_gate_proj.bias": (2 * s.M,)}
    if s.plus:
        layer |= {"attn_norm.weight": (s.D,), "attn.q_proj.weight": (s.D, s.D), "attn.k_proj.weight": (s.Hk * s.P, s.D),
                  "attn.v_proj.weight": (s.Hv * s.P, s.D), "attn.out_proj.weight": (s.D, s.D), "ffn_norm.weight": (s.D,),
                  "ffn.fc.weight": (2 * s.F, s.D), "ffn.out_proj.weight": (s.D, s.F)}
        if s.qk_norm:
            layer |= {"attn.q_norm.weight": (s.P,), "attn.k_norm.weight": (s.P,)}
    for i in range(s.L):
        found |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return found


def fla_names(name):
    """The names in the FLA layout of a weight of the published one."""
    start = "model." if name.startswith("model.norm_f") else ".".join(name.split(".")[:3]) + "." if name.startswith("model.layers.") else ""
    return [start + other for other in FLA_NAMES.get(name[len(start):], [name[len(start):]])]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


class Reference:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            self.s = Sizes(json.load(f))
        stored = read_weights(folder)
        self.w = {name: np.concatenate([stored[part] for part in (fla_names(name) if self.s.fla else [name])]).astype(np.float64).reshape(shape)
                  for name, shape in shapes(self.s).items()}

    def zero_state(self):
        s = self.s
        state = {"conv": np.zeros((s.K, s.E)), "S": np.zeros((s.M, s.E))}
        if s.plus:
            state |= {"k": np.zeros((0, s.Hk, s.P)), "v": np.zeros((0, s.Hv, s.P))}
        return [{name: values.copy() for name, values in state.items()} for _ in range(s.L)]

    def norm(self, x, weight, epsilon=None):
        return x * weight / np.sqrt(np.mean(x * x, -1, keepdims=True) + (self.s.norm_epsilon if epsilon is None else epsilon))

    def mixer(self, x, w, state):
        s, inner, T = self.s, "mixer.inner_mixer.", len(x)
        a, z = np.split(self.norm(x, w("mixer_norm.weight")) @ w("mixer.fc.weight").T, 2, -1)
        seen, conv = np.concatenate([state["conv"], a]), w(inner + "short_conv.conv1d.weight")[:, 0]
        state["conv"] = seen[-s.K:]
        y = silu(sum(seen[j + 1:j + 1 + T] * conv[:, j] for j in range(s.K)) + w(inner + "short_conv.conv1d.bias"))
        q, k = np.split(y @ w(inner + "in_proj.weight").T, 2, -1)
        k = k / np.maximum(np.linalg.norm(k, axis=-1, keepdims=True), s.key_epsilon)
        u = sigmoid(a @ w(inner + "ch_gate_proj.0.weight").T @ w(inner + "ch_gate_proj.1.weight").T + w(inner + "ch_gate_proj.1.bias")) * a
        g, tau = np.split(y @ w(inner + "mem_gate_proj.weight").T + w(inner + "mem_gate_proj.bias"), 2, -1)
        g, tau = np.logaddexp(0, g), sigmoid(tau)
        k, decay, S, o = k * g ** tau, np.exp(-g * tau), state["S"], np.empty_like(y)
        for t in range(T):
            S = decay[t][:, None] * S + k[t][:, None] * u[t]
            o[t] = q[t] / math.sqrt(s.M) @ S
        state["S"] = S
        return x + self.norm((o + w(inner + "residual_weight") * y) * silu(z), w("mixer.act_norm.weight")) @ w("mixer.out_proj.weight").T

    def rotate(self, x, pos):
        s = self.s
        if not s.rotary:
            return x
        angle = np.outer(pos, s.rotary_base ** (-np.arange(0, s.rotary, 2) / s.rotary))
        cos, sin, turned = np.cos(angle)[:, None], np.sin(angle)[:, None], x.copy()
        one, two = (slice(0, s.rotary, 2), slice(1, s.rotary, 2)) if s.interleaved else (slice(s.rotary // 2), slice(s.rotary // 2, s.rotary))
        turned[..., one], turned[..., two] = x[..., one] * cos - x[..., two] * sin, x[..., one] * sin + x[..., two] * cos
        return turned

    def attention(self, x, w, state, start):
        s, T = self.s, len(x)
        h, pos = self.norm(x, w("attn_norm.weight")), start + np.arange(T)
        q, k, v = ((h @ w(f"attn.{name}_proj.weight").T).reshape(T, n, s.P) for name, n in (("q", s.H), ("k", s.Hk), ("v", s.Hv)))
        if s.qk_norm:
            q, k = self.norm(q, w("attn.q_norm.weight"), 1e-5), self.norm(k, w("attn.k_norm.weight"), 1e-5)
        q, k = self.rotate(q, pos), self.rotate(k, pos)
        k, v = np.concatenate([state["k"], k]), np.concatenate([state["v"], v])
        back = pos[:, None] - (start + T - len(k) + np.arange(len(k)))
        state["k"], state["v"], out = k[-s.visible:], v[-s.visible:], np.empty_like(q)
        for i in range(s.H):  # head i reads key head i mod Hk
            scores = q[:, i] @ k[:, i % s.Hk].T / math.sqrt(s.P)
            scores[(back < 0) | (back >= s.visible)] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, i] = scores / scores.sum(-1, keepdims=True) @ v[:, i % s.Hv]
        return x + out.reshape(T, -1) @ w("attn.out_proj.weight").T

    def logits(self, ids, state=None, start=0):
        """[T, V]: row t is for the token after ids[t]. state goes on from what `start` tokens left, and is changed."""
        s, state = self.s, state or self.zero_state()
        x = self.w["model.embeddings.weight"][np.asarray(ids)] * (math.sqrt(s.M) if s.scale_embedding else 1)
        if s.norm_embedding:
            x = self.norm(x, self.w["model.embed_norm.weight"])
        for i in range(s.L):
            def w(name):
                return self.w[f"model.layers.{i}.{name}"]
            x = self.mixer(x, w, state[i])
            if s.plus:  # the second part adds to what the mixer left, not to what attention did
                y = self.norm(self.attention(x, w, state[i], start), w("ffn_norm.weight"))
                a, g = np.split(y @ w("ffn.fc.weight").T, 2, -1)
                x = x + (silu(g) * a) @ w("ffn.out_proj.weight").T
        return self.norm(x, self.w["model.norm_f.weight"]) @ self.w["model.embeddings.weight" if s.tied else "lm_head.weight"].T

    def logprobs(self, ids):
        logits = self.logits(ids)
        top = logits.max(-1, keepdims=True)
        return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))

    def loglikelihood(self, ids, n_context):
        """The sum over ids[n_context:], and whether each of them is the most likely one."""
        rows = self.logprobs(ids[:-1])[n_context - 1:]
        wanted = np.array(ids[n_context:])
        return float(rows[np.arange(len(wanted)), wanted].sum()), bool((rows.argmax(-1) == wanted).all())

    def golden(self, ids, n_greedy=24):
        """The tensors of a golden file."""
        state = self.zero_state()
        logits = self.logits(ids, state)
        found = {"input_ids": np.array(ids, np.int32), "logits": logits}
        for i, layer in enumerate(state):
            found |= {f"state.{i}.{name}": values.T.copy() if name == "conv" else values.copy() for name, values in layer.items()}
        greedy = [int(logits[-1].argmax())]
        while len(greedy) < n_greedy:
            greedy.append(int(self.logits(greedy[-1:], state, len(ids) + len(greedy) - 1)[0].argmax()))
        return found | {"greedy_ids": np.array(greedy, np.int32)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir")
    parser.add_argument("out")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    reference = Reference(options.dir)
    write_safetensors(options.out, reference.golden(np.random.default_rng(options.seed).integers(0, reference.s.V, options.tokens)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
