"""The laws of conversations that bring everything, by random histories: blocks added, answers that come back with other white space, with members more, with other
values or not at all, tools deferred, marks moved, heads changed, a way back, compaction.

A conversation holds the state that took its turns: so each request is also a turn of a session that brings what is new behind the last answer that came back
unaltered, forked from the turn that gave it. Where no answer of the model stands before, a server without the prefix cache is the reference, too. Tokens and
log-probabilities are equal to the last digit. Every other conversation has a name, and its server is killed now and then. RODIMUS_TEST_SOAK=1 has more."""
import json
import os
import random

import pytest

from server import SLOWER
from talk import CHAT, new_id

SOAK = bool(os.environ.get("RODIMUS_TEST_SOAK"))
HISTORIES, STEPS = (60 if SOAK else 2) // SLOWER or 1, 12
SEED = int(os.environ.get("RODIMUS_TEST_SEED", 0)) or random.randrange(1, 1 << 30)
EVERY = {"RODIMUS_TEST_CHECKPOINTS_PAY": "1"}  # each entry of the cache pays, however busy the machine is
WORDS = "the little dog ran to a big red house Ünï 42 \n and saw one cat who was happy".split(" ")
TEXT = {"type": "string", "maxLength": 10}


class History:
    """messages: of the body. node: the session whose state is behind the last answer that came back unaltered, and since: the messages behind it; None: there is none,
    and since is all of them. Snapshots of the three are where a client goes back to."""

    def __init__(self, draw):
        self.draw, self.messages, self.back = draw, [], []
        self.head()

    def text(self, most=40):
        return " ".join(self.draw.choice(WORDS) for _ in range(self.draw.randrange(1, most)))

    def head(self):
        """Another system text and other tools before the same messages: the model gave no answer under them."""
        self.tools = [{"type": "function", "function": {"name": f"edit_{self.draw.randrange(9)}", "description": self.text(), "parameters": {
            "type": "object", "properties": {"path": TEXT, "line": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["path", "line"]}}}]
        self.begin({"role": "system", "content": self.text(120)}, *self.messages[1:])

    def begin(self, *messages):
        self.node, self.messages, self.since = None, list(messages), list(messages)

    def add(self, *messages):
        self.messages += messages
        self.since += messages

    def user(self):
        if self.messages[-1]["role"] != "user":
            self.back.append((self.tools, list(self.messages), self.node, list(self.since)))
        parts = [{"type": "text", "text": self.text()} for _ in range(self.draw.randrange(1, 3))]
        self.add({"role": "user", "content": parts})

    def take(self, said, session):
        """An answer, as the client brings it back."""
        calls, how = said.get("tool_calls") or [], self.draw.choice(["as it is", "as it is", "spelt", "more", "value", "dropped"])
        if how == "dropped":
            return how
        back = json.loads(json.dumps(said))
        if how == "value":
            back["content"] = "No. " + (said["content"] or "") if not calls else said["content"]
        for call in back.get("tool_calls") or []:
            value = json.loads(call["function"]["arguments"])
            if how == "more":
                value["replace_all"] = False
            if how == "value":
                value["line"] += 1
            if how != "as it is":
                call["function"]["arguments"] = json.dumps(value, indent=self.draw.choice([None, 2]))
        if how == "value":
            self.add(back)
        else:
            self.messages.append(back)
            self.node, self.since = session, []
        self.add(*({"role": "tool", "tool_call_id": c["id"], "content": self.text()} for c in calls))
        return how

    def change(self):
        """What clients do beside adding a text."""
        how = self.draw.choice(["text"] * 5 + ["again", "back", "head", "compaction"])
        if how == "back" and self.back:
            k = self.draw.randrange(len(self.back))
            self.tools, self.messages, self.node, self.since = self.back[k]
            del self.back[k:]
        elif how == "head":
            self.head()
        elif how == "compaction":
            self.begin(self.messages[0], {"role": "user", "content": self.text(80)})
        if how != "again" or self.messages[-1]["role"] not in ("user", "tool"):
            self.user()
        return how

    def marked(self):
        """With a cache_control somewhere, as clients move theirs."""
        messages = json.loads(json.dumps(self.messages))
        for message in self.draw.sample(messages, min(len(messages), self.draw.randrange(3))):
            if message["role"] == "user":
                message["cache_control"] = {"type": "ephemeral"}
        return messages


class Kept:
    """The server of a conversation. A name's states are in files, so that kill -9 loses none."""

    def __init__(self, own_server, draw, folder, number):
        self.name = {"prompt_cache_key": f"history {number}"} if number % 2 else {}
        self.make = lambda: own_server("--state-dir", folder, env=EVERY)
        self.draw, self.server = draw, self.make()

    def next(self):
        if self.name and not self.draw.randrange(3):
            self.server.kill()
            self.server = self.make()
        return self.server


def ask(server, **body):
    answer = server.post(CHAT, body)
    assert answer.status == 200, answer
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)
    return answer.json


