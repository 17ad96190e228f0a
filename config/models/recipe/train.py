#!/usr/bin/env python3
"""train.py --corpus TEXT --heldout TEXT --state DIR --out DIR [--minutes M] [--total M]: trains the demo model on one GPU.

Runs for --minutes and goes on where the checkpoint in --state stopped; --total is the time over all calls, which the learning rate follows.
Writes config.json, model.safetensors (bf16), tokenizer.json, tokenizer_config.json, generation_config.json and training.json to --out."""
import argparse
import collections
import json
import math
import multiprocessing
import os
import queue
import random
import re
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import skills  # noqa: E402

SPECIAL = ["<|startoftext|>", "<|endoftext|>", "[CLS]", "[gMASK]", "<role>", "</role>", "<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>", "<|fim_pad|>"]
SPLIT = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SEPARATOR = "\n<|endoftext|>\n"
WEIGHT = {"tools": 6.0, "extraction": 5.0, "edit": 2.0, "recall": 8.0, "sums": 6.0, "fim": 1.0, "system": 6.0}  # of an answer's token; a tale's has 1
MIX = {"tools": 0.30, "edit": 0.17, "extraction": 0.16, "system": 0.11, "sums": 0.08, "fim": 0.06, "fim_real": 0.05, "recall": 0.07}  # samples of a row of skills
ROWS = {"tales": 0.38, "recall": 0.18, "skills": 0.44}
RATE, WARM_UP, ROW_SEED = 3e-3, 200, 19
ASK = ["Tell me a tale about {}.", "Tell me a story about {}.", "Write a fairy tale about {}.", "I would like to hear about {}.", "Please tell a short tale with {}."]


def read_tales(path):
    with open(path, encoding="utf-8") as f:
        return f.read().split(SEPARATOR)


# ---- tokenizer ----
def make_tokenizer(tales, path, vocab):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    rng, pool, bank, texts = random.Random(7), skills.Pool("train"), skills.Bank(tales), list(tales)
    for _ in range(9000):
        for maker in (skills.tools, skills.extraction, skills.system):
            s = maker(rng, pool, bank)
            texts.append("\n".join(m["content"].replace(skills.TOOLS_HEAD, "").replace(skills.TOOLS_TAIL, "") for m in s["messages"]) + "\n" + s["answer"])
    for _ in range(40000):  # as in JSON: without the space before them
        texts.append(f': "{pool.name(rng)}", "{rng.choice(pool.places)}"')
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    special = [AddedToken(s, special=True, normalized=False) for s in SPECIAL]
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.save(path)


class Encoder:
    """Samples as ids, targets and weights, cut into tokens where the server cuts them: frame and contents apart."""

    def __init__(self, path):
        from tokenizers import Tokenizer
        self.t = Tokenizer.from_file(path)
        self.end = self.t.token_to_id("<|endoftext|>")
        self.frames = {r: self.ids(f) for r, f in skills.ROLES.items()}
        self.fim = [self.t.token_to_id(s) for s in ("<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>")]

    def ids(self, text):
        return self.t.encode(text).ids

    def sample(self, s):
        """Each answer's tokens, and the end that follows them, have weight; the end stands in the ids behind the last answer only."""
        skill = s["skill"].split("-")[0]
        if skill == "fim":
            pieces = [([self.fim[0]], 0), (self.ids(s["prompt"]), 0), ([self.fim[1]], 0), (self.ids(s["suffix"]), 0), ([self.fim[2]], 0), (self.ids(s["answer"]), 1)]
        else:
            pieces = []
            for m in s["messages"] + [{"role": "assistant", "content": s["answer"]}]:
                pieces += [(self.frames[m["role"]], 0), (self.ids(m["content"]), int(m["role"] == "assistant"))]
        ids = [i for piece, _ in pieces for i in piece]
        targets, weights, at = ids[1:] + [self.end], [0] * len(ids), 0
        for piece, learn in pieces:
            at += len(piece)
            if learn:
                weights[at - len(piece) - 1:at] = [1] * (len(piece) + 1)
                targets[at - 1] = self.end
        return ids, targets, [w * WEIGHT[skill] for w in weights]


