"""Live dashboard of one page: bqplot figures, controls and a feed."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Sequence
from typing import Any

import ipywidgets
import msgspec
import numpy as np

from jupyter_amltrain.agent.telemetry.gpu_columns import ACTIVITY, BY_NAME
from jupyter_amltrain.agent.telemetry.gpu_names import gpu_counts
from jupyter_amltrain.kernel.min_max_history import MAX_BUCKETS
from jupyter_amltrain.kernel.run_record import LINES, METRICS
from jupyter_amltrain.kernel.telemetry import RunTelemetry
from jupyter_amltrain.output.feed import RING, Columns, StreamFeed
from jupyter_amltrain.output.layout import HOST_PREFIX, USE, Gpu, GpuChart, Layout, windows
from jupyter_amltrain.output.palette import BEST, STOPPED
from jupyter_amltrain.output.palette import GPUS as COLORS
from jupyter_amltrain.schema.sweep_board import SweepBoard

with warnings.catch_warnings():  # raised by bqplot itself; `-W error` must not break the import
    warnings.simplefilter("ignore")
    import bqplot

_GRAY = "#8A8A8A"

_PHASE = {"queued": "#8A8A8A", "preparing": "#8A8A8A", "finalizing": "#E69F00"}

#: Heights (CSS pixels) and margins of the drawings: those of the saved charts (``charts/chart.ts``), so that nothing
#: moves when live charts take their place. The page writes title and value above each.
_HEIGHT, _STRIP_HEIGHT = 132, 56

_MARGIN = {"top": 6, "bottom": 20, "left": 50, "right": 10}

_STRIP_MARGIN = {**_MARGIN, "bottom": 16}

#: The same for figures that draw their title themselves.
_TITLED_HEIGHT, _TITLED_MARGIN = 180, {"top": 30, "bottom": 26, "left": 60, "right": 20}

#: Seconds after the start that no run reaches: the right end of dashed lines.
_FAR = 1e10

#: Colors of metrics and of the host.
_METRIC_COLOR, _HOST_COLOR = COLORS[0], COLORS[2]

Spec = dict[str, Any]


class LiveChart:
    """One figure, its marks and the specs by which the page feeds them (see ``feed.ts``).

    Parameters
    ----------
    layout
        Layout whose phases to shade; ``None`` if the x axis is not time.
    strip
        Whether the chart is low, with two ticks on the y axis.
    """

    def __init__(self, title: str, x: Any, y: Any, axis: Any, layout: Layout | None, *, strip: bool = False) -> None:
        self.x, self.y, self.title = x, y, title
        self.marks: list[Any] = []
        self.specs: list[Spec] = []
        self._strip = strip
        if layout is not None:
            self._shade(layout)
        self._axis = axis

    def add(self, mark: Any, spec: Spec) -> None:
        """Add a mark."""
        self.marks.append(mark)
        self.specs.append(spec)

    def lines(self, spec: Spec, colors: Sequence[str], labels: Sequence[str], **style: Any) -> None:
        """Add the lines of one node."""
        self.add(
            bqplot.Lines(
                x=np.zeros(0),
                y=np.zeros((len(labels), 0)),
                scales={"x": self.x, "y": self.y},
                colors=list(colors),
                labels=list(labels),
                preserve_domain={"x": True},  # the page moves the axis
                **{"stroke_width": 1.6, **style},
            ),
            spec,
        )

    def band(self, field: str, color: str, high: str = "") -> None:
        """Add mean and range over all GPUs, or over all hosts (``"host.cpu"``).

        Rows are maximum (of the field `high`), mean, minimum.
        """
        self.lines(
            {"kind": "band", "field": field, "high": high or field},
            [color] * 3,
            ["maximum", "mean", "minimum"],
            fill="between",
            fill_colors=[color] * 3,
            opacities=[0.35, 1, 0.35],
            fill_opacities=[0.22, 0.22, 0],
            stroke_width=1.4,
        )

    def level(self, value: float) -> None:
        """Add a dashed line at a fixed height, such as the size of the memory."""
        self.add(
            bqplot.Lines(
                x=np.array([0.0, _FAR]),
                y=np.array([value, value]),
                scales={"x": self.x, "y": self.y},
                colors=[_GRAY],
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
            color = _PHASE.get(span.name, _GRAY)
            self.add(
                bqplot.Lines(
                    x=np.array([span.start - layout.start, span.end - layout.start]),
                    y=np.array([1.0, 1.0]),
                    scales={"x": self.x, "y": unit},
                    colors=[color],
                    fill="bottom",
                    fill_colors=[color],
                    opacities=[0],
                    fill_opacities=[0.16],
                    preserve_domain={"x": True, "y": True},
                    labels=[span.name],
                ),
                # The page knows when the charts begin.
                {"kind": "span", "start": span.start, "end": span.end},
            )

    def figure(self, *, titled: bool = False) -> Any:
        """Return the bqplot Figure.

        Parameters
        ----------
        titled
            Whether the figure draws its title; otherwise the page does, and sets the ticks.
        """
        margin = _TITLED_MARGIN if titled else _STRIP_MARGIN if self._strip else _MARGIN
        height = _TITLED_HEIGHT if titled else _STRIP_HEIGHT if self._strip else _HEIGHT
        below = bqplot.Axis(scale=self.x, grid_lines="none", tick_style={"font-size": "10px"}, num_ticks=4)
        return bqplot.Figure(
            title=self.title,
            marks=self.marks,
            axes=[below, self._axis],
            animation_duration=0,
            fig_margin=dict(margin),
            min_aspect_ratio=0.1,
            max_aspect_ratio=40,
            padding_y=0,
            background_style={"fill": "none"},
            title_style={"font-size": "12px", "font-weight": "600"},
            # No PanZoom: it would send limits to the kernel with each move. The page implements zoom.
            layout=ipywidgets.Layout(height=f"{height}px", width="auto", min_width="0", flex="1 1 300px"),
            # Newer bqplot versions have a toolbar, which would cover the chart.
            **({"display_toolbar": False} if "display_toolbar" in bqplot.Figure.class_trait_names() else {}),
        )


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
    """Return labeled ticks at round binary numbers up to `top`, which counts in `unit` bytes."""
    step = 2.0 ** math.ceil(math.log2(max(top * unit / 4, 1)))
    values = [k * step / unit for k in range(int(top * unit / step) + 1)]
    return {"tick_values": values, "tick_labels": {f"{value:g}": _bytes(value * unit) for value in values}}


def _bytes(value: float) -> str:
    for name in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or name == "TiB":
            break
        value /= 1024
    return f"{value:g} {name}"


def _per_node(chart: LiveChart, layout: Layout, field: str, **style: Any) -> None:
    for node in layout.nodes:
        gpus = [(k, gpu) for k, gpu in enumerate(layout.gpus) if gpu.node == node]
        if not gpus:
            continue
        chart.lines(
            {"kind": "lines", "node": node, "columns": [layout.column(node, f"gpu{g.index}.{field}") for _, g in gpus]},
            [COLORS[k % len(COLORS)] for k, _ in gpus],
            [gpu.label + BY_NAME[field].legend for _, gpu in gpus],
            **style,
        )


#: Maximum dashed lines for sizes or limits in one chart, if GPUs differ.
MAX_LEVELS = 4


def _maximum(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value), default=None)


def gpu_charts(layout: Layout, x: Any) -> list[LiveChart]:
    """Return the GPU charts of the layout's view; empty without GPUs."""
    if not layout.gpus:
        return []
    if layout.view == USE:
        return _use_charts(layout, x)
    view = next(view for view in layout.views if view.name == layout.view)
    return [_figure_chart(layout, x, chart) for chart in view.charts]


