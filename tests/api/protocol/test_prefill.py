"""An answer whose beginning the client gives (continue_final_message), and prompts that end behind the last message."""
import pytest

ASK = {"role": "user", "content": "Tell me a tale about a fox."}
BEGUN = {"role": "assistant", "content": "There was once a fox who"}
FRAME = "<role>HUMAN</role>Tell me a tale about a fox.<role>ASSISTANT</role>There was once a fox who"
GREEDY = {"temperature": 0, "max_tokens": 12}


def ids_of(server, text):
    return server.post("/tokenize", {"prompt": text}).json["tokens"]


def chat(server, messages, **more):
    answer = server.post("/v1/chat/completions", {"messages": messages, **GREEDY, "return_token_ids": True, **more})
    assert answer.status == 200, answer
    return answer.json


def test_the_answer_goes_on_with_the_last_message(server):
    answer = chat(server, [ASK, BEGUN], continue_final_message=True)
    ids = ids_of(server, FRAME)
    plain = server.post("/v1/completions", {"prompt": ids, **GREEDY}).json["choices"][0]
    assert answer["prompt_token_ids"] == ids
    assert answer["choices"][0]["message"]["content"] == plain["text"] != ""
    other = chat(server, [ASK, BEGUN])  # the same as a whole message, and another answer behind it
    assert other["prompt_token_ids"] == ids + ids_of(server, "<role>ASSISTANT</role>")


def test_add_generation_prompt_beside_it_may_be_false_and_not_true(server):
    same = chat(server, [ASK, BEGUN], continue_final_message=True, add_generation_prompt=False)
    assert same["prompt_token_ids"] == ids_of(server, FRAME)
    answer = server.post("/v1/chat/completions", {"messages": [ASK, BEGUN], "continue_final_message": True, "add_generation_prompt": True})
    assert answer.status == 400 and answer.error["param"] == "continue_final_message"
    assert answer.error["message"] == "continue_final_message and add_generation_prompt exclude each other."


def test_a_prompt_without_the_generation_prompt_ends_behind_the_last_message(server):
    answer = chat(server, [ASK], add_generation_prompt=False)
    assert answer["prompt_token_ids"] == ids_of(server, "<role>HUMAN</role>Tell me a tale about a fox.")


@pytest.mark.parametrize("last, message", [
    (ASK, "continue_final_message must come with an assistant's message as the last one."),
    ({"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
     "continue_final_message must come with a last message without tool_calls.")])
def test_only_an_assistants_text_can_go_on(server, last, message):
    for path in ("/v1/chat/completions", "/tokenize", "/apply-template"):
        answer = server.post(path, {"messages": [ASK, last], "continue_final_message": True})
        assert answer.status == 400 and answer.error["message"] == message, (path, answer)


def test_the_text_routes_end_inside_the_message_too(server):
    body = {"messages": [ASK, BEGUN], "continue_final_message": True}
    assert server.post("/tokenize", body).json["tokens"] == ids_of(server, FRAME)
    assert server.post("/apply-template", body).json["prompt"] == FRAME


def test_other_requests_have_no_message_to_go_on_with(server):
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "a"})):
        answer = server.post(path, {**body, "continue_final_message": True})
        assert answer.status == 400 and answer.error["message"] == "continue_final_message is for chats.", answer
        assert server.post(path, {**body, "continue_final_message": False}).status == 200


def test_a_turn_of_a_session_may_begin_its_answer(server):
    first = chat(server, [ASK], session_id="prefill", session_create=True)
    begun = chat(server, [{"role": "user", "content": "And then?"}, BEGUN], session_id="prefill", continue_final_message=True)
    last = chat(server, [{"role": "user", "content": "More"}], session_id="prefill")
    whole = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
    whole += ids_of(server, "<role>HUMAN</role>And then?<role>ASSISTANT</role>There was once a fox who")
    plain = server.post("/v1/completions", {"prompt": whole, **GREEDY}).json["choices"][0]
    assert begun["choices"][0]["message"]["content"] == plain["text"]
    assert begun["usage"]["prompt_tokens"] == len(whole)
    whole += begun["choices"][0]["token_ids"] + ids_of(server, "<role>HUMAN</role>More<role>ASSISTANT</role>")
    assert last["usage"]["prompt_tokens"] == len(whole)


def test_a_format_that_closes_answers_leaves_this_one_open(own_server, tmp_path):
    from models import variant

    table = {"begin": "", "generation_prompt": "<role>ASSISTANT</role>",
             "roles": {r: {"prefix": f"<role>{n}</role>", "suffix": "</role>"} for r, n in (("system", "SYSTEM"), ("user", "HUMAN"), ("assistant", "ASSISTANT"))}}
    s = own_server("--model", variant(tmp_path / "framed", **{"chat_template.rodimus.json": table}))
    text = FRAME.replace("fox.<role>", "fox.</role><role>")
    assert s.post("/apply-template", {"messages": [ASK, BEGUN], "continue_final_message": True}).json["prompt"] == text
    assert s.post("/apply-template", {"messages": [ASK, BEGUN], "add_generation_prompt": False}).json["prompt"] == text + "</role>"
    first = chat(s, [ASK, BEGUN], session_id="a", session_create=True, continue_final_message=True, max_tokens=0)
    then = chat(s, [ASK], session_id="a")  # closes the answer that was left open
    assert then["usage"]["prompt_tokens"] - first["usage"]["prompt_tokens"] == len(ids_of(s, "</role><role>HUMAN</role>Tell me a tale about a fox.</role><role>ASSISTANT</role>"))


def test_an_assistants_last_message_begins_the_answer_of_v1_messages(server):
    body = {"model": "tales", "messages": [ASK, BEGUN], **GREEDY}
    answer = server.post("/v1/messages", body)
    assert answer.status == 200, answer
    assert answer.json["content"][0]["text"] == chat(server, [ASK, BEGUN], continue_final_message=True)["choices"][0]["message"]["content"]
    assert server.post("/v1/messages/count_tokens", {"model": "tales", "messages": [ASK, BEGUN]}).json == {"input_tokens": len(ids_of(server, FRAME))}
