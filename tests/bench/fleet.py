"""tests/bench/fleet.py [--out FILE] [--hours H] [--seed N] [--date D --commit C]: a fleet with its states in an object store, in virtual time.

One host of eight GPUs is simulated, turn by turn; by symmetry it stands for all hosts of a fleet whose router keeps a
session where it was. What runs on a GPU, what a copy takes and what the store answers are constants measured elsewhere
(RATES, STORE below name the file); when people and tools pause are published quantiles of coding agents (AGENTS). No
clock is read and nothing is sent: the same seed gives the same file.

  a step      a request to the model: new tokens are read, some hundred are generated
  a request   some steps with tools between; then a person thinks
  a turn of a session is a step

A step begins where its state is: in a slot, in host memory, or in the store. Slots and host memory hold the states used
last. With durability "turn" a state is put into the store before the step's last event; with "lazy" when nobody has
used it for IDLE_S, and when it leaves host memory.
"""

import argparse
import heapq
import json
import math
import random
from collections import OrderedDict

GPUS = 8  # of a host
IDLE_S = 5.0
PROMPTS = 0.7  # of a GPU's time while a prompt waits; streams have the rest
LOAD = 0.7  # of that, at most

# TraceLab (arXiv 2606.30560; public pool of 357,161 steps, 4,265 sessions): tokens of a mean step; quantiles of the
# gaps in seconds, and their means. Steps of a request: generation of a request over generation of a step.
AGENTS = {
    "step": {"read": 153700, "new": 6455, "generated": 523},
    "steps_a_request": 8.9,
    "tool_s": {"least": 0.02, "p50": 0.3, "p90": 13.6, "p99": 216.0, "mean": 18.4},
    "human_s": {"least": 2.0, "p50": 84.0, "p90": 1236.0, "p99": 50040.0, "mean": 2802.0},
}

# tests/bench/results/MODEL-h200.json, MODEL-load-h200.json, conversations-h200.json, swap-h200.json. between: the time
# between two tokens of one stream beside so many others.
RATES = {
    "rodimus-1.4b": {"state": 51.9e6, "slots": 2813, "prompt": 150e3,
                     "between": [(1, 0.91e-3), (16, 1.69e-3), (64, 2.95e-3), (128, 4.56e-3), (256, 7.69e-3)]},
    "rodimus-plus-1.6b": {"state": 240e6, "slots": 607, "prompt": 145e3,
                          "between": [(1, 1.03e-3), (16, 1.79e-3), (64, 3.41e-3), (128, 5.45e-3), (256, 8.41e-3)]},
    "rodimus-plus-4b": {"state": 472e6, "slots": 295, "prompt": 48e3,
                        "between": [(1, 3.02e-3), (8, 4.21e-3), (64, 12.5e-3)]},
}
COPY = 55e9  # bytes a second between host memory and a slot
HOST_BYTES = 1.5e12

# A PUT or GET: first byte, and the most that one connection carries; a condition that holds (304) takes the first alone.
# Measured on radosgw over loopback, two busy cores.
STORE = {"first_s": 0.03, "put": 0.21e9, "get": 0.33e9}


def gap_drawer(quantiles):
    """Draws gaps whose logarithm is linear between the quantiles; the longest is such that the mean is right."""
    points = [(0.0, quantiles["least"]), (0.5, quantiles["p50"]), (0.9, quantiles["p90"]), (0.99, quantiles["p99"])]

    def mean(longest):
        total = 0.0
        for (p, a), (q, b) in zip(points, points[1:] + [(1.0, longest)]):
            total += (q - p) * ((b - a) / math.log(b / a) if b > a else a)
        return total

    low, high = points[-1][1], points[-1][1] * 1e4
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if mean(middle) < quantiles["mean"] else (low, middle)
    table = points + [(1.0, low)]

    def draw(rng):
        u = rng.random()
        for (p, a), (q, b) in zip(table, table[1:]):
            if u <= q:
                return a * (b / a) ** ((u - p) / (q - p))
        return table[-1][1]

    return draw, mean(low)


def between(rates, streams):
    """Seconds between two tokens of a stream, where so many run on the GPU."""
    table = rates["between"]
    if streams <= table[0][0]:
        return table[0][1]
    for (n, a), (m, b) in zip(table, table[1:]):
        if streams <= m:
            return a + (b - a) * (streams - n) / (m - n)
    return table[-1][1] * streams / table[-1][0]