def _figure_chart(layout: Layout, x: Any, what: GpuChart) -> LiveChart:
    """Return one chart of a view; its limits follow the data unless the unit is percent."""
    scale = bqplot.LinearScale(min=0, max=100) if what.percent else bqplot.LinearScale(min=0)
    ticks: dict[str, Any] = {"tick_values": [0, 25, 50, 75, 100]} if what.percent else {"num_ticks": 4}
    chart = LiveChart(what.title, x, scale, _axis(scale, **ticks), layout)
    if layout.many:
        chart.band(what.field, COLORS[0])
        return chart
    if what.thin:
        _per_node(chart, layout, what.thin, stroke_width=1, opacities=[0.6] * len(layout.gpus))
    _per_node(chart, layout, what.field)
    return chart


def _use_charts(layout: Layout, x: Any) -> list[LiveChart]:
    """Return the charts of utilization, memory and power."""
    gpus: Sequence[Gpu] = layout.gpus
    percent = bqplot.LinearScale(min=0, max=100)
    beside = layout.activity and not layout.many
    title = BY_NAME["util"].label + (", dashed: SM activity" if beside else "")
    util = LiveChart(title, x, percent, _axis(percent, tick_values=[0, 25, 50, 75, 100]), layout)
    total = _maximum([gpu.memory_total for gpu in gpus])
    size = bqplot.LinearScale(min=0, max=total * 1.06) if total else bqplot.LinearScale(min=0)
    ticks = _byte_ticks(total, 1024.0**2) if total else {"num_ticks": 4}
    memory = LiveChart(BY_NAME["memory"].label + ("" if total else " (MiB)"), x, size, _axis(size, **ticks), layout)
    limit = _maximum([gpu.power_limit for gpu in gpus])
    watts = bqplot.LinearScale(min=0, max=limit * 1.1) if limit else bqplot.LinearScale(min=0)
    power = LiveChart(BY_NAME["power"].label, x, watts, _axis(watts, **({} if limit else {"num_ticks": 4})), layout)
    for chart, values in ((memory, [gpu.memory_total for gpu in gpus]), (power, [gpu.power_limit for gpu in gpus])):
        for value in sorted({value for value in values if value})[:MAX_LEVELS]:
            chart.level(value)
    for chart, field in ((util, "util"), (memory, "memory"), (power, "power")):
        if layout.many:
            chart.band(field, COLORS[0], "peak" if field == "util" else "")
        else:
            if field == "util":
                _per_node(chart, layout, "peak", stroke_width=1, opacities=[0.45] * len(gpus))
                if beside:
                    _per_node(chart, layout, ACTIVITY, line_style="dashed")
            _per_node(chart, layout, field)
    return [util, memory, power]


