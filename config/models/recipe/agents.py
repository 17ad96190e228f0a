"""Samples of several tool calls, one behind the other's result: two wishes, chains of three, and an agent that lists files, reads one and answers."""
import json

from calls import N_RESULTS, RESULT_KEYS, RESULT_KINDS, Tool, alike, another_wish, call_text, sentence_of, tools_text, value_of

SYSTEMS = ["", "", "", "You are a helpful assistant.", "You help in the house."]
JOINED = {  # how wishes stand in one message
    1: ["Please {a}.", "{A}.", "Can you {a}?"],
    2: ["Please {a} and then {b}.", "{A}, then {b}.", "First {a}, then {b}.", "{A}. Then {b}.", "Can you {a} and then {b}?"],
    3: ["First {a}, then {b}, and then {c}.", "{A}, then {b}, then {c}.", "Please {a}, then {b} and then {c}.", "{A}. Then {b}. Then {c}."]}


def joined(rng, bodies):
    capital = lambda s: s[0].upper() + s[1:]  # noqa: E731
    named = dict(zip("abc", bodies)) | dict(zip("ABC", map(capital, bodies)))
    return rng.choice(JOINED[len(bodies)]).format(**named)


def framed(result):
    return {"role": "tool", "content": f"<tool_response>\n{result}\n</tool_response>"}


def said_by(role, text):
    return {"role": role, "content": text}


# ---- several wishes ----
def referred(rng, tool, free):
    """A parameter that an earlier result can give, and that result's key."""
    kinds = [p[3] for p in tool.parameters]
    can = [(p, key) for p in tool.parameters for key in free if RESULT_KINDS.get(key, "number") == p[3] and kinds.count(p[3]) == 1]
    return rng.choice(can) if can else None


def phrase_of(parameter, key):
    _, _, say, what, _ = parameter
    return f"with the {key}" if what == "number" else f"that says the {key}" if what == "phrase" else say.format("the " + key)


def some_tools(rng, pool, n, n_listed):
    """n to call, in turn; one may come twice. And the list that has them."""
    called, listed = [], []
    while len(listed) < n_listed:
        if called and len(called) < n and called[-1].parameters and rng.random() < 0.1:
            called.append(called[-1])
            continue
        near = pool.near(rng.choice(listed).words) if listed and rng.random() < 0.3 else []
        tool = Tool(rng.choice(near) if near else pool.tool(rng), rng, pool)
        if not any(alike(tool.words, t.words) or tool.name == t.name for t in listed):
            listed.append(tool)
            called += [tool] if len(called) < n else []
    rng.shuffle(listed)
    return called, listed


def turns_of(rng, pool, called, uses):
    """Wishes, calls and results. uses: which calls have an argument of an earlier result."""
    free, results, known = rng.sample(RESULT_KEYS, len(RESULT_KEYS)), [{} for _ in called], [None] * len(called)
    for i in uses:
        found = referred(rng, called[i], free)
        if not found:
            return None
        parameter, key = found
        free.remove(key)
        value = value_of(RESULT_KINDS.get(key, "number"), rng, pool)
        results[rng.choice([i - 1, rng.randrange(i)])][key] = value
        known[i] = parameter[0], phrase_of(parameter, key), value
    for i, result in enumerate(results):
        while len(result) < max(1, rng.choice(N_RESULTS)):
            key = free.pop()
            result[key] = value_of(RESULT_KINDS.get(key, "number"), rng, pool)
        results[i] = dict(rng.sample(list(result.items()), len(result)))
    wishes = [tool.wish(rng, pool, k) for tool, k in zip(called, known)]
    return wishes, [call_text(t.name, arguments) for t, (_, arguments) in zip(called, wishes)], results


