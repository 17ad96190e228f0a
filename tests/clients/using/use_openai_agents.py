# pip: openai-agents==0.24.0
import asyncio

from agents import (Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, SQLiteSession, function_tool, handoff as to_agent,
                    set_tracing_disabled)
from openai import AsyncOpenAI

from frame import API, MODEL, TALE, WEATHER, check

set_tracing_disabled(True)
called = []


@function_tool
def get_weather(city: str) -> str:
    """Get the weather."""
    called.append(city)
    return '{"weather": "rain"}'


def agent(kind, max_tokens=100, **more):
    client = AsyncOpenAI(base_url=API, api_key="none")
    return Agent(name="A", instructions="You help in the house.", model=kind(model=MODEL, openai_client=client),
                 model_settings=ModelSettings(max_tokens=max_tokens, temperature=0, extra_body=more.pop("extra_body", None)), **more)


loop = asyncio.new_event_loop()


def run(a, ask, **more):
    return loop.run_until_complete(Runner.run(a, ask, max_turns=5, **more))


def text(kind):
    found = run(agent(kind, 400, extra_body={"stop": "."}), TALE).final_output
    assert found
    return found


def tool(kind):
    called.clear()
    found = run(agent(kind, tools=[get_weather]), WEATHER)
    assert called == ["Selmill"] and "rain" in found.final_output, (called, found.final_output)
    return found.final_output


def handoff(kind):
    """In the demo model's words: the package's own are those of no wish that it was trained on."""
    singer = Agent(name="Singer", instructions="Sing.", model=agent(kind).model, model_settings=ModelSettings(max_tokens=30, extra_body={"stop": "."}))
    found = run(agent(kind, handoffs=[to_agent(singer, tool_name_override="get_singer", tool_description_override="Get the singer.")]), "Please get the singer.")
    assert "HandoffOutputItem" in [type(i).__name__ for i in found.new_items]
    return found.last_agent.name


def session(kind):
    kept, a = SQLiteSession("x"), agent(kind)
    run(a, "My dog is called Karus.", session=kept)
    found = run(a, "What is my dog called?", session=kept).final_output
    assert "Karus" in found, found
    return found


for way in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
    for f, calls in ((text, False), (tool, True), (handoff, True), (session, True)):
        def one(f=f, way=way):
            return f(way)
        one.__name__ = f"{f.__name__}_{'chat' if way is OpenAIChatCompletionsModel else 'responses'}"
        check(one, calls=calls)
