"""Entry -> :class:`~jupyter_amltrain.schema.record.RunRecord`, always under 200 kB."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from jupyter_amltrain.kernel.failures import frame_tables
from jupyter_amltrain.kernel.gpu_record import MANY_GPUS, age_of, gpu_record
from jupyter_amltrain.kernel.gpu_tables import gpu_tables
from jupyter_amltrain.kernel.log_errors import cell_line
from jupyter_amltrain.kernel.outcome_text import canceled_text
from jupyter_amltrain.kernel.record_parts import part_values
from jupyter_amltrain.kernel.run_charts import charts_of
from jupyter_amltrain.kernel.shown_files import shown_files
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.streams import Metric, above_all_lines
from jupyter_amltrain.kernel.sweep_board import board_of
from jupyter_amltrain.kernel.telemetry import RunTelemetry, grid, known, on_grid
from jupyter_amltrain.kernel.throughput import measure
from jupyter_amltrain.schema.chart import ChartSet
from jupyter_amltrain.schema.child_run import ChildRun, most_relevant
from jupyter_amltrain.schema.record import (
    CodeExcerpt,
    GpuTelemetry,
    GpuTruth,
    LogTail,
    MetricSeries,
    RunRecord,
    TelemetrySeries,
)
from jupyter_amltrain.schema.run import Run, RunState
from jupyter_amltrain.schema.scaling import Measurement
from jupyter_amltrain.schema.table import Table
from jupyter_amltrain.schema.taken import Taken
from jupyter_amltrain.text import finite_or_text, tilde

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Maximum metrics drawn in an output; MLflow has all of them.
METRICS = 12

# Limits that keep every record under 200 kB: characters of one value,
# bytes of all parameters (outputs, tags), characters of a metric's name and of a sentence.
_VALUE_CHARS = 2000

_VALUES_BYTES = 12_000

_NAME_CHARS = 250

_SENTENCE_CHARS = 2000

_NOTES = 8

#: Names of the notebook that a record lists.
_ITEMS = 100

# Lines of code above and below the one that raised, and their characters.
_LINES_AROUND, _LINE_CHARS = 2, 200

_CHILDREN_BYTES = 50_000

#: Maximum intervals of the host's series, and GPUs of a summary.
_MAX_INTERVALS, _MAX_SUMMARY_GPUS = 100, 64


#: Levels of lists and mappings in a value.
_MAX_DEPTH = 32

_TRUTH = ("verdict", "detail", "cause")


def record_of(entry: Entry) -> RunRecord:
    """Return the current record of a run."""
    run, status = entry.run, entry.run.status
    tail, hidden, places = entry.shown_log.end()
    spec = run.spec
    has_view = spec.sweep is not None or spec.driver is not None or spec.own_trials is not None  # of its children
    if entry.shown_log is not entry.log:  # the log of another process has none of the marks
        places = above_all_lines(entry.log.end().places)
    files = shown_files(entry.displays, entry.pictures, places)
    done = status.state.terminal
    shown = list(entry.metrics.metrics.items())[:METRICS]
    record = RunRecord(
        handle=run.handle,
        run_id=run.run_id,
        name=run.spec.name,
        target=run.target,
        experiment=run.experiment,
        state=status.state.value,
        detail=(canceled_text(status) if status.state is RunState.CANCELED else status.detail)[:_SENTENCE_CHARS],
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
        metrics={name[:_NAME_CHARS]: _metric(metric, run.created, rank) for rank, (name, metric) in enumerate(shown)},
        metrics_hidden=max(0, len(entry.metrics.metrics) - METRICS),
        telemetry=_part(entry, "telemetry", lambda: _telemetry(entry.telemetry, done), TelemetrySeries()),
        gpu=_part(entry, "gpu", lambda: _gpu(entry, done), None),
        truth=GpuTruth(**{k: str(v)[:_SENTENCE_CHARS] for k, v in status.truth.items() if k in _TRUTH})
        if status.truth
        else None,
        summary=_part(entry, "summary", lambda: _summary(entry.telemetry.summaries), {}) if done else {},
        log=LogTail(tail=tail, bytes=entry.shown_log.bytes, lines_hidden=hidden, path=tilde(entry.log_path)),
        outputs=_bounded(_results(run)),
        models=tuple(path[:_SENTENCE_CHARS] for path in (run.models or ())[:_NOTES]),
        error=run.error and run.error[:_SENTENCE_CHARS],
        excerpt=_excerpt(run, tail) if status.state is RunState.FAILED else None,
        frames=frame_tables(entry.frames or (), run) if status.state is RunState.FAILED else (),
        tracking={"run_id": run.tracking_id, "state": run.tracking, "store": tilde(run.project)},
        source_sha256=run.spec.source_sha256,
        notes=tuple(
            note[:_SENTENCE_CHARS]
            for note in (*status.notes, *run.spec.notes, *run.notes, *entry.unreadable.values())[:_NOTES]
        ),
        taken=Taken(
            line=run.spec.taken.line[:_SENTENCE_CHARS],
            items=tuple(item[:_SENTENCE_CHARS] for item in run.spec.taken.items[:_ITEMS]),
        ),
        links=status.links[:_NOTES],
        sweep=_part(entry, "sweep", lambda: board_of(entry), None),
        children=(children := () if has_view else _children(entry)),
        children_hidden=0 if has_view else entry.children.hidden + len(entry.children.runs) - len(children),
        parent=run.parent,
        pokes=status.pokes,
        attempt=run.status.attempt,
        scaling=_part(entry, "throughput", lambda: _measurement(entry), None),
        **files._asdict(),
        **part_values(entry),
        kind=entry.kind,
        view="run" if entry.kind == "run" else "dashboard",
    )
    no_tables: tuple[Table, ...] = ()
    return msgspec.structs.replace(
        record,
        charts=_part(entry, "charts", lambda: charts_of(record), ChartSet()),
        tables=_part(entry, "tables", lambda: gpu_tables(record), no_tables),
    )


def _measurement(entry: Entry) -> Measurement | None:
    limits = entry.run.spec.scaling
    return None if limits is None else measure(entry.metrics.metrics, limits)


def _excerpt(run: Run, log: str) -> CodeExcerpt | None:
    """Return the lines of the cell around the last traceback of `log`."""
    if not run.spec.script or not (line := cell_line(run, log)):
        return None
    lines = run.spec.script.split("\n")
    own = run.spec.cell.split("\n") if run.spec.cell else []
    for number, text in enumerate(own, 1):
        if not text.strip() and number < len(lines):  # it may read what the cell takes from the notebook
            lines[number] = ""
    first = max(2, line - _LINES_AROUND)  # line 1 contains the parameters, not the user's text
    around = lines[first - 1 : line + _LINES_AROUND] if line <= len(lines) else []
    if line < first or not around:
        return None
    return CodeExcerpt(first=first, lines=tuple(text[:_LINE_CHARS] for text in around), line=line)


def _children(entry: Entry) -> tuple[ChildRun, ...]:
    """Return the steps or trials that fit in a record."""
    size = sum(len(msgspec.json.encode(run)) for run in entry.children.runs)
    runs = entry.children.runs
    return runs if size <= _CHILDREN_BYTES else most_relevant(runs, len(runs) * _CHILDREN_BYTES // size)


def _part(entry: Entry, name: str, make: Callable[[], _T], otherwise: _T) -> _T:
    """Build a part from files that a job can write; invalid data must not hide the rest of the record."""
    try:
        return make()
    except Exception:  # a job can write anything into its files
        if name not in entry.faults:
            entry.faults.add(name)
            log.warning("cannot show %s of %s", name, entry.run.handle, exc_info=True)
        return otherwise


def _short(seconds: Iterable[float]) -> tuple[float, ...]:
    """Return seconds in few characters: to a tenth, or whole ones in a long run."""
    known = [max(0.0, value) for value in seconds]
    digits = 1 if max(known, default=0.0) < 1000 else None
    return tuple(round(value, digits) for value in known)


def _metric(metric: Metric, created: float, rank: int) -> MetricSeries:
    keep = metric.in_order({*metric.shown.indices(), *metric.not_finite})
    return MetricSeries(
        step=tuple(metric.steps[i] for i in keep),
        # Nine digits are more than a chart shows, and half the characters.
        value=tuple(_finite(float(f"{metric.values[i]:.9g}")) for i in keep),
        seconds=_short(metric.times[i] - created for i in keep),
        last=None if metric.last is None else finite_or_text(metric.last),
        n=len(metric.values),
        rank=rank,
        source=metric.source,
    )


def _telemetry(telemetry: RunTelemetry, ended: bool) -> TelemetrySeries:
    """Series of the first node's host; two points per interval where minimum and maximum differ."""
    nodes = list(telemetry.nodes())
    if not nodes or not nodes[0].ticks:
        return TelemetrySeries()
    node = nodes[0]
    begins = grid([node], _MAX_INTERVALS)
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
    """Return the GPU part, rebuilt only after new ticks, with the current age."""
    telemetry = entry.telemetry
    key = (ended, tuple(node.seq for node in telemetry.nodes()), tuple(node.note for node in telemetry.nodes()))
    if entry.gpu_part is None or entry.gpu_part[0] != key:
        entry.gpu_part = (key, gpu_record(telemetry, ended, max_now=MANY_GPUS))
    part = entry.gpu_part[1]
    return part and msgspec.structs.replace(part, age=age_of(telemetry, ended))


