"""Runs of one cell as one table."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.output.run_group import curve_svg, goal_of, group_html, group_text, run_group
from jupyter_amltrain.schema.group import MAX_GROUP_RUNS
from jupyter_amltrain.schema.record import MetricSeries, RunRecord
from jupyter_amltrain.schema.run import Phase


def series(*values: float | None) -> MetricSeries:
    return MetricSeries(step=tuple(range(len(values))), value=values, last=values[-1], n=len(values))


def record(name: str, state: str = "completed", **more: Any) -> RunRecord:
    phases = (Phase(name="running", start=1000.0, end=1012.0, seconds=12.0),)
    fields = {"name": "train", "target": "local", "experiment": "e", "phases": phases, "done": True} | more
    return RunRecord(handle=f"local/{name}", run_id=name, state=state, **fields)


ONE = record("one", params={"lr": 0.1, "epochs": 3}, metrics={"loss": series(1.0, 0.5), "note": series(1.0)})
TWO = record(
    "two", params={"lr": 0.01, "epochs": 3}, metrics={"loss": series(0.75, None, 0.25)}, outputs={"accuracy": 0.9}
)


@pytest.mark.parametrize(
    ("name", "goal"),
    [
        ("loss", "min"), ("val_loss", "min"), ("trainLoss", "min"), ("eval/accuracy", "max"), ("F1", "max"),
        ("lr", ""), ("epoch", ""), ("glossary", ""), ("accuracy_loss", ""),
    ],
)  # fmt: skip
def test_goal_is_read_from_name_of_metric(name: str, goal: str) -> None:
    assert goal_of(name) == goal


def test_group_has_differing_parameters_metrics_and_best() -> None:
    group = run_group([ONE, TWO])
    assert [(c.name, c.kind, c.goal) for c in group.columns] == [
        ("lr", "param", ""), ("loss", "metric", "min"), ("note", "metric", ""), ("accuracy", "result", "max")
    ]  # fmt: skip
    assert group.same == {"epochs": "3"} and group.done and group.curve == "loss"
    one, two = group.rows
    assert (one.values, two.values) == (("0.1", "0.5", "1", ""), ("0.01", "0.25", "", "0.9"))
    assert one.best == () and two.best == (1,)  # one accuracy alone is not the best of several
    assert (one.curve, two.curve) == ((100, 33), (67, -1, 0))  # one scale for all curves, a gap for NaN
    assert (one.name, one.started, one.ended) == ("one", 1000.0, 1012.0)  # both are named "train"


def test_group_marks_no_best_among_equal_values() -> None:
    rows = run_group([ONE, record("same", metrics=ONE.metrics)]).rows
    assert all(row.best == () for row in rows)


def test_group_of_live_run_is_not_done() -> None:
    live = record("live", "running", done=False, phases=(Phase(name="running", start=1000.0),))
    group = run_group([ONE, live])
    assert not group.done and group.rows[1].ended is None


def test_group_of_many_runs_is_bounded() -> None:
    records = [record(f"r{i}") for i in range(MAX_GROUP_RUNS + 5)]
    group = run_group(records)
    assert len(group.rows) == MAX_GROUP_RUNS and group.hidden == 5 and len(group.handles) == MAX_GROUP_RUNS + 5
    assert group.rows[-1].handle == records[-1].handle and "5 earlier" in group_text(group)


def test_group_text_and_html_show_best_curve_and_error() -> None:
    failed = record("three", "failed", error="Raised ValueError: <b>no</b> in line 3 of the cell.")
    group = run_group([ONE, TWO, failed])
    text, page = group_text(group), group_html(group)
    assert "0.25 (best)" in text and "Raised ValueError" in text and "epochs" in text
    assert page.count("<polyline") == 3 and "<b>no</b>" not in page and "&lt;b&gt;no" in page
    assert 'aria-label="loss of two"' in page


def test_curve_of_one_value_is_empty() -> None:
    assert curve_svg([50], "loss") == ""
