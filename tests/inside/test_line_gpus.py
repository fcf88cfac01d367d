"""GPU use by line: the agent's readings and the lines that ran meanwhile."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path

import pytest

from jupyter_amltrain.agent.telemetry.line_gpus import LineGpus
from tests.fakes.nvml import h100
from tests.inside.sampled import run_sampled

PHASES = ("matmul", "copy", "bursts", "pcie", "idle")
#: The trace runs this much faster; seconds between two readings.
SPEED, TICK_S = 2.0, 0.5


def replay(folder: Path, start: float, begin: float, done: threading.Event) -> None:
    """Write the recorded utilization as the agent does: each time the mean since the last one."""
    gpus, rows = LineGpus(str(folder)), [(start + (one.t - begin) / SPEED, one.util) for one in h100.readings()]
    last = time.monotonic()
    while not done.wait(TICK_S):
        now = time.monotonic()
        values = [util for t, util in rows if last < t <= now]
        gpus.write(now, [statistics.mean(values) if values else 0.0])
        last = now


@pytest.mark.thorough
def test_lines_have_the_utilization_of_the_recorded_trace(tmp_path: Path) -> None:
    spans = {name: [one for one in h100.readings() if one.phase == name] for name in PHASES}
    begin, start = spans["matmul"][0].t, time.monotonic() + 4.0
    script = f"while _time.monotonic() < {start}: _time.sleep(0.01)\n"
    for name in PHASES:
        end = start + (spans[name][-1].t + 0.1 - begin) / SPEED
        script += f"t = now(); _time.sleep(max(0.0, {end} - _time.monotonic())); add({name!r}, t)\n"
    done = threading.Event()
    thread = threading.Thread(target=replay, args=(tmp_path, start, begin, done))
    thread.start()
    try:
        run = run_sampled(tmp_path, script)
    finally:
        done.set()
        thread.join()
    uses = {name: use for name in PHASES for use in run.report.lines if f"add({name!r}" in use.text}
    differences = {
        name: (round(use.gpu or 0.0, 1), round(statistics.mean(one.util for one in spans[name]), 1))
        for name, use in uses.items()
    }
    print(differences)
    assert len(differences) == len(PHASES)
    # The readings at the borders of a phase have a part of its neighbors.
    borders = {name: 100.0 * TICK_S * SPEED / (spans[name][-1].t - spans[name][0].t) for name in PHASES}
    assert all(abs(sampled - true) < 5 + borders[name] for name, (sampled, true) in differences.items()), differences


@pytest.mark.thorough
def test_lines_that_alternate_within_seconds_have_their_own_utilization(tmp_path: Path) -> None:
    script = """
import os
from jupyter_amltrain.agent.telemetry.line_gpus import LineGpus
gpus, ticks = LineGpus(os.getcwd()), 0
def tick(percent): gpus.write(_time.monotonic(), [percent])
for _ in range(4):
    t = now(); _time.sleep(1.0); tick(92); add("train", t)
    t = now(); _time.sleep(1.0); tick(4); add("load", t)
"""
    run = run_sampled(tmp_path, script, PYTHONPATH=str(Path(__file__).parents[2]))
    assert run.done.returncode == 0, run.done.stderr
    gpu = {name: use.gpu or 0.0 for name in ("train", "load") for use in run.report.lines if f'"{name}"' in use.text}
    assert abs(gpu["train"] - 92) < 10 and abs(gpu["load"] - 4) < 10, gpu
