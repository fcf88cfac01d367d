"""Entry -> :class:`~jupyter_amltrain.schema.rows.RunRow`: the list entry of a run, cheap to build."""

from __future__ import annotations

import json
import logging
import math
import time
from typing import Any

import msgspec

from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.telemetry import RunTelemetry, grid, on_grid
from jupyter_amltrain.schema.child_run import ChildRun, most_relevant
from jupyter_amltrain.schema.rows import RunRow
from jupyter_amltrain.schema.run import Phase, Run, RunState
from jupyter_amltrain.text import finite_or_text

log = logging.getLogger(__name__)

#: Maximum number of values of a sparkline.
MAX_SPARK_POINTS = 40
#: Maximum parameters of a row, and characters of each value and of a sentence.
MAX_ROW_PARAMS, MAX_VALUE_CHARS, MAX_SENTENCE_CHARS = 12, 40, 300
#: Maximum metrics of a row.
MAX_ROW_METRICS = 20
#: Maximum steps or trials of a row.
MAX_ROW_CHILDREN = 20


class StreamSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a run's streams for its row; see :class:`RunRow`."""

    metric: str = ""
    value: float | str | None = None
    metrics: dict[str, float] = {}
    spark: tuple[int, ...] = ()
    log_bytes: int = 0
    children: tuple[ChildRun, ...] = ()
    children_hidden: int = 0


def row_of(entry: Entry, brief: StreamSummary | None = None) -> RunRow:
    """Return the current row of a run.

    Parameters
    ----------
    brief
        Summary of the streams, for an `entry` that does not hold them.
    """
    run, status = entry.run, entry.run.status
    brief = stream_summary_of(entry) if entry.read else brief or entry.stream_summary
    known, brief = brief is not None, brief or StreamSummary()
    done = status.state.terminal
    phase = status.phases[-1] if status.phases and not done and status.phases[-1].end is None else None
    params = list(run.spec.params.items())[:MAX_ROW_PARAMS]
    return RunRow(
        handle=run.handle,
        name=run.spec.name,
        links=status.links,
        target=run.target,
        experiment=run.experiment,
        state=status.state.value,
        detail=status.detail[:MAX_SENTENCE_CHARS],
        reason=status.reason or "",
        exit_code=status.exit_code,
        error=_cut(run.error or "", MAX_SENTENCE_CHARS),
        created=run.created,
        started=status.started,
        ended=_end(status.phases) if done else None,
        phase=phase.name if phase is not None else "",
        phase_start=phase.start if phase is not None else None,
        cancel_requested=status.cancel_requested,
        reachable=run.reachable,
        gpus=len(status.devices),
        metric=brief.metric,
        value=brief.value,
        metrics=brief.metrics,
        spark=brief.spark,
        verdict=status.truth.get("verdict", ""),
        attention=attention(run),
        log_bytes=brief.log_bytes,
        children=brief.children,
        children_hidden=brief.children_hidden,
        parent=run.parent,
        attempt=status.attempt,
        known=known,
        again=entry.kind == "run" and bool(run.spec.script or run.spec.script_name),
        tracking=run.tracking_state,
        params={name[:MAX_VALUE_CHARS]: _short(value) for name, value in params},
    )


def attention(run: Run) -> str:
    """Return one sentence about a problem that needs attention; empty without one."""
    status = run.status
    if status.state in (RunState.FAILED, RunState.LOST):
        message = run.error or status.detail or f"{run.handle} {status.state.value}."
        return _cut(message.splitlines()[0] if message else "", MAX_SENTENCE_CHARS)
    if not status.state.terminal and not run.reachable:
        seen = time.strftime(" since %H:%M:%S", time.localtime(run.seen_at)) if run.seen_at else ""
        return f"Target {run.target!r} is not responding{seen}. The values shown may be out of date."
    if status.truth.get("verdict") == "not used":
        detail = status.truth.get("detail", "")
        return _cut(
            f"The GPUs are not used: {detail}" if detail else "The GPUs are not used.",
            MAX_SENTENCE_CHARS,
        )
    return ""


