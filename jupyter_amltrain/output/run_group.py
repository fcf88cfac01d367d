"""The runs that one cell has submitted, as one table: built from their records, as text and as HTML."""

from __future__ import annotations

import html
import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from jupyter_amltrain.output.palette import BLUE
from jupyter_amltrain.output.run_table import MAX_METRICS, MAX_OUTPUTS, RunTable, varying
from jupyter_amltrain.output.scaling_report import is_scaling, scaling_report
from jupyter_amltrain.schema.group import (
    MAX_CURVE_POINTS,
    MAX_GROUP_RUNS,
    GroupColumn,
    GroupRow,
    RunGroup,
)
from jupyter_amltrain.schema.record import MetricSeries, RunRecord
from jupyter_amltrain.schema.run import RunState
from jupyter_amltrain.text import seconds_text, value_text

#: Words in the name of a metric that say which values are better.
_LESS = r"loss|err|error|rmse|mse|mae|mape|perplexity|ppl|wer|cer|nll|logloss|deviance|fid"
_MORE = r"acc|accuracy|auc|auroc|f1|precision|recall|r2|score|map|iou|dice|bleu|rouge|reward|return|throughput|speed"
_GOALS = tuple(
    (goal, re.compile(rf"(?:^|[^a-z])(?:{words})(?:$|[^a-z])")) for goal, words in (("min", _LESS), ("max", _MORE))
)
#: Size of a curve in the HTML, in pixels.
_CURVE_WIDTH, _CURVE_HEIGHT = 80, 18


def run_group(records: Sequence[RunRecord], handles: Sequence[str] = ()) -> RunGroup:
    """Return the group of runs, in the order of `records`.

    Parameters
    ----------
    handles
        Handles of all runs, if `records` has not all of them.
    """
    shown = records[-MAX_GROUP_RUNS:]
    if shown and is_scaling(shown):
        return _scaling_group(shown, handles)
    params, same = varying([record.params for record in shown])
    results, _ = varying([record.outputs for record in shown], always=True)
    logged = Counter(name for record in shown for name in record.metrics if name not in record.params)
    metrics = [name for name, _ in logged.most_common(MAX_METRICS)]
    results = [name for name in results if name not in metrics][:MAX_OUTPUTS]
    columns = (
        *(GroupColumn(name=name, kind="param") for name in params),
        *(GroupColumn(name=name, kind="metric", goal=goal_of(name)) for name in metrics),
        *(GroupColumn(name=name, kind="result", goal=goal_of(name)) for name in results),
    )
    values = [[_value(record, column) for column in columns] for record in shown]
    best = [_best([row[i] for row in values], column.goal) for i, column in enumerate(columns)]
    curve = next(
        (name for name in metrics if any(record.metrics[name].n > 1 for record in shown if name in record.metrics)), ""
    )
    curves = _curves([record.metrics.get(curve) for record in shown])
    names = Counter(record.name for record in shown)
    rows = tuple(
        _row(
            record,
            record.name if names[record.name] == 1 else record.handle.partition("/")[2],
            values[k],
            tuple(i for i, ks in enumerate(best) if k in ks),
            curves[k],
        )
        for k, record in enumerate(shown)
    )
    return RunGroup(
        handles=tuple(handles) or tuple(record.handle for record in records),
        rows=rows,
        hidden=max(len(handles), len(records)) - len(shown),
        columns=columns,
        same={name: value_text(value) for name, value in same.items()} if len(shown) > 1 else {},
        curve=curve,
        done=all(record.done for record in records),
        seen_at=max((record.seen_at for record in records), default=0.0),
    )


def _scaling_group(records: Sequence[RunRecord], handles: Sequence[str]) -> RunGroup:
    """Return the widths of one measurement: their metrics are those of slices, and no results to compare."""
    report = scaling_report(records)
    by_width = {width.width: width for width in report.widths}
    rows = tuple(
        _row(
            record,
            record.name,
            report.values(width),
            (0,) if width.width == report.best else (),
            (),
        )
        for record in records
        if record.scaling is not None and (width := by_width[record.scaling.slice.width])
    )
    return RunGroup(
        handles=tuple(handles) or tuple(record.handle for record in records),
        rows=rows,
        columns=tuple(GroupColumn(name=title, kind="scaling") for title in report.titles),
        verdict=report.verdict,
        done=all(record.done for record in records),
        seen_at=max(record.seen_at for record in records),
    )


