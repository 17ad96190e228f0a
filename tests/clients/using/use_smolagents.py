# pip: smolagents[openai]==1.26.0
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

from frame import API, MODEL, WEATHER, check


@tool
def get_weather(city: str) -> str:
    """Get the weather.

    Args:
        city: the city
    """
    return "rain"


@check
def tool_calling_agent():
    """Each step's choice is required: the agent ends with a call of final_answer, or after its steps."""
    model = OpenAIServerModel(model_id=MODEL, api_base=API, api_key="none", max_tokens=160, temperature=0)
    agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=3, verbosity_level=0)
    agent.run(WEATHER)
    called = [c.name for step in agent.memory.steps for c in getattr(step, "tool_calls", None) or []]
    assert called and set(called) <= {"get_weather", "final_answer"}, called
    return called