def stream_summary_of(entry: Entry) -> StreamSummary:
    """Summarize the streams that were read so far."""
    name, value, newest = "", None, -math.inf
    for metric, points in entry.metrics.metrics.items():
        if len(points.values) and points.times[-1] >= newest:  # of one log call the metric that was logged last
            name, value, newest = metric, points.last, points.times[-1]
    children = most_relevant(entry.children.runs, MAX_ROW_CHILDREN)
    return StreamSummary(
        metric=name[:250],
        value=None if value is None else finite_or_text(value),
        metrics=_last_values(entry),
        spark=_spark(entry) or _metric_spark(entry, name),
        log_bytes=entry.log.bytes,
        children=children,
        children_hidden=entry.children.hidden + len(entry.children.runs) - len(children),
    )


def _last_values(entry: Entry) -> dict[str, float]:
    """Return the last value of each metric, of at most :data:`MAX_ROW_METRICS`."""
    metrics: dict[str, float] = {}
    for name, points in entry.metrics.metrics.items():
        if points.last is not None and math.isfinite(points.last):
            metrics[name[:250]] = points.last
            if len(metrics) == MAX_ROW_METRICS:
                break
    return metrics


def _metric_spark(entry: Entry, name: str) -> tuple[int, ...]:
    """Return a metric from its minimum to its maximum as a sparkline; empty for fewer than two different values."""
    points = entry.metrics.metrics.get(name)
    count = len(points.values) if points is not None else 0
    if points is None or count < 2:
        return ()
    shown = min(count, MAX_SPARK_POINTS)
    values = [float(points.values[round(i * (count - 1) / (shown - 1))]) for i in range(shown)]
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    if low == high or not math.isfinite(high - low):
        return ()
    return tuple(round(100 * (value - low) / (high - low)) if math.isfinite(value) else -1 for value in values)


def _spark(entry: Entry) -> tuple[int, ...]:
    """Return the sparkline, recomputed when the run has grown by a visible part."""
    nodes = list(entry.telemetry.nodes())
    ticks = sum(node.ticks for node in nodes)
    # Of 128 nodes a sparkline takes 30 ms: it waits for five new ticks of each.
    least = 5 * len(nodes) if len(nodes) > 1 else 1
    drawn_ticks, was_done, spark = entry.spark
    done = entry.run.status.state.terminal
    if (
        ticks < drawn_ticks
        or ticks >= drawn_ticks + max(least, drawn_ticks // (2 * MAX_SPARK_POINTS))
        or (done and not was_done)
    ):
        try:
            spark = spark_of(entry.telemetry)
        except Exception:  # a job can write anything into its files; other runs must still be listed
            log.warning("cannot draw the sparkline of %s", entry.run.handle, exc_info=True)
            spark = ()
        entry.spark = (ticks, done, spark)
    return spark


def spark_of(telemetry: RunTelemetry) -> tuple[int, ...]:
    """Mean utilization of all GPUs in at most :data:`MAX_SPARK_POINTS` intervals; -1 for a gap."""
    nodes = [node for node in telemetry.nodes() if node.gpus]
    if not nodes:
        return ()
    import numpy as np

    begins = grid(nodes, MAX_SPARK_POINTS)
    parts = []
    for node in nodes:
        columns = [node.index.get(f"gpu{gpu.get('index', i)}.util", -1) for i, gpu in enumerate(node.gpus)]
        parts.append(on_grid(node, begins, [column for column in columns if column >= 0])[1])
    table = np.concatenate(parts, axis=0)
    known = ~np.isnan(table)
    count = known.sum(axis=0)
    total = np.where(known, table, 0).sum(axis=0)
    means = np.where(count > 0, np.clip(np.rint(total / np.maximum(count, 1)), 0, 100), -1)
    return tuple(int(mean) for mean in means)


def _end(phases: tuple[Phase, ...]) -> float | None:
    ends = [phase.end if phase.end is not None else phase.start + (phase.seconds or 0.0) for phase in phases]
    return max(ends, default=None)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return _cut(value if isinstance(value, str) else json.dumps(value, default=str), MAX_VALUE_CHARS)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
