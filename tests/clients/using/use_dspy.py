# pip: dspy==3.4.1
from typing import Literal

import dspy
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider

from frame import API, MODEL, PERSON, WEATHER, check

more = {"api_key": "none", "max_tokens": 100, "temperature": 0, "cache": False}
# As openai/NAME it is a model that DSPy does not know, and gets text alone. A provider of one's own says what the model may be asked.
register_provider(ProviderDefinition.chat(AccessPolicy(provider="rodimus", base_url=API), compat=OpenAIChatCompat.preset("vllm")),
                  supports=ModelSupport(function_calling=True, response_schema=True))
declared = dspy.LM("rodimus/" + MODEL, **more)
called = []


class Person(dspy.Signature):
    """Say who it is."""
    text: str = dspy.InputField()
    kind: Literal["child", "adult"] = dspy.OutputField()
    age: int = dspy.OutputField()


def get_weather(city: Literal["Selmill", "Karlsau"]) -> str:
    """Get the weather."""
    called.append(city)
    return "rain"


@check
def text():
    """Its adapters ask a model that they do not know for JSON by words alone, which takes a model that understands them."""
    return dspy.LM("openai/" + MODEL, api_base=API, **more)("Tell me a tale about a fox.")


@check
def json_adapter_with_a_schema():
    with dspy.context(lm=declared, adapter=dspy.JSONAdapter()):
        found = dspy.Predict(Person)(text=PERSON)
    assert found.kind in ("child", "adult") and isinstance(found.age, int), found
    return found


@check
def agent_with_tools_beside_a_schema():
    """A request has tools, of which the model chooses, and a schema for an answer without a call."""
    with dspy.context(lm=declared, adapter=dspy.JSONAdapter()):
        found = dspy.ReActV2("question -> answer: Literal['rain', 'sun']", tools=[get_weather], max_iters=2)(question=WEATHER)
    assert found.answer in ("rain", "sun") and found.termination_reason in ("submit", "forced_submit"), found
    return found.answer, found.termination_reason, called
