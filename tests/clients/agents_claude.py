"""Claude Code's scenarios for tests/clients/agents."""
import base64
import json
import os
import sys
import time

from agents_frame import Agent, Terminal, sent, statuses
from agents_proxy import SAYS, Force
from agents_tools import PICTURE

HERE = os.path.dirname(os.path.abspath(__file__))
MCP = json.dumps({"mcpServers": {"parcels": {"command": sys.executable, "args": [os.path.join(HERE, "agents_tools.py")]}}})
ALLOWED = ["--allowedTools", "Bash Read Edit Write ToolSearch Agent TaskOutput Glob Grep mcp__parcels__parcel_state mcp__parcels__parcel_picture"]
TITLE = b'"title"'


def bash(command):
    return Force("Bash", {"command": command, "description": "Runs"})


def results(record):
    """The results of tools in a request, in order."""
    body = json.loads(record["asked"])
    return [b for m in body["messages"] if isinstance(m["content"], list) for b in m["content"] if b.get("type") == "tool_result"]


def claude(program, proxy, home):
    agent = Agent([program], home, {
        "ANTHROPIC_BASE_URL": proxy.url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1", "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1", "ENABLE_TOOL_SEARCH": "true"}, asks_version=True)
    agent.session = None

    def ask(text, *args, model="claude-opus-5-5", env=None):
        agent.run("-p", text, "--model", model, "--output-format", "json", *args, env=env)
        result = json.loads(agent.said)
        result = result[-1] if isinstance(result, list) else result
        assert not result.get("is_error"), str(result)[:600]
        agent.session = result["session_id"]
        return result

    def text():
        proxy.begin()
        assert ask("Say hello.")["num_turns"] == 1
        statuses(proxy)

    def session():
        """One conversation of 20 requests: three runs of the program, each of which takes tools and goes on with what was said."""
        notes = agent.file("long.txt", "one\ntwo\n")
        read, edit = Force("Read", {"file_path": notes}), lambda old, new: Force("Edit", {"file_path": notes, "old_string": old, "new_string": new})
        write = Force("Write", {"file_path": os.path.join(agent.work, "written.txt"), "content": "w\n"})
        proxy.begin(bash("echo 1 > steps.txt"), read, edit("two", "three"), bash("cat long.txt >> steps.txt"), write, bash("cat written.txt >> steps.txt"), SAYS,
                    bash("echo 2 >> steps.txt"), read, edit("three", "four"), bash("cat long.txt >> steps.txt"), bash("ls"), SAYS,
                    bash("echo 3 >> steps.txt"), read, edit("four", "five"), read, edit("one", "zero"), bash("cat long.txt >> steps.txt"))
        ask("Work on it.", *ALLOWED)
        first = agent.session
        ask("Go on.", "--continue", *ALLOWED)
        ask("Go on.", "--resume", first, *ALLOWED)
        statuses(proxy)
        asked = proxy.answered()
        assert len(asked) == 20 and {r["headers"].get("x-claude-code-session-id") for r in asked} == {first} == {agent.session}, len(asked)
        assert agent.file("steps.txt") == "1\none\nthree\nw\n2\none\nfour\n3\nzero\nfive\n", agent.file("steps.txt")
        said = results(asked[-1])
        assert len(said) == 17 and not any(b.get("is_error") for b in said), [b.get("content") for b in said if b.get("is_error")] or len(said)

    def resumes_and_forks():
        before = agent.session
        proxy.begin(bash("echo on > on.txt"))
        ask("And then?", "--resume", before, *ALLOWED, model="claude-sonnet-4-5")
        ask("Or else?", "--resume", before, "--fork-session")
        statuses(proxy)
        assert agent.session != before and agent.file("on.txt") == "on\n"
        sent(proxy, "long.txt")

    def picture():
        path = agent.file("parcel.png", base64.b64decode(PICTURE))
        proxy.begin(Force("Read", {"file_path": path}))
        ask("Look at it.", "--continue", *ALLOWED)
        statuses(proxy)
        sent(proxy, '"type":"image"')

    def tool_search():
        proxy.begin(Force("ToolSearch", {"query": "select:mcp__parcels__parcel_state,mcp__parcels__parcel_picture", "max_results": 5}),
                    Force("mcp__parcels__parcel_state", {"parcel": "7"}), Force("mcp__parcels__parcel_picture", {"parcel": "7"}))
        ask("Where is parcel 7?", "--mcp-config", MCP, "--strict-mcp-config", *ALLOWED)
        statuses(proxy)
        for pattern in ("tool_reference", "Parcel 7 is in Oslo", '"type":"image"'):
            sent(proxy, pattern)

    def from_agent():
        return [r for r in proxy.answered() if "x-claude-code-agent-id" in r["headers"]]

    def sub_agent():
        proxy.begin(Force("Agent", {"description": "Say hello", "prompt": "Say hello.", "subagent_type": "general-purpose", "run_in_background": False}))
        ask("Let an agent say hello.", *ALLOWED)
        statuses(proxy)
        assert from_agent(), [r["headers"] for r in proxy.answered()]

    def background_agent():
        """It goes on beside the main conversation, which is told when it has ended."""
        proxy.begin(Force("Agent", {"description": "Run", "prompt": "Run it.", "subagent_type": "general-purpose", "run_in_background": True}),
                    bash("sleep 1; echo behind > behind.txt"))
        ask("Let an agent run it behind you.", *ALLOWED)
        statuses(proxy)
        assert from_agent() and agent.file("behind.txt") == "behind\n", [r["headers"] for r in proxy.answered()]

    def compaction():
        proxy.begin()
        ask("/compact", "--continue")
        ask("What did we do?", "--continue")
        statuses(proxy)

    def retries():
        proxy.begin(faults=[429, 529, 500, 503])
        ask("Say hello.")
        statuses(proxy, 429, 529, 500, 503)

    def structured():
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
        proxy.begin(Force("StructuredOutput", {"n": 7}))
        assert ask("A number.", "--json-schema", json.dumps(schema))["structured_output"] == {"n": 7}
        statuses(proxy)

    def web_search():
        """The server has none: its request is a 400 twice, which the session takes as the tool's failure."""
        proxy.begin(Force("ToolSearch", {"query": "select:WebSearch", "max_results": 1}), Force("WebSearch", {"query": "parcels in Oslo"}))
        ask("Look it up.", "--allowedTools", "ToolSearch WebSearch")
        statuses(proxy, 400, 400)

    def cut_answer():
        """It asks three times for the rest, each with the same limit, and says what ended it."""
        proxy.begin()
        try:
            ask("Say hello.", env={"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "3"})
        except AssertionError as end:
            assert '"api_error":"max_output_tokens"' in str(end), end
        statuses(proxy)
        assert all(b'"stop_reason":"max_tokens"' in r["answer"] for r in proxy.answered()) and len(proxy.answered()) == 4

    def interrupted():
        proxy.begin(bash("timeout 60 tail -f /dev/null"))
        agent.interrupt(proxy, "-p", "Wait.", "--output-format", "json", *ALLOWED)
        ask("Go on.", "--continue", *ALLOWED)
        statuses(proxy)

    def on_a_terminal():
        """A person's session: it gets a title, runs a tool, is stopped by Escape in the midst of one, and goes on. Titles are left out with all other
        traffic of CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC, which here finds no network in any case."""
        path = os.path.join(home, ".claude.json")
        settings = json.loads(agent.file(path) or "{}")
        settings.update(hasCompletedOnboarding=True, theme="dark", customApiKeyResponses={"approved": ["none"], "rejected": []})
        settings.setdefault("projects", {}).setdefault(agent.work, {})["hasTrustDialogAccepted"] = True
        agent.file(path, json.dumps(settings))
        proxy.begin(bash("echo typed > typed.txt"))
        essential = agent.env.pop("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")
        terminal = Terminal(agent, *ALLOWED)
        agent.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = essential
        titles = lambda: [r for r in proxy.answered() if not r["body"].get("tools") and "seconds" in r and TITLE in r["asked"]]
        ended = lambda n: len([r for r in proxy.answered() if r["body"].get("tools") and "seconds" in r]) >= n
        try:
            terminal.until(lambda: "❯" in terminal.screen, "prompt")
            terminal.rest(2)
            terminal.type("Please write a file for me.")
            terminal.until(lambda: titles() and ended(2), "title and answer")
            with proxy.lock:
                proxy.forces.append(bash("timeout 60 tail -f /dev/null; echo late > late.txt"))
            terminal.rest(2)
            terminal.type("Now wait.")
            terminal.until(lambda: ended(3), "call")
            terminal.rest(2)
            terminal.press(b"\x1b")
            terminal.until(lambda: "Interrupted" in terminal.screen, "sign of the interruption")
            terminal.type("Go on.")
            terminal.until(lambda: ended(4), "answer behind the interruption")
        finally:
            terminal.close()
        statuses(proxy)
        assert agent.file("typed.txt") == "typed\n" and agent.file("late.txt") is None
        assert b"interrupted by user" in proxy.answered()[-1]["asked"]

    return agent, [text, session, resumes_and_forks, picture, tool_search, sub_agent, background_agent, compaction, retries, structured, web_search, cut_answer, interrupted,
                   on_a_terminal]
