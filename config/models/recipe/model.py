"""Rodimus+ for training: the published parameter names, and functions without state that torch.compile can take one by one."""
import math

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn


def align8(n):
    return (n + 7) // 8 * 8


class Sizes:
    def __init__(self, config):
        self.config = config
        mixer, attn = config["mixer_cfg"], config["attn_cfg"]
        self.d, self.layers, self.vocab, self.eps = config["d_model"], config["n_layer"], config["vocab_size"], config["norm_epsilon"]
        self.e, self.m, self.conv = align8(int(self.d * mixer.get("expand_ratio", 2))), mixer["mem_size"], mixer.get("d_conv", 4)
        self.r, self.heads = max(self.d // 64, 16), attn["num_heads"]
        self.p, self.left = self.d // self.heads, attn["window_size"] // 2
        self.f = align8(int(self.d * attn.get("ffn_expand_ratio", 4 / 3)))


def rms(x, w, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


def linear(x, w):
    return F.linear(x, w.to(x.dtype))


# ---- the parts of a layer between the two things that mix over time; half: the type of the matrix products ----
def mix_before(x, norm, fc, conv_w, conv_b, in_proj, gate0, gate1, gate1_b, mem, mem_b, eps, half):
    a, z = linear(rms(x, norm, eps).to(half), fc).chunk(2, -1)
    taps = conv_w.shape[-1]
    s = conv_b + sum(F.pad(a, (0, 0, taps - 1 - j, 0))[:, :a.shape[1]].float() * conv_w[:, 0, j] for j in range(taps))
    s = F.silu(s).to(half)
    q, k = linear(s, in_proj).chunk(2, -1)
    u = torch.sigmoid(linear(linear(a, gate0), gate1).float() + gate1_b) * a.float()
    g, tau = (linear(s, mem).float() + mem_b).chunk(2, -1)
    g, tau = F.softplus(g), torch.sigmoid(tau)
    k = F.normalize(k.float(), dim=-1, eps=1e-12) * torch.exp(tau * torch.log(g + 1e-20))
    return q, k.to(half), u.to(half), -g * tau, s, z


def mix_after(x, o, s, z, residual, act_norm, out_proj, keep, eps, half):
    y = (o.float() + s.float() * residual) * F.silu(z.float())
    return x + drop(linear(rms(y, act_norm, eps).to(half), out_proj).float(), keep)


def attend_before(x, norm, wq, wk, wv, cos, sin, heads, eps, half):
    B, T, D = x.shape
    h = rms(x, norm, eps).to(half)
    q, k, v = linear(h, wq).view(B, T, heads, -1), linear(h, wk).view(B, T, 1, -1), linear(h, wv).view(B, T, heads, -1)

    def turn(t):
        one, two = t.float().chunk(2, -1)
        return torch.cat((one * cos - two * sin, one * sin + two * cos), -1).to(half)
    return turn(q), turn(k).expand(B, T, heads, k.shape[-1]).contiguous(), v.contiguous()


def attend_after(x, o, wo, norm, fc, ffn_out, keep, eps, half):
    y = x + drop(linear(o.flatten(2), wo).float(), keep)
    a, g = linear(rms(y, norm, eps).to(half), fc).chunk(2, -1)
    return x + drop(linear(F.silu(g) * a, ffn_out).float(), keep)  # onto x, not y: the two-hop residual


def drop(x, keep):
    """keep: the part of the values that stays, one number a row; None outside training."""
    if keep is None:
        return x
    return x * (torch.rand_like(x) < keep).float() / keep


def losses(x, norm, embeddings, targets, eps, half):
    logits = linear(rms(x, norm, eps).to(half), embeddings).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


PARTS = {"mix_before": mix_before, "mix_after": mix_after, "attend_before": attend_before, "attend_after": attend_after, "losses": losses}


# ---- what mixes over time ----
def scan_plain(q, k, u, log_alpha):
    """One step after the other: the truth, for small sizes."""
    B, T, M = q.shape
    S, out = torch.zeros(B, M, u.shape[-1], device=q.device), []
    q, k, u = q.float() / math.sqrt(M), k.float(), u.float()
    for t in range(T):
        S = log_alpha[:, t].exp()[..., None] * S + k[:, t][..., None] * u[:, t][:, None]
        out.append(torch.einsum("bm,bme->be", q[:, t], S))
    return torch.stack(out, 1)


def scan_chunks(q, k, u, log_alpha, chunk=16):
    """The same in chunks, in PyTorch alone: for machines where chunk_gla does not run."""
    B, T, M = q.shape
    pad = -T % chunk
    q, k, u, log_alpha = (F.pad(t.float(), (0, 0, 0, pad)).view(B, -1, chunk, t.shape[-1]) for t in (q, k, u, log_alpha))
    q, b = q / math.sqrt(M), log_alpha.cumsum(2)
    lower = torch.ones(chunk, chunk, device=q.device).tril()[..., None]
    within = torch.utils.checkpoint.checkpoint(
        lambda q, k, b: (q[:, :, :, None] * k[:, :, None] * ((b[:, :, :, None] - b[:, :, None]).clamp(max=0).exp() * lower)).sum(-1), q, k, b, use_reentrant=False)
    out, S = within @ u, torch.zeros(B, M, u.shape[-1], device=q.device)
    from_start, to_end, whole, earlier = q * b.exp(), k * (b[:, :, -1:] - b).exp(), b[:, :, -1].exp(), []
    for i in range(q.shape[1]):
        earlier.append(from_start[:, i] @ S)
        S = whole[:, i, :, None] * S + to_end[:, i].mT @ u[:, i]
    return (out + torch.stack(earlier, 1)).view(B, -1, u.shape[-1])[:, :T]


def scan_fla(q, k, u, log_alpha):
    from fla.ops.gla import chunk_gla
    q, k, u = (t.unsqueeze(2).contiguous() for t in (q, k, u))
    return chunk_gla(q, k, u, log_alpha.unsqueeze(2).contiguous(), scale=q.shape[-1] ** -0.5)[0].squeeze(2)


def attention_mask(q, k, v, left):
    T = q.shape[1]
    i = torch.arange(T, device=q.device)
    mask = (i[None] <= i[:, None]) & (i[None] >= i[:, None] - left)
    return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask).transpose(1, 2)


def attention_varlen(q, k, v, left):
    from torch.nn.attention.varlen import varlen_attn
    B, T, H, P = q.shape
    starts = torch.arange(0, (B + 1) * T, T, device=q.device, dtype=torch.int32)
    return varlen_attn(q.reshape(B * T, H, P), k.reshape(B * T, H, P), v.reshape(B * T, H, P), starts, starts, T, T, window_size=(left, 0)).view(B, T, H, P)


def attention_flash(q, k, v, left):
    """The same kernel by the operation below it, where varlen_attn has no windows."""
    B, T, H, P = q.shape
    starts = torch.arange(0, (B + 1) * T, T, device=q.device, dtype=torch.int32)
    out = torch.ops.aten._flash_attention_forward(q.reshape(B * T, H, P), k.reshape(B * T, H, P), v.reshape(B * T, H, P), starts, starts, T, T, 0.0, False, False,
                                                  window_size_left=left, window_size_right=0)
    return out[0].view(B, T, H, P)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        c = self.sizes = Sizes(config)
        self.half, self.scan, self.attention, self.parts = torch.float32, scan_chunks, attention_mask, dict(PARTS)
        shapes = {"model.embeddings.weight": (c.vocab, c.d), "model.norm_f.weight": (c.d,)}
        layer = {"mixer_norm.weight": (c.d,), "mixer.fc.weight": (2 * c.e, c.d), "mixer.out_proj.weight": (c.d, c.e), "mixer.act_norm.weight": (c.e,),
                 "mixer.inner_mixer.short_conv.conv1d.weight": (c.e, 1, c.conv), "mixer.inner_mixer.short_conv.conv1d.bias": (c.e,),
                 "mixer.inner_mixer.residual_weight": (c.e,), "mixer.inner_mixer.in_proj.weight": (2 * c.m, c.e), "mixer.inner_mixer.ch_gate_proj.0.weight": (c.r, c.e),
                 "mixer.inner_mixer.ch_gate_proj.1.weight": (c.e, c.r), "mixer.inner_mixer.ch_gate_proj.1.bias": (c.e,),
                 "mixer.inner_mixer.mem_gate_proj.weight": (2 * c.m, c.e), "mixer.inner_mixer.mem_gate_proj.bias": (2 * c.m,), "attn_norm.weight": (c.d,),
                 "attn.q_proj.weight": (c.d, c.d), "attn.k_proj.weight": (c.p, c.d), "attn.v_proj.weight": (c.d, c.d), "attn.out_proj.weight": (c.d, c.d),
                 "ffn_norm.weight": (c.d,), "ffn.fc.weight": (2 * c.f, c.d), "ffn.out_proj.weight": (c.d, c.f)}
        for i in range(c.layers):
            shapes.update({f"model.layers.{i}.{n}": s for n, s in layer.items()})
        self.names = list(shapes)
        self.weights = nn.ParameterList([nn.Parameter(self.begin(n, s)) for n, s in shapes.items()])

    def begin(self, name, shape):
        c, w = self.sizes, torch.empty(shape)
        if "norm" in name or "residual_weight" in name:
            return w.fill_(1)
        if "conv1d" in name:
            return w.uniform_(-0.5, 0.5)
        if "mem_gate_proj.bias" in name:  # a forgetting of 1 in 1,000 to 1 in 10 tokens, times tau
            rate = torch.exp(torch.rand(c.m) * math.log(0.1 / 0.0005) + math.log(0.0005))
            w[:c.m] = rate + torch.log(-torch.expm1(-rate))
            w[c.m:] = torch.logit(torch.empty(c.m).uniform_(1 / 16, 0.9))
            return w
        if name.endswith("bias"):
            return w.zero_()
        if "in_proj" in name or "gate_proj" in name:
            return nn.init.xavier_uniform_(w, gain=2 ** -2.5)
        return w.normal_(0, 0.02 / (math.sqrt(3 * c.layers) if "out_proj" in name else 1))

    def tensors(self):
        return dict(zip(self.names, self.weights))

    def forward(self, ids, targets, keep=None):
        """The loss of each target; with targets None the logits."""
        c, t, half, parts = self.sizes, self.tensors(), self.half, self.parts
        x = F.embedding(ids, t["model.embeddings.weight"])
        if keep is not None:
            x = drop(x, keep)
        turns = torch.outer(torch.arange(ids.shape[1], device=ids.device).double(), 10000.0 ** -(torch.arange(0, c.p, 2, device=ids.device).double() / c.p))
        cos, sin = turns.cos().float()[:, None], turns.sin().float()[:, None]
        for i in range(c.layers):
            w = lambda name: t[f"model.layers.{i}.{name}"]  # noqa: B023, E731
            m = lambda name: t[f"model.layers.{i}.mixer.inner_mixer.{name}"]  # noqa: B023, E731
            q, k, u, log_alpha, s, z = parts["mix_before"](
                x, w("mixer_norm.weight"), w("mixer.fc.weight"), m("short_conv.conv1d.weight"), m("short_conv.conv1d.bias"), m("in_proj.weight"), m("ch_gate_proj.0.weight"),
                m("ch_gate_proj.1.weight"), m("ch_gate_proj.1.bias"), m("mem_gate_proj.weight"), m("mem_gate_proj.bias"), c.eps, half)
            o = self.scan(q, k, u, log_alpha)
            x = parts["mix_after"](x, o, s, z, m("residual_weight"), w("mixer.act_norm.weight"), w("mixer.out_proj.weight"), keep, c.eps, half)
            q, k, v = parts["attend_before"](x, w("attn_norm.weight"), w("attn.q_proj.weight"), w("attn.k_proj.weight"), w("attn.v_proj.weight"), cos, sin, c.heads, c.eps, half)
            o = self.attention(q, k, v, c.left)
            x = parts["attend_after"](x, o, w("attn.out_proj.weight"), w("ffn_norm.weight"), w("ffn.fc.weight"), w("ffn.out_proj.weight"), keep, c.eps, half)
        if targets is None:
            return linear(rms(x, t["model.norm_f.weight"], c.eps).to(half), t["model.embeddings.weight"]).float()
        return parts["losses"](x, t["model.norm_f.weight"], t["model.embeddings.weight"], targets, c.eps, half)


class Muon:
    """Steepest descent in the spectral norm for the matrices of the layers, by stacks of one shape; AdamW for all else."""

    def __init__(self, model, muon=True):
        names = model.tensors()
        is_matrix = lambda n, p: muon and p.dim() == 2 and "embeddings" not in n and "gate_proj" not in n  # noqa: E731
        self.stacks = {}
        for n, p in names.items():
            if is_matrix(n, p):
                self.stacks.setdefault(tuple(p.shape), []).append(p)
        self.momenta = {s: torch.zeros(len(ps), *s, device=ps[0].device) for s, ps in self.stacks.items()}
        decayed = [p for n, p in names.items() if p.dim() == 2 and not is_matrix(n, p)]
        rest = [p for n, p in names.items() if p.dim() != 2]
        self.adam = torch.optim.AdamW([dict(params=decayed, weight_decay=0.05), dict(params=rest, weight_decay=0.0)], betas=(0.9, 0.98), fused=decayed[0].is_cuda)

    @torch.no_grad()
    def step(self, rate):
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        for shape, ps in self.stacks.items():
            g, buf = torch.stack([p.grad for p in ps]), self.momenta[shape]
            buf.lerp_(g, 0.05)
            x = g.lerp_(buf, 0.95).to(torch.bfloat16 if g.is_cuda else torch.float32)
            tall = shape[0] > shape[1]
            x = x.mT if tall else x
            x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
            for _ in range(5):  # Newton and Schulz
                A = x @ x.mT
                x = 3.4445 * x + (-4.7750 * A + 2.0315 * A @ A) @ x
            x = (x.mT if tall else x).float() * (0.2 * math.sqrt(max(shape)))
            for p, one in zip(ps, x):
                p.mul_(1 - rate * 0.05).sub_(one, alpha=rate)

    def state(self):
        return {"adam": self.adam.state_dict(), "momenta": self.momenta}

    def load(self, state):
        self.adam.load_state_dict(state["adam"])
        for shape, buf in state["momenta"].items():
            self.momenta[shape].copy_(buf)