def turn(server, history, body):
    """The same request as a turn: its answer, and the session behind it."""
    name = new_id()
    if history.node:
        assert server.post(f"/v1/sessions/{history.node}/fork", {"id": name}).status == 200
    return ask(server, **{**body, "messages": history.since}, session_id=name, session_create=not history.node), name


@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_conversation_is_what_its_turns_are_to_the_bit(own_server, tmp_path, number):
    history, cold, cached, log = History(random.Random(f"{SEED} {number}")), 0, 0, []
    draw = history.draw
    on, off = Kept(own_server, draw, tmp_path / "states", number), own_server("--prefix-cache-bytes", 0)
    history.user()
    for step in range(STEPS):
        calls = draw.randrange(2)  # of one token no state is kept behind it, so a session has another
        body = {"tools": history.tools, "seed": draw.randrange(1000), "max_tokens": 80 if calls else draw.randrange(2, 30), "min_tokens": 2, "temperature": draw.choice([0, 1]),
                "tool_choice": "required" if calls else "auto", "parallel_tool_calls": False, "return_token_ids": True, "logprobs": True, "top_logprobs": 2}
        whole = ask(on.next(), **body, **on.name, messages=history.marked())
        session, name = turn(off, history, body)
        got, seed = whole["choices"][0], f"RODIMUS_TEST_SEED={SEED}, history {number}, step {step} of {log}"
        assert whole["usage"]["prompt_tokens"] == session["usage"]["prompt_tokens"], seed
        begun, of_session = (one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (whole, session))
        cached += begun
        if begun < of_session:  # no state is left there: the answer before is read as text, which gives neither's last digits
            assert on.name and not {"dropped", "back"}.isdisjoint(log), (begun, of_session, seed)
            break
        for what in ("token_ids", "logprobs"):
            assert got[what] == session["choices"][0][what], (what, seed)
        if not history.node:
            want = ask(off, **body, messages=history.messages)
            assert (got["token_ids"], got["logprobs"]) == (want["choices"][0]["token_ids"], want["choices"][0]["logprobs"]), seed
            cold += 1
        if got["finish_reason"] == "length" and got["message"].get("tool_calls"):
            log.append("cut")  # half a call: no client goes on with it
        else:
            log.append(history.take(got["message"], name))
        log.append(history.change())
    assert cold and cached, log


def message(server, **body):
    answer = server.post("/v1/messages", {"model": "tales", "temperature": 0, "max_tokens": 100, **body})
    assert answer.status == 200, answer
    server.wait_metric("rodimus_slots_used", lambda n: n == 0)
    usage, blocks = answer.json["usage"], [{k: v for k, v in block.items() if k != "id"} for block in answer.json["content"]]
    return answer.json["content"], [blocks, sum(usage[k] for k in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")), usage["output_tokens"]]


@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_tool_that_is_found_on_the_way_is_read_where_a_result_names_it(own_server, tmp_path, number):
    """Its definition comes into the middle of `tools`, and each request has other digits for the bill: a session reads the text before it once, too."""
    draw = random.Random(f"{SEED} found {number}")
    on, off = Kept(own_server, draw, tmp_path / "states", number), own_server("--prefix-cache-bytes", 0)
    schema = {"type": "object", "properties": {"path": TEXT}, "required": ["path"], "additionalProperties": False}
    tools = [{"name": name, "description": "words " * draw.randrange(1, 60), "input_schema": schema} for name in ("read", "search")]
    hidden = [{**tools[0], "name": f"hidden_{i}", "description": "words " * draw.randrange(1, 60), "defer_loading": True} for i in range(4)]
    messages = [{"role": "user", "content": "Go on."}]
    since, session, system, callable_ = list(messages), new_id(), "rules " * draw.randrange(1, 100), ["read", "search"]
    for step in range(STEPS):
        call = draw.choice(callable_)
        choice = {"tools": tools, "tool_choice": {"type": "tool", "name": call}}
        billed = [{"type": "text", "text": f"x-anthropic-billing-header: cch={draw.randrange(10 ** 5)};"}, {"type": "text", "text": system}]
        said, got = message(on.next(), **choice, **on.name, messages=messages, system=billed)
        _, want = message(off, **choice, messages=since, session_id=session, session_create=step == 0, **({} if step else {"system": system}))
        assert got == want, f"RODIMUS_TEST_SEED={SEED}, history {number}, step {step}, {call}"
        back = {**said[-1], "input": {**({"replace_all": False} if draw.randrange(2) else {}), **said[-1]["input"]}}
        result = [{"type": "text", "text": "words " * draw.randrange(1, 40)}]
        if call == "search" and hidden:
            found = hidden.pop()
            tools = list(tools)
            tools.insert(draw.randrange(len(tools) + 1), found)
            callable_.append(found["name"])
            result = [{"type": "tool_reference", "tool_name": found["name"]}]
        since = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": back["id"], "content": result}]}]
        messages += [{"role": "assistant", "content": [back]}, *since]
    assert len(callable_) > 2
