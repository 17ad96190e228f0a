"""Sessions as Claude Code and Codex send them: the shapes of their requests as recorded (headers, fields, kinds of blocks, tools), filled with text that a seed
draws. A session is a generator: it yields a Request and is sent the Answer, puts it into the history as its client does, and goes on.

What a request continues is said by its chain: the head (the system's text without what stands for the bill, tools that are not deferred), then a block each; an
answer's block that comes back equal, or as equal JSON with members that the client added, is known by its id. No id of a client and no cache_control counts."""
import json
import random
import uuid

from server import read_events
from talk import message_of

WORDS = "the little dog ran to a big red house and saw one cat who was happy in the garden with her mother".split()
SHORT = {"type": "string", "maxLength": 16}
# What stands at full length, in tokens: the head of Claude Code has some 32,000, that of Codex some 9,000.
LENGTHS = {"system": 4000, "tool": 2000, "developer": 3000, "codex_tool": 550, "user": 120, "reminder": 300, "summary": 900, "Bash": 420, "Read": 2600, "Edit": 160,
           "Write": 60, "Glob": 120, "Grep": 350, "Agent": 500, "exec_command": 700, "apply_patch": 60, "title": 700, "deferred": 900}
CLAUDE_TOOLS = {"Agent": ["description", "prompt", "subagent_type"], "Bash": ["command", "description"], "DeferredToolPlaceholder": [], "Edit": ["file_path", "old_string", "new_string"],
                "Glob": ["pattern"], "Grep": ["pattern"], "ListAgents": [], "NotebookEdit": ["notebook_path", "new_source"], "Read": ["file_path"], "ReportFindings": ["findings"],
                "ScheduleWakeup": ["prompt"], "Skill": ["skill"], "ToolSearch": ["query"], "Workflow": ["script"], "Write": ["file_path", "content"]}
DEFERRED = ("DeferredToolPlaceholder", "NotebookEdit")
AGENTS_LACK = ("ListAgents", "NotebookEdit", "ReportFindings", "ScheduleWakeup", "Workflow")
CODEX_TOOLS = {"create_goal": ["objective"], "exec_command": ["cmd"], "get_goal": [], "request_user_input": ["question"], "update_goal": ["status"], "view_image": ["path"],
               "write_stdin": ["chars"]}
CLAUDE_HEADERS = {
    "accept": "application/json", "user-agent": "claude-cli/2.1.332 (external, sdk-cli)", "x-stainless-arch": "x64", "x-stainless-lang": "js", "x-stainless-os": "Linux",
    "x-stainless-package-version": "0.128.0", "x-stainless-retry-count": "0", "x-stainless-runtime": "node", "x-stainless-runtime-version": "v26.12.1", "x-stainless-timeout": "600",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,advanced-tool-use-2025-11-20",
    "anthropic-dangerous-direct-browser-access": "true", "anthropic-version": "2023-06-01", "x-app": "cli"}
CODEX_HEADERS = {"accept": "text/event-stream", "originator": "codex_exec", "x-codex-beta-features": "remote_compaction_v2",
                 "user-agent": "codex_exec/0.163.0 (Debian 12.0.0; x86_64) xterm (codex_exec; 0.163.0)"}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
BILL = "x-anthropic-billing-header:"


class World:
    """What all sessions of a run share: the dice, the scale of lengths, and what answers were."""

    def __init__(self, seed, scale, apart=""):
        """apart: worlds with another one have no text in common."""
        self.draw, self.scale, self.given, self.apart = random.Random(seed), scale, {}, apart
        self.heads = {}  # of threads whose tools are known

    def text(self, kind, least=6):
        return " ".join(self.draw.choice(WORDS) for _ in range(max(least, int(LENGTHS[kind] * self.scale))))

    def fixed(self, name, kind):
        """The same text for each conversation of a client."""
        draw = random.Random(f"{name} {self.scale}{self.apart}")
        return " ".join(draw.choice(WORDS) for _ in range(max(6, int(LENGTHS[kind] * self.scale))))

    def id(self):
        return str(uuid.UUID(int=self.draw.getrandbits(128), version=4))

    def respelt(self, value):
        """The same JSON with other white space."""
        return json.dumps(value, indent=self.draw.choice([None, None, 1]), separators=self.draw.choice([None, (",", ":")]), ensure_ascii=False)


