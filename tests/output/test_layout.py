"""Views of the GPUs' charts: what a layout offers, and what changes when a page chooses one."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.output import layout as gpu_views
from jupyter_amltrain.output.dashboard import Dashboard
from jupyter_amltrain.output.layout import layout_of
from jupyter_amltrain.schema.sweep_board import SweepBoard, TrialCurve
from tests.output.test_feed import entry_of, lines_of

FIGURES = ("sm_activity", "tensor_activity", "pcie_rx", "pcie_tx")


def entry_with(folder: Path, gpus: int, figures: tuple[str, ...] = FIGURES) -> Entry:
    """A run whose GPUs tell these figures: GPU `g` says 10 g + the figure's number."""
    entry = entry_of()
    lines = lines_of(folder, gpus, 30)
    head = {**json.loads(lines[0]), "gpu_figures": list(figures), "gpu_figure_units": ["1"] * len(figures)}
    values = [10 * gpu + number for gpu in range(gpus) for number in range(len(figures))]
    sample = json.dumps({"seq": 0, "figures": values}).encode() + b"\n"
    entry.telemetry.feed(0, b"".join([json.dumps(head).encode() + b"\n", sample, *lines[1:]]))
    return entry


def test_layout_offers_views_of_available_columns(tmp_path: Path) -> None:
    layout = layout_of(entry_with(tmp_path, 2))
    assert layout is not None and layout.activity
    assert [view.name for view in layout.views] == ["use", "activity", "clocks", "transfers"]
    activity = next(view for view in layout.views if view.name == "activity")
    assert [column.name for column in activity.charts] == ["sm_activity", "tensor_activity"]
    assert "gpu1.sm_activity" in layout.columns[0] and "gpu1.tensor_activity" not in layout.columns[0]


def test_layout_of_old_file_offers_basic_views(tmp_path: Path) -> None:
    layout = layout_of(entry_with(tmp_path, 1, ()))
    assert layout is not None and not layout.activity
    assert [view.name for view in layout.views] == ["use", "clocks"]
    assert {column.partition(".")[2] for column in layout.columns[0][2:]} == {"util", "peak", "memory", "power"}


def test_layout_with_unknown_view_uses_first(tmp_path: Path) -> None:
    layout = layout_of(entry_with(tmp_path, 1), view="nothing")
    assert layout is not None and layout.view == gpu_views.USE


@pytest.mark.parametrize("gpus", [2, 64])
@pytest.mark.parametrize("view", ["activity", "clocks", "transfers"])
def test_view_switch_replaces_gpu_charts_and_series(tmp_path: Path, gpus: int, view: str) -> None:
    entry = entry_with(tmp_path, gpus)
    first, chosen = layout_of(entry), layout_of(entry, view=view)
    assert first is not None and chosen is not None
    dashboard = Dashboard(first, ("loss",))
    feed = dashboard.connect("f", entry.telemetry, done=False)
    before = list(dashboard.figures)
    old = dashboard.switch(chosen, dashboard.prepare(chosen), entry.telemetry)
    count = len(next(one for one in chosen.views if one.name == view).charts)
    assert len(dashboard.figures) == count + 3  # the host's two and the metric's stay
    assert (
        dashboard.figures[:1] == before[:1]
        and dashboard.figures[1 + count :] == before[4:]
        and feed.figures == dashboard.figures
    )
    assert set(before[1:4]) <= set(old) and dashboard.x not in old and dashboard.root not in old
    assert feed.layout["nodes"][0]["columns"] == list(chosen.columns[0])
    assert feed.columns[0].names == chosen.columns[0] and not any(map(feed.is_stale, entry.telemetry.nodes()))
    columns = chosen.columns[0]
    for spec in feed.specs:
        if spec["kind"] == "lines" and spec["columns"][0] > 1:
            assert all(columns[k].startswith("gpu") for k in spec["columns"])
    for widget in old:
        widget.close()
    assert all(figure.comm is not None for figure in dashboard.figures)
    dashboard.close()


def test_dashboard_of_sweep_has_one_line_for_each_trial_with_a_curve(tmp_path: Path) -> None:
    layout = layout_of(entry_with(tmp_path, 0))
    assert layout is not None
    dashboard = Dashboard(layout, ("loss",))
    before = len(dashboard.figures)
    board = SweepBoard(metric="loss", goal="minimize", sampler="random", number=(4, 5, 6), early=(1,), best=0)
    dashboard.show_trials(board)
    assert len(dashboard.figures) == before  # no trial has reported yet
    curves = (
        TrialCurve(trial=0, step=(0, 1, 2), value=(3.0, None, 1.0)),
        TrialCurve(trial=1, step=(0, 1), value=(4.0, 5.0)),
        TrialCurve(trial=2, step=(0,), value=(2.0,)),
    )
    dashboard.show_trials(msgspec.structs.replace(board, curves=curves))
    assert len(dashboard.figures) == before + 1 and dashboard.figures[0].title.startswith("loss")
    (lines,) = dashboard.figures[0].marks
    assert lines.labels == ["trial 4", "trial 5", "trial 6"] and len({*lines.colors}) == 3
    assert lines.x[1].tolist() == [0, 1, 1] and lines.y[1].tolist() == [4, 5, 5] and np.isnan(lines.y[0][1])
    assert len(dashboard.grid.children) == len(dashboard.figures) + 1  # the host's strips have a row of their own
    dashboard.close()