# ---- rows ----
class Rows:
    """Endless rows of `length` tokens with the next tokens and their weights."""

    def __init__(self, encoder, tales, length, seed, progress):
        self.e, self.length, self.rng, self.progress = encoder, length, random.Random(seed), progress
        self.tales, self.pool, self.bank = tales, skills.Pool("train"), skills.Bank(tales)
        self.weights = [len(t) for t in tales]
        words = lambda s: re.findall(r"[a-z]{4,}", s)  # noqa: E731
        self.words, self.frequency = words, collections.Counter(w for t in tales for w in set(words(t)))

    def tale_texts(self):
        """Tales from a random place on; some framed as a wish and its fulfilment."""
        t = self.rng.choices(self.tales, self.weights)[0]
        at = self.rng.choice([0, self.rng.randrange(len(t))])
        at = t.find("\n", at) + 1 if at else 0
        at = at if at < len(t) - 200 else 0
        if self.rng.random() < 0.6:
            return None, t[at:at + 12000]
        paragraphs, piece = t[at:at + 4000].split("\n"), ""
        want = self.rng.randint(500, 2000)
        for p in paragraphs:
            piece += ("\n" if piece else "") + p
            if len(piece) > want:
                break
        counts = collections.Counter(self.words(piece))
        keys = sorted((w for w in counts if counts[w] > 1 and 3 <= self.frequency[w] < 150), key=lambda w: -counts[w] / (10 + self.frequency[w]))[:self.rng.choice([1, 1, 2, 2, 3])]
        return (self.rng.choice(ASK).format(" and ".join(skills.a(w) for w in keys)) if keys else None), piece

    def tales_row(self):
        ids, weights = [], []
        while len(ids) <= self.length:
            ask, text = self.tale_texts()
            if ask:
                frame = self.e.frames["user"] + self.e.ids(ask) + self.e.frames["assistant"]
                ids, weights = ids + frame, weights + [0] * (len(frame) - 1) + [1]
            text = self.e.ids(text) + [self.e.end]
            ids, weights = ids + text, weights + [1] * len(text)
        return ids[:self.length], ids[1:self.length + 1], weights[:self.length]

    def pack(self, makers, odds):
        ids, targets, weights = [], [], []
        while len(ids) < self.length:
            s = self.rng.choices(makers, odds)[0](self.rng, self.pool, self.bank)
            i, t, w = self.e.sample(s)
            room = self.length - len(ids)
            if len(i) > room and room < 500 and ids:  # what is left of the row goes to a tale
                text = self.e.ids(self.tale_texts()[1][:2500])[:room]
                i, t, w = text, text[1:] + [self.e.end], [1.0] * (len(text) - 1) + [0.0]
                if len(text) < room:
                    i, t, w = i + [self.e.end] * (room - len(i)), t + [self.e.end] * (room - len(t)), w + [0.0] * (room - len(w))
                return ids + i, targets + t, weights + w
            if len(i) > room:
                continue
            ids, targets, weights = ids + i + [self.e.end], targets + t + [self.e.end], weights + w + [0.0]
        return ids[:self.length], targets[:self.length], weights[:self.length]

    def recall_chars(self):
        """Distances grow over the first quarter of the training."""
        longest = 3.5 * self.length * min(1.0, 0.2 + self.progress() * 3.2)
        return int(self.rng.choice([self.rng.uniform(0.05, 1.0), self.rng.uniform(0.6, 1.0)]) * longest)

    def one_recall(self, rng, pool, bank):
        return skills.recall(rng, pool, bank, max(150, self.recall_chars()))

    def many_recalls(self, rng, pool, bank):
        return skills.recall_many(rng, pool, bank, max(400, self.recall_chars()))

    def row(self):
        kind = self.rng.choices(list(ROWS), list(ROWS.values()))[0]
        if kind == "tales":
            return kind, self.tales_row()
        if kind == "recall":
            return kind, self.pack([self.one_recall, self.many_recalls], [1, 2])
        makers = {**skills.MAKERS, "fim_real": skills.fim_real}
        return kind, self.pack([makers[k] for k in MIX], list(MIX.values()))


