"""Live dashboard of one page: bqplot figures, controls and a feed."""

from __future__ import annotations

import html
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import ipywidgets
import msgspec
import numpy as np

from jupyter_amltrain.kernel import run_charts as kernel_charts
from jupyter_amltrain.kernel.chart_axes import metric_axis
from jupyter_amltrain.kernel.min_max_history import MAX_BUCKETS
from jupyter_amltrain.kernel.run_charts import MAX_LINES, fitted, gpu_chart, gpu_count_text, top_of
from jupyter_amltrain.kernel.run_record import METRICS
from jupyter_amltrain.kernel.samples import Columns
from jupyter_amltrain.kernel.telemetry import MIB, RunTelemetry
from jupyter_amltrain.output.feed import RING, StreamFeed
from jupyter_amltrain.output.layout import HOST_PREFIX, Layout, windows
from jupyter_amltrain.output.palette import BEST, STOPPED
from jupyter_amltrain.output.palette import GPUS as COLORS
from jupyter_amltrain.schema.chart import STRIP_HEIGHT, Axis, Chart, ChartMark, Level
from jupyter_amltrain.schema.sweep_board import SweepBoard

with warnings.catch_warnings():  # raised by bqplot itself; `-W error` must not break the import
    warnings.simplefilter("ignore")
    import bqplot

_GRAY = "#8A8A8A"

_PHASE = {"queued": "#8A8A8A", "preparing": "#8A8A8A", "finalizing": "#E69F00"}

#: Margins of the drawings, CSS pixels: those of the saved charts (``charts/chart.ts``), so that nothing moves when
#: live charts take their place. The page writes title and value above each.
_MARGIN = {"top": 6, "bottom": 20, "left": 50, "right": 10}

_STRIP_MARGIN = {**_MARGIN, "bottom": 16}

#: The same for figures that draw their title themselves.
_TITLED_HEIGHT, _TITLED_MARGIN = 180, {"top": 30, "bottom": 26, "left": 60, "right": 20}

#: Seconds after the start that no run reaches: the right end of dashed lines.
_FAR = 1e10

#: Width and opacity of the lines of each style, besides their dashes.
_STYLES = {"": (1.6, 1.0), "faint": (1.0, 0.5), "dashed": (1.6, 1.0)}

Spec = dict[str, Any]


