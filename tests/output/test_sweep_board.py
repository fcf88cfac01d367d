"""The board of a sweep as text, as HTML and as a saved picture."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import msgspec
import pytest
from PIL import Image

from jupyter_amltrain.kernel.sweep_axes import numeric_axis, parameter_axis, places_of, trial_levels
from jupyter_amltrain.kernel.sweep_board import drawn
from jupyter_amltrain.kernel.sweep_text import best_text, counts_text
from jupyter_amltrain.output import picture
from jupyter_amltrain.output.mime import bundle_of
from jupyter_amltrain.output.palette import TRIALS
from jupyter_amltrain.output.run_html import alt_text, run_html
from jupyter_amltrain.output.sweep_table import best_first, sweep_lines, trial_table
from jupyter_amltrain.output.text_view import record_text
from jupyter_amltrain.schema.record import LogTail
from jupyter_amltrain.schema.sweep_board import SweepBoard

from .sweep_records import board, ended, sweep_record

SMALL: dict[str, Any] = {
    "metric": "loss",
    "goal": "minimize",
    "sampler": "random",
    "space": {"lr": "loguniform(-9, -2)", "layers": "choice(1, 2)"},
    "max_trials": 40,
    "number": (1, 2, 3, 4),
    "state": ("completed", "canceled", "failed", "running"),
    "value": (0.5, 0.25, None, 0.75),
    "seconds": (3.0, 2.0, None, 1.0),
    "handle": ("", "", "", ""),
    "params": {"lr": (0.1, 0.01, 0.2, 0.3), "layers": (1, 2, None, 2)},
    "early": (1,),
    "reason": {"1": "below the median", "2": "out of <memory>"},
    "best": 0,
}


def small(**changes: Any) -> SweepBoard:
    return drawn(SweepBoard(**{**SMALL, **changes}))


def test_summary_counts_states_and_names_best() -> None:
    assert counts_text(small()) == "3 of 40 trials, 1 running, 1 stopped early, 1 failed"
    assert counts_text(small(hidden=6, max_trials=None)).startswith("10 trials")
    assert best_text(small()) == "best loss 0.5 (trial 1: lr 0.1, layers 1)"
    assert best_text(small(best=None)) == ""


def test_trials_are_ordered_by_goal_without_value_last() -> None:
    assert best_first(small(), 10) == [1, 0, 3, 2]
    assert best_first(small(goal="maximize"), 2) == [3, 0]


def test_text_shows_best_trials_and_counts_others() -> None:
    text = record_text(sweep_record())
    rows = [line for line in text.splitlines() if re.match(r"\d+ +(completed|running|failed|stopped)", line)]
    assert len(rows) == 10 and "(best)" in rows[0]
    assert "and 30 more trials" in text and "importance: lr 61 %" in text
    assert "val_accuracy 0.9  " not in text, "the driver's own metrics"


def test_text_is_bounded_for_long_values() -> None:
    names = [f"parameter-{i}-" + "x" * 200 for i in range(40)]
    long = small(
        space=dict.fromkeys(names, "choice('a')"),
        params=dict.fromkeys(names, ("v" * 500,) * 4),
        reason={"2": "r" * 5000},
        message="m" * 9000,
    )
    lines = sweep_lines(long)
    assert max(map(len, lines)) < 2500 and "35 more parameters" in lines[-1]
    assert len(sweep_lines(board(1000))) < 20


def test_text_of_new_sweep_has_no_table() -> None:
    empty = SweepBoard(metric="loss", goal="minimize", sampler="grid", message="Waiting for a slot.")
    assert sweep_lines(empty) == ["0 trials", "minimize loss, sampling: grid, 1 at a time", "Waiting for a slot."]


def test_null_is_shown_and_absent_parameter_is_empty() -> None:
    found = small(params={"m": (None, 0.5, None, None)}, space={"m": "choice(0.5, null)"}, nulls={"m": (0,)})
    assert best_text(found).endswith("m null)")
    rows = {row[0]: row[3] for row in trial_table(found).rows}
    assert rows == {"1": "null", "2": "0.5", "3": "", "4": ""}
    axis = found.axes[0]
    assert (axis.categories, axis.labels) == ((0.5, None), ("0.5", "null"))
    assert [math.isnan(place) for place in places_of(found, axis)] == [False, False, True, True]


@pytest.mark.parametrize(("goal", "far"), [("maximize", -4e19), ("minimize", 4e19)])
def test_trial_that_diverged_is_at_the_end_of_the_axis(goal: str, far: float) -> None:
    values = (0.2, 0.4, 0.3, far, 0.46, 0.35)
    found = small(goal=goal, number=tuple(range(6)), value=values, state=("completed",) * 6, seconds=(1.0,) * 6,
                  handle=("",) * 6, params={}, space={}, early=(), reason={}, best=4)  # fmt: skip
    metric = found.axes[-1]
    assert 0 < metric.low < metric.high < 1 and all(0 < tick < 1 for tick in metric.ticks)
    places = places_of(found, metric)
    assert places[3] == (goal == "minimize") and places[0] == pytest.approx(0) and places[4] == pytest.approx(1)


def test_best_trial_far_from_the_others_stays_on_the_axis() -> None:
    values = (5.0, 4.0, 6.0, 5.5, 0.001, 4.5)
    found = small(goal="minimize", number=tuple(range(6)), value=values, state=("completed",) * 6, seconds=(1.0,) * 6,
                  handle=("",) * 6, params={}, space={}, early=(), reason={}, best=4)  # fmt: skip
    places = places_of(found, found.axes[-1])
    assert sorted(places)[0] == places[4] == pytest.approx(0) and max(places) == pytest.approx(1)


def test_html_has_table_without_script() -> None:
    run = sweep_record(small(metric="<b>loss"), state="completed", done=True, log=LogTail(tail="started it\n", bytes=8))
    page = run_html(run, None)
    assert page.count("<tr>") == 5 and "out of &lt;memory&gt;" in page and "&lt;b&gt;loss" in page
    assert "<b>0.5</b> (best)" in page and "started it" not in page
    assert "started it" in run_html(msgspec.structs.replace(run, state="failed"), None)
    assert "sweep" in alt_text(run) and "text/html" in bundle_of(run)[0]


def size(record: Any) -> tuple[tuple[int, int], int]:
    png = picture.draw(msgspec.to_builtins(record))["png"]
    return Image.open(io.BytesIO(png)).size, len(png)


@pytest.mark.thorough
@pytest.mark.parametrize("trials", [1, 40, 1000])
def test_picture_of_sweep_is_small(trials: int) -> None:
    (width, height), count = size(ended(trials))
    assert width >= picture.WIDTH and height > 300 and count < 160_000


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [
        {"number": (), "state": (), "value": (), "seconds": (), "params": {}, "early": (), "reason": {}, "best": None},
        {"value": (None,) * 4, "best": None},
        {"value": (1e-9, 1e9, 1.0, None)},
        {"params": {}, "space": {}},
        {"params": {"lr": (0.0, -1.0, None, None), "layers": ([1, 2], {"a": 1}, "$x$", True)}},
        {"params": {f"p{i}": (1, 2, 3, 4) for i in range(30)}, "message": "$\\frac" * 99, "metric": "m" * 200},
    ],
)
def test_picture_of_unusual_board_is_drawn(changes: dict[str, Any]) -> None:
    assert size(sweep_record(small(**changes)))[0][0] >= picture.WIDTH


def test_parameter_axis_follows_expression() -> None:
    log = parameter_axis("lr", "loguniform(-9, -2)", (0.001, 0.1, 0.01))
    assert (log.kind, log.low, log.high) == ("log", -3, -1)
    assert log.labels == ("0.001", "0.01", "0.1")
    assert parameter_axis("n", "choice(8, 64, 16)", (64, 8)).categories == (8, 16, 64)  # one was not tried yet
    words = parameter_axis("o", "choice('sgd', 'adam')", ("adam",))
    assert (words.labels, words.low, words.high) == (("sgd", "adam"), -0.5, 1.5)
    assert parameter_axis("flag", "", (True, False)).categories == (True, False)
    assert parameter_axis("part", "choice({'a': 1}, {'a': 2})", (2, 1)).categories == (1, 2)
    assert parameter_axis("other", "sequence(1)", (1.5, 2.5)).kind == "linear"
    constant = numeric_axis("x", "x", (2.0, 2.0), is_log=False)
    assert constant.low < 2 < constant.high


def test_places_are_heights_of_the_values() -> None:
    found = small()
    lr, layers, metric = found.axes
    assert places_of(found, lr) == pytest.approx([0.677, 0, 0.881, 1], abs=1e-3)
    assert [math.isnan(place) for place in places_of(found, layers)] == [False, False, True, False]
    assert places_of(found, metric)[:2] == pytest.approx([0.5, 0])


def test_trial_levels_follow_goal_and_ignore_outliers() -> None:
    last = len(TRIALS) - 1
    assert trial_levels([0.0, 1.0, None], "maximize") == (0, last, -1)
    assert trial_levels([0.0, 1.0], "minimize") == (last, 0)
    values = [-1e6, *(0.1 * i for i in range(20))]
    assert len(set(trial_levels(values, "maximize"))) == len(TRIALS)
    assert drawn(small()).levels[2] == -1
