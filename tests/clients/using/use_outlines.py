# pip: outlines==1.3.3 openai==3.54.0
from typing import Literal

import openai
import outlines
import pydantic

from frame import API, MODEL, PERSON, TALE, check

client = openai.OpenAI(base_url=API, api_key="none")


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


def structured(make):
    return Person.model_validate_json(make(client, MODEL)(PERSON, Person, max_tokens=100))


@check
def text_and_schema_as_openai():
    return outlines.from_openai(client, MODEL)(TALE, max_tokens=20), structured(outlines.from_openai)


@check
def schema_and_choice_as_vllm():
    found = outlines.from_vllm(client, MODEL)(PERSON, Literal["yes", "no"], max_tokens=20)
    assert found in ("yes", "no"), found
    return found, structured(outlines.from_vllm)


@check
def schema_and_choice_as_sglang():
    found = outlines.from_sglang(client, MODEL)(PERSON, Literal["yes", "no"], max_tokens=20)
    assert found in ("yes", "no"), found
    return found, structured(outlines.from_sglang)
