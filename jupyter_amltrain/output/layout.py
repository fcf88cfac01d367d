"""Layout of a dashboard as frozen data, computed on the loop from an entry's telemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.agent.telemetry import gpu_columns
from jupyter_amltrain.agent.telemetry.gpu_columns import ACTIVITY, GPU_COLUMNS, GpuColumn
from jupyter_amltrain.agent.telemetry.gpu_names import gpu_name
from jupyter_amltrain.kernel.run_charts import HEAT_GPUS, MAX_LINES, beside_of, top_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.telemetry import MIB, NodeTelemetry, known


class GpuView(NamedTuple):
    """A set of GPU charts that the user can select."""

    name: str
    label: str
    charts: tuple[GpuColumn, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """Columns of each GPU that the view draws."""
        return tuple(column.name for chart in self.charts for column in (chart, beside_of(chart)) if column)


#: View that any GPU has.
USE = "use"


VIEWS = tuple(
    GpuView(name, label, tuple(column for column in GPU_COLUMNS if column.view == name))
    for name, label in gpu_columns.VIEWS
)


def available(fields: Sequence[str]) -> tuple[GpuView, ...]:
    """Return the views, reduced to charts for which a GPU has one of these columns."""
    known = set(fields)
    views = (
        view._replace(
            charts=tuple(chart for chart in view.charts if known & {chart.name, getattr(beside_of(chart), "name", "")})
        )
        for view in VIEWS
    )
    return tuple(view for view in views if view.charts or view.name == USE)


#: Series of each node's host that are sent to a page.
HOST = ("cpu", "memory")

#: Beginning of a band's field that names a series of the hosts.
HOST_PREFIX = "host."

#: Maximum seconds of queueing that charts show before the start of the run.
_MAX_QUEUE_S = 30.0


#: Window options: label and seconds; 0 = whole run.
_WINDOWS = (("2 min", 120.0), ("10 min", 600.0), ("1 h", 3600.0), ("6 h", 21600.0), ("all", 0.0))


def windows(chosen: float) -> list[tuple[str, float]]:
    """Return the window options, including `chosen` seconds."""
    options = list(_WINDOWS)
    if chosen not in [seconds for _, seconds in options]:
        options.append((_duration(chosen), chosen))
        options.sort(key=lambda item: item[1] or float("inf"))
    return options


def _duration(seconds: float) -> str:
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a dashboard; bytes and watts."""

    node: int
    index: int
    label: str
    name: str
    memory_total: float | None
    power_limit: float | None


class GridSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A phase other than *running*, unix seconds."""

    name: str
    start: float
    end: float


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What a dashboard shows.

    Attributes
    ----------
    columns
        Series of each node in wire order, by node number.
    start
        Unix seconds at which the charts begin.
    view, views
        Name of the current GPU view, and all available views.
    """

    handle: str
    title: str
    nodes: tuple[int, ...]
    hosts: tuple[str, ...]
    columns: dict[int, tuple[str, ...]]
    gpus: tuple[Gpu, ...]
    cpus: float
    memory_total: float | None
    spans: tuple[GridSpan, ...]
    start: float
    period: float
    note: str
    window: float
    view: str = USE
    views: tuple[GpuView, ...] = ()

    @property
    def activity(self) -> bool:
        """Whether SM activity is drawn with utilization."""
        return self.view == USE and any(ACTIVITY in view.fields for view in self.views)

    @property
    def many(self) -> bool:
        """Whether there are too many GPUs for one line each."""
        return len(self.gpus) > MAX_LINES

    @property
    def has_heat_map(self) -> bool:
        """Whether a heat map shows each GPU."""
        return len(self.gpus) >= HEAT_GPUS

    def wire(self, capacity: int, buckets: int) -> dict[str, Any]:
        """Return the layout in the form that the page's feed needs."""
        hosts = dict(zip(self.nodes, self.hosts, strict=True))
        return {
            "nodes": [{"node": n, "host": hosts[n], "columns": list(self.columns[n])} for n in self.nodes],
            "period": self.period,
            "capacity": capacity,
            "buckets": buckets,
            "gpus": [msgspec.to_builtins(gpu) for gpu in self.gpus],
            "views": [view.name for view in self.views],
            "start": self.start,
            "windows": [seconds for _, seconds in windows(self.window)],
        }

    def column(self, node: int, name: str) -> int:
        """Return the position of a series in a node's messages."""
        return self.columns[node].index(name)


