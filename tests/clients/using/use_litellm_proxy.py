# pip: litellm[proxy]==1.106.2 openai==2.54.0 anthropic==2.12.0
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import anthropic
import openai

from frame import API, BIN, CALLS, MODEL, TALE, URL, WEATHER, check

KEY = "sk-" + secrets.token_hex(16)  # the proxy does not start without one
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
ASK, WEATHER_ASK = ([{"role": "user", "content": text}] for text in (TALE, WEATHER))


def start():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{s.getsockname()[1]}"
    folder = tempfile.mkdtemp()
    config = pathlib.Path(folder, "config.yaml")
    models = [{"model_name": name, "litellm_params": {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": "none"}}
              for name, provider, base in ((MODEL, "openai", API), ("claude", "anthropic", URL))]
    config.write_text(json.dumps({"model_list": models}), encoding="utf-8")  # JSON is YAML
    process = subprocess.Popen([os.path.join(BIN, "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", url.rpartition(":")[2]], cwd=folder,
                               stdout=sys.stderr, stderr=sys.stderr, env={**os.environ, "LITELLM_MASTER_KEY": KEY})
    for _ in range(240):
        try:
            urllib.request.urlopen(url + "/health/liveliness", timeout=5).read()
            return process, url
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.5)
    process.terminate()
    raise SystemExit("the proxy did not start in 120 s")


proxy, proxy_url = start()
gpt = openai.OpenAI(base_url=proxy_url + "/v1", api_key=KEY, timeout=60)
claude = anthropic.Anthropic(base_url=proxy_url, api_key=KEY, timeout=60)
greedy = {"extra_body": {"temperature": 0}}  # the package has no such argument


def city_of(name, arguments):
    """The city of a call; which one, if the model chooses what it says."""
    city = (json.loads(arguments) if isinstance(arguments, str) else arguments)["city"]
    assert name == "get_weather" and (city == "Selmill" if CALLS else isinstance(city, str)), (name, arguments)
    return city


@check
def chat_and_stream():
    more = {"model": MODEL, "messages": ASK, "max_tokens": 30, "temperature": 0}
    whole = gpt.chat.completions.create(**more).choices[0].message.content
    streamed = "".join(c.choices[0].delta.content or "" for c in gpt.chat.completions.create(stream=True, **more) if c.choices)
    assert whole and whole == streamed, (whole, streamed)
    return whole


@check
def chat_with_a_required_tool():
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather.", "parameters": CITY}}
    call, = gpt.chat.completions.create(model=MODEL, messages=WEATHER_ASK, tools=[tool], tool_choice="required", parallel_tool_calls=False,
                                        max_tokens=80, temperature=0).choices[0].message.tool_calls
    return city_of(call.function.name, call.function.arguments)


def messages_and_stream(name):
    more = {"model": name, "messages": ASK, "max_tokens": 30, **greedy}
    whole = claude.messages.create(**more).content[0].text
    with claude.messages.stream(**more) as stream:
        streamed = "".join(stream.text_stream)
    assert whole and whole == streamed, (whole, streamed)
    return whole


def messages_with_a_tool(name):
    tool = {"name": "get_weather", "description": "Get the weather.", "input_schema": CITY}
    more = {"model": name, "messages": WEATHER_ASK, "tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "max_tokens": 80, **greedy}
    whole, = (b for b in claude.messages.create(**more).content if b.type == "tool_use")
    with claude.messages.stream(**more) as stream:
        streamed, = (b for b in stream.get_final_message().content if b.type == "tool_use")
    assert (whole.name, whole.input) == (streamed.name, streamed.input), (whole, streamed)
    return city_of(whole.name, whole.input)


for model, provider in ((MODEL, "openai"), ("claude", "anthropic")):  # it asks /v1/responses here for the first, /v1/messages for the other
    for f in (messages_and_stream, messages_with_a_tool):
        def one(f=f, model=model):
            return f(model)
        one.__name__ = f"{f.__name__}_by_{provider}"
        check(one)


@check
def responses_and_stream():
    more = {"model": MODEL, "input": TALE, "max_output_tokens": 30, "temperature": 0}
    whole = gpt.responses.create(**more).output_text
    streamed = "".join(e.delta for e in gpt.responses.create(stream=True, **more) if e.type == "response.output_text.delta")
    assert whole and whole == streamed, (whole, streamed)
    return whole


@check
def responses_with_a_required_tool():
    tool = {"type": "function", "name": "get_weather", "description": "Get the weather.", "parameters": CITY}
    call, = (o for o in gpt.responses.create(model=MODEL, input=WEATHER, tools=[tool], tool_choice="required", parallel_tool_calls=False,
                                             max_output_tokens=80, temperature=0).output if o.type == "function_call")
    return city_of(call.name, call.arguments)


proxy.terminate()
proxy.wait(30)
