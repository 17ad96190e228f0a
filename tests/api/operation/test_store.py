"""States in an object store, as who operates the servers sees it: settings, start, health, metrics, credentials, faults of the store, and
turns that another server was before."""
import json
import os
import sys
import threading
import time

import pytest

from server import ROOT, SLOWER, Server, command
from talk import CHAT, COMPLETIONS, new_id, turn

sys.path.insert(0, os.path.join(ROOT, "tests"))
from object_stand_in import StandIn  # noqa: E402

FLAGS = ["--state-timeout-ms", 3000]
RETRY_S = 10  # the answer to a turn that needs a store that is down comes within it


@pytest.fixture
def store():
    with StandIn() as s:
        yield s


@pytest.fixture
def serve(own_server):
    """A server of a store."""
    def begin(store, *flags, url=None, env=None):
        return own_server("--state-url", url or f"{store.url}/fleet", "--state-endpoint", store.endpoint, *FLAGS, *flags, env={**store.env, **(env or {})})
    return begin


def refused(*flags, env=None):
    """The log of a start that ends by itself, with its exit status."""
    s = Server(*flags, name="refused", env=env, wait=False)
    try:
        return s.wait(), s.log()
    finally:
        s.kill()


# ---- settings ----

@pytest.mark.parametrize("flags, words", [
    (["--state-url", "s3://me:hush@bucket/x"], ["state_url", "--state-url", "without credentials"]),
    (["--state-url", "https://bucket"], ["state_url", "s3://BUCKET/PREFIX"]),
    (["--state-url", "s3:///x"], ["state_url", "s3://BUCKET/PREFIX"]),
    (["--state-url", "s3://b/x", "--state-endpoint", "http://me:hush@127.0.0.1:1"], ["state_endpoint", "without credentials"]),
    (["--state-url", "s3://b/x", "--state-endpoint", "ftp://127.0.0.1"], ["state_endpoint", "http://HOST"]),
    (["--state-url", "s3://b/x", "--state-style", "sideways"], ["state_style", "virtual"]),
    (["--state-url", "s3://b/x", "--state-encryption", "rot13"], ["state_encryption", "aws:kms"]),
    (["--state-url", "s3://b/x", "--state-timeout-ms", "0"], ["state_timeout_ms"]),
    (["--state-endpoint", "http://127.0.0.1:1"], ["state_endpoint", "state_url is empty"]),
    (["--state-credentials", "file"], ["state_credentials", "state_url is empty"])],
    ids=["password", "other_scheme", "no_bucket", "password_of_endpoint", "ftp", "style", "encryption", "timeout", "endpoint_alone", "credentials_alone"])
def test_a_wrong_setting_is_named_and_its_secrets_are_not(flags, words):
    done = command("serve", *flags)
    assert done.returncode == 2, done
    assert all(word in done.stderr for word in words), done.stderr
    assert "hush" not in done.stderr + done.stdout, done.stderr


def test_a_start_without_credentials_says_which_setting_has_none(store, tmp_path):
    quiet = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(tmp_path)}
    code, log = refused("--state-url", f"{store.url}/x", "--state-endpoint", store.endpoint, env=quiet)
    assert code == 2 and "state_credentials" in log, log


# ---- the start ----

def test_a_store_that_lies_is_refused_by_what_it_did(store):
    store.faults({"do": "blind", "times": -1})
    code, log = refused("--state-url", f"{store.url}/x", "--state-endpoint", store.endpoint, env=store.env)
    assert code and "If-" in log, f"{code}: {log}"


def test_a_store_that_is_not_there_ends_the_start(store):
    code, log = refused("--state-url", f"{store.url}/x", "--state-endpoint", "http://127.0.0.1:1", "--state-timeout-ms", 500, env=store.env)
    assert code == 1 and "Cannot serve" in log, f"{code}: {log}"


# ---- what it says of itself ----

def test_a_server_tells_where_its_states_are_and_no_secret(serve, store):
    s = serve(store)
    turn(s, "one", "Once upon a time", session_create=True)
    info = s.get("/server_info").json
    assert info["state_url"] == "s3" and store.url not in json.dumps(info) and store.endpoint not in json.dumps(info), info
    assert s.get("/health").json == {"status": "ok", "store": "ok"}
    m = s.metrics()
    assert m['rodimus_store_requests_total{kind="put"}'] >= 1 and m['rodimus_store_bytes_total{way="out"}'] > 100000, m
    times = {work: m[f'rodimus_store_duration_seconds_count{{work="{work}"}}'] for work in ("read", "write", "other")}
    assert m["rodimus_store_conflicts_total"] == 0, m
    assert times["write"] == m['rodimus_store_requests_total{kind="put"}'] and min(times.values()) > 0, times
    assert 0 < m['rodimus_store_duration_seconds_sum{work="write"}'] < 60 * SLOWER
    assert m["rodimus_store_failures_total"] == 0 and m["rodimus_store_down"] == 0
    secret = store.env["AWS_SECRET_ACCESS_KEY"]
    assert secret not in s.log() and secret not in json.dumps(info)
    assert any("/s/" in key for key in store.objects_now()), store.objects_now()