def produce(out, progress, tokenizer, corpus, length, seed):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    rows = Rows(Encoder(tokenizer), read_tales(corpus), length, seed, lambda: progress.value)
    while True:
        made = [rows.row() for _ in range(8)]
        assert all(len(part) == length for _, row in made for part in row)
        out.put((np.array([r[1][0] for r in made], np.int16), np.array([r[1][1] for r in made], np.int16),
                 np.array([r[1][2] for r in made], np.float16), np.array([r[0] == "tales" for r in made])))


# ---- evaluation: greedy decoding gives an answer exactly if each of its tokens is the likeliest after those before it ----
def make_cases(path, tokenizer, heldout, n):
    encoder, bank, pool, cases = Encoder(tokenizer), skills.Bank(read_tales(heldout)), skills.Pool("heldout"), {}
    makers = {k: m for k, m in skills.MAKERS.items() if k != "recall"}
    for d in skills.DISTANCES:
        makers[f"recall-{d}"] = lambda r, p, b, d=d: skills.recall_at(r, p, b, d, lambda t: len(encoder.ids(t)))
    for skill, maker in makers.items():
        rng = random.Random("heldout " + skill)
        cases[skill] = [maker(rng, pool, bank) for _ in range(n)]
    with open(path + ".new", "w", encoding="utf-8") as f:
        json.dump(cases, f)
    os.replace(path + ".new", path)