def goal_of(metric: str) -> str:
    """Return ``min`` or ``max`` if the name of a metric says which values are better; else an empty text."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", metric).lower()
    found = {goal for goal, pattern in _GOALS if pattern.search(name)}
    return found.pop() if len(found) == 1 else ""


def _value(record: RunRecord, column: GroupColumn) -> Any:
    if column.kind == "param":
        return record.params.get(column.name)
    if column.kind == "result":
        return record.outputs.get(column.name)
    metric = record.metrics.get(column.name)
    return None if metric is None else metric.last


def _best(values: Sequence[Any], goal: str) -> frozenset[int]:
    """Return the positions of the best value; of none if all are equal or nothing can be compared."""
    numbers = {
        k: value
        for k, value in enumerate(values)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
    if not goal or len(set(numbers.values())) < 2:
        return frozenset()
    best = (min if goal == "min" else max)(numbers.values())
    return frozenset(k for k, value in numbers.items() if value == best)


def _curves(series: Sequence[MetricSeries | None]) -> list[tuple[int, ...]]:
    """Return curves on one common scale, so that their heights can be compared."""
    picked = [() if one is None else _thinned(one.value) for one in series]
    finite = [value for values in picked for value in values if value is not None and math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    if low == high or not math.isfinite(high - low):
        return [()] * len(picked)
    return [
        tuple(-1 if v is None or not math.isfinite(v) else round(100 * (v - low) / (high - low)) for v in values)
        if len(values) > 1
        else ()
        for values in picked
    ]


def _thinned(values: Sequence[float | None]) -> tuple[float | None, ...]:
    if len(values) <= MAX_CURVE_POINTS:
        return tuple(values)
    last = len(values) - 1
    return tuple(values[round(i * last / (MAX_CURVE_POINTS - 1))] for i in range(MAX_CURVE_POINTS))


def _row(
    record: RunRecord, name: str, values: Sequence[Any], best: tuple[int, ...], curve: tuple[int, ...]
) -> GroupRow:
    running = [phase for phase in record.phases if phase.name == "running"]
    ends = [phase.end if phase.end is not None else phase.start + (phase.seconds or 0.0) for phase in record.phases]
    return GroupRow(
        handle=record.handle,
        name=name,
        state=record.state,
        reason=record.reason or "",
        error=(record.error or "").partition("\n")[0],
        reachable=record.reachable,
        cancel_requested=record.cancel_requested,
        created=record.created,
        started=running[0].start if running else None,
        ended=max(ends, default=None) if RunState(record.state).terminal else None,
        values=tuple(value_text(value) for value in values),
        best=best,
        curve=curve,
    )


def group_table(group: RunGroup, now: float | None = None) -> RunTable:
    """Return the table of a group, for readers that cannot draw the group itself."""
    now = time.time() if now is None else now
    before = ["run", "state"]
    titles = [*before, *(column.name for column in group.columns), *([group.curve] if group.curve else []), "ran"]
    rows, drawn = [], {}
    for k, row in enumerate(group.rows):
        texts = [f"{text} (best)" if i in row.best else text for i, text in enumerate(row.values)]
        rows.append([row.handle, _state_text(row), *texts, *([""] if group.curve else []), _ran(row, now)])
        drawn.update({(k, len(before) + i): f"<b>{html.escape(row.values[i])}</b> (best)" for i in row.best})
        if group.curve:
            drawn[k, len(before) + len(group.columns)] = curve_svg(row.curve, f"{group.curve} of {row.name}")
    return RunTable(
        titles=titles,
        rows=rows,
        numbers=frozenset(range(len(before), len(before) + len(group.columns))),
        optional=[],
        same=group.same,
        drawn=drawn,
    )


def group_text(group: RunGroup) -> str:
    """Return the group as text: one line for each run, then the errors."""
    shown = group_table(group)
    if group.curve:
        at = 2 + len(group.columns)
        shown = shown._replace(
            titles=shown.titles[:at] + shown.titles[at + 1 :], rows=[row[:at] + row[at + 1 :] for row in shown.rows]
        )
    return "\n".join([shown.text(), *_lines(group)])


def _lines(group: RunGroup) -> list[str]:
    more = [f"and {group.hidden} earlier"] if group.hidden else []
    return [*more, *(f"{row.handle}: {row.error}" for row in group.rows if row.error), *group.verdict]


def group_html(group: RunGroup) -> str:
    """Return the group as HTML with curves, for front ends without the extension and for exports."""
    return group_table(group).html() + "".join(f"<div>{html.escape(line)}</div>" for line in _lines(group))


def curve_svg(curve: Sequence[int], label: str) -> str:
    """Return a curve as inline SVG; empty for fewer than two points."""
    if len(curve) < 2:
        return ""
    width, height = _CURVE_WIDTH, _CURVE_HEIGHT
    parts: list[list[str]] = [[]]
    for i, value in enumerate(curve):
        if value < 0:
            parts.append([])
        else:
            y = height - 2 - value / 100 * (height - 4)
            parts[-1].append(f"{i * width / (len(curve) - 1):.1f},{y:.1f}")
    lines = "".join(
        f'<polyline points="{" ".join(part)}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>'
        for part in parts
        if part
    )
    return f'<svg width="{width}" height="{height}" role="img" aria-label="{html.escape(label)}">{lines}</svg>'


def _state_text(row: GroupRow) -> str:
    words = f"{row.state}, cancel requested" if row.cancel_requested and row.ended is None else row.state
    return words if row.reachable else f"{words} (target not responding)"


def _ran(row: GroupRow, now: float) -> str:
    if row.started is None:
        return ""
    return seconds_text(max(0.0, (row.ended if row.ended is not None else now) - row.started))
