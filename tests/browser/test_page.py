"""The playground in Chromium: what a visitor does in the first five minutes."""
import json
import os
import re
import time

import pytest
from playwright.sync_api import expect

from conftest import SHOTS

MARKUP = "<img src=x onerror=\"window.hit=1\"><b>bold</b><script>window.hit=1</script>"
SLOW = ("--device", "null:25", "--slots", "4")


def send(page, text, wait=True):
    page.fill("#input", text)
    page.press("#input", "Enter")
    if wait:
        expect(page.locator("#stop")).to_be_hidden(timeout=30000)


def settings(page, **values):
    for name, value in values.items():
        page.fill(f"#{name}", str(value))


def last(page, what=".text"):
    return page.locator(".turn.assistant").last.locator(what)


def tokens(page):
    """How many tokens the current session has read, as its row says."""
    return int(re.search(r"(\d+) tokens", page.locator(".session.current .facts").inner_text()).group(1))


def test_a_message_is_answered_and_the_answer_is_the_servers(serve, open_page):
    server = serve()
    page = open_page(server)
    settings(page, temperature=0, max_tokens=20)
    page.select_option("#mode", "text")
    send(page, "There was once a")
    wanted = server.complete("There was once a", max_tokens=20)["choices"][0]["text"]
    assert last(page).inner_text() == wanted.strip("\n") or last(page).text_content() == wanted
    expect(last(page, ".facts")).to_contain_text("20 tokens")
    assert page.locator("#model").inner_text() == "tales"


def test_tokens_appear_one_after_the_other(serve, open_page):
    page = open_page(serve(*SLOW))
    settings(page, max_tokens=60)
    send(page, "Once", wait=False)
    lengths = set()
    while page.locator("#stop").is_visible() or not lengths:
        lengths.add(len(last(page).text_content()) if page.locator(".turn.assistant").count() else 0)
        time.sleep(0.02)
    assert len(lengths) > 10, f"the answer grew in {len(lengths)} steps"


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_stop_ends_the_request_on_the_server_and_the_session_is_as_before(serve, open_page, how):
    server = serve(*SLOW)
    page = open_page(server)
    settings(page, max_tokens=4)
    send(page, "Once")
    before = tokens(page)
    settings(page, max_tokens=100000)
    send(page, "Again", wait=False)
    server.wait_metric("rodimus_slots_used", lambda n: n == 1)
    expect(last(page)).not_to_be_empty()
    page.click("#stop") if how == "button" else page.keyboard.press("Escape")
    server.wait_metric("rodimus_slots_used", lambda n: n == 0, timeout=2)
    expect(last(page, ".facts")).to_contain_text("Stopped")
    assert tokens(page) == before
    settings(page, max_tokens=4)
    send(page, "And now")
    assert tokens(page) > before


def test_a_second_turn_reads_nothing_again_and_a_fork_goes_its_own_way(serve, open_page):
    server = serve()
    page = open_page(server)
    settings(page, max_tokens=16, temperature=0)
    send(page, "Tell me a tale about a fox.")
    first = tokens(page)
    send(page, "And then?")
    facts = last(page, ".facts").inner_text()
    prompt, cached = map(int, re.search(r"prompt (\d+) tokens, (\d+) of them not read again", facts).groups())
    assert cached >= first - 1, facts
    trunk, name = tokens(page), page.locator(".session.current > button").first.inner_text()
    page.click("#fork")
    expect(page.locator("#status")).to_contain_text("none of them read again")
    expect(page.locator("#tree ul .session.current")).to_have_count(1)  # below the one that it was made from
    assert tokens(page) == trunk
    assert page.locator(".turn").count() == 4, "the fork shows the texts of its source"
    send(page, "A branch.")
    assert tokens(page) > trunk
    page.click(f".session > button[title='{name}']")
    assert tokens(page) == trunk
    page.screenshot(path=os.path.join(SHOTS, "fork.png"))