DOWN = {"broken": {"do": "status", "status": 500, "code": "InternalError"}, "throttled": {"do": "status", "status": 503, "code": "SlowDown"},
        "forbidden": {"do": "status", "status": 403, "code": "AccessDenied"}, "silent": {"do": "hang", "s": 60}}


@pytest.mark.parametrize("how", DOWN)
def test_a_store_that_is_down_is_503_and_is_told(serve, store, how):
    """With the default of state_timeout_ms."""
    s = serve(store, "--state-timeout-ms", 8000)
    turn(s, "one", "Once upon a time", session_create=True)
    store.faults({**DOWN[how], "times": -1})
    began = time.monotonic()
    answer = s.post(COMPLETIONS, {"session_id": "one", "prompt": " there", "max_tokens": 2})
    took = time.monotonic() - began
    assert how != "silent" or s.metric('rodimus_store_duration_seconds_sum{work="read"}') > 1
    assert answer.status == 503 and answer.error["code"] == "io" and int(answer.header("Retry-After")) > 0, answer
    assert took < RETRY_S * SLOWER, took
    assert s.post(COMPLETIONS, {"prompt": "Once", "max_tokens": 2}).status == 200
    assert s.get("/health").json == {"status": "ok", "store": "down"} and s.metric("rodimus_store_down") == 1
    assert s.metric("rodimus_store_failures_total") >= 1
    assert how in ("forbidden", "silent") or s.metric("rodimus_store_retries_total") >= 1
    store.faults()
    assert turn(s, "one", " there")["session"]["version"] == 2
    assert s.get("/health").json["store"] == "ok"


def test_new_credentials_come_with_sighup(serve, store, tmp_path):
    file = tmp_path / "credentials"
    def write(key, secret):
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
        file.chmod(0o600)
    write(store.env["AWS_ACCESS_KEY_ID"], store.env["AWS_SECRET_ACCESS_KEY"])
    s = serve(store, "--state-credentials", file, env={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""})
    turn(s, "one", "Once upon a time", session_create=True)
    store.ask("PUT", "/_credentials", {"key": "NEW", "secret": "of-tomorrow", "token": ""})
    assert s.post(COMPLETIONS, {"session_id": "one", "prompt": " there", "max_tokens": 2}).status == 503
    file.write_text("nothing")
    assert "state_credentials" in s.reload()
    write("NEW", "of-tomorrow")
    assert "taken over" in s.reload()
    assert turn(s, "one", " there")["session"]["version"] == 2
    assert "of-tomorrow" not in s.log()


# ---- another server was first ----

def test_turns_of_one_session_on_two_servers_are_all_kept(serve, store):
    servers = [serve(store), serve(store)]
    session, answers = new_id(), []
    turn(servers[0], session, "Once upon a time", session_create=True)

    def ask(s):
        for _ in range(4):
            answers.append(s.post(COMPLETIONS, {"session_id": session, "prompt": " and then", "max_tokens": 3}))
    threads = [threading.Thread(target=ask, args=(s,)) for s in servers]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    done = [a for a in answers if a.status == 200]
    assert all(a.status == 200 or (a.status == 503 and a.error["code"] == "conflict" and a.header("Retry-After")) for a in answers), answers
    versions = sorted(a.json["session"]["version"] for a in done)
    assert versions == list(range(2, 2 + len(done))), f"each version is of one turn: {versions}"
    for s in servers:
        assert s.get(f"/v1/sessions/{session}").json["version"] == 1 + len(done)


