"""A proxy on loopback between an agent and the server: it records each request with its answer, and may force the call that a scenario wants next.

A small model calls no tool by itself where a scenario needs it, nor with arguments that mean something. So the proxy narrows a request: tool_choice names
the tool, and the tool's schema allows the wanted arguments alone; where a scenario wants none, it may call none. All else reaches the server as the agent sent it, and comes back as the server said it."""
import http.client
import http.server
import json
import sys
import threading
import time


class Force:
    """The next answer to a request that has this tool is a call of it with these arguments; arguments None: what the model likes."""

    def __init__(self, tool, arguments=None):
        self.tool, self.arguments = tool, arguments


SAYS = Force(None)  # the next answer is text


def exactly(value):
    """The schema of one value."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {k: exactly(v) for k, v in value.items()}, "required": list(value), "additionalProperties": False}
    return {"const": value}


def exact_pattern(text):
    return "".join({"\n": "\\n", "\t": "\\t"}.get(c, "\\" + c if c in r"\.^$*+?()[]{}|/-" else c) for c in text)


def open_tools(body):
    """(tool, its namespace or None) of each function that a body defines, wherever that stands."""
    lists = [body.get("tools") or []]
    lists += [item.get("tools") or [] for item in body.get("input") or [] if isinstance(item, dict) and item.get("type") in ("additional_tools", "tool_search_output")]
    for tools in lists:
        for tool in tools:
            if tool.get("type") == "namespace":
                for inner in tool.get("tools") or []:
                    yield inner, tool.get("name")
            else:
                yield tool, None


def tool_name(tool):
    return tool.get("name") or tool.get("function", {}).get("name") or tool.get("type")


def narrow(body, force, path):
    """Changes a body so that its answer is the wanted call. False: it has no such tool."""
    for tool, namespace in open_tools(body):
        if tool_name(tool) != force.tool:
            continue
        if path.startswith("/v1/messages"):
            if force.arguments is not None:
                tool["input_schema"] = exactly(force.arguments)
            body["tool_choice"] = {"type": "tool", "name": force.tool, "disable_parallel_tool_use": True}
        elif path.startswith("/v1/chat"):
            if force.arguments is not None:
                tool["function"]["parameters"] = exactly(force.arguments)
            body["tool_choice"] = {"type": "function", "function": {"name": force.tool}}
            body["parallel_tool_calls"] = False
        else:
            if force.arguments is not None and tool.get("type") == "custom":
                tool["format"] = {"type": "grammar", "syntax": "regex", "definition": exact_pattern(force.arguments)}
            elif force.arguments is not None:
                tool["parameters"] = exactly(force.arguments)
            kind = tool.get("type", "function")
            body["tool_choice"] = {"type": kind} if kind == "tool_search" else {"type": kind, "name": force.tool, **({"namespace": namespace} if namespace else {})}
            body["parallel_tool_calls"] = False
        return True
    return False


class Proxy:
    def __init__(self, server_port, log=None):
        self.server_port, self.records, self.forces, self.lock, self.log = server_port, [], [], threading.Lock(), log
        self.max_tokens = None
        self.faults = []  # statuses that the next requests with tools get, in place of an answer
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                proxy.pass_on(self)

            do_POST = do_DELETE = do_HEAD = do_GET

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                """A client that leaves is no fault."""
                if not isinstance(sys.exc_info()[1], ConnectionError):
                    super().handle_error(request, client_address)

        self.http = Server(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def begin(self, *forces, faults=(), max_tokens=None):
        """A scenario: what its requests get, in order, and the limit of its answers. The record begins anew."""
        with self.lock:
            self.records, self.forces, self.faults, self.max_tokens = [], list(forces), list(faults), max_tokens

    def answered(self):
        """The records of requests for an answer."""
        return [r for r in self.records if r["method"] == "POST" and "count_tokens" not in r["path"]]

    def change(self, path, raw):
        """(body to send, the parsed one, what was forced)."""
        try:
            body = json.loads(raw)
        except ValueError:
            return raw, None, None
        forced = None
        with self.lock:
            asks = isinstance(body, dict) and "count_tokens" not in path
            if asks and self.forces and narrow(body, self.forces[0], path):
                forced = self.forces.pop(0)
            elif asks and any(k in t for t in body.get("tools") or [] for k in ("input_schema", "parameters", "tools", "execution", "function")):
                body["tool_choice"] = {"type": "none"} if path.startswith("/v1/messages") else "none"
                if self.forces and self.forces[0] is SAYS:
                    self.forces.pop(0)
            if asks and self.max_tokens:
                body["max_output_tokens" if path.startswith("/v1/responses") else "max_tokens"] = self.max_tokens
        return json.dumps(body).encode(), body, forced

    def fault(self, handler, body):
        """Whether this request is refused here, as a busy server would."""
        with self.lock:
            status = self.faults.pop(0) if self.faults and body and body.get("tools") else None
        if status:
            said = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": f"forced {status}"}}).encode()
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Retry-After", "0")
            handler.send_header("Content-Length", str(len(said)))
            handler.end_headers()
            handler.wfile.write(said)
        return status

    def pass_on(self, handler):
        began = time.monotonic()
        raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        sent, body, forced = self.change(handler.path, raw) if raw else (raw, None, None)
        record = {"method": handler.command, "path": handler.path, "status": None, "error": None, "forced": forced.tool if forced else None,
                  "headers": {k.lower(): v for k, v in handler.headers.items()}, "body": body, "asked": raw, "answer": b""}
        with self.lock:
            self.records.append(record)
        faulty = self.fault(handler, body)
        if faulty:
            record.update(status=faulty, error="forced")
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=600)
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in ("host", "content-length", "connection", "accept-encoding")}
        try:
            upstream.request(handler.command, handler.path, body=sent or None, headers=headers)
            answer = upstream.getresponse()
            record["status"], record["answer_headers"] = answer.status, dict(answer.getheaders())
            handler.send_response(answer.status)
            for k, v in answer.getheaders():
                if k.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    handler.send_header(k, v)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            while True:
                piece = answer.read1(65536)
                record["answer"] += piece
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                handler.wfile.flush()
                if not piece:
                    break
        except (BrokenPipeError, ConnectionResetError):
            record["error"] = "the client left"
        finally:
            upstream.close()
        record["seconds"] = round(time.monotonic() - began, 2)
        if record["status"] >= 400:
            record["error"] = record["answer"].decode(errors="replace")[:600]
        if self.log:
            self.log(record)
