# pip: openapi-python-client==0.29.1
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

from frame import BIN, MODEL, URL, check

folder = tempfile.mkdtemp()


@check
def every_route_is_generated():
    with urllib.request.urlopen(URL + "/openapi.json") as answer:
        pathlib.Path(folder, "openapi.json").write_bytes(answer.read())
    done = subprocess.run([os.path.join(BIN, "openapi-python-client"), "generate", "--path", folder + "/openapi.json", "--output-path", folder + "/here", "--meta", "none"],
                          capture_output=True, text=True, timeout=200, check=False, env={**os.environ, "PATH": BIN + ":" + os.environ["PATH"]})
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "WARNING" not in said and "Failure" not in said and "Endpoint" not in said, said[-1500:]
    return sorted(p.name for p in pathlib.Path(folder, "here", "api").iterdir() if p.is_dir())


@check
def a_generated_call_answers():
    sys.path.insert(0, folder)
    client = importlib.import_module("here").Client(base_url=URL)
    models = importlib.import_module("here.api.models.list_models").sync(client=client)
    assert [m.id for m in models.data] == [MODEL], models
    return models.data[0].id
