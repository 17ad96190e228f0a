# pip: instructor==1.17.0
from typing import Iterable

import instructor
import openai
import pydantic

from frame import API, MODEL, PERSON, check

client = openai.OpenAI(base_url=API, api_key="none")


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


def ask(mode, model=Person, **more):
    return instructor.from_openai(client, mode=mode).chat.completions.create(
        model=MODEL, response_model=model, max_tokens=200, max_retries=1, temperature=0, messages=[{"role": "user", "content": PERSON}], **more)


@check
def tools():
    return ask(instructor.Mode.TOOLS)


@check
def tools_strict():
    return ask(instructor.Mode.TOOLS_STRICT)


@check
def json_schema():
    return ask(instructor.Mode.JSON_SCHEMA)


@check
def json_with_a_schema_beside_it():
    """Mode.JSON forces any object; the schema of the same model forces the right one."""
    return ask(instructor.Mode.JSON, extra_body={"structured_outputs": {"json": Person.model_json_schema()}, "response_format": None})


@check
def parallel_tools():
    """The mode sends the choice auto, and a text without a call is an error to it: the body's choice goes before the mode's."""
    found = list(ask(instructor.Mode.PARALLEL_TOOLS, Iterable[Person], extra_body={"tool_choice": "required", "parallel_tool_calls": False}))
    assert len(found) == 1 and isinstance(found[0], Person), found
    return found
