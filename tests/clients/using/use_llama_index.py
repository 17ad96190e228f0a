# pip: llama-index-core==0.14.25 llama-index-llms-openai-like==0.8.1
import asyncio

import pydantic
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from frame import API, MODEL, PERSON, TALE, WEATHER, check

llm = OpenAILike(model=MODEL, api_base=API, api_key="none", is_chat_model=True, is_function_calling_model=True, max_tokens=80, temperature=0, context_window=100000)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


def get_weather(city: str) -> str:
    """Get the weather."""
    return '{"weather": "rain"}'


@check
def text_and_stream():
    whole = llm.complete(TALE).text
    assert whole == "".join(c.delta or "" for c in llm.stream_complete(TALE))
    return whole


@check
def structured_output():
    return llm.structured_predict(Person, PromptTemplate(PERSON))


@check(calls=True)
def agent():
    async def run():
        tool = FunctionTool.from_defaults(get_weather, description="Get the weather.")  # its own begins with a signature of Python, and the demo model refuses
        return await FunctionAgent(tools=[tool], llm=llm).run(WEATHER)
    found = str(asyncio.run(run()))
    assert "rain" in found, found
    return found
