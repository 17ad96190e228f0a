# pip: haystack-ai==3.4.0
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret

from frame import API, MODEL, TALE, WEATHER, check

generator = OpenAIChatGenerator(model=MODEL, api_base_url=API, api_key=Secret.from_token("none"), generation_kwargs={"max_tokens": 80, "temperature": 0})


@tool
def get_weather(city: str) -> str:
    """Get the weather."""
    return '{"weather": "rain"}'


@check
def text():
    return generator.run(messages=[ChatMessage.from_user(TALE)])["replies"][0].text


@check(calls=True)
def agent():
    said = Agent(chat_generator=generator, tools=[get_weather], max_agent_steps=4).run(messages=[ChatMessage.from_user(WEATHER)])["messages"]
    assert [c.arguments for m in said for c in m.tool_calls] == [{"city": "Selmill"}], said
    return said[-1].text
