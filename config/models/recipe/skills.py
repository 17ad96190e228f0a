#!/usr/bin/env python3
"""Samples of skills whose answer can be checked: tools and chains of them (calls.py, agents.py), extraction, edits, recall, sums, fill in the middle, system prompts.

skills.py heldout HELDOUT.txt TOKENIZER.json OUT [N]   the held-out cases of every skill, N (500, of several calls 200) each, as OUT/SKILL.jsonl
skills.py show SKILL CORPUS.txt [N]                    some samples as text

A sample is {"skill", "messages", "answer"}, or {"skill": "fim", "prompt", "suffix", "answer"}. An assistant message in "messages" is an
answer to learn, too. Names and fillers come from pools that a hash splits in two: "train" and "heldout" share no name, tool or filler."""
import json
import os
import random
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from agents import agent, chain, second  # noqa: E402
from calls import NO_TOOL, TOOLS_HEAD, TOOLS_TAIL, call_text, choose, tools  # noqa: E402, F401
from fillers import Bank, DAYS, Pool, SEASONS, a, count, is_held, words_of  # noqa: E402

ROLES = {"system": "<role>SYSTEM</role>", "user": "<role>HUMAN</role>", "assistant": "<role>ASSISTANT</role>", "tool": "<role>OBSERVATION</role>"}


def render(messages):
    """The text of messages as the server renders them, up to the place of the answer."""
    return "".join(ROLES[m["role"]] + m["content"] for m in messages) + ROLES["assistant"]


def sent(messages):
    """The messages as a client sends them: a result without its tags, which the server puts around it."""
    return [{**m, "content": m["content"].strip()[len("<tool_response>\n"):-len("\n</tool_response>")]} if m["role"] == "tool" else m for m in messages]


def tools_of(system):
    """A system text that lists tools as a client sends it: messages before the others, and the tools."""
    before, _, listed = system.partition(TOOLS_HEAD)
    before = before.strip()
    return {"system": [{"role": "system", "content": before}] if before else [], "tools": [json.loads(line) for line in listed[:listed.index("\n</tools>")].strip().split("\n")]}


# ---- tales that are made, so that all about them is known ----
PLAN = {  # key: sentences that tell of it; {x_a} has its article, {X_a} a capital one
    "hero": ["Once upon a time there lived in {home} {kind_a} called {hero}.", "There was once {kind_a}, whose name was {hero}, in the village of {home}.",
             "In {home} there lived {kind_a}, and {hero} was the name of it.", "Long ago {kind_a} called {hero} had a small house in {home}."],
    "friend": ["{hero}'s best friend was {fkind_a} called {friend}.", "Next door lived {fkind_a}, whose name was {friend}.",
               "{hero} had one friend only, {fkind_a} called {friend}."],
    "item": ["{hero} owned nothing but {item_a}.", "One morning {hero} found {item_a} under a tree.", "The most precious thing that {hero} had was {item_a}."],
    "count": ["In the {spot} there were {n} {things}, and {hero} counted them each night.", "{hero} kept {n} {things} in the {spot}.",
              "Every evening {hero} went to the {spot}, where {n} {things} lay."],
    "day": ["On {day} {hero} set out for {goal}.", "One {day} {hero} said farewell and walked to {goal}.", "When {day} came, {hero} took the road to {goal}."],
    "meet": ["On the bridge {hero} met {tkind_a} called {third}.", "Half-way there {tkind_a} sat by the road. It was called {third}.",
             "Then {tkind_a}, whose name was {third}, came out of the wood."],
    "price": ["{third} sold {hero} {bought_a} for {cost} coins.", "At the market {hero} paid {cost} coins for {bought_a}.", "There {hero} bought {bought_a}, which cost {cost} coins."],
    "ask": ["'Come with me, {hero},' said {friend}, 'for I know the way.'", "'What have you there, {hero}?' asked {friend}.", "{friend} laughed and gave {hero} a piece of bread."],
    "speak": ["'Good day, {third},' said {hero}.", "'I have walked far,' said {hero} to {third}.", "{hero} and {third} sat down together and ate."],
    "show": ["{hero} showed the {item} to {friend}.", "'The {item} is mine,' said {hero}.", "{friend} looked long at the {item} and said nothing."],
    "back": ["At last {hero} came home to {home}, and it was {season}.", "In the {season} {hero} was in {home} again.", "So {hero} and {friend} lived in {home}, and every {season} they danced."],
}
ORDER = list(PLAN)
NEEDS = {"ask": "friend", "show": "item", "speak": "meet"}


