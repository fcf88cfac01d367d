"""The board of a sweep in a saved picture: best value so far, parallel coordinates, the best trials."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from jupyter_amltrain.kernel.chart_axes import number_text
from jupyter_amltrain.output.palette import BEST, BLUE, GRID, INK, RED, SOFT, STATES, STOPPED, TRIALS
from jupyter_amltrain.output.sheet import MARGIN, WIDTH, Sheet, clip, number
from jupyter_amltrain.output.sweep_table import (
    STOPPED_EARLY,
    best_text,
    counts_text,
    goal_text,
    importance_text,
    is_live,
    message_text,
    parameters,
    shown_values,
    trial_states,
    trial_table,
)
from jupyter_amltrain.schema.sweep_board import SweepBoard

#: Maximum trials of the table, parameters with an axis, and categories of an axis.
PICTURE_TRIALS, MAX_AXES, MAX_CATEGORIES = 8, 7, 12

#: CSS pixels: heights of the charts, a line of text, and a row of the table; width of the left chart.
_CHARTS, _LINE, _ROW, _LEFT = 216, 17, 18, 264
#: Place of absent values below an axis, as share of the axis.
_ABSENT = -0.1
#: Powers of ten from which values need a logarithmic axis.
_LOG_SPAN = 2.5
#: Share of the worst values that have one color.
_WORST_SHARE = 0.1

_LOG_EXPRESSION = re.compile(r"\s*q?log(uniform|normal)\b", re.IGNORECASE)
_CHOICE_EXPRESSION = re.compile(r"\s*choice\s*\(", re.IGNORECASE)

Part = tuple[float, Callable[[Sheet, float], None]]


@dataclass(frozen=True)
class ParallelAxis:
    """An axis of the parallel coordinates.

    Attributes
    ----------
    title
        Parameter or metric.
    places
        Height of each trial, from 0 to 1; NaN for an absent value.
    ticks
        Heights and labels.
    """

    title: str
    places: list[float]
    ticks: list[tuple[float, str]]


def sweep_parts(sweep: dict[str, Any]) -> list[Part]:
    """Return the parts of the picture of a board, given as JSON."""
    board = msgspec.convert(sweep, SweepBoard, strict=False)
    lines = [(counts_text(board), INK), (best_text(board), BEST)]
    lines += [(text, SOFT) for text in (goal_text(board), message_text(board), importance_text(board))]
    shown = [(clip(text, 130), color) for text, color in lines if text]
    parts: list[Part] = [(_LINE * len(shown) + 6, functools.partial(_draw_lines, lines=shown))]
    if not board.number:
        return parts
    rows = min(PICTURE_TRIALS, len(board.number))
    parts.append((_CHARTS, functools.partial(_draw_charts, board=board)))
    parts.append((_ROW * (rows + 1) + 10, functools.partial(_draw_table, board=board)))
    return parts


def _draw_lines(sheet: Sheet, top: float, lines: Sequence[tuple[str, str]]) -> None:
    for index, (text, color) in enumerate(lines):
        sheet.text(
            MARGIN,
            top + 8 + index * _LINE,
            text,
            8 if index == 0 else 7.5,
            color,
            weight="bold" if not index else "normal",
        )


def _draw_charts(sheet: Sheet, top: float, board: SweepBoard) -> None:
    names = parameters(board)[:MAX_AXES]
    sheet.text(MARGIN, top + 10, clip(f"{board.metric} by trial", 34), 8, INK)
    if names:
        _draw_best(sheet.axes(48, top + 26, _LEFT - 58, _CHARTS - 56), board)
        _draw_parallel(sheet, top, board, names)
    else:
        _draw_best(sheet.axes(48, top + 26, WIDTH - 62, _CHARTS - 56), board)


def _draw_best(axes: Any, board: SweepBoard) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

    states = trial_states(board)
    sign = 1 if board.goal == "minimize" else -1
    groups: dict[str, tuple[list[int], list[float]]] = {}
    best, steps = math.nan, []
    for at, state in enumerate(states):
        value = number(board.value[at])
        has_failed = state in ("failed", "lost")
        kind = (
            "failed"
            if has_failed
            else "stopped"
            if state in (STOPPED_EARLY, "canceled")
            else "live"
            if is_live(state)
            else "completed"
        )
        if has_failed or not math.isnan(value):
            xs, ys = groups.setdefault(kind, ([], []))
            xs.append(board.number[at])
            ys.append(0.03 if has_failed else value)
        if kind == "completed" and not math.isnan(value) and (math.isnan(best) or sign * value < sign * best):
            best = value
        steps.append(best)
    known = [y for kind, (_, ys) in groups.items() if kind != "failed" for y in ys]
    is_log = _spreads(known)
    if is_log:
        axes.set_yscale("log")
    size = 14 if len(states) <= 150 else 4
    style: dict[str, Any] = {"s": size, "linewidths": 0, "alpha": 0.8 if size > 10 else 0.5}
    for kind, color in (("stopped", STOPPED), ("completed", BLUE), ("live", "#56b4e9")):
        if kind in groups:
            axes.scatter(*groups[kind], color=color, zorder=2, **style)
    if "failed" in groups:
        # At the axis, whatever its scale.
        axes.scatter(*groups["failed"], color=RED, marker="x", s=10, linewidths=1, transform=axes.get_xaxis_transform())
    if not math.isnan(best):
        axes.plot([*board.number, board.number[-1]], [*steps, best], drawstyle="steps-post", color=BEST, linewidth=1.4)
    if board.best is not None and board.value[board.best] is not None:
        point = ([board.number[board.best]], [board.value[board.best]])
        axes.scatter(*point, facecolor="white", edgecolor=BEST, s=34, linewidths=1.6, zorder=3)
    _style(axes)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if not known:
        axes.set_yticks([])
        return
    if not is_log:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        low, high = min(known), max(known)
        air = 0.07 * (high - low) or 0.1 * abs(high) or 1.0
        axes.set_ylim(low - air * (2.2 if "failed" in groups else 1), high + air)
    else:
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))


def _style(axes: Any) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, labelsize=6.5, length=0, pad=4)


def _draw_parallel(sheet: Sheet, top: float, board: SweepBoard, names: Sequence[str]) -> None:
    from matplotlib.collections import LineCollection

    left = _LEFT + 40
    absent = (None,) * len(board.number)
    all_axes = [parameter_axis(name, board.space.get(name, ""), shown_values(board, name) or absent) for name in names]
    values = _metric_values(board)
    all_axes.append(numeric_axis(board.metric, values, _spreads(values)))
    count, size = len(all_axes), len(board.number)
    axes = sheet.axes(left, top + 38, WIDTH - left - 44, _CHARTS - 62)
    axes.set_axis_off()
    axes.set_xlim(0, count - 1)
    axes.set_ylim(-0.12, 1.0)
    levels = trial_levels(values, board.goal)
    order = sorted(range(size), key=lambda at: levels[at])
    heights = [[_ABSENT if math.isnan(axis.places[at]) else axis.places[at] for axis in all_axes] for at in range(size)]
    few = size <= 150
    axes.add_collection(
        LineCollection(
            [list(enumerate(heights[at])) for at in order],
            colors=["#b8bec5" if levels[at] < 0 else TRIALS[levels[at]] for at in order],
            linewidths=1.1 if few else 0.5,
            alpha=0.85 if few else 0.5,
            clip_on=False,
        )
    )
    chars = max(6, round(66 / count))
    rim: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}
    for i, axis in enumerate(all_axes):
        is_last = i == count - 1
        axes.plot([i, i], [0, 1], color=SOFT, linewidth=0.8, clip_on=False)
        side = "left" if is_last else "right"
        shift = (5, 0) if is_last else (-5, 0)
        marks = axis.ticks + ([(_ABSENT, "none")] if any(math.isnan(place) for place in axis.places) else [])
        for height, label in marks:
            axes.annotate(
                clip(label, 10), (i, height), shift, textcoords="offset points", ha=side, va="center", size=6,
                color=INK, bbox=rim, parse_math=False, annotation_clip=False,
            )  # fmt: skip
            axes.plot([i], [height], marker="_", markersize=4, color=SOFT, clip_on=False)
        weight = "bold" if is_last else "normal"
        title = clip(axis.title, chars + 2 * is_last)
        axes.annotate(
            title, (i, 1), (0, 8), textcoords="offset points", ha="center", size=7, color=INK,
            weight=weight, parse_math=False, annotation_clip=False,
        )  # fmt: skip
    _draw_ramp(sheet, top)


def _draw_ramp(sheet: Sheet, top: float) -> None:
    """Draw the key of the colors."""
    sheet.text(WIDTH - MARGIN - 106, top + 10, "worst", 6.5, ha="right")
    for i, color in enumerate(TRIALS):
        sheet.box(WIDTH - MARGIN - 102 + 8 * i, top + 6, 8, 7, color)
    sheet.text(WIDTH - MARGIN - 26, top + 10, "best", 6.5)
    sheet.text(_LEFT + 20, top + 10, "Parameters", 8, INK)


def _draw_table(sheet: Sheet, top: float, board: SweepBoard) -> None:
    table = trial_table(board, PICTURE_TRIALS)
    texts = [[clip(cell, 26) for cell in row] for row in [table.titles, *table.rows]]
    # The last column takes what is left.
    widths = [max(len(row[i]) for row in texts) + 2 for i in range(len(table.titles))]
    scale = (WIDTH - 2 * MARGIN) / max(sum(widths), 110)
    lefts = [MARGIN, *(MARGIN + scale * total for total in itertools.accumulate(widths))]
    for r, row in enumerate(texts):
        middle = top + 10 + r * _ROW
        if r:
            sheet.box(MARGIN, middle - _ROW / 2, WIDTH - 2 * MARGIN, 0.8, GRID)
        is_best = r > 0 and row[2].endswith("(best)")
        for i, text in enumerate(row):
            is_number = i in table.numbers
            x = lefts[i + 1] - 2 * scale if is_number else lefts[i]
            color = SOFT if r == 0 else STATES.get(text, SOFT) if i == 1 else INK
            weight = "bold" if is_best else "normal"
            sheet.text(x, middle, text, 7, color, ha="right" if is_number else "left", weight=weight)


# -- axes


def parameter_axis(name: str, expression: str, values: Sequence[Any]) -> ParallelAxis:
    """Return the axis of a parameter: logarithmic or of categories, by its expression and values."""
    known = [value for value in values if value is not None]
    is_numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
    if is_numeric and not _CHOICE_EXPRESSION.match(expression):
        floats = [number(value) for value in values]
        return numeric_axis(name, floats, bool(_LOG_EXPRESSION.match(expression)) and any(v > 0 for v in floats))
    categories = {json.dumps(value, sort_keys=True): value for value in known}
    if is_numeric:
        keys = sorted(categories, key=lambda key: number(categories[key]))
    else:
        # As they are typed; others by name.
        keys = sorted(categories, key=lambda key: (_position(expression, categories[key]), key))
    places = {key: (i + 0.5) / len(keys) for i, key in enumerate(keys)}
    every = max(1, math.ceil(len(keys) / MAX_CATEGORIES))
    ticks = [(places[key], _label(categories[key])) for key in keys[::every]]
    heights = [math.nan if value is None else places[json.dumps(value, sort_keys=True)] for value in values]
    return ParallelAxis(name, heights, ticks)


def _position(expression: str, value: Any) -> int:
    at = expression.find(repr(value))
    return at if at >= 0 else len(expression)


def _label(value: Any) -> str:
    return number_text(value) if isinstance(value, float) else str(value)


def numeric_axis(title: str, values: Sequence[float], is_log: bool) -> ParallelAxis:
    """Return an axis of numbers; NaN is an absent value."""
    units = [math.log10(v) if is_log and v > 0 else math.nan if is_log else v for v in values]
    known = [unit for unit in units if not math.isnan(unit)]
    if not known:
        return ParallelAxis(title, [math.nan] * len(values), [])
    low, high = min(known), max(known)
    if high <= low:
        half = 0.5 if is_log else abs(low) * 0.1 or 1.0
        low, high = low - half, high + half
    marks = _log_marks(low, high) if is_log else _marks(low, high, all(unit == round(unit) for unit in known))
    ticks = [((mark - low) / (high - low), number_text(10**mark if is_log else mark)) for mark in marks]
    return ParallelAxis(title, [(unit - low) / (high - low) for unit in units], ticks)


def _marks(low: float, high: float, whole: bool) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    found = MaxNLocator(4, steps=[1, 2, 5, 10], integer=whole).tick_values(low, high)
    return [float(mark) for mark in found if low <= mark <= high]


def _log_marks(low: float, high: float) -> list[float]:
    whole = [float(power) for power in range(math.ceil(low), math.floor(high) + 1)]
    if len(whole) > 1:
        return whole[:: math.ceil(len(whole) / 5)]
    powers = range(math.floor(low), math.ceil(high) + 1)
    fine = [power + math.log10(factor) for power in powers for factor in (1, 2, 5)]
    return [mark for mark in fine if low <= mark <= high]


def _metric_values(board: SweepBoard) -> list[float]:
    """Return the value of each trial; NaN for one without a value, or that has failed."""
    states = trial_states(board)
    return [math.nan if states[at] in ("failed", "lost") else number(value) for at, value in enumerate(board.value)]


def _spreads(values: Sequence[float]) -> bool:
    known = [value for value in values if not math.isnan(value)]
    return len(known) > 2 and min(known) > 0 and math.log10(max(known) / min(known)) > _LOG_SPAN


def trial_levels(values: Sequence[float], goal: str) -> list[int]:
    """Return the color of each value in :data:`TRIALS`; -1 for NaN. A few that diverged do not hide the others."""
    is_log = _spreads(values)
    sign = -1 if goal == "minimize" else 1
    units = [sign * (math.log10(v) if is_log and v > 0 else v) for v in values]
    known = sorted(unit for unit in units if not math.isnan(unit))
    if not known:
        return [-1] * len(values)
    worst, best = known[math.floor(_WORST_SHARE * (len(known) - 1))], known[-1]
    share = [1.0 if best <= worst else (unit - worst) / (best - worst) for unit in units]
    return [
        -1 if math.isnan(units[at]) else max(0, min(len(TRIALS) - 1, math.floor(share[at] * len(TRIALS))))
        for at in range(len(units))
    ]
