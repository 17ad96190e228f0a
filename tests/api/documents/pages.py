"""The pages of this repository: every file NAME.md, by its path from the root."""
import os

from server import ROOT


def page(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        return f.read()


def pages():
    found = []
    for folder, inside, files in os.walk(ROOT):
        inside[:] = sorted(d for d in inside if d != "build" and not d.startswith("."))
        found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in sorted(files) if name.endswith(".md")]
    return found
