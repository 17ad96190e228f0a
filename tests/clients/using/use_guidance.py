# pip: guidance==0.3.1 openai==2.54.0
from guidance import assistant, gen, models, user

from frame import API, MODEL, TALE, check


@check
def text():
    lm = models.OpenAI(MODEL, base_url=API, api_key="none")
    with user():
        lm += TALE
    with assistant():
        lm += gen("tale", max_tokens=20)
    assert lm["tale"]
    return lm["tale"]
