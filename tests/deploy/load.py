"""Clients that ask a balancer without a pause, and what became of each request."""
import http.client
import json
import threading
import time
import uuid

from replicas import read_events


class Client:
    """One request after the other; a request is lost if its answer is not whole and right, for whatever reason."""

    def __init__(self, load):
        self.load, self.connection = load, None

    def exchange(self, body, headers=None, keep=False):
        """The answer to one POST, read in full by the caller."""
        if not self.connection:
            self.connection = http.client.HTTPConnection(self.load.host, self.load.port, timeout=self.load.timeout)
        self.connection.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "ignore_eos": True, **body}),
                                {"Content-Type": "application/json", **(headers or {})})
        return self.connection.getresponse()

    def drop(self):
        if self.connection:
            self.connection.close()
            self.connection = None

    def whole(self, response, n):
        body = json.loads(response.read())
        assert response.status == 200, (response.status, body)
        assert body["usage"]["completion_tokens"] == n, body
        return body

    def ask(self):
        raise NotImplementedError

    def run(self):
        while not self.load.stopping.is_set():
            began, fault = time.monotonic(), None
            try:
                self.ask()
            except Exception as e:  # a connection that broke, an error, half an answer: the request is lost
                fault = repr(e)
                self.drop()
            with self.load.lock:
                self.load.outcomes.append((type(self).__name__, began, time.monotonic() - began, fault))
            if fault:
                time.sleep(0.05)


class Plain(Client):
    def ask(self):
        self.whole(self.exchange({"max_tokens": 5}), 5)
        self.drop()


class Stream(Client):
    def ask(self):
        response = self.exchange({"max_tokens": 20, "stream": True})
        assert response.status == 200, (response.status, response.read())
        events = [event.data for event in read_events(response)]
        assert events[-1] == "[DONE]" and sum(len(e["choices"]) for e in events[:-1]) == 21, events[-1:]
        self.drop()


class Kept(Client):
    """On one connection as long as the balancer keeps it, as the openai package does."""

    def ask(self):
        response = self.exchange({"max_tokens": 5})
        self.whole(response, 5)
        if response.will_close:
            self.drop()


class Turns(Client):
    """Turns of a session, each on the version of the one before: none is lost and none is done twice."""

    def __init__(self, load):
        super().__init__(load)
        self.begin()

    def begin(self):
        self.session, self.version = uuid.uuid4().hex, 0

    def ask(self):
        version = {"session_create": True} if self.version == 0 else {"expected_version": self.version}
        try:
            body = self.whole(self.exchange({"max_tokens": 5, "session_id": self.session, **version}, {"X-Session-Id": self.session}), 5)
            assert body["session"]["version"] == self.version + 1, (body["session"], self.version)
        except Exception:
            self.begin()
            raise
        self.version = self.version + 1 if self.version < 50 else self.begin() or 0
        self.drop()


def borne(kind):
    """How many lost requests are not the test's matter. Caddy 2.6 cuts some answers that begin within milliseconds of their request, in the first
    step of an idle replica: it closes the connection itself (deploy/BALANCERS.md)."""
    return 2 if kind == "caddy" else 0


class Load:
    """with Load(host, port) as load: ...; then load.outcomes has (manner, when it began, seconds, fault or None) of each request."""

    def __init__(self, host, port, n_each=3, timeout=60):
        self.host, self.port, self.timeout = host, port, timeout
        self.stopping, self.lock, self.outcomes = threading.Event(), threading.Lock(), []
        self.threads = [threading.Thread(target=manner(self).run) for manner in (Plain, Stream, Kept, Turns) for _ in range(n_each)]

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for t in self.threads:
            t.join()

    @property
    def lost(self):
        return [(manner, round(seconds, 2), fault) for manner, _, seconds, fault in self.outcomes if fault]

    @property
    def slowest_s(self):
        return max(seconds for _, _, seconds, _ in self.outcomes)
