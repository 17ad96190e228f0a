#!/usr/bin/env python3
"""train.py --corpus TEXT --heldout TEXT --state DIR --out DIR [--minutes M] [--total M]: trains the demo model on one GPU.

Runs for --minutes, start and evaluation included, and goes on where the checkpoint in --state stopped; --total is the time over all calls, which
the learning rate follows. Says each phase before it begins. Writes config.json, model.safetensors (bf16), tokenizer.json, tokenizer_config.json, generation_config.json and training.json to --out."""
import time

BEGAN = time.time()
import argparse  # noqa: E402
import collections  # noqa: E402
import faulthandler  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import multiprocessing  # noqa: E402
import os  # noqa: E402
import queue  # noqa: E402
import random  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import traceback  # noqa: E402

import numpy as np  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import checks  # noqa: E402
import skills  # noqa: E402

os.environ["TOKENIZERS_PARALLELISM"] = "false"

SPECIAL = ["<|startoftext|>", "<|endoftext|>", "[CLS]", "[gMASK]", "<role>", "</role>", "<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>", "<|fim_pad|>"]
SPLIT = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SEPARATOR = "\n<|endoftext|>\n"
WEIGHT = {"tools": 6.0, "extraction": 5.0, "edit": 2.0, "recall": 8.0, "sums": 3.0, "words": 2.0, "choose": 3.0, "fim": 1.0, "system": 6.0,
          "second": 5.0, "chain": 4.0, "agent": 4.0}  # of an answer's token; a tale's has 1
MIX = {"tools": 0.28, "edit": 0.24, "extraction": 0.16, "words": 0.06, "system": 0.14, "sums": 0.02, "fim": 0.03, "fim_real": 0.04, "recall": 0.02,
       "second": 0.07, "chain": 0.05, "agent": 0.08}  # samples of a row of skills
CHOOSE = 0.4, 0.15  # such samples at the start and at the end
FIRST = {"tools": 5, "choose": 10.5, "second": 5, "chain": 5, "agent": 4}  # times the weight for an answer's first token, which decides on a call; each product is another
ROWS = {"tales": 0.12, "recall": 0.11, "skills": 0.77}
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
                weights[at - len(piece) - 1:at] = [FIRST.get(skill, 1)] + [1] * len(piece)
                targets[at - 1] = self.end
        return ids, targets, [w * WEIGHT[skill] for w in weights]


# ---- rows ----
class Rows:
    """Endless rows of `length` tokens with the next tokens and their weights."""

    def __init__(self, encoder, tales, length, seed, progress):
        self.e, self.length, self.rng, self.progress = encoder, length, random.Random(seed), progress
        self.tales, self.pool, self.bank = tales, skills.Pool("train", skills.words_of(tales)), skills.Bank(tales)
        self.ends, self.left = list(itertools.accumulate(map(len, tales))), collections.defaultdict(list)
        words = lambda s: re.findall(r"[a-z]{4,}", s)  # noqa: E731
        self.words, self.frequency = words, collections.Counter(w for t in tales for w in set(words(t)))

    def tale_texts(self):
        """Tales from a random place on; some framed as a wish and its fulfilment."""
        t = self.rng.choices(self.tales, cum_weights=self.ends)[0]
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
        """Samples one behind the other. What finds no room begins a later row of this kind; what is left of the row goes to sums."""
        ids, targets, weights, left = [], [], [], self.left[makers[0]]
        while len(ids) < self.length:
            room = self.length - len(ids)
            i, t, w = next((left.pop(k) for k, kept in enumerate(left) if len(kept[0]) <= room), None) or self.e.sample(self.rng.choices(makers, odds)[0](self.rng, self.pool, self.bank))
            if room < len(i) <= self.length and len(left) < 50:
                left.append((i, t, w))
            if len(i) > room and room < 500:
                i, t, w = self.e.sample(skills.sums(self.rng, self.pool, self.bank))
                if len(i) > room:
                    i, t, w = [self.e.end] * room, [self.e.end] * room, [0.0] * room
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
        makers = {**skills.MAKERS, "fim_real": skills.fim_real, "words": skills.words, "choose": skills.choose}
        odds = {**MIX, "choose": CHOOSE[0] + (CHOOSE[1] - CHOOSE[0]) * min(1, self.progress())}
        return kind, self.pack([makers[k] for k in odds], list(odds.values()))


