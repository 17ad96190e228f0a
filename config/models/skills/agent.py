#!/usr/bin/env python3
"""agent.py FOLDER QUESTION [URL]: an agent in plain Python. It offers a model two tools, runs what the model calls in FOLDER, and sends back the results, until
an answer comes without a call. Needs nothing but Python."""
import json
import sys
import urllib.request
from pathlib import Path

MOST_STEPS = 8


def inside(folder, path):
    """What the model names is no reason to read elsewhere."""
    found = (folder / path).resolve()
    if not found.is_relative_to(folder):
        raise OSError(f"{path} is not in the folder.")
    return found


def list_files(folder, path):
    return json.dumps(sorted(str(p.relative_to(folder)) for p in inside(folder, path).iterdir()))


def read_file(folder, path):
    return inside(folder, path).read_text(encoding="utf-8")


TOOLS = {"list_files": (list_files, "List the files in a folder."), "read_file": (read_file, "Read a file.")}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def asked(url, messages):
    tools = [{"type": "function", "function": {"name": name, "description": says, "parameters": PATH}} for name, (_, says) in TOOLS.items()]
    body = json.dumps({"messages": messages, "tools": tools, "temperature": 0}).encode()
    with urllib.request.urlopen(urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})) as answer:
        return json.load(answer)["choices"][0]["message"]


def result_of(folder, call):
    try:
        return TOOLS[call["name"]][0](folder, **json.loads(call["arguments"]))
    except (OSError, TypeError, ValueError) as fault:
        return str(fault)


def main(folder, question, url="http://127.0.0.1:8080"):
    messages = [{"role": "user", "content": question}]
    for _ in range(MOST_STEPS):
        messages.append(asked(url, messages))
        for call in messages[-1].get("tool_calls") or []:
            result = result_of(Path(folder).resolve(), call["function"])
            print(call["function"]["name"], call["function"]["arguments"], "->", result.rstrip())
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if messages[-1]["role"] == "assistant":
            return messages[-1]["content"]
    return f"There is no answer after {MOST_STEPS} steps."


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
