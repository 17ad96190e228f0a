#!/usr/bin/env python3
"""openapi_embed.py IN.yaml OUT.c: the description of the routes as JSON, as a C array (GET /openapi.json)."""
import json
import sys

import yaml

with open(sys.argv[1], encoding="utf-8") as file:
    text = json.dumps(yaml.safe_load(file), ensure_ascii=False, separators=(",", ":")).encode()
lines = [",".join(str(byte) for byte in text[i : i + 32]) for i in range(0, len(text), 32)]
with open(sys.argv[2], "w", encoding="utf-8") as out:
    out.write("/* made from openapi.yaml by openapi_embed.py */\n#include \"server/call/server.h\"\n\n")
    out.write("const char openapi_json[] = {\n" + ",\n".join(lines) + ",\n0};\n")
    out.write("const size_t openapi_json_len = sizeof openapi_json - 1;\n")
