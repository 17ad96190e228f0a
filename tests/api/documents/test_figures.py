"""The figures in the READMEs are those of tests/bench/results: each table and sentence below is made again from the recorded rows and
looked for in all pages, and stands in one of them, so what is recorded anew and not told anew fails here, as does what was rounded wrongly. No server runs for it."""
import glob
import json
import math
import os
import re
import subprocess
import sys

import pytest

from pages import page, pages
from server import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "vectors"))
import reference  # noqa: E402

RESULTS = os.path.join(ROOT, "tests", "bench", "results")
BIG = {"Rodimus+-1.6B": "rodimus-plus-1.6b", "Rodimus-1.4B": "rodimus-1.4b"}
ROW = ("model phase device commit date dtype batch context tokens_per_s ms ms_low ms_high bytes flop ceiling fraction "
       "read_bytes_per_s flop_per_s resident_bytes").split()


def results(name):
    return json.loads(page(f"tests/bench/results/{name}.json"))


def rows(name, **wanted):
    return [r for r in results(name) if all(r[key] == value for key, value in wanted.items())]


def said(value, digits=0):
    """12,345.6 with digits 1; digits -2: to hundreds, 12,300."""
    scale = 10.0 ** digits
    return f"{math.floor(value * scale + 0.5) / scale:,.{max(digits, 0)}f}"


def benchmarks():
    """(file, row) of every file that holds rows of `rodimus bench --json`."""
    for path in sorted(glob.glob(os.path.join(RESULTS, "*.json"))):
        found = results(os.path.basename(path)[:-5])
        if isinstance(found, list) and "fraction" in found[0]:
            for row in found:
                yield os.path.basename(path), row


def test_rows_are_whole_and_their_ceilings_and_fractions_follow_from_bytes_and_flop():
    n = 0
    for name, r in benchmarks():
        assert not [key for key in ROW if key not in r], (name, r)
        tokens = r["batch"] * (r["context"] if r["phase"] == "prefill" else 1 + r.get("drafts", 0))
        ceiling = tokens / max(r["bytes"] / r["read_bytes_per_s"], r["flop"] / r["flop_per_s"])
        for what, value in (("ceiling", ceiling), ("fraction", r["tokens_per_s"] / ceiling), ("tokens_per_s", 1e3 * tokens / r["ms"])):
            assert r[what] == pytest.approx(value, rel=2e-6), (name, r["phase"], r["batch"], r["context"], what)
        assert r["ms_low"] <= r["ms"] <= r["ms_high"], (name, r)
        n += 1
    assert n > 50, n


def test_every_result_says_when_and_at_which_commit():
    for path in sorted(glob.glob(os.path.join(RESULTS, "*.json"))):
        found = results(os.path.basename(path)[:-5])
        for part in found if isinstance(found, list) else [found]:
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", part.get("date", "")), path
            assert part.get("commit") or part["what"].startswith("flash-linear-attention"), path


