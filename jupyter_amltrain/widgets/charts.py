"""The bqplot figures of a dashboard, without data: the feed brings it.

Importing this imports bqplot (most of a second of CPU), so nobody does before a page
asks for a dashboard.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import ipywidgets
import numpy as np

from jupyter_amltrain.agent.gpu_columns import ACTIVITY, BY_NAME
from jupyter_amltrain.widgets.gpu_views import USE, GpuChart
from jupyter_amltrain.widgets.layout import Gpu, Layout
from jupyter_amltrain.widgets.palette import GPUS as COLOURS

with warnings.catch_warnings():  # of bqplot's own modules; `-W error` must not end the import
    warnings.simplefilter("ignore")
    import bqplot

_GREY = "#8A8A8A"
_PHASE = {"queued": "#8A8A8A", "preparing": "#8A8A8A", "finalizing": "#E69F00"}
_MARGIN = {"top": 30, "bottom": 26, "left": 52, "right": 30}
_FAR = datetime(2100, 1, 1, tzinfo=timezone.utc).timestamp()

Spec = dict[str, Any]


class Chart:
    """One figure, its marks and how the page feeds each (see ``feed.ts`` for the specs).

    Parameters
    ----------
    layout
        Its phases are shaded; ``None`` for a chart whose x axis is not time.
    """

    def __init__(self, title: str, x: Any, y: Any, axis: Any, layout: Layout | None) -> None:
        self.x, self.y, self.title = x, y, title
        self.marks: list[Any] = []
        self.specs: list[Spec] = []
        self._time = layout is not None
        if layout is not None:
            self._shade(layout)
        self._axis = axis

    def add(self, mark: Any, spec: Spec) -> None:
        """Add a mark."""
        self.marks.append(mark)
        self.specs.append(spec)

    def lines(self, spec: Spec, colours: Sequence[str], labels: Sequence[str], **style: Any) -> None:
        """Add the lines of one node."""
        self.add(
            bqplot.Lines(
                x=np.zeros(0),
                y=np.zeros((len(labels), 0)),
                scales={"x": self.x, "y": self.y},
                colors=list(colours),
                labels=list(labels),
                preserve_domain={"x": True},  # the page moves the axis
                **{"stroke_width": 1.6, **style},
            ),
            spec,
        )

    def band(self, field: str, colour: str, high: str = "") -> None:
        """Add mean and range over all GPUs: rows are most (of the field `high`), mean, least."""
        self.lines(
            {"kind": "band", "field": field, "high": high or field},
            [colour] * 3,
            ["most", "mean", "least"],
            fill="between",
            fill_colors=[colour] * 3,
            opacities=[0.35, 1, 0.35],
            fill_opacities=[0.22, 0.22, 0],
            stroke_width=1.4,
        )

    def level(self, value: float) -> None:
        """Add a dashed line at a fixed height, such as the size of the memory."""
        self.add(
            bqplot.Lines(
                x=_dates([0.0, _FAR]),
                y=np.array([value, value]),
                scales={"x": self.x, "y": self.y},
                colors=[_GREY],
                line_style="dashed",
                stroke_width=1.2,
                preserve_domain={"x": True, "y": True},
            ),
            {"kind": "static"},
        )

    def _shade(self, layout: Layout) -> None:
        unit = bqplot.LinearScale(min=0, max=1)
        for span in layout.spans:
            if span.end - span.start < 0.5:
                continue
            colour = _PHASE.get(span.name, _GREY)
            self.add(
                bqplot.Lines(
                    x=_dates([span.start, span.end]),
                    y=np.array([1.0, 1.0]),
                    scales={"x": self.x, "y": unit},
                    colors=[colour],
                    fill="bottom",
                    fill_colors=[colour],
                    opacities=[0],
                    fill_opacities=[0.16],
                    preserve_domain={"x": True, "y": True},
                    labels=[span.name],
                ),
                # The page draws it again, on its own clock: bqplot's time axis is in UTC.
                {"kind": "span", "start": span.start, "end": span.end},
            )

    def figure(self) -> Any:
        """The bqplot Figure."""
        # The page sets the ticks of steps, with the limits.
        ticks: dict[str, Any] = {"num_ticks": 4, "tick_format": "%H:%M:%S"} if self._time else {}
        below = bqplot.Axis(scale=self.x, grid_lines="none", tick_style={"font-size": "10px"}, **ticks)
        return bqplot.Figure(
            title=self.title,
            marks=self.marks,
            axes=[below, self._axis],
            animation_duration=0,
            fig_margin=dict(_MARGIN),
            min_aspect_ratio=0.1,
            max_aspect_ratio=20,
            padding_y=0,
            background_style={"fill": "none"},
            title_style={"font-size": "12px", "font-weight": "600"},
            # No PanZoom: it sends the limits of a date scale in a form that bqscales cannot read. The page zooms.
            layout=ipywidgets.Layout(height="200px", width="auto", min_width="0"),
            # Newer ones have a toolbar, which would cover the title.
            **({"display_toolbar": False} if "display_toolbar" in bqplot.Figure.class_trait_names() else {}),
        )


def _dates(seconds: Sequence[float]) -> Any:
    return (np.array(seconds) * 1e3).astype("datetime64[ms]")


def _axis(scale: Any, **more: Any) -> Any:
    axis = bqplot.Axis(
        scale=scale,
        grid_lines="solid",
        grid_color="rgba(128,128,128,0.18)",
        tick_style={"font-size": "10px"},
        **more,
    )
    axis.orientation = "vertical"  # a trait in bqplot 0.12, a property in 0.13
    return axis


def _byte_ticks(top: float, unit: float) -> dict[str, Any]:
    """Ticks at round binary numbers below `top`, with labels; `unit` bytes are one."""
    step = 2.0 ** math.ceil(math.log2(max(top * unit / 4, 1)))
    values = [k * step / unit for k in range(int(top * unit / step) + 1)]
    return {"tick_values": values, "tick_labels": {f"{value:g}": _bytes(value * unit) for value in values}}


def _bytes(value: float) -> str:
    for name in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or name == "TiB":
            break
        value /= 1024
    return f"{value:g} {name}"


def _per_node(chart: Chart, layout: Layout, field: str, **style: Any) -> None:
    for node in layout.nodes:
        gpus = [(k, gpu) for k, gpu in enumerate(layout.gpus) if gpu.node == node]
        if not gpus:
            continue
        chart.lines(
            {"kind": "lines", "node": node, "columns": [layout.column(node, f"gpu{g.index}.{field}") for _, g in gpus]},
            [COLOURS[k % len(COLOURS)] for k, _ in gpus],
            [gpu.label + BY_NAME[field].legend for _, gpu in gpus],
            **style,
        )


#: Dashed lines of sizes and limits in one chart, where GPUs have different ones.
MAX_LEVELS = 4


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value), default=None)


def gpu_charts(layout: Layout, x: Any) -> list[Chart]:
    """Charts of the GPUs: those of the layout's view; none without a GPU."""
    if not layout.gpus:
        return []
    if layout.view == USE:
        return _use_charts(layout, x)
    view = next(view for view in layout.views if view.name == layout.view)
    return [_figure_chart(layout, x, chart) for chart in view.charts]