def test_an_earlier_answer_is_a_place_to_go_back_to(serve, open_page):
    server = serve()
    page = open_page(server)
    settings(page, max_tokens=8, temperature=0)
    send(page, "Tell me a tale about a fox.")
    first = tokens(page)
    for text in ("And then?", "And a king?"):
        send(page, text)
    expect(page.locator(".turn .back")).to_have_count(2)  # not at the last answer, where the session stands
    trunk = page.locator(".turn .text").nth(3).inner_text()
    page.click(".turn .back >> nth=0")
    expect(page.locator("#status")).to_contain_text("Went back 2 turns")
    assert page.locator(".turn").count() == 2 and tokens(page) == first
    send(page, "And then?")
    assert page.locator(".turn .text").nth(3).inner_text() == trunk, "the same way on is the same answer"
    expect(page.locator(".turn .back")).to_have_count(1)
    assert server.metric("rodimus_session_rewinds_total") == 1


def test_another_conversation_chosen_during_an_answer_stays_chosen(serve, open_page):
    page = open_page(serve(*SLOW))
    settings(page, max_tokens=4)
    send(page, "First")
    first = page.locator(".session.current > button").first.inner_text()
    page.click("#new")
    settings(page, max_tokens=40)
    send(page, "Second", wait=False)
    page.click(f".session > button[title='{first}']")
    expect(page.locator("#stop")).to_be_hidden(timeout=30000)
    expect(page.locator(".session")).to_have_count(2)
    assert page.locator(".session.current > button").first.inner_text() == first
    before = tokens(page)
    settings(page, max_tokens=4)
    send(page, "Third")
    assert page.locator(".session.current > button").first.inner_text() == first and tokens(page) > before


def test_sessions_whose_parents_go_round_and_long_chains_are_shown(serve, open_page):
    server = serve()
    post = lambda path, body: server.post(path, body).json["id"]
    post("/v1/sessions", {"id": "a"})
    post("/v1/sessions/a/fork", {"id": "b"})
    assert server.ask("DELETE", "/v1/sessions/a").status == 200
    post("/v1/sessions/b/fork", {"id": "a"})
    last_one = post("/v1/sessions", {"id": "c0"})
    for i in range(1, 41):
        last_one = post(f"/v1/sessions/{last_one}/fork", {"id": f"c{i}"})
    page = open_page(server)
    expect(page.locator(".session")).to_have_count(43)


def test_a_session_that_is_gone_is_said(serve, open_page):
    server = serve()
    page = open_page(server)
    settings(page, max_tokens=4)
    send(page, "Once")
    name = page.locator(".session.current > button").first.inner_text()
    assert server.ask("DELETE", f"/v1/sessions/{name}").status == 200
    send(page, "And then?")
    expect(page.locator("#status")).to_contain_text("is gone")
    expect(page.locator(".turn")).to_have_count(0)


def test_a_session_goes_on_after_a_restart_of_the_server(serve, open_page):
    server = serve()
    page = open_page(server)
    settings(page, max_tokens=12)
    send(page, "Tell me a tale.")
    before = tokens(page)
    server.kill()
    expect(page.locator("#status")).to_contain_text("does not answer")
    server.back()
    expect(page.locator("#status")).to_contain_text("The server is back")
    expect(page.locator(".session.current")).to_have_count(1)
    assert tokens(page) == before
    send(page, "And then?")
    expect(last(page, ".facts")).to_contain_text("not read again")
    assert tokens(page) > before


def test_a_server_that_dies_in_the_middle_of_an_answer_is_said(serve, open_page):
    server = serve(*SLOW)
    page = open_page(server)
    settings(page, max_tokens=2000)
    send(page, "Once", wait=False)
    server.wait_metric("rodimus_slots_used", lambda n: n == 1)
    expect(last(page)).not_to_be_empty()
    server.kill()
    expect(last(page, ".facts")).to_contain_text("lost before the answer ended")
    server.back()
    expect(page.locator("#status")).to_contain_text("The server is back")
    settings(page, max_tokens=4)
    send(page, "Once more")
    expect(last(page, ".facts")).to_contain_text("4 tokens")


