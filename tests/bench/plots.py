"""tests/bench/plots.py [OUT]: the pictures of the README, drawn from tests/bench/results/*.json and from nothing else.

Each picture says under itself device, date and commit of what it shows. What is computed and not measured (a cache that
grows, of published Transformer sizes) is dashed and says so. `make plots` runs this with the packages of
tests/bench/requirements.txt.
"""

import json
import pathlib
import sys
import textwrap

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter

HERE = pathlib.Path(__file__).parent
OUR, LIMIT, BASE, ASIDE, OTHER = "#1b6ca8", "#9aa3ab", "#d1495b", "#edae49", "#66a182"
NAMES = {"rodimus-plus-1.6b": "Rodimus+-1.6B", "rodimus-1.4b": "Rodimus-1.4B", "rodimus-plus-1.6b-w1024": "Rodimus+-1.6B, window 1,024"}

# Published Transformers of about this size: parameters, layers, key/value heads, width of a head (their config.json).
# A token of context is 2 x layers x heads x width values of 16 bits in their cache.
TRANSFORMERS = {"Qwen2.5-1.5B": (1.544e9, 28, 2, 128), "Llama-3.2-1B": (1.236e9, 16, 8, 64), "Pythia-1.4B": (1.415e9, 24, 16, 128)}
LENGTHS = [2**n for n in range(10, 21)]

plt.rcParams.update({
    "svg.hashsalt": "rodimus", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e4e7ea", "grid.linewidth": 0.6,
    "axes.axisbelow": True, "figure.facecolor": "white", "legend.frameon": False, "legend.fontsize": 9,
})


def rows(name):
    with open(HERE / "results" / f"{name}.json", encoding="utf-8") as file:
        return json.load(file)


def rows_of(name, **wanted):
    """The rows with these values, and the curve's places, one row a place: the first that was recorded."""
    return [row for row in rows(name) if all(row.get(key) == value for key, value in wanted.items())]


def device_of(row):
    """The GPU's name, or the CPU as it is said."""
    return row["device"].removeprefix("cuda:0 (").removesuffix(")") if row["device"].startswith("cuda") else row["device"]


def source(*found):
    """Device, date and commit of the rows, each spelling once."""
    seen = dict.fromkeys(f"{device_of(row)}, {row['date']}, commit {row['commit'][:7]}" for row in found)
    return "; ".join(seen)


def short(value, _=None):
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


def binary(value, _=None):
    """Lengths are powers of two, and said in k of 1,024."""
    return f"{value / 2**20:g}M" if value >= 2**20 else f"{value / 1024:.0f}k" if value >= 1024 else f"{value:g}"


def panel(axes, title, x, y, ticks=None, log=("x", "y"), along=short):
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for which in log:
        getattr(axes, f"set_{which}scale")("log", base=10 if which == "y" else 2)
    for axis, form in ((axes.xaxis, along), (axes.yaxis, short)):
        axis.set_major_formatter(FuncFormatter(form))
        axis.set_minor_formatter(NullFormatter())
    if ticks:
        axes.set_xticks(ticks)


