"""Live charts and those of the record have the same order, texts, axes, units, colors and lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.kernel.run_charts import charts_of
from jupyter_amltrain.kernel.run_record import record_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.streams import Metric
from jupyter_amltrain.output.dashboard import Dashboard
from jupyter_amltrain.output.layout import layout_of
from jupyter_amltrain.output.picture import chart_set
from jupyter_amltrain.schema.chart import Chart, values_at
from tests.output.test_feed import entry_of, lines_of

MIB = 2**20


def run_with(folder: Path, gpus: int, activity: bool) -> Entry:
    """A run that has samples and two metrics."""
    entry = entry_of()
    lines = lines_of(folder, gpus, 30)
    if activity:
        head = {**json.loads(lines[0]), "gpu_figures": ["sm_activity"], "gpu_figure_units": ["1"]}
        sample = json.dumps({"seq": 0, "figures": [10.0 * (gpu + 1) for gpu in range(gpus)]}).encode() + b"\n"
        lines = [json.dumps(head).encode() + b"\n", sample, *lines[1:]]
    entry.telemetry.feed(0, b"".join(lines))
    for name in ("loss", "accuracy"):
        metric = entry.metrics.metrics.setdefault(name, Metric())
        for step in range(3):
            metric.append(step, float(step), step + 1.0)
    return entry


def texts(chart: Chart) -> tuple[Any, ...]:
    return chart.key, chart.title, chart.note, chart.whole, chart.height


@pytest.mark.parametrize(("gpus", "activity"), [(0, False), (1, True), (3, False), (8, True), (16, False)])
def test_live_and_recorded_charts_are_equal(tmp_path: Path, gpus: int, activity: bool) -> None:
    entry = run_with(tmp_path, gpus, activity)
    layout = layout_of(entry)
    assert layout is not None
    dashboard = Dashboard(layout, ("loss", "accuracy"))
    live, recorded = [chart.chart for chart in dashboard.charts], record_of(entry).charts.charts
    assert [texts(chart) for chart in live] == [texts(chart) for chart in recorded]
    for chart, other in zip(live, recorded, strict=True):
        factor = MIB if chart.unit == "MiB" else 1
        assert (chart.unit if factor == 1 else "bytes") == other.unit
        assert [level.value * factor for level in chart.levels] == [level.value for level in other.levels]
        if chart.y is not None:  # else both follow the data, by the same rule: tests/golden/axes.json
            assert other.y is not None and chart.y.labels == other.y.labels
            ends = [chart.y.min, chart.y.max, *chart.y.ticks]
            assert [end * factor for end in ends] == pytest.approx([other.y.min, other.y.max, *other.y.ticks])
        if chart.key.startswith("gpu "):
            lines = {(series.label, series.color, series.style) for series in chart.series}
            assert {(series.label, series.color, series.style) for series in other.series} <= lines
    dashboard.close()


@pytest.mark.parametrize("gpus", [0, 2, 16])
def test_charts_of_record_lead_to_its_series(tmp_path: Path, gpus: int) -> None:
    record = record_of(run_with(tmp_path, gpus, False))
    as_json = json.loads(msgspec.json.encode(record))
    assert chart_set(as_json) == record.charts == charts_of(record)
    for chart in record.charts.charts:
        for series in chart.series:
            x, y = values_at(as_json, chart.x), values_at(as_json, series.data)
            assert len(x) == len(y) > 1
        if chart.band:
            assert len(values_at(as_json, chart.band)["high"]) == len(values_at(as_json, chart.x))
    assert len(json.dumps(as_json["charts"])) < 10_000