def test_a_reload_keeps_the_texts_of_sessions_and_forgets_the_key(serve, open_page):
    page = open_page(serve("--api-keys", "sk-right"))
    page.fill("#key", "sk-right")
    page.press("#key", "Enter")
    settings(page, max_tokens=8)
    send(page, "Tell me a tale.")
    said = last(page).text_content()
    page.reload()
    expect(page.locator("#status")).to_contain_text("wants an API key")
    assert page.input_value("#key") == ""
    page.fill("#key", "sk-right")
    page.press("#key", "Enter")
    page.locator(".session > button").first.click()
    assert last(page).text_content() == said
    kept = page.evaluate("JSON.stringify([...Object.entries(localStorage), ...Object.entries(sessionStorage)]) + document.cookie")
    assert "sk-right" not in kept


def test_a_wrong_key_is_said_and_a_right_one_works(serve, open_page):
    page = open_page(serve("--api-keys", "sk-right"))
    expect(page.locator("#status")).to_contain_text("wants an API key")
    page.fill("#key", "sk-wrong")
    page.press("#key", "Enter")
    expect(page.locator("#status")).to_contain_text("another one than this")
    page.fill("#key", "sk-right")
    page.press("#key", "Enter")
    expect(page.locator("#model")).to_have_text("tales")
    settings(page, max_tokens=4)
    send(page, "Once")
    expect(last(page, ".facts")).to_contain_text("4 tokens")


def test_markup_in_prompts_answers_and_names_stays_text(serve, open_page):
    server = serve()
    page = open_page(server)
    settings(page, max_tokens=4)
    send(page, MARKUP)
    assert page.locator(".turn.user .text").last.text_content() == MARKUP
    page.select_option("#mode", "text")
    settings(page, max_tokens=3)
    send(page, MARKUP)
    page.route("**/v1/completions", lambda route: route.fulfill(
        status=200, content_type="text/event-stream",
        body='data: {"choices":[{"index":0,"text":%s,"finish_reason":"stop","logprobs":null}]}\n\ndata: [DONE]\n\n' % repr(MARKUP).replace('"', '\\"').replace("'", '"')))
    send(page, "x")
    assert last(page).text_content() == MARKUP
    page.unroute("**/v1/completions")
    assert page.evaluate("window.hit") is None and page.locator("#talk img, #talk b, #talk script").count() == 0


def test_probabilities_show_on_hover_and_by_keys(serve, open_page):
    page = open_page(serve())
    settings(page, max_tokens=12, temperature=0)
    send(page, "Tell me a tale.")
    spans = last(page).locator(".token")
    assert spans.count() >= 8
    spans.nth(2).hover()
    expect(page.locator("#odds .took")).to_have_count(1)
    share = [float(t.split("%")[0]) for t in page.locator("#odds tr").all_inner_texts()]
    assert len(share) >= 5 and 0 < sum(share) <= 101, share
    last(page).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(last(page).locator(".token.here")).to_have_count(1)
    expect(page.locator("#odds")).to_be_visible()


def test_the_panel_is_live(serve, open_page):
    server = serve(*SLOW)
    page = open_page(server)
    settings(page, max_tokens=150)
    send(page, "Once", wait=False)
    expect(page.locator("#m-slots")).to_have_text("1 of 4")
    expect(page.locator("#m-step")).to_contain_text("ms")
    assert 20 < float(page.locator("#m-step").inner_text().split()[0]) < 60
    page.click("#stop")
    expect(page.locator("#m-slots")).to_have_text("0 of 4")


def test_the_panel_says_why_it_is_empty(serve, open_page):
    """With an admin key the metrics are not for who chats; behind a balancer they are not there at all."""
    page = open_page(serve("--api-keys", "sk-right", "--admin-key", "boss"))
    expect(page.locator("#m-why")).to_contain_text("want a key")
    page.fill("#key", "sk-right")
    page.press("#key", "Enter")
    expect(page.locator("#m-why")).to_contain_text("admin key")
    expect(page.locator("#m-slots")).to_have_text("-")
    settings(page, max_tokens=4)
    send(page, "Once")
    expect(last(page, ".facts")).to_contain_text("4 tokens")
    page.route("**/metrics", lambda route: route.fulfill(status=404, body=""))
    page.fill("#key", "sk-right ")  # asked again at once
    page.press("#key", "Enter")
    expect(page.locator("#m-why")).to_contain_text("no metrics at this address")


