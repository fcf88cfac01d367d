"""The fake driver with the profile of a recorded H100: its prices, its refusals and its load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.scripted_sampler import UUIDS, ScriptedSampler
from tests.fakes import nvml
from tests.fakes.nvml import h100

CHILD = """
import json, math, sys, time
import pynvml as n
from tests.agent.scripted_sampler import UUIDS, ScriptedSampler
from tests.fakes import nvml

def at(seconds):
    nvml.set_clock(Path(sys.argv[1]), seconds)

from pathlib import Path
at(0)
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)

def refusal(function, *arguments):
    try:
        function(gpu, *arguments)
    except n.NVMLError as error:
        return error.value

def gpm(first, second, ids=(1, 2, 3, 5, 10, 20, 21)):
    samples = [n.nvmlGpmSampleAlloc() for _ in range(2)]
    for sample, seconds in zip(samples, (first, second)):
        at(seconds)
        n.nvmlGpmSampleGet(gpu, sample)
    request = n.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics, request.sample1, request.sample2 = 1, len(ids), *samples
    for place, number in enumerate(ids):
        request.metrics[place].metricId = number
    n.nvmlGpmMetricsGet(request)
    return [request.metrics[place].value for place in range(len(ids))]
"""


SAMPLER = """
from collections import Counter
from jupyter_amltrain.agent import protocol
now = [0.0]
protocol.mono = lambda: now[0]
from jupyter_amltrain.agent.telemetry import sampler
from jupyter_amltrain.agent.telemetry.gpu_figures import GpuFigures
from jupyter_amltrain.agent.telemetry.gpu_slow import SlowMetrics

def sampled(ticks):
    now[0] = 1000.0
    readings, _ = sampler.find_gpus(None, [0], None)
    slow, figures = SlowMetrics(readings), GpuFigures(readings)
    names = [name for name, _ in figures.columns]
    rows = []
    for tick in ticks:
        at(tick)
        now[0] = 1001.0 + tick
        values = readings.read()
        slow.read(1.0, ())
        rows.append({"util": values[0], "peak": values[1], **dict(zip(names, figures.read()[0]))})
    return rows

