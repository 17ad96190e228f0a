"""What a router adds to a request, beside the same request without it; that streams pass token by token, and that a client who leaves is heard of."""
import http.client
import json
import os
import time

from routers_kinds import site
from server import read_events

N_PAIRS, N_WARM = 1500, 200


class Asker:
    """One kept connection, and how long each request takes."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, i):
        body = json.dumps({"model": "tales", "prompt": "Once", "max_tokens": 1, "ignore_eos": True, "user": f"fox-{i % 64}"})
        began = time.perf_counter()
        self.connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json", "X-Session-Id": f"fox-{i % 64}", "X-SMG-Routing-Key": f"fox-{i % 64}"})
        response = self.connection.getresponse()
        text = response.read()
        took = time.perf_counter() - began
        assert response.status == 200, (response.status, text)
        return took * 1e3


def quantile(times, q):
    return round(sorted(times)[min(len(times) - 1, int(q * len(times)))], 3)


def added(kind, folder):
    """The server computes nothing. One request with the router, one without, which is first changes."""
    with site(kind, folder, "--device", "null", "--slots", 16, "--model-name", "tales", names="a") as (router, servers):
        ways = {"direct": Asker(servers["a"].port), "routed": Asker(router.port)}
        times = {way: [] for way in ways}
        for i in range(N_WARM + N_PAIRS):
            for way in sorted(ways, reverse=i % 2 == 0):
                times[way].append(ways[way].ask(i))
    times = {way: all_[N_WARM:] for way, all_ in times.items()}
    differences = [b - a for a, b in zip(times["direct"], times["routed"])]
    return {"pairs": N_PAIRS, "load_average": round(os.getloadavg()[0], 1), **{f"{way}_{name}_ms": quantile(all_, q) for way, all_ in times.items() for name, q in (("p50", 0.5), ("p99", 0.99))},
            "added_p50_ms": quantile(differences, 0.5), "added_p99_ms": quantile(differences, 0.99)}


def arrivals(port, n, step_s):
    """How many of n tokens came half a step or more after the one before."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({"model": "tales", "prompt": "Once", "max_tokens": n, "ignore_eos": True, "stream": True}), {"Content-Type": "application/json"})
    times = [time.monotonic() for event in read_events(connection.getresponse()) if not event.comment and event.data != "[DONE]"]
    connection.close()
    return sum(b - a > step_s / 2 for a, b in zip(times, times[1:]))


def freed_s(server, port, stream):
    """How long a slot stays taken after its client has left."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({"model": "tales", "prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "stream": stream}), {"Content-Type": "application/json"})
    response = connection.getresponse() if stream else None
    server.wait_metric("rodimus_slots_used", lambda used: used == 1)
    if response:
        response.close()
    connection.close()
    return round(server.wait_metric("rodimus_slots_used", lambda used: not used), 2)


def streams(kind, folder):
    step_ms, n = 20, 40
    with site(kind, folder, "--device", f"null:{step_ms}", "--slots", 16, "--model-name", "tales", names="a") as (router, servers):
        direct, routed = (arrivals(port, n, step_ms / 1e3) for port in (servers["a"].port, router.port))
        assert routed >= direct / 4, f"{routed} arrivals of {n} tokens, {direct} without a router"
        return {"arrivals_of_40_tokens": routed, "direct": direct, "slot_freed_s": {"stream": freed_s(servers["a"], router.port, True), "whole": freed_s(servers["a"], router.port, False)}}