class Tale:
    """Facts, and sentences that tell them. text() of changed facts is the edited tale."""

    def __init__(self, rng, pool, bank, padding=(0, 4), keys=None):
        self.rng, self.pool = rng, pool
        hero, friend, third = pool.names(rng, 3)
        home, goal = pool.some_places(rng, 2)
        kind, fkind, tkind = (k.replace("_", " ") for k in pool.some(rng, pool.kinds, 3))
        item, bought = (f"{pool.one(rng, pool.looks)} {i}" for i in pool.some(rng, pool.items, 2))
        self.facts = dict(hero=hero, friend=friend, third=third, home=home, goal=goal, kind=kind, fkind=fkind, tkind=tkind, item=item, bought=bought,
                          n=rng.randint(2, 99 if rng.random() < 0.3 else 12), things=pool.one(rng, pool.things), spot=pool.one(rng, pool.spots), day=rng.choice(DAYS),
                          cost=rng.randint(2, 99), season=rng.choice(SEASONS))
        keys = keys or [k for k in ORDER if k == "hero" or rng.random() < 0.75]
        keys = [k for k in keys if NEEDS.get(k, "hero") in keys]
        if "friend" not in keys:
            keys = [k for k in keys if k not in ("ask", "show", "back")]
        if "meet" not in keys:
            keys = [k for k in keys if k not in ("price", "speak")]
        self.keys = keys
        self.sentences = [rng.choice(PLAN[k]) for k in keys]
        for _ in range(rng.randint(*padding)):
            self.sentences.insert(rng.randint(1, len(self.sentences)), bank.sentence(rng).replace("{", "").replace("}", ""))
        self.breaks = [rng.random() < 0.2 for _ in self.sentences]

    def text(self, **changed):
        f = {**self.facts, **changed}
        words = {**f, "n": count(f["n"]), "cost": count(f["cost"])}
        words.update({k + "_a": a(f[k]) for k in ("kind", "fkind", "tkind", "item", "bought")})
        out = "".join(s.format(**words) + ("\n" if b else " ") for s, b in zip(self.sentences, self.breaks))
        return out.strip()

    def tells(self, fact):
        text, f = " ".join(self.sentences), fact
        return re.search(r"\{" + f + r"(_a)?\}", text) is not None


# ---- extraction ----
FIELDS = {  # fact: names of a property, its type
    "hero": (["hero", "main_character", "name"], "string"), "kind": (["hero_kind", "species"], "string"), "friend": (["friend", "companion"], "string"),
    "fkind": (["friend_kind"], "string"), "home": (["home", "village"], "string"), "item": (["possession", "treasure"], "string"), "n": (["count", "number"], "integer"),
    "things": (["things", "counted"], "string"), "spot": (["where_kept", "spot"], "string"), "day": (["day", "weekday"], "string"),
    "goal": (["destination", "goal"], "string"), "third": (["stranger", "met"], "string"), "tkind": (["stranger_kind"], "string"),
    "cost": (["price", "coins"], "integer"), "bought": (["bought", "purchase"], "string"), "season": (["season"], "string")}


def extraction(rng, pool, bank):
    tale = Tale(rng, pool, bank)
    told = [f for f in FIELDS if tale.tells(f)]
    picked = rng.sample(told, min(len(told), rng.randint(1, 6)))
    names = [pool.key(rng, rng.choice(FIELDS[f][0])) for f in picked]
    schema = {"type": "object", "properties": {n: {"type": FIELDS[f][1]} for n, f in zip(names, picked)}, "required": names}
    ask = rng.choice(["Read the tale and answer with JSON of this schema: {}", "Extract the facts as JSON of this schema: {}", "Fill in this JSON schema from the tale: {}"])
    ask = ask.format(json.dumps(schema))
    text = tale.text()
    content = f"{ask}\n\n{text}" if rng.random() < 0.7 else f"{text}\n\n{ask}"
    return {"skill": "extraction", "messages": [{"role": "user", "content": content}],
            "answer": json.dumps({n: tale.facts[f] for n, f in zip(names, picked)}, ensure_ascii=False)}