def test_the_panel_fills_when_the_key_is_right(serve, open_page):
    page = open_page(serve("--api-keys", "sk-right", "--slots", "3"))
    expect(page.locator("#m-why")).to_contain_text("want a key")
    page.fill("#key", "sk-right")
    page.press("#key", "Enter")
    expect(page.locator("#m-slots")).to_have_text("0 of 3", timeout=3000)
    expect(page.locator("#m-why")).to_be_empty()


def test_a_system_prompt_that_a_session_does_not_take_is_said(serve, open_page):
    page = open_page(serve())
    bodies, note = [], page.locator("#system_note")
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.url.endswith("/chat/completions") else None)
    roles = lambda: [m["role"] for m in bodies[-1]["messages"]]
    settings(page, max_tokens=4, system="You are a fox.")
    expect(note).to_be_empty()
    send(page, "Once")
    assert roles() == ["system", "user"]
    expect(note).to_be_empty()
    settings(page, system="You are a raven.")
    expect(note).to_contain_text("began with another")
    send(page, "And then?")
    assert roles() == ["user"]
    expect(note).to_contain_text("began with another")
    page.click("#fork")
    expect(page.locator("#status")).to_contain_text("none of them read again")
    expect(note).to_contain_text("began with another")
    settings(page, system="You are a fox.")
    expect(note).to_be_empty()
    page.reload()
    page.locator(".session > button").first.click()
    expect(note).to_contain_text("began with another")  # the field is empty, the session's prompt was not
    page.click("#new")
    expect(note).to_be_empty()
    settings(page, system="You are a fox.")
    page.select_option("#mode", "text")
    expect(note).to_contain_text("have no system prompt")
    page.select_option("#mode", "chat")
    expect(note).to_be_empty()


def test_a_session_that_has_read_nothing_takes_the_system_prompt(serve, open_page):
    server = serve()
    assert server.post("/v1/sessions", {"id": "empty"}).status == 200
    page = open_page(server)
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.url.endswith("/chat/completions") else None)
    page.click(".session > button[title='empty']")
    settings(page, max_tokens=4, system="You are a fox.")
    send(page, "Once")
    assert bodies[-1]["session_id"] == "empty" and [m["role"] for m in bodies[-1]["messages"]] == ["system", "user"]
    expect(page.locator("#system_note")).to_be_empty()


def test_a_message_sent_before_the_list_is_new_brings_no_second_system_prompt(serve, open_page):
    page = open_page(serve())
    bodies = []

    def stale(route):
        answer = route.fetch()
        found = answer.json()
        for session in found["data"]:
            session["version"] = 0
        route.fulfill(json=found)
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.url.endswith("/chat/completions") else None)
    page.route("**/v1/sessions?*", stale)
    settings(page, max_tokens=4, system="You are a fox.")
    send(page, "Once")
    send(page, "And then?")
    assert [[m["role"] for m in b["messages"]] for b in bodies] == [["system", "user"], ["user"]]


def test_conversations_of_agents_are_listed_and_forgotten(serve, open_page):
    server = serve()
    body = {"messages": [{"role": "user", "content": "Once upon a time " * 50}], "max_tokens": 1}
    assert server.post("/v1/chat/completions", body, headers={"X-Session-Id": "an agent"}).status == 200
    page = open_page(server)
    expect(page.locator("#conversations li")).to_have_count(1)
    expect(page.locator("#conversations li")).to_contain_text("an agent")
    page.get_by_label("Forget an agent").click()
    expect(page.locator("#conversations li")).to_have_count(0)
    assert server.get("/v1/sessions?kind=conversation").json["data"] == []


def test_a_session_is_deleted_when_asked_twice(serve, open_page):
    server = serve()
    page = open_page(server)
    settings(page, max_tokens=4)
    send(page, "Once")
    name = page.locator(".session.current > button").first.inner_text()
    there = lambda: server.get(f"/v1/sessions/{name}").status
    drop = page.locator(".session > button").nth(1)
    drop.click()
    expect(drop).to_have_text("delete?")
    assert drop.get_attribute("aria-label") == f"Delete {name} for good: press again" and there() == 200
    page.locator("#input").focus()  # thought better of it
    expect(drop).to_have_text("\u00d7")
    drop.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(drop).to_have_text("\u00d7")
    page.wait_for_timeout(100)
    assert there() == 200
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator(".session")).to_have_count(0)
    assert there() == 404
    expect(page.locator(".turn")).to_have_count(0)


