#!/usr/bin/env python3
"""merge.py EARLIER LATER OUT --corpus TEXT --cases FOLDER [--steps N]: a model between two, of which LATER was trained from EARLIER's weights.

Each tensor is EARLIER + part * (LATER - EARLIER); a part for each tensor is learnt on a CPU, from new training samples of several calls and from sums of the
held-out pool whose numbers are in none of the cases. OUT/training.json has the parts. With --parts FILE, such a training.json, nothing is learnt."""
import argparse
import json
import os
import random
import re
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import model as forms  # noqa: E402
import skills  # noqa: E402
import train  # noqa: E402

EMBEDDINGS = "model.embeddings.weight"
BEGIN, RATE, OF_SUMS = 0.8, 0.03, 30.0  # the first part, Adam's rate, how much a sum's loss counts beside a talk's
N_SUMS, N_HARD, N_TALKS = 800, 60, 6  # sums that are asked, the worst of them that are learnt from, talks a step
LONGEST, AT_ONCE = 750, 2048  # tokens of a talk, of a batch


def between(earlier, later, parts):
    return {name: earlier[name] + torch.tensor(parts[name]) * (later[name] - earlier[name]) for name in earlier}


def read_weights(folder):
    return {name: w.float() for name, w in load_file(os.path.join(folder, "model.safetensors")).items()}


def samples_of(encoder, maker, *args):
    ids, targets, weights = encoder.sample(maker(*args))
    return ids, targets, [float(w > 0) for w in weights]


def other_sums(args, encoder, n):
    """Of the held-out pool, with numbers that no case has."""
    numbers = lambda s: tuple(re.findall(r"\d+", s["messages"][-1]["content"])[:2])  # noqa: E731
    with open(os.path.join(args.cases, "sums.jsonl"), encoding="utf-8") as f:
        asked = {numbers(json.loads(line)) for line in f}
    rng, pool, found = random.Random("validation sums"), skills.Pool("heldout"), []
    while len(found) < n:
        s = skills.sums(rng, pool, None)
        if numbers(s) not in asked:
            found.append(samples_of(encoder, lambda s=s: s))
    return found


def batches(samples, end):
    """The places of some samples, their ids, targets and weights; the longest first."""
    order = sorted(range(len(samples)), key=lambda k: len(samples[k][0]))
    while order:
        length = len(samples[order[-1]][0])
        n = max(1, min(len(order), AT_ONCE // length))
        order, part = order[:-n], order[-n:]
        ids, targets, weights = torch.full((n, length), end), torch.full((n, length), end), torch.zeros(n, length)
        for row, k in enumerate(part):
            for whole, values in zip((ids, targets, weights), samples[k]):
                whole[row, :len(values)] = torch.tensor(values)
        yield part, ids, targets.clamp(min=0), weights


def learn(model, samples, end, scale):
    """Adds the gradient of the samples' loss, and gives the loss."""
    total = 0.0
    for _, ids, targets, weights in batches(samples, end):
        loss = (model(ids, targets) * weights).sum() * scale
        loss.backward()
        total += loss.item()
    return total


def hardest(model, samples, end, n):
    losses = [0.0] * len(samples)
    with torch.no_grad():
        for part, ids, targets, weights in batches(samples, end):
            for k, loss in zip(part, (model(ids, targets) * weights).sum(1).tolist()):
                losses[k] = loss
    return [samples[k] for k in sorted(range(len(samples)), key=lambda k: -losses[k])[:n]]


class Talks:
    def __init__(self, args, encoder):
        tales = train.read_tales(args.corpus)
        self.rng, self.pool, self.bank, self.encoder = random.Random("talks"), skills.Pool("train", skills.words_of(tales)), skills.Bank(tales), encoder

    def some(self, n):
        makers, found = (skills.second, skills.chain, skills.agent, skills.agent), []
        while len(found) < n:
            sample = samples_of(self.encoder, makers[len(found) % len(makers)], self.rng, self.pool, self.bank)
            if len(sample[0]) < LONGEST:
                found.append(sample)
        return found


def learnt_parts(args, config, earlier, later):
    encoder = train.Encoder(os.path.join(args.later, "tokenizer.json"))
    talks, model = Talks(args, encoder), forms.Model(config)
    weights = model.tensors()
    parts = {name: torch.tensor(BEGIN, requires_grad=True) for name in weights}
    adam = torch.optim.Adam(parts.values(), lr=RATE, betas=(0.7, 0.95))

    def take_parts():
        with torch.no_grad():
            for name, w in between(earlier, later, {n: s.item() for n, s in parts.items()}).items():
                weights[name].copy_(w)
    take_parts()
    sums = hardest(model, other_sums(args, encoder, N_SUMS), encoder.end, N_HARD)
    for step in range(args.steps):
        of_sums = learn(model, sums, encoder.end, OF_SUMS / N_SUMS)
        of_talks = learn(model, talks.some(N_TALKS), encoder.end, 1 / N_TALKS)
        for name, w in weights.items():
            parts[name].grad = (w.grad * (later[name] - earlier[name])).sum()
            w.grad = None
        adam.step()
        take_parts()
        print(f"step {step}: loss of a sum {of_sums / OF_SUMS:.4f}, of a talk {of_talks:.3f}", flush=True)
    return {**{name: round(s.item(), 4) for name, s in parts.items()}, EMBEDDINGS: 1.0}  # between the two a rare token is no longer copied


def main():
    p = argparse.ArgumentParser()
    for name in ("earlier", "later", "out"):
        p.add_argument(name)
    for name in ("--corpus", "--cases", "--parts"):
        p.add_argument(name)
    p.add_argument("--steps", type=int, default=8)
    args = p.parse_args()
    earlier, later = read_weights(args.earlier), read_weights(args.later)
    with open(os.path.join(args.later, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    with open(os.path.join(args.later, "training.json"), encoding="utf-8") as f:
        notes = json.load(f)
    if args.parts:
        with open(args.parts, encoding="utf-8") as f:
            parts = json.load(f)["merge"]["parts"]
    else:
        parts = learnt_parts(args, config, earlier, later)
    os.makedirs(args.out, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(os.path.join(args.later, name), os.path.join(args.out, name))
    merged = {name: w.to(torch.bfloat16).contiguous() for name, w in between(earlier, later, parts).items()}
    save_file(merged, os.path.join(args.out, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(args.out, "model.safetensors"), 0o644)
    with open(os.path.join(args.out, "training.json"), "w", encoding="utf-8") as f:
        json.dump({**notes, "merge": {"parts": parts}}, f, indent=2)
        f.write("\n")


if __name__ == "__main__":
    main()