def steady(rates, per_gpu):
    """At so many steps a second on a GPU: streams at once (Little's law), seconds between two of their tokens, and the
    part of its time that reads prompts. Tokens have what prompts leave."""
    out, prompts = AGENTS["step"]["generated"], per_gpu * AGENTS["step"]["new"] / rates["prompt"]
    streams = 1.0
    for _ in range(200):
        streams = 0.5 * streams + 0.5 * per_gpu * out * between(rates, max(1.0, streams)) / (1 - prompts)
    return streams, between(rates, max(1.0, streams)) / (1 - prompts), prompts


def most_steps(rates):
    """Steps a second of a GPU whose prompts come at LOAD of what they may take."""
    return LOAD * PROMPTS * rates["prompt"] / AGENTS["step"]["new"]


class Latest(OrderedDict):
    """Keys in order of use, at most n."""

    def __init__(self, n):
        super().__init__()
        self.n = n

    def use(self, key):
        """The key is the latest; returns the one that goes, or None."""
        self[key] = True
        self.move_to_end(key)
        return self.popitem(last=False)[0] if len(self) > self.n else None


class Link:
    """One direction of a host's network: transfers share it, so the next is ready when the ones before have gone."""

    def __init__(self, rate, stream):
        self.rate, self.stream, self.free, self.n, self.moved = rate, stream, 0.0, 0, 0.0

    def move(self, now, n_bytes):
        begin = max(now, self.free)
        self.free = begin + n_bytes / self.rate
        self.n += 1
        self.moved += n_bytes
        return max(self.free, now + STORE["first_s"] + n_bytes / self.stream)

    def sent(self, now):
        """Bytes that have gone; those behind wait."""
        return self.moved - max(0.0, self.free - now) * self.rate