def test_a_call_that_another_server_was_before_is_503(serve, store):
    s = serve(store)
    turn(s, "one", "Once upon a time", session_create=True)
    store.faults({"do": "status", "status": 412, "code": "PreconditionFailed", "method": "PUT", "times": -1})
    for answer in (s.ask("PATCH", "/v1/sessions/one", {"pin": True}), s.post("/v1/sessions/one/fork", {"id": "two"}), s.post("/v1/sessions", {"id": "three"}),
                   s.post(CHAT, {"session_id": "one", "messages": [{"role": "user", "content": "Hm"}], "max_tokens": 2})):
        assert answer.status in (503, 412) and answer.error["code"] in ("conflict", "session_exists"), answer
        assert answer.status == 412 or int(answer.header("Retry-After")) >= 1, answer
    store.faults()
    assert s.get("/v1/sessions/one").json["version"] == 1


def is_durable(s, session):
    end = time.monotonic() + 60
    while not s.get(f"/v1/sessions/{session}").json.get("durable"):
        assert time.monotonic() < end, s.log()[-2000:]
        time.sleep(0.2)


def test_a_lazy_turn_that_the_store_could_not_be_told_of_says_so(serve, store):
    """Whole answers and streams, while the store is down; as soon as it is told again nothing is said, and all is written."""
    s = serve(store, "--session-durability", "lazy")
    for path, body in ((COMPLETIONS, {"prompt": " there"}), (CHAT, {"messages": [{"role": "user", "content": "Hm"}]})):
        session, body = new_id(), {**body, "max_tokens": 2}
        assert turn(s, session, "Once upon a time", session_create=True)["session"] == {"id": session, "version": 1}
        is_durable(s, session)  # until then its mark lies in the store, and is the next turn's too
        store.faults({"do": "status", "status": 503, "code": "SlowDown", "times": -1})
        answer = s.post(path, {**body, "session_id": session})
        assert answer.status == 200 and answer.json["session"] == {"id": session, "version": 2, "durable": False}, answer
        events = [e.data for e in s.events(path, {**body, "session_id": session}) if isinstance(e.data, dict)]
        assert [e["session"] for e in events if "session" in e] == [{"id": session, "version": 3, "durable": False}], events
        store.faults()
        is_durable(s, session)
        answer = s.post(path, {**body, "session_id": session})
        assert answer.status == 200 and answer.json["session"] == {"id": session, "version": 4}, answer


def test_a_session_is_not_made_in_the_place_of_one_that_the_store_has_changed(serve, store):
    """As who reads it is told: 503, whether it is damaged on the way or at rest."""
    a, b = serve(store), serve(store)
    turn(a, "one", "Once upon a time", session_create=True)
    for at in (40, 200):
        store.faults({"do": "flip", "at": at, "method": "GET", "key": "/s/.*state$", "times": -1})
        for answer in (b.post("/v1/sessions", {"id": "one"}), b.post("/v1/sessions/one/rewind", {"turns": 1}), b.get("/v1/sessions/one")):
            assert answer.status == 503 and answer.error["code"] == "io" and int(answer.header("Retry-After")) >= 1, (at, answer)
    store.faults()
    end = time.monotonic() + 60
    while (answer := b.post("/v1/sessions", {"id": "one"})).status == 503 and time.monotonic() < end:
        time.sleep(0.4)  # the store was taken for one out of reach
    assert answer.status == 412 and answer.error["code"] == "session_exists", answer
    assert turn(b, "one", " there")["session"]["version"] == 2


# ---- a folder as the cache ----

def sent(store, key="/s/"):
    """Bytes of bodies that the store sent or took for states, and its answers to GET, since the log was emptied."""
    rows = [row for row in store.requests() if key in row["key"] and row["key"].endswith(".state")]
    return {"out": sum(row["bytes"][1] for row in rows if row["method"] == "GET"), "gets": [row["status"] for row in rows if row["method"] == "GET"]}


def cached(folder):
    return sorted(folder.glob("*.cached"))


def test_a_wake_from_the_cache_sends_no_bytes(serve, store, tmp_path):
    folder = tmp_path / "cache"
    s = serve(store, "--state-dir", folder)
    first = turn(s, "one", "Once upon a time", session_create=True)
    assert len(cached(folder)) == 1 and cached(folder)[0].stat().st_mode & 0o777 == 0o600, list(folder.iterdir())
    s.kill()
    s = serve(store, "--state-dir", folder)
    store.ask("DELETE", "/_log")
    second = turn(s, "one", " there was")
    assert second["session"]["version"] == 2 and second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, second
    got = sent(store)
    assert got == {"out": 0, "gets": [304]}, got
    m = s.metrics()
    assert (m["rodimus_store_cache_hits_total"], m["rodimus_store_cache_misses_total"]) == (1, 0), m
    assert m["rodimus_store_cache_bytes"] > 100000, m
    assert first["session"]["version"] == 1


