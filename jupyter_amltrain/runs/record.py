"""Entry -> :class:`~jupyter_amltrain.spec.record.RunRecord`, always under 200 kB."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from jupyter_amltrain.naming import tilde
from jupyter_amltrain.runs.gpu_record import age_of, gpu_record
from jupyter_amltrain.runs.series import Metric
from jupyter_amltrain.runs.store import Entry
from jupyter_amltrain.runs.stretches import grid, on_grid
from jupyter_amltrain.runs.telemetry import RunTelemetry, known
from jupyter_amltrain.spec.child_run import ChildRun, most_telling
from jupyter_amltrain.spec.record import (
    GpuTelemetry,
    GpuTruth,
    LogTail,
    MetricSeries,
    RunRecord,
    TelemetrySeries,
)

log = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Metrics drawn in an output; the others are in MLflow.
METRICS = 12
# Bounds that keep a record under 200 kB whatever a script does: characters of one value,
# bytes of all parameters (outputs, tags), characters of a metric's name and of a sentence.
_VALUE_CHARS = 2000
_VALUES_BYTES = 12_000
_NAME_CHARS = 250
_SENTENCE_CHARS = 2000
_NOTES = 8
_CHILDREN_BYTES = 50_000
#: Stretches of the host's series, and GPUs that a summary lists.
_STRETCHES, _SUMMED = 100, 64


#: Levels of lists and mappings in a value.
_MAX_DEPTH = 32
_TRUTH = ("verdict", "detail", "cause")


def record_of(entry: Entry) -> RunRecord:
    """The record of a run as it is known now."""
    run, status = entry.run, entry.run.status
    tail, hidden = entry.log.tail()
    done = status.state.terminal
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
        metrics_hidden=max(0, len(entry.metrics.metrics) - METRICS),
        telemetry=_part(entry, "telemetry", lambda: _telemetry(entry.telemetry, done), TelemetrySeries()),
        gpu=_part(entry, "gpu", lambda: _gpu(entry, done), None),
        truth=GpuTruth(**{k: str(v)[:_SENTENCE_CHARS] for k, v in status.truth.items() if k in _TRUTH})
        if status.truth
        else None,
        summary=_part(entry, "summary", lambda: _summary(entry.telemetry.summaries), {}) if done else {},
        log=LogTail(tail=tail, bytes=entry.log.bytes, lines_hidden=hidden, path=tilde(entry.log_path)),
        outputs=_bounded(run.outputs),
        error=run.error and run.error[:_SENTENCE_CHARS],
        tracking={"run_id": run.tracking_id, "state": run.tracking, "store": tilde(run.project)},
        source_sha256=run.spec.source_sha256,
        notes=tuple(
            note[:_SENTENCE_CHARS]
            for note in (*status.notes, *run.spec.notes, *run.notes, *entry.unreadable.values())[:_NOTES]
        ),
        doors=status.doors[:_NOTES],
        children=(children := _children(entry)),
        children_hidden=entry.children.hidden + len(entry.children.runs) - len(children),
        parent=run.parent,
        kind=entry.kind,
        view="run" if entry.kind == "run" else "dashboard",
    )


def _children(entry: Entry) -> tuple[ChildRun, ...]:
    """As many steps or trials as a record may hold."""
    size = sum(len(msgspec.json.encode(run)) for run in entry.children.runs)
    runs = entry.children.runs
    return runs if size <= _CHILDREN_BYTES else most_telling(runs, len(runs) * _CHILDREN_BYTES // size)


def _part(entry: Entry, name: str, make: Callable[[], _T], otherwise: _T) -> _T:
    """A part that is made of files which a job can write: whatever they hold, the rest of the record is shown."""
    try:
        return make()
    except Exception:
        if name not in entry.faults:
            entry.faults.add(name)
            log.warning("%s of %s cannot be shown", name, entry.run.handle, exc_info=True)
        return otherwise


def _metric(metric: Metric) -> MetricSeries:
    keep = metric.shown.indices()
    return MetricSeries(
        step=tuple(metric.steps[i] for i in keep),
        value=tuple(_finite(metric.values[i]) for i in keep),
        last=_finite(metric.values[-1]) if metric.values else None,
        n=len(metric.values),
    )


def _telemetry(telemetry: RunTelemetry, ended: bool) -> TelemetrySeries:
    """The host of the first node; two points a stretch where its least and most differ."""
    nodes = list(telemetry.nodes())
    if not nodes or not nodes[0].ticks:
        return TelemetrySeries()
    node = nodes[0]
    begins = grid([node], _STRETCHES)
    names = [name for name in ("cpu", "memory") if name in node.index]
    table = on_grid(node, begins, [node.index[name] for name in names])
    t: list[float] = []
    series: dict[str, list[float | None]] = {name: [] for name in names}
    ends = [*begins[1:], node.last_t or begins[-1]]
    for i, begin in enumerate(begins):
        low, high = table[0, :, i], table[2, :, i]
        two = bool((low != high).any() and (low == low).all())
        t += [round(float(begin), 3), round(float(begin + ends[i]) / 2, 3)] if two else [round(float(begin), 3)]
        for k, name in enumerate(names):
            series[name] += [_finite(low[k]), _finite(high[k])] if two else [_finite(table[1, k, i])]
    total, cpus = node.header.get("memory_total"), node.header.get("cpus")
    return TelemetrySeries(
        t=tuple(t),
        cpu=tuple(series.get("cpu", ())),
        memory=tuple(series.get("memory", ())),
        memory_total=float(total) if total else None,
        cpus=int(cpus) if cpus else None,
        age=age_of(telemetry, ended),
    )


def _gpu(entry: Entry, ended: bool) -> GpuTelemetry | None:
    """The GPUs' part, made anew only when ticks came; its age grows without them."""
    telemetry = entry.telemetry
    key = (ended, tuple(node.seq for node in telemetry.nodes()), tuple(node.note for node in telemetry.nodes()))
    if entry.gpu_part is None or entry.gpu_part[0] != key:
        entry.gpu_part = (key, gpu_record(telemetry, ended))
    part = entry.gpu_part[1]
    return part and msgspec.structs.replace(part, age=age_of(telemetry, ended))


def _summary(summaries: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Summaries of the nodes as one: GPUs of all of them, the hints, the first node's host."""
    if not summaries:
        return {}
    first = dict(summaries[min(summaries)])
    gpus = [{**_plain(gpu), "node": node} for node in sorted(summaries) for gpu in _gpus(summaries[node])]
    hints = dict.fromkeys(str(summary.get("hint") or "") for summary in summaries.values())
    kept: dict[str, Any] = {
        name: known(first[name]) for name in ("seconds", "cpu_mean", "cpu_peak", "memory_peak", "cpus") if name in first
    }
    return {**kept, "gpus": gpus[:_SUMMED], "hint": " ".join(hint for hint in hints if hint)[:_SENTENCE_CHARS]}


def _gpus(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    gpus = summary.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _plain(value: Any, depth: int = 0) -> Any:
    """`value` as JSON that every reader takes: ``nan`` and numbers over 64 bits as words, text as UTF-8 has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"{'-' if value < 0 else ''}{value.bit_length()} bits"
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, (dict, list, tuple)) and depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {_plain(str(k)): _plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, depth + 1) for v in value]
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
        name = _plain(name)
        left -= len(name.encode("utf-8", "replace")) + len(text.encode("utf-8", "replace"))
        if left < 0:
            break
        kept[name] = value
    return kept
