#!/usr/bin/env python3
"""table.py RESULT.json [PAGE.md]: the result of measure.py as a table; with PAGE.md it is written there, between the marks. Needs nothing but Python."""
import json
import re
import sys

MARKS = re.compile(r"(<!-- measured -->\n).*?(<!-- end of measured -->)", re.S)
ROWS = [  # skill, form (None for all), what stands in the table
    ("tools", None, "tools, all"), ("tools", "call", "tools: the right one, its arguments exact"), ("tools", "result", "tools: a sentence of a result"),
    ("tools", "none", "tools: none fits, and that is said"), ("extraction", None, "extraction: the whole object"), ("edit", None, "edit: the whole tale"),
    *((f"recall-{n}", None, f"recall of a name after {n:,} tokens") for n in (200, 500, 1000, 2000, 4000, 8000)),
    ("second", None, "two tool calls, and the sentences"), ("chain", None, "three tool calls, and the sentence"),
    ("agent", None, "an agent's loop over files, to its answer"), ("sums", None, "sums"), ("fim", None, "fill in the middle: a refrain"), ("system", None, "system prompts")]


def lines(result):
    yield "| held out | cases | right |"
    yield "|---|---|---|"
    for skill, form, said in ROWS:
        found = result["skills"].get(skill)
        if not found:  # measured alone, without it
            continue
        right, cases = found["forms_right_of"][form] if form else (found["right"], found["cases"])
        yield f"| {said} | {cases:,} | {right:,} ({100 * right / cases:.1f} %) |"
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
