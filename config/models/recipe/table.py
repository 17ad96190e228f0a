#!/usr/bin/env python3
"""table.py RESULT.json [PAGE.md]: the result of measure.py as a table; with PAGE.md it is written there, between the marks. Needs nothing but Python."""
import json
import re
import sys

MARKS = re.compile(r"(<!-- measured -->\n).*?(<!-- end of measured -->)", re.S)
ROWS = [  # skill, what stands in the table
    ("tools", "tools: call, result or none"), ("extraction", "extraction: the whole object"), ("edit", "edit: the whole tale"),
    *((f"recall-{n}", f"recall after {n:,} tokens") for n in (200, 500, 1000, 2000, 4000, 8000)),
    ("second", "two tool calls, and the sentences"), ("chain", "three tool calls, and the sentence"),
    ("agent", "an agent's loop over files, to its answer"), ("sums", "sums"), ("fim", "fill in the middle: a refrain"), ("system", "system prompts")]


def lines(result):
    yield "| held out | cases | right |"
    yield "|---|---|---|"
    for skill, said in ROWS:
        found = result["skills"].get(skill)
        if not found:  # measured alone, without it
            continue
        yield f"| {said} | {found['cases']:,} | {found['right']:,} ({100 * found['right'] / found['cases']:.1f}%) |"
    tales = result["tales"]
    yield f"| tales, {tales['characters']:,} characters | {tales['tales']} | {tales['nats_a_character']:.3f} nats a character |"


def main(path, page=None):
    with open(path, encoding="utf-8") as f:
        table = "\n".join(lines(json.load(f))) + "\n"
    if not page:
        print(table, end="")
        return
    with open(page, encoding="utf-8") as f:
        text = f.read()
    if not MARKS.search(text):
        sys.exit(f"{page} has no marks of the table")
    with open(page, "w", encoding="utf-8") as f:
        f.write(MARKS.sub(lambda m: m.group(1) + table + m.group(2), text))


if __name__ == "__main__":
    main(*sys.argv[1:])
