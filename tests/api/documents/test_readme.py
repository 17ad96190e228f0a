"""The pages say what happens: every example under a `test: run` mark ends well, and prints what stands under the next
`test: output` mark. Ids, times of creation and what was drafted differ from run to run and are left out. What an example asks on port 8080 is a
server of the product's default model, or of the mark's: `test: run --model DIR`. RODIMUS_TEST_WRITE=1 writes the outputs anew."""
import collections
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from pages import page, pages
from server import RODIMUS, ROOT, Server, command, environment, free_port

MARKED = re.compile(r"<!-- test: (run|output)(?: --model (\S+))? -->\n```(\w+)\n(.*?)^```$", re.M | re.S)
Example = collections.namedtuple("Example", "page line model language code output mark")  # mark: the output's, counted from 0


def examples():
    """Those of all pages; model, output and its mark are None where the page has none."""
    found = []
    for name in pages():
        text, of_page = page(name), []
        for i, m in enumerate(MARKED.finditer(text)):
            mark, model, language, body = m.groups()
            if mark == "run":
                of_page.append(Example(name, text.count("\n", 0, m.start(4)) + 1, model, language, body, None, None))
            else:
                assert of_page and of_page[-1].output is None, f"{name}: output without a run: {body[:80]}"
                of_page[-1] = of_page[-1]._replace(output=body, mark=i)
        found += of_page
    return found


def settled(text):
    text = re.sub(r'"id":"(chat)?cmpl-[0-9a-f]{32}"', r'"id":"\1cmpl-"', text)
    text = re.sub(r'"system_fingerprint":"fp_[0-9a-f]{12}"', '"system_fingerprint":"fp_"', text)
    text = re.sub(r',"completion_tokens_details":{"accepted_prediction_tokens":\d+,"rejected_prediction_tokens":\d+}', "", text)
    return re.sub(r'"(created|created_at|used_at|expires_at)":\d+', r'"\1":0', text).rstrip("\n")


def write_output(example, output):
    """If it says something else than the page; ids and times alone stay as they stand."""
    if settled(output) == settled(example.output):
        return
    text = page(example.page)
    begin, end = list(MARKED.finditer(text))[example.mark].span(4)
    with open(os.path.join(ROOT, example.page), "w", encoding="utf-8") as f:
        f.write(text[:begin] + output + "\n" * (not output.endswith("\n")) + text[end:])


@pytest.fixture(scope="module")
def serving():
    """serving(MODEL): the server of this model, None is the product's default."""
    made = {}

    def of(model):
        if model not in made:
            made[model] = Server(model=model and os.path.join(ROOT, model), name=f"documents-{len(made)}")
        return made[model]

    yield of
    assert [s.stop() for s in made.values()] == [0] * len(made)


@pytest.mark.parametrize("example", [pytest.param(e, id=f"{e.page}-line-{e.line}") for e in examples()])
def test_examples_print_what_the_readme_shows(serving, example):
    code = example.code.replace("build/rodimus", shlex.quote(RODIMUS)).replace("8090", str(free_port()))  # an example that starts servers of its own
    if "127.0.0.1:8080" in code:
        code = code.replace("http://127.0.0.1:8080", serving(example.model).url)
    command = {"bash": ["bash", "-euc", code], "python": [sys.executable, "-c", code]}[example.language]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment(None))
    assert done.returncode == 0, done.stdout + done.stderr
    if example.output is not None and os.environ.get("RODIMUS_TEST_WRITE"):
        write_output(example, done.stdout)
    elif example.output is not None:
        assert settled(done.stdout) == settled(example.output)


def test_an_output_is_written_under_its_own_mark_and_only_if_it_differs(tmp_path, monkeypatch):
    monkeypatch.setattr("pages.ROOT", str(tmp_path))
    monkeypatch.setattr(f"{__name__}.ROOT", str(tmp_path))
    run, output = "<!-- test: run -->\n```bash\necho {}\n```\n", "<!-- test: output -->\n```text\n{}\n```\n"
    before = '"created":1'
    (tmp_path / "A.md").write_text(run.format("a") + output.format("old") + run.format("b") + output.format(before) + run.format("c") + output.format("old"))
    for example, new in zip(examples(), ["two\nlines\n\n", '"created":2\n', "no line break"], strict=True):
        write_output(example, new)
    assert (tmp_path / "A.md").read_text() == (run.format("a") + output.format("two\nlines\n") + run.format("b") + output.format(before) + run.format("c")
                                               + output.format("no line break"))


