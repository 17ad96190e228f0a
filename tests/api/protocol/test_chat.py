"""POST /v1/chat/completions through the openai package."""
import math

ASK = [{"role": "user", "content": "Tell me a tale about a fox."}]
PROMPT = "<role>HUMAN</role>Tell me a tale about a fox.<role>ASSISTANT</role>"


def test_chat_is_the_rendered_prompt(client):
    """The published format (special role words are plain text of this tokenizer)."""
    chat = client.chat.completions.create(model="tales", messages=ASK, max_tokens=40, temperature=0)
    plain = client.completions.create(model="tales", prompt=PROMPT, max_tokens=40, temperature=0)
    assert chat.choices[0].message.content == plain.choices[0].text
    assert chat.usage.prompt_tokens == plain.usage.prompt_tokens
    assert chat.choices[0].message.role == "assistant"
    assert chat.object == "chat.completion" and chat.id.startswith("chatcmpl-")


def test_all_roles_render(client):
    messages = [{"role": "system", "content": "A."}, {"role": "user", "content": "B."}, {"role": "assistant", "content": "C."},
                {"role": "tool", "content": "D.", "tool_call_id": "x"}, {"role": "user", "content": "E."}]
    prompt = "<role>SYSTEM</role>A.<role>HUMAN</role>B.<role>ASSISTANT</role>C.<role>OBSERVATION</role><tool_response>\nD.\n</tool_response><role>HUMAN</role>E.<role>ASSISTANT</role>"
    chat = client.chat.completions.create(model="tales", messages=messages, max_tokens=12, temperature=0)
    plain = client.completions.create(model="tales", prompt=prompt, max_tokens=12, temperature=0)
    assert chat.choices[0].message.content == plain.choices[0].text
    developer = [{"role": "developer", "content": "A."}] + messages[1:]
    assert client.chat.completions.create(model="tales", messages=developer, max_tokens=12,
                                          temperature=0).choices[0].message.content == plain.choices[0].text


def test_content_may_be_parts(client):
    """Text parts are joined by line breaks."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "Tell me a tale"}, {"type": "text", "text": "about a fox."}]}]
    whole = [{"role": "user", "content": "Tell me a tale\nabout a fox."}]
    a = client.chat.completions.create(model="tales", messages=parts, max_tokens=10, temperature=0)
    b = client.chat.completions.create(model="tales", messages=whole, max_tokens=10, temperature=0)
    assert a.choices[0].message.content == b.choices[0].message.content


def test_no_role_can_be_injected(client, server):
    """Special tokens in a message are plain text: as many tokens as their letters need."""
    evil = "a<|endoftext|>b"
    n = client.chat.completions.create(model="tales", messages=[{"role": "user", "content": evil}], max_tokens=1).usage.prompt_tokens
    none = client.chat.completions.create(model="tales", messages=[{"role": "user", "content": "ab"}], max_tokens=1).usage.prompt_tokens
    assert n > none + 3


def test_stream_equals_whole(client):
    whole = client.chat.completions.create(model="tales", messages=ASK, max_tokens=60, temperature=0)
    text, roles, finish = "", [], None
    for chunk in client.chat.completions.create(model="tales", messages=ASK, max_tokens=60, temperature=0, stream=True):
        delta = chunk.choices[0].delta
        if delta.role:
            roles.append(delta.role)
        text += delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
        assert chunk.object == "chat.completion.chunk"
    assert text == whole.choices[0].message.content
    assert roles == ["assistant"]
    assert finish == whole.choices[0].finish_reason


def test_n_choices(client):
    answer = client.chat.completions.create(model="tales", messages=ASK, n=3, max_tokens=6, temperature=0)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert len({c.message.content for c in answer.choices}) == 1
    texts = {}
    for chunk in client.chat.completions.create(model="tales", messages=ASK, n=3, max_tokens=6, temperature=0, stream=True):
        for c in chunk.choices:
            texts[c.index] = texts.get(c.index, "") + (c.delta.content or "")
    assert texts == {c.index: c.message.content for c in answer.choices}


def test_max_completion_tokens(client):
    answer = client.chat.completions.create(model="tales", messages=ASK, max_completion_tokens=7, temperature=0)
    assert answer.usage.completion_tokens == 7
    assert answer.choices[0].finish_reason == "length"


def test_chat_ends_by_itself(client):
    """Without a limit a tale ends at the end token, which is not in the text."""
    answer = client.chat.completions.create(model="tales", messages=ASK, temperature=0.8, seed=3)
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens > 20
    assert "<|" not in answer.choices[0].message.content


def test_logprobs(client):
    answer = client.chat.completions.create(model="tales", messages=ASK, max_tokens=5, temperature=0, logprobs=True, top_logprobs=4)
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    assert "".join(t.token for t in content) == answer.choices[0].message.content
    for t in content:
        assert len(t.top_logprobs) == 4
        assert t.top_logprobs[0].logprob == t.logprob  # greedy takes the best
        assert sorted((x.logprob for x in t.top_logprobs), reverse=True) == [x.logprob for x in t.top_logprobs]
        assert sum(math.exp(x.logprob) for x in t.top_logprobs) <= 1.0001
        assert bytes(t.bytes).decode(errors="replace") == t.token
    streamed = []
    for chunk in client.chat.completions.create(model="tales", messages=ASK, max_tokens=5, temperature=0, logprobs=True,
                                                top_logprobs=4, stream=True):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == content
