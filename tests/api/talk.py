"""Turns of sessions for the tests, and a Talk: a session and all that was said in it, held against one request that brings the whole
conversation as token ids."""
import json
import uuid

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXTS = [" Once upon a time there was a king who had three sons.", " The youngest went into the forest,", " and then he met a fox."]


def new_id():
    return "t-" + uuid.uuid4().hex


def ids_of(server, text):
    return server.post("/tokenize", {"prompt": text}).json["tokens"]


def turn(server, session, prompt, n=6, headers=None, **more):
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}
    if session:
        body["session_id"] = session
    answer = server.post(COMPLETIONS, body, headers=headers)
    assert answer.status == 200, answer
    return answer.json


def chat(server, session, content, n=6, **more):
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": n, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, **more}
    if session:
        body["session_id"] = session
    answer = server.post(CHAT, body)
    assert answer.status == 200, answer
    return answer.json


def made(answer):
    return answer["choices"][0]["token_ids"]


def undisturbed(server, parts, n=6):
    """The ids of a request without a session that brings all of it."""
    return made(turn(server, None, [i for part in parts for i in part], n))


class Talk:
    """A session and all that was said in it, as ids."""

    def __init__(self, server, session=None, said=(), **first):
        self.server, self.id, self.said, self.first = server, session or new_id(), list(said), {"session_create": True, **first}

    def go(self, text, n=6, server=None, **more):
        s = server or self.server
        ids = ids_of(s, text)
        want = undisturbed(s, [*self.said, ids], n)
        answer = turn(s, self.id, ids, n, **self.first, **more)
        self.first = {}
        assert made(answer) == want, f"in the session {made(answer)}, at once {want}"
        self.said += [ids, want]
        return answer


def message_of(events):
    """The blocks and the usage of a stream of /v1/messages, from the data of its events."""
    blocks, usage, arguments = [], {}, ""
    for event in events:
        if event["type"] == "message_start":
            usage = event["message"]["usage"]
        elif event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                blocks[-1]["text"] += delta["text"]
            else:
                arguments += delta["partial_json"]
        elif event["type"] == "content_block_stop" and blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"], arguments = json.loads(arguments), ""
        elif event["type"] == "message_delta":
            usage = {**usage, **event["usage"]}
    return blocks, usage
