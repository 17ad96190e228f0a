#!/usr/bin/env python3
"""page_embed.py IN.html OUT.c: the playground page as a C array, and its Content-Security-Policy (GET /).

The policy lets nothing run or load but the page's own script and style, named by their hashes, and requests to where it came from."""
import base64
import hashlib
import re
import sys

with open(sys.argv[1], "rb") as file:
    page = file.read()


def hashes(tag):
    found = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), page, re.S)
    assert found, tag
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'" for text in found)


policy = (f"default-src 'none'; script-src {hashes(b'script')}; style-src {hashes(b'style')}; connect-src 'self'; "
          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
lines = [",".join(str(byte) for byte in page[i : i + 32]) for i in range(0, len(page), 32)]
with open(sys.argv[2], "w", encoding="utf-8") as out:
    out.write("/* made from playground.html by page_embed.py */\n#include \"server/call/server.h\"\n\n")
    out.write(f'const char page_policy[] = "{policy}";\n')
    out.write("const char page_html[] = {\n" + ",\n".join(lines) + ",\n0};\n")
    out.write("const size_t page_html_len = sizeof page_html - 1;\n")
