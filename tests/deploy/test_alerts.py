"""alerts.yml by promtool, rule by rule, on series made by hand: each fires and each keeps silent. test_monitoring.py provokes them on real servers."""
import os
import re
import shutil
import subprocess

import pytest
import yaml

from replicas import DEPLOY

with open(os.path.join(DEPLOY, "alerts.yml")) as alerts:
    RULES = {rule["alert"]: rule for group in yaml.safe_load(alerts)["groups"] for rule in group["rules"]}

A, B = 'instance="a",job="rodimus"', 'instance="b",job="rodimus"'
STEP_S = 15  # between two samples
# Counters that must not move: alert -> (counter, what it says, minutes that are looked at).
MUST_NOT_MOVE = {
    "RodimusNotANumber": ("rodimus_engine_requests_nan_total", "logits were not numbers", 60),
    "RodimusStatesNotSaved": ("rodimus_state_save_failures_total", "turns of sessions fail, as their states cannot be written", 10),
    "RodimusConversationsNotSaved": ("rodimus_conversation_save_failures_total",
                                     "states of conversations are in no file: after a restart their prompts are read again", 10),
    "RodimusStatesNoRoom": ("rodimus_state_no_room_total", "turns of sessions are refused, as pinned ones use up state_disk_bytes", 10),
    "RodimusStatesRefused": ("rodimus_state_refused_total", "files in state_dir are damaged or of another model", 60),
    "RodimusReloadFailed": ("rodimus_config_reload_failures_total", "SIGHUP took nothing over: keys and certificates are the old ones", 60),
    "RodimusLogLost": ("rodimus_log_lines_dropped_total", "lines of the log are lost: its reader or its disk does not take them", 10),
}
JOB_A = {"instance": "a", "job": "rodimus"}


def histogram(name, labels, buckets):
    """{le: values} as series; +Inf is the last of them."""
    return {f'{name}_bucket{{{labels},le="{le}"}}': values for le, values in buckets.items()}


