"""traceparent (W3C Trace Context): the trace of a request stands in its log line and in its errors."""
import json
import re
import threading

import pytest

from server import read_events

TRACE, OTHER, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7"
HEADER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
GOOD = {"prompt": [300], "max_tokens": 2}


def lines(s, log_format):
    """Of the log, the lines of requests: {id: trace, or None}."""
    s.get("/version", headers={"X-Request-Id": "last"})
    s.wait_log('"id":"last"' if log_format == "json" else "id=last")
    if log_format == "json":
        parsed = [json.loads(line) for line in s.log().splitlines()]
        return {line["id"]: line.get("trace_id") for line in parsed if line["message"] == "request"}
    found = {}
    for line in s.log().splitlines():
        fields = dict(re.findall(r" (\w+)=(\S+)", line))
        if "id" in fields:
            found[fields["id"]] = fields.get("trace_id")
    return found


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_log_line_of_a_request_has_its_trace(own_server, log_format):
    s = own_server("--device", "null", "--log-format", log_format)
    for id_, method, path, body, more, status in (
            ("plain", "POST", "/v1/completions", GOOD, HEADER, 200), ("upper", "GET", "/v1/models", None, {"TraceParent": HEADER["traceparent"]}, 200),
            ("bad", "POST", "/v1/completions", {}, HEADER, 400), ("none", "GET", "/v1/models", None, {}, 200),
            ("nowhere", "GET", "/nowhere", None, HEADER, 404),
            ("broken", "GET", "/v1/models", None, {"traceparent": f"00-{TRACE.upper()}-{PARENT}-01"}, 200),
            ("later", "GET", "/v1/models", None, {"traceparent": f"01-{OTHER}-{PARENT}-01-more"}, 200)):
        assert s.ask(method, path, body, headers={"X-Request-Id": id_, **more}).status == status
    found = lines(s, log_format)
    wanted = {"plain": TRACE, "upper": TRACE, "bad": TRACE, "none": None, "nowhere": TRACE, "broken": None, "later": OTHER, "last": None}
    assert {k: found[k] for k in wanted} == wanted, s.log()


def test_two_headers_name_no_trace(own_server):
    s = own_server("--device", "null")
    one, other = (f"traceparent: 00-{t}-{PARENT}-01\r\n" for t in (TRACE, OTHER))
    for id_, headers in (("single", one), ("twice", one + one), ("differ", one + other), ("broken", one + "traceparent: x\r\n")):
        s.raw(f"GET /nowhere HTTP/1.1\r\nHost: x\r\nX-Request-Id: {id_}\r\n{headers}Connection: close\r\n\r\n".encode())
    found = lines(s, "text")
    assert [found[i] for i in ("single", "twice", "differ", "broken")] == [TRACE, None, None, None], found


def test_errors_have_the_trace(own_server):
    s = own_server("--device", "null", "--api-keys", "k", "--body-max-bytes", 1024, key="k")
    key = {"Authorization": "Bearer k"}
    for method, path, body, headers, status in (
            ("POST", "/v1/completions", {}, key, 400), ("POST", "/v1/chat/completions", {"messages": []}, key, 400),
            ("POST", "/v1/responses", {}, key, 400), ("GET", "/v1/models", None, {}, 401), ("GET", "/nowhere", None, key, 404),
            ("DELETE", "/v1/models", None, key, 405), ("GET", "/v1/sessions/x/state", None, key, 403)):
        answer = s.ask(method, path, body, headers={**headers, **HEADER})
        assert answer.status == status and answer.error["trace_id"] == TRACE, answer
        answer = s.ask(method, path, body, headers=headers)
        assert answer.status == status and "trace_id" not in answer.error, answer
    refused = s.ask("POST", "/v1/completions", b"x" * 2000, headers={**key, **HEADER})
    assert refused.status == 413 and refused.error["trace_id"] == TRACE, refused  # which the transport finds


@pytest.mark.parametrize("path,body", [("/v1/completions", {"prompt": [300], "ignore_eos": True, "max_tokens": 100000}),
                                       ("/v1/responses", {"input": "a", "ignore_eos": True, "max_output_tokens": 100000})],
                         ids=["completions", "responses"])
def test_an_error_in_mid_stream_has_the_trace(own_server, path, body):
    s = own_server("--device", "null:5", "--drain-ms", 100, "--drain-notice-ms", 0)
    connection, response = s.open("POST", path, {**body, "stream": True}, headers=HEADER)
    events = read_events(response)
    next(events)
    threading.Timer(0.2, s.terminate).start()
    errors = [e.data for e in events if isinstance(e.data, dict) and ("error" in e.data or e.data.get("type") == "error")]
    assert len(errors) == 1 and errors[0].get("error", errors[0])["trace_id"] == TRACE, errors
    connection.close()
    assert s.wait() == 0