def test_a_cache_that_is_old_damaged_cut_or_gone_changes_no_token(serve, store, tmp_path):
    folder = tmp_path / "cache"
    plain, other, waking = serve(store, url=f"{store.url}/plain"), serve(store), serve(store, "--state-dir", folder)

    def damage(how):
        file = cached(folder)[0]
        if how == "gone":
            file.unlink()
        elif how == "cut":
            os.truncate(file, file.stat().st_size // 2)
        elif how == "flipped":
            with open(file, "r+b") as f:
                f.seek(file.stat().st_size // 2)
                byte = f.read(1)
                f.seek(-1, os.SEEK_CUR)
                f.write(bytes([byte[0] ^ 1]))
        elif how == "folder_gone":
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()

    text = "Once upon a time"
    for n, how in enumerate(["fresh", "gone", "cut", "flipped", "old", "folder_gone", "fresh"]):
        if how == "old":
            want, got = (turn(server, "one", text, seed=n)["choices"][0]["text"] for server in (plain, other))
            assert got == want, f"{how}: {got}, want {want}"
        elif n:
            damage(how)
            waking.kill()
            waking = serve(store, "--state-dir", folder)
        want, got = (turn(server, "one", text, seed=n, session_create=n == 0) for server in (plain, waking))
        for name in ("choices", "session"):
            assert got[name] == want[name], f"{how}: {got}, want {want}"
        assert got["usage"]["prompt_tokens_details"] == want["usage"]["prompt_tokens_details"], f"{how}: {got}, want {want}"
        text = " and then"
    assert "refused" not in waking.log() and "damaged" not in waking.log(), waking.log()


def test_a_cache_that_takes_no_files_is_told_once_and_service_goes_on(serve, store, tmp_path):
    (tmp_path / "file").write_text("")
    s = serve(store, "--state-dir", tmp_path / "file")
    for n in range(3):
        turn(s, "one", "Once upon a time", session_create=n == 0)
    lines = [line for line in s.log().splitlines() if "keeps copies of states" in line]
    assert len(lines) == 1 and "no longer" in lines[0], s.log()


def test_two_servers_have_one_cache(serve, store, tmp_path):
    servers = [serve(store, "--state-dir", tmp_path / "cache") for _ in range(2)]
    turn(servers[0], "one", "Once upon a time", session_create=True)
    store.ask("DELETE", "/_log")
    for n in range(4):
        assert turn(servers[(n + 1) % 2], "one", " and then")["session"]["version"] == n + 2
    assert sent(store) == {"out": 0, "gets": [304] * 4}, sent(store)


def test_conversations_keep_their_part_of_the_store_beside_a_cache(own_server, store, tmp_path):
    """Of a key that has a quarter of it the oldest go first. A server that begins anew has no state in memory."""
    (tmp_path / "keys").write_text("one name=little\ntwo name=large\n")
    budget, said, whole = 12 << 20, {}, {}
    def server(i):
        return own_server("--state-url", f"{store.url}/fleet", "--state-endpoint", store.endpoint, "--state-dir", tmp_path / f"cache-{i}", "--state-disk-bytes", 4 << 20,
                          "--state-store-bytes", budget, "--api-key-file", tmp_path / "keys", *FLAGS, key="one", env={**store.env, "RODIMUS_TEST_CHECKPOINTS_PAY": "1"})
    def turn_of(s, name, key):
        messages = said.setdefault(name, [])
        messages.append({"role": "user", "content": f"Tell {name} a tale about a fox and a goat. " * 4})
        answer = s.post(CHAT, {"messages": messages, "max_tokens": 6, "min_tokens": 6, "seed": 1, "prompt_cache_key": name}, headers={"Authorization": f"Bearer {key}"}).json
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        before, usage = whole.get(name), answer["usage"]
        whole[name] = usage["prompt_tokens"] + usage["completion_tokens"]
        return usage["prompt_tokens_details"]["cached_tokens"], before
    def there():
        return sum(o["bytes"] for k, o in store.objects_now().items() if "/c/" in k)
    servers = [server(i) for i in range(2)]
    turn_of(servers[0], "small", "one")
    assert there() < budget // 4
    for n in range(2 * budget // there() + 1):
        turn_of(servers[n % 2], f"big {n}", "two")
    end = time.monotonic() + 60 * SLOWER
    while there() > budget:
        assert time.monotonic() < end, f"{there()} bytes, {budget} are allowed"
        time.sleep(0.2)
    for s in servers:
        s.kill()
    cached, before = turn_of(server(0), "small", "one")
    assert cached >= before - 1, (cached, before)


# ---- rodimus states ----

def states(store, *words, rc=0):
    done = command("states", *words, "--state-url", f"{store.url}/fleet", "--state-endpoint", store.endpoint, env={**os.environ, **store.env})
    assert done.returncode == rc, f"{done.args}: {done.returncode} {done.stdout} {done.stderr}"
    return done


def test_marks_of_a_lost_servers_lazy_turns_are_listed_and_cleaned_when_they_are_old(serve, store):
    for ahead_s, name in ((-7200, "old"), (0, "young")):
        store.ask("PUT", "/_clock", {"ahead_s": ahead_s, "checked": False})
        s = serve(store, "--session-durability", "lazy")
        store.faults({"do": "status", "status": 503, "code": "SlowDown", "method": "PUT", "key": "state$", "times": -1})
        turn(s, name, "Once upon a time", session_create=True)
        s.kill()
        store.faults()
    files = json.loads(states(store, "ls", "--json").stdout)["files"]
    assert [(f["kind"], f["left"], f.get("fault")) for f in sorted(files, key=lambda f: f["used_at"])] == [("mark", True, None), ("mark", False, None)], files
    assert "1 object," in states(store, "ls", "--kind", "mark", "--unused-s", 3600).stdout
    assert "Nothing was removed" in states(store, "gc").stdout and len([k for k in store.objects_now() if k.endswith(".lazy")]) == 2
    assert "1 removed" in states(store, "gc", "--yes").stdout
    left, = (k for k in store.objects_now() if k.endswith(".lazy"))
    young = max(files, key=lambda f: f["used_at"])["name"]
    assert left.endswith(young), (left, files)
    states(store, "rm", young, "--yes")
    assert not [k for k in store.objects_now() if k.endswith(".lazy")]


def test_states_of_a_store_are_listed_copied_and_cleaned(serve, store, tmp_path):
    s = serve(store)
    for more in ({"id": "plain"}, {"id": "kept", "keep_turns": 4}):
        assert s.post("/v1/sessions", more).status == 200
        for text in ("Once upon a time", " there was a king."):
            turn(s, more["id"], text)
    assert s.ask("PUT", "/v1/prefixes/tale", {"prompt": "Once upon a time there was a king who had three sons. " * 8}).status == 200
    assert s.post("/v1/sessions", {"id": "short", "ttl_s": 1}).status == 200
    turn(s, "short", "Once upon a time")
    s.kill()
    time.sleep(2.1)  # a store tells whole seconds
    before = store.objects_now()
    files = json.loads(states(store, "ls", "--json").stdout)["files"]
    assert sorted(f["kind"] for f in files if f["kind"] != "kept") == ["pinned"] + ["session"] * 3 and any(f["kind"] == "kept" for f in files), files
    assert len({f["tenant"] for f in files if f["kind"] != "pinned"}) == 1 and len({f["fingerprint"] for f in files}) == 1, files
    for f in files:
        key = next(k for k in before if k.endswith(f["name"]))
        assert f["bytes"] == before[key]["bytes"], f"{f} is {before[key]}"
    states(store, "get", files[0]["name"], str(tmp_path / "copy"))
    assert (tmp_path / "copy").stat().st_size == files[0]["bytes"]
    shown = json.loads(states(store, "gc", "--json").stdout)["files"]
    assert [(f["kind"], f["note"]) for f in shown] == [("session", "expired")], shown
    assert store.objects_now().keys() == before.keys()
    states(store, "gc", "--yes")
    gone = set(before) - set(store.objects_now())
    assert [k.endswith(shown[0]["name"]) for k in gone] == [True], gone
    kept = next(f["name"] for f in files if f["kind"] == "kept")
    session = next(f["name"] for f in files if f["kind"] == "session" and f["name"][:-len("state")] == kept[:len(f["name"]) - len("state")])
    states(store, "rm", session, "--yes")
    assert not [k for k in store.objects_now() if session[:-len("state")] in k], "earlier turns go with their session"
    again = serve(store)
    assert again.get("/v1/sessions/short").status == 404 and again.get("/v1/sessions/kept").status == 404
    assert turn(again, "plain", " And then")["session"]["version"] == 3
    assert again.get("/v1/prefixes/tale").status == 200


def test_equal_conversations_of_a_store_are_each_found_after_a_kill(serve, store):
    """Also where the states were in memory under the other name, and when that is deleted."""
    env, said, whole = {"RODIMUS_TEST_CHECKPOINTS_PAY": "1"}, {"one": [], "two": []}, {}
    def turn_of(server, name):
        said[name].append({"role": "user", "content": "Tell me a tale about a fox and a goat. " * 4})
        answer = server.post(CHAT, {"messages": said[name], "max_tokens": 6, "min_tokens": 6, "seed": 1, "prompt_cache_key": name}).json
        said[name].append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        before, usage = whole.get(name), answer["usage"]
        whole[name] = usage["prompt_tokens"] + usage["completion_tokens"]
        return usage["prompt_tokens_details"]["cached_tokens"], before
    s = serve(store, env=env)
    for _ in range(3):
        turn_of(s, "one"), turn_of(s, "two")
    page = s.get("/v1/sessions?kind=conversation").json["data"]
    assert [(c["id"], c["durable"], c["states"] > 0) for c in page] == [("one", True, True), ("two", True, True)], page
    for deleted in (False, True):
        s.kill()
        s = serve(store, env=env)
        if deleted:
            assert s.ask("DELETE", "/v1/sessions/one?kind=conversation").status == 200
        cached, before = turn_of(s, "two")
        assert cached >= before - 1, (deleted, cached, before)


def test_conversations_of_a_store_are_found_by_each_server_listed_and_cleaned(serve, store):
    """Answers come back with other white space: the next server knows from the notes what was said."""
    env, text = {"RODIMUS_TEST_CHECKPOINTS_PAY": "1"}, "Tell me a tale about a fox and a goat. " * 4
    servers, messages, whole = [serve(store, env=env) for _ in range(2)], [], 0
    for n in range(6):
        messages.append({"role": "user", "content": text})
        answer = servers[n % 2].post(CHAT, {"messages": messages, "max_tokens": 6, "min_tokens": 6, "seed": n, "prompt_cache_key": "fox"}).json
        usage = answer["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= whole - 1, (n, usage, whole)
        whole = usage["prompt_tokens"] + usage["completion_tokens"]
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] + " "})
    for s in servers:
        page = s.get("/v1/sessions?kind=conversation").json["data"]
        assert [(c["id"], c["durable"]) for c in page] == [("fox", True)], page
    def below():
        return {k: o["bytes"] for k, o in store.objects_now().items() if "/c/" in k and not k.endswith("clock")}
    # Another's sweep looks at the store some seconds behind its start, these two's perhaps before the last turn.
    serve(store, env=env).wait_metric("rodimus_conversation_file_bytes", lambda n: n == sum(below().values()))
    files = json.loads(states(store, "ls", "--json").stdout)["files"]
    assert {f["kind"] for f in files} == {"conversation", "notes"} and sum(f["bytes"] for f in files) == sum(below().values()), files
    assert len({f["tenant"] for f in files}) == 1 and all(f["tenant"] and "fault" not in f for f in files), files
    time.sleep(2.1)
    assert states(store, "gc", "--unused-s", 3600).stdout.startswith("0 objects")
    clocks = {k for k in store.objects_now() if k.endswith("/clock")}
    assert any("/c/" in k for k in clocks) and not any(f["name"].endswith("clock") for f in files), (clocks, files)
    assert f"{len(files)} removed" in states(store, "gc", "--unused-s", 1, "--yes").stdout
    assert not below() and clocks <= store.objects_now().keys()
    states(store, "gc", "--fingerprint", files[0]["fingerprint"], "--yes")
    assert clocks <= store.objects_now().keys(), "clocks are no states"


def test_a_conversation_is_removed_from_the_store_and_a_removal_that_failed_is_said(serve, store):
    s = serve(store, env={"RODIMUS_TEST_CHECKPOINTS_PAY": "1"})
    body = {"messages": [{"role": "user", "content": "Tell me a tale about a fox. " * 8}], "max_tokens": 6, "min_tokens": 6, "prompt_cache_key": "fox"}
    assert s.post(CHAT, body).status == 200
    store.faults({"do": "status", "status": 503, "code": "SlowDown", "method": "DELETE", "times": -1})
    answer = s.post("/finish_session", {"session_id": "fox"})
    assert answer.status == 503 and answer.error["code"] == "io", answer
    store.faults()
    answer = s.post("/finish_session", {"session_id": "fox"})
    assert answer.status == 200 and answer.json["deleted"], answer
    assert not [k for k in store.objects_now() if "/c/" in k and k.endswith("state")], store.objects_now()
    assert s.post("/finish_session", {"session_id": "fox"}).status == 404
