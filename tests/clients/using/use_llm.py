# pip: llm==0.36
import os
import pathlib
import subprocess
import tempfile

from frame import API, BIN, MODEL, PERSON, TALE, WEATHER, check

home = tempfile.mkdtemp()
pathlib.Path(home, "extra-openai-models.yaml").write_text(
    f"- model_id: here\n  model_name: {MODEL}\n  api_base: {API}\n  supports_tools: true\n  supports_schema: true\n", encoding="utf-8")
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 150, "minimum": 0}}, "required": ["name", "age"]}'
TOOL = "def get_weather(city: str) -> str:\n    'Get the weather.'\n    return 'rain'"


def llm(*words):
    done = subprocess.run([os.path.join(BIN, "llm"), "-m", "here", "-o", "max_tokens", "100", *words], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "LLM_USER_PATH": home, "OPENAI_API_KEY": "none"})
    assert done.returncode == 0 and done.stdout.strip(), done
    return done.stdout + done.stderr


@check
def text():
    return llm(TALE)


@check
def schema():
    return llm("--schema", SCHEMA, PERSON)


@check(calls=True)
def tool():
    found = llm("--functions", TOOL, "--td", "-o", "temperature", "0", WEATHER)
    assert "get_weather({'city': 'Selmill'})" in found, found
    return found
