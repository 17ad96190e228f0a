# pip: autogen-agentchat==0.7.5 autogen-ext[openai]==0.7.5
import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

from frame import API, MODEL, TALE, WEATHER, check


def agent(**more):
    client = OpenAIChatCompletionClient(model=MODEL, base_url=API, api_key="none", max_tokens=80, temperature=0, model_info={
        "vision": False, "function_calling": True, "json_output": True, "structured_output": True, "family": "unknown"})
    return AssistantAgent("a", model_client=client, system_message="You are a helpful assistant.", **more)


async def get_weather(city: str) -> str:
    """Get the weather."""
    return '{"weather": "rain"}'


@check
def text():
    return asyncio.run(agent().run(task=TALE)).messages[-1].content


@check(calls=True)
def tool():
    said = asyncio.run(agent(tools=[get_weather], reflect_on_tool_use=True).run(task=WEATHER)).messages
    assert "ToolCallExecutionEvent" in [type(m).__name__ for m in said], said
    return said[-1].content
