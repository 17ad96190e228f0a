"""Samples of one tool call: tools with descriptions, wishes that ask for them, results and the sentences that say them."""
import json

from fillers import COLOURS, DAYS, MONTHS, VERBS, a

TOOLS_HEAD = ("# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
              "You are provided with function signatures within <tools></tools> XML tags:\n<tools>")
TOOLS_TAIL = ("\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n"
              "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>")
NO_TOOL = "None of the tools can do that."
PARAMETERS = [  # names of a parameter, its type, how a request says it
    (["city", "place", "town", "location"], "string", ["in {}", "at {}"], "place"), (["person", "name", "guest", "who"], "string", ["for {}", "with {}"], "name"),
    (["day", "date", "weekday"], "string", ["on {}"], "day"), (["time", "hour", "at"], "string", ["at {}"], "time"),
    (["count", "number", "amount", "quantity"], "integer", ["{} times", "{} of them"], "number"), (["colour", "color", "paint"], "string", ["in {}"], "colour"),
    (["title", "text", "words", "content"], "string", ["that says \"{}\"", "with the words \"{}\""], "phrase"), (["item", "object", "thing"], "string", ["with {}", "along with {}"], "item"),
    (["month"], "string", ["in {}"], "month"), (["price", "budget", "limit"], "integer", ["for at most {} coins", "for {} coins"], "number"),
    (["from", "start", "origin"], "string", ["from {}"], "place"), (["to", "goal", "destination"], "string", ["to {}"], "place"),
    (["minutes", "duration", "length"], "integer", ["for {} minutes"], "number")]
RESULT_KEYS = "answer colour cost distance height length message name number owner place price size state status temperature time title total weight".split()
RESULT_KINDS = {"place": "place", "name": "name", "owner": "name", "colour": "colour", "title": "phrase", "message": "phrase", "time": "time",
                "answer": "item", "state": "colour", "status": "colour"}  # all else: a number
N_RESULTS = 1, 1, 2, 2, 3
N_PARAMETERS = 0, 1, 1, 1, 2, 2, 2, 3


def value_of(what, rng, pool):
    if what == "place":
        return pool.place(rng)
    if what == "name":
        return pool.name(rng)
    if what == "number":
        return rng.randint(2, 999 if rng.random() < 0.2 else 60)
    if what == "item":
        return f"the {pool.one(rng, pool.looks)} {pool.one(rng, pool.items)}"
    if what == "phrase":
        return rng.choice(["the {} {} is {}", "{} {} for {}", "no {} {} near {}", "{} {} at {}"]).format(
            pool.one(rng, pool.looks), pool.one(rng, pool.items), pool.place(rng))
    if what == "time":
        return f"{rng.randint(1, 23)}:{rng.choice(['00', '15', '30', '45'])}"
    return rng.choice({"day": DAYS, "month": MONTHS, "colour": COLOURS}[what])


class Tool:
    def __init__(self, words, rng, pool, n_parameters=N_PARAMETERS):
        self.words, (self.verb, self.noun) = words, words.split()
        style = rng.random()
        stem = self.verb, self.noun
        if pool.words and rng.random() < 0.5:  # the description alone says what it does
            other = rng.choice(pool.words)
            stem = rng.choice([(self.verb, other), (other, self.noun), (other, rng.choice(pool.words)), (*stem, other)])
        self.name = "_".join(stem) if style < 0.8 else stem[0] + "".join(w.capitalize() for w in stem[1:])
        self.parameters, used = [], set()
        for names, kind, says, what in rng.sample(PARAMETERS, rng.choice(n_parameters)):
            say = rng.choice(says)
            if say.split()[0] + what not in used and not (say.startswith(("in", "at", "for", "with")) and say.split()[0] in used):
                used.update((say.split()[0] + what, say.split()[0]))
                self.parameters.append((pool.key(rng, rng.choice(names)), kind, say, what, rng.random() < 0.75))
        self.says = rng.choice(["{V} {n}.", "{V} the {n}.", "{V} {an}.", "{V} {an} for the user."]).format(V=self.verb.capitalize(), n=self.noun, an=a(self.noun))

    def definition(self):
        properties = {p[0]: {"type": p[1]} for p in self.parameters}
        return {"type": "function", "function": {"name": self.name, "description": self.says, "parameters": {
            "type": "object", "properties": properties, "required": [p[0] for p in self.parameters if p[4]]}}}

    def wish(self, rng, pool, known=None):
        """What is asked for, and the arguments; known: a parameter's name, the phrase that says it by an earlier result, its value there."""
        arguments, said = {}, []
        for name, _, say, what, required in self.parameters:
            if known and name == known[0]:
                arguments[name] = known[2]
                said.append(known[1])
            elif required or rng.random() < 0.5:
                arguments[name] = value_of(what, rng, pool)
                said.append(say.format(arguments[name]))
        rng.shuffle(said)
        verb = self.verb if rng.random() < 0.6 else rng.choice(VERBS[self.verb])
        return " ".join([f"{verb} {rng.choice(['a', 'the', 'my', 'the'])} {self.noun}".replace(" a " + self.noun, " " + a(self.noun))] + said), arguments

    def request(self, rng, pool):
        """A sentence that asks for it, and the arguments that it names."""
        body, arguments = self.wish(rng, pool)
        text = rng.choice(["Please {}.", "{C}.", "Can you {}?", "I want you to {}.", "Could you please {}?", "Would you {} for me?" if not arguments else "Would you {}?"])
        return text.format(body, C=body[0].upper() + body[1:]), arguments