def host_charts(layout: Layout, x: Any) -> list[LiveChart]:
    """Return the charts of the run's CPU and memory: low ones if there is no GPU."""
    own = "cpu" in layout.columns[layout.nodes[0]]
    names = ("cpu", "memory") if own else ("host_cpu", "host_memory")
    titles = ("CPU", "Memory") if own else ("CPU of the machine", "Memory of the machine")
    scales = (bqplot.LinearScale(min=0) if own else bqplot.LinearScale(min=0, max=100), bqplot.LinearScale(min=0))
    charts = []
    for name, title, scale in zip(names, titles, scales, strict=True):
        axis = _axis(scale, num_ticks=4)
        chart = LiveChart(title, x, scale, axis, layout, strip=not layout.gpus)
        charts.append(chart)
        if len(layout.nodes) > LINES:
            chart.band(f"{HOST_PREFIX}{name}", _HOST_COLOR)
            continue
        for k, node in enumerate(layout.nodes):
            spec = {"kind": "lines", "node": node, "columns": [layout.column(node, name)]}
            label = layout.hosts[k] if len(layout.nodes) > 1 else title
            color = COLORS[k % len(COLORS)] if len(layout.nodes) > 1 else _HOST_COLOR
            chart.lines(spec, [color], [label])
    return charts


