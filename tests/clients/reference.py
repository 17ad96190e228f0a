"""The model in float64 and as plainly as its equations (kernels/README.md): what the server's numbers are held against.

Only what the demo model needs: the published layout, without the options that it does not use.
"""
import json
import os
import struct

import numpy as np


def read_safetensors(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(n)), f.read()
    tensors = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        if t["dtype"] == "BF16":
            values = (np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data[begin:end], {"F32": "<f4", "F16": "<f2"}[t["dtype"]])
        tensors[name] = values.astype(np.float64).reshape(t["shape"])
    return tensors


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


class Reference:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as f:
            self.config = json.load(f)
        self.w = read_safetensors(os.path.join(folder, "model.safetensors"))
        attn = self.config["attn_cfg"]
        self.heads, self.key_heads, self.value_heads = attn["num_heads"], attn["num_heads_k"], attn["num_heads_v"]
        self.visible = attn["window_size"] // 2 + 1

    def norm(self, x, weight):
        return x * weight / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.config["norm_epsilon"])

    def mixer(self, x, name):
        def w(part):
            return self.w[name + part]
        inner = "mixer.inner_mixer."
        a, z = np.split(self.norm(x, w("mixer_norm.weight")) @ w("mixer.fc.weight").T, 2, -1)
        conv, t = w(inner + "short_conv.conv1d.weight")[:, 0, :], len(x)
        width = conv.shape[1]
        padded = np.concatenate([np.zeros((width - 1, a.shape[1])), a])
        s = silu(sum(padded[j:j + t] * conv[:, j] for j in range(width)) + w(inner + "short_conv.conv1d.bias"))
        q, k = np.split(s @ w(inner + "in_proj.weight").T, 2, -1)
        k = k / np.maximum(np.linalg.norm(k, axis=-1, keepdims=True), 1e-12)
        u = sigmoid(a @ w(inner + "ch_gate_proj.0.weight").T @ w(inner + "ch_gate_proj.1.weight").T + w(inner + "ch_gate_proj.1.bias")) * a
        g, tau = np.split(s @ w(inner + "mem_gate_proj.weight").T + w(inner + "mem_gate_proj.bias"), 2, -1)
        g, tau = np.logaddexp(0, g), sigmoid(tau)
        gate, decay = g ** tau, np.exp(-g * tau)
        state, o = np.zeros((q.shape[1], u.shape[1])), np.empty_like(s)
        for i in range(t):
            state = decay[i][:, None] * state + np.outer(gate[i] * k[i], u[i])
            o[i] = q[i] @ state / np.sqrt(q.shape[1])
        o += w(inner + "residual_weight") * s
        return x + self.norm(o * silu(z), w("mixer.act_norm.weight")) @ w("mixer.out_proj.weight").T

    def attention(self, x, name):
        def heads(part, n):
            return (h @ self.w[name + part].T).reshape(len(x), n, -1)

        def rotate(v):
            half = v.shape[-1] // 2
            angle = np.arange(len(v))[:, None] * 10000.0 ** (-np.arange(half) / half)
            cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
            a, b = v[..., :half], v[..., half:]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
        h = self.norm(x, self.w[name + "attn_norm.weight"])
        q = rotate(heads("attn.q_proj.weight", self.heads))
        k = rotate(heads("attn.k_proj.weight", self.key_heads))
        v = heads("attn.v_proj.weight", self.value_heads)
        back = np.arange(len(x))[:, None] - np.arange(len(x))[None]
        out = np.empty_like(q)
        for i in range(self.heads):
            scores = q[:, i] @ k[:, i % self.key_heads].T / np.sqrt(q.shape[-1])
            scores[(back < 0) | (back >= self.visible)] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, i] = scores / scores.sum(-1, keepdims=True) @ v[:, i % self.value_heads]
        return x + out.reshape(len(x), -1) @ self.w[name + "attn.out_proj.weight"].T

    def logprobs(self, ids):
        """[T, V]: row t is for the token after ids[t]."""
        x = self.w["model.embeddings.weight"][ids]
        for i in range(self.config["n_layer"]):
            name = f"model.layers.{i}."
            x = self.mixer(x, name)
            y = self.norm(self.attention(x, name), self.w[name + "ffn_norm.weight"])
            a, g = np.split(y @ self.w[name + "ffn.fc.weight"].T, 2, -1)
            x = x + (silu(g) * a) @ self.w[name + "ffn.out_proj.weight"].T
        logits = self.norm(x, self.w["model.norm_f.weight"]) @ self.w["model.embeddings.weight"].T
        top = logits.max(-1, keepdims=True)
        return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))

    def loglikelihood(self, ids, n_context):
        """The sum over ids[n_context:], and whether each of them is the most likely one."""
        rows = self.logprobs(ids[:-1])[n_context - 1:]
        wanted = np.array(ids[n_context:])
        return float(rows[np.arange(len(wanted)), wanted].sum()), bool((rows.argmax(-1) == wanted).all())
