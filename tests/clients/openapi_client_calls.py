"""Calls every operation of openapi.yaml with the package that openapi-python-client made of it, and writes how many there were."""
import importlib
import inspect
import io
import json
import os
import re
import sys
import typing

from ruamel.yaml import YAML

from rodimus_server_client import Client
from rodimus_server_client.models import Error
from rodimus_server_client.types import File

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BEARING, CONVERSATION = "a-session", "thread-1"  # that of the example


def load():
    with open(os.path.join(ROOT, "openapi.yaml"), encoding="utf-8") as f:
        return YAML(typ="safe").load(f)


def module_of(operation):
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation["operationId"]).lower()
    return importlib.import_module(f"rodimus_server_client.api.{operation['tags'][0]}.{name}")


def bodies(operation):
    """The examples of a request, none as a stream: the package reads whole answers."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    found = [e["value"] for e in content.get("examples", {}).values()] + ([content["example"]] if "example" in content else [])
    return [{k: v for k, v in body.items() if not k.startswith("stream")} for body in found]


def typed(call, body):
    """The body as what the package takes, by the type that the call names."""
    wanted = typing.get_type_hints(call)["body"]
    models = [m for m in typing.get_args(wanted) or [wanted] if hasattr(m, "from_dict")]
    for model in models:
        made = model.from_dict(body)
        if made.to_dict() == body:
            return made
    raise AssertionError(f"{call.__module__}: {body} is not what {models} have")


def arguments(path, call, method, state, response):
    taken = inspect.signature(call).parameters
    ids = {"{id}": "tales" if "/models/" in path else response if "/responses/" in path else BEARING}
    given = {"id": value for key, value in ids.items() if key in path}
    if path.endswith("/state") and method == "put":
        given["body"] = File(payload=io.BytesIO(state))
    return {key: value for key, value in given.items() if key in taken}


def prepare(http):
    """A session of five turns, all kept, and a conversation; the session's state, and a stored response."""
    http.delete(f"/v1/sessions/{BEARING}")
    http.post("/v1/sessions", json={"id": BEARING, "keep_turns": 8}).raise_for_status()
    for _ in range(5):
        http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 1, "session_id": BEARING}).raise_for_status()
    text = {"messages": [{"role": "user", "content": "Once " * 99}], "max_tokens": 1}
    http.post("/v1/chat/completions", json={**text, "prompt_cache_key": CONVERSATION}).raise_for_status()
    response = http.post("/v1/responses", json={"input": "Once", "max_output_tokens": 1}).json()["id"]
    return http.get(f"/v1/sessions/{BEARING}/state").content, response


def main(url):
    document, client = load(), Client(base_url=url)
    http = client.get_httpx_client()
    n_calls, operations = 0, [(p, m, o) for p, item in document["paths"].items() for m, o in item.items() if isinstance(o, dict) and "operationId" in o]
    assert len(operations) >= 30, len(operations)
    for path, method, operation in operations:
        call = module_of(operation).sync_detailed
        for body in bodies(operation) or [None]:
            state, response = prepare(http)
            more = {} if body is None else {"body": typed(call, {**body, **{k: 4 for k in ("max_tokens", "max_output_tokens") if body.get(k, 0) > 4}})}
            assert more or "body" not in inspect.signature(call).parameters or "body" in arguments(path, call, method, state, response), f"{path} has no example"
            answer = call(client=client, **arguments(path, call, method, state, response), **more)
            documented = operation["responses"]
            assert str(int(answer.status_code)) in documented, (path, method, answer)
            content = documented.get("200", {}).get("content", {})
            if "200" in documented:
                assert answer.status_code == 200, (path, method, answer)
                assert "application/json" not in content or (answer.parsed is not None and not isinstance(answer.parsed, Error)), (path, method, answer)
            if "application/json" in content and hasattr(answer.parsed, "to_dict") and not isinstance(answer.parsed, Error):
                assert answer.parsed.to_dict() == json.loads(answer.content), (path, method)
            n_calls += 1
    with open(os.path.join(ROOT, "tests/clients/results/openapi_client.json"), "w", encoding="utf-8") as f:
        json.dump({"operations": len(operations), "calls": n_calls}, f, indent=1)
        f.write("\n")
    print(f"{len(operations)} operations, {n_calls} calls")


if __name__ == "__main__":
    main(sys.argv[1])