class LiveChart:
    """One figure, its marks and the specs by which the page feeds them (see ``feed.ts``).

    Parameters
    ----------
    chart
        What the chart shows; its axis is only a first one where it follows the data.
    x
        Scale of the x axis.
    layout
        Layout whose phases to shade; ``None`` if the x axis is not time.
    """

    def __init__(self, chart: Chart, x: Any, layout: Layout | None = None) -> None:
        self.chart, self.x = chart, x
        # An axis without limits cannot be drawn; the page sets those of the data.
        limits = {"min": chart.y.min, "max": chart.y.max} if chart.y else {} if layout is None else {"min": 0, "max": 1}
        self.y = bqplot.LinearScale(**limits)
        self.marks: list[Any] = []
        self.specs: list[Spec] = []
        self._moments: Any = None
        if layout is not None:
            self._shade(layout)
        for level in chart.levels:
            self._level(level.value)
        self._axis = _axis(self.y, chart)

    def add(self, mark: Any, spec: Spec) -> None:
        """Add a mark."""
        self.marks.append(mark)
        self.specs.append(spec)

    def lines(self, spec: Spec, colors: Sequence[str], labels: Sequence[str], **style: Any) -> None:
        """Add lines that one message feeds."""
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

    def _level(self, value: float) -> None:
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

    def show_marks(self, marks: Sequence[ChartMark], start: float) -> None:
        """Show moments of the run as vertical lines.

        Parameters
        ----------
        start
            Unix seconds at 0 of an axis of time.
        """
        by_step = self.chart.key.startswith("metric ")
        places = [mark.step if by_step else mark.time - start for mark in marks]
        x = np.repeat([place for place in places if place is not None], 3)
        # One line for all of them, with a gap behind each.
        y = np.tile([0.0, 1.0, np.nan], len(x) // 3)
        spec = {"kind": "marks", "steps": by_step, "marks": msgspec.to_builtins(marks)}
        if self._moments is None:
            self._moments = bqplot.Lines(
                x=x,
                y=y,
                scales={"x": self.x, "y": bqplot.LinearScale(min=0, max=1)},
                colors=[_GRAY],
                line_style="dash_dotted",
                stroke_width=1.2,
                preserve_domain={"x": True, "y": True},
            )
            self.add(self._moments, spec)
            return
        self.specs[self.marks.index(self._moments)] = spec
        with self._moments.hold_sync():
            self._moments.x, self._moments.y = x, y

    def fit(self, low: float, high: float) -> None:
        """Set the y axis for values between these, where no page does."""
        axis = metric_axis(low, high) if self.chart.key.startswith("metric ") else fitted(self.chart, high)
        with self.y.hold_sync():
            self.y.min, self.y.max = axis.min, axis.max
        with self._axis.hold_sync():
            self._axis.num_ticks = None  # bqplot would leave out some of the ticks
            self._axis.tick_values, self._axis.tick_labels = list(axis.ticks), _tick_labels(axis)

    def figure(self, *, titled: bool = False) -> Any:
        """Return the bqplot Figure.

        Parameters
        ----------
        titled
            Whether the figure draws its title; otherwise the page does, and sets the ticks.
        """
        chart = self.chart
        margin = _TITLED_MARGIN if titled else _STRIP_MARGIN if chart.height == STRIP_HEIGHT else _MARGIN
        height = _TITLED_HEIGHT if titled else chart.height
        below = bqplot.Axis(scale=self.x, grid_lines="none", tick_style={"font-size": "10px"}, num_ticks=4)
        return bqplot.Figure(
            title=", ".join(filter(None, (chart.title, chart.note))),
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


def _tick_labels(axis: Axis) -> dict[str, str]:
    # The page looks them up as JavaScript writes numbers.
    return {repr(float(t)).removesuffix(".0"): label for t, label in zip(axis.ticks, axis.labels, strict=True)}


def _axis(scale: Any, chart: Chart) -> Any:
    ticks: dict[str, Any] = {"num_ticks": 4}
    if chart.y is not None:
        ticks = {"tick_values": list(chart.y.ticks), "tick_labels": _tick_labels(chart.y)}
    axis = bqplot.Axis(
        scale=scale,
        grid_lines="solid",
        grid_color="rgba(128,128,128,0.18)",
        tick_style={"font-size": "10px"},
        **ticks,
    )
    axis.orientation = "vertical"  # a trait in bqplot 0.12, a property in 0.13
    return axis


def gpu_charts(layout: Layout, x: Any) -> list[LiveChart]:
    """Return the GPU charts of the layout's view; empty without GPUs."""
    if not layout.gpus:
        return []
    view = next(view for view in layout.views if view.name == layout.view)
    labels = [gpu.label for gpu in layout.gpus]
    charts = []
    for column in view.charts:
        chart = gpu_chart(column, layout.gpus, labels, activity=layout.activity and column.name == "util")
        live = LiveChart(_in_mib(chart) if column.unit == "MiB" else chart, x, layout)
        if layout.many:
            live.band(column.name, COLORS[0], top_of(column).name)
        else:
            _add_gpu_lines(live, layout)
        charts.append(live)
    return charts


def _in_mib(chart: Chart) -> Chart:
    """Return the chart of a record's memory, in bytes, for the samples, which are in MiB."""
    levels = tuple(Level(level.value / MIB, level.label) for level in chart.levels)
    y = chart.y and Axis(chart.y.min, chart.y.max / MIB, tuple(tick / MIB for tick in chart.y.ticks), chart.y.labels)
    return msgspec.structs.replace(chart, unit="MiB", levels=levels, y=y)


def _add_gpu_lines(live: LiveChart, layout: Layout) -> None:
    """Add the lines of a chart, one mark for each style and node."""
    for (style, node), group in itertools.groupby(
        live.chart.series, key=lambda series: (series.style, layout.gpus[int(series.data[2])].node)
    ):
        lines = list(group)
        width, opacity = _STYLES[style]
        names = [f"gpu{layout.gpus[int(series.data[2])].index}.{series.data[3]}" for series in lines]
        live.lines(
            {"kind": "lines", "node": node, "columns": [layout.column(node, name) for name in names]},
            [COLORS[series.color % len(COLORS)] for series in lines],
            [series.label for series in lines],
            stroke_width=width,
            opacities=[opacity] * len(lines),
            line_style="dashed" if style == "dashed" else "solid",
        )


def host_charts(layout: Layout, x: Any) -> list[LiveChart]:
    """Return the charts of the run's CPU and memory: low ones if there is no GPU."""
    charts = []
    count = len(layout.nodes)
    for chart in kernel_charts.host_charts(
        strip=not layout.gpus,
        cpus=layout.cpus / count,
        memory_total=layout.memory_total,
        own="cpu" in layout.columns[layout.nodes[0]],
    ):
        live = LiveChart(chart, x, layout)
        charts.append(live)
        (series,) = chart.series
        name = str(series.data[1])
        if count > MAX_LINES:
            live.band(f"{HOST_PREFIX}{name}", COLORS[series.color])
            continue
        for k, node in enumerate(layout.nodes):
            spec = {"kind": "lines", "node": node, "columns": [layout.column(node, name)]}
            live.lines(
                spec, [COLORS[k if count > 1 else series.color]], [layout.hosts[k] if count > 1 else series.label]
            )
    return charts


def metric_chart(name: str) -> LiveChart:
    """Return the chart of one metric of the script, by step."""
    chart = LiveChart(Chart(key=f"metric {name}", title=name[:60]), bqplot.LinearScale())
    chart.lines({"kind": "metric", "name": name}, [COLORS[0]], [name], marker_size=40)
    return chart


class TrialChart(LiveChart):
    """Chart of the primary metric of a sweep's trials, by step: the best one, those that run, stopped ones in gray."""

    def __init__(self, metric: str) -> None:
        super().__init__(Chart(key="trials", title=f"{metric[:50]} of the trials"), bqplot.LinearScale())
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

    _moments: tuple[ChartMark, ...] = ()  #: that are marked

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
            charts=[_described(chart.chart) for chart in self.charts],
            layout=layout.wire(RING, MAX_BUCKETS),
            heat=layout.has_heat_map,
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

    def show_marks(self, marks: tuple[ChartMark, ...]) -> None:
        """Mark moments of the run in all charts but that of trials."""
        if marks != self._moments:
            self._moments = marks
            self._show_figures()

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
        for chart in (*self._metric_charts, *self._gpu, *self._host) if self._moments else ():
            chart.show_marks(self._moments, self.plan.start)
            self._figures[id(chart)].marks = list(chart.marks)
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
            feed.charts = [_described(chart.chart) for chart in self.charts]

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


def _described(chart: Chart) -> dict[str, Any]:
    """Return what the page needs of a chart beside its marks: texts, unit, axis and height."""
    return msgspec.to_builtins(msgspec.structs.replace(chart, x=(), series=(), band=(), levels=()))  # type: ignore[no-any-return]


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
    what = gpu_count_text(layout.gpus, len(layout.nodes))
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