def metric_chart(name: str) -> LiveChart:
    """Return the chart of one metric of the script, by step."""
    scale = bqplot.LinearScale()
    chart = LiveChart(name[:60], bqplot.LinearScale(), scale, _axis(scale), None)
    chart.lines({"kind": "metric", "name": name}, [_METRIC_COLOR], [name], marker_size=40)
    return chart


class TrialChart(LiveChart):
    """Chart of the primary metric of a sweep's trials, by step: the best one, those that run, stopped ones in gray."""

    def __init__(self, metric: str) -> None:
        scale = bqplot.LinearScale()
        super().__init__(f"{metric[:50]} of the trials", bqplot.LinearScale(), scale, _axis(scale, num_ticks=4), None)
        # The kernel sends these: the page has the points of the run's own metrics only.
        self._lines = bqplot.Lines(x=np.zeros(0), y=np.zeros(0), scales={"x": self.x, "y": self.y}, stroke_width=1.4)
        self.add(self._lines, {"kind": "static"})

    def show(self, board: SweepBoard) -> None:
        """Show the curves of a board."""
        curves = board.curves
        if not curves:
            return
        early, length = set(board.early), max(len(curve.step) for curve in curves)
        x, y = (np.empty((len(curves), length), np.float32) for _ in range(2))
        for row, curve in enumerate(curves):
            # Rows have one length: the last point is repeated.
            x[row] = np.pad(np.array(curve.step, np.float32), (0, length - len(curve.step)), "edge")
            y[row] = np.pad(np.array(curve.value, np.float32), (0, length - len(curve.value)), "edge")
        with self._lines.hold_sync():
            self._lines.x, self._lines.y = x, y
            self._lines.colors = [
                BEST if curve.trial == board.best else STOPPED if curve.trial in early else COLORS[0]
                for curve in curves
            ]
            self._lines.opacities = [
                1.0 if curve.trial == board.best else 0.35 if curve.trial in early else 0.6 for curve in curves
            ]
            self._lines.labels = [f"trial {board.number[curve.trial]}" for curve in curves]