def test_commits_that_are_named_are_in_the_history():
    log = subprocess.run(["git", "-C", ROOT, "log", "--format=%H"], capture_output=True, text=True)
    history = log.stdout.split()
    if log.returncode or len(history) < 100:
        pytest.skip("no history here, or only its end")
    named = []
    for name in [*pages(), *glob.glob("tests/bench/results/*.json", root_dir=ROOT)]:
        text = page(name)
        if name.endswith(".json"):
            text = " ".join(re.findall(r'"commit": "([^"]*)"', text))
        named += [(name, word) for word in re.findall(r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,12}\b", text)]
    assert len(named) > 50, named
    starts = {commit[:n] for commit in history for n in range(7, 13)}
    assert not [(name, word) for name, word in named if word not in starts]


def cpu_tables():
    """Lines for the CPU's rows: decode with short windows and with full ones, prompts, a published size."""
    def cells(r, digits):
        return f"{said(r['ms'], digits)} | {said(r['ms_low'], digits)} | {said(r['tokens_per_s'], -2)} | {said(100 * r['fraction'])} % |"

    for short, full in zip(*(rows("tales-cpu", phase="decode", context=context) for context in (64, 512)), strict=True):
        assert short["batch"] == full["batch"]
        if short["batch"] in (1, 8, 64):
            yield f"| {short['batch']} | {cells(short, 3)} {cells(full, 3)}"
    for r in [r for r in rows("tales-cpu", phase="prefill") if r["context"] != 512]:
        yield f"| prompt of {r['context']:,} | {cells(r, 1)}"
    for r in results("rodimus-plus-1.6b-cpu"):
        first = f"{r['batch']} session{'s' * (r['batch'] > 1)}" if r["phase"] == "decode" else f"a prompt of {r['context']}"
        yield f"| {first} | {said(r['ms'], 1)} | {said(r['ms_low'], 1)} | {said(r['tokens_per_s'], 1)} | {said(100 * r['fraction'])} % |"


def gpu_tables():
    baseline = results("baseline-fla-h200")["rows"]
    for name, shape in [*BIG.items(), ("Rodimus+-1.6B, window 1,024", "rodimus-plus-1.6b-w1024")]:
        decode = rows(f"{shape}-h200", phase="decode", dtype="bf16")
        full = name + (", window 2,049" if shape == "rodimus-plus-1.6b" else "")
        yield f"| {full} | " + " | ".join(f"{said(r['tokens_per_s'])} ({said(100 * r['fraction'], 1)} %)" for r in decode) + " |"
        if shape.endswith("w1024"):
            continue
        prompts = {(r["context"], r["batch"]): r for r in rows(f"{shape}-prompts-h200", phase="prefill")}
        yield "".join([f"| {name} |", *(f" {said(r['tokens_per_s'])} ({said(100 * r['fraction'])} %) |" for r in decode),
                       f" {said(prompts[4096, 1]['tokens_per_s'], -2)} ({said(100 * prompts[4096, 1]['fraction'])} %) |"])
        yield f"| {full} | " + " | ".join(f"{said(prompts[at]['tokens_per_s'], -2)} ({said(100 * prompts[at]['fraction'], 1)} %)"
                                          for at in ((512, 1), (4096, 1), (24576, 1), (512, 32))) + " |"
    for shape in ("rodimus-plus-1.6b-w1024", "rodimus-1.4b"):
        its = {(r["phase"], r["launch"], r.get("batch"), r.get("tokens")): r["tokens_per_s"] for r in baseline if r["model"] == shape}
        graph = [its["decode", "one graph, replayed", batch, None] for batch in (1, 8, 64, 256)]
        prompt = its["prefill", "one graph, replayed", 1, 4096]
        yield "| baseline | " + " | ".join(map(said, graph)) + " |"
        yield "| flash-linear-attention | " + " | ".join(map(said, graph)) + f" | {said(prompt, -2)} |"
        both = [f"{said(its['prefill', 'one graph, replayed', 1, n], -2)} / {said(its['prefill', 'eager', 1, n], -2)}" for n in (512, 4096)]
        yield f"| baseline, one graph / kernel by kernel | {both[0]} | {both[1]} | - / {said(its['prefill', 'eager', 1, 24576], -2)} |"


def cache_table():
    found = results("tales-prefix-cpu")
    for turn in (1, 5, 20):
        a, b = found["cache"][turn - 1], found["no_cache"][turn - 1]
        yield (f"| {turn} | {said(a['prompt_tok'])} | {said(a['prompt_tok'] - a['cached_tok'])} | {said(a['first_token_ms'])} ms "
               f"| {said(b['first_token_ms'])} ms |")


FLEET = (("rodimus-plus-1.6b", 64, "turn"), ("rodimus-plus-1.6b", 64, "lazy"), ("rodimus-plus-1.6b", 1024, "turn"),
         ("rodimus-plus-4b", 1024, "lazy"))


def fleet_rows(**wanted):
    return [r for r in results("fleet-simulated")["rows"] if r["sessions"] == 10**6 and all(r[key] == value for key, value in wanted.items())]


def fleet_table():
    """Of the simulation: what a fleet serves, and what its hosts send to the store."""
    for model, gpus, durability in FLEET:
        r, = fleet_rows(model=model, gpus=gpus, durability=durability, routing="sticky", nic_gbit=100)
        yield (f"| {model} | {gpus:,} | {durability} | {said(r['active'], -3)} | {said(r['steps_a_second'])} | {100 * r['nic_out']:.0f}% | {said(r['puts_a_second'])} "
               f"| {said(r['last_event_waits_s']['p99'], 1)} | {said(r['lost_host']['steps_lost'])} |")


def drafts_table():
    """What drafts give: times the plain rate, by the chance that a draft token is right."""
    for name in ("drafts-rodimus-plus-1.6b-h200", "drafts-rodimus-1.4b-h200"):
        for batch in sorted({r["batch"] for r in rows(name) if r["batch"] <= 8}):
            of = {r["acceptance"]: r for r in rows(name, batch=batch)}
            times = [said(of[a]["tokens_per_s"] / of[a]["plain_tokens_per_s"], 2) if a in of else "-" for a in (0, 0.25, 0.5, 0.75, 1)]
            assert set(of) <= {0, 0.25, 0.5, 0.75, 1}, (name, batch)
            yield f"| {rows(name)[0]['model']} | {batch} | " + " | ".join(times) + " |"


def codes_table():
    """Weights in fewer bits on a GPU."""
    for name in ("rodimus-plus-1.6b-codes-h200", "rodimus-1.4b-codes-h200"):
        for weights in ("bf16", "fp8", "int8", "int4"):
            found = [r for r in rows(name) if r["weights"] == weights and r["batch"] not in (16, 32, 128, 256)]
            yield f"| {name[:-11]} | {weights} | " + " | ".join(said(r["tokens_per_s"]) + (f" ({r['fraction']:.0%})" if r["phase"] == "decode" else "") for r in found) + " |"


def shares_table():
    """Streams beside prompts."""
    for r in rows("shares-h200", what="beside"):
        if r["share"] in (0, 0.15, 0.25, 0.35, 0.5):
            yield (f"| {r['share']:g} | {said(r['alone_ms']['p99'], 1)} | {said(r['beside_ms']['p99'], 1)} | {said(r['times'], 2)} "
                   f"| {said(r['prompt_tokens_per_s'], -2)} ({r['part']:.0%}) |")


def llama_table():
    """Weights in fewer bits on two cores, beside llama.cpp."""
    for r in rows("llama-cpu"):
        yield (f"| {r['program'].split(' (')[0]} | {r['weights']} | {said(r['bytes'] / 1e6)} MB | {said(r['tokens_per_s'], 1)} ({r['share']:.0%}) "
               f"| {said(r['prompt_tokens_per_s'], 1)} |")


def golden_table():
    """What rounding weights or windows does to the golden sets."""
    for weights, window, name in (("auto", "auto", "as stored"), ("int8", "auto", "int8"), ("fp8", "auto", "fp8"), ("int4", "auto", "int4"),
                                  ("auto", "int8", "as stored, window int8")):
        found = rows("golden-formats-cpu", weights=weights, window=window)
        logits = [r["logits"] for r in found]
        yield (f"| {name} | {min(logits):.1e} .. {max(logits):.1e} "
               f"| {sum(r['argmax'] for r in found)} of {sum(r['of'] for r in found)} | {found[0]['bound']:g} |")


def library_table():
    """Prompts by cuBLASLt and by our kernels."""
    found = results("prompt-products-h200")
    ms = {(r["dtype"], r["weights"], r["prompt_products"], r["context"]): r["ms"] for r in found["rows"]}
    columns = [("bf16", "auto", "own"), ("bf16", "auto", "library"), ("fp16", "auto", "library"), ("bf16", "int8", "library"),
               ("fp32", "auto", "own"), ("fp32", "auto", "library")]
    for n in (512, 2048):
        yield f"| {n:,} | " + " | ".join(said(ms[*c, n], 2) if (*c, n) in ms else "-" for c in columns) + " |"


def http_table():
    """First tokens, streams, and answers that begin together, through HTTP."""
    big, small = (results(f"{shape}-prompts-server-h200") for shape in BIG.values())
    idle = [of["first_token_of_512_idle"]["first_token_ms"] for of in (big, small)]
    yield "| first token of a prompt of 512, idle | " + " | ".join(f"{said(ms['p50'], 1)} ms (p99 {said(ms['p99'], 1)})" for ms in idle) + " |"
    gaps = [[of[what]["inter_token_ms"]["p99"] for what in ("streams_alone", "streams_beside_prompts_of_100000")] for of in (big, small)]
    yield "| 64 streams, p99 between tokens: alone, beside prompts of 100,000 | " + " | ".join(f"{said(a, 1)}, {said(b, 1)} ms" for a, b in gaps) + " |"
    for r in results("rodimus-plus-1.6b-load-h200")["runs"]:
        if r["streams"] in (64, 256):
            first = r["first_token_ms"]
            yield (f"| {r['streams']} | {said(first['p50'])} ms | {said(first['p99'])} ms | {said(r['inter_token_ms']['p99'], 1)} ms "
                   f"| {said(r['output_tokens_per_s'], -2)} |")


def mask_table():
    found = results("mask")
    for name, what, digits in (("a new schema: states met for the first time", "cold", 0), ("the same again", "warm", 0),
                               ("20 new schemas at once", "all_schemas_at_once_cold", 2)):
        us = found[what]["step_us"]
        median = f"{said(us['p50'])} us" if not digits else f"{said(us['p50'] / 1e3, digits)} ms"
        yield f"| {name} | {median} | {said(us['p99'] / 1e3, 2)} ms | {said(us['max'] / 1e3, 2)} ms |"


def with_line(line):
    """The pages in which a line begins so."""
    return [name for name in pages() if any(found.startswith(line) for found in page(name).split("\n"))]


@pytest.mark.parametrize("table", [cpu_tables, gpu_tables, cache_table, fleet_table, drafts_table, codes_table, shares_table, llama_table, golden_table, library_table, http_table, mask_table], ids=lambda t: t.__name__)
def test_tables_have_the_recorded_figures(table):
    expected = list(table())
    assert not [(line, places) for line in expected if len(places := with_line(line)) != 1]
    assert expected


def sentences():
    """(pattern, the values that stand where it has parentheses). White space is one space."""
    at = {(shape, r["context"]): r["ms"] for shape in BIG.values() for r in rows(f"{shape}-h200-position", phase="decode")}
    plus, plain = BIG.values()

    edits = results("edits-skills-cpu")
    yield r"first token on (N) times the plain rate with drafts from the conversation, (N) with the old tale as `prediction`", [
        edits["lookup"]["times"], edits["prediction"]["times"]]
    yield r"one short conversation of a 1.6B model comes (N) times as fast on an H200", [
        next(r["tokens_per_s"] / r["plain_tokens_per_s"] for r in rows("drafts-rodimus-plus-1.6b-h200", batch=1, acceptance=0.75))]
    yield r"what one at 4,096 does: (N) and (N) ms \(Rodimus\+\), (N) and (N) \(Rodimus\)", [
        at[plus, 1000000], at[plus, 4096], at[plain, 1000000], at[plain, 4096]]
    choices = {(r["when"], r["prompt_tok"]): r["ms"] for r in results("choices-h200")["rows"]}
    yield r"Eight choices \(`n`\) of a prompt of 4,000 have theirs after (N) ms, as one has", [choices["after", 4000]["n_8"]]

    library = results("prompt-products-h200")
    assert not any(r["different"] or r["nan"] for r in library["lives"]) and not library["law"]["different"] and not library["law"]["refused"]
    yield r"fp32: (N) algorithms, each on [^.]*. None of (N) values differs from those of all rows at once. In 16 bits the sums of all (N) algorithms", [
        library["law"]["algorithms"], library["law"]["values"], library["law"]["of_one_ascending_sum"]["algorithms"]]

    four = {r["batch"]: r for r in rows("rodimus-plus-4b-h200", phase="decode")}
    yield r"has (N) tokens/s with one session \((N) %\) and (N) with 8 \((N) %\)", [
        value for n in (1, 8) for value in (four[n]["tokens_per_s"], 100 * four[n]["fraction"])]

    mixed = results("mixed-skills-h200")
    runs = [run for one in mixed for run in one["runs"]]
    assert len(runs) == 9 and not any(run["n_failed"] or run["different"] or run["too_much"] for run in runs)

    *lives, delays, delays_before, before, _broken = results("lives-h200")
    drafted = results("lives-h100")
    slow, compared = (delays, delays_before), (*lives, delays, delays_before, *drafted)
    assert len(lives) == 4 and not any(run["faults"] or run["nan"] for run in compared) and not before["faults"]
    yield r"(N) of (N) requests differ .{,99}, (N) of them over kernels that wait at random, (N) with grammars", [
        sum(run["different"] for run in compared), *(sum(run["requests"] for run in of) for of in (compared, slow, drafted))]

    exchanges = results("persistent-soak-h200")
    yield r"exchanges that are to show that none is lost or late (N) have run, (N) of them with delays at every wait, (N) steps different", [
        sum(r["exchanges"] for r in exchanges), sum(r["exchanges"] for r in exchanges if r["delays"]), sum(r["different"] for r in exchanges)]

    swap = results("swap-h200")["rows"][0]
    yield r"leaves its slot in (N) ms and comes back in (N), where one plain copy over the bus takes (N) and (N). A fork on the device takes (N)", [
        swap[key] for key in ("swap_out_ms", "swap_in_ms", "floor_out_ms", "floor_in_ms", "fork_ms")]
    yield r"between tokens at (N) ms, for (N) without it", [
        swap[key]["gap_ms"]["p99"] for key in ("beside_swaps", "alone")]

    narrow, usual = {r["what"]: r for r in results("window-cpu") if r.get("window") == "int8"}, results("skills")["skills"]
    said_of = re.findall(r"as stored ([\d.]+), weights auto, window int8 ([\d.]+)", " ".join(r["said"] for r in results("window-cpu") if r["what"] == "note"))
    yield r"perplexity of tales (N) for (N), of skills (N) for (N); of 500, edits (N) for (N), extraction (N), tools (N); recall of 8,000 tokens (N) of (N)", [
        *(float(of[k]) for of in said_of for k in (1, 0)), narrow["edit"]["right"], usual["edit"]["right"], narrow["extraction"]["right"],
        narrow["tools"]["right"], narrow["recall-8000"]["right"], narrow["recall-8000"]["cases"]]
    assert narrow["extraction"]["right"] == usual["extraction"]["right"] and narrow["tools"]["right"] == usual["tools"]["right"]

    masked = results("masked-h100")
    yield r"have (N) tokens a second under masks, and (N) without", [
        masked[load]["tok_per_s"] for load in ("all_masked", "plain")]

    narrow, wide, random = (fleet_rows(model="rodimus-plus-1.6b", gpus=64, durability="turn", routing=routing, nic_gbit=nic)[0]
                            for routing, nic in (("sticky", 100), ("sticky", 400), ("random", 100)))
    yield r"With (N) steps a second of Rodimus\+-1.6B the link of a host is full; with 400 Gbit/s it is at (N) % \((N) steps\)", [
        narrow["steps_a_second"] / narrow["hosts"], 100 * wide["nic_out"], wide["steps_a_second"] / wide["hosts"]]
    yield r"Without stickiness (N) % of the steps fetch their state", [100 * random["tiers"]["store"]]

    null, _ = results("server-null")
    yield r"5 ms a step\): (N) events/s at 1,000 streams", [null["events_per_s"]]
    soak = results("overload-soak")
    yield r"tokens come (N) ms apart at the 99th percentile \((N) without\), the slowest of (N) refusals took (N) ms", [
        soak["inter_token_ms_of_accepted"]["p99"], soak["inter_token_ms_calm"]["p99"], *(soak["refusal_ms"][key] for key in ("n", "max"))]
    by_roll, bare = ([r for r in results("deploy") if {"turns", "requests"} <= r.keys() and ("without" in r["what"]) == so] for so in (False, True))
    yield r"lost (N) of (N) requests, and the slowest took (N) s. `docker-compose up -d` without `roll` lost (N) of (N)\.", [
        *(sum(r[key] for r in by_roll) for key in ("lost", "requests")), max(r["slowest_s"] for r in by_roll),
        *(sum(r[key] for r in bare) for key in ("lost", "requests"))]
    events = [r for r in results("deploy") if r["what"] == "losses"]
    behind = {kind: {r["event"]: r for r in events if r["balancer"] == kind} for kind in ("haproxy", "nginx", "caddy")}
    yield r"another address: HAProxy lost (N) of (N) requests, nginx (N) of (N), Caddy (N) of (N) \(", [
        of["restart"][key] + of["recreate"][key] for of in behind.values() for key in ("lost", "requests")]
    yield r"Killed: HAProxy lost (N) of (N), nginx (N) of (N), Caddy (N) of (N); (N) of them began", [
        *(of["kill"][key] for of in behind.values() for key in ("lost", "requests")), sum(of["kill"]["begun_after_the_kill"] for of in behind.values())]
    image, run = ({r["what"]: r for r in results("deploy")}[what] for what in ("image", "docker run"))
    yield r"The image has (N) MB, of which (N) MB are Debian's base system. On two busy cores the first token of tales comes (N) s after", [
        image["image_mb"], image["base_mb"], run["to_first_token_s"]]


def test_the_demo_models_page_has_the_table_of_its_result():
    sys.path.insert(0, os.path.join(ROOT, "config", "models", "recipe"))
    import table
    wanted = "".join(line + "\n" for line in table.lines(results("skills")))
    assert f"<!-- measured -->\n{wanted}<!-- end of measured -->" in page("config/models/skills/README.md"), "config/models/recipe/table.py writes it"
    assert all(found["cases"] >= (200 if skill in ("second", "chain", "agent") else 500) for skill, found in results("skills")["skills"].items())


def rounds_to(shown, value):
    """From 1,000 on the zeros at the end are rounded, too."""
    digits = shown.replace(",", "")
    fraction = len(digits.partition(".")[2])
    unit = 10.0 ** -fraction if fraction or len(digits) < 4 else 10.0 ** (len(digits) - len(digits.rstrip("0")))
    return abs(float(digits) - value) <= unit / 2 + 1e-9 * abs(value)


@pytest.mark.parametrize("pattern, values", [pytest.param(*s, id=str(n)) for n, s in enumerate(sentences())])
def test_sentences_have_the_recorded_figures(pattern, values):
    wanted = re.compile(pattern.replace("(N)", r"([\d,]+(?:\.\d+)?)"))
    found = [(name, m) for name in pages() for m in wanted.finditer(re.sub(r"\s+", " ", page(name)))]
    assert len(found) == 1, f"{[name for name, _ in found] or 'no page'} has such a sentence: {pattern}"
    sentence = found[0][1]
    assert not [(shown, value) for shown, value in zip(sentence.groups(), values, strict=True) if not rounds_to(shown, value)], sentence.group(0)


def published_sizes():
    """Name in the tables -> sizes, from the published configurations."""
    for name, folder in (("Rodimus-1.4B", "rodimus-1.4b-base"), ("Rodimus+-Coder-1.6B", "rodimus-plus-coder-1.6b"),
                         ("Rodimus+-Coder-4B", "rodimus-plus-coder-4b")):
        yield name, reference.Sizes(json.loads(page(f"tests/configs/{folder}/config.json")))


def session_bytes(s, keys, conv_and_window):
    """S in fp32, the rest in so many bytes an element."""
    window = keys * (s.Hk + s.Hv) * s.P if s.plus else 0
    return s.L * (4 * s.M * s.E + conv_and_window * (s.K * s.E + window)), s.L * conv_and_window * window


def test_sizes_follow_from_the_published_configurations():
    """The tables of memory, and how many states the prefix cache takes. A ring on the CPU: 63 keys more, in blocks of 32."""
    for name, s in published_sizes():
        weights = said(2 * sum(math.prod(shape) for shape in reference.shapes(s).values()) / 2**30, 2)
        whole, _ = session_bytes(s, s.visible, 2)
        whole = f"{said(whole / 2**20, 1 if whole < 100 << 20 else 0)} MiB"
        ring, window = session_bytes(s, -(-(s.visible + 63) // 32) * 32, 4)
        cpu = f"{said(ring / 2**20, 1 if ring < 100 << 20 else 0)} MiB | " + (
            f"{said(window / 2**20)} MiB, {s.visible:,} keys" if s.plus else "none")
        line = f"| {name} | {weights} GiB | {cpu} | {whole} |"
        assert len(with_line(line)) == 1, line
    big = dict(published_sizes())["Rodimus+-Coder-1.6B"]
    small = reference.Sizes(json.loads(page("config/models/tales/config.json")))
    text = re.sub(r"\s+", " ", page("server/SESSIONS.md"))
    found = re.search(r"4 GiB are some (\d+) states of Rodimus\+-1.6B \((\d+) on a CPU, in fp32\) or ([\d,]+) of tales", text)
    assert found, "what the prefix cache takes"
    for shown, (s, size) in zip(found.groups(), ((big, 2), (big, 4), (small, 4)), strict=True):
        fit = 2**32 / session_bytes(s, s.visible, size)[0]
        assert abs(int(shown.replace(",", "")) - fit) < 0.05 * fit, (shown, fit)


def test_sessions_that_fit_a_gpu_are_those_of_one_memory():
    """In each column all counts come from one size: what is left of it by weights and 1.5 GiB, by a session."""
    least, most = [0.0] * 4, [math.inf] * 4
    for name, s in published_sizes():
        weights = 2 * sum(math.prod(shape) for shape in reference.shapes(s).values())
        one, _ = session_bytes(s, s.visible, 2)
        row = re.search(rf"^\| {re.escape(name)}((?: \| [\d,]+){{4}}) \|$", page("deploy/CAPACITY.md"), re.M)
        for i, n in enumerate(row.group(1).replace(",", "").split(" | ")[1:]):
            below = weights + 1.5 * 2**30 + int(n) * one
            least[i], most[i] = max(least[i], below), min(most[i], below + one)
    assert all(a < b for a, b in zip(least, most)), [(a / 2**30, b / 2**30) for a, b in zip(least, most)]
    for total, usable in zip((24, 40, 80, 140.4), most):
        assert 0.93 * total < usable / 2**30 < total + 0.01, (total, usable / 2**30)


def test_pictures_are_of_the_recorded_rows():
    """What `make plots` writes under a picture, and at its points."""
    of = {"decode": rows("rodimus-plus-1.6b-h200")[0], "prefill": rows("rodimus-plus-1.6b-prompts-h200")[0],
          "position": rows("rodimus-plus-1.6b-h200-position")[0], "memory": rows("rodimus-plus-1.6b-h200")[0],
          "latency": results("rodimus-plus-1.6b-load-h200"), "agents": results("agents-tales-cpu")}
    commits = {name: r["commit"][:7] for name, r in of.items()}
    for name, commit in commits.items():
        picture = page(f"tests/bench/plots/{name}.svg")
        assert f"commit {commit}" in picture, (name, commit)
        if name == "decode":
            shares = re.findall(r">(\d+%)</text>", picture)
            assert shares == [f"{r['fraction']:.0%}" for shape in ("rodimus-plus-1.6b-w1024", "rodimus-1.4b")
                              for r in rows(f"{shape}-h200", phase="decode", dtype="bf16")]
