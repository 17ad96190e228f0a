#!/usr/bin/env python3
"""make_cases.py MODEL CASES: writes MODEL/generation_cases.json and MODEL/tokenizer_cases.json, which the engine's tests compare with.

Log-probabilities and greedy answers are computed in float64 by ../../../tests/vectors/reference.py; ids are those of the package tokenizers. CASES is the
folder of skills.py heldout: one tool call, extraction, edit, hole and a name beyond the window become prompts. Needs numpy and tokenizers; some minutes."""
import itertools
import json
import os
import sys

import numpy as np
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "..", "tests", "vectors")]
import skills  # noqa: E402
from reference import Reference  # noqa: E402

N_GREEDY = 48
TOO_CLOSE = 1e-3  # nats between the first and the second: fp32 may choose the other
N_TRIES = 6  # prompts of a skill, until one has no such place


def prompts(cases):
    """For each skill some texts, of which one is enough."""
    yield ["Once upon a time there was a king who had three sons.", "There was once a", "The fox said to the raven"]
    for skill in ("tools", "extraction", "edit", "fim", "recall-2000"):
        with open(os.path.join(cases, skill + ".jsonl"), encoding="utf-8") as f:
            some = list(itertools.islice((c for c in map(json.loads, f) if c.get("form", "") in ("", "call", "one")), N_TRIES))
        yield [skills.render(c["messages"]) if "messages" in c else f"<|fim_begin|>{c['prompt']}<|fim_hole|>{c['suffix']}<|fim_end|>" for c in some]


def log_softmax(logits):
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


def generation_case(reference, tokenizer, text):
    ids = tokenizer.encode(text).ids
    state = reference.zero_state()
    rows = log_softmax(reference.logits(ids, state))
    best = np.argsort(-rows[-1])[:5]
    greedy, found, row = [], [], rows[-1]
    while len(greedy) < N_GREEDY:
        two = np.partition(row, -2)[-2:]
        if two[1] - two[0] < TOO_CLOSE:
            return None
        greedy.append(int(row.argmax()))
        found.append(float(row[greedy[-1]]))
        row = log_softmax(reference.logits(greedy[-1:], state, len(ids) + len(greedy) - 1))[0]
    return {"prompt": text, "prompt_ids": ids, "prompt_logprobs": [None] + [float(rows[i][t]) for i, t in enumerate(ids[1:])],
            "next_top5": [[int(t), float(rows[-1][t])] for t in best], "greedy_ids": greedy, "greedy_text": tokenizer.decode(greedy, skip_special_tokens=False),
            "greedy_logprobs": found}


def main(model, cases):
    tokenizer, reference = Tokenizer.from_file(os.path.join(model, "tokenizer.json")), Reference(model)
    made = []
    for texts in prompts(cases):
        for text in texts:
            case = generation_case(reference, tokenizer, text)
            print(f"{text[:60]!r}, {len(tokenizer.encode(text).ids)} tokens: " + (repr(case["greedy_text"][:90]) if case else "left out: two tokens are too close"), flush=True)
            if case:
                made.append(case)
                break
    with open(os.path.join(HERE, "..", "tales", "tokenizer_cases.json"), encoding="utf-8") as f:
        texts = [c["text"] for c in json.load(f)]
    texts += ['{"name": "get_weather", "arguments": {"city": "Selmill"}}', "<tool_call>\n</tool_call>", "<|fim_begin|>a<|fim_hole|>b<|fim_end|>"]
    cut = [tokenizer.encode(t).ids for t in texts]
    cut = [{"text": t, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)} for t, ids in zip(texts, cut)]
    for name, value in (("generation_cases", made), ("tokenizer_cases", cut)):
        with open(os.path.join(model, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(value, f)
            f.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