CASES = [
    # alert, name, series, minute, [(summary, labels)] or None
    ("RodimusDown", "a process that ended", {f"up{{{A}}}": "1x20 0x20", f"up{{{B}}}": "1x40"}, 6, [("a does not answer", JOB_A)]),
    ("RodimusDown", "a missed scrape", {f"up{{{A}}}": "1x20 0 1x20"}, 5.25, None),
    ("RodimusDown", "no target is left", {'up{job="haproxy",instance="a"}': "1x40"}, 10, [("every replica does not answer", {"job": "rodimus"})]),
    ("RodimusDown", "targets that vanished", {f"up{{{A}}}": "1x20 stale"}, 10, [("every replica does not answer", {"job": "rodimus"})]),
    ("RodimusStalled", "a stall", {f"rodimus_stalled{{{A}}}": "0x20 1x20", f"rodimus_stalled{{{B}}}": "0x40"}, 6, [("a: work waits and no step ends", JOB_A)]),
    ("RodimusStalled", "a stall that ended", {f"rodimus_stalled{{{A}}}": "0x20 1 0x20"}, 5.25, None),
    ("RodimusNotReady", "loading for long", {f"rodimus_ready{{{A}}}": "0x40", f"rodimus_ready{{{B}}}": "1x20 0x10 1x10"}, 10,
     [("a has not been ready for five minutes", JOB_A)]),
    ("RodimusNotReady", "a start of two minutes", {f"rodimus_ready{{{A}}}": "0x8 1x40"}, 5, None),
    ("RodimusRefuses", "two 429 a minute", {f"rodimus_engine_requests_rejected_total{{{A}}}": "0+30x60", f"rodimus_engine_requests_rejected_total{{{B}}}": "0+0x60"},
     12, [("a answers 429: its queue is full", JOB_A)]),
    ("RodimusRefuses", "a burst of a moment", {f"rodimus_engine_requests_rejected_total{{{A}}}": "0x10 25x50"}, 12, None),
    ("RodimusQueueLong", "one in five waits 8 s", histogram("rodimus_queue_duration_seconds", A, {"5": "0+8x100", "10": "0+10x100", "+Inf": "0+10x100"}), 20,
     [("a: one request in ten waits more than 5 s for a slot", {"instance": "a"})]),
    ("RodimusQueueLong", "one in twenty waits 8 s", histogram("rodimus_queue_duration_seconds", A, {"5": "0+19x100", "10": "0+20x100", "+Inf": "0+20x100"}), 20, None),
    ("RodimusSlowTokens", "one in fifty takes a second", histogram("rodimus_inter_token_seconds", A, {"0.5": "0+98x100", "1": "0+100x100", "+Inf": "0+100x100"}), 20,
     [("a: one token in a hundred takes more than half a second", {"instance": "a"})]),
    ("RodimusSlowTokens", "no tokens at all", histogram("rodimus_inter_token_seconds", A, {"0.5": "7x100", "1": "9x100", "+Inf": "9x100"}), 20, None),
    ("RodimusErrors", "six a minute", {f"rodimus_engine_requests_failed_total{{{A}}}": "0+1.5x60"}, 12, [("a: requests fail", JOB_A)]),
    ("RodimusStoreDown", "a store that does not answer", {f"rodimus_store_down{{{A}}}": "0x20 1x20", f"rodimus_store_down{{{B}}}": "0x40"}, 7,
     [("a: the store of states does not answer: turns of sessions are 503", JOB_A)]),
    ("RodimusStoreDown", "two failed calls a minute", {f"rodimus_store_failures_total{{{A}}}": "0+0.5x60"}, 12,
     [("a: the store of states does not answer: turns of sessions are 503", JOB_A)]),
    ("RodimusStoreDown", "a moment", {f"rodimus_store_down{{{A}}}": "0x20 1 0x20", f"rodimus_store_failures_total{{{A}}}": "0x20 1x40"}, 5.25, None),
    ("RodimusErrors", "one", {f"rodimus_engine_requests_failed_total{{{A}}}": "0x10 1x60"}, 12, None),
    ("RodimusFilesShort", "nine of ten", {f"rodimus_http_connections{{{A}}}": "90x40", f"rodimus_http_connections_limit{{{A}}}": "100x40",
                                             f"rodimus_http_connections{{{B}}}": "80x40", f"rodimus_http_connections_limit{{{B}}}": "100x40"}, 10,
     [("a: connections near their limit", JOB_A)]),
    ("RodimusFilesShort", "a burst of a minute", {f"rodimus_http_connections{{{A}}}": "9x10 90x4 9x30", f"rodimus_http_connections_limit{{{A}}}": "100x60"}, 3.25, None),
]
for alert, (counter, summary, minutes) in MUST_NOT_MOVE.items():
    said, steps = [(f"a: {summary}", JOB_A)], minutes * 60 // STEP_S
    old = {f"{counter}{{{B}}}": f"3x{2 * steps}", f"process_start_time_seconds{{{B}}}": f"-90000x{2 * steps}"}  # in b it happened yesterday
    began = {f"process_start_time_seconds{{{A}}}": f"-90000x{2 * steps}"}
    CASES += [
        (alert, "it grew", {f"{counter}{{{A}}}": f"2x{steps + 8} 3x{steps}", **began, **old}, minutes + 3, said),
        (alert, "it grew long ago", {f"{counter}{{{A}}}": f"2x4 3x{2 * steps}", **began, **old}, minutes + 3, None),
        (alert, "above zero at the first scrape", {f"{counter}{{{A}}}": f"3x{2 * steps}"}, 1, said),
        (alert, "above zero at a first scrape of long ago", {f"{counter}{{{A}}}": f"3x{2 * steps}"}, minutes + 1, None),
        (alert, "zero at the first scrape", {f"{counter}{{{A}}}": f"0x{2 * steps}", f"process_start_time_seconds{{{A}}}": f"0x{2 * steps}"}, 1, None),
        # An older process had one, too, and so increase() sees nothing; the new one began after the last scrape of the old one.
        (alert, "a restart after which it is what it was", {f"{counter}{{{A}}}": f"1x{2 * steps + 20}",
                                                              f"process_start_time_seconds{{{A}}}": f"-90000x{steps + 8} {(steps + 8) * STEP_S}x{steps}"}, minutes + 4, said),
        (alert, "a scrape that was missed for a while", {f"{counter}{{{A}}}": f"1x{steps} _x{steps // 2} 1x{2 * steps}",
                                                           f"process_start_time_seconds{{{A}}}": f"-90000x{4 * steps}"}, 2.4 * minutes, None),
    ]


def promtool_test(series, minute, alert, wanted, name):
    fired = [{"exp_labels": {**RULES[alert]["labels"], **labels}, "exp_annotations": {"summary": said}} for said, labels in wanted or []]
    return {"name": f"{alert}: {name}", "interval": f"{STEP_S}s", "input_series": [{"series": one, "values": values} for one, values in series.items()],
            "alert_rule_test": [{"eval_time": f"{int(minute * 60)}s", "alertname": alert, "exp_alerts": fired}]}


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_fires_when_it_should(tmp_path, alert):
    """promtool names the cases that failed."""
    if not shutil.which("promtool"):
        pytest.skip("promtool (Debian's package prometheus) is not here")
    cases = [promtool_test(series, minute, alert, wanted, name) for one, name, series, minute, wanted in CASES if one == alert]
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [os.path.join(DEPLOY, "alerts.yml")], "evaluation_interval": f"{STEP_S}s", "tests": cases}))
    done = subprocess.run(["promtool", "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_made_to_fire_and_to_keep_silent():
    assert len(RULES) == 16
    for kind in (True, False):
        assert {alert for alert, _, _, _, wanted in CASES if bool(wanted) == kind} == set(RULES)


def test_no_alert_of_a_counter_is_blind_to_its_first_sample():
    """increase() is: with it alone, what a new process counted before the first scrape is told to nobody."""
    blind = [alert for alert, rule in RULES.items() if "increase(" in rule["expr"] and alert not in MUST_NOT_MOVE]
    assert not blind, blind
    for alert, (counter, _, minutes) in MUST_NOT_MOVE.items():
        assert set(re.findall(r"\brodimus_\w+", RULES[alert]["expr"])) == {counter} and "for" not in RULES[alert]
        assert f"< {minutes * 60}" in " ".join(RULES[alert]["expr"].split())
