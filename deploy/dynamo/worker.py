#!/usr/bin/env python3
"""A worker of NVIDIA Dynamo (ai-dynamo 1.6) whose engine is a server of ours: tokens in and out over /v1/completions.

The frontend turns texts into tokens and sends a history whole. A request with a session (its agent context: the header X-Dynamo-Session-ID,
and those of agents) that goes on where the last one ended becomes a turn of a session of the server, which gets the new tokens alone. Any
other history begins a session anew. What a session has read is known to this process alone: one worker beside each server, and the
frontend's session affinity.

The process waits until the server is ready, and ends when it is not any more, so that the frontend sends nothing: start it again."""
import argparse
import asyncio
import collections
import hashlib
import json
import os
import signal
import uuid

import aiohttp
from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.agent_context import session_id_from_request
from dynamo.common.backend.run import run
from dynamo.llm.exceptions import CannotConnect, InvalidArgument, StreamIncomplete, Unknown

SESSIONS_MAX = 4096  # whose tokens are remembered
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "include_stop_str_in_output")
STOPS = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos")
GUIDED = {"json", "regex", "choice", "grammar"}


class Lost(Exception):
    """The server has no such session, or another version of it."""


class Session:
    def __init__(self, name):
        self.id, self.tokens, self.version, self.busy = f"dynamo-{hashlib.sha256(name.encode()).hexdigest()[:16]}-{uuid.uuid4().hex[:8]}", [], 0, False


def body_of(request, model):
    """What a request asks for, but its prompt. InvalidArgument: what has no counterpart."""
    sampling, stops, output = (request.get(key) or {} for key in ("sampling_options", "stop_conditions", "output_options"))
    if (sampling.get("n") or 1) != 1 or (sampling.get("best_of") or 1) != 1 or sampling.get("use_beam_search"):
        raise InvalidArgument("n, best_of and beam search are not supported: send requests side by side")
    if output.get("logprobs") is not None or output.get("prompt_logprobs") is not None:
        raise InvalidArgument("log-probabilities do not pass this worker: ask the server for them")
    body = {key: sampling[key] for key in SAMPLING if sampling.get(key) is not None} | {key: stops[key] for key in STOPS if stops.get(key) is not None}
    guided = {key: value for key, value in (sampling.get("guided_decoding") or {}).items() if value is not None}
    if guided:
        if guided.keys() - GUIDED:
            raise InvalidArgument(f"guided decoding by {', '.join(sorted(guided.keys() - GUIDED))} is not supported")
        body["structured_outputs"] = guided
    return body | {"model": model, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}


async def refuse(answer):
    """As the frontend passes it on."""
    said = await answer.text()
    try:
        error = json.loads(said)["error"]
        code, message = error.get("code"), error["message"]
    except (ValueError, KeyError, TypeError):
        code, message = None, said[:300]
    if answer.status in (404, 412):
        raise Lost(message)
    raise (InvalidArgument if 400 <= answer.status < 500 and answer.status not in (408, 429) else Unknown)(f"{answer.status} {code}: {message}")