def produce(number, pipe, progress, tokenizer, corpus, length, seed, hang):
    checks.end_with_parent()
    os.nice(5)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.dump_traceback_later(60, repeat=True)  # until the first rows are there
    if hang == f"worker:{number}":
        time.sleep(10 ** 6)
    rows, first = Rows(Encoder(tokenizer), read_tales(corpus), length, seed, lambda: progress.value), True
    while True:
        made = [rows.row() for _ in range(2 if first else 8)]
        assert all(len(part) == length for _, row in made for part in row)
        pipe.send((np.array([r[1][0] for r in made], np.int16), np.array([r[1][1] for r in made], np.int16),
                   np.array([r[1][2] for r in made], np.float16), np.array([r[0] == "tales" for r in made])))
        if first:
            faulthandler.cancel_dump_traceback_later()
            first = False


class Feed:
    """Rows of the workers. Each has its own pipe and its own thread here, so that one that hangs or ends stops no other."""
    SILENT = 30  # seconds

    def __init__(self, context, n, say, *args):
        self.ready, self.since, self.made, self.said, self.say = queue.Queue(48), [None] * n, [0] * n, set(), say
        self.children = []
        for i, seed in enumerate(args[-2]):
            ours, theirs = context.Pipe(duplex=False)
            self.children.append(context.Process(target=produce, args=(i, theirs, *args[:-2], seed, args[-1]), daemon=True))
            self.children[-1].start()
            theirs.close()
            threading.Thread(target=self.read, args=(i, ours), daemon=True).start()

    def read(self, i, pipe):
        while True:
            self.since[i] = time.time()  # while the worker owes rows
            try:
                batch = pipe.recv()
            except (EOFError, OSError):
                self.children[i].join(5)
                self.say(f"worker {i} ended with status {self.children[i].exitcode}")
                return
            self.since[i] = None
            self.made[i] += 1
            self.ready.put(batch)

    def look(self):
        """Says once which workers are silent or, after that, that they are not."""
        for i, since in enumerate(self.since):
            silent = since is not None and time.time() - since > self.SILENT
            if silent != (i in self.said):
                self.said ^= {i}
                self.say(f"worker {i} (process {self.children[i].pid}) " + (f"is silent for {time.time() - since:.0f} s, after {self.made[i]} messages" if silent else "speaks again"))

    def get(self, limit=90):
        begin = time.time()
        while True:
            try:
                return self.ready.get(timeout=5)
            except queue.Empty:
                self.look()
                if not any(c.is_alive() for c in self.children):
                    raise SystemExit("All workers ended.") from None
                if time.time() - begin > limit:
                    raise SystemExit(f"No rows came for {limit} s; messages of each worker: {self.made}") from None


class Wall:
    """The end of --minutes: says each phase, and where it hangs; nothing outlives it."""

    def __init__(self, minutes, log):
        self.end, self.phase, self.log, self.lock, self.at_end = BEGAN + minutes * 60, "start", open(log, "a", encoding="utf-8"), threading.Lock(), lambda phase: None
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(1, self.left()))  # ends the process though Python may hang in a library
        faulthandler.dump_traceback_later(60, repeat=True)
        threading.Thread(target=self.watch, daemon=True).start()

    def left(self):
        return self.end - time.time()

    def say(self, line):
        line = f"{time.time() - BEGAN:.1f} s: {line}"
        with self.lock:
            print(line, flush=True)
            print(line, file=self.log, flush=True)

    def begins(self, phase):
        self.phase = phase
        self.say(f"{phase} begins")

    def watch(self):
        time.sleep(max(0, self.left() - 4))
        self.say(f"time is over, in the phase: {self.phase}")
        faulthandler.dump_traceback(all_threads=True)
        try:
            self.at_end(self.phase)
        finally:
            os._exit(4)  # if this, too, hangs: SIGALRM


# ---- evaluation: greedy decoding gives an answer exactly if each of its tokens is the likeliest after those before it ----
def make_cases(path, tokenizer, heldout, n):
    checks.end_with_parent()
    os.nice(5)
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


