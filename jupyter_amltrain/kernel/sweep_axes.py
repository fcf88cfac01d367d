"""Axes and colors of the trials of a sweep."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.kernel.chart_axes import metric_axis, number_text, round_ticks
from jupyter_amltrain.kernel.sweep_text import parameters, trial_states
from jupyter_amltrain.schema.expression_parser import parse_expression
from jupyter_amltrain.schema.expressions import Choice, options_of
from jupyter_amltrain.schema.sweep_board import SweepBoard, TrialAxis
from jupyter_amltrain.text import shorten

#: Colors from the worst to the best value, see ``palette.TRIALS``.
LEVELS = 9
#: Powers of ten from which values need a logarithmic axis.
_LOG_SPAN = 2.5
#: Share of the worst values that have one color: a few that diverged must not hide the differences of the others.
_WORST_SHARE = 0.1
#: They have diverged if they are that many times further away than all others from each other.
_DIVERGED = 10.0
#: Maximum categories of an axis that have a label; maximum ticks of another axis; maximum characters of a label.
_MAX_CATEGORIES, _MAX_TICKS, _MAX_LABEL_CHARS = 12, 5, 40

_LOG_EXPRESSION = re.compile(r"\s*q?log(uniform|normal)\b", re.IGNORECASE)


def axes_of(board: SweepBoard) -> tuple[TrialAxis, ...]:
    """Return the axes of the parameters by importance, then that of the metric."""
    axes = [parameter_axis(name, board.space.get(name, ""), known_values(board, name)) for name in parameters(board)]
    values = _without_diverged([value for value in metric_values(board) if value is not None], board.goal)
    return (*axes, numeric_axis("", board.metric, values, is_log=spreads(values)))


def known_values(board: SweepBoard, name: str) -> list[Any]:
    """Return the values of a parameter, of the trials that have it."""
    nulls = set(board.nulls.get(name, ()))
    return [value for at, value in enumerate(board.params.get(name, ())) if value is not None or at in nulls]


def metric_values(board: SweepBoard) -> list[float | None]:
    """Return the value of each trial; ``None`` for one that has failed."""
    states = trial_states(board)
    return [None if states[at] in ("failed", "lost") else value for at, value in enumerate(board.value)]


def _without_diverged(values: Sequence[float], goal: str) -> list[float]:
    """Return values without the few worst that would hide the differences of the others."""
    ranked = sorted(values, reverse=goal != "minimize")  # the best first
    others = ranked[: len(ranked) - max(1, math.floor(_WORST_SHARE * len(ranked)))]
    if len(others) < 4:
        return ranked
    span = abs(others[-1] - others[0])
    return [value for value in ranked if span == 0 or abs(value - others[0]) <= _DIVERGED * span]


def spreads(values: Sequence[float]) -> bool:
    """Whether a linear axis would hide most of the values."""
    return len(values) > 2 and min(values) > 0 and math.log10(max(values) / min(values)) > _LOG_SPAN


def parameter_axis(name: str, expression: str, values: Sequence[Any]) -> TrialAxis:
    """Return the axis of a parameter, by its expression and the values of the trials."""
    options = _options(name, expression)
    is_numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if is_numeric and options is None:
        # Of a job with trials of its own the space is not known.
        is_log = spreads(values) if not expression else bool(_LOG_EXPRESSION.match(expression))
        is_log = is_log and any(value > 0 for value in values)
        return numeric_axis(name, name, values, is_log=is_log)
    keys = {key_of(value) for value in values}
    options = options or []
    if values and not any(key_of(option) in keys for option in options):
        options = []  # a choice between configurations, of which the parameter is a part
    categories = list({key_of(value): value for value in [*options, *values]}.values())
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in categories):
        categories.sort()
    every = max(1, math.ceil(len(categories) / _MAX_CATEGORIES))
    ticks = range(0, len(categories), every)
    return TrialAxis(
        name=name,
        title=name,
        kind="category",
        low=-0.5,
        high=max(0, len(categories) - 1) + 0.5,
        ticks=tuple(map(float, ticks)),
        labels=tuple(_label(categories[at]) for at in ticks),
        categories=tuple(categories),
    )


def key_of(value: Any) -> str:
    """Return the key of a category."""
    return json.dumps(value, sort_keys=True)


def _options(name: str, expression: str) -> list[Any] | None:
    """Return the options of a choice; ``None`` for another expression."""
    try:
        parsed = parse_expression(name, expression) if expression else None
    except AmlTrainError:
        return None  # of a service, whose expressions are not ours
    return [o for o in options_of(parsed) if not isinstance(o, dict)] if isinstance(parsed, Choice) else None


def _label(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return shorten(value if isinstance(value, str) else json.dumps(value), _MAX_LABEL_CHARS)
    return number_text(value)


def numeric_axis(name: str, title: str, values: Sequence[float], *, is_log: bool) -> TrialAxis:
    """Return an axis of numbers, with round ticks inside."""
    units = [math.log10(value) for value in values if value > 0] if is_log else values
    if not units:
        return TrialAxis(name=name, title=title)
    low, high = min(units), max(units)
    half = 0.0 if high > low else 0.5 if is_log else abs(low) * 0.1 or 1.0
    low, high = low - half, high + half
    if not is_log and all(value == math.floor(value) for value in values):
        ticks = round_ticks(low, high, _MAX_TICKS, whole=True)
        marks = [(tick, number_text(tick)) for tick in ticks]
    else:
        axis = metric_axis(low, high, is_log)
        marks = [mark for mark in zip(axis.ticks, axis.labels, strict=True) if low <= mark[0] <= high]
    kind = "log" if is_log else "linear"
    ticks_in, labels = tuple(tick for tick, _ in marks), tuple(label for _, label in marks)
    return TrialAxis(name=name, title=title, kind=kind, low=low, high=high, ticks=ticks_in, labels=labels)


def places_of(board: SweepBoard, axis: TrialAxis) -> list[float]:
    """Return the height of each trial on an axis, from 0 to 1; NaN where the axis has no place for it.

    A value beyond an end is at it.
    """
    values: Sequence[Any] = metric_values(board)
    is_absent = [value is None for value in values]
    if axis.name:
        values, nulls = board.params.get(axis.name, (None,) * len(board.number)), board.nulls.get(axis.name, ())
        is_absent = [value is None and at not in nulls for at, value in enumerate(values)]
    positions = {key_of(category): at for at, category in enumerate(axis.categories)}
    return [
        math.nan if absent else _inside((_unit(axis, positions, value) - axis.low) / (axis.high - axis.low))
        for value, absent in zip(values, is_absent, strict=True)
    ]


def _inside(share: float) -> float:
    return share if math.isnan(share) else min(1.0, max(0.0, share))


def _unit(axis: TrialAxis, positions: Mapping[str, int], value: Any) -> float:
    if axis.kind == "category":
        return positions.get(key_of(value), math.nan)
    if axis.kind == "linear":
        return float(value)
    return math.log10(value) if value > 0 else math.nan


def trial_levels(values: Sequence[float | None], goal: str) -> tuple[int, ...]:
    """Return the color of each value; -1 without a value."""
    known = [value for value in values if value is not None]
    is_log = spreads(known)
    sign = -1 if goal == "minimize" else 1
    units = [value and sign * (math.log10(value) if is_log else value) for value in values]
    ranked = sorted(unit for unit in units if unit is not None)
    if not ranked:
        return (-1,) * len(values)
    worst, best = ranked[math.floor(_WORST_SHARE * (len(ranked) - 1))], ranked[-1]

    def level(unit: float | None) -> int:
        if unit is None:
            return -1
        share = 1.0 if best <= worst else (unit - worst) / (best - worst)
        return max(0, min(LEVELS - 1, math.floor(share * LEVELS)))

    return tuple(map(level, units))
