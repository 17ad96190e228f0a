# pip: aider-chat==0.86.2
import json
import os
import pathlib
import re
import subprocess
import tempfile

from frame import API, BIN, MODEL, check

LINE = "[A-Z][a-z]{2,8}( [a-z]{1,8}){2,6}\\."
FORMATS = {"whole": "fox\\.txt\n```\n" + LINE + "\n```\n",
           "diff": "fox\\.txt\n```\n<<<<<<< SEARCH\nA fox\\.\n=======\n" + LINE + "\n>>>>>>> REPLACE\n```\n",
           "udiff": "```diff\n--- fox\\.txt\n\\+\\+\\+ fox\\.txt\n@@ \\.\\.\\. @@\n-A fox\\.\n\\+" + LINE + "\n```\n"}


def aider(option, value, **settings):
    """What it said, and the file after it."""
    folder = tempfile.mkdtemp()
    file = pathlib.Path(folder, "fox.txt")
    file.write_text("A fox.\n", encoding="utf-8")
    pathlib.Path(folder, "settings.yml").write_text(json.dumps([{"name": "openai/" + MODEL, **settings}]), encoding="utf-8")  # JSON is YAML
    done = subprocess.run([os.path.join(BIN, "aider"), "--model", "openai/" + MODEL, "--model-settings-file", "settings.yml", "--openai-api-base", API,
                           "--openai-api-key", "none", "--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes",
                           "--analytics-disable", option, value, "--message", "Who is it?", "fox.txt"],
                          cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0 and "received" in done.stdout, done
    return done.stdout, file.read_text(encoding="utf-8")


@check
def ask():
    said, file = aider("--chat-mode", "ask")
    assert file == "A fox.\n", file
    return said.strip().splitlines()[-1]


@check
def edits_held_by_a_regex():
    """Its edit formats are text, which a model may miss; a regex of the request holds any model to one."""
    files = {}
    for name, regex in FORMATS.items():
        held = {"max_tokens": 200, "extra_body": {"structured_outputs": {"regex": regex}}}
        said, files[name] = aider("--edit-format", name, edit_format=name, extra_params=held)
        assert "Applied edit to fox.txt" in said and re.fullmatch(LINE + "\n", files[name]), (name, files[name], said)
    return files