def evaluate(model, encoder, cases, tales, device, torch, until, found, longest=2048):
    """Adds to found as much as there is time for, tales first."""
    with torch.no_grad():
        nats = chars = 0
        for t in tales:
            if time.time() > until:
                break
            text = torch.tensor([encoder.ids(t)])
            for at in range(0, text.shape[1] - 1, longest):  # pieces; the server reads whole tales
                part = text[:, at:at + longest + 1]
                nats += model(part[:, :-1].to(device), part[:, 1:].to(device)).sum().item()
            chars += len(t)
        found["tales"] = {"nats_a_character": nats / max(1, chars), "characters": chars}
        for skill, samples in cases.items():
            if time.time() > until:
                found[skill] = {"not measured": "no time left"}
                continue
            right, forms = 0, collections.Counter()
            todo = sorted((encoder.sample(s) + (s,) for s in samples), key=lambda c: len(c[0]))
            while todo and time.time() < until:
                n = max(1, min(len(todo), 65536 // len(todo[-1][0])))
                part, todo = todo[-n:], todo[:-n]
                length = max(len(c[0]) for c in part)
                length = (length + 127) // 128 * 128
                ids = torch.full((len(part), length), encoder.end)
                for row, c in enumerate(part):
                    ids[row, :len(c[0])] = torch.tensor(c[0])
                top = model(ids.to(device), None).argmax(-1).tolist()
                for row, (i, t, w, s) in enumerate(part):
                    begin = 0 if skill in skills.TALKS else max(k for k in range(len(w)) if not w[k]) + 1
                    ok = all(top[row][k] == t[k] for k in range(begin, len(w)) if w[k])
                    right += ok
                    forms[s.get("form", ""), ok] += 1
            found[skill] = {"right": right, "of": len(samples) - len(todo), "forms": {f"{k[0]} {'right' if k[1] else 'wrong'}".strip(): v for k, v in sorted(forms.items())}}


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


def take(model, confirmed, taken, forms, torch, say, left):
    """Lets the model use the forms that self-checks have confirmed since, while it is worth it; a kind that failed ("") stays plain."""
    for kind, name in list(confirmed.items()):
        if kind == "fla" or taken.get(kind) in (name, "") or left < (120 if kind == "compile" else 20):
            continue
        taken[kind] = name
        if kind == "compile":
            model.parts = {n: torch.compile(f, dynamic=False) for n, f in forms.PARTS.items()}
        elif kind == "scan" and name == "scan_fla":
            checks.use_fla(confirmed["fla"])
            model.scan = forms.scan_fla
        else:
            setattr(model, kind, getattr(forms, name))
        say(f"{kind}: {name} from now on")


def rate_at(rate, step, part):
    """Warm-up, then level for half of the time, then down to 2 in 100."""
    return rate * min(1, (step + 1) / WARM_UP) * (1 if part < 0.5 else max(0.02, 1 - 0.98 * (part - 0.5) / 0.5))


class Jobs:
    """What is to stop and what is to write at the end."""

    def __init__(self):
        self.children, self.checks, self.save, self.notes, self.path = [], None, None, {"step": 0}, None

    def write_notes(self, ended):
        if self.path:
            with open(self.path + ".new", "w", encoding="utf-8") as f:
                json.dump({**self.notes, "ended": ended}, f, indent=2)
                f.write("\n")
            os.replace(self.path + ".new", self.path)

    def write(self, ended):
        if self.save:
            self.save()
        self.write_notes(ended)

    def stop_checks(self):
        if self.checks:
            self.checks.stop()

    def stop(self):
        self.stop_checks()
        for child in self.children:
            child.kill()


def train(args, wall, say, jobs):
    jobs.path = os.path.join(args.out, "training.json")
    wall.at_end = lambda phase: (jobs.write_notes(f"time was over in the phase: {phase}"), jobs.stop())
    tokenizer, checkpoint = os.path.join(args.state, "tokenizer.json"), os.path.join(args.state, "last.pt")
    if args.begin and not os.path.exists(tokenizer):
        shutil.copyfile(os.path.join(args.begin, "tokenizer.json"), tokenizer)
    if not os.path.exists(tokenizer):
        wall.begins("tokenizer (half a minute, for once)")
        make_tokenizer(read_tales(args.corpus), tokenizer, args.vocab)
    counter = os.path.join(args.state, "calls")
    calls = int(open(counter, encoding="utf-8").read()) + 1 if os.path.exists(counter) else 1
    with open(counter, "w", encoding="utf-8") as f:
        f.write(str(calls))
    config = dict(block_type="rodimus_plus", d_model=args.d, n_layer=args.layers, vocab_size=args.vocab, norm_epsilon=1e-5, max_position_embeddings=args.context,
                  bos_token_id=0, eos_token_id=1, pad_token_id=1, tie_word_embeddings=True, use_scale_embedding=False, use_norm_embedding=False, residual_in_fp32=True,
                  mixer_cfg=dict(mem_size=args.memory, expand_ratio=2), attn_cfg=dict(num_heads=args.heads, num_heads_k=1, num_heads_v=args.heads, window_size=args.window))

    wall.begins(f"start of {args.workers} workers")
    context = multiprocessing.get_context("spawn")  # nothing of PyTorch, CUDA or the tokenizer's threads is in them
    progress, cases = context.Value("d", float(bool(args.begin))), os.path.join(args.state, "cases.json")
    feed = Feed(context, args.workers, say, progress, tokenizer, args.corpus, args.context, [f"{ROW_SEED} {i} {calls}" for i in range(args.workers)], args.hang)
    jobs.children += feed.children
    if not os.path.exists(cases):
        jobs.children.append(context.Process(target=make_cases, args=(cases, tokenizer, args.heldout, args.cases), daemon=True))
        jobs.children[-1].start()

    wall.begins("import of PyTorch")
    import torch
    if args.hang == "start":
        time.sleep(10 ** 6)
    wall.begins("look for a GPU")
    device = torch.device("cuda" if torch.cuda.device_count() else "cpu")
    names = ["scan_chunks"] if device.type == "cpu" else ["scan_chunks", "attention_varlen", "attention_flash", "scan_fla"]
    names += [] if args.no_compile else ["compile"]
    budget = {n: args.budget for n in names} if args.budget else None
    jobs.checks = checks.Checks(context, [] if args.plain else names, config, (args.rows, args.context), args.fla, say, args.hang, budget)

    wall.begins(f"model on {device}")
    import model as forms
    torch.manual_seed(19)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = forms.Model(config).to(device)
    model.half = torch.bfloat16 if device.type == "cuda" else torch.float32
    n_parameters = sum(w.numel() for w in model.weights)
    say(f"{n_parameters / 1e6:.2f} M parameters on {torch.cuda.get_device_name() if device.type == 'cuda' else 'the CPU'}")
    encoder = Encoder(tokenizer)
    none, call = encoder.ids(skills.NO_TOOL)[0], encoder.ids(skills.call_text("x", {}))[0]
    optimizer, step, spent, history = forms.Muon(model, not args.adam), 0, 0.0, []
    if os.path.exists(checkpoint):
        wall.begins("reading of the checkpoint")
        state = torch.load(checkpoint, map_location=device, weights_only=False)
        with torch.no_grad():
            for w, saved in zip(model.weights, state["weights"]):
                w.copy_(saved)
        optimizer.load(state["optimizer"])
        step, spent, history = state["step"], state["spent"], state["history"]
        progress.value = 1.0 if args.begin else spent / (args.total * 60)
        jobs.notes = {"parameters": n_parameters, "step": step, "seconds": round(spent), "history": history}
        say(f"goes on at step {step}, {spent:.0f} s")
    elif args.begin:
        from safetensors.torch import load_file
        begun = load_file(os.path.join(args.begin, "model.safetensors"))
        with torch.no_grad():
            for name, w in model.tensors().items():
                w.copy_(begun[name])
        say(f"begins from the weights of {args.begin}")

    def save():
        entry = {"step": step, "tokens": step * args.rows * args.context, "seconds": round(spent)}
        jobs.notes = {"parameters": n_parameters, "forms": dict(taken), **entry, "history": history + [entry]}
        if step:
            torch.save({"weights": [w.detach() for w in model.weights], "optimizer": optimizer.state(), "step": step, "spent": spent, "history": history}, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
            write_model(model, config, encoder, tokenizer, args.out, jobs.notes, torch)

    taken = {}
    jobs.save = save
    wall.begins("first batch")
    waiting, waited = [feed.get()], 0.0
    wall.begins(f"wait for self-checks, until {args.wait:.0f} s at most")
    while not jobs.checks.done.is_set() and jobs.checks.open(("attention", "scan")) and time.time() - BEGAN < args.wait:
        time.sleep(0.2)
    stop = wall.end - min(25 if device.type == "cuda" else 20, 0.3 * (wall.end - BEGAN))  # for the evaluation
    if args.finish:
        args.total = (spent + stop - time.time()) / 60
    say(f"training for {stop - time.time():.0f} s, {100 * spent / args.total / 60:.0f} of 100 done")
    wall.begins("first step")
    said, saved, totals, n_said, steps_done, last = time.time(), time.time(), collections.defaultdict(float), 0, 0, time.time()
    while time.time() < stop and spent < args.total * 60 and steps_done < args.steps:
        if args.hang == "step" and steps_done == 3:
            time.sleep(10 ** 6)
        take(model, jobs.checks.confirmed, taken, forms, torch, say, stop - time.time())
        while sum(len(w[0]) for w in waiting) < args.rows:
            t = time.time()
            waiting.append(feed.get())
            waited += time.time() - t
        ids, targets, weights, is_tale = (np.concatenate(x) for x in zip(*waiting))
        waiting = [tuple(x[args.rows:] for x in (ids, targets, weights, is_tale))] if len(ids) > args.rows else []
        ids, targets, weights, is_tale = (torch.from_numpy(x[:args.rows]) for x in (ids, targets, weights, is_tale))
        ids, targets, weights = ids.to(device, non_blocking=True).long(), targets.to(device, non_blocking=True).long(), weights.to(device, non_blocking=True).float()
        keep = torch.where(is_tale.to(device), 1 - args.dropout, 1.0).float().view(-1, 1, 1)
        try:
            loss = model(ids, targets.clamp(min=0), keep)
            total = (loss * weights).sum() / weights.sum()
            total.backward()
        except Exception as fault:  # noqa: BLE001
            if not any(taken.values()):
                raise
            say(f"{type(fault).__name__} {str(fault)[:300]}: plain forms from now on")
            taken.update(attention="", scan="", compile="")
            model.attention, model.scan, model.parts = forms.attention_mask, forms.scan_chunks, dict(forms.PARTS)
            model.zero_grad(set_to_none=True)
            continue
        torch.nn.utils.clip_grad_norm_(model.weights, 1.0)
        optimizer.step(rate_at(args.rate, step, spent / (args.total * 60)))
        model.zero_grad(set_to_none=True)
        if step % 10 == 0 or not steps_done:
            tale, value = is_tale.to(device).view(-1, 1), loss.detach() * (weights > 0)
            totals["tale"] += ((value * tale).sum() / ((weights > 0) * tale).sum().clamp(min=1)).item()
            totals["skill"] += ((value * ~tale).sum() / ((weights > 0) * ~tale).sum().clamp(min=1)).item()
            for skill in FIRST:  # the share right of the first tokens, which decide between a call and none
                first = weights == FIRST[skill] * WEIGHT[skill]
                for what, here in (("none", first & (targets == none)), ("call", first & (targets == call))):
                    totals[skill, what] += ((loss.detach() < 0.693) & here).sum().item()
                    totals[skill, what, "n"] += here.sum().item()
            totals["n"] += 1
        step, steps_done, now = step + 1, steps_done + 1, time.time()
        spent += now - last
        last, progress.value = now, 1.0 if args.begin else spent / (args.total * 60)
        if now - said > 15 or steps_done in (1, 10, 40):
            n = max(1, totals["n"])
            say(f"step {step} {spent:.0f} s {step * args.rows * args.context / 1e6:.1f} M tokens, {(steps_done - n_said) * args.rows * args.context / (now - said) / 1e3:.1f} k/s, "
                f"waited {waited:.1f} s" + (f", tales {totals['tale'] / n:.3f}, skills {totals['skill'] / n:.3f}" if totals["n"] else "")
                + "".join(f", {skill} {what} {totals[skill, what] / max(1, totals[skill, what, 'n']):.3f}" for skill in FIRST for what in ("call", "none")))
            totals.clear()
            feed.look()
            said, n_said, waited = now, steps_done, 0.0
        if steps_done == 1:
            faulthandler.cancel_dump_traceback_later()
            wall.phase = "training"
        if now - saved > 60 or steps_done == 20:
            save()
            saved = last = time.time()
    wall.begins("writing of the model")
    save()
    jobs.stop_checks()
    for child in feed.children:
        child.kill()
    if not step:
        raise RuntimeError("There was no time for a step.")
    wall.begins("evaluation")
    model.parts = dict(forms.PARTS)  # other lengths than a row's: not compiled
    entry, until = jobs.notes["history"][-1], wall.end - min(12, 0.2 * (wall.end - BEGAN))
    if os.path.exists(cases):
        with open(cases, encoding="utf-8") as f:
            evaluate(model, encoder, json.load(f), read_tales(args.heldout), device, torch, until, entry, args.context)
    else:
        say("no held-out cases: they were not made in time")
    history.append(entry)
    notes = {**jobs.notes, **entry, "history": history}
    torch.save({"weights": [w.detach() for w in model.weights], "optimizer": optimizer.state(), "step": step, "spent": spent, "history": history}, checkpoint + ".new")
    os.replace(checkpoint + ".new", checkpoint)
    write_model(model, config, encoder, tokenizer, args.out, notes, torch)
    for skill, result in entry.items():
        say(f"{skill} {json.dumps(result)}")
    say(f"wrote {args.out}")


def main():
    p = argparse.ArgumentParser()
    for name in ("--corpus", "--heldout", "--state", "--out"):
        p.add_argument(name, required=True)
    for name, value in (("--minutes", 8.0), ("--total", 17.0)):
        p.add_argument(name, type=float, default=value)
    for name, value in (("--d", 320), ("--layers", 6), ("--memory", 128), ("--heads", 5), ("--window", 2048), ("--vocab", 4096), ("--context", 2048), ("--rows", 32),
                        ("--workers", 12), ("--cases", 100), ("--steps", 10 ** 9)):
        p.add_argument(name, type=int, default=value)
    p.add_argument("--no-compile", action="store_true", help="do not even try in a child process whether compiling takes less than 40 s")
    p.add_argument("--adam", action="store_true", help="AdamW for the matrices, too")
    p.add_argument("--rate", type=float, default=RATE)
    p.add_argument("--from", dest="begin", metavar="MODEL", help="begins from a model's weights and tokenizer: what grows over a training is grown from the start")
    p.add_argument("--finish", action="store_true", help="the last call: --total is what was spent and what is left of --minutes")
    p.add_argument("--fla", nargs="*", default=[], help="folders with an fla-core, the first that works is used; without: the installed one")
    p.add_argument("--plain", action="store_true", help="no self-checks, no fast forms")
    p.add_argument("--dropout", type=float, default=0.1)
    p.add_argument("--wait", type=float, default=45.0, help="training begins so many seconds after the start, with what is confirmed by then")
    p.add_argument("--hang", default="", help="for tests: worker:NUMBER, check:NAME, start or step hangs")
    p.add_argument("--budget", type=int, default=0, help="for tests: seconds of each self-check")
    args = p.parse_args()
    os.makedirs(args.state, exist_ok=True)
    os.makedirs(args.out, exist_ok=True)
    wall = Wall(args.minutes, os.path.join(args.state, "train.log"))
    say = wall.say
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("SIGTERM"))
    jobs = Jobs()
    try:
        train(args, wall, say, jobs)
        status = 0
    except BaseException as fault:  # noqa: BLE001: what there is is written
        say(f"{type(fault).__name__} in the phase {wall.phase}: {fault}")
        faulthandler.cancel_dump_traceback_later()
        traceback.print_exc()
        status = 1
        try:
            jobs.write(f"{wall.phase}: {type(fault).__name__} {fault}")
        except Exception:  # noqa: BLE001
            traceback.print_exc()
    say(f"ends with status {status}")
    jobs.stop()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
