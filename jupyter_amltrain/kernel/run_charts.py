"""The charts of a record, and those of a dashboard before it has data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from jupyter_amltrain.agent.telemetry.gpu_columns import ACTIVITY, BY_NAME, GPU_COLUMNS, MAX, GpuColumn, symbol
from jupyter_amltrain.agent.telemetry.gpu_names import gpu_counts, gpu_name
from jupyter_amltrain.inside.pokes import poke_text, running_since
from jupyter_amltrain.kernel.chart_axes import (
    amount_text,
    ends_only,
    limit_axis,
    metric_axis,
    number_text,
    round_axis,
    step_axis,
    time_axis,
)
from jupyter_amltrain.schema.chart import (
    HEIGHT,
    STRIP_HEIGHT,
    Axis,
    Chart,
    ChartMark,
    ChartSeries,
    ChartSet,
    LegendEntry,
    Level,
    PhaseShade,
    SeriesPath,
    values_at,
)
from jupyter_amltrain.schema.record import GpuProcess, GpuSeries, GpuTelemetry, MetricSeries, RunRecord
from jupyter_amltrain.schema.run import Phase, Poke, RunState

#: Maximum GPUs or machines that are drawn as separate lines.
MAX_LINES = 8

#: GPUs from which on a heat map shows each of them: so many lines cross.
HEAT_GPUS = 6

#: Maximum dashed lines for sizes or limits in one chart, if GPUs differ.
MAX_LEVELS = 4

#: Columns whose charts a record has; the other views are live only.
_RECORDED = tuple(BY_NAME[name] for name in ("util", "memory", "power"))

#: Of a GPU: the attribute with the maximum of a column, its name, and the space above it, as a share.
_LIMITS = {"memory": ("memory_total", "size", 0.06), "power": ("power_limit", "limit", 0.1)}

#: Number of the palette's color for the host.
HOST_COLOR = 2

#: Shortest phase that is shaded, in seconds.
_MIN_SHADE_S = 0.2


class GpuFacts(Protocol):
    """What charts need of a GPU: sizes in bytes and watts."""

    @property
    def index(self) -> int: ...

    @property
    def label(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def memory_total(self) -> float | None: ...

    @property
    def power_limit(self) -> float | None: ...


def charts_of(record: RunRecord) -> ChartSet:
    """Return the charts of a record, from its series."""
    sources = [times for times in (record.telemetry.t, record.gpu.t if record.gpu else ()) if times]
    start = min((times[0] for times in sources), default=0.0)
    length = max((times[-1] for times in sources), default=start) - start
    charts = [_metric_chart(name, metric) for name, metric in record.metrics.items() if metric.value]
    if record.gpu and record.gpu.t and record.gpu.gpus:
        charts += _recorded_gpu_charts(record.gpu, record)
    telemetry = record.telemetry
    strip = not (record.gpu and record.gpu.gpus)
    for chart in host_charts(strip=strip, cpus=telemetry.cpus, memory_total=telemetry.memory_total):
        if known_values(values_at(record, chart.series[0].data)):
            charts.append(_with_values(chart, record))
    gpus, gpus_text = gpu_legend(record.gpu)
    marks = marks_of(record.pokes, record.phases)
    found = ChartSet(charts=tuple(charts), gpus=gpus, gpus_text=gpus_text, marks=marks)
    if not sources:
        return found
    return msgspec.structs.replace(
        found, start=start, time=time_axis(max(length, 1.0)), phases=tuple(_phases(record, start))
    )


def marks_of(pokes: Sequence[Poke], phases: Sequence[Phase]) -> tuple[ChartMark, ...]:
    """Return the moments of a run that its charts mark: statements that somebody has run in it."""
    began = running_since(phases)
    return tuple(ChartMark(poke.time, poke.step, poke_text(poke, began)) for poke in pokes)


def _phases(record: RunRecord, start: float) -> Iterable[PhaseShade]:
    """Yield the phases in which the script did not run."""
    for phase in record.phases:
        is_end = phase.name in set(RunState) and RunState(phase.name).terminal
        end = phase.end
        if end is None:
            end = record.seen_at if phase.seconds is None else phase.start + phase.seconds
        if phase.name != "running" and not is_end and end - phase.start > _MIN_SHADE_S:
            yield PhaseShade(phase.name, phase.start - start, end - start)


def known_values(values: Iterable[float | None]) -> list[float]:
    """Return the values that are known."""
    return [value for value in values if value is not None]


# -- metrics


def _metric_chart(name: str, metric: MetricSeries) -> Chart:
    known, missing = known_values(metric.value), metric.value.count(None)
    is_stepless = len(metric.step) > 1 and len(set(metric.step)) == 1
    steps = (0, len(metric.step) - 1) if is_stepless else (min(metric.step), max(metric.step))
    return Chart(
        key=f"metric {name}",
        title=f"{name} ({missing} not finite)" if missing else name,
        value=number_text(metric.last),
        x=() if is_stepless else ("metrics", name, "step"),
        steps=step_axis(*steps),
        y=metric_axis(min(known), max(known)) if known else None,
        series=(ChartSeries(data=("metrics", name, "value"), label=name),),
    )


# -- GPUs


def gpu_chart(column: GpuColumn, gpus: Sequence[GpuFacts], labels: Sequence[str], *, activity: bool = False) -> Chart:
    """Return the chart of a column of a few GPUs, or of the range over many, without values.

    Parameters
    ----------
    activity
        Draw SM activity as dashed lines with the utilization.
    """
    unit = "bytes" if column.unit == "MiB" else symbol(column.unit)
    limit_name, level_name, air = _LIMITS.get(column.name, ("", "", 0.0))
    limits = sorted({limit for gpu in gpus if (limit := getattr(gpu, limit_name))}) if limit_name else []
    highest = column.maximum or max(limits, default=None)
    chart = Chart(
        key=f"gpu {column.name}",
        title=column.chart,
        whole=amount_text(limits[-1], unit) if unit == "bytes" and limits else "",
        unit=unit,
        x=("gpu", "t"),
        y=None if highest is None else limit_axis(highest, unit, air),
        levels=tuple(Level(value, f"{level_name} {amount_text(value, unit)}") for value in limits[-MAX_LEVELS:]),
    )
    if len(gpus) > MAX_LINES:
        mean = ChartSeries(data=("gpu", column.name, "mean"), label="mean")
        return msgspec.structs.replace(chart, series=(mean,), band=("gpu", column.name))
    lines = [(column, "")]
    if (beside := beside_of(column)) is not None:
        lines.insert(0, (beside, "faint"))
    if activity:
        lines.append((BY_NAME[ACTIVITY], "dashed"))
    return msgspec.structs.replace(
        chart,
        note="dashed: SM activity" if activity else "",
        series=tuple(
            ChartSeries(data=("gpu", "gpus", k, line.name), label=label + line.legend, color=k, style=style)
            for line, style in lines
            for k, label in enumerate(labels)
        ),
    )


def beside_of(column: GpuColumn) -> GpuColumn | None:
    """Return the column that is drawn as a thin line in the chart of another one."""
    return next((other for other in GPU_COLUMNS if other.beside == column.name), None)


def top_of(column: GpuColumn) -> GpuColumn:
    """Return the column whose values are the upper end of a range: the peaks, where they are measured."""
    beside = beside_of(column)
    return beside if beside is not None and beside.reducer == MAX else column


def gpu_label(part: GpuTelemetry, gpu: GpuSeries | GpuProcess) -> str:
    """Return the label of a GPU, or of that of a process: ``GPU 3``, or ``n1 GPU 3`` if there are several nodes."""
    return (f"n{gpu.node} " if len(part.nodes) > 1 else "") + gpu_name({"index": gpu.index, "label": gpu.label})


def gpu_legend(part: GpuTelemetry | None) -> tuple[tuple[LegendEntry, ...], str]:
    """Return the legend of the GPUs of a record, empty for many, and their number and model."""
    if part is None or not part.gpus:
        return (), ""
    entries = tuple(
        LegendEntry(gpu_label(part, gpu) + (" lost" if gpu.lost else ""), ", ".join(filter(None, (gpu.name, gpu.uuid))))
        for gpu in part.gpus[:MAX_LINES]
    )
    return entries if len(part.gpus) <= MAX_LINES else (), gpu_count_text(part.gpus, len(part.nodes))


def gpu_count_text(gpus: Sequence[GpuFacts], nodes: int) -> str:
    """Return ``2 × NVIDIA A100``; for many GPUs also their machines and what the charts show of them."""
    text = gpu_counts(({"index": gpu.index, "label": gpu.label, "name": gpu.name} for gpu in gpus), "×")
    if len(gpus) <= MAX_LINES:
        return text
    return text + (f" on {nodes} nodes" if nodes > 1 else "") + ": mean, minimum to maximum"


def _recorded_gpu_charts(part: GpuTelemetry, record: RunRecord) -> list[Chart]:
    is_few = len(part.gpus) <= MAX_LINES
    labels = [gpu_label(part, gpu) for gpu in part.gpus] if is_few else []
    has_activity = is_few and any(known_values(gpu.sm_activity) for gpu in part.gpus)
    charts = [gpu_chart(c, part.gpus, labels, activity=has_activity and c.name == "util") for c in _RECORDED]
    return [_with_values(chart, record) for chart in charts]


# -- host


def host_charts(*, strip: bool, cpus: float | None, memory_total: float | None, own: bool = True) -> list[Chart]:
    """Return the charts of CPU and memory, without values.

    Parameters
    ----------
    strip
        Low charts, for a run without GPUs.
    cpus, memory_total
        Of one machine.
    own
        Charts of the run's processes, not of all processes of the machine.
    """
    rows = (
        ("cpu", "CPU", "%", amount_text(100 * cpus, "%") if cpus else ""),
        ("memory", "Memory", "bytes", amount_text(memory_total, "bytes") if memory_total else ""),
    )
    charts = []
    for name, title, unit, whole in rows:
        title = title if own else f"{title} of the machine"
        series = ChartSeries(data=("telemetry", name if own else f"host_{name}"), label=title, color=HOST_COLOR)
        chart = Chart(
            key=f"host {name}",
            title=title,
            whole=whole if own else "",
            unit=unit,
            x=("telemetry", "t"),
            y=None if own or unit != "%" else limit_axis(100, unit),
            series=(series,),
            height=STRIP_HEIGHT if strip else HEIGHT,
        )
        charts.append(chart)
    return charts


# -- values of charts over time


def _with_values(chart: Chart, record: RunRecord) -> Chart:
    """Return a chart with its text and axis, after its series in the record."""
    rows = [_row(record, series.data) for series in chart.series]
    read = [row for row, series in zip(rows, chart.series, strict=True) if not series.style]
    ends = [_row(record, (*chart.band, end)) for end in ("low", "high")] if chart.band else []
    known = known_values(value for row in [*rows, *ends] for value in row)
    if not known:
        return msgspec.structs.replace(chart, value="n/a", whole="", y=None)
    value = _value_text(chart, read, ends, ended=record.done)
    # Peaks that are the means would only cover these.
    series = tuple(s for s, row in zip(chart.series, rows, strict=True) if s.style != "faint" or row not in read)
    return msgspec.structs.replace(chart, value=value, y=fitted(chart, max(known)), series=series)


def _row(record: RunRecord, path: SeriesPath) -> Sequence[float | None]:
    try:
        return tuple(values_at(record, path))
    except AttributeError:
        return ()  # the range of a value that no GPU reports


def fitted(chart: Chart, highest: float) -> Axis:
    """Return the axis of a chart for values up to `highest`, which may exceed a known limit."""
    if chart.y is not None and highest <= chart.y.max:
        axis = chart.y
    else:
        axis = round_axis(highest, chart.unit)
    return ends_only(axis) if chart.height == STRIP_HEIGHT else axis


def _value_text(
    chart: Chart, rows: Sequence[Sequence[float | None]], ends: Sequence[Sequence[float | None]], *, ended: bool
) -> str:
    """Return the newest values; of an ended run their mean, or the peak of a memory."""
    is_memory = chart.unit == "bytes"
    parts = [known[-1] for row in (ends or rows) if (known := known_values(row[-3:]))]
    word = ""
    if ended:
        known = known_values(value for row in (ends[1:] if is_memory and ends else rows) for value in row)
        parts = [max(known) if is_memory else math.fsum(known) / len(known)] if known else []
        word = "peak " if is_memory else "mean "
    if not parts:
        return "n/a"
    return word + joined([amount_text(min(parts), chart.unit), amount_text(max(parts), chart.unit)], chart.whole)


def joined(ends: Sequence[str], whole: str) -> str:
    """Return ``13.8 to 17.2 of 80 GiB``: a range and the amount that it is a part of, with a common unit once."""
    texts = list(dict.fromkeys(ends)) + ([whole] if whole else [])
    if len({text.rpartition(" ")[2] for text in texts}) == 1:
        texts = [text.rpartition(" ")[0] for text in texts[:-1]] + texts[-1:]
    return f"{' to '.join(texts[:-1])} of {texts[-1]}" if whole else " to ".join(texts)