def test_everything_is_reached_by_keys(serve, open_page):
    page = open_page(serve())
    names = set()
    page.locator("#key").focus()
    for _ in range(40):
        names.add(page.evaluate("document.activeElement.id"))
        page.keyboard.press("Tab")
    for id_ in ("new", "input", "send", "mode", "system", "temperature", "max_tokens", "seed", "odds_on"):
        assert id_ in names, f"{id_} is not reached by Tab: {names}"
    unnamed = page.evaluate("""[...document.querySelectorAll('button, input, select, textarea')].filter(
        (e) => !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.textContent.trim()).map((e) => e.id)""")
    assert not unnamed, f"controls without a name: {unnamed}"


@pytest.mark.parametrize("width,scheme", [(390, "light"), (390, "dark"), (1280, "dark")])
def test_it_is_readable_on_a_phone_and_in_the_dark(serve, open_page, width, scheme):
    page = open_page(serve(), viewport={"width": width, "height": 800}, color_scheme=scheme)
    settings(page, max_tokens=20)
    send(page, "Tell me a tale about a fox.")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = (page.evaluate(f"getComputedStyle(document.querySelector('.turn .text')).{p}") for p in ("color", "backgroundColor"))
    light = [sum(map(int, re.findall(r"\d+", c)[:3])) for c in (ink, paper)]
    assert abs(light[0] - light[1]) > 400 and (light[0] > light[1]) == (scheme == "dark"), (ink, paper)


EXAMPLES = [("Extract facts", 1), ("Edit a tale", 1), ("Call a tool", 2), ("Recall a name", 5), ("Add", 1), ("Fill a hole", 1), ("Obey a system prompt", 1)]


def play(page, name):
    page.get_by_role("button", name=name, exact=True).click()
    expect(page.locator("#examples button", has_text=name)).to_be_enabled(timeout=60000)


@pytest.mark.parametrize("name, turns", EXAMPLES)
def test_an_example_is_a_click(serve, open_page, name, turns):
    """On a device that computes nothing: what the page asks, and that all of it is a conversation of its own, at temperature 0."""
    server = serve("--device", "null")
    page, bodies = open_page(server), []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
    send(page, "Once")
    settings(page, temperature=1.5, system="You are a fox.")
    bodies.clear()
    play(page, name)
    assert len(bodies) == turns and page.locator(".turn").count() == 2 * turns, bodies
    assert all(b["temperature"] == 0 for b in bodies)
    if name == "Fill a hole":
        song = bodies[0]["suffix"].split('"')[-2]
        assert bodies[0]["prompt"].count(song) == bodies[0]["suffix"].count(song) == 1, "the hole is what the others say"
        assert f"{bodies[0]['prompt']}[hole]{bodies[0]['suffix']}" == page.locator(".turn.user .text").text_content()
        return
    expect(page.locator(".session")).to_have_count(2)
    assert len({b["session_id"] for b in bodies}) == 1 and [b.get("session_create") for b in bodies] == [True] + [None] * (turns - 1)
    roles = [m["role"] for b in bodies for m in b["messages"]]
    wanted = {"Call a tool": ["user", "tool"], "Obey a system prompt": ["system", "user"]}
    assert roles == wanted.get(name, ["user"] * turns)


def test_examples_wait_for_the_answer_that_runs_and_end_with_stop(serve, open_page):
    server = serve(*SLOW)
    page = open_page(server)
    settings(page, max_tokens=100000)
    send(page, "Once", wait=False)
    expect(page.locator("#examples button").first).to_be_disabled()
    page.keyboard.press("Escape")
    expect(page.locator("#examples button").first).to_be_enabled()
    page.get_by_role("button", name="Recall a name").click()
    expect(last(page)).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(page.locator("#examples button").first).to_be_enabled()
    assert page.locator(".turn").count() == 2, "what comes behind a stopped turn is not asked"