def quantiles(values):
    values = sorted(values)
    at = lambda p: values[min(len(values) - 1, int(p * len(values)))] if values else None
    return {"p50": at(0.5), "p99": at(0.99), "n": len(values)}


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def simulate(model, gpus, sessions, durability, routing, nic_gbit, hours, seed):
    rates, rng = RATES[model], random.Random(seed)
    hosts = gpus // GPUS
    tool, tool_mean = gap_drawer(AGENTS["tool_s"])
    human, human_mean = gap_drawer(AGENTS["human_s"])
    per_request = AGENTS["steps_a_request"]
    most = most_steps(rates) * GPUS
    # A session's cycle: a person's gap, then steps with tools between.
    step_s = AGENTS["step"]["new"] / rates["prompt"] / PROMPTS + AGENTS["step"]["generated"] * steady(rates, most / GPUS)[1]
    cycle = human_mean + per_request * step_s + (per_request - 1) * tool_mean
    active = int(min(sessions / hosts, most * cycle / per_request))
    per_gpu = active * per_request / cycle / GPUS
    streams, token_s, load = steady(rates, per_gpu)
    slots, host = Latest(rates["slots"] * GPUS), Latest(int(HOST_BYTES / rates["state"]))
    down, up = Link(nic_gbit * 1e9 / 8, STORE["get"]), Link(nic_gbit * 1e9 / 8, STORE["put"])
    gpu_free = [0.0] * GPUS
    waiting = {}  # session -> when its step came, and where its state was
    busy = set()  # sessions in a step
    dirty = {}  # session -> steps that are not in the store
    end, warm = hours * 3600, hours * 3600 / 3
    first, finish, tiers = {"slot": [], "host": [], "store": []}, [], {"slot": 0, "host": 0, "store": 0}
    events, n_events, down_at, up_at = [], 0, (0, 0.0), (0, 0.0)
    counted, validations = 0, 0

    def push(when, kind, who):
        nonlocal n_events
        n_events += 1
        heapq.heappush(events, (when, n_events, kind, who))

    def write(now, who):
        dirty.pop(who, None)
        return up.move(now, rates["state"])

    def leave(now, who):
        if who is not None and who not in slots and who not in host and who in dirty and who not in busy:
            write(now, who)

    # Each session is somewhere in its cycle; a long gap is met more often, in proportion to its length.
    drawn = [human(rng) for _ in range(100000)]
    for who, gap in enumerate(rng.choices(drawn, weights=drawn, k=active)):
        push(rng.random() * (gap if rng.random() < human_mean / cycle else tool_mean), "step", who)
    marked = False
    while events:
        now, _, kind, who = heapq.heappop(events)
        if now > end:
            break
        if not marked and now > warm:
            marked, down_at, up_at = True, (down.n, down.sent(now)), (up.n, up.sent(now))
        if kind == "idle":
            if who in dirty and who not in busy and dirty[who][1] <= now - IDLE_S + 1e-9:
                write(now, who)
            continue
        if kind == "ready":
            gpu = who % GPUS
            gpu_free[gpu] = max(now, gpu_free[gpu]) + AGENTS["step"]["new"] / rates["prompt"] / PROMPTS
            begun, tier = waiting.pop(who)
            done = gpu_free[gpu] + AGENTS["step"]["generated"] * token_s
            if marked:
                counted += 1
                tiers[tier] += 1
                first[tier].append(gpu_free[gpu] - begun)
            push(done, "done", who)
            continue
        if kind == "done":
            busy.discard(who)
            if durability == "turn":
                over = write(now, who)
            else:
                over = now
                dirty[who] = (dirty.get(who, (0, 0))[0] + 1, now)
                push(now + IDLE_S, "idle", who)
            if marked:
                finish.append(over - now)
            push(over + (human(rng) if rng.random() < 1 / per_request else tool(rng)), "step", who)
            continue
        busy.add(who)
        here = routing == "sticky" or rng.random() < 1 / hosts
        tier = "slot" if here and who in slots else "host" if here and who in host else "store"
        if tier == "store":
            ready = down.move(now, rates["state"]) + rates["state"] / COPY
        else:
            validations += marked
            ready = now + STORE["first_s"] + (rates["state"] / COPY if tier == "host" else 0)
        waiting[who] = (now, tier)
        push(ready, "ready", who)
        gone = slots.use(who)
        if gone is not None:
            leave(now, host.use(gone))
        host.pop(who, None)
    span = end - warm
    resident = len(slots) + len(host)
    lost = [n for n, _ in dirty.values()]
    puts, gets = (up.n - up_at[0]) / span, (down.n - down_at[0]) / span
    return rounded({
        "model": model, "gpus": gpus, "hosts": hosts, "sessions": sessions, "durability": durability, "routing": routing,
        "nic_gbit": nic_gbit, "active_a_host": active, "active": active * hosts, "steps_a_second": counted / span * hosts,
        "prompts_take": load, "streams_a_gpu": streams,
        "tiers": {k: v / max(1, counted) for k, v in tiers.items()},
        "first_token_s": {k: quantiles(v) for k, v in first.items()},
        "last_event_waits_s": quantiles(finish),
        "nic_out": (up.sent(end) - up_at[1]) / span / up.rate, "nic_in": (down.sent(end) - down_at[1]) / span / down.rate,
        "puts_a_second": puts * hosts, "gets_a_second": gets * hosts, "checks_a_second": validations / span * hosts,
        "store_bytes_a_second": (up.sent(end) - up_at[1] + down.sent(end) - down_at[1]) / span * hosts,
        "lost_host": {"states": resident, "bytes": resident * rates["state"],
                      "sessions_that_lose_steps": len(lost), "steps_lost": sum(lost),
                      "seconds_to_fetch_on_the_others": resident * rates["state"] / (down.rate * max(1, hosts - 1))},
    })


def cases():
    """(model, GPUs, sessions, durability, routing, Gbit/s of a host): the table, and the curves of the picture."""
    for model in RATES:
        for gpus in (8, 64, 1024):
            yield model, gpus, 10**6, "turn", "sticky", 100
            yield model, gpus, 10**6, "lazy", "sticky", 100
            yield model, gpus, 10**6, "turn", "sticky", 400
            if gpus > GPUS:
                yield model, gpus, 10**6, "turn", "random", 100
    for model in RATES:
        for sessions in (40000, 80000, 120000, 160000, 200000):
            for durability in ("turn", "lazy"):
                yield model, 64, sessions, durability, "sticky", 100


def main():
    parser = argparse.ArgumentParser(description="A fleet with its states in an object store, in virtual time.")
    parser.add_argument("--out")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--date", default="")
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    rows = []
    for case in cases():
        rows.append(simulate(*case, args.hours, args.seed))
        r = rows[-1]
        print(*case, f"{r['active']} sessions, {r['steps_a_second']:.0f} steps/s, from the store {r['tiers']['store']:.3f}, out {r['nic_out']:.2f}, "
              f"last event {r['last_event_waits_s']['p99']:.3f} s", flush=True)
    if args.out:
        record = {"what": "tests/bench/fleet.py: a fleet with a store, in virtual time", "date": args.date, "commit": args.commit,
                  "command": f"tests/bench/fleet.py --hours {args.hours:g} --seed {args.seed}", "agents": AGENTS, "rates": RATES, "store": STORE, "rows": rows}
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
