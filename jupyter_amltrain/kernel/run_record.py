"""Entry -> :class:`~jupyter_amltrain.schema.record.RunRecord`, always under 200 kB."""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from jupyter_amltrain.agent.telemetry.gpu_columns import ACTIVITY, BY_NAME, FIGURES, LAST, MAX, MIN
from jupyter_amltrain.agent.telemetry.gpu_names import gpu_name
from jupyter_amltrain.agent.telemetry.torch_memory import TORCH
from jupyter_amltrain.kernel.min_max_history import known_mean
from jupyter_amltrain.kernel.outcome_text import cell_line
from jupyter_amltrain.kernel.run_charts import MAX_LINES, charts_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.streams import Metric
from jupyter_amltrain.kernel.sweep_board import board_of
from jupyter_amltrain.kernel.telemetry import MIB, NodeTelemetry, RunTelemetry, grid, known, on_grid
from jupyter_amltrain.kernel.throughput import measure
from jupyter_amltrain.schema.chart import ChartSet
from jupyter_amltrain.schema.child_run import ChildRun, most_relevant
from jupyter_amltrain.schema.record import (
    CodeExcerpt,
    GpuBand,
    GpuHeat,
    GpuProcess,
    GpuSeries,
    GpuTelemetry,
    GpuTruth,
    LogTail,
    MetricSeries,
    RunRecord,
    TelemetrySeries,
)
from jupyter_amltrain.schema.run import Run, RunState
from jupyter_amltrain.schema.scaling import Measurement
from jupyter_amltrain.schema.taken import Taken
from jupyter_amltrain.text import finite_or_text, tilde

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]

#: Figures whose newest values the table shows, where the device has them.
TABLE_FIGURES = tuple(column.name for column in FIGURES if column.heading)

#: Series of a record with their decimals and factor.
_SERIES = {"util": (1, 1.0), "peak": (0, 1.0), "memory": (0, MIB), "power": (1, 1.0), ACTIVITY: (0, 1.0)}

#: Series of which many GPUs have a mean and a range.
_BAND_FIELDS = ("util", "peak", "memory", "power")

#: Rows of a table of minimum, mean and maximum.
_ROWS = {MIN: 0, MAX: 2, LAST: 2}

#: More GPUs than this are listed without UUIDs and current readings.
MANY_GPUS = 64

#: Points of a series, columns of the heat map, rows of the process table.
POINTS, HEAT_COLUMNS, PROCESSES = 150, 75, 20

#: Maximum cells of the heat map, 2 bytes each.
_HEAT_CELLS = 16_000

# nvml.h, nvmlClocksEventReasons, as text; 0x1 is an idle GPU.
_THROTTLE = {
    0x2: "app clocks",
    0x4: "power cap",
    0x8: "hw slowdown",
    0x10: "sync boost",
    0x20: "sw thermal",
    0x40: "hw thermal",
    0x80: "power brake",
    0x100: "display",
}

_THROTTLE_IDLE = 0x1


def throttle_text(mask: int) -> str:
    """Return the reasons for reduced clocks, separated by commas; unknown bits as a number."""
    words = [word for bit, word in _THROTTLE.items() if mask & bit]
    rest = mask & ~(sum(_THROTTLE) | _THROTTLE_IDLE)
    return ", ".join(words + ([f"0x{rest:x}"] if rest else []))


def gpu_record(
    telemetry: RunTelemetry, ended: bool, *, series: bool = True, max_now: int | None = None
) -> GpuTelemetry | None:
    """Build the GPU part of a record; ``None`` without data.

    Parameters
    ----------
    series
        Include what has happened so far. Without it the part of 1,024 GPUs takes milliseconds.
    max_now
        Leave out the current readings if there are more GPUs than this.
    """
    nodes = list(telemetry.nodes())
    if not nodes:
        return None
    gpus = [(node, i) for node in nodes for i in range(len(node.gpus))]
    facts = tuple(_facts(node, i, with_uuid=len(gpus) <= MANY_GPUS) for node, i in gpus)
    unread = ended or (max_now is not None and len(gpus) > max_now)
    common: dict[str, Any] = {
        "nodes": tuple(str(node.header.get("host") or f"node {node.node}") for node in nodes),
        "source": _source(nodes),
        "age": age_of(telemetry, ended),
        "note": note_of(telemetry),
        "processes": tuple(_processes(nodes)),
        "now": ({},) * len(gpus) if unread else tuple(_now(node, i) for node, i in gpus),
    }
    if not gpus or not series:
        return GpuTelemetry(gpus=facts, **common)
    begins = grid(nodes, POINTS)
    tables = _tables(nodes, tuple(_SERIES) if len(gpus) <= MAX_LINES else _BAND_FIELDS, begins)
    times = tuple(round(float(t), 2) for t in begins)
    if len(gpus) <= MAX_LINES:
        return GpuTelemetry(t=times, gpus=tuple(_with_series(f, k, tables) for k, f in enumerate(facts)), **common)
    return GpuTelemetry(
        t=times,
        gpus=facts,
        util=_band(tables["util"], high=tables["peak"]),
        memory=_band(tables["memory"], MIB),
        power=_band(tables["power"]),
        heat=_heat(nodes, [(f.node, f.index) for f in facts]),
        **common,
    )