def layout_of(entry: Entry, window: float = 600.0, view: str = USE) -> Layout | None:
    """Return the layout of an entry's dashboard; ``None`` before the first sample.

    Parameters
    ----------
    window
        Seconds that are shown initially; 0 = whole run.
    view
        Name of the GPU view; an unknown name selects the first view.
    """
    nodes = [node for node in entry.telemetry.nodes() if node.ticks or node.history.count]
    if not nodes:
        return None
    gpus = [_gpu(node, i, len(nodes) > 1) for node in nodes for i in range(len(node.gpus))]
    fields = [name for node in nodes for part in ("gpu_columns", "gpu_figures") for name in node.header.get(part, ())]
    views = available(fields) if gpus else ()
    chosen = next((one for one in views if one.name == view), views[0] if views else None)
    names = _fields(chosen, views, many=len(gpus) > MAX_LINES)
    columns = {node.node: (*_host(entry), *_series(node, names)) for node in nodes}
    spans, start = _spans(entry)
    first = min(float(node.history.t[0]) for node in nodes)
    return Layout(
        handle=entry.run.handle,
        title=entry.run.spec.name,
        nodes=tuple(node.node for node in nodes),
        hosts=tuple(str(node.header.get("host") or f"node {node.node}") for node in nodes),
        columns=columns,
        gpus=tuple(gpus),
        cpus=float(sum(float(node.header.get("cpus") or 1) for node in nodes)),
        memory_total=nodes[0].header.get("memory_total"),
        spans=spans,
        start=min(first, start or first),
        period=float(nodes[0].header.get("period") or 1.0),
        note="; ".join(dict.fromkeys(node.note for node in nodes if node.note)),
        window=window,
        view=chosen.name if chosen is not None else USE,
        views=views,
    )


def _fields(view: GpuView | None, views: tuple[GpuView, ...], *, many: bool) -> tuple[str, ...]:
    """Return the series of each GPU that are sent with every tick; the heat map needs utilization.

    Where many GPUs are drawn as a mean and a range, thin lines are not drawn; peaks are the upper end of the range.
    """
    if view is None:
        return ()
    if many:
        return tuple(dict.fromkeys(("util", *(c.name for chart in view.charts for c in (chart, top_of(chart))))))
    beside = [ACTIVITY] if view.name == USE and any(ACTIVITY in one.fields for one in views) else []
    return tuple(dict.fromkeys(("util", *view.fields, *beside)))


def no_samples_text(entry: Entry) -> str:
    """Return why an ended run or monitor has no charts."""
    if entry.kind == "monitor":
        return entry.run.error or "The monitor ended before its first sample."
    began = any(phase.name == "running" for phase in entry.run.status.phases)
    return "No samples were recorded for this run: " + (
        "it was too short, or its machine does not report any." if began else "it never started."
    )


def _host(entry: Entry) -> tuple[str, ...]:
    # A monitor has no processes of its own, so show the whole machine.
    return ("host_cpu", "host_memory") if entry.kind == "monitor" else HOST


def _series(node: NodeTelemetry, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"gpu{gpu.get('index', i)}.{name}" for i, gpu in enumerate(node.gpus) for name in names)


def _gpu(node: NodeTelemetry, i: int, several: bool) -> Gpu:
    gpu = node.gpus[i]
    index = int(gpu.get("index", i))
    total = known(gpu.get("memory_total"))
    return Gpu(
        node=node.node,
        index=index,
        label=(f"n{node.node} " if several else "") + gpu_name({"index": i, **gpu}),
        name=str(gpu.get("name") or "GPU"),
        memory_total=None if total is None else total * MIB,
        power_limit=node.slow[i].get("power_limit") or gpu.get("power_limit"),
    )


def _spans(entry: Entry) -> tuple[tuple[GridSpan, ...], float | None]:
    """Return the phases other than *running*, and the start of the charts."""
    spans, start = [], None
    for phase in entry.run.status.phases:
        if phase.name == "running":
            start = phase.start if start is None else start
            continue
        end = phase.end if phase.end is not None else phase.start + (phase.seconds or 0.0)
        spans.append(GridSpan(name=phase.name, start=phase.start, end=end))
    if start is not None and spans and spans[0].start < start:
        start = max(spans[0].start, start - _MAX_QUEUE_S)
    return tuple(spans), start