def several(rng, pool, skill, n, form):
    """form: then (all arguments are the user's), uses (some are a result's), later (the second wish comes behind the first one's answer)."""
    while True:
        called, listed = some_tools(rng, pool, n, rng.randint(n, 8))
        uses = [i for i in range(1, n) if i == n - 1 or rng.random() < 0.6] if form == "uses" else []
        turns = turns_of(rng, pool, called, uses)
        if turns and len(set(turns[1])) == n:
            break
    wishes, calls, results = turns
    messages = [said_by("system", tools_text([t.definition() for t in listed], rng.choice(SYSTEMS), bool(pool.words) and rng.random() < 0.1))]
    groups = [[w] for w in wishes] if form == "later" else [wishes]
    at = 0
    for group in groups:
        if at:
            messages.append(said_by("assistant", sentence_of(results[at - 1])))
        messages.append(said_by("user", joined(rng, [body for body, _ in group])))
        for _ in group:
            messages += [said_by("assistant", calls[at]), framed(json.dumps(results[at], ensure_ascii=False))]
            at += 1
    answer = sentence_of(results[-1])
    while pool.words and rng.random() < 0.3:  # in training a wish may follow
        ask, call = another_wish(listed, rng, pool)
        messages += [said_by("assistant", answer), said_by("user", ask)]
        answer = call
    return {"skill": skill, "form": form, "messages": messages, "answer": answer}


def second(rng, pool, bank):
    return several(rng, pool, "second", 2, rng.choice(["then", "uses", "later"]))


def chain(rng, pool, bank):
    return several(rng, pool, "chain", 3, rng.choice(["then", "uses"]))


# ---- an agent's loop over files ----
LIST = ["list_files", "list_files", "list_directory", "list_dir", "ls", "get_files", "show_files", "find_files", "list_folder", "dir"]
READ = ["read_file", "read_file", "read", "open_file", "cat", "get_file", "view_file", "show_file", "load_file", "read_text"]
WRITE = ["write_file", "write_file", "write", "save_file", "create_file", "save", "put_file"]
LIST_SAYS = ["List the files.", "List the files in a folder.", "List files in a directory.", "Show the names of all files.", "Get the names of the files in a folder."]
READ_SAYS = ["Read a file.", "Read the text of a file.", "Read the contents of a file.", "Get the text of a file.", "Show what a file says."]
WRITE_SAYS = ["Write a file.", "Write a text to a file.", "Write text into a file.", "Save a text in a file."]
FOLDER, FILE, TEXT = ["path", "path", "folder", "directory", "dir"], ["path", "path", "file", "file_path", "filename", "name"], ["text", "content", "contents"]
FACTS = [  # what a file says and the answer is; what is asked; the value's kind
    ("The {w} costs {v} coins.", "How much does the {w} cost?", "number"), ("The {w} stands in {v}.", "Where does the {w} stand?", "place"),
    ("The owner of the {w} is {v}.", "Who is the owner of the {w}?", "name"), ("The password of the {w} is {v}.", "What is the password of the {w}?", "name"),
    ("The {w} is called {v}.", "What is the {w} called?", "name"), ("The {w} opens on {v}.", "On what day does the {w} open?", "day"),
    ("The {w} opens at {v}.", "At what time does the {w} open?", "time"), ("The colour of the {w} is {v}.", "What is the colour of the {w}?", "colour")]
ASKS = ["{q} Look in the files.", "{q} It is in one of the files.", "{q}", "Look in the files: {q}"]
ASKS_IN = ["{q} Look in the folder {d}.", "{q} It is in one of the files in {d}.", "Look in the folder {d}: {q}"]
ASKS_OF = ["Read {f}. {q}", "{q} Read {f}.", "{q} It is in {f}."]
WRITES = [" Write the answer to {f}.", " Then write the answer to {f}.", " Save the answer in {f}."]


