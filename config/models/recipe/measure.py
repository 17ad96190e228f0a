#!/usr/bin/env python3
"""measure.py URL CASES HELDOUT.txt OUT.json [SKILL...] [--at-once 8] [--limit N]: the held-out cases, greedily, through a running server.

CASES is a folder of skills.py heldout. Chats go to /v1/chat/completions, holes to /v1/completions with suffix; a case of recall in several turns is one
session, whose turns bring only what is new. A case of several calls is a conversation with `tools`: each answer of the model is checked and sent back, and the
case's results follow; it is right if all answers are. HELDOUT's tales are scored with echo. Needs nothing but Python; RODIMUS_API_KEY is sent if it is set."""
import argparse
import collections
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import skills  # noqa: E402

TOKENS_OF_ANSWER = {"edit": 700}
MODEL = {"model": None}


def post(url, path, body, method="POST"):
    headers = {"Content-Type": "application/json"}
    if os.environ.get("RODIMUS_API_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["RODIMUS_API_KEY"]
    data = json.dumps({**MODEL, **body}).encode() if body is not None else None
    request = urllib.request.Request(url + path, data, headers, method=method)
    for attempt in range(6):
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as fault:
            said = fault.read().decode(errors="replace")
            if fault.code not in (429, 503) or attempt == 5:
                raise RuntimeError(f"{path}: {fault.code} {said[:300]}") from fault
            time.sleep(1 + attempt)
    return None


def answer_of(url, case, number):
    greedy = {"temperature": 0, "max_tokens": TOKENS_OF_ANSWER.get(case["skill"], 160)}
    if case["skill"] == "fim":
        return post(url, "/v1/completions", {**greedy, "prompt": case["prompt"], "suffix": case["suffix"]})["choices"][0]["text"]
    if case["skill"].startswith("recall") and case["form"] == "turns":
        return session_answer(url, case, greedy, number)
    return post(url, "/v1/chat/completions", {**greedy, "messages": skills.sent(case["messages"])})["choices"][0]["message"]["content"]


def session_answer(url, case, greedy, number):
    """What was said so far is one turn that generates nothing; the question is the next and brings itself only."""
    name = f"measure-{os.getpid()}-{case['skill']}-{number}"
    turn = {"session_id": name, "session_create": True}
    try:
        text = skills.render(case["messages"][:-1])[:-len(skills.ROLES["assistant"])]
        post(url, "/v1/completions", {**turn, "prompt": text, "max_tokens": 0})
        return post(url, "/v1/chat/completions", {**greedy, "session_id": name, "messages": case["messages"][-1:]})["choices"][0]["message"]["content"]
    finally:
        try:
            post(url, f"/v1/sessions/{name}", None, "DELETE")
        except RuntimeError:
            pass


def as_text(message):
    calls = message.get("tool_calls") or []
    try:
        return "".join(skills.call_text(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls) or message["content"] or ""
    except ValueError:
        return json.dumps(calls)


def talk(url, case):
    """The first wrong answer and the expected one (None, None: all are right), and the names of the right ones."""
    head, sent, right, n_calls = skills.tools_of(case["messages"][0]["content"]), [], [], 0
    for m in skills.sent(case["messages"][1:]) + [{"role": "assistant", "content": case["answer"]}]:
        if m["role"] != "assistant":
            sent.append({**m, "tool_call_id": sent[-1]["tool_calls"][0]["id"]} if m["role"] == "tool" else m)
            continue
        is_call = m["content"].startswith("<tool_call>")
        n_calls += is_call
        body = {"temperature": 0, "max_tokens": 160, "messages": head["system"] + sent, "tools": head["tools"]}
        message = post(url, "/v1/chat/completions", body)["choices"][0]["message"]
        if not skills.check({"skill": case["skill"], "answer": m["content"]}, as_text(message)):
            return as_text(message), m["content"], right
        right.append(f"call {n_calls}" if is_call else f"answer behind call {n_calls}")
        sent.append({k: message[k] for k in ("role", "content", "tool_calls") if message.get(k) is not None})
    return None, None, right


def measure(url, path, at_once, limit):
    with open(path, encoding="utf-8") as f:
        cases = [json.loads(line) for line in f][:limit]
    forms, steps, wrong, lock = collections.Counter(), collections.Counter(), [], threading.Lock()

    def one(numbered):
        number, case = numbered
        if case["skill"] in skills.TALKS:
            got, expected, passed = talk(url, case)
            right = expected is None
        else:
            got, expected, passed = answer_of(url, case, number), case["answer"], []
            right = skills.check(case, got or "")
        with lock:
            forms[case.get("form", ""), right] += 1
            steps.update(passed)
            if not right and len(wrong) < 5:
                wrong.append({"expected": expected[:400], "got": (got or "")[:400]})
    begin = time.time()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, enumerate(cases)))
    n = sum(v for (_, right), v in forms.items() if right)
    by_form = {}
    for form in sorted({f for f, _ in forms if f}):
        by_form[form] = [forms[form, True], forms[form, True] + forms[form, False]]
    return {"cases": len(cases), "right": n, "percent": round(100 * n / len(cases), 1), "forms_right_of": by_form, **({"answers_right": dict(sorted(steps.items()))} if steps else {}), "seconds": round(time.time() - begin, 1), "some_wrong": wrong}