def _figure_chart(layout: Layout, x: Any, what: GpuChart) -> Chart:
    """One chart of a view; its limits follow the data unless it is a percentage."""
    scale = bqplot.LinearScale(min=0, max=100) if what.percent else bqplot.LinearScale(min=0)
    ticks: dict[str, Any] = {"tick_values": [0, 25, 50, 75, 100]} if what.percent else {"num_ticks": 4}
    chart = Chart(what.title, x, scale, _axis(scale, **ticks), layout)
    if layout.many:
        chart.band(what.field, COLOURS[0])
        return chart
    if what.thin:
        _per_node(chart, layout, what.thin, stroke_width=1, opacities=[0.6] * len(layout.gpus))
    _per_node(chart, layout, what.field)
    return chart


def _use_charts(layout: Layout, x: Any) -> list[Chart]:
    """Utilization, memory and power."""
    gpus: Sequence[Gpu] = layout.gpus
    percent = bqplot.LinearScale(min=0, max=100)
    beside = layout.activity and not layout.many
    title = "GPU utilization, dashed: SM activity (%)" if beside else "GPU utilization (%)"
    util = Chart(title, x, percent, _axis(percent, tick_values=[0, 25, 50, 75, 100]), layout)
    total = _most([gpu.memory_total for gpu in gpus])
    size = bqplot.LinearScale(min=0, max=total * 1.06) if total else bqplot.LinearScale(min=0)
    ticks = _byte_ticks(total, 1024.0**2) if total else {"num_ticks": 4}
    memory = Chart("GPU memory" if total else "GPU memory (MiB)", x, size, _axis(size, **ticks), layout)
    limit = _most([gpu.power_limit for gpu in gpus])
    watts = bqplot.LinearScale(min=0, max=limit * 1.1) if limit else bqplot.LinearScale(min=0)
    power = Chart("GPU power (W)", x, watts, _axis(watts, **({} if limit else {"num_ticks": 4})), layout)
    for chart, values in ((memory, [gpu.memory_total for gpu in gpus]), (power, [gpu.power_limit for gpu in gpus])):
        for value in sorted({value for value in values if value})[:MAX_LEVELS]:
            chart.level(value)
    for chart, field in ((util, "util"), (memory, "memory"), (power, "power")):
        if layout.many:
            chart.band(field, COLOURS[0], "peak" if field == "util" else "")
        else:
            if field == "util":
                _per_node(chart, layout, "peak", stroke_width=1, opacities=[0.45] * len(gpus))
                if beside:
                    _per_node(chart, layout, ACTIVITY, line_style="dashed")
            _per_node(chart, layout, field)
    return [util, memory, power]


