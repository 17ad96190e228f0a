# pip: guidance==0.3.1 openai==2.54.0
import json
from typing import Literal

import pydantic
from guidance import assistant, gen, models, user
from guidance import json as as_json
from guidance.models.experimental import SglangModel

from frame import API, MODEL, PERSON, TALE, WEATHER, check

called = []


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


def get_weather(city: Literal["Selmill", "Karlsau"]) -> str:
    """Get the weather."""
    called.append(city)
    return "rain"


def ask(kind, text, node):
    lm = kind(MODEL, base_url=API, api_key="none", echo=False)
    with user():
        lm += text
    with assistant():
        lm += node
    return lm


@check
def text():
    found = ask(models.OpenAI, TALE, gen("found", max_tokens=20))["found"]
    assert found
    return found


@check
def json_with_a_schema():
    found = [ask(kind, PERSON, as_json("found", schema=Person, max_tokens=100))["found"] for kind in (models.OpenAI, SglangModel)]
    return [Person.model_validate(json.loads(one)) for one in found]


@check
def regex_as_sglang():
    """Its class for OpenAI refuses a regex by itself, its class for vLLM sends all in a grammar of its own form, which is a 400."""
    found = ask(SglangModel, TALE, gen("found", regex="[a-z]{3,5}", max_tokens=20))["found"]
    assert found.isalpha() and found.islower() and 3 <= len(found) <= 5, found
    return found


@check
def forced_tool():
    """Without max_tokens, which it takes beside no tools."""
    ask(models.OpenAI, WEATHER, gen(tools=[get_weather], tool_choice="required"))
    assert called and set(called) <= {"Selmill", "Karlsau"}, called
    return called