# ---- edits ----
def edit_made(rng, pool, bank):
    while True:
        tale = Tale(rng, pool, bank, padding=(1, 12))
        if 380 <= len(tale.text()) <= 1500:
            break
    f = tale.facts
    new = {"hero": pool.name(rng, f.values()), "friend": pool.name(rng, f.values()), "third": pool.name(rng, f.values()),
           "home": pool.place(rng), "goal": pool.place(rng), "item": f"{pool.one(rng, pool.looks)} {pool.one(rng, pool.items)}",
           "bought": f"{pool.one(rng, pool.looks)} {pool.one(rng, pool.items)}", "n": rng.randint(2, 12), "cost": rng.randint(2, 99), "day": rng.choice(DAYS), "season": rng.choice(SEASONS)}
    said = {"hero": "the {kind} is called {}", "friend": "the {fkind} is called {}", "third": "the {tkind} is called {}", "home": "{home} is called {}",
            "goal": "{goal} is called {}", "item": "{hero} has {_} instead of the {item}", "bought": "{hero} buys {_}", "n": "there are {n_} {things}",
            "cost": "the price is {n_} coins", "day": "it is a {}", "season": "it ends in the {}"}
    can = [k for k in new if tale.tells(k) and new[k] != f[k]]
    names = [k for k in can if k in ("hero", "friend", "third")]
    picked = rng.sample(names if rng.random() < 0.6 else can, 1)
    if rng.random() < 0.15 and len(can) > 1:
        picked = rng.sample(can, 2)
    what = " and ".join(said[k].format(new[k], _=a(str(new[k])), n_=count(new[k]) if isinstance(new[k], int) else "", **f) for k in picked)
    return what, tale.text(), tale.text(**{k: new[k] for k in picked})


WORDS = "king queen prince princess fox wolf bear cat dog bird horse boy girl man woman mother father brother sister house castle forest tree door child witch giant lion".split()


def edit_real(rng, pool, bank):
    while True:
        text = bank.piece(rng, rng.randint(380, 1450))
        names = [w for w in set(re.findall(r"(?<=[a-z,;] )[A-Z][a-z]{2,}\b", text)) if len(re.findall(rf"\b{w}\b", text)) > 1]
        words = [w for w in WORDS if len(re.findall(rf"\b{w}\b", text)) > 1]
        if not names and not words:
            continue
        if names and (not words or rng.random() < 0.7):
            old, new, what = rng.choice(sorted(names)), pool.name(rng), "{old} is called {new}"
        else:
            old, new, what = rng.choice(words), pool.one(rng, pool.kinds).replace("_", " "), 'it says "{new}" instead of "{old}"'
        if new not in text:
            return what.format(old=old, new=new), text, re.sub(rf"\b{old}\b", new, text)


def edit(rng, pool, bank):
    what, text, answer = (edit_made if rng.random() < 0.5 else edit_real)(rng, pool, bank)
    ask = rng.choice(["Tell the same tale, but {}.", "The same tale, but {}.", "Write this tale again, but {}."]).format(what)
    return {"skill": "edit", "messages": [{"role": "user", "content": f"{ask}\n\n{text}"}], "answer": answer}


# ---- recall ----
SAID = [("My {} is called {}.", "What is my {} called?", "Your {} is called {}."), ("The name of my {} is {}.", "What is the name of my {}?", "The name of your {} is {}."),
        ("The password of the {} is {}.", "What is the password of the {}?", "The password of the {} is {}."),
        ("The owner of the {} is {}.", "Who is the owner of the {}?", "The owner of the {} is {}."),
        ("The secret word for the {} is {}.", "What is the secret word for the {}?", "The secret word for the {} is {}.")]
REMEMBERED = "I will remember it."


def facts_of(rng, pool, n):
    """n times: what is said, what is asked, what is answered, the name."""
    out = []
    for what, name in zip(pool.some(rng, sorted({*pool.owned, *pool.spots}), n), pool.names(rng, n)):
        say, ask, answer = rng.choice(SAID)
        out.append((say.format(what, name), ask.format(what), answer.format(what, name), name))
    return out


