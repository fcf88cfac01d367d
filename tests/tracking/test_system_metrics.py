"""Telemetry in MLflow: under its own names, right values, never twice, never in the way of the rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from jupyter_amltrain.agent.telemetry.summary import Summary
from jupyter_amltrain.agent.telemetry.telemetry_files import Minutes, TelemetryFile
from jupyter_amltrain.tracking.system_metrics import _notes, _series
from jupyter_amltrain.tracking.telemetry_table import NodeTable, tables

from ..telemetry_files import LIMIT, SIZE, START, busy, write_node

ROOT = Path(__file__).resolve().parents[2]
HOST = {
    "system/cpu_utilization_percentage",
    "system/system_memory_usage_megabytes",
    "system/run_cpu_utilization_percentage",
    "system/run_memory_usage_megabytes",
}
SUMMARY = ("_mean", "_p50", "_p95", "_peak", "_wh", "_share", "_seconds", "_celsius", "_megabytes_mean")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-m", "tests.system_imports", str(tmp_path_factory.mktemp("imports"))]
    run = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


def series(case, key):
    """(step, value) of a metric."""
    return [(step, value) for name, value, _, step in case["rows"][0] if name == key]


def keys(case):
    return {row[0] for row in case["rows"][0]}


@pytest.mark.thorough
def test_system_metrics_of_short_run_have_every_second(done):
    case = done["short"]
    assert keys(case) >= HOST
    for name, column, factor in (
        ("utilization_percentage", 0, 1.0),
        ("memory_usage_megabytes", 2, 1.048576),
        ("memory_usage_percentage", 2, 100 / SIZE),
        ("power_usage_watts", 3, 1.0),
        ("power_usage_percentage", 3, 100 / LIMIT),
    ):
        want = {t: round(busy(1, t)[column] * factor, 2) for t in range(90)}
        assert dict(series(case, f"system/gpu_1_{name}")) == pytest.approx(want), name
    moments = [row[2] for row in case["rows"][0] if row[0] == "system/gpu_1_utilization_percentage"]
    assert moments == [round((START + t) * 1000) for t in range(90)]


@pytest.mark.thorough
def test_system_metrics_unknown_value_is_absent(done):
    # gpu 0 tells nothing but what is asked seldom: neither points nor figures of its summary
    names = {key.removeprefix("system/gpu_0_") for key in keys(done["short"]) if key.startswith("system/gpu_0_")}
    assert names == {"memory_clock_megahertz", "throttle_reasons", "uncorrected_ecc_errors", "power_limit_watts"}


@pytest.mark.thorough
def test_system_metrics_summary_is_one_point_each(done):
    case = done["short"]
    util, memory, power = ([busy(1, t)[i] for t in range(90)] for i in (0, 2, 3))
    assert series(case, "system/gpu_1_utilization_percentage_mean") == [(0, pytest.approx(sum(util) / 90, abs=1e-3))]
    assert series(case, "system/gpu_1_memory_peak_megabytes") == [(0, pytest.approx(max(memory) * 1.048576, abs=1e-3))]
    assert series(case, "system/gpu_1_energy_wh") == [(0, pytest.approx(sum(power) / 3600, abs=1e-3))]
    assert series(case, "system/gpu_1_idle_share") == [(0, 0.0)]
    assert len(series(case, "system/run_memory_peak_megabytes")) == 1


def test_system_metrics_latest_table_matches_points(done):
    for name in ("short", "long", "nodes", "own"):
        points, latest = done[name]["rows"]
        want = {}
        for key, value, moment, step in points:
            want[key] = max(want.get(key, [-1]), [step, moment, value])
        assert {row[0]: [row[3], row[2], row[1]] for row in latest} == want, name


def test_system_metrics_fast_samples_are_thinned(done):
    points = series(done["fast"], "system/gpu_0_utilization_percentage")
    assert 100 <= len(points) <= 200
    assert points[0][1] == pytest.approx(sum(busy(0, t / 10)[0] for t in range(8)) / 8, abs=0.01)


def test_system_metrics_of_long_run_use_minutes(done):
    case = done["long"]
    metrics = 4 + 2 * (6 + 2 + 4)  # of a GPU: columns, shares, what is recorded when it changes
    assert case["young"] == 100 * metrics  # raw as yet
    assert case["half"] == 7 * metrics  # from now on the minutes; nothing is left of the raw points
    assert len(case["half rows"][0]) == 7 * metrics
    assert case["more"] == 6 * metrics and len(case["more rows"][0]) == 13 * metrics
    assert case["nothing new"] == 0
    util = series(case, "system/gpu_1_utilization_percentage")
    means = [sum(busy(1, t)[0] for t in range(m, min(m + 60, 930))) / min(60, 930 - m) for m in range(0, 930, 60)]
    assert [value for _, value in util] == pytest.approx(means, abs=0.01)  # with its last half minute


def test_system_metrics_import_after_kill_equals_clean_import(done):
    case = done["long"]
    assert case["killed"] == [-signal.SIGKILL, -signal.SIGKILL]
    assert case["after kills"] and case["again"] == 0 and done["short"]["again"] == 0
    assert case["rows"] == done["clean"]["rows"]


def test_system_metrics_of_two_nodes_have_prefixes(done):
    names = keys(done["nodes"])
    assert {name.rsplit("/", 1)[0] for name in names} == {"system/node_0", "system/node_1"}
    case = done["nodes"]
    assert series(case, "system/node_1/gpu_0_utilization_percentage") == [(t, 0.0) for t in range(60)]
    assert series(case, "system/node_0/gpu_0_utilization_percentage")[5] == (5, busy(0, 5)[0])
    assert series(case, "system/node_1/gpu_0_idle_share") == [(0, 1.0)]


def test_system_metrics_logged_by_script_are_kept(done):
    case = done["own"]
    assert case["before"] > 0 and case["during"] == 0
    assert series(case, "system/gpu_0_utilization_percentage") == [(1, 12.0)]
    rest = keys(case) - {"loss", "system/gpu_0_utilization_percentage", "system/disk_usage_percentage"}
    assert rest and all(key.endswith(SUMMARY) or "peak" in key or "mean" in key for key in rest)
    assert done["untagged"]["rows"][0] == [["system/gpu_0_utilization_percentage", 12.0, 1_700_000_001_000, 0]]


def test_system_metrics_of_old_folder_have_host(done):
    case = done["golden"]
    assert case["result"]["state"] == "imported" and keys(case) == HOST
    assert len(series(case, "system/run_memory_usage_megabytes")) == 33


def test_import_without_telemetry_has_no_system_metrics(done):
    assert done["without"]["result"]["state"] == "imported" and done["without"]["rows"] == [[], []]


def test_system_metrics_of_damaged_files_are_partial(done):
    case = done["damaged"]
    assert case["result"]["state"] == "imported" and case["result"].get("error") is None
    assert len(series(case, "system/gpu_0_utilization_percentage")) == 7
    assert not [key for key in keys(case) if key.endswith("_wh")]


def means(values: Sequence[float | None], limit: int) -> NodeTable:
    table = NodeTable(0, {}, ["a"], limit)
    for t, value in enumerate(values):
        table.add(float(t), [value])
    return table


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 16, 17, 100, 1000])
def test_means_table_is_bounded_and_exact(n):
    table = means([float(i) for i in range(n)], 8)
    assert len(table.times) <= 8 and table.times[-1] == n - 1
    width = table.width
    whole = [range(i, min(i + width, n)) for i in range(0, n, width)]
    assert table.column("a") == [sum(r) / len(r) for r in whole]
    assert table.whole() == n // width


def test_means_table_skips_missing_values():
    table = means([None, 1.0, None, None, 5.0], 4)
    assert table.width == 2 and table.column("a") == [1.0, None, 5.0]
    assert table.column("b") == [None] * 3


def test_system_metrics_of_many_gpus_are_bounded(tmp_path, monkeypatch):
    from jupyter_amltrain.tracking import telemetry_table

    monkeypatch.setattr(telemetry_table, "ALL_POINTS", 3000)
    write_node(tmp_path, gpus=8, seconds=7300, period=5.0)
    kind, (table,) = tables(tmp_path, True)
    assert kind == "minutes" and table.width == 8
    assert len(table.times) * (9 + 8 * 14) <= 3000


def test_system_metrics_include_slow_values(tmp_path):
    write_node(tmp_path, gpus=2, seconds=30)
    path = tmp_path / "telemetry" / "node-0.jsonl"
    lines = path.read_text().splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("[10,"))
    lines[at:at] = [
        '{"seq":10,"gpu":[[1,{"ecc":3,"mine":100,"xid":79,"throttled":2.5,"unknown":{"a":1}}]]}',
        '{"seq":10,"processes":[[1,7,"mine",100,"python"],[1,8,"other",5,"sh"]]}',
    ]
    path.write_text("\n".join([*lines, ""]))
    (table,) = tables(tmp_path, True)[1]
    assert table.column("gpu1.ecc") == [0.0] * 10 + [3.0] * 20
    assert table.column("gpu1.mine") == [None] * 10 + [100.0 * 2**20] * 20
    assert table.column("gpu1.processes") == [None] * 10 + [2.0] * 20
    named = {name: (column, factor) for name, column, factor in _series(table)}
    assert named["gpu_1_run_memory_megabytes"] == ("gpu1.mine", 1e-6)
    assert {"gpu_1_xid", "gpu_1_throttled", "gpu_0_sm_clock_megahertz", "gpu_0_temperature_celsius"} <= named.keys()
    assert not any("unknown" in name for name in named)


def test_system_metrics_names_include_unit(tmp_path):
    write_node(tmp_path, gpus=1, seconds=3)
    (table,) = tables(tmp_path, True)[1]
    table.header["gpu_columns"] += ["sm_active", "nvlink_rx", "throttled_seconds"]
    table.header["gpu_units"] += ["percent", "MiB/s", "s"]
    table.names += ["gpu0.sm_active", "gpu0.nvlink_rx", "gpu0.throttled_seconds"]
    names = {name: factor for name, _, factor in _series(table)}
    assert names["gpu_0_sm_active_percentage"] == 1.0 and names["gpu_0_throttled_seconds"] == 1.0
    assert names["gpu_0_nvlink_rx_megabytes_per_second"] == pytest.approx(1.048576)


def test_system_metrics_of_shorter_second_node_are_read(tmp_path):
    write_node(tmp_path, node=0, gpus=1, seconds=600)
    write_node(tmp_path, node=1, gpus=1, seconds=30)
    kind, found = tables(tmp_path, True)
    assert kind == "minutes"
    assert [(table.node, len(table.times)) for table in found] == [(0, 10), (1, 30)]


def test_telemetry_test_files_match_agent_files(tmp_path):
    write_node(tmp_path, gpus=2, seconds=400)
    place = tmp_path / "telemetry"
    lines = [json.loads(line) for line in (place / "minutes-0.jsonl").read_text().splitlines()]
    summary = json.loads((place / "summary-0.json").read_text())
    before = tables(tmp_path, True)[1][0]
    (place / "minutes-0.jsonl").unlink()
    (place / "summary-0.json").unlink()
    raw = TelemetryFile(str(tmp_path))
    minutes, sums = Minutes(str(tmp_path), lines[0]["columns"]), Summary(str(tmp_path), raw.header)
    for tick in raw.ticks(0, -1):
        if minutes.closes(tick.t):
            sums.add(minutes.close())
        minutes.add(tick)
    sums.add(minutes.ticks)
    sums.save()
    made = [json.loads(line) for line in (place / "minutes-0.jsonl").read_text().splitlines()]
    assert made[0] == lines[0] and len(made) == len(lines) == 7
    for ours, theirs in zip(lines[1:], made[1:], strict=True):
        assert [*ours[:6], ours[7]] == [*theirs[:6], theirs[7]]
        assert ours[6] == pytest.approx(theirs[6], rel=0.02)
    found = json.loads((place / "summary-0.json").read_text())
    assert found.keys() == summary.keys()
    for ours, theirs in zip(summary["gpus"], found["gpus"], strict=True):
        assert ours.keys() == theirs.keys()
        for name in ("memory_total", "memory_peak", "util_mean", "util_p95", "energy_wh", "temperature_max"):
            assert ours[name] == pytest.approx(theirs[name], rel=0.02), name
    after = tables(tmp_path, True)[1][0]
    assert after.times == before.times
    assert after.column("gpu1.power") == pytest.approx(before.column("gpu1.power"), rel=0.02)


def test_telemetry_notes_have_time():
    notes = [[START + 0.25, "GPU 1 fell off the bus"], [START + 9, "GPU 1 is back"], "rubbish", [None, "x"]]
    first, second = _notes({0: {"notes": notes}}).splitlines()
    assert first.startswith("2023-11-14T") and ".250" in first and first.endswith("GPU 1 fell off the bus")
    assert "back" in second