def tools_text(definitions, system="", compact=False):
    dump = lambda d: json.dumps(d, ensure_ascii=False, separators=(",", ":") if compact else None)  # noqa: E731
    return (system + "\n\n" if system else "") + TOOLS_HEAD + "".join("\n" + dump(d) for d in definitions) + TOOLS_TAIL


def call_text(name, arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + "\n</tool_call>"


def sentence_of(result):
    said = [f"the {k} is {v}" for k, v in result.items()]
    text = said[0] if len(said) == 1 else ", ".join(said[:-1]) + " and " + said[-1]
    return text[0].upper() + text[1:] + "."


def result_of(rng, pool):
    """A tool's result, and the sentence that says it."""
    result = {key: value_of(RESULT_KINDS.get(key, "number"), rng, pool) for key in rng.sample(RESULT_KEYS, rng.choice(N_RESULTS))}
    return json.dumps(result, ensure_ascii=False), sentence_of(result)


def alike(words, other):
    """What is said for one tool may mean the other."""
    return words.split()[1] == other.split()[1] and bool(set(VERBS[words.split()[0]]) & set(VERBS[other.split()[0]]))


def another_wish(listed, rng, pool, n_parameters=N_PARAMETERS):
    """One that a listed tool fits, or, half of the time, none does."""
    tool = rng.choice(listed)
    if rng.random() < 0.5 and sum(alike(tool.words, t.words) for t in listed) == 1:
        ask, arguments = tool.request(rng, pool)
        return ask, call_text(tool.name, arguments)
    near = pool.near(tool.words)
    while True:
        words = rng.choice(near) if rng.random() < 0.5 else pool.tool(rng)
        if not any(alike(words, t.words) for t in listed):
            return Tool(words, rng, pool, n_parameters).request(rng, pool)[0], NO_TOOL


def tools(rng, pool, bank, n_tools=None, form=None):
    """form: call, result, none; or in training all the turns of one conversation."""
    learns = bool(pool.words)
    n_tools = n_tools or rng.randint(1, 3 if learns and rng.random() < 0.4 else 12)  # that no tool fits is learnt first where there are few
    form = form or rng.choice(["call", "call", "call", "call", "result", "none", "none", "none"] if learns else ["call", "call", "call", "result", "none"])
    n_tools += learns and form == "none" and n_tools < 12  # so that their number says nothing
    words = pool.tool(rng)
    near = [w for w in pool.near(words) if w != words]  # hard to tell apart
    others = rng.sample(near, min(len(near), rng.randint(0, n_tools - 1))) if rng.random() < 0.5 else []
    while len(others) < n_tools - 1:
        w = pool.tool(rng)
        if w not in others and w != words:
            others.append(w)
    others = [w for w in others if not alike(w, words)]
    wanted, rest = Tool(words, rng, pool), [Tool(w, rng, pool) for w in others]
    rest = [t for t in {t.name: t for t in rest}.values() if t.name != wanted.name]
    listed = rest + ([] if form == "none" and rest else [wanted])
    if form == "none" and not rest:
        form = "call"
    rng.shuffle(listed)
    system = rng.choice(["", "", "", "You are a helpful assistant.", "You help in the house."])
    ask, arguments = wanted.request(rng, pool)
    messages = [{"role": "system", "content": tools_text([t.definition() for t in listed], system, pool.split == "train" and rng.random() < 0.15)},
                {"role": "user", "content": ask}]
    call = NO_TOOL if form == "none" else call_text(wanted.name, arguments)
    if form != "result":
        while learns and rng.random() < 0.6:  # more wishes over the same list: half of them nothing there fits
            ask, answer = another_wish(listed, rng, pool)
            messages += [{"role": "assistant", "content": call}, {"role": "user", "content": ask}]
            call = answer
        return {"skill": "tools", "form": form, "messages": messages, "answer": call}
    result, said = result_of(rng, pool)
    lead = "\n" if pool.split == "train" and rng.random() < 0.3 else ""
    messages += [{"role": "assistant", "content": call}, {"role": "tool", "content": f"{lead}<tool_response>\n{result}\n</tool_response>"}]
    while learns and rng.random() < 0.5:  # a wish behind a result may be a call again
        ask, answer = another_wish(listed, rng, pool)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": ask}]
        said = answer
    return {"skill": "tools", "form": form, "messages": messages, "answer": said}


def choose(rng, pool, bank):
    """For training: few tools with few parameters, and many wishes. A decision between a call and none for each 30 to 60 tokens; a list as a request has it gives one for 190. A third of the lists
    are bare: a name and a description, no JSON."""
    bare, words = rng.random() < 0.35, {pool.tool(rng)}
    n, near, few = rng.choice([1, 1, 2, 2, 3, 4, 6]), rng.random() < 0.5, (0,) if bare else (0, 0, 1)
    while len(words) < n:
        words.add(rng.choice(pool.near(rng.choice(sorted(words)))) if near and rng.random() < 0.5 else pool.tool(rng))
    listed = list({t.name: t for t in (Tool(w, rng, pool, few) for w in sorted(words))}.values())
    rng.shuffle(listed)
    text = "<tools>" + "".join(f"\n{t.name}: {t.says}" for t in listed) + "\n</tools>" if bare else tools_text([t.definition() for t in listed])
    if not bare and rng.random() < 0.5:
        text = text[len(TOOLS_HEAD) - len("<tools>"):-len(TOOLS_TAIL) + len("\n</tools>")]
    messages = [{"role": "system", "content": text}]
    for _ in range(rng.randint(4, 10)):
        ask, answer = another_wish(listed, rng, pool, few)
        messages += [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
    return {"skill": "choose", "form": "bare" if bare else "json", "messages": messages[:-1], "answer": messages[-1]["content"]}
