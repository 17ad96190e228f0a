"""What the scripts of this folder share: the server's address and model, and checks that say what came of them, one line of JSON each."""
import json
import os
import sys
import traceback

URL, MODEL = sys.argv[1:3]
API = URL + "/v1"
CALLS = MODEL == "skills"  # the model makes calls of its own; any other is only forced to
BIN = os.path.dirname(sys.executable)
TALE = "Tell me a tale about a fox."
WEATHER = "Please get the weather in Selmill."
PERSON = "John is 30 years old."


def check(function=None, *, calls=False):
    """Runs it now. calls: it needs a model that calls tools by itself."""
    if function is None:
        return lambda f: check(f, calls=calls)
    name = function.__name__
    if calls and not CALLS:
        print(json.dumps({"check": name, "skipped": "this model makes no calls of its own"}), flush=True)
        return function
    try:
        said = function()
        print(json.dumps({"check": name, "ok": True, "said": str(said)[:160]}), flush=True)
    except Exception as fault:  # noqa: BLE001: the runner counts it
        traceback.print_exc()
        print(json.dumps({"check": name, "ok": False, "said": f"{type(fault).__name__}: {fault}"[:400]}), flush=True)
    return function


def weather(city: str) -> str:
    return json.dumps({"weather": "rain"})
