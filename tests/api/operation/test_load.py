"""Many streams at once: each gets exactly the text that it would get alone. RODIMUS_TEST_SOAK=1 (make soak) has 500 of them."""
import asyncio
import json
import os
import random
import time

from server import SLOWER

N_STREAMS = (500 if os.environ.get("RODIMUS_TEST_SOAK") else 150) // SLOWER


def plan(heldout):
    """Greedy and seeded requests over prompts of 1 to some 600 tokens, all different. Fixed, so that a failure repeats."""
    rng = random.Random(20)
    requests = []
    for i in range(N_STREAMS):
        n_chars = rng.choice([3, 20, 20, 80, 80, 200, 200, 600, 2000]) + rng.randrange(20)
        at = rng.randrange(len(heldout) - n_chars)
        body = {"prompt": heldout[at:at + n_chars], "max_tokens": rng.randint(4, 28), "stream": True,
                "stream_options": {"include_usage": True}}
        if i % 2:
            body |= {"temperature": rng.choice([0.7, 1.0, 1.3]), "top_p": rng.choice([1.0, 0.9]), "seed": i}
            if i % 3 == 0:
                body |= {"top_k": 40, "min_p": 0.02, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
            if i % 5 == 0:
                body |= {"stop": ["the", "\n"]}
        else:
            body["temperature"] = 0
        requests.append(body)
    return requests


async def ask(server, body):
    """The text, the finish, and the count of one streamed request, by a plain socket."""
    reader, writer = await asyncio.open_connection(server.host, server.port, limit=1 << 20)
    data = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                 b"Content-Length: %d\r\n\r\n" % len(data) + data)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        return head, (await reader.read()).decode(errors="replace"), 0
    body_bytes = b""
    while size := int(await reader.readline(), 16):
        body_bytes += (await reader.readexactly(size + 2))[:-2]
    writer.close()
    text, finish, n = "", None, 0
    frames = body_bytes.decode().split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""], frames[-3:]
    for frame in frames[:-2]:
        if frame.startswith(":"):
            continue
        chunk = json.loads(frame.removeprefix("data: "))
        if chunk["choices"]:
            text += chunk["choices"][0]["text"]
            finish = chunk["choices"][0]["finish_reason"] or finish
        else:
            n = chunk["usage"]["completion_tokens"]
    return finish, text, n


def test_many_streams_get_what_each_would_get_alone(own_server, heldout):
    """First as the server comes: most wait for one of its slots. Then with a slot for each: all are in every step."""
    requests = plan(heldout)
    s = own_server("--max-queue-requests", N_STREAMS)
    wide = own_server("--slots", N_STREAMS)

    async def one_by_one():
        return [await ask(s, body) for body in requests]

    async def at_once(server):
        return await asyncio.gather(*(ask(server, body) for body in requests))

    began = time.monotonic()
    alone = asyncio.run(one_by_one())
    print(f"note: {sum(n for _, _, n in alone)} tokens one by one: {time.monotonic() - began:.1f} s")
    assert all(finish in ("stop", "length") for finish, _, _ in alone)
    for server in (s, wide):
        began = time.monotonic()
        together = asyncio.run(at_once(server))
        print(f"note: {N_STREAMS} streams at once, {server.metric('rodimus_slots'):.0f} slots: {time.monotonic() - began:.1f} s")
        wrong = [(i, a, t) for i, (a, t) in enumerate(zip(alone, together)) if a != t]
        assert not wrong, f"{len(wrong)} of {N_STREAMS} differ, the first: {wrong[0]} {requests[wrong[0][0]]}"
        assert server.metric("rodimus_engine_requests_failed_total") == 0
        server.wait_metric("rodimus_slots_used", lambda n: n == 0)  # states of answers are copied a moment longer
        assert server.stop() == 0