class Rodimus(LLMEngine):
    def __init__(self, args):
        self.args, self.http, self.watch = args, None, None
        self.answers = {}  # {id of a request: its answer as it comes}
        self.removals = set()
        self.sessions = collections.OrderedDict()

    @classmethod
    async def from_args(cls, argv=None):
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--server", default="http://127.0.0.1:8080", metavar="URL")
        parser.add_argument("--model", required=True, metavar="DIR", help="the server's model: the frontend reads its tokenizer")
        parser.add_argument("--model-name", required=True, metavar="NAME", help="as the server names it")
        parser.add_argument("--context-length", type=int, default=1 << 20, metavar="N", help="a longer prompt is refused by the frontend")
        parser.add_argument("--endpoint-types", default="chat,completions", help="completions alone for a model without a chat template")
        parser.add_argument("--namespace", default="dynamo")
        parser.add_argument("--discovery-backend", default=os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"))
        parser.add_argument("--event-plane", default=os.environ.get("DYN_EVENT_PLANE"))
        args = parser.parse_args(argv)
        return cls(args), WorkerConfig(namespace=args.namespace, component="rodimus", model_name=args.model, served_model_name=args.model_name,
                                       endpoint_types=args.endpoint_types, discovery_backend=args.discovery_backend, event_plane=args.event_plane,
                                       enable_kv_routing=False)  # a state has no blocks

    async def is_ready(self):
        try:
            async with self.http.get("/health/ready", timeout=aiohttp.ClientTimeout(total=5)) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False

    async def end_with_server(self):
        failed = 0
        while failed < 2:
            await asyncio.sleep(0.5)
            failed = 0 if await self.is_ready() else failed + 1
        os.kill(os.getpid(), signal.SIGTERM)

    async def start(self, worker_id):
        key = os.environ.get("RODIMUS_API_KEY")
        self.http = aiohttp.ClientSession(self.args.server, headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=aiohttp.ClientTimeout(total=None, connect=10),
                                          connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 20)
        while not await self.is_ready():
            await asyncio.sleep(0.5)
        self.watch = asyncio.create_task(self.end_with_server())
        return EngineConfig(model=self.args.model, served_model_name=self.args.model_name, llm=LlmRegistration(context_length=self.args.context_length, kv_cache_block_size=16))

    def session_of(self, request):
        """The request's, which goes on; a new one where its history is another; None without a name, or while another request has it."""
        name = session_id_from_request(request)
        held = self.sessions.pop(name, None) if name else None
        if not name or (held and held.busy):
            if held:
                self.sessions[name] = held
            return None
        prompt = request["token_ids"]
        if not held or len(prompt) <= len(held.tokens) or prompt[:len(held.tokens)] != held.tokens:
            if held and held.version:
                self.removals.add(task := asyncio.create_task(self.remove(held)))
                task.add_done_callback(self.removals.discard)
            held = Session(name)
        self.sessions[name] = held
        if len(self.sessions) > SESSIONS_MAX:
            self.sessions.popitem(last=False)
        return held

    async def remove(self, session):
        """Nothing goes on from it; if this fails, its time to live removes it."""
        try:
            async with self.http.delete(f"/v1/sessions/{session.id}"):
                pass
        except (aiohttp.ClientError, asyncio.TimeoutError):
            pass

    async def events(self, body, context):
        """The answer's events; [DONE] is its end."""
        try:
            async with self.http.post("/v1/completions", json=body) as answer:
                if answer.status != 200:
                    await refuse(answer)
                self.answers[context.id()] = answer
                if context.is_stopped():
                    return
                async for line in answer.content:
                    if line.startswith(b"data: [DONE]"):
                        return
                    if line.startswith(b"data: "):
                        event = json.loads(line[6:])
                        if "error" in event:
                            raise Unknown(event["error"]["message"])
                        yield event
                if not context.is_stopped():
                    raise StreamIncomplete("the server's answer broke off")
        except aiohttp.ClientConnectorError as fault:
            raise CannotConnect(str(fault)) from fault
        except (aiohttp.ClientError, ConnectionError) as fault:
            if not context.is_stopped():
                raise StreamIncomplete(str(fault)) from fault
        finally:
            self.answers.pop(context.id(), None)

    async def answer(self, request, body, session, context):
        """One try; a turn counts when its answer has ended."""
        prompt, tokens, finish, usage, version = request["token_ids"], [], None, None, None
        if session:
            body |= {"session_id": session.id, "prompt": prompt[len(session.tokens):]} | ({"expected_version": session.version} if session.version else {"session_create": True})
        else:
            body["prompt"] = prompt
        async for event in self.events(body, context):
            usage = event.get("usage") or usage
            version = event.get("session", {}).get("version") or version
            for choice in event["choices"]:
                finish = choice["finish_reason"] or finish
                if choice.get("token_ids"):
                    tokens += choice["token_ids"]
                    yield {"token_ids": choice["token_ids"], "index": 0}
        if finish is None or usage is None:  # its client has left
            yield {"token_ids": [], "index": 0, "finish_reason": "cancelled"}
            return
        if session and version:
            hidden = usage["total_tokens"] - len(prompt) - len(tokens)  # the end token, which the session has read
            session.tokens, session.version = prompt + tokens + (request.get("eos_token_ids") or [])[:1] * (hidden == 1), version
        yield {"token_ids": [], "index": 0, "finish_reason": finish, "completion_usage": usage}

    async def generate(self, request, context):
        session = self.session_of(request)
        body = body_of(request, self.args.model_name)
        began = False
        if session:
            session.busy = True
        try:
            for attempt in range(2):
                try:
                    async for chunk in self.answer(request, dict(body), session, context):
                        began = True
                        yield chunk
                    return
                except Lost as lost:
                    if attempt or began or not session:
                        raise Unknown(str(lost)) from lost
                    session.tokens, session.version, session.id = [], 0, f"{session.id[:23]}-{uuid.uuid4().hex[:8]}"
        finally:
            if session:
                session.busy = False

    async def abort(self, context):
        """The server frees the slot of a client that leaves."""
        answer = self.answers.pop(context.id(), None)
        if answer:
            answer.close()

    async def cleanup(self):
        if self.watch:
            self.watch.cancel()
        if self.http:
            await self.http.close()


if __name__ == "__main__":
    run(Rodimus)
