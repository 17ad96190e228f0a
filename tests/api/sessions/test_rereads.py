"""What real clients made the server read again, each cause with its own test: sessions and lanes are those of tests/bench/replayed.py."""
import json
import os
import sys

import pytest

from server import ROOT

sys.path.append(os.path.join(ROOT, "tests", "bench"))
from replayed import Claude, Codex, World, ask  # noqa: E402

EVERY = {"RODIMUS_TEST_CHECKPOINTS_PAY": "1"}  # each entry of the cache pays, however busy the machine is
CHUNK = 64


@pytest.fixture
def serve(own_server):
    return lambda *flags: own_server("--model-name", "tales,*", "--device", "null", *flags, env=EVERY)


def counted(server, lane, body, n, head=True):
    answer = server.post(*lane.counted(body, n, head))
    assert answer.status == 200, answer
    return answer.json["input_tokens"]


def head_of(server, lane, body):
    """Tokens of the system's text and the tools."""
    return counted(server, lane, body, 0) - counted(server, lane, body, 0, head=False)


def test_digits_for_the_bill_part_no_conversations(serve):
    server, world, bills = serve(), World(1, 0.05), set()
    for i in range(4):
        main = Claude(world)
        main.user("reminder", "user")
        request = main.request("text")
        answer, head = ask(server, request), head_of(server, main, request.body)
        bills.add(request.body["system"][0]["text"])
        assert len(bills) == i + 1 and head > 1000, (bills, head)
        assert i == 0 and answer.cached == 0 or answer.cached > head - CHUNK, (i, answer.cached, head)


def test_a_tool_that_was_deferred_is_read_where_it_was_found_and_not_in_the_head(serve):
    server, world = serve(), World(2, 0.05)
    main = Claude(world)
    main.user("reminder", "user")
    first = ask(server, main.request("ToolSearch", "ToolSearch"))
    main.found_tool(main.take(first)[-1])
    request = main.request("NotebookEdit", "NotebookEdit")
    assert "NotebookEdit" in [t["name"] for t in request.body["tools"]]
    second = ask(server, request)
    assert second.cached >= first.prompt + first.said - 1, (first.prompt, first.said, second.cached)
    assert second.prompt - second.cached < first.prompt / 4 and second.items[-1]["name"] == "NotebookEdit", (second.prompt, second.cached, second.items)


@pytest.mark.parametrize("again", [False, True], ids=["one server", "another server"])
def test_a_compaction_without_tools_goes_on_from_its_thread(serve, tmp_path, again):
    """Its request has tools: []: the head of the thread stays in the prompt, and no call comes."""
    server, world = serve("--state-dir", tmp_path / "states"), World(3, 0.05)
    thread = Codex(world)
    thread.user()
    first = ask(server, thread.request("exec_command", "exec_command"))
    call = thread.take(first)[-1]
    thread.input.append({"type": "function_call_output", "call_id": call["call_id"], "output": world.text("Bash")})
    thread.user("reminder")
    request = thread.request("compaction", tools=[])
    assert request.body["tools"] == [] and thread.tools()
    server = serve("--state-dir", tmp_path / "states") if again else server
    answer = ask(server, request)
    assert answer.cached >= first.prompt + first.said - 1, (first.prompt, first.said, answer.cached)
    assert all(item["type"] == "message" for item in answer.items), answer.items


@pytest.mark.parametrize("lane", [Claude, Codex])
def test_answers_with_other_bytes_are_known_by_their_ids(serve, lane):
    server, world = serve(), World(4, 0.05)
    call = "Edit" if lane is Claude else "exec_command"
    one, last, altered = lane(world), 0, 0
    one.user()
    for i in range(8):
        answer = ask(server, one.request(call, call))
        assert answer.cached >= last - 1, (i, answer.cached, last)
        last = answer.prompt + answer.said
        use = one.take(answer)[-1]
        altered += use != answer.items[-1]
        if lane is Claude:
            one.result(call, use)
        else:
            one.input.append({"type": "function_call_output", "call_id": use["call_id"], "output": world.text("Bash")})
    assert altered > 2


def test_a_client_that_leaves_a_long_prompt_and_asks_again_goes_on_from_there(own_server):
    """It leaves three times, and of 60,000 tokens all but the last chunks are read once."""
    server = own_server("--device", "null:2", "--max-batch-tokens", 1024, env=EVERY)
    ids = [300 + i * i % 700 for i in range(60000)]
    body, read = {"prompt": ids, "max_tokens": 1, "stream": True}, "rodimus_prefill_tokens_total"
    for part in (15000, 30000, 45000):
        with server.socket() as s:
            text = json.dumps(body).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            server.wait_metric(read, lambda n: n >= part)
        server.wait_metric("rodimus_slots_used", lambda n: n == 0)
        assert server.metric(read) < len(ids), "it left too late"
    whole = server.complete(prompt=ids, max_tokens=1)
    cached = whole["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 45000 - CHUNK, cached
    assert server.metric(read) <= len(ids) + 3 * CHUNK, server.metric(read)