def recall(rng, pool, bank, chars=None, form=None):
    """One name, said `chars` characters of tales before it is asked for: in one message, or as several turns."""
    chars = chars or rng.randint(600, 7000)
    form = form or rng.choice(["one", "turns", "turns"])
    (say, ask, answer, name), = facts_of(rng, pool, 1)
    if form == "one":
        hay = bank.piece(rng, chars)
        before = bank.piece(rng, rng.randint(100, 400)) + "\n" if rng.random() < 0.3 else ""
        messages = [{"role": "user", "content": f"{before}{say}\n\n{hay}\n\n{ask}"}]
    else:
        messages = [{"role": "user", "content": say}, {"role": "assistant", "content": REMEMBERED}]
        left = chars
        while left > 0:
            part = left if left < 500 else rng.randint(300, left)
            messages += [{"role": "user", "content": "Read this tale.\n\n" + bank.piece(rng, part)}, {"role": "assistant", "content": "I have read it."}]
            left -= part + 60
        messages += [{"role": "user", "content": ask}]
    return {"skill": "recall", "form": form, "name": name, "messages": messages, "answer": answer}


def recall_many(rng, pool, bank, chars=6500):
    """For training: many names among tales, asked for at every distance."""
    facts, said, messages = facts_of(rng, pool, rng.randint(2, 10)), [], []
    left = chars
    while left > 0:
        if len(said) < len(facts) and (not said or rng.random() < 0.5):
            new = facts[len(said):len(said) + rng.choice([1, 1, 2])]
            said += new
            messages += [{"role": "user", "content": " ".join(f[0] for f in new)}, {"role": "assistant", "content": REMEMBERED}]
            left -= 120
        if rng.random() < 0.5:
            part = min(left, rng.randint(200, 2500))
            messages += [{"role": "user", "content": "Read this tale.\n\n" + bank.piece(rng, max(part, 80))}, {"role": "assistant", "content": "I have read it."}]
            left -= part + 60
        if said and rng.random() < 0.5:
            fact = rng.choice(said)
            messages += [{"role": "user", "content": fact[1]}, {"role": "assistant", "content": fact[2]}]
            left -= 120
    fact = rng.choice(said)
    return {"skill": "recall", "form": "many", "name": fact[3], "messages": messages + [{"role": "user", "content": fact[1]}], "answer": fact[2]}


# ---- sums ----
def sums(rng, pool, bank):
    while True:
        x, y, plus = rng.randint(0, 99), rng.randint(0, 99), rng.random() < 0.6
        if is_held(f"{x} {y}") == (pool.split == "heldout") and (plus or x >= y):
            break
    z = x + y if plus else x - y
    if rng.random() < 0.5:
        return {"skill": "sums", "messages": [{"role": "user", "content": rng.choice(["What is {} {} {}?", "{} {} {} =", "How much is {} {} {}?"]).format(x, "+" if plus else "-", y)}],
                "answer": str(z)}
    name, things = pool.name(rng), pool.one(rng, pool.things)
    ask = f"{name} has {x} {things} and {'finds' if plus else 'loses'} {y} of them. How many {things} has {name} now?" if not plus else \
          f"{name} has {x} {things} and finds {y} more. How many {things} has {name} now?"
    return {"skill": "sums", "messages": [{"role": "user", "content": ask}], "answer": f"{name} has {z} {things}."}


# ---- words ----
def words(rng, pool, bank):
    """For training: words to write as JSON or in upper case (there with names that nobody has), those of the held-out pools, too. A token that never occurs is never learnt, and some words have
    one of their own behind a quote."""
    form = rng.choice(["list", "list", "object", "upper"])
    some = [pool.place(rng) if form == "upper" and rng.random() < 0.3 else rng.choice(pool.all_words) for _ in range(rng.randint(2, 12))]
    said = ", ".join(some)
    if form == "upper":
        return {"skill": "words", "messages": [{"role": "user", "content": f"Write in upper case: {said}"}], "answer": said.upper()}
    if form == "list":
        return {"skill": "words", "messages": [{"role": "user", "content": f"Write as a JSON list: {said}"}], "answer": json.dumps(some)}
    keys = [f"{chr(97 + i)}" for i in range(len(some))]
    return {"skill": "words", "messages": [{"role": "user", "content": f"Write as a JSON object with the keys {', '.join(keys)}: {said}"}], "answer": json.dumps(dict(zip(keys, some)))}


