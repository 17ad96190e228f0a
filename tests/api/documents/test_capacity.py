"""The table of deploy/CAPACITY.md, from what the program says of the published shapes."""
import json
import math
import re

import pytest

import sizes
from pages import page

GIB = 2 ** 30
FILE = 4096  # what a file takes beside the state, its last block too


def held(claim_bytes):
    """What state_disk_bytes may be, in the claim."""
    return 4 * claim_bytes // 5


def row(name, device, one):
    shown, disk = one / 2**20, 1000 * (one + FILE)
    return (f"| {name}, {device} | {f'{shown:.1f}' if shown < 100 else f'{shown:.0f}'} MiB | {held(100 * GIB) // (one + FILE):,} | "
            f"{math.ceil(disk / GIB):,} GiB | {math.ceil(disk * 5 / 4 / GIB):,}Gi |")


@pytest.mark.parametrize("name", sizes.PUBLISHED)
def test_the_table_of_capacity_has_the_programs_figures(name, tmp_path):
    said = sizes.session_bytes(name, tmp_path)
    chapter = page("deploy/CAPACITY.md").split("\n## Sessions that are kept\n")[1].split("\n## ")[0]
    for device, one in (("on a GPU", said["gpu"]), ("on a CPU", said["cpu"])):
        wanted = row(name, device, one)
        assert wanted in chapter.splitlines(), wanted
    assert len(re.findall(r"^\| Rodimus", chapter, re.M)) == 2 * len(sizes.PUBLISHED)


def test_the_table_of_formats_has_the_programs_bytes(tmp_path):
    """As many more sessions fit as one has fewer bytes."""
    one = sizes.session_bytes("Rodimus+-Coder-1.6B", tmp_path)
    text = page("deploy/CAPACITY.md")
    fit = int(re.search(r"^\| Rodimus\+-Coder-1.6B(?: \| [\d,]+){3} \| ([\d,]+) \|$", text, re.M).group(1).replace(",", ""))
    mib = {device: round(n / 2**20) for device, n in one.items()}
    assert f"| GPU: `fp8` | {mib['fp8']} MiB ({mib['gpu']}) | {int(fit * one['gpu'] / one['fp8']):,} ({fit}) |" in text, (mib, fit)
    rows = {(r["window_dtype"], r["batch"]): f"{r['tokens_per_s']:,.0f}" for r in json.loads(page("tests/bench/results/rodimus-plus-1.6b-window-h200.json"))
            if r["phase"] == "decode" and r["context"] == 4096}
    assert ", ".join(f"{rows['fp8', n]} ({rows['bf16', n]})" for n in (8, 64, 256)) in text, rows
    change = {r["model"]: r["change_percent"] for r in json.loads(page("tests/bench/results/window-formats.json"))["rows"] if r["window"] == "fp8" and not r["planted"]}
    assert f"| {change['tales']:+.3f}, {change['skills']:+.3f} % |" in text, change
    assert f"| CPU: `int8` | {mib['int8']} MiB ({mib['cpu']}) | |" in text, mib


PRICES = {"storage": 0.023e-9, "put": 5e-6, "get": 0.4e-6}  # a byte and month, a request: of one provider in one region, in dollars; a list is a PUT
N_TURNS = 300


def conversation():
    """What a conversation's turn asks of a store, and the states that its turns leave, as tests/deploy/test_store_requests.py counted them: where it asks most."""
    rows = json.loads(page("tests/bench/results/deploy.json"))
    counted = [row for row in rows if row["what"] == "requests to a store: Whole"]
    assert len(counted) == 3 and all(row["turns"] == N_TURNS - 1 for row in counted), counted
    a_turn = [{what: round(row["all"][what] / row["turns"] + 0.49) for what in ("PUT", "LIST", "GET")} for row in counted]
    return max(a_turn, key=lambda n: n["GET"]), min(n["GET"] for n in a_turn), max(row["states_left"] for row in counted)


def month(n_bytes, n_puts, n_gets):
    """1,000 asleep, and with their turns."""
    asleep = 1000 * n_bytes * PRICES["storage"]
    return f"{asleep:.2f} | {asleep + 1000 * N_TURNS * (n_puts * PRICES['put'] + n_gets * PRICES['get']):.2f}"


def written(n_bytes):
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes < 1e8 else f"{n_bytes / 1e6:.0f} MB"


@pytest.mark.parametrize("name", sizes.PUBLISHED)
def test_the_table_of_a_store_has_the_programs_bytes_the_counted_requests_and_these_prices(name, tmp_path):
    one = sizes.session_bytes(name, tmp_path)["gpu"]
    most, fewest_gets, n_states = conversation()
    wanted = f"| {name} | {month(one, 1, 1)} | {written(one)} | {month(n_states * one, most['PUT'] + most['LIST'], most['GET'])} | {written(2 * one)} |"
    chapter = page("deploy/CAPACITY.md").split("\n## Sessions and conversations in a store\n")[1].split("\n## ")[0]
    assert wanted in chapter.splitlines(), wanted
    said = " ".join(chapter.split())
    assert f"{most['PUT']} PUTs for its two new states and its notes, {most['LIST']} lists, and {fewest_gets} to {most['GET']} GETs; {N_TURNS} turns leave {n_states} states" in said
    assert all(f"{price * n:g} a {what}" in chapter for price, n, what in
               ((PRICES["storage"], 1e9, "GB"), (PRICES["put"], 1000, "thousand PUTs and lists"), (PRICES["get"], 1000, "thousand GETs")))


def test_a_file_of_a_session_takes_what_the_table_counts(own_server, tmp_path):
    """Of tales, whose window is full after 257 tokens."""
    server = own_server("--state-dir", tmp_path)
    server.complete(max_tokens=400, ignore_eos=True, session_id="one", session_create=True)
    state = server.get("/v1/sessions/one").json["state_bytes"]
    assert state == sizes.inspected(sizes.MODEL)["cpu"]
    assert state < server.metric("rodimus_state_file_bytes") <= state + FILE + 4096  # names.key has a block of its own