def test_an_example_ends_where_another_conversation_is_chosen(serve, open_page):
    page = open_page(serve("--device", "null:5", "--slots", "4"))
    settings(page, max_tokens=4)
    send(page, "First")
    first = page.locator(".session.current > button").first.inner_text()
    page.get_by_role("button", name="Recall a name").click()
    page.click(f".session > button[title='{first}']")
    expect(page.locator("#examples button").first).to_be_enabled(timeout=60000)
    assert page.locator(".turn").count() == 2 and page.locator(".session.current > button").first.inner_text() == first
    expect(page.locator(".session")).to_have_count(2)


def test_the_examples_show_what_the_default_model_can_do(serve, open_page):
    page = open_page(serve(model=None))
    said = lambda: [t.strip() for t in page.locator(".turn.assistant .text").all_text_contents()]
    play(page, "Extract facts")
    assert json.loads(said()[0]) == {"hero": "Nerilde", "companion": "Bruno", "treasure": "silver violin", "price": 26}
    play(page, "Edit a tale")
    tale = page.locator(".turn.user .text").text_content().split("\n\n")[1]
    assert said() == [tale.replace("Nerilde", "Karwyn")]
    play(page, "Call a tool")
    call, answer = said()
    assert json.loads(call[len("<tool_call>"):-len("</tool_call>")]) == {"name": "book_seat", "arguments": {"person": "Karwyn", "day": "Friday"}}
    assert answer == "The number is 12 and the price is 30."
    play(page, "Recall a name")
    assert "Karus" in said()[-1] and tokens(page) > 1500
    play(page, "Add")
    assert said() == ["Karus has 53 lemons."]
    play(page, "Fill a hole")
    assert said() == ["Give me your violin, Darilde, and I will show you Lerport"]
    play(page, "Obey a system prompt")
    assert said() == ["NERILDE LIVES IN TELSTEAD."]


def test_a_call_is_shown_without_probabilities_too(serve, open_page):
    page = open_page(serve("--device", "null"))
    page.uncheck("#odds_on")
    chunk = 'data: {"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}\n\n'
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=200, content_type="text/event-stream", body="".join(
        chunk % (json.dumps({"tool_calls": [{"index": 0, **call}]}), end) for call, end in (
            ({"id": "call_1", "type": "function", "function": {"name": "book_seat", "arguments": ""}}, "null"),
            ({"function": {"arguments": '{"day": '}}, "null"), ({"function": {"arguments": '"Friday"}'}}, '"tool_calls"'))) + "data: [DONE]\n\n"))
    send(page, "Please book a seat on Friday.")
    assert last(page).text_content() == 'book_seat {"day": "Friday"}'


def test_the_page_is_small_and_fetches_nothing_from_elsewhere(serve, open_page):
    server = serve()
    page = open_page(server)
    asked = []
    page.on("request", lambda r: asked.append(r.url))
    page.reload()
    settings(page, max_tokens=4)
    send(page, "Once")
    assert asked and all(url.startswith(server.url) for url in asked), asked
    answer = server.get("/")
    assert len(answer.body) < 150_000
    policy = answer.header("Content-Security-Policy")
    assert "default-src 'none'" in policy and "unsafe" not in policy, policy


def test_the_picture_of_the_readme(serve, open_page):
    page = open_page(serve(model=None), viewport={"width": 1180, "height": 720}, color_scheme="light")
    play(page, "Recall a name")
    page.click("#fork")
    expect(page.locator("#status")).to_contain_text("none of them read again")
    send(page, "My owl is called Bruno.")
    play(page, "Call a tool")
    page.locator(".turn.assistant").first.locator(".token").nth(20).hover()
    expect(page.locator("#odds .took")).to_have_count(1)
    page.wait_for_timeout(1100)  # one more round of the panel
    page.screenshot(path=os.path.join(SHOTS, "playground.png"))
    if os.environ.get("RODIMUS_KEEP_PICTURE"):
        page.screenshot(path=os.path.join(os.path.dirname(os.path.abspath(__file__)), "playground.png"))
