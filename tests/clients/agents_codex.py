"""Codex's scenarios for tests/clients/agents."""
import base64
import json
import os
import sys

from agents_frame import Agent, sent, statuses
from agents_proxy import SAYS, Force
from agents_tools import PICTURE

HERE = os.path.dirname(os.path.abspath(__file__))
SETTINGS = """model = "gpt-5.5"
model_provider = "rodimus"
check_for_update_on_startup = false
[model_providers.rodimus]
name = "rodimus"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "RODIMUS_KEY"
requires_openai_auth = false
[analytics]
enabled = false
[mcp_servers.parcels]
command = "{python}"
args = ["{tools}"]
required = true
startup_timeout_sec = 60
"""
OUTPUTS = ("function_call_output", "custom_tool_call_output")


def patch(what):
    return Force("apply_patch", f"*** Begin Patch\n{what}\n*** End Patch\n")


def runs(command):
    return Force("exec_command", {"cmd": command})


def codex(program, proxy, home):
    agent = Agent([program], home, {"CODEX_HOME": os.path.join(home, ".codex"), "RODIMUS_KEY": "none"}, asks_version=True)
    os.makedirs(os.path.join(home, ".codex"), exist_ok=True)
    with open(os.path.join(home, ".codex", "config.toml"), "w", encoding="utf-8") as f:
        f.write(SETTINGS.format(url=proxy.url, python=sys.executable, tools=os.path.join(HERE, "agents_tools.py")))
    flags = ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    agent.thread = None

    def ask(*args, fails=False):
        events = [json.loads(line) for line in agent.run(*flags, *args, fails=fails).splitlines()]
        assert events[-1]["type"] == ("turn.failed" if fails else "turn.completed"), events[-1]
        agent.thread = next((e["thread_id"] for e in events if e["type"] == "thread.started"), agent.thread)
        return events

    def text():
        proxy.begin()
        ask("Say hello.")
        statuses(proxy)

    def session():
        """One thread of 18 requests: three runs of the program, each of which takes tools and goes on with what was said."""
        proxy.begin(runs("echo 1 > steps.txt"), patch("*** Add File: long.txt\n+one\n+two"), runs("cat long.txt >> steps.txt"), patch("*** Update File: long.txt\n@@\n-two\n+three"),
                    runs("cat long.txt >> steps.txt"), SAYS,
                    runs("echo 2 >> steps.txt"), patch("*** Update File: long.txt\n@@\n-three\n+four"), runs("cat long.txt >> steps.txt"), runs("ls"), SAYS,
                    runs("echo 3 >> steps.txt"), patch("*** Update File: long.txt\n@@\n-one\n+zero"), runs("cat long.txt >> steps.txt"), patch("*** Delete File: long.txt"),
                    runs("ls"), runs("echo 4 >> steps.txt"), SAYS)
        ask("Work on it.")
        first = agent.thread
        ask("resume", "--last", "Go on.")
        ask("resume", first, "Go on.")
        statuses(proxy)
        asked = proxy.answered()
        assert len(asked) == 18 and {r["headers"].get("thread-id") for r in asked} == {first}, len(asked)
        assert agent.file("steps.txt") == "1\none\ntwo\none\nthree\n2\none\nfour\n3\nzero\nfour\n4\n" and agent.file("long.txt") is None, agent.file("steps.txt")
        assert len([i for i in json.loads(asked[-1]["asked"])["input"] if i.get("type") in OUTPUTS]) == 15

    def forks():
        before = agent.thread
        proxy.begin(runs("echo fork > fork.txt"))
        ask("fork", before, "Or else?")
        statuses(proxy)
        assert agent.thread != before and agent.file("fork.txt") == "fork\n"
        sent(proxy, "long.txt")

    def other_models():
        models = ("gpt-5", "gpt-5.5")
        proxy.begin(*[f for model in models for f in (runs(f"echo hi > {model}.txt; ls"), SAYS)])
        for model in models:
            ask("-m", model, "List the files.")
            assert agent.file(f"{model}.txt") == "hi\n"
        statuses(proxy)

    def tool_search():
        proxy.begin(runs("sleep 8"), Force("tool_search", {"query": "parcel", "limit": 4}), Force("parcel_state", {"parcel": "7"}), Force("parcel_picture", {"parcel": "7"}))
        ask("Where is parcel 7?")
        statuses(proxy)
        for pattern in ('"tool_search_output"', "Parcel 7 is in Oslo", '"namespace":"mcp__parcels"', '"input_image"'):
            sent(proxy, pattern)

    def picture():
        path = agent.file("parcel.png", base64.b64decode(PICTURE))
        proxy.begin(Force("view_image", {"path": path}))
        ask("Look at it.")
        statuses(proxy)
        sent(proxy, '"input_image"')

    def sub_agent():
        """It runs beside its root, under a thread of its own."""
        proxy.begin(Force("spawn_agent", {"message": "Say hello."}))
        ask("-m", "gpt-5", "Let an agent say hello.")
        statuses(proxy)
        assert len({r["headers"].get("thread-id") for r in proxy.answered()}) == 2, [r["headers"] for r in proxy.answered()]

    def code_mode():
        proxy.begin(Force("exec", 'const r = await tools.exec_command({cmd: "echo code > code.txt"}); text(JSON.stringify(r))'))
        ask("-m", "gpt-6.1-sol", "Run code.")
        statuses(proxy)
        sent(proxy, '"additional_tools"')
        assert agent.file("code.txt") == "code\n"

    def compaction():
        """Its history is longer than the limit: it is summarised in a request of its own, before the next answer."""
        proxy.begin(runs("echo before > compacted.txt"), SAYS)
        ask("Write it down.")
        ask("-c", "model_auto_compact_token_limit=1000", "resume", "--last", "Go on.")
        statuses(proxy)
        kinds = [json.loads(r["headers"].get("x-codex-turn-metadata", "{}")).get("request_kind") for r in proxy.answered()]
        assert "compaction" in kinds and kinds[-1] == "turn", kinds
        assert agent.file("compacted.txt") == "before\n"

    def retries():
        proxy.begin(faults=[429, 503, 500, 529])
        ask("Say hello.")
        statuses(proxy, 429, 503, 500, 529)

    def cut_answer():
        """It takes no cut answer: it fails the turn at once, with the reason."""
        proxy.begin(max_tokens=3)
        said = ask("Say hello.", fails=True)[-1]
        assert "max_output_tokens" in json.dumps(said), said
        statuses(proxy)

    def interrupted():
        proxy.begin(runs("sleep 30"))
        agent.interrupt(proxy, *flags, "Wait.")
        ask("resume", "--last", "Go on.")
        statuses(proxy)

    def structured():
        path = agent.file("schema.json", json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}))
        proxy.begin()
        events = ask("--output-schema", path, "A number.")
        statuses(proxy)
        said = [e["item"]["text"] for e in events if e.get("item", {}).get("type") == "agent_message"][-1]
        assert list(json.loads(said)) == ["n"], said

    return agent, [text, session, forks, other_models, tool_search, picture, sub_agent, code_mode, compaction, retries, cut_answer, interrupted, structured]
