"""The public JSON-Schema-Test-Suite: each schema is honoured, weakened with a note (tools only), or refused with the reason."""
import contextlib
import glob
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile

import pytest

BUILD = os.environ.get("BUILD_DIR", "build")
SUITE = os.path.join(BUILD, "schema-suite", "json", "tests")
# Refusals without a keyword: nothing is valid; a const has U+0000.
WITHOUT_A_KEYWORD = ("matches no finite text", "is not JSON: \\u0000 is not allowed")

# What must at least hold: schemas honoured, and valid instances that their grammars accept as Python writes them. The rest of
# the valid ones has another order of properties, properties that are not listed, or another type than the keywords are about.
AT_LEAST = {"draft2020-12": (180, 290), "draft7": (170, 275)}


@pytest.fixture(scope="module")
def suite():
    """Of jsonschema's source archive, which carries the suite."""
    if not os.path.isdir(SUITE):
        version = importlib.metadata.version("jsonschema")
        with tempfile.TemporaryDirectory(dir=BUILD) as to:
            try:
                subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", "jsonschema",
                                f"jsonschema=={version}", "-d", to], capture_output=True, check=True, timeout=100)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failure:
                pytest.skip(f"PyPI gives no source archive of jsonschema: {failure} {failure.stderr}")
            with tarfile.open(glob.glob(to + "/*.tar.gz")[0]) as archive:
                archive.extractall(to)
            with contextlib.suppress(OSError):  # another worker was faster
                os.rename(f"{to}/jsonschema-{version}", os.path.dirname(os.path.dirname(SUITE)))
    return SUITE


@pytest.fixture(scope="module")
def reads():
    """Asks the grammar of a schema, or of a tool's arguments: schema_reads.c."""
    program = os.path.join(BUILD, "tests/api/protocol/schema_reads")
    assert os.path.exists(program), f"{program} is missing: run make test-programs"
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        def ask(kind, schema, texts):
            process.stdin.write(json.dumps({kind: schema, "texts": texts}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


def cases(suite, draft):
    for file in sorted(glob.glob(f"{suite}/{draft}/*.json") + glob.glob(f"{suite}/{draft}/optional/format/*.json")):
        with open(file, encoding="utf-8") as f:
            for case in json.load(f):
                yield f"{file[len(suite) + 1:]}: {case['description']}", case["schema"], case["tests"]


def keywords_of(schema):
    if isinstance(schema, dict):
        return set(schema).union(*(keywords_of(value) for value in schema.values()))
    return set().union(*(keywords_of(value) for value in schema)) if isinstance(schema, list) else set()


@pytest.mark.parametrize("draft", AT_LEAST)
def test_a_schema_suite_format_holds_or_is_refused(suite, reads, draft):
    honoured = refused = accepted = noted = 0
    for name, schema, tests in cases(suite, draft):
        answer = reads("schema", schema, [json.dumps(test["data"]) for test in tests])
        if "fault" in answer:
            refused += 1
            word = re.match(r"has (?:at \S+ )?the keyword (\S+?),? ", answer["fault"])
            assert answer["fault"].startswith(WITHOUT_A_KEYWORD) or (word and word[1] in keywords_of(schema)), (name, schema, answer)
            continue
        if answer["notes"]:  # an answer may repeat an item, as no grammar remembers all items; and formats of other vocabularies
            noted += 1
            assert all(re.search("uniqueItems|the format", line) for line in answer["notes"].splitlines()), (name, schema, answer)
        else:
            honoured += 1
        for test, got in zip(tests, answer["reads"]):
            accepted += got and test["valid"]
            assert test["valid"] or not got or answer["notes"], f"{name}: {schema} accepts {test['data']}, which is not valid"
    print(f"{draft}: {honoured} honoured, {noted} noted, {refused} refused; {accepted} valid instances accepted")
    assert (honoured, accepted) >= AT_LEAST[draft] and accepted >= AT_LEAST[draft][1], (honoured, accepted)
    assert noted <= 4, noted


@pytest.mark.parametrize("draft", AT_LEAST)
def test_a_schema_suite_tool_is_weakened_with_a_note(suite, reads, draft):
    honoured = noted = 0
    for name, schema, tests in cases(suite, draft):
        answer = reads("arguments", schema, [json.dumps(test["data"]) for test in tests])
        if "fault" in answer:
            assert answer["fault"] == "matches no finite text", (name, schema, answer)
            continue
        honoured += not answer["notes"]
        noted += bool(answer["notes"])
        for test, got in zip(tests, answer["reads"]):
            assert not got or isinstance(test["data"], dict), f"{name}: arguments of {schema} may be {test['data']}, which is no object"
            assert test["valid"] or not got or answer["notes"], f"{name}: {schema} accepts {test['data']}, which is not valid"
    print(f"{draft}: {honoured} honoured, {noted} with a note")
    assert honoured >= 140, honoured