def host_charts(layout: Layout, x: Any) -> list[Chart]:
    """CPU of the run's processes, and their memory where there is no GPU to look at."""
    own = "cpu" in layout.columns[layout.nodes[0]]
    names = ("cpu", "memory") if own else ("host_cpu", "host_memory")
    scale = bqplot.LinearScale(min=0) if own else bqplot.LinearScale(min=0, max=100)
    title = f"CPU of the run (% of one core, of {layout.cpus * 100:.0f})" if own else "CPU of the machine (%)"
    ticks: dict[str, Any] = {"num_ticks": 4} if own else {"tick_values": [0, 25, 50, 75, 100]}
    charts = [Chart(title, x, scale, _axis(scale, **ticks), layout)]
    if not layout.gpus:
        bytes_ = bqplot.LinearScale(min=0)
        charts.append(
            Chart(
                "Memory of the run (bytes)" if own else "Memory of the machine (bytes)",
                x,
                bytes_,
                _axis(bytes_, num_ticks=4, tick_format=".3s"),
                layout,
            )
        )
    for chart, name in zip(charts, names, strict=False):
        for k, node in enumerate(layout.nodes):
            spec = {"kind": "lines", "node": node, "columns": [layout.column(node, name)]}
            label = layout.hosts[k] if len(layout.nodes) > 1 else name
            chart.lines(spec, [COLOURS[(2 + k) % len(COLOURS)]], [label])
    return charts


def metric_chart(name: str) -> Chart:
    """One of the script's metrics, by step."""
    scale = bqplot.LinearScale()
    chart = Chart(name[:60], bqplot.LinearScale(), scale, _axis(scale), None)
    chart.lines({"kind": "metric", "name": name}, [COLOURS[3]], [name], marker_size=40)
    return chart