def nats_a_character(url, path):
    """Of each tale as one prompt, without a frame; its first token has no probability and no part in the sum."""
    with open(path, encoding="utf-8") as f:
        tales = f.read().split("\n<|endoftext|>\n")
    nats = chars = tokens = 0
    for tale in tales:
        found = post(url, "/v1/completions", {"prompt": tale, "max_tokens": 0, "echo": True, "logprobs": 0})["choices"][0]["logprobs"]
        nats -= sum(found["token_logprobs"][1:])
        tokens += len(found["tokens"]) - 1
        chars += len(tale) - len(found["tokens"][0])
    return {"tales": len(tales), "characters": chars, "tokens": tokens, "nats_a_character": round(nats / chars, 4), "perplexity_a_token": round(2.718281828459045 ** (nats / tokens), 2)}


def main():
    p = argparse.ArgumentParser()
    for name in ("url", "cases", "heldout", "out"):
        p.add_argument(name)
    p.add_argument("skill", nargs="*")
    p.add_argument("--at-once", type=int, default=8)
    p.add_argument("--limit", type=int, default=500)
    args = p.parse_args()
    MODEL["model"] = post(args.url, "/v1/models", None, "GET")["data"][0]["id"]
    found = {"what": "held-out cases of the demo model's skills, greedy, through HTTP", "model": MODEL["model"], "date": time.strftime("%Y-%m-%d"),
             "commit": post(args.url, "/version", None, "GET")["commit"], "command": "config/models/recipe/measure.py",
             "window_dtype": post(args.url, "/server_info", None, "GET").get("window_dtype"), "skills": {}}
    for name in sorted(os.listdir(args.cases)):
        skill = name[:-len(".jsonl")]
        if name.endswith(".jsonl") and (not args.skill or skill in args.skill):
            found["skills"][skill] = result = measure(args.url, os.path.join(args.cases, name), args.at_once, args.limit)
            print(f"{skill:14} {result['right']:4} of {result['cases']:4}  {result['percent']:5.1f} %  {result['seconds']:6.1f} s  {result['forms_right_of'] or ''} {result.get('answers_right', '')}", flush=True)
    if not args.skill or "tales" in args.skill:
        found["tales"] = nats_a_character(args.url, args.heldout)
        print(f"{'tales':14} {found['tales']['nats_a_character']} nats a character")
    with open(args.out, "w", encoding="utf-8") as f:
        json.dump(found, f, indent=1, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