class Request:
    """lane: a Claude or a Codex, which knows what an answer is in its chain, and how parts of the body are counted."""

    def __init__(self, label, body, lane):
        self.label, self.path, self.headers, self.body, self.chain, self.lane = label, lane.PATH, lane.headers(), body, lane.chain(body), lane


class Answer:
    """items: what the client got, in the form of its API; prompt, cached, said: tokens."""

    def __init__(self, items, prompt, cached, said):
        self.items, self.prompt, self.cached, self.said = items, prompt, cached, said


def ask(server, request):
    connection, response = server.open("POST", request.path, request.body, {**request.headers, "Content-Type": "application/json"}, timeout=600)
    try:
        assert response.status == 200, (request.label, response.status, response.read())
        events = [e.data for e in read_events(response) if not e.comment and e.data != "[DONE]"]
    finally:
        connection.close()
    if isinstance(request.lane, Claude):
        blocks, usage = message_of(events)
        rest = usage["input_tokens"] + usage["cache_creation_input_tokens"]
        return Answer(blocks, rest + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"])
    whole = events[-1]["response"]
    assert whole["status"] in ("completed", "incomplete"), whole
    usage = whole["usage"]
    return Answer(whole["output"], usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"])


def canonical(value, without):
    if isinstance(value, dict):
        return {k: canonical(v, without) for k, v in value.items() if k not in without}
    return [canonical(v, without) for v in value] if isinstance(value, list) else value


def item_of(value):
    return json.dumps(canonical(value, ("cache_control", "id", "tool_use_id", "call_id", "status", "annotations", "logprobs", "output_config")), sort_keys=True)


def only_adds(was, now):
    return isinstance(was, dict) and isinstance(now, dict) and all(k in now and now[k] == v for k, v in was.items())


# ---- Claude Code ----

def claude_blocks(messages):
    """(role, block) of each block."""
    for message in messages:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield message["role"], block


class Claude:
    """One lane of Claude Code: the main one of a session, or that of a sub-agent."""
    PATH = "/v1/messages?beta=true"

    def __init__(self, world, opus=False, session=None, agent=False):
        self.world, self.opus, self.agent = world, opus, world.id().replace("-", "")[:16] if agent else None
        self.session, self.messages, self.found = session or world.id(), [], []
        self.bill = f"{BILL} cc_version=2.1.332.{world.draw.randrange(4096):03x}; cc_entrypoint=sdk-cli; cch={world.draw.randrange(1 << 20):05x};"
        self.tools = [t for t in CLAUDE_TOOLS if t != "NotebookEdit" and not (agent and t in AGENTS_LACK)]

    # what the client does
    def user(self, *kinds):
        self.messages.append({"role": "user", "content": [{"type": "text", "text": self.world.text(kind)} for kind in kinds or ("user",)]})
        if self.opus and len(self.messages) == 1:
            self.messages.append({"role": "system", "content": self.world.fixed("a note", "reminder"), "output_config": {"effort": "medium"}})

    def result(self, tool, use):
        block = {"tool_use_id": use["id"], "type": "tool_result", "content": self.world.text(tool)}
        if tool == "Bash":
            block["is_error"] = False
        self.messages.append({"role": "user", "content": [block]})

    def found_tool(self, use):
        self.tools = sorted({*self.tools, "NotebookEdit"})
        reference = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "tool_reference", "tool_name": "NotebookEdit"}]}
        self.messages.append({"role": "user", "content": [reference, {"type": "text", "text": "Tool loaded."}]})

    def take(self, answer):
        """The answer as it goes into the history: the arguments are an object of JavaScript, Edit gets a member that the model did not give."""
        blocks = []
        for block in answer.items:
            block = dict(block)
            if block["type"] == "tool_use":
                self.world.given[block["id"]] = (block["name"], block["input"])
                if block["name"] == "Edit":
                    block["input"] = {"replace_all": False, **block["input"]}
            blocks.append(block)
        self.messages.append({"role": "assistant", "content": blocks})
        return [block for block in blocks if block["type"] == "tool_use"]

    # what it sends
    def definition(self, name):
        schema = {"type": "object", "properties": {p: SHORT for p in CLAUDE_TOOLS[name]}, "required": CLAUDE_TOOLS[name], "additionalProperties": False}
        definition = {"name": name, "description": self.world.fixed(name, "deferred" if name in DEFERRED else "tool"), "input_schema": schema}
        return {**definition, "defer_loading": True} if name in DEFERRED else definition

    def headers(self):
        return {**CLAUDE_HEADERS, "x-claude-code-session-id": self.session, **({"x-claude-code-agent-id": self.agent} if self.agent else {})}

    def system(self):
        return [{"type": "text", "text": self.bill}, {"type": "text", "text": self.world.fixed("agent" if self.agent else "main", "system"), **EPHEMERAL}]

    def marked(self):
        """The last block has a mark, which moves on with each request."""
        messages = [dict(m) for m in self.messages]
        last = messages[-1]
        blocks = [{"type": "text", "text": last["content"]}] if isinstance(last["content"], str) else list(last["content"])
        last["content"] = [*blocks[:-1], {**blocks[-1], **EPHEMERAL}]
        return messages

    def request(self, label, call=None):
        body = {"model": "claude-opus-5-5" if self.opus else "claude-sonnet-4-5", "messages": self.marked(), "system": self.system(), "tools": [self.definition(t) for t in self.tools],
                "metadata": {"user_id": f"user_{self.session}"}, "max_tokens": 300 if call else 40, "stream": True,
                "thinking": {"type": "adaptive", "display": "updates"} if self.opus else {"type": "enabled", "budget_tokens": 31999, "display": "updates"},
                "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, **({"output_config": {"effort": "medium"}} if self.opus else {})}
        if call:  # a small model calls nothing of its own where the session needs it
            body["tool_choice"] = {"type": "tool", "name": call, "disable_parallel_tool_use": True}
        return Request(label, body, self)

    # its chain
    def chain(self, body):
        head = [b["text"] for b in body["system"] if not b["text"].startswith(BILL)] + [t for t in body["tools"] if not t.get("defer_loading")]
        return [item_of(head)] + [self.item(role, block) for role, block in claude_blocks(body["messages"])]

    def item(self, role, block):
        name, was = self.world.given.get(block.get("id"), (None, None))
        if block["type"] == "tool_use" and name == block["name"] and only_adds(was, block["input"]):
            return f"said {block['id']}"
        return item_of([role, block])

    def said(self, answer):
        return [f"said {b['id']}" if b["type"] == "tool_use" else item_of(["assistant", b]) for b in answer.items]

    @staticmethod
    def counted(body, n, head=True):
        """What counts the tokens of the body's first n blocks (0: of a word), with its head or without."""
        messages = []
        for message in body["messages"]:
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            if n > 0:
                messages.append({**message, "content": blocks[:n]})
            n -= len(blocks)
        of_head = {k: body[k] for k in ("system", "tools")} if head else {}
        return "/v1/messages/count_tokens?beta=true", {"model": body["model"], "messages": messages or [{"role": "user", "content": "x"}], **of_head}

    # parts of sessions
    def step(self, call):
        """A call and its result."""
        answer = yield self.request(call, call)
        use = self.take(answer)[-1]
        if call == "ToolSearch":
            self.found_tool(use)
        elif call == "Agent":
            yield from self.sub_agent(use)
        else:
            self.result(call, use)

    def ends(self, label="text"):
        self.take((yield self.request(label)))

    def sub_agent(self, use):
        agent = Claude(self.world, self.opus, self.session, agent=True)
        agent.bill = self.bill
        agent.messages.append({"role": "user", "content": [{"type": "text", "text": self.world.fixed("agents", "reminder")}, {"type": "text", "text": self.world.text("user")}]})
        for request in (agent.step("Bash"), agent.step("Read"), agent.ends()):
            yield from request
        self.messages.append({"role": "user", "content": [{"tool_use_id": use["id"], "type": "tool_result", "content": [{"type": "text", "text": self.world.text("Agent")}]}]})

    def title(self):
        """Of the main session's name, with a head of its own and no tools."""
        body = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": [{"type": "text", "text": self.world.text("user")}]}], "tools": [],
                "system": [{"type": "text", "text": self.world.fixed("titles", "title")}], "metadata": {"user_id": f"user_{self.session}"}, "max_tokens": 40, "temperature": 1, "stream": True,
                "thinking": {"type": "disabled"}, "output_config": {"format": {"type": "json_schema", "schema": {
                    "type": "object", "properties": {"title": SHORT}, "required": ["title"], "additionalProperties": False}}}}
        yield Request("title", body, self)

    def compact(self):
        """The whole history and one text more; then a summary stands for all of it."""
        self.user("reminder")
        yield from self.ends("compaction")
        self.messages = []
        self.user("reminder", "summary")