class Files:
    """The tools, and a folder whose files each tell of one thing."""

    def __init__(self, rng, pool, bank):
        self.rng, self.pool, self.bank = rng, pool, bank
        self.folder = rng.choice([pool.one(rng, pool.things), "docs", "notes"]) if rng.random() < 0.4 else ""
        self.ends = rng.choice([[".txt"], [".txt"], [".md"], [".txt", ".md"]])
        self.topics = pool.some(rng, sorted({*pool.owned, *pool.spots, *pool.items}), rng.randint(2, 8))
        self.paths = {w: (self.folder + "/" if self.folder else "") + w + rng.choice(self.ends) for w in self.topics}
        self.out = rng.choice(["answer", "answer", "result", "out", pool.one(rng, pool.items)]) + self.ends[0]
        one = lambda names: rng.choice(names) if not pool.words or rng.random() < 0.75 else "_".join(rng.choice(pool.words) for _ in range(rng.randint(1, 2)))  # noqa: E731
        self.lister, self.reader, self.writer = one(LIST), one(READ), one(WRITE)
        while len({self.lister, self.reader, self.writer}) < 3:
            self.reader = one(READ)
        self.has_folder = bool(self.folder) or rng.random() < 0.5
        self.keys = [pool.key(rng, rng.choice(k)) for k in (FOLDER, FILE, FILE, TEXT)]

    def definitions(self, writes):
        more = {"description": self.rng.choice(["The path.", "A path.", "The name.", "What it is."])} if self.rng.random() < 0.2 else {}
        text = lambda *keys: {"type": "object", "properties": {k: {"type": "string", **more} for k in keys}, "required": list(keys)}  # noqa: E731
        folder, file, out, content = self.keys
        tools = [(self.lister, self.rng.choice(LIST_SAYS), text(*[folder] * self.has_folder)), (self.reader, self.rng.choice(READ_SAYS), text(file))]
        if writes or self.rng.random() < 0.4:
            tools.append((self.writer, self.rng.choice(WRITE_SAYS), text(out, content)))
        self.rng.shuffle(tools)
        return [{"type": "function", "function": {"name": n, "description": d, "parameters": p}} for n, d, p in tools]

    def listing(self):
        found = sorted(self.paths.values())
        return self.rng.choice([json.dumps(found), json.dumps({"files": found}), *["\n".join(found)] * 3])

    def facts(self, thing, n):
        for say, ask, kind in self.rng.sample(FACTS, n):
            value = value_of(kind, self.rng, self.pool)
            yield say.format(w=thing, v=value), ask.format(w=thing)

    def text(self, thing):
        """A file's text, a fact that it tells, and the question."""
        told = list(self.facts(thing, self.rng.randint(1, 5)))
        said = [t[0] for t in told] + [self.bank.sentence(self.rng) for _ in range(self.rng.randint(0, 4))]
        self.rng.shuffle(said)
        text = self.rng.choice([" ", " ", "\n"]).join(said)
        return json.dumps({self.keys[3]: text}, ensure_ascii=False) if self.rng.random() < 0.15 else text, *self.rng.choice(told)

    def list(self):
        return call_text(self.lister, {self.keys[0]: self.folder or "."} if self.has_folder else {})

    def read(self, thing):
        return call_text(self.reader, {self.keys[1]: self.paths[thing]})

    def write(self, answer):
        return call_text(self.writer, {self.keys[2]: self.out, self.keys[3]: answer})


def agent(rng, pool, bank):
    """form: list (list, read, answer), read (the user names the file), write (list, read, write, answer), missing (no file tells of it), again (another question
    behind the answer: the list is known)."""
    form, f = rng.choice(["list", "list", "list", "list", "read", "write", "write", "missing", "again"]), Files(rng, pool, bank)
    thing = f.topics[0]
    text, answer, ask = f.text(thing)
    if form == "missing":
        del f.paths[thing]
    frame = rng.choice(ASKS_OF if form == "read" else ASKS_IN if f.folder else ASKS)
    wish = frame.format(q=ask, d=f.folder, f=f.paths.get(thing)) + (rng.choice(WRITES).format(f=f.out) if form == "write" else "")
    messages = [said_by("system", tools_text(f.definitions(form == "write"), rng.choice(SYSTEMS))), said_by("user", wish)]
    if form != "read":
        messages += [said_by("assistant", f.list()), framed(f.listing())]
    if form == "missing":
        return {"skill": "agent", "form": form, "messages": messages, "answer": f"None of the files tells of the {thing}."}
    messages += [said_by("assistant", f.read(thing)), framed(text)]
    if form == "write":
        messages += [said_by("assistant", f.write(answer)), framed(rng.choice(["ok", "done", '{"ok": true}', "The file is written.", json.dumps({"written": len(answer)})]))]
    for thing in f.topics[1:2] if form == "again" or (pool.words and form in ("list", "write") and rng.random() < 0.3) else []:
        text, other, ask = f.text(thing)
        messages += [said_by("assistant", answer), said_by("user", ask), said_by("assistant", f.read(thing)), framed(text)]
        answer = other
    return {"skill": "agent", "form": form, "messages": messages, "answer": answer}
