"""GPUs in the PNG of a record: all counts fit its size, idleness is loud, the unknown is no zero."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from jupyter_amltrain.output import picture
from jupyter_amltrain.output.palette import GPUS, HEAT, RED_GROUND
from tests.tiers import thorough

from .gpu_records import START, TOTAL, gpu_part, gpu_record, with_charts

TRUTH = {"verdict": "not used", "detail": "For 60 s GPU 0 had 0 % and 4 MiB.", "cause": "A CPU-only wheel: check it."}


def share(answer: dict[str, Any], color: str, near: int = 14) -> float:
    """Part of the picture that has about this color."""
    pixels = np.asarray(Image.open(io.BytesIO(answer["png"])).convert("RGB")).astype(int)
    wanted = np.array([round(255 * c) for c in to_rgb(color)])
    return float((abs(pixels - wanted).max(axis=2) <= near).mean())


def charts(record: dict[str, Any]) -> dict[str, Any]:
    return {chart.title: chart for chart in picture.chart_set(with_charts(record)).charts}


def draw(record: dict[str, Any]) -> dict[str, Any]:
    return picture.draw(with_charts(record))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("gpus", "nodes"),
    [(0, 1), (1, 1), (8, 4), (512, 64), *thorough((2, 2), (8, 1), (9, 1), (16, 1), (64, 8), (64, 64))],
)
def test_gpu_picture_of_any_gpu_count_is_small(gpus, nodes):
    answer = draw(gpu_record(gpus, nodes))
    assert Image.open(io.BytesIO(answer["png"])).size == (2 * picture.WIDTH, 2 * answer["height"])
    assert len(answer["png"]) < picture.MAX_BYTES
    assert answer["height"] < 900


@pytest.mark.thorough
def test_gpu_picture_of_noise_on_64_gpus_is_small():
    record = gpu_record(64, 8)
    noise = np.random.default_rng(0).integers(0, 101, 64 * 75)
    record["gpu"]["heat"]["cells"] = "".join(f"{value:02x}" for value in noise)
    for name in ("util", "memory", "power"):
        band = record["gpu"][name]
        band["mean"] = [float(noise[i]) * v / 100 for i, v in enumerate(band["mean"])]
    assert len(draw(record)["png"]) <= picture.MAX_BYTES


@pytest.mark.thorough
def test_gpu_picture_has_one_color_per_gpu():
    answer = draw(gpu_record(8))
    assert len(set(GPUS)) == 8
    assert all(share(answer, color) > 1e-4 for color in GPUS)
    assert share(draw(gpu_record(1)), GPUS[1]) == 0


def test_gpu_charts_show_record_values():
    shown = charts(gpu_record(2))
    assert [series.data[2:] for series in shown["GPU utilization"].series if not series.style] == [
        (0, "util"),
        (1, "util"),
    ]
    assert shown["GPU memory"].value == "peak 41 of 79.7 GiB"
    assert [level.value for level in shown["GPU memory"].levels] == [TOTAL]
    assert [level.value for level in shown["GPU power"].levels] == [700]
    assert (shown["GPU utilization"].y.max, shown["GPU power"].unit) == (100, "W")


def test_gpu_charts_with_different_limits_have_a_line_for_each():
    record = gpu_record(2)
    record["gpu"]["gpus"][1]["power_limit"] = 350
    assert [level.value for level in charts(record)["GPU power"].levels] == [350, 700]


def test_gpu_charts_above_a_limit_are_shown_whole():
    record = gpu_record(1)
    record["gpu"]["gpus"][0]["power"][3] = 900
    assert charts(record)["GPU power"].y.max >= 900


def test_gpu_charts_of_many_gpus_show_mean_and_band():
    shown = charts(gpu_record(64, 8))["GPU utilization"]
    assert [series.data for series in shown.series] == [("gpu", "util", "mean")] and shown.band == ("gpu", "util")


@pytest.mark.thorough
def test_heat_map_shows_idle_busy_and_gaps():
    record = gpu_record(16)
    record["gpu"]["heat"]["cells"] = "00" * 600 + "64" * 600
    answer = draw(record)
    assert share(answer, HEAT[0]) == pytest.approx(share(answer, HEAT[-1]), rel=0.2) and share(answer, HEAT[0]) > 0.05
    record["gpu"]["heat"]["cells"] = "ff" * 1200
    assert share(draw(record), HEAT[0]) < 0.005


@pytest.mark.thorough
def test_gpu_charts_unknown_value_is_not_zero():
    record = gpu_record(1)
    record["gpu"]["gpus"][0].update(power=[None] * 150, util=[], peak=[], memory_total=None, power_limit=None)
    shown = charts(record)
    assert [(shown[title].value, shown[title].y) for title in ("GPU power", "GPU utilization")] == [("n/a", None)] * 2
    assert shown["GPU memory"].value == "peak 40 GiB" and not shown["GPU memory"].levels
    assert draw(record)["png"]
    idle = charts(gpu_record(1, gpu=gpu_part(1, idle=True)))
    assert (idle["GPU utilization"].value, idle["GPU memory"].value) == ("mean 0 %", "peak 4 MiB of 79.7 GiB")


@pytest.mark.thorough
def test_gpu_picture_of_idle_gpu_shows_banner():
    plain = gpu_record(1)
    loud = draw({**plain, "truth": TRUTH})
    assert share(loud, RED_GROUND, near=3) > 0.04
    for verdict in ("", "used", "cannot tell"):
        assert share(draw({**plain, "truth": {**TRUTH, "verdict": verdict}}), RED_GROUND, near=3) < 0.001
    assert picture.banner({"truth": TRUTH}) == [TRUTH["detail"], TRUTH["cause"]]
    long = {**TRUTH, "cause": "why " * 500}
    assert len(picture.banner({"truth": long})) <= 4
    assert draw({"truth": long})["height"] < 200


@pytest.mark.thorough
def test_gpu_picture_of_ended_run_shows_summary():
    assert picture._figures(with_charts(gpu_record(8))) == [
        ["GPU use", "utilization 74 to 81 %"],
        ["GPU memory", "peak 40.0 of 79.7 GiB"],
        ["GPU power", "mean 480 W", "energy 3.85 kWh"],
    ]
    plain = draw(gpu_record(1))["height"]
    assert plain > draw({**gpu_record(1), "summary": {}})["height"]
    record = gpu_record(1)
    record["summary"]["hint"] = "The data loader is likely single-threaded."
    assert "hint:  The data loader is likely single-threaded." in [text for text, _ in picture._lines(record)]
    assert not picture._figures(with_charts({**record, "summary": {}}))
    note = {"note": "No NVIDIA driver on this machine", "gpus": []}
    assert "GPU:  No NVIDIA driver on this machine" in [text for text, _ in picture._lines(gpu_record(0, gpu=note))]
    usage = {"verdict": "cannot tell", "detail": "GPU 0 is a MIG instance."}
    assert any("GPU 0 is a MIG instance." in text for text, _ in picture._lines(gpu_record(1, truth=usage)))


def test_charts_over_time_share_axis_and_phases():
    record = gpu_record(1)
    found = picture.chart_set(with_charts(record))
    assert found.start == START and found.time is not None and found.time.max == 3600
    shades = {phase.name: (phase.start, phase.end) for phase in found.phases}
    assert shades["preparing"] == (0, 100) and shades["finalizing"] == (3500, 3600)
    record["phases"] = [{"name": "running", "start": START, "end": None}]
    record["telemetry"]["t"] = [START - 600 + t for t in range(300)]
    found = picture.chart_set(with_charts(record))
    assert (found.phases, found.start) == ((), START - 600)
    assert found.time is not None and found.time.max == 4200


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        {"t": [START], "gpus": gpu_part(1)["gpus"]},
        {"t": []},
        {"gpus": [{"node": 0, "index": 0}]},
        {"heat": {"labels": [], "columns": 0, "cells": ""}},
        {"gpus": []},
    ],
)
def test_gpu_picture_of_partial_record_is_drawn(change):
    record = gpu_record(1)
    record["gpu"] = {**record["gpu"], **change}
    assert draw(record)["png"]
    record.pop("telemetry")
    assert draw(record)["png"]
