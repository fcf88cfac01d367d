"""Entry -> :class:`~jupyter_amltrain.spec.record.RunRecord`, always under 200 kB."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from jupyter_amltrain.naming import tilde
from jupyter_amltrain.runs.series import Metric, TelemetryLog
from jupyter_amltrain.runs.store import Entry
from jupyter_amltrain.spec.record import LogTail, MetricSeries, RunRecord, TelemetrySeries

#: Metrics drawn in an output; the others are in MLflow.
METRICS = 12
# Bounds that keep a record under 200 kB whatever a script does: characters of one value,
# bytes of all parameters (outputs, tags), characters of a metric's name and of a sentence.
_VALUE_CHARS = 2000
_VALUES_BYTES = 12_000
_NAME_CHARS = 250
_SENTENCE_CHARS = 2000


def record_of(entry: Entry) -> RunRecord:
    """The record of a run as it is known now."""
    run, status = entry.run, entry.run.status
    tail, hidden = entry.log.tail()
    shown = list(entry.metrics.metrics.items())[:METRICS]
    return RunRecord(
        handle=run.handle,
        run_id=run.run_id,
        name=run.spec.name,
        target=run.target,
        experiment=run.spec.experiment,
        state=status.state.value,
        detail=status.detail[:_SENTENCE_CHARS],
        reason=status.reason,
        exit_code=status.exit_code,
        done=status.state.terminal,
        cancel_requested=status.cancel_requested,
        reachable=run.reachable,
        created=run.created,
        seen_at=run.seen_at,
        phases=status.phases,
        params=_bounded(run.spec.params),
        tags={name: str(value) for name, value in _bounded(run.spec.tags).items()},
        metrics={name[:_NAME_CHARS]: _metric(metric) for name, metric in shown},
        telemetry=_telemetry(entry.telemetry, status.state.terminal),
        log=LogTail(tail=tail, bytes=entry.log.bytes, lines_hidden=hidden, path=tilde(entry.log_path)),
        outputs=_bounded(run.outputs),
        error=run.error and run.error[:_SENTENCE_CHARS],
        tracking={"run_id": run.tracking_id, "state": run.tracking, "store": tilde(run.project)},
        source_sha256=run.spec.source_sha256,
    )


def _metric(metric: Metric) -> MetricSeries:
    keep = metric.shown.indices()
    return MetricSeries(
        step=tuple(metric.steps[i] for i in keep),
        value=tuple(_finite(metric.values[i]) for i in keep),
        last=_finite(metric.values[-1]) if metric.values else None,
        n=len(metric.values),
    )


def _telemetry(log: TelemetryLog, ended: bool) -> TelemetrySeries:
    times = log.columns.get("t")
    if not times:
        return TelemetrySeries()
    cpu, memory = log.columns.get("cpu"), log.columns.get("memory")
    keep = sorted({i for name, points in (("cpu", 200), ("memory", 98)) for i in _indices(log, name, points)})
    total, cpus = log.header.get("memory_total"), log.header.get("cpus")
    return TelemetrySeries(
        t=tuple(round(times[i], 3) for i in keep),
        cpu=tuple(_finite(cpu[i]) for i in keep) if cpu else (),
        memory=tuple(_finite(memory[i]) for i in keep) if memory else (),
        memory_total=float(total) if total else None,
        cpus=int(cpus) if cpus else None,
        age=None if ended else max(0.0, round(time.time() - times[-1], 1)),
    )


def _indices(log: TelemetryLog, name: str, points: int) -> list[int]:
    return (log.shown.get(name) or log.shown["t"]).indices(points)


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _plain(value: object) -> object:
    """`value` with ``nan`` and ``inf`` as words: JSON has neither, and a bundle is JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _bounded(values: Mapping[str, object]) -> dict[str, object]:
    """The first of `values`, large ones cut, as many as a record may hold."""
    kept: dict[str, object] = {}
    left = _VALUES_BYTES
    for name, value in values.items():
        value = _plain(value)
        text = repr(value)
        if len(text) > _VALUE_CHARS:
            value = text = f"{text[:200]}… (large)"
        left -= len(name.encode("utf-8", "replace")) + len(text.encode("utf-8", "replace"))
        if left < 0:
            break
        kept[name] = value
    return kept