# ---- fill in the middle ----
def fim(rng, pool, bank):
    """A refrain that is sung three times: the hole is one of them."""
    tale = Tale(rng, pool, bank, padding=(1, 4))
    f = tale.facts
    song = rng.choice(["{i}, {i}, come to {p}", "Over the {s} and under the {s} runs {n}", "Give me your {i}, {n}, and I will show you {p}", "{n}, {n}, where is the {i}",
                       "The {s} of {p} has {t}, {t} and no more"]).format(i=pool.one(rng, pool.items), p=pool.place(rng), s=pool.one(rng, pool.spots), n=pool.name(rng),
                                                                         t=pool.one(rng, pool.things))
    song = song[0].upper() + song[1:]
    sentences = tale.text().replace("\n", " ").split(". ")
    places = sorted(rng.sample(range(1, len(sentences) + 2), 3)) if len(sentences) > 2 else [1, 1, 1]
    for i in reversed(places):
        sentences.insert(i, f'Then {rng.choice(["a voice", f["hero"], "the wind", "somebody"])} sang: "{song}!" And all was still')
    text = ". ".join(sentences)
    spots = [m.start() for m in re.finditer(re.escape(song), text)]
    at = rng.choice(spots)
    return {"skill": "fim", "prompt": text[:at], "suffix": text[at + len(song):], "answer": song}


def fim_real(rng, pool, bank):
    """For training: any hole in a real tale."""
    text = bank.piece(rng, rng.randint(300, 1600))
    cuts = [m.start() for m in re.finditer(r"(?<=\w)\b", text[:-20])] or [1]
    start = rng.choice(cuts)
    end = min(len(text), start + rng.choice([rng.randint(3, 30), rng.randint(20, 200)]))
    end = min([c for c in cuts if c >= end], default=len(text))
    return {"skill": "fim", "prompt": text[:start], "suffix": text[end:], "answer": text[start:end]}


# ---- system prompts ----
ONE_WORD = ["Answer with one word.", "Reply with one word only.", "Use a single word for your answer.", "One word answers only."]
CAPITALS = ["Answer in upper case.", "Write in capital letters.", "Answer in capital letters only.", "Use upper case for everything."]
LIST = ["Answer with a list.", "Answer as a list, one item a line.", "Write lists, with a dash before each item.", "Always answer in a list."]
QUESTIONS = {"hero": ("What is the {kind} called?", "The {kind} is called {hero}."), "friend": ("What is the {fkind} called?", "The {fkind} is called {friend}."),
             "third": ("What is the {tkind} called?", "The {tkind} is called {third}."), "home": ("Where does {hero} live?", "{hero} lives in {home}."),
             "goal": ("Where does {hero} go?", "{hero} goes to {goal}."), "day": ("On what day does {hero} leave?", "{hero} leaves on {day}."),
             "item": ("What does {hero} have?", "{hero} has the {item}."), "cost": ("How many coins does the {bought} cost?", "It costs {cost} coins."),
             "n": ("How many {things} are there?", "There are {n} {things}."), "season": ("In what season does the tale end?", "The tale ends in {season}.")}


def system(rng, pool, bank):
    tale = Tale(rng, pool, bank, padding=(0, 2))
    f, style = tale.facts, rng.choice(["plain", "word", "upper", "list", "upper list"])
    words = {**f, "n": count(f["n"]), "cost": count(f["cost"])}
    if "list" in style:
        groups = {"Who is in the tale?": ["hero", "friend", "third"], "Which places are in the tale?": ["home", "goal"], "Which things of value are in the tale?": ["item", "bought"]}
        text = " ".join(tale.sentences)
        ask = rng.choice([q for q, fs in groups.items() if any(tale.tells(x) for x in fs)])
        told = sorted((x for x in groups[ask] if tale.tells(x)), key=lambda x: re.search(r"\{" + x + r"(_a)?\}", text).start())
        answer = "\n".join("- " + f[x] for x in told)
        prompt = rng.choice(LIST) + (" " + rng.choice(CAPITALS) if "upper" in style else "")
    else:
        can = [k for k in QUESTIONS if tale.tells(k) and not (style == "word" and k == "item") and not (k == "cost" and not tale.tells("bought"))]
        key = rng.choice(can)
        ask, answer = (s.format(**words) for s in QUESTIONS[key])
        if style == "word":
            answer = str(words[key])
        prompt = {"plain": "", "word": rng.choice(ONE_WORD), "upper": rng.choice(CAPITALS)}[style]
    if "upper" in style:
        answer = answer.upper()
    messages = [{"role": "system", "content": prompt}] if prompt else []
    return {"skill": "system", "form": style, "messages": messages + [{"role": "user", "content": f"{tale.text()}\n\n{ask}"}], "answer": answer}


