# pip: langchain==1.4.7 langchain-openai==1.7.3
import pydantic
from langchain.agents import create_agent
from langchain.tools import tool
from langchain_openai import ChatOpenAI

from frame import API, MODEL, PERSON, TALE, WEATHER, check

llm = ChatOpenAI(base_url=API, api_key="none", model=MODEL, temperature=0, max_tokens=120)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


@tool
def get_weather(city: str) -> str:
    """Get the weather."""
    return '{"weather": "rain"}'


@check
def text_and_stream():
    whole = llm.invoke(TALE).content
    assert whole == "".join(c.content for c in llm.stream(TALE))
    return whole


@check
def structured_output():
    return [llm.with_structured_output(Person, method=m).invoke(PERSON) for m in ("function_calling", "json_schema")]


@check
def forced_tool():
    call, = llm.bind_tools([get_weather], tool_choice="get_weather", parallel_tool_calls=False).invoke(WEATHER).tool_calls
    assert call["name"] == "get_weather" and isinstance(call["args"]["city"], str)
    return call


@check(calls=True)
def agent():
    said = create_agent(llm, tools=[get_weather]).invoke({"messages": [{"role": "user", "content": WEATHER}]})["messages"]
    assert [m.type for m in said] == ["human", "ai", "tool", "ai"] and said[1].tool_calls[0]["args"] == {"city": "Selmill"}
    return said[-1].content


@check
def agent_with_response_format():
    """Without tools of its own the agent has one, the answer, and the choice is required."""
    said = create_agent(llm, tools=[], response_format=Person).invoke({"messages": [{"role": "user", "content": PERSON}]})
    return said["structured_response"]
