# pip: pydantic-ai-slim[openai]==2.68.0
import pydantic
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from frame import API, MODEL, PERSON, TALE, WEATHER, check

provider = OpenAIProvider(base_url=API, api_key="none")


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


def agent(kind, max_tokens=120, **more):
    return Agent(kind(MODEL, provider=provider), model_settings={"max_tokens": max_tokens, "temperature": 0}, **more)


def text(kind):
    return agent(kind, 60).run_sync(TALE).output


def default_output(kind):
    return agent(kind, output_type=Person).run_sync(PERSON).output


def tool(kind):
    a = agent(kind)

    @a.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather."""
        assert city == "Selmill", city
        return '{"weather": "rain"}'
    found = a.run_sync(WEATHER).output
    assert "rain" in found, found
    return found


for way in (OpenAIChatModel, OpenAIResponsesModel):
    for f, calls in ((text, False), (default_output, False), (tool, True)):
        def one(f=f, way=way):
            return f(way)
        one.__name__ = f"{f.__name__}_{'chat' if way is OpenAIChatModel else 'responses'}"
        check(one, calls=calls)