def claude(world, opus=False):
    main = Claude(world, opus)
    main.user("reminder", "user")
    yield from main.title()
    for call in ("Bash", "Read", "Edit", "Glob", "Write"):
        yield from main.step(call)
    yield from main.ends()
    main.user()
    for call in ("ToolSearch", "Grep", "Read", "Edit", "Bash") + (("Read", "Edit") if opus else ()):
        yield from main.step(call)
    yield from main.ends()
    main.user()
    for call in ("Bash", "Edit", "Bash", "Read"):
        yield from main.step(call)
    yield from main.ends()


def opus(world):
    yield from claude(world, opus=True)


def interactive(world):
    """/compact twice."""
    main = Claude(world, opus=True)
    main.user("reminder", "user")
    for _ in range(2):
        for call in ("Bash", "Read", "Edit"):
            yield from main.step(call)
        yield from main.ends()
        yield from main.compact()
    yield from main.step("Bash")
    yield from main.ends()


def three(world):
    """One conversation after the other."""
    for _ in range(3):
        main = Claude(world)
        main.user("reminder", "user")
        yield from main.title()
        yield from main.step("Read")
        yield from main.step("Edit")
        yield from main.ends()


def agents(world):
    main = Claude(world, opus=True)
    main.user("reminder", "user")
    for call in ("Bash", "Agent", "Read", "Agent", "Edit"):
        yield from main.step(call)
    yield from main.ends()