def note_of(telemetry: RunTelemetry) -> str:
    """Return the notes of all nodes, each once."""
    return "; ".join(dict.fromkeys(note for node in telemetry.nodes() if (note := node.note)))


def age_of(telemetry: RunTelemetry, ended: bool) -> float | None:
    """Return the seconds since the newest tick; ``None`` before the first and after the run."""
    last = telemetry.last_t
    return None if ended or last is None else max(0.0, round(time.time() - last, 1))


def _source(nodes: Sequence[NodeTelemetry]) -> str:
    if source := nodes[0].header.get("source"):  # other sources than the agent name themselves
        return str(source)[:80]
    period = known(nodes[0].header.get("period")) or 1.0
    return f"agent, every {period:g} s"


def _facts(node: NodeTelemetry, i: int, *, with_uuid: bool) -> GpuSeries:
    gpu = node.gpus[i]
    total = known(gpu.get("memory_total"))
    limit = node.slow[i].get("power_limit")
    return GpuSeries(
        node=node.node,
        index=int(gpu.get("index", i)),
        label=gpu_name({"index": i, **gpu}),
        name=str(gpu.get("name") or ""),
        uuid=str(gpu.get("uuid") or "") if with_uuid else "",
        memory_total=None if total is None else total * MIB,
        power_limit=known(limit if limit is not None else gpu.get("power_limit")),
        lost=node.is_lost(i),
    )


def _tables(nodes: Sequence[NodeTelemetry], fields: Sequence[str], begins: Any) -> dict[str, Float32]:
    """``(3, GPUs of all nodes, intervals)`` of each field."""
    import numpy as np

    parts: list[Float32] = [np.full((3, len(fields), 0, len(begins)), np.nan, np.float32)]
    for node in nodes:
        gpus = [gpu.get("index", i) for i, gpu in enumerate(node.gpus)]
        columns = [node.index.get(f"gpu{gpu}.{field}", -1) for field in fields for gpu in gpus]
        part = on_grid(node, begins, columns)
        part[:, [k for k, column in enumerate(columns) if column < 0]] = np.nan
        parts.append(part.reshape(3, len(fields), len(gpus), len(begins)))
    table = np.concatenate(parts, axis=2)
    return {field: table[:, k] for k, field in enumerate(fields)}


def _with_series(facts: GpuSeries, k: int, tables: dict[str, Float32]) -> GpuSeries:
    import msgspec
    import numpy as np

    series = {name: (tables[name][_ROWS.get(BY_NAME[name].reducer, 1), k], how) for name, how in _SERIES.items()}
    return msgspec.structs.replace(
        facts,
        **{
            name: () if name == ACTIVITY and np.isnan(values).all() else _tuple(values, *how)
            for name, (values, how) in series.items()
        },
    )


def _tuple(values: Iterable[Any], digits: int, scale: float = 1.0) -> tuple[float | None, ...]:
    return tuple(None if v != v else round(float(v), digits) * scale for v in values)


def _band(table: Float32, scale: float = 1.0, high: Float32 | None = None) -> GpuBand:
    import numpy as np

    top = table[2] if high is None else np.fmax(table[2], high[2])
    return GpuBand(
        mean=_tuple(known_mean(table[1]), 1, scale),
        low=_tuple(np.fmin.reduce(table[0]), 1, scale),
        high=_tuple(np.fmax.reduce(top), 1, scale),
    )