def counted(ticks):
    sampled(ticks)
    n.nvmlLib.amltrain_fake_calls.restype = __import__("ctypes").c_ulonglong
    return {name: n.nvmlLib.amltrain_fake_calls(name.encode()) for name in (
        "nvmlDeviceGetSamples", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetViolationStatus", "nvmlDeviceGetProcessUtilization", "nvmlGpmSampleGet")}
"""


def child(folder: Path, code: str, **environ: str) -> Any:
    """Run code with the fake driver in a process of its own; its last expression, by JSON."""
    curves = folder / "curves"
    curves.write_text("\n".join(h100.curves()))
    done = subprocess.run(
        [sys.executable, "-c", f"{CHILD}{SAMPLER}\nprint(json.dumps({code}))", str(folder / "clock")],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(nvml.needed()),
            "AMLTRAIN_FAKE_NVML_CURVES": str(curves),
            "AMLTRAIN_FAKE_NVML_CLOCK": str(folder / "clock"),
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def profile() -> dict[str, str]:
    return {"AMLTRAIN_FAKE_NVML_PRICES": str(h100.PRICES), "AMLTRAIN_FAKE_NVML_UNSUPPORTED": ",".join(h100.refused())}


def phase(name: str) -> tuple[float, float]:
    """Return the middle half of a phase, in seconds."""
    times = [one.t for one in h100.readings() if one.phase == name]
    quarter = (times[-1] - times[0]) / 4
    return times[0] + quarter, times[-1] - quarter


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetSamples", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetViolationStatus"]
)
def test_call_keeps_its_thread_busy(tmp_path: Path, profile: dict[str, str], function: str) -> None:
    arguments = {"nvmlDeviceGetSamples": "gpu, 1, 0", "nvmlDeviceGetViolationStatus": "gpu, 0"}.get(function, "gpu")
    code = f"[time.thread_time(), n.{function}({arguments}) and 0, time.thread_time()]"
    begin, _, end = child(tmp_path, code, **profile)
    assert (end - begin) * 1e6 >= 0.9 * h100.price(function)


def test_recorded_phases_are_told_apart_by_sm_activity(tmp_path: Path, profile: dict[str, str]) -> None:
    spans = [phase(name) for name in ("matmul", "copy", "pcie", "idle")]
    matmul, copy, pcie, idle = child(tmp_path, f"[gpm(*span) for span in {spans!r}]", **profile)
    assert matmul[1] > 90 and matmul[3] > 85  # SM and tensor cores
    assert copy[0] > 90 and copy[4] > 80 and copy[3] < 5  # busy with memory, without tensor work
    assert pcie[1] < 1 and pcie[6] > 50_000 and idle[1] < 1
    util = child(tmp_path, f"[at({sum(spans[2]) / 2}), n.nvmlDeviceGetUtilizationRates(gpu).gpu][1]", **profile)
    assert util == 99  # while the copy engine alone works


def test_gpm_over_a_short_time_has_no_values(tmp_path: Path, profile: dict[str, str]) -> None:
    begin, _ = phase("matmul")
    values = child(
        tmp_path, f"[value if value == value else None for value in gpm({begin}, {begin + 0.05})]", **profile
    )
    assert values[:4] == [0, 0, 0, 0] and values[4] is None


def test_refused_calls_are_those_of_the_device(tmp_path: Path, profile: dict[str, str]) -> None:
    code = "[refusal(n.nvmlDeviceGetFanSpeed), refusal(n.nvmlGpmQueryDeviceSupport)]"
    not_supported, not_found = 3, 13
    assert child(tmp_path, code, **profile)[1] is None and "nvmlDeviceGetFanSpeed" in h100.refused()
    assert child(tmp_path, code)[1] == not_found  # without the profile
    assert child(tmp_path, code, **profile)[0] in (not_supported, not_found)


def test_dear_calls_are_made_seldom(tmp_path: Path, profile: dict[str, str]) -> None:
    calls = child(tmp_path, "counted(range(120))", **profile)
    assert calls["nvmlGpmSampleGet"] >= 115
    assert calls["nvmlDeviceGetTotalEnergyConsumption"] <= 6  # the first three, then every two minutes
    for name in ("nvmlDeviceGetSamples", "nvmlDeviceGetFieldValues", "nvmlDeviceGetViolationStatus"):
        assert 1 <= calls[name] <= 6, (name, calls)


def test_cheap_calls_are_made_each_tick(tmp_path: Path) -> None:
    calls = child(tmp_path, "counted(range(40))")
    assert calls["nvmlDeviceGetSamples"] >= 40


def test_recorded_load_is_seen_as_it_was(tmp_path: Path, profile: dict[str, str]) -> None:
    rows = child(tmp_path, "sampled(range(45))", **profile)

    def mean(name: str, phase_: str) -> float:
        begin, end = phase(phase_)
        values = [rows[int(t)][name] for t in range(int(begin) + 1, int(end) + 1)]
        return sum(values) / len(values)

    assert mean("util", "matmul") > 95 and mean("util", "copy") > 95 and mean("util", "pcie") > 95
    assert 1 <= mean("util", "bursts") < 30  # the driver's own utilization reads 0 between them
    # Each figure is of its own second: it rises and falls with the utilization, and tells training from copying.
    assert mean("sm_activity", "matmul") > 90 and mean("tensor_activity", "matmul") > 85
    assert mean("dram_bandwidth", "copy") > 80 and mean("tensor_activity", "copy") < 5
    assert mean("pcie_rx", "pcie") > 50_000 and mean("sm_activity", "pcie") < 1 and mean("sm_activity", "idle") < 1
    assert all(row["util"] is not None for row in rows)  # also while the sources change


@pytest.mark.parametrize(("name", "copies"), [("pcie", True), ("matmul", False), ("copy", False)])
def test_summary_of_a_recorded_phase_names_copies(tmp_path: Path, name: str, copies: bool) -> None:
    stage = ScriptedSampler(tmp_path)
    stage.switch(GPUS=1, PRICES=h100.PRICES)
    rows = [one.split(" ", 2)[2] for one, at in zip(h100.curves(), h100.readings(), strict=True) if at.phase == name]
    middle = rows[len(rows) // 5 : -len(rows) // 5]
    stage.curves(["* 0 0 900 80 40 345", *(f"* {10 + k / 5:.1f} {middle[k % len(middle)]}" for k in range(200))])
    stage.play(range(1, 40), sampler=True, uuids=UUIDS[:1])
    summary = stage.summary()
    gpu = summary["gpus"][0]
    assert (gpu["copy_share"] > 0.9) == copies and gpu["util_source"] == gpu["activity_source"] == "GPM"
    assert ("copying" in summary["hint"]) == copies and bool(summary["hint"]) == copies
    assert gpu["util_mean"] > 60  # in both
