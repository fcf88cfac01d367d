"""The board of a sweep in a saved picture: best value so far, parallel coordinates, the best trials."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.kernel.chart_axes import metric_axis, step_axis
from jupyter_amltrain.kernel.sweep_axes import places_of
from jupyter_amltrain.kernel.sweep_text import STOPPED_EARLY, importance_text, is_live, message_text, trial_states
from jupyter_amltrain.output.palette import BEST, BLUE, GRID, INK, RED, SOFT, STATES, STOPPED, TRIALS
from jupyter_amltrain.output.sheet import MARGIN, WIDTH, Sheet, clip, number, style_axes
from jupyter_amltrain.output.sweep_table import trial_table
from jupyter_amltrain.schema.sweep_board import SweepBoard, TrialAxis

#: Maximum trials of the table, and parameters with an axis.
PICTURE_TRIALS, MAX_AXES = 8, 7

#: CSS pixels: heights of the charts, a line of text, and a row of the table; width of the left chart.
_CHARTS, _LINE, _ROW, _LEFT = 216, 17, 18, 264
#: Width of a character of a label; maximum characters of the labels of the first axis.
_CHAR, _FIRST_CHARS = 4.3, 18
#: Place of absent values below an axis, as share of the axis.
_ABSENT = -0.1

Part = tuple[float, Callable[[Sheet, float], None]]


def sweep_parts(sweep: dict[str, Any]) -> list[Part]:
    """Return the parts of the picture of a board, given as JSON."""
    board = msgspec.convert(sweep, SweepBoard, strict=False)
    lines = [(board.counts_text, INK), (board.best_text, BEST)]
    lines += [(text, SOFT) for text in (board.goal_text, message_text(board), importance_text(board))]
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
    axes = board.axes[:-1][:MAX_AXES]
    sheet.text(MARGIN, top + 10, clip(f"{board.metric} by trial", 34), 8, INK)
    if axes:
        _draw_best(sheet.axes(48, top + 26, _LEFT - 58, _CHARTS - 56), board)
        _draw_parallel(sheet, top, board, (*axes, board.axes[-1]))
    else:
        _draw_best(sheet.axes(48, top + 26, WIDTH - 62, _CHARTS - 56), board)


def _draw_best(axes: Any, board: SweepBoard) -> None:
    states = trial_states(board)
    sign = 1 if board.goal == "minimize" else -1
    groups: dict[str, tuple[list[int], list[float]]] = {}
    best, steps = math.nan, []
    metric = board.axes[-1]
    is_log = metric.kind == "log"
    units = [math.log10(value) if is_log and value > 0 else value for value in map(number, board.value)]
    # Those that diverged are at the end of the axis.
    units = [unit if math.isnan(unit) else min(metric.high, max(metric.low, unit)) for unit in units]
    for at, state in enumerate(states):
        value = units[at]
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
    if board.best is not None:
        point = ([board.number[board.best]], [units[board.best]])
        axes.scatter(*point, facecolor="white", edgecolor=BEST, s=34, linewidths=1.6, zorder=3)
    style_axes(axes)
    steps_axis = step_axis(min(board.number[0], 1), max(board.number[-1], 2))
    axes.set_xticks(steps_axis.ticks, steps_axis.labels)
    known = [y for kind, (_, ys) in groups.items() if kind != "failed" for y in ys]
    if not known:
        axes.set_yticks([])
        return
    axis = metric_axis(min(known), max(known), is_log)
    room = 0.08 * (axis.max - axis.min) if "failed" in groups else 0.0
    axes.set_ylim(axis.min - room, axis.max)
    axes.set_yticks(axis.ticks, axis.labels)


def _draw_parallel(sheet: Sheet, top: float, board: SweepBoard, all_axes: Sequence[TrialAxis]) -> None:
    from matplotlib.collections import LineCollection

    # Beside the first axis is the other chart.
    longest = max((min(len(label), _FIRST_CHARS) for label in all_axes[0].labels), default=0)
    left = _LEFT + max(40, round(12 + _CHAR * longest))
    places = [places_of(board, axis) for axis in all_axes]
    count, size = len(all_axes), len(board.number)
    axes = sheet.axes(left, top + 38, WIDTH - left - 44, _CHARTS - 62)
    axes.set_axis_off()
    axes.set_xlim(0, count - 1)
    axes.set_ylim(-0.12, 1.0)
    levels = board.levels
    order = sorted(range(size), key=lambda at: levels[at])
    heights = [[_ABSENT if math.isnan(column[at]) else column[at] for column in places] for at in range(size)]
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
        marks = [
            ((tick - axis.low) / (axis.high - axis.low), text)
            for tick, text in zip(axis.ticks, axis.labels, strict=True)
        ]
        marks += [(_ABSENT, "none")] if any(map(math.isnan, places[i])) else []
        for height, label in marks:
            axes.annotate(
                clip(label, 10 if i else _FIRST_CHARS), (i, height), shift, textcoords="offset points", ha=side,
                va="center", size=6, color=INK, bbox=rim, parse_math=False, annotation_clip=False,
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