def _heat(nodes: Sequence[NodeTelemetry], labels: Sequence[tuple[int, int]]) -> GpuHeat:
    import numpy as np

    most = max(2, min(HEAT_COLUMNS, _HEAT_CELLS // max(1, len(labels))))
    begins = grid(nodes, most)
    if len(begins) > 1:  # columns of equal duration
        last = max(node.last_t or 0.0 for node in nodes)
        begins = np.linspace(begins[0], max(last, begins[-1]), min(most, len(begins)), endpoint=False)
    util = _tables(nodes, ("util",), begins)["util"][1]
    cells = np.where(np.isnan(util), 255, np.clip(np.rint(util), 0, 100)).astype(np.uint8)
    return GpuHeat(labels=tuple(f"{n}:{i}" for n, i in labels), columns=len(begins), cells=cells.tobytes().hex())


def _processes(nodes: Sequence[NodeTelemetry]) -> list[GpuProcess]:
    """Return the largest processes: those of the run first."""
    rows = [
        (owner != "mine", -(known(memory) or 0), node, index, pid, owner, known(memory), name, share)
        for node in nodes
        for (index, pid, owner, memory, *name), share in zip(
            node.processes, (*node.shares, *[None] * len(node.processes)), strict=False
        )
    ]
    return [
        GpuProcess(
            node=node.node,
            index=int(index),
            pid=int(pid),
            owner=str(owner),
            memory=None if size is None else size * MIB,
            name=str(name[0])[:60] if name else "",
            label=_label(node, index),
            user=str(name[1])[:60] if len(name) > 1 else "",
            sm=share,
        )
        for _, _, node, index, pid, owner, size, name, share in heapq.nsmallest(
            PROCESSES, rows, key=lambda row: row[:2]
        )
    ]


def _label(node: NodeTelemetry, index: Any) -> str:
    gpus = [gpu for gpu in node.gpus if gpu.get("index") == index]
    return gpu_name(gpus[-1] if gpus else {"index": index})


def _now(node: NodeTelemetry, i: int) -> dict[str, Any]:
    """Newest readings of one GPU; ``None`` for values that the device does not report."""
    slow = node.slow[i]
    newest = (node.ticks - 1) % len(node.t) if node.ticks else None

    def reading(name: str) -> float | None:
        column = node.index.get(f"gpu{node.gpus[i].get('index', i)}.{name}")
        return None if column is None or newest is None else known(node.ring[column, newest])

    mask = known(slow.get("throttle"))
    figures = {name: value for name in TABLE_FIGURES if (value := reading(name)) is not None}
    return {
        "util": reading("util"),
        "memory": _bytes(reading("memory")),
        "power": reading("power"),
        **figures,
        "temperature": reading("temperature"),
        "sm_clock": reading("sm_clock"),
        "mem_clock": known(slow.get("mem_clock")),
        "throttle": None if mask is None else throttle_text(int(mask)),
        "ecc": known(slow.get("ecc")),
        "mine": _bytes(slow.get("mine")),
        "others": _bytes(slow.get("others")),
        **{name: value for name in TORCH if (value := known(slow.get(name))) is not None},
    }


def _bytes(mib: Any) -> float | None:
    value = known(mib)
    return None if value is None else value * MIB


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
    tail, hidden = entry.shown_log.tail()
    done = status.state.terminal
    shown = list(entry.metrics.metrics.items())[:METRICS]
    record = RunRecord(
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
        metrics={name[:_NAME_CHARS]: _metric(metric, run.created, rank) for rank, (name, metric) in enumerate(shown)},
        metrics_hidden=max(0, len(entry.metrics.metrics) - METRICS),
        telemetry=_part(entry, "telemetry", lambda: _telemetry(entry.telemetry, done), TelemetrySeries()),
        gpu=_part(entry, "gpu", lambda: _gpu(entry, done), None),
        truth=GpuTruth(**{k: str(v)[:_SENTENCE_CHARS] for k, v in status.truth.items() if k in _TRUTH})
        if status.truth
        else None,
        summary=_part(entry, "summary", lambda: _summary(entry.telemetry.summaries), {}) if done else {},
        log=LogTail(tail=tail, bytes=entry.shown_log.bytes, lines_hidden=hidden, path=tilde(entry.log_path)),
        outputs=_bounded({**{name: f"<{saved.text}>" for name, saved in run.saved.items()}, **run.outputs}),
        models=tuple(path[:_SENTENCE_CHARS] for path in (run.models or ())[:_NOTES]),
        error=run.error and run.error[:_SENTENCE_CHARS],
        excerpt=_excerpt(run, tail) if status.state is RunState.FAILED else None,
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
        children=(children := () if run.spec.sweep is not None else _children(entry)),
        children_hidden=0 if run.spec.sweep else entry.children.hidden + len(entry.children.runs) - len(children),
        parent=run.parent,
        attempt=run.status.attempt,
        scaling=_part(entry, "throughput", lambda: _measurement(entry), None),
        pictures=entry.pictures.shown(),
        pictures_hidden=entry.pictures.hidden,
        kind=entry.kind,
        view="run" if entry.kind == "run" else "dashboard",
    )
    return msgspec.structs.replace(record, charts=_part(entry, "charts", lambda: charts_of(record), ChartSet()))


def _measurement(entry: Entry) -> Measurement | None:
    limits = entry.run.spec.scaling
    return None if limits is None else measure(entry.metrics.metrics, limits)


def _excerpt(run: Run, log: str) -> CodeExcerpt | None:
    """Return the lines of the cell around the last traceback of `log`."""
    if not run.spec.script or not (line := cell_line(run, log)):
        return None
    lines = run.spec.script.split("\n")
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