class Dashboard:
    """Widgets of one dashboard.

    Parameters
    ----------
    layout
        What is shown.
    metrics
        Names of the metrics that the script has logged so far.
    titled
        Whether the figures draw their titles, for front ends without the labextension.
    """

    def __init__(self, layout: Layout, metrics: tuple[str, ...] = (), *, titled: bool = False) -> None:
        self.plan, self._titled = layout, titled
        self.x = bqplot.LinearScale()  # seconds since the start
        self.window = ipywidgets.Dropdown(
            options=windows(layout.window),
            value=layout.window,
            layout=ipywidgets.Layout(width="84px"),
            tooltip="Time range",
        )
        self.pause = ipywidgets.ToggleButton(
            value=False,
            icon="pause",
            tooltip="Pause the charts (recording continues)",
            layout=ipywidgets.Layout(width="36px"),
        )
        self.follow = ipywidgets.ToggleButton(
            value=True, description="Live", tooltip="Jump to latest", layout=ipywidgets.Layout(width="56px")
        )
        self.view = ipywidgets.Dropdown(
            options=[(view.label, view.name) for view in layout.views],
            value=layout.view if layout.views else None,
            layout=ipywidgets.Layout(width="215px", display=None if len(layout.views) > 1 else "none"),
            tooltip="GPU charts",
        )
        self.status = ipywidgets.HTML()
        self.table = ipywidgets.HTML()
        #: Charts of trials, of metrics, of GPUs and of the host, in this order.
        self._gpu, self._host = gpu_charts(layout, self.x), host_charts(layout, self.x)
        self._metric_charts: list[LiveChart] = []
        self._trials: TrialChart | None = None
        self._figures: dict[int, Any] = {id(chart): chart.figure(titled=titled) for chart in (*self._gpu, *self._host)}
        self.metrics: list[str] = []
        bar = ipywidgets.HBox(
            [self.window, self.view, self.pause, self.follow, self.status],
            layout=ipywidgets.Layout(align_items="center", flex_flow="row wrap"),
        )
        bar.add_class("jp-AmlDashboard-bar")
        self._line_break = ipywidgets.Box(layout=ipywidgets.Layout(flex="0 0 100%", height="0"))
        self.grid = ipywidgets.Box(self._rows(), layout=ipywidgets.Layout(flex_flow="row wrap", width="100%"))
        self.grid.add_class("jp-AmlRun-charts")
        self.legend = ipywidgets.HTML(_legend(layout))
        self._legend_of: tuple[Layout, str, str] | None = None
        head = ipywidgets.HBox(
            [self.legend, bar], layout=ipywidgets.Layout(justify_content="space-between", flex_flow="row wrap")
        )
        head.add_class("jp-AmlDashboard-head")
        self.root = ipywidgets.VBox([head, self.grid, self.table])
        self.root.add_class("jp-AmlDashboard")
        self.add_metrics(metrics)
        self.feed: StreamFeed | None = None

    @property
    def charts(self) -> list[LiveChart]:
        """All charts in their order on the page."""
        trials = [] if self._trials is None else [self._trials]
        return [*trials, *self._metric_charts, *self._gpu, *self._host]

    @property
    def figures(self) -> list[Any]:
        """Figures of :attr:`charts`."""
        return [self._figures[id(chart)] for chart in self.charts]

    def connect(self, feed_id: str, telemetry: RunTelemetry, *, done: bool) -> StreamFeed:
        """Create the feed; its first message contains all data so far. Loop thread only."""
        layout = self.plan
        columns = [Columns(telemetry.node(n), layout.columns[n]) for n in layout.nodes]
        self.feed = StreamFeed(
            columns,
            feed=feed_id,
            handle=layout.handle,
            root=self.root,
            xscale=self.x,
            window=self.window,
            view=self.view,
            pause=self.pause,
            follow=self.follow,
            status=self.status,
            table=self.table,
            figures=self.figures,
            marks=[mark for chart in self.charts for mark in chart.marks],
            specs=[spec for chart in self.charts for spec in chart.specs],
            layout=layout.wire(RING, MAX_BUCKETS),
            heat=layout.many,
            done=done,
        )
        return self.feed

    def add_metrics(self, names: tuple[str, ...]) -> bool:
        """Add charts for new metrics, up to the maximum; returns whether any was added."""
        new = [name for name in names if name not in self.metrics][: METRICS - len(self.metrics)]
        for name in new:
            chart = metric_chart(name)
            self.metrics.append(name)
            self._metric_charts.append(chart)
            self._figures[id(chart)] = chart.figure(titled=self._titled)
        if new:
            self._show_figures()
        return bool(new)

    def show_trials(self, board: SweepBoard) -> None:
        """Show the trials of a sweep in a chart of their own."""
        if self._trials is None:
            if not board.curves:
                return
            self._trials = TrialChart(board.metric)
            self._figures[id(self._trials)] = self._trials.figure(titled=self._titled)
            self._show_figures()
        self._trials.show(board)

    def _rows(self) -> list[Any]:
        """Return the figures for the page; the host's low strips begin a row of their own."""
        at = len(self.charts) - len(self._gpu) - len(self._host)
        if self.plan.gpus or not at:
            return self.figures
        return [*self.figures[:at], self._line_break, *self.figures[at:]]

    def _show_figures(self, telemetry: RunTelemetry | None = None) -> None:
        self.grid.children = self._rows()
        feed = getattr(self, "feed", None)
        if feed is None:
            return
        with feed.hold_sync():
            if telemetry is not None:
                feed.use([Columns(telemetry.node(n), self.plan.columns[n]) for n in self.plan.nodes])
                feed.layout = self.plan.wire(RING, MAX_BUCKETS)
            feed.figures = self.figures
            feed.marks = [mark for chart in self.charts for mark in chart.marks]
            feed.specs = [spec for chart in self.charts for spec in chart.specs]

    def prepare(self, layout: Layout) -> tuple[list[LiveChart], list[Any]]:
        """Build the charts and figures of another GPU view; run this off the loop."""
        charts = gpu_charts(layout, self.x)
        return charts, [chart.figure(titled=self._titled) for chart in charts]

    def switch(self, layout: Layout, built: tuple[list[LiveChart], list[Any]], telemetry: RunTelemetry) -> list[Any]:
        """Switch to the GPU charts of another view; the page then requests their data.

        Returns
        -------
        list
            Widgets that are no longer shown, to be closed off the loop.
        """
        old = _with_parts([self._figures.pop(id(chart)) for chart in self._gpu])
        self.plan = layout
        self._gpu = built[0]
        self._figures.update((id(chart), figure) for chart, figure in zip(*built, strict=True))
        self._show_figures(telemetry)
        current = {id(widget) for widget in _with_parts([getattr(self, "feed", None), self.root])}
        return [widget for widget in old if id(widget) not in current]

    def show_note(self, note: str, metrics: int) -> None:
        """Show a note about the GPUs in the legend, and how many of all metrics have a chart."""
        shown = (self.plan, note, f"{len(self.metrics)} of {metrics} metrics" if metrics > METRICS else "")
        if self._legend_of is not None and shown[0] is self._legend_of[0] and shown[1:] == self._legend_of[1:]:
            return  # to count 1,024 GPUs takes milliseconds
        self._legend_of = shown
        text = _legend(*shown)
        if text != self.legend.value:
            self.legend.value = text

    def close(self) -> None:
        """Close every widget, including layouts, styles and scales."""
        for widget in _with_parts([self.feed, self.root, self._line_break]):
            if widget.comm is not None:
                widget.close()


