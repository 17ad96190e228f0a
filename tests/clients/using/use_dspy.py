# pip: dspy==3.4.1
import dspy

from frame import API, MODEL, check

dspy.configure(lm=dspy.LM("openai/" + MODEL, api_base=API, api_key="none", max_tokens=60, temperature=0, cache=False))


@check
def text():
    """Its adapters ask a model that they do not know for JSON by words alone, which takes a model that understands them."""
    return dspy.settings.lm("Tell me a tale about a fox.")
