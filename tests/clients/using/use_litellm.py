# pip: litellm==1.106.2 mcp==2.3.0
import asyncio

import litellm

from frame import API, MODEL, TALE, URL, WEATHER, check

more = {"model": "openai/" + MODEL, "api_base": API, "api_key": "none", "max_tokens": 80, "temperature": 0}
tale, weather = ([{"role": "user", "content": text}] for text in (TALE, WEATHER))
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


@check
def text_and_stream():
    whole = litellm.completion(messages=tale, **more).choices[0].message.content
    assert whole == "".join(c.choices[0].delta.content or "" for c in litellm.completion(messages=tale, stream=True, **more))
    return whole


@check
def forced_tool():
    return litellm.completion(messages=weather, tools=[TOOL], tool_choice="required", **more).choices[0].message.tool_calls[0].function


@check(calls=True)
def chosen_tool():
    call, = litellm.completion(messages=weather, tools=[TOOL], tool_choice="auto", **more).choices[0].message.tool_calls
    assert call.function.arguments == '{"city": "Selmill"}', call
    return call.function


@check
def anthropic_provider():
    return litellm.completion(model="anthropic/" + MODEL, api_base=URL, api_key="none", max_tokens=40, messages=tale).choices[0].message.content


@check
def messages_bridge():
    """Anthropic's form on the client's side, OpenAI's on ours."""
    return asyncio.run(litellm.anthropic.messages.acreate(model="openai/" + MODEL, api_base=API, api_key="none", max_tokens=40, messages=tale))["content"]