def evaluate(model, encoder, cases, tales, device, torch, longest=2048):
    found = {}
    with torch.no_grad():
        for skill, samples in cases.items():
            right, forms = 0, collections.Counter()
            todo = sorted((encoder.sample(s) + (s,) for s in samples), key=lambda c: len(c[0]))
            while todo:
                n = max(1, min(len(todo), 65536 // len(todo[-1][0])))
                part, todo = todo[-n:], todo[:-n]
                length = max(len(c[0]) for c in part)
                length = (length + 127) // 128 * 128
                ids = torch.full((len(part), length), encoder.end)
                for row, c in enumerate(part):
                    ids[row, :len(c[0])] = torch.tensor(c[0])
                top = model(ids.to(device), None).argmax(-1).tolist()
                for row, (i, t, w, s) in enumerate(part):
                    ok = all(top[row][k] == t[k] for k in range(max(k for k in range(len(w)) if not w[k]) + 1, len(w)))
                    right += ok
                    forms[s.get("form", ""), ok] += 1
            found[skill] = {"right": right, "of": len(samples), "forms": {f"{k[0]} {'right' if k[1] else 'wrong'}".strip(): v for k, v in sorted(forms.items())}}
        nats = chars = 0
        for t in tales:
            text = torch.tensor([encoder.ids(t)])
            for at in range(0, text.shape[1] - 1, longest):  # pieces; the server reads whole tales
                part = text[:, at:at + longest + 1]
                nats += model(part[:, :-1].to(device), part[:, 1:].to(device)).sum().item()
            chars += len(t)
        found["tales"] = {"nats_a_character": nats / chars}
    return found


# ---- files ----
def write_model(model, config, encoder, tokenizer, out, notes, torch):
    from safetensors.torch import save_file
    os.makedirs(out, exist_ok=True)
    save_file({n: p.detach().to(torch.bfloat16).contiguous().cpu() for n, p in model.tensors().items()}, f"{out}/model.safetensors", metadata={"format": "pt"})

    def write(name, value):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=2)
            f.write("\n")
    write("config.json", {"architectures": ["RodimusForCausalLM"], "model_type": "rodimus", "torch_dtype": "bfloat16", **config})
    write("tokenizer_config.json", {"tokenizer_class": "RodimusTokenizer", "bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "pad_token": SPECIAL[1], "cls_token": "[CLS]",
                                    "gmask_token": "[gMASK]", "additional_special_tokens": SPECIAL[6:], "add_bos_token": False, "add_eos_token": False,
                                    "clean_up_tokenization_spaces": False, "model_max_length": config["max_position_embeddings"]})
    write("generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "do_sample": True, "temperature": 0.8, "top_p": 0.95})
    write("training.json", notes)
    os.chmod(f"{out}/model.safetensors", 0o644)
    with open(tokenizer, encoding="utf-8") as f, open(os.path.join(out, "tokenizer.json"), "w", encoding="utf-8") as g:
        g.write(f.read())


def choose_kernels(model, device, torch, compiled, wants_fla, shape):
    """The fastest forms that give the plain ones' result on this machine."""
    import model as forms
    if device.type != "cuda":
        return []
    model.half, said = torch.bfloat16, []
    c, make = model.sizes, lambda *s: torch.randn(*s, device=device, dtype=torch.bfloat16)  # noqa: E731
    q, k, v = (make(2, 3072, c.heads, c.p).requires_grad_() for _ in range(3))
    want = forms.attention_mask(q, k, v, c.left)
    want_grads = torch.autograd.grad(want.float().square().sum(), (q, k, v))
    for form in (forms.attention_varlen, forms.attention_flash):
        try:
            got = form(q, k, v, c.left)
            grads = torch.autograd.grad(got.float().square().sum(), (q, k, v))
            worst = max((a - b).abs().max().item() / b.abs().max().item() for a, b in zip((got,) + grads, (want,) + want_grads))
            said.append(f"{form.__name__}: {worst:.1e} off")
            if worst < 0.03:
                model.attention = form
                break
        except Exception as fault:  # noqa: BLE001: another form is there
            said.append(f"{form.__name__}: {type(fault).__name__} {str(fault)[:200]}")
    q, k, u = make(2, 256, c.m), torch.nn.functional.normalize(make(2, 256, c.m), dim=-1), make(2, 256, c.e)
    log_alpha = -torch.rand(2, 256, c.m, device=device) * torch.logspace(-3, 0.5, c.m, device=device)
    ins, back = [t.detach().requires_grad_() for t in (q, k, u, log_alpha)], torch.randn(2, 256, c.e, device=device)
    want = forms.scan_plain(*ins)
    want = [want] + list(torch.autograd.grad((want * back).sum(), ins))
    for form in (forms.scan_fla, forms.scan_chunks):
        try:
            got = form(*ins).float()
            got = [got] + list(torch.autograd.grad((got * back).sum(), ins))
            worst = max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in zip(got, want))
            said.append(f"{form.__name__}: {worst:.1e} off")
            if worst < 0.05:
                model.scan = form
                break
        except Exception as fault:  # noqa: BLE001
            said.append(f"{form.__name__}: {type(fault).__name__} {str(fault)[:200]}")
        if wants_fla:
            raise SystemExit("; ".join(said))
    if compiled:
        try:
            x, keep = torch.randint(0, c.vocab, shape, device=device), torch.ones(shape[0], 1, 1, device=device)  # the shape of training: compiled once
            plain = model(x, x, keep).mean()
            plain.backward()
            slow = [p.grad.clone() for p in model.weights]
            model.zero_grad()
            model.parts = {n: torch.compile(f, dynamic=False) for n, f in forms.PARTS.items()}
            fast = model(x, x, keep).mean()
            fast.backward()
            worst = math.sqrt(sum((a - b.grad).square().sum().item() for a, b in zip(slow, model.weights)) / sum(a.square().sum().item() for a in slow))
            said.append(f"compiled: loss {abs(fast.item() - plain.item()):.1e}, gradients {worst:.1e} off")
            assert worst < 0.1 and abs(fast.item() - plain.item()) < 0.01
        except Exception as fault:  # noqa: BLE001
            said.append(f"compile: {type(fault).__name__} {str(fault)[:200]}")
            model.parts = dict(forms.PARTS)
        model.zero_grad(set_to_none=True)
    return said


def rate_at(rate, step, part):
    """Warm-up, then level for half of the time, then down to 2 in 100."""
    return rate * min(1, (step + 1) / WARM_UP) * (1 if part < 0.5 else max(0.02, 1 - 0.98 * (part - 0.5) / 0.5))


def main():
    p = argparse.ArgumentParser()
    for name in ("--corpus", "--heldout", "--state", "--out"):
        p.add_argument(name, required=True)
    for name, value in (("--minutes", 8.0), ("--total", 17.0)):
        p.add_argument(name, type=float, default=value)
    for name, value in (("--d", 320), ("--layers", 6), ("--memory", 128), ("--heads", 5), ("--window", 1536), ("--vocab", 4096), ("--context", 2048), ("--rows", 32),
                        ("--workers", 12), ("--cases", 100), ("--steps", 10 ** 9)):
        p.add_argument(name, type=int, default=value)
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--adam", action="store_true", help="AdamW for the matrices, too")
    p.add_argument("--rate", type=float, default=RATE)
    p.add_argument("--finish", action="store_true", help="the last call: --total is what was spent and what is left of --minutes")
    p.add_argument("--fla", action="store_true", help="end with status 1 where chunk_gla does not run or is wrong")
    p.add_argument("--dropout", type=float, default=0.1)
    args = p.parse_args()
    began = time.time()
    os.makedirs(args.state, exist_ok=True)
    tokenizer, checkpoint = os.path.join(args.state, "tokenizer.json"), os.path.join(args.state, "last.pt")
    if not os.path.exists(tokenizer):
        make_tokenizer(read_tales(args.corpus), tokenizer, args.vocab)
    print(f"{time.time() - began:.0f} s: tokenizer", flush=True)
    counter = os.path.join(args.state, "calls")
    calls = int(open(counter, encoding="utf-8").read()) + 1 if os.path.exists(counter) else 1
    with open(counter, "w", encoding="utf-8") as f:
        f.write(str(calls))
    encoder, context = Encoder(tokenizer), multiprocessing.get_context("fork")
    rows, progress = context.Queue(maxsize=48), context.Value("d", 0.0)
    cases = os.path.join(args.state, "cases.json")
    children = [context.Process(target=produce, args=(rows, progress, tokenizer, args.corpus, args.context, f"{ROW_SEED} {i} {calls}"), daemon=True)
                for i in range(args.workers)]
    if not os.path.exists(cases):
        children.append(context.Process(target=make_cases, args=(cases, tokenizer, args.heldout, args.cases), daemon=True))
    for child in children:  # before CUDA begins
        child.start()

    import torch
    from model import Model, Muon
    torch.manual_seed(19)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = dict(block_type="rodimus_plus", d_model=args.d, n_layer=args.layers, vocab_size=args.vocab, norm_epsilon=1e-5, max_position_embeddings=args.context,
                  bos_token_id=0, eos_token_id=1, pad_token_id=1, tie_word_embeddings=True, use_scale_embedding=False, use_norm_embedding=False, residual_in_fp32=True,
                  mixer_cfg=dict(mem_size=args.memory, expand_ratio=2), attn_cfg=dict(num_heads=args.heads, num_heads_k=1, num_heads_v=args.heads, window_size=args.window))
    model = Model(config).to(device)
    n_parameters = sum(w.numel() for w in model.weights)
    print(f"{n_parameters / 1e6:.2f} M parameters on {device}", flush=True)
    optimizer, step, spent, history = Muon(model, not args.adam), 0, 0.0, []
    for line in choose_kernels(model, device, torch, not args.no_compile, args.fla, (args.rows, args.context)):
        print(f"{time.time() - began:.0f} s: {line}", flush=True)
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint, map_location=device, weights_only=False)
        with torch.no_grad():
            for w, saved in zip(model.weights, state["weights"]):
                w.copy_(saved)
        optimizer.load(state["optimizer"])
        step, spent, history = state["step"], state["spent"], state["history"]
        progress.value = spent / (args.total * 60)
        print(f"goes on at step {step}, {spent:.0f} s", flush=True)

    def save():
        torch.save({"weights": [w.detach() for w in model.weights], "optimizer": optimizer.state(), "step": step, "spent": spent, "history": history}, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)

    waiting, said, saved, waited = [], time.time(), time.time(), 0.0
    time_left = began + args.minutes * 60 - time.time() - (60 if device.type == "cuda" else 0)  # for the evaluation
    if args.finish:
        args.total = (spent + time_left) / 60
    print(f"{time.time() - began:.0f} s: training for {time_left:.0f} s, {100 * spent / args.total / 60:.0f} of 100 done", flush=True)
    last, totals, stop, n_said, steps_done = time.time(), collections.defaultdict(float), time.time() + time_left, 0, 0
    while time.time() < stop and spent < args.total * 60 and steps_done < args.steps:
        while sum(len(w[0]) for w in waiting) < args.rows:
            t = time.time()
            try:
                waiting.append(rows.get(timeout=120))
            except queue.Empty:
                raise SystemExit("No rows came for two minutes.")
            waited += time.time() - t
        ids, targets, weights, is_tale = (np.concatenate(x) for x in zip(*waiting))
        waiting = [tuple(x[args.rows:] for x in (ids, targets, weights, is_tale))] if len(ids) > args.rows else []
        ids, targets, weights, is_tale = (torch.from_numpy(x[:args.rows]) for x in (ids, targets, weights, is_tale))
        ids, targets, weights = ids.to(device, non_blocking=True).long(), targets.to(device, non_blocking=True).long(), weights.to(device, non_blocking=True).float()
        keep = torch.where(is_tale.to(device), 1 - args.dropout, 1.0).float().view(-1, 1, 1)
        loss = model(ids, targets.clamp(min=0), keep)
        total = (loss * weights).sum() / weights.sum()
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.weights, 1.0)
        optimizer.step(rate_at(args.rate, step, spent / (args.total * 60)))
        model.zero_grad(set_to_none=True)
        if step % 10 == 0:
            tale, value = is_tale.to(device).view(-1, 1), loss.detach() * (weights > 0)
            totals["tale"] += ((value * tale).sum() / ((weights > 0) * tale).sum().clamp(min=1)).item()
            totals["skill"] += ((value * ~tale).sum() / ((weights > 0) * ~tale).sum().clamp(min=1)).item()
            totals["n"] += 1
        step, steps_done, now = step + 1, steps_done + 1, time.time()
        spent += now - last
        last, progress.value = now, spent / (args.total * 60)
        if now - said > 15 or steps_done in (1, 10, 40):
            n = max(1, totals["n"])
            print(f"step {step} {spent:.0f} s {step * args.rows * args.context / 1e6:.0f} M tokens, {(steps_done - n_said) * args.rows * args.context / (now - said) / 1e3:.0f} k/s, "
                  f"waited {waited:.1f} s, tales {totals['tale'] / n:.3f}, skills {totals['skill'] / n:.3f}", flush=True)
            totals.clear()
            said, n_said, waited = now, steps_done, 0.0
        if now - saved > 120:
            save()
            saved = last = time.time()
    save()
    model.parts = dict(__import__("model").PARTS)  # other lengths than a row's: not compiled
    entry = {"step": step, "tokens": step * args.rows * args.context, "seconds": round(spent)}
    notes = {"parameters": n_parameters, **entry, "history": history + [entry]}
    write_model(model, config, encoder, tokenizer, args.out, notes, torch)
    with open(cases, encoding="utf-8") as f:
        entry.update(evaluate(model, encoder, json.load(f), read_tales(args.heldout), device, torch, args.context))
    history.append(entry)
    save()
    write_model(model, config, encoder, tokenizer, args.out, notes, torch)
    for skill, result in entry.items():
        print(skill, json.dumps(result), flush=True)
    print(f"{time.time() - began:.0f} s: wrote {args.out}", flush=True)
    for child in children:
        child.terminate()
    os._exit(0)  # a queue that is full would wait for its readers


if __name__ == "__main__":
    main()