def _with_parts(widgets: Any) -> list[Any]:
    """Return `widgets` and all widgets reachable through their synchronized traits."""
    waiting, seen = list(widgets), dict[int, Any]()
    for value in waiting:
        if isinstance(value, ipywidgets.Widget) and id(value) not in seen:
            seen[id(value)] = value
            waiting += [getattr(value, name) for name in value.keys if name != "comm"]
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
    return list(seen.values())


def _legend(layout: Layout, note: str = "", metrics: str = "") -> str:
    """Return the legend as HTML: the color of each GPU unless there are too many, and notes."""
    if not layout.gpus:
        # A missing driver is no news where nothing asked for a GPU: the charts of the processor say it.
        text = " · ".join(filter(None, (note, metrics)))
        return f'<span class="jp-AmlDashboard-note">{html.escape(text)}</span>' if text else ""
    what = gpu_counts((msgspec.to_builtins(gpu) for gpu in layout.gpus), "×")
    if layout.many:
        what += f" on {len(layout.nodes)} nodes" if len(layout.nodes) > 1 else ""
        what += ": mean, minimum to maximum"
    what = html.escape(" · ".join(filter(None, (what, metrics))))
    if note:
        what += f' · <strong class="jp-AmlDashboard-news">{html.escape(note)}</strong>'
    if layout.many:
        return f'<span class="jp-AmlDashboard-note">{what}</span>'
    chips = "".join(
        f'<span class="jp-AmlDashboard-chip"><i style="background:{COLORS[k]}"></i>{html.escape(gpu.label)}</span>'
        for k, gpu in enumerate(layout.gpus)
    )
    return f'<span class="jp-AmlDashboard-legend">{chips}<span class="jp-AmlDashboard-note">{what}</span></span>'