MAKERS = {"tools": tools, "extraction": extraction, "edit": edit, "recall": recall, "sums": sums, "fim": fim, "system": system, "second": second, "chain": chain, "agent": agent}
TALKS = "second", "chain", "agent"  # each answer of the conversation counts, not the last alone


# ---- checks ----
def check(sample, answer):
    """Whether the answer is the expected one, exactly; JSON may have other white space."""
    want, got = sample["answer"], answer
    if sample["skill"] == "fim":
        return got == want
    got = got.strip()
    if sample["skill"] == "extraction":
        return same_json(want, got)
    if want.startswith("<tool_call>"):
        call = re.fullmatch(r"<tool_call>\s*(.*?)\s*</tool_call>", got, re.S)
        return bool(call) and same_json(want[len("<tool_call>\n"):-len("\n</tool_call>")], call.group(1))
    return got == want


def same_json(want, got):
    try:
        return json.dumps(json.loads(want), sort_keys=True) == json.dumps(json.loads(got), sort_keys=True)
    except ValueError:
        return False


# ---- held-out cases ----
DISTANCES = (200, 500, 1000, 2000, 4000, 8000)  # tokens between a name's end and the question


def recall_at(rng, pool, bank, distance, count_tokens):
    """A case whose name was said `distance` tokens before the answer begins, within 2 in 100."""
    chars = int(distance * 3.9)
    for _ in range(40):
        case = recall(rng, pool, bank, max(chars, 60), rng.choice(["one", "turns"]))
        text = render(case["messages"])
        n = count_tokens(text[text.index(case["name"]) + len(case["name"]):])
        if abs(n - distance) <= max(10, distance // 50):
            return {**case, "skill": f"recall-{distance}", "distance": n}
        chars = max(60, chars + int((distance - n) * rng.uniform(3.0, 4.4)))
    return {**case, "skill": f"recall-{distance}", "distance": n}


def heldout(tales_path, tokenizer_path, out, n):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(tokenizer_path)
    with open(tales_path, encoding="utf-8") as f:
        bank = Bank(f.read().split("\n<|endoftext|>\n"))
    pool = Pool("heldout")
    os.makedirs(out, exist_ok=True)
    makers = {k: m for k, m in MAKERS.items() if k != "recall"}
    makers.update({f"recall-{d}": lambda r, p, b, d=d: recall_at(r, p, b, d, lambda t: len(tokenizer.encode(t).ids)) for d in DISTANCES})
    for skill, maker in makers.items():
        rng = random.Random("heldout " + skill)
        with open(os.path.join(out, skill + ".jsonl"), "w", encoding="utf-8") as f:
            for _ in range(min(n, 200) if skill in TALKS else n):
                f.write(json.dumps(maker(rng, pool, bank), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "heldout":
        heldout(sys.argv[2], sys.argv[3], sys.argv[4], int((sys.argv + ["500"])[5]))
    else:
        with open(sys.argv[3], encoding="utf-8") as corpus:
            text = Bank(corpus.read().split("\n<|endoftext|>\n"))
        chance, train = random.Random(), Pool("train", words_of(text.tales))
        for _ in range(int((sys.argv + ["3"])[4])):
            one = MAKERS[sys.argv[2]](chance, train, text)
            print(render(one["messages"]) if "messages" in one else one["prompt"] + "[HOLE]" + one["suffix"], "\n  =>", one["answer"], "\n" + 80 * "-")
