"""Agents beside Claude Code and Codex for tests/clients/agents: each takes the steps of a session of at least 15 requests, or what it has of one."""
import json
import os
import re

from agents_frame import Agent, statuses
from agents_proxy import SAYS, Force

WORK = "Please work on it, step by step."
HERE = os.path.dirname(os.path.abspath(__file__))


def steps(agent):
    return agent.file("steps.txt")


def shell_steps(tool, argument, first, last, **beside):
    """Calls that write their number into steps.txt."""
    return [Force(tool, {argument: f"echo {i} >> steps.txt", **beside}) for i in range(first, last + 1)]


def numbers(last):
    return "".join(f"{i}\n" for i in range(1, last + 1))


def check_session(proxy, agent, n_tools, n_requests=15):
    statuses(proxy)
    assert steps(agent) == numbers(n_tools), steps(agent)
    assert len(proxy.answered()) >= n_requests, len(proxy.answered())


# ---- mini-swe-agent ----

def mini(program, proxy, home):
    agent = Agent([program], home, {
        "OPENAI_API_KEY": "none", "OPENAI_API_BASE": proxy.url + "/v1", "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True"})

    def session():
        """Each step is a call of bash; the last one says that it is done."""
        proxy.begin(*shell_steps("bash", "command", 1, 15), Force("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}))
        agent.run("-m", "openai/skills", "-y", "--exit-immediately", "-t", WORK, "-o", os.path.join(home, "way.json"))
        check_session(proxy, agent, 15)

    return agent, [session]


# ---- mistral-vibe ----

VIBE = """active_model = "skills"
enable_telemetry = false
enable_update_checks = false
enable_auto_update = false
[[providers]]
name = "rodimus"
api_base = "{url}/v1"
api_key_env_var = "RODIMUS_KEY"
api_style = "openai"
backend = "generic"
[[models]]
name = "skills"
provider = "rodimus"
alias = "skills"
"""


def vibe(program, proxy, home):
    agent = Agent([program], home, {"VIBE_HOME": os.path.join(home, ".vibe"), "RODIMUS_KEY": "none", "MISTRAL_API_KEY": "none"})
    os.makedirs(os.path.join(home, ".vibe"), exist_ok=True)
    agent.file(os.path.join(home, ".vibe", "config.toml"), VIBE.format(url=proxy.url))

    def session():
        proxy.begin(*shell_steps("bash", "command", 1, 8), SAYS, *shell_steps("bash", "command", 9, 15), SAYS)
        agent.run("-p", WORK, "--auto-approve", "--trust", "--output", "json")
        agent.run("-p", "Go on.", "--continue", "--auto-approve", "--trust", "--output", "json")
        check_session(proxy, agent, 15)

    return agent, [session]


# ---- hermes-agent ----

HERMES = """model:
  default: skills
  provider: custom
  base_url: {url}/v1
  api_key: none
"""


def hermes(program, proxy, home):
    agent = Agent([program], home, {"HERMES_HOME": os.path.join(home, ".hermes")})
    os.makedirs(os.path.join(home, ".hermes"), exist_ok=True)
    agent.file(os.path.join(home, ".hermes", "config.yaml"), HERMES.format(url=proxy.url))

    def session():
        proxy.begin(*shell_steps("terminal", "command", 1, 8), SAYS, *shell_steps("terminal", "command", 9, 15), SAYS)
        agent.run("chat", "-q", WORK, "-Q", "--yolo", "--accept-hooks")
        agent.run("chat", "-q", "Go on.", "-Q", "--yolo", "--accept-hooks", "--continue")
        check_session(proxy, agent, 15)

    return agent, [session]


# ---- gptme ----

def gptme(program, proxy, home):
    agent = Agent([program], home, {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": proxy.url + "/v1", "GPTME_CHECK_UPDATES": "0"})

    def session():
        proxy.begin(*shell_steps("shell", "command", 1, 8), SAYS, *shell_steps("shell", "command", 9, 15), SAYS)
        flags = ["-n", "--tool-format", "tool", "-m", "local/skills"]
        agent.run(*flags, "--name", "steps", WORK)
        agent.run(*flags, "--name", "steps", "--resume", "Go on.")
        check_session(proxy, agent, 15)

    return agent, [session]


# ---- OpenHands ----

OPENHANDS = '''import os, sys
from openhands.sdk import LLM, Conversation
from openhands.tools.preset.default import get_default_agent
llm = LLM(model="openai/skills", base_url=sys.argv[1] + "/v1", api_key="none", usage_id="agent")
talk = Conversation(agent=get_default_agent(llm, cli_mode=True), workspace=os.getcwd())
for text in sys.argv[2:]:
    talk.send_message(text)
    talk.run()
'''


def openhands(program, proxy, home):
    agent = Agent([program], home, {"OPENHANDS_SUPPRESS_BANNER": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"})

    def session():
        """The agent of the package, its default tools, in this folder; the program around it is a web application."""
        script = agent.file(os.path.join(home, "talk.py"), OPENHANDS)
        proxy.begin(*shell_steps("terminal", "command", 1, 8), SAYS, *shell_steps("terminal", "command", 9, 15), SAYS)
        agent.run(script, proxy.url, WORK, "Go on.")
        check_session(proxy, agent, 15)

    return agent, [session]


# ---- aider ----

def aider(program, proxy, home):
    agent = Agent([program], home, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})
    flags = ["--model", "openai/skills", "--openai-api-base", proxy.url + "/v1", "--openai-api-key", "none", "--no-git", "--yes-always", "--no-check-update",
             "--no-show-model-warnings", "--no-show-release-notes", "--analytics-disable", "--restore-chat-history", "--chat-history-file", os.path.join(agent.work, "history.md"), "--input-history-file", os.path.join(home, "typed")]

    def session():
        """It has no tools: the model writes the file. A regular expression of the request holds the answer to that form."""
        agent.file("fox.txt", "A fox.\n")
        held = {"max_tokens": 60, "extra_body": {"structured_outputs": {"regex": "fox\\\\.txt\\n```\\n[A-Z][a-z]{2,8}( [a-z]{1,8}){2,6}\\\\.\\n```\\n".replace("\\\\", "\\")}}}
        settings = agent.file(os.path.join(home, "settings.yml"), json.dumps([{"name": "openai/skills", "edit_format": "whole", "extra_params": held}]))
        texts = []
        proxy.begin()
        for _ in range(15):
            agent.run(*flags, "--model-settings-file", settings, "--edit-format", "whole", "--message", "Who is it?", "fox.txt")
            texts.append(agent.file("fox.txt"))
        statuses(proxy)
        assert len(proxy.answered()) >= 15 and all(re.fullmatch("[A-Z][a-z]+( [a-z]+)+\\.\n", t) for t in texts), texts

    return agent, [session]
