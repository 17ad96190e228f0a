# pip: aider-chat==0.86.2
import os
import pathlib
import subprocess
import tempfile

from frame import API, BIN, MODEL, check


@check
def ask():
    folder = tempfile.mkdtemp()
    pathlib.Path(folder, "fox.txt").write_text("A fox.\n", encoding="utf-8")
    done = subprocess.run([os.path.join(BIN, "aider"), "--model", "openai/" + MODEL, "--openai-api-base", API, "--openai-api-key", "none", "--no-git", "--yes-always",
                           "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes", "--analytics-disable", "--chat-mode", "ask", "--message", "Who is it?",
                           "fox.txt"], cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0 and "received" in done.stdout, done
    return done.stdout.strip().splitlines()[-1]
