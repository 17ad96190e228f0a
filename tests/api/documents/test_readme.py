"""README.md says what happens: every example under a `test: run` mark ends well, and prints what stands under the next
`test: output` mark. Ids and times of creation differ from run to run and are left out."""
import os
import re
import shlex
import subprocess
import sys

import pytest

from server import RODIMUS, ROOT, command, environment, free_port

MARKED = re.compile(r"<!-- test: (run|output) -->\n```(\w+)\n(.*?)^```$", re.M | re.S)


def examples():
    """(name, language, code, output or None) of each example in README.md."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        text = f.read()
    found = []
    for m in MARKED.finditer(text):
        mark, language, body = m.groups()
        if mark == "run":
            line = text.count("\n", 0, m.start(3)) + 1
            found.append([f"line-{line}", language, body, None])
        else:
            assert found and found[-1][3] is None, f"output without a run: {body[:80]}"
            found[-1][3] = body
    return found


def settled(text):
    text = re.sub(r'"id":"(chat)?cmpl-[0-9a-f]{32}"', r'"id":"\1cmpl-"', text)
    return re.sub(r'"(created|created_at|used_at|expires_at)":\d+', r'"\1":0', text).rstrip("\n")


@pytest.mark.parametrize("language, code, output", [pytest.param(*e[1:], id=e[0]) for e in examples()])
def test_examples_print_what_the_readme_shows(server, language, code, output):
    code = code.replace("http://127.0.0.1:8080", server.url).replace("build/rodimus", shlex.quote(RODIMUS))
    code = code.replace("8090", str(free_port()))  # an example that starts servers of its own
    command = {"bash": ["bash", "-euc", code], "python": [sys.executable, "-c", code]}[language]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    if output is not None:
        assert settled(done.stdout) == settled(output)


def test_the_operators_chapter_leads_to_all_that_an_operator_needs():
    """That the lists are whole is held elsewhere: settings by test_config.c, metrics and log lines by test_operation.py, alerts
    by tests/deploy/test_files.py; that the links lead to headings, by tests/check-rules."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        chapter = re.search(r"^## For operators\n(.*?)^## ", f.read(), re.M | re.S).group(1)
    for link in ("config/README.md#all-settings", "server/README.md#metrics", "deploy/README.md#when-an-alert-comes", "deploy/SECURITY.md"):
        assert f"]({link})" in chapter, link


def test_flags_and_variables_in_the_readmes_exist():
    """Of serve and of every other command; a flag of a script of ours stands in its text."""
    helps = "".join(command(c, "--help").stdout for c in ("serve", "generate", "verify", "inspect", "bench", "load", "version"))
    flags = set(re.findall(r"--[a-z][a-z-]+", helps))
    variables = {f[2:].replace("-", "_").upper() for f in re.findall(r"--[a-z][a-z-]+", command("serve", "--help").stdout)}
    n = 0
    for name in ("README.md", "config/README.md", "server/README.md", "engine/README.md", "deploy/README.md", "deploy/SECURITY.md"):
        with open(os.path.join(ROOT, name), encoding="utf-8") as f:
            text = f.read()
        text = re.sub(r"^.*docker (?:build|compose|run).*$|--extra-request-body", "", text, flags=re.M)  # of others
        for script, arguments in re.findall(r"^(tests/[\w/-]+) (.*)$", text, flags=re.M):
            with open(os.path.join(ROOT, script), encoding="utf-8") as f:
                known = set(re.findall(r"--[a-z][a-z-]+", f.read()))
            its = set(re.findall(r"--[a-z][a-z-]+", arguments))
            assert its <= known, (name, script, its - known)
            n += len(its)
        text = re.sub(r"^tests/[\w/-]+ .*$", "", text, flags=re.M)
        said, named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)), set(re.findall(r"\bRODIMUS_([A-Z_]*[A-Z])\b", text))
        assert said <= flags, (name, said - flags)
        assert {v for v in named if not v.startswith("TEST_")} <= variables, (name, named - variables)
        n += len(said) + len(named)
    assert n > 40, n


def test_make_targets_that_the_readmes_name_exist():
    with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as f:
        phony = set(re.search(r"^\.PHONY: (.*)$", f.read(), re.M).group(1).split())
    named = set()
    for folder in ("", "config", "server", "engine", "kernels", "deploy", "tests"):
        with open(os.path.join(ROOT, folder, "README.md"), encoding="utf-8") as f:
            text = f.read()
        named |= {t for code in re.findall(r"`([^`]*)`|^(?:sudo )?(make .*)$", text, re.M) for line in code
                  for m in re.findall(r"\bmake((?: +[\w-]+| +[A-Z_]+=\S*)+)", line) for t in re.findall(r"(?<=\s)[a-z][\w-]*(?=\s|$)", m)}
    contract = {"all", "deps", "run", "test", "test-gpu", "test-browser", "test-clients", "soak", "fuzz", "asan", "ubsan", "tsan", "bench", "plots",
                "bundle", "format", "clean"}
    assert named | contract <= phony, (named | contract) - phony
    assert len(named) > 15, named


def test_what_the_readme_has_made_is_no_part_of_the_tree():
    """Else the rules would be asked of it: who followed the README and then ran `make test` had two failures."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        made = re.findall(r"python3 -m venv (\S+)|saved as (\S+)", f.read())
    assert len(made) == 2, made
    for path in map("".join, made):
        path = path.rstrip(",;:")
        assert subprocess.run(["git", "-C", ROOT, "check-ignore", "-q", path]).returncode in (0, 128), path  # 128: no repository


def test_variables_that_change_the_tests_are_listed():
    named = set()
    for folder, _, files in os.walk(os.path.join(ROOT, "tests")):
        for file in files:
            if file.endswith((".c", ".h", ".py")) or file in ("run", "away", "sanitize"):
                with open(os.path.join(folder, file), encoding="utf-8") as f:
                    named |= set(re.findall(r"\bRODIMUS_(?:TEST|KEEP)_[A-Z_]*[A-Z]\b", f.read()))
    with open(os.path.join(ROOT, "tests", "README.md"), encoding="utf-8") as f:
        listed = set(re.findall(r"\bRODIMUS_(?:TEST|KEEP)_[A-Z_]*[A-Z]\b", f.read().split("\n## Variables\n")[1].split("\n## ")[0]))
    assert named == listed and len(listed) > 15, (named - listed, listed - named)


def test_the_readme_has_examples_of_each_kind():
    kinds = {(language, output is not None) for _, language, _, output in examples()}
    assert {("bash", True), ("python", True)} <= kinds