def _summary(summaries: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the summaries of the nodes: GPUs and hints of all nodes, host of the first."""
    if not summaries:
        return {}
    first = dict(summaries[min(summaries)])
    gpus = [{**_plain(gpu), "node": node} for node in sorted(summaries) for gpu in _gpus(summaries[node])]
    hints = dict.fromkeys(str(summary.get("hint") or "") for summary in summaries.values())
    kept: dict[str, Any] = {
        name: known(first[name]) for name in ("seconds", "cpu_mean", "cpu_peak", "memory_peak", "cpus") if name in first
    }
    return {
        **kept,
        "gpus": gpus[:_MAX_SUMMARY_GPUS],
        "hint": " ".join(hint for hint in hints if hint)[:_SENTENCE_CHARS],
    }


def _gpus(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    gpus = summary.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _plain(value: Any, depth: int = 0) -> Any:
    """Convert `value` to portable JSON: ``nan`` and numbers over 64 bits as text, strings as valid UTF-8."""
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


def _results(run: Run) -> dict[str, object]:
    """Return the values of ``--out`` as a record has them: JSON, else as typed, else what they are."""
    what = {name: f"<{saved.text}>" for name, saved in run.saved.items()}
    typed = {name: text for name, saved in run.saved.items() if (text := saved.typed)}
    return {**what, **run.outputs, **typed}


def _bounded(values: Mapping[str, object]) -> dict[str, object]:
    """Return the first of `values` that fit in a record, with large ones shortened."""
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
