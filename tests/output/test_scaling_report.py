"""Whether more processes pay: the verdict over the figures of each width."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.output.run_group import group_html, group_text, run_group
from jupyter_amltrain.output.scaling_report import ScalingReport, is_scaling, scaling_report
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.scaling import Measurement, ScalingSlice


def record(width: int, rate: float | None, state: str = "completed", **more: Any) -> RunRecord:
    fields = {"group": "g", "unit": "processes", "seconds": 60.0, "price": None, "currency": ""}
    own = {name: more.pop(name) for name in list(more) if name in fields}
    measured = ScalingSlice(width=width, widths=(1, 2, 4), start_s=600.0, **{**fields, **own})
    figures = {"counted": "samples", "metric": "samples_per_second", "points": 50, "problem": "", "error": 0.01}
    if rate is None and "problem" not in more:
        figures = {}
    return RunRecord(
        handle=f"local/t-x{width}",
        run_id=f"t-x{width}",
        name=f"t-x{width}",
        target="local",
        experiment="e",
        state=state,
        done=state not in ("running", "preparing"),
        scaling=Measurement(slice=measured, rate=rate, **{**figures, **more}),
    )


def report(*rates: float, **more: Any) -> ScalingReport:
    return scaling_report([record(2**k, rate, **more) for k, rate in enumerate(rates)])


@pytest.mark.parametrize(
    ("rates", "best", "words"),
    [
        ((100, 180), 2, ["1.8 times", "90 %", "worth it", "--processes 2"]),
        ((100, 180, 210), 2, ["52 %", "only if time", "85 % of the further 2", "--processes 2"]),
        ((100, 180, 340), 4, ["--processes 4"]),
        ((100, 180, 120), 2, ["30 %", "does not pay", "100 % of the further 2"]),
        ((100, 101), 1, ["no faster", "do not distribute", "Stay with 1 process"]),
        ((100, 60), 1, ["0.6 times", "Stay with 1 process"]),
        ((100, 130, 300), 4, ["65 %", "75 %", "--processes 4"]),
        ((100, 139), 1, ["70 %", "only if time"]),
        ((100, 140), 2, ["worth it"]),
    ],
)
def test_verdict_of_figures(rates: tuple[float, ...], best: int, words: list[str]) -> None:
    found = report(*rates)
    text = " ".join(found.verdict)
    assert found.best == best and all(word in text for word in words), text


def test_gain_within_noise_is_none() -> None:
    assert report(100, 108, error=0.05).best == 1 and "no faster" in " ".join(report(100, 108, error=0.05).verdict)
    assert "no faster" not in " ".join(report(100, 108, error=0.001).verdict)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"problem": "none"}, "samples_per_second"),
        ({"problem": "few", "points": 1}, "--scaling-time 300s"),
        ({"problem": "noisy", "error": 0.4}, "40 %"),
        ({"problem": "ranks"}, "rank 0"),
    ],
)
def test_width_with_problem_cannot_be_told(more: dict[str, Any], word: str) -> None:
    found = scaling_report([record(1, 100), record(2, 150, **more)])
    assert found.best is None and len(found.verdict) == 1
    assert found.verdict[0].startswith("Cannot tell") and word in found.verdict[0]


@pytest.mark.parametrize(("rate", "error", "is_told"), [(54, 0.11, True), (90, 0.11, False), (54, 0.6, False)])
def test_noise_that_cannot_make_a_gain_is_no_problem(rate: float, error: float, is_told: bool) -> None:
    slow = {"error": error, "problem": "noisy"}
    for noisy in ([record(1, 100), record(2, rate, **slow)], [record(1, 100, **slow), record(2, rate)]):
        found = scaling_report(noisy)
        assert (found.best == 1) is is_told
        assert ("do not distribute" if is_told else "Cannot tell") in found.verdict[0]


@pytest.mark.parametrize(("rates", "is_told"), [((10, 10), False), ((10, 7), False), ((10, 19), True)])
def test_steps_compare_only_if_they_are_faster(rates: tuple[float, ...], is_told: bool) -> None:
    found = report(*rates, counted="steps", metric="loss")
    assert (found.best is not None) is is_told
    assert "samples_per_second" in " ".join(found.verdict)  # the condition, or what to log


def test_widths_that_count_different_things_cannot_be_told() -> None:
    found = scaling_report([record(1, 100), record(2, 10, counted="steps")])
    assert found.best is None and "samples" in found.verdict[0] and "steps" in found.verdict[0]


def test_failed_width_ends_measurement_in_one_line() -> None:
    found = scaling_report([record(1, 100), record(2, None, "failed"), record(4, None, "canceled")])
    assert found.best is None and len(found.verdict) == 1
    assert "2 processes failed" in found.verdict[0] and "4 was not measured" in found.verdict[0]


def test_no_metric_is_the_only_sentence_although_others_are_canceled() -> None:
    found = scaling_report([record(1, None), record(2, None, "canceled"), record(4, None, "canceled")])
    assert len(found.verdict) == 1 and "Cannot tell" in found.verdict[0]


def test_canceled_run_counts_if_its_slice_was_whole() -> None:
    assert scaling_report([record(1, 100), record(2, 190, "canceled", whole=True)]).best == 2
    assert scaling_report([record(1, 100), record(2, 190, "canceled")]).best is None


def test_running_measurement_has_no_advice_yet() -> None:
    found = scaling_report([record(1, 100), record(2, 190), record(4, 300, "running")])
    assert found.best is None and len(found.verdict) == 1 and found.widths[2].speedup is None
    assert scaling_report([record(1, 100, "running"), record(2, None, "preparing")]).verdict == ()


def test_cost_of_samples_follows_from_price_of_machines() -> None:
    found = scaling_report([
        record(1, 100, price=3.6, currency="USD", unit="nodes"),
        record(2, 100, price=7.2, currency="USD", unit="nodes"),
    ])  # fmt: skip
    assert found.titles[-1] == "USD per 1,000 samples"
    assert [found.values(width)[-1] for width in found.widths] == ["0.01", "0.02"]
    assert "--nodes" not in " ".join(found.verdict) and "Stay with 1 node." in found.verdict


def test_group_of_widths_has_their_columns_and_verdict_in_text_and_html() -> None:
    records = [record(1, 100), record(2, 180)]
    assert is_scaling(records) and not is_scaling([records[0], record(2, 180, group="other")])
    group = run_group(records)
    assert [column.kind for column in group.columns] == ["scaling"] * 4
    assert [row.values for row in group.rows] == [("1", "100", "1.0", "100 %"), ("2", "180", "1.8", "90 %")]
    for text in (group_text(group), group_html(group)):
        assert "2 (best)" in text or "<b>2</b> (best)" in text
        assert "efficiency" in text and "Use --processes 2." in text