def test_the_readmes_agent_reads_in_its_folder_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(os.path.join(ROOT, "config", "models", "skills"))
    import agent
    folder = tmp_path / "notes"
    folder.mkdir()
    above = os.path.join("..", "other.txt")
    (tmp_path / "other.txt").write_text("silver")
    (folder / "lamp.txt").write_text("gold")
    (folder / "link.txt").symlink_to(above)
    said = {path: agent.result_of(folder, {"name": "read_file", "arguments": json.dumps({"path": path})})
            for path in ("lamp.txt", above, str(tmp_path / "other.txt"), "link.txt", "none.txt")}
    assert said.pop("lamp.txt") == "gold"
    assert all(said.values()) and "silver" not in str(said), said
    assert "silver" not in agent.result_of(folder, {"name": "list_files", "arguments": '{"path": ".."}'})
    assert agent.result_of(folder, {"name": "read_file", "arguments": '{"file": "lamp.txt"}'}) != "gold"


def test_the_operators_chapter_leads_to_all_that_an_operator_needs():
    """That the lists are whole is held elsewhere: settings by test_config.c, metrics and log lines by test_operation.py, alerts
    by tests/deploy/test_files.py; that the links lead to headings, by tests/check-rules."""
    assert "](deploy/README.md#for-operators)" in page("README.md")
    chapter = re.search(r"^## For operators\n(.*?)^## ", page("deploy/README.md"), re.M | re.S).group(1)
    for link in ("../config/README.md#all-settings", "../server/METRICS.md", "ALERTS.md", "SECURITY.md"):
        assert f"]({link})" in chapter, link


def test_log_lines_that_the_runbook_quotes_exist():
    """An operator searches for them. Names that a macro stands for are written out."""
    text = ""
    for folder, _, files in os.walk(os.path.join(ROOT, "engine")):
        text += "".join(page(os.path.join(folder, name)) for name in files if name.endswith(".c"))
    text = re.sub(r'"\s*"', "", text.replace("SESSION_NAMES_FILE", '"names.key"'))  # one literal of those that the compiler joins
    quoted = [re.sub(r"\s+", " ", line) for line in re.findall(r'(?<!`)"([a-z][^"`]* [^"`]*)"', page("deploy/ALERTS.md"), re.I)]
    assert len(quoted) >= 6, quoted
    assert not [line for line in quoted if line not in text]


def of_other_programs(name):
    """A page with flags of compilers and of the test programs."""
    return name.startswith(("kernels/", "tests/")) and not name.startswith("tests/bench/")


def test_flags_and_variables_in_the_readmes_exist():
    """Of serve and of every other command; a flag of a script of ours stands in its text."""
    helps = "".join(command(c, "--help").stdout for c in ("serve", "generate", "verify", "inspect", "quantise", "bench", "load", "states", "version"))
    flags = set(re.findall(r"--[a-z][a-z-]+", helps))
    variables = {f[2:].replace("-", "_").upper() for f in re.findall(r"--[a-z][a-z-]+", command("serve", "--help").stdout)}
    for name in ("haproxy.cfg", "nginx-start", "Caddyfile"):  # of the balancers
        variables |= set(re.findall(r"\$\{?RODIMUS_([A-Z_]*[A-Z])\b", page("deploy/" + name)))
    n = 0
    for name in pages():
        if of_other_programs(name):
            continue
        text = page(name)
        text = re.sub(r"^.*(?:(?:docker|podman) (?:build|compose|run)|kubectl |caddy run|^systemctl|^groupadd).*$|--extra-request-body|--(?:build-arg|format|stop-timeout|target|user|routing-key-headers|health-check-interval-secs|health-failure-threshold|router-session-affinity-ttl-secs)\b", "", text, flags=re.M)  # of others
        for script, arguments in re.findall(r"^(tests/[\w/-]+) (.*)$", text, flags=re.M):
            known = set(re.findall(r"--[a-z][a-z-]+", page(script)))
            its = set(re.findall(r"--[a-z][a-z-]+", arguments))
            assert its <= known, (name, script, its - known)
            n += len(its)
        text = re.sub(r"^tests/[\w/-]+ .*$", "", text, flags=re.M)
        said, named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)), set(re.findall(r"\bRODIMUS_([A-Z_]*[A-Z])\b", text))
        script = {"deploy/UPGRADE.md": "deploy/roll", "deploy/BALANCERS.md": "deploy/dynamo/worker.py"}.get(name)
        if script:
            said -= set(re.findall(r"--[a-z][a-z-]+", page(script)))
        if name == "config/models/recipe/README.md":
            scripts = "".join(page(f"config/models/recipe/{script}.py") for script in ("train", "corpus", "measure", "test_recipe"))
            said, named = said - set(re.findall(r"--[a-z][a-z-]+", scripts)), named - set(re.findall(r"\bRODIMUS_([A-Z_]*[A-Z])\b", scripts))
        assert said <= flags, (name, said - flags)
        assert {v for v in named if not v.startswith("TEST_")} <= variables, (name, named - variables)
        n += len(said) + len(named)
    assert n > 40, n