def save(figure, out, name, caption, legend=None):
    """legend: the panel whose lines are named below the pictures."""
    lines = textwrap.wrap(caption, int(figure.get_figwidth() * 16))
    foot = 0.3 + 0.14 * len(lines)
    if legend:
        handles, names = legend.get_legend_handles_labels()
        columns = 2 if figure.get_figwidth() > 8 else 1
        figure.legend(handles, names, loc="lower left", ncols=columns, bbox_to_anchor=(0.02, foot / figure.get_figheight()))
        foot += 0.22 * -(-len(names) // columns) + 0.15
    figure.tight_layout(rect=(0, foot / figure.get_figheight(), 1, 1))
    figure.text(0.02, 0.12 / figure.get_figheight(), "\n".join(lines), fontsize=8, color="#5a636b")
    figure.savefig(out / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def decode(out):
    figure, both = plt.subplots(1, 2, figsize=(10, 5))
    baseline, used = rows("baseline-fla-h200"), []
    for axes, shape in zip(both, ("rodimus-plus-1.6b-w1024", "rodimus-1.4b")):
        ours = rows_of(f"{shape}-h200", phase="decode", dtype="bf16")
        used += ours
        theirs = [r for r in baseline["rows"] if r["model"] == shape and r["phase"] == "decode"]
        x = [r["batch"] for r in ours]
        axes.plot(x, [r["ceiling"] for r in ours], color=LIMIT, ls="--", marker="_", label="all the bytes at the copy rate")
        axes.plot(x, [r["tokens_per_s"] for r in ours], color=OUR, marker="o", label="this server")
        for launch, style in (("one graph, replayed", "-"), ("eager", ":")):
            some = [r for r in theirs if r["launch"] == launch]
            axes.plot([r["batch"] for r in some], [r["tokens_per_s"] for r in some], color=BASE, ls=style, marker="s", ms=4,
                      label=f"flash-linear-attention, {launch}")
        for r in ours:
            axes.annotate(f"{r['fraction']:.0%}", (r["batch"], r["tokens_per_s"]), textcoords="offset points", xytext=(6, -11), fontsize=8, color=OUR)
        panel(axes, f"Decode, {NAMES[shape]}", "sessions in a step", "tokens a second", ticks=x)
    save(figure, out, "decode", f"{source(*used)}; baseline {baseline['date']} on {baseline['device']}. Both axes logarithmic; percentages of the ceiling.", both[0])


def prefill(out):
    figure, both = plt.subplots(1, 2, figsize=(10, 5))
    baseline, used = rows("baseline-fla-h200"), []
    for axes, (shape, beside) in zip(both, (("rodimus-plus-1.6b", "rodimus-plus-1.6b-w1024"), ("rodimus-1.4b", "rodimus-1.4b"))):
        ours = rows_of(f"{shape}-prompts-h200", phase="prefill", batch=1)
        used += ours
        theirs = [r for r in baseline["rows"] if r["model"] == beside and r["phase"] == "prefill"]
        x = [r["context"] for r in ours]
        axes.plot(x, [r["ceiling"] for r in ours], color=LIMIT, ls="--", marker="_", label="all the FLOP at 760 TFLOP/s")
        axes.plot(x, [r["tokens_per_s"] for r in ours], color=OUR, marker="o", label="this server")
        for launch, style in (("one graph, replayed", "-"), ("eager", ":")):
            some = [r for r in theirs if r["launch"] == launch]
            axes.plot([r["tokens"] for r in some], [r["tokens_per_s"] for r in some], color=BASE, ls=style, marker="s", ms=4, label=f"flash-linear-attention, {launch}")
        panel(axes, f"A prompt, {NAMES[shape]}", "tokens of the prompt", "tokens a second", ticks=x, log=("x",), along=binary)
        axes.set_ylim(0, None)
    save(figure, out, "prefill", f"{source(*used)}; baseline {baseline['date']} on {baseline['device']}, for Rodimus+ with a window of 1,024.", both[1])


def position(out):
    figure, axes = plt.subplots(figsize=(7, 5.6))
    used = []
    for shape, color in (("rodimus-plus-1.6b", OUR), ("rodimus-1.4b", OTHER)):
        ours = rows_of(f"{shape}-h200-position", phase="decode")
        used += ours
        axes.plot([r["context"] for r in ours], [r["ms"] for r in ours], color=color, marker="o", label=f"{NAMES[shape]}, measured")
    copy = min(r["read_bytes_per_s"] for r in used)
    for (name, (params, layers, heads, width)), color in zip(TRANSFORMERS.items(), (ASIDE, LIMIT, BASE)):
        axes.plot(LENGTHS, [(2 * params + n * 4 * layers * heads * width) / copy * 1e3 for n in LENGTHS], color=color, ls="--", lw=1.2,
                  label=f"{name}: its bytes at {copy / 1e12:.2f} TB/s, computed")
    panel(axes, "One token more, by what was read before (one session)", "tokens before", "ms a token", ticks=LENGTHS[::2], along=binary)
    save(figure, out, "position", f"{source(*used)}. Dashed: weights and cache read once at the copy rate, no server measured.", axes)


def memory(out):
    figure, axes = plt.subplots(figsize=(7, 5.6))
    window = lambda n: 24 * (64 * 4096 * 4 + 4 * 4096 * 2 + min(n, 2049) * (128 + 2048) * 2)
    axes.plot(LENGTHS, [window(n) for n in LENGTHS], color=OUR, marker="o", ms=4, label="Rodimus+-1.6B, window 2,049")
    axes.plot(LENGTHS, [48 * (64 * 4096 * 4 + 4 * 4096 * 2) for _ in LENGTHS], color=OTHER, marker="o", ms=4, label="Rodimus-1.4B")
    for (name, (_, layers, heads, width)), color in zip(TRANSFORMERS.items(), (ASIDE, LIMIT, BASE)):
        axes.plot(LENGTHS, [n * 4 * layers * heads * width for n in LENGTHS], color=color, ls="--", lw=1.2, label=f"{name}, cache in 16 bit")
    panel(axes, "Memory of one session", "tokens read", "bytes", ticks=LENGTHS[::2], along=binary)
    row = rows("rodimus-plus-1.6b-h200")[0]
    save(figure, out, "memory", "No device: computed from the published configurations, S in fp32, the rest in 16 bit (rodimus inspect); caches: 2 x layers x heads x width x 2 "
         f"bytes a token. The states are those of {row['date']}, commit {row['commit'][:7]}.", axes)


def latency(out):
    recorded = sorted((HERE / "results").glob("*-load-*.json"))
    if not recorded:
        return
    figure, both = plt.subplots(1, 2, figsize=(10, 5))
    for axes, (what, title) in zip(both, (("first_token_ms", "First token"), ("inter_token_ms", "Between tokens"))):
        for path, color in zip(recorded, (OTHER, OUR, ASIDE, BASE)):
            found = json.loads(path.read_text(encoding="utf-8"))
            runs = found["runs"]
            for part, style in (("p50", "-"), ("p99", "--")):
                axes.plot([r["streams"] for r in runs], [r[what][part] for r in runs], color=color, ls=style, marker="o", ms=4,
                          label=f"{NAMES.get(found['shape'], found['shape'])}, {part}")
        panel(axes, f"{title} by streams at once", "streams", "ms", ticks=[r["streams"] for r in runs])
    prompt, answer = runs[0]["prompt_tokens"][0], runs[0]["output_tokens"][0]
    save(figure, out, "latency", f"{found['device'].upper()}, {found['date']}, commit {found['commit'][:7]}; through HTTP by rodimus load: prompts of {prompt}, answers of {answer} tokens.", both[0])


def agents(out):
    recorded = sorted((HERE / "results").glob("agents-*.json"))
    if not recorded:
        return
    figure, both = plt.subplots(1, len(recorded), figsize=(5 * len(recorded), 4.6), squeeze=False)
    ways = {"no_cache": (BASE, "sent in full, no prefix cache"), "cache": (ASIDE, "sent in full, prefix cache"), "session": (OUR, "in a session")}
    found = [json.loads(path.read_text(encoding="utf-8")) for path in recorded]
    for axes, run in zip(both[0], found):
        for way, (color, label) in ways.items():
            axes.plot([row["call"] for row in run[way]], [row["first_token_ms"] for row in run[way]], color=color, marker="o", ms=4,
                      label=f"{label}: {run['read_tok'][way]:,.0f} tokens read")
        panel(axes, f"{NAMES.get(run['model'], run['model'])}, {device_of(run).split(' (')[0]}", "call of the loop", "first token, ms", ticks=range(1, 21, 3), log=("y",))
        axes.legend(loc="upper left", bbox_to_anchor=(0, 1.0))
        axes.set_ylim(top=axes.get_ylim()[1] * 4)
    calls = len(found[0]["session"])
    save(figure, out, "agents", f"{source(*found)}; through HTTP: {calls} calls, 12 tools, results of some 200 tokens.", legend=None)


def drafts(out):
    """Tokens a second with drafts, in those of plain decoding."""
    recorded = sorted((HERE / "results").glob("drafts-*.json"))
    figure, all_axes = plt.subplots((len(recorded) + 1) // 2, 2, figsize=(10, 4.2 * ((len(recorded) + 1) // 2)), squeeze=False)
    found = [json.loads(path.read_text(encoding="utf-8")) for path in recorded]
    for axes, run in zip(all_axes.flat, found):
        for batch, color in zip(sorted({row["batch"] for row in run}), (OUR, ASIDE, BASE)):
            points = sorted((row["acceptance"] * 100, row["tokens_per_s"] / row["plain_tokens_per_s"]) for row in run if row["batch"] == batch)
            axes.plot(*zip(*points), color=color, marker="o", ms=4, label=f"{batch} session{'s' * (batch > 1)}")
        axes.axhline(1, color="gray", lw=0.8)
        panel(axes, f"{NAMES.get(run[0]['model'], run[0]['model'])}, {device_of(run[0]).split(' (')[0]}", "a draft token is right, %", "times plain decoding", ticks=(0, 25, 50, 75, 100), log=())
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left")
    save(figure, out, "drafts", f"{source(*[run[0] for run in found])}; rodimus bench --acceptance.", legend=None)


def formats(out):
    """Tokens a second by the bits of the weights: on a GPU in those of 16 bits, on a CPU beside the ceiling."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 4.2))
    colors, used = {"bf16": BASE, "fp8": LIMIT, "int8": OUR, "int4": ASIDE}, []
    for panel_axes, shape in zip(axes, ("rodimus-plus-1.6b", "rodimus-1.4b")):
        ours = rows_of(f"{shape}-codes-h200", phase="decode")
        used.append(ours[0])
        wide = {row["batch"]: row["tokens_per_s"] for row in ours if row["weights"] == "bf16"}
        for name, color in colors.items():
            points = [(row["batch"], row["tokens_per_s"] / wide[row["batch"]]) for row in ours if row["weights"] == name]
            panel_axes.plot(*zip(*points), color=color, marker="o", ms=4, label=name)
        panel(panel_axes, f"{NAMES[shape]}, H200", "sessions in a step", "times bf16", ticks=sorted(wide), log=("x",))
        panel_axes.set_ylim(bottom=0)
        panel_axes.legend(loc="lower left")
    ours = rows_of("rodimus-plus-1.6b-codes-cpu", phase="decode", batch=1)
    used.append(ours[0])
    for i, row in enumerate(ours):
        axes[2].bar(i, row["tokens_per_s"], color=colors[row["weights"]], width=0.6)
        axes[2].plot((i - 0.4, i + 0.4), (row["ceiling"],) * 2, color="gray", ls="--")
        axes[2].annotate(f"{row['fraction']:.0%}", (i, row["tokens_per_s"]), ha="center", va="top", textcoords="offset points", xytext=(0, -4), fontsize=9, color="white")
    panel(axes[2], f"{NAMES[ours[0]['model']]}, {device_of(ours[0])}", "weights", "tokens a second", log=())
    axes[2].set_xticks(range(len(ours)), [row["weights"] for row in ours])
    save(figure, out, "formats", f"{source(*used)}; rodimus bench --weights, context {used[0]['context']:,} on the GPU and {used[2]['context']} on the CPU. Dashed: the bytes of a step at the read rate.")


def fleet(out):
    """What leaves a host and what the last event waits for, by the steps of a host."""
    with open(HERE / "results" / "fleet-simulated.json", encoding="utf-8") as file:
        found = json.load(file)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2))
    for model, color in (("rodimus-1.4b", ASIDE), ("rodimus-plus-1.6b", OUR), ("rodimus-plus-4b", BASE)):
        for durability, dashes in (("turn", "-"), ("lazy", "--")):
            of = [r for r in found["rows"] if (r["model"], r["durability"], r["gpus"], r["nic_gbit"], r["routing"]) == (model, durability, 64, 100, "sticky")]
            points = sorted({r["steps_a_second"] / r["hosts"]: r for r in of}.items())
            name = f"{NAMES.get(model, 'Rodimus+-4B')}, {durability}"
            left.plot([x for x, _ in points], [r["nic_out"] for _, r in points], color=color, ls=dashes, marker="o", ms=4, label=name)
            right.plot([x for x, _ in points], [max(0.01, r["last_event_waits_s"]["p99"]) for _, r in points], color=color, ls=dashes, marker="o", ms=4)
    panel(left, "Bytes out of a host of 8 GPUs", "steps a second of the host", "of 100 Gbit/s", log=())
    panel(right, "The last event waits for its PUT, p99", "steps a second of the host", "seconds", log=("y",))
    save(figure, out, "fleet", f"Simulated ({found['date']}): tests/bench/fleet.py; agents' gaps and tokens of TraceLab. Dashed: session_durability lazy.", legend=left)


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "plots")
    out.mkdir(parents=True, exist_ok=True)
    for draw in (decode, prefill, position, memory, latency, agents, drafts, formats, fleet):
        draw(out)
    print("\n".join(str(path) for path in sorted(out.glob("*.svg"))))


main()