# ---- Codex ----

class Codex:
    """One thread."""
    PATH = "/v1/responses"

    def __init__(self, world, session=None, parent=None):
        self.world, self.thread, self.parent = world, world.id(), parent
        self.session, self.window, self.input = session or self.thread, 0, []
        self.begin()

    def message(self, role, text):
        return {"type": "message", "id": f"msg_{self.world.id()}", "role": role, "content": [{"type": "input_text", "text": text}]}

    def begin(self, *more):
        self.input = [self.message("developer", self.world.fixed("codex", "developer")), self.message("user", self.world.fixed("places", "reminder")), *more]

    def user(self, kind="user"):
        self.input.append(self.message("user", self.world.text(kind)))

    def tools(self):
        def function(name, fields):
            schema = {"type": "object", "properties": {f: SHORT for f in fields}, "required": fields, "additionalProperties": False}
            return {"type": "function", "name": name, "description": self.world.fixed(name, "codex_tool"), "strict": False, "parameters": schema}
        patch = {"type": "custom", "name": "apply_patch", "description": self.world.fixed("apply_patch", "codex_tool"),
                 "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z ]{9,40}"}}  # a patch's own is Lark: a small model would not end it
        flat = [function(name, fields) for name, fields in CODEX_TOOLS.items()]
        space = {"type": "namespace", "name": "multi_agent_v1", "description": "Agents.", "tools": [function("spawn_agent", ["message"]), function("wait_agent", ["id"])]}
        search = {"type": "web_search", "external_web_access": False}
        return [patch, *flat, *([] if self.parent else [space]), search]

    def headers(self):
        parent = {"x-codex-parent-thread-id": self.parent, "x-openai-subagent": "collab_spawn"} if self.parent else {}
        return {**CODEX_HEADERS, "x-codex-window-id": f"{self.thread}:{self.window}", "x-client-request-id": self.thread, "session-id": self.session, "thread-id": self.thread, **parent}

    def request(self, label, call=None, tools=None):
        body = {"model": "gpt-5.5", "stream": True, "input": list(self.input), "tools": self.tools() if tools is None else tools, "tool_choice": "auto", "parallel_tool_calls": tools is None,
                "reasoning": {"effort": "medium"}, "store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": self.session, "text": {"verbosity": "low"},
                "client_metadata": {"thread_id": self.thread, "session_id": self.session, "x-codex-window-id": f"{self.thread}:{self.window}"}, "max_output_tokens": 300 if call else 40}
        if call:
            body.update(tool_choice={"type": "custom" if call == "apply_patch" else "function", "name": call}, parallel_tool_calls=False)
        if body["tools"]:
            self.world.heads[self.thread] = item_of(body["tools"])
        return Request(label, body, self)

    def chain(self, body):
        return [self.world.heads[self.thread]] + [self.item(i) for i in body["input"]]

    def item(self, item):
        name, was = self.world.given.get(item.get("call_id"), (None, None))
        if item["type"] == "function_call" and name == item["name"] and only_adds(was, json.loads(item["arguments"])):
            return f"said {item['call_id']}"
        return f"said {item['call_id']}" if item["type"] == "custom_tool_call" else item_of(item)

    def said(self, answer):
        return [f"said {i['call_id']}" if "call_id" in i else item_of(i) for i in answer.items]

    def take(self, answer):
        """The answer as it goes into the history: arguments are JSON that the client writes anew."""
        items = []
        for item in answer.items:
            if item["type"] == "function_call":
                value = json.loads(item["arguments"])
                self.world.given[item["call_id"]] = (item["name"], value)
                item = {**item, "arguments": self.world.respelt(value)}
            items.append(item)
        self.input += items
        return [i for i in items if "call_id" in i]

    @staticmethod
    def counted(body, n, head=True):
        word = {"type": "message", "role": "user", "content": "x"}
        return "/v1/responses/input_tokens", {"model": body["model"], "input": body["input"][:n] or [word], **({"tools": body["tools"]} if head else {})}

    def step(self, call):
        answer = yield self.request(call, call)
        use = self.take(answer)[-1]
        if call == "spawn_agent":
            agent = Codex(self.world, self.session, self.thread)
            agent.user()
            yield from agent.step("exec_command")
            yield from agent.ends()
        kind = "custom_tool_call_output" if use["type"] == "custom_tool_call" else "function_call_output"
        text = self.world.text(call if call in LENGTHS else "Bash")
        self.input.append({"type": kind, "id": f"fco_{self.world.id()}", "call_id": use["call_id"], "output": text})

    def ends(self, label="text"):
        self.take((yield self.request(label)))

    def compact(self):
        """The thread with a text more and no tools; then a summary stands for the thread's history."""
        self.input.append({k: v for k, v in self.message("user", self.world.text("reminder")).items() if k != "id"})
        yield self.request("compaction", tools=[])
        self.window += 1
        self.begin(self.message("user", self.world.text("summary")))


def codex(world, compacts=False):
    thread = Codex(world)
    thread.user()
    for call in ("exec_command", "exec_command", "apply_patch", "exec_command", "exec_command"):
        yield from thread.step(call)
    yield from thread.ends()
    if compacts:
        yield from thread.compact()
    thread.user()
    for call in ("exec_command", "apply_patch", "exec_command", "exec_command"):
        yield from thread.step(call)
    yield from thread.ends()
    thread.user()
    for call in ("exec_command",) * (3 if compacts else 5):
        yield from thread.step(call)
    yield from thread.ends()


def codex_compacts(world):
    yield from codex(world, compacts=True)


def codex_agents(world):
    thread = Codex(world)
    thread.user()
    for call in ("exec_command", "spawn_agent", "exec_command", "spawn_agent", "exec_command"):
        yield from thread.step(call)
    yield from thread.ends()


SESSIONS = {f.__name__: f for f in (claude, opus, codex, codex_compacts, interactive, three, agents, codex_agents)}