def test_the_record_of_clients_is_of_these_scripts_and_has_no_failure():
    """With the packages of each script's first line; the page says how many checks there are. None was skipped: the default model calls tools."""
    using = os.path.join(ROOT, "tests", "clients", "using")
    scripts = {f[4:-3]: re.match("# pip: (.*)", page(f"tests/clients/using/{f}")).group(1) for f in os.listdir(using) if f.startswith("use_")}
    record = json.loads(page("tests/clients/results/frameworks.json"))
    assert {name: client["packages"] for name, client in record["clients"].items()} == scripts
    checks = {f"{name} {check}": found for name, client in record["clients"].items() for check, found in client["checks"].items()}
    assert not [name for name, found in checks.items() if not found.get("ok")]
    assert f"{len(scripts)} clients, {len(checks)} checks, all passed" in page("server/CLIENTS.md"), (len(scripts), len(checks))
    assert f"{len(scripts)} frameworks and clients" in page("tests/README.md"), len(scripts)


def test_the_record_of_agents_is_of_these_packages_and_has_no_failure():
    """And the page of settings says which versions were tried."""
    packages = dict(re.findall(r'"(\w+)": \("agents_\w+", "([\w.=-]+)"', page("tests/clients/agents")))
    record = json.loads(page("tests/clients/results/agents.json"))["agents"]
    assert {name: agent["package"] for name, agent in record.items()} == packages
    assert not [(name, scenario) for name, agent in record.items() for scenario, found in agent["scenarios"].items() if not found["ok"]]
    for name, agent in record.items():
        version = re.search(r"\d+\.\d+\.\d+", agent["version"]).group(0)
        assert version in page("server/USE.md"), (name, version)
        assert max(len(found["requests"]) for found in agent["scenarios"].values()) >= 15, name


def test_make_targets_that_the_readmes_name_exist():
    phony = set(re.search(r"^\.PHONY: (.*)$", page("Makefile"), re.M).group(1).split())
    named = set()
    for name in pages():
        named |= {t for code in re.findall(r"`([^`]*)`|^(?:sudo )?(make .*)$", page(name), re.M) for line in code
                  for m in re.findall(r"\bmake((?: +[\w-]+| +[A-Z_]+=\S*)+)", line) for t in re.findall(r"(?<=\s)[a-z][\w-]*(?=\s|$)", m)}
    contract = {"all", "deps", "run", "test", "test-gpu", "test-browser", "test-clients", "soak", "fuzz", "asan", "ubsan", "tsan", "bench", "plots",
                "bundle", "format", "clean"}
    assert named | contract <= phony, (named | contract) - phony
    assert len(named) > 15, named


def test_what_the_readme_has_made_is_no_part_of_the_tree():
    """Else the rules would be asked of it: who followed the README and then ran `make test` had two failures."""
    made = re.findall(r"python3 -m venv (\S+)|saved as (\S+)", page("README.md"))
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
    chapter = page("tests/README.md").split("\n## Variables\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"\bRODIMUS_(?:TEST|KEEP)_[A-Z_]*[A-Z]\b", chapter))
    assert named == listed and len(listed) > 15, (named - listed, listed - named)


def test_the_readme_has_examples_of_each_kind():
    found, both = examples(), {("bash", True), ("python", True)}
    for name, wanted in (("README.md", both), ("server/SESSIONS.md", both), ("server/PREFIXES.md", {("bash", True)}), ("tests/bench/README.md", {("bash", False), ("python", True)})):
        assert wanted <= {(e.language, e.output is not None) for e in found if e.page == name}, name
    assert len(found) >= 10, found
