"""The live dashboard: bqplot figures, controls and a feed, for one page.

:class:`Dashboard` is built off the loop from frozen data (building takes tens of
milliseconds, the first one most of a second for bqplot's import) and belongs to the loop
from :meth:`Dashboard.connect` on.
"""

from __future__ import annotations

import html
import warnings
from typing import Any

import ipywidgets
import msgspec

from jupyter_amltrain.agent.gpu_names import gpu_counts
from jupyter_amltrain.runs.pyramid import BUCKETS
from jupyter_amltrain.runs.telemetry import RunTelemetry
from jupyter_amltrain.widgets import charts
from jupyter_amltrain.widgets.feed import RING, Columns, StreamFeed
from jupyter_amltrain.widgets.layout import METRICS, Layout, windows
from jupyter_amltrain.widgets.palette import GPUS

with warnings.catch_warnings():  # of bqplot's own modules; `-W error` must not end the import
    warnings.simplefilter("ignore")
    import bqplot


class Dashboard:
    """Widgets of one dashboard.

    Parameters
    ----------
    layout
        What is shown.
    metrics
        Names of the script's metrics that are known already.
    """

    def __init__(self, layout: Layout, metrics: tuple[str, ...] = ()) -> None:
        self.plan = layout
        self.x = bqplot.DateScale()
        self.window = ipywidgets.Dropdown(
            options=windows(layout.window),
            value=layout.window,
            layout=ipywidgets.Layout(width="90px"),
            tooltip="Time that the charts show",
        )
        self.pause = ipywidgets.ToggleButton(
            value=False, icon="pause", tooltip="Hold the picture; data go on", layout=ipywidgets.Layout(width="36px")
        )
        self.follow = ipywidgets.ToggleButton(
            value=True, description="Live", tooltip="Follow the newest data", layout=ipywidgets.Layout(width="56px")
        )
        self.view = ipywidgets.Dropdown(
            options=[(view.label, view.name) for view in layout.views],
            value=layout.view if layout.views else None,
            layout=ipywidgets.Layout(width="215px", display=None if len(layout.views) > 1 else "none"),
            tooltip="Which charts of the GPUs are shown",
        )
        self.status = ipywidgets.HTML()
        self.table = ipywidgets.HTML()
        of_gpus = charts.gpu_charts(layout, self.x)
        found = [*of_gpus, *charts.host_charts(layout, self.x)]
        self._of_gpus = len(of_gpus)
        self.charts: list[charts.Chart] = found
        self.figures = [chart.figure() for chart in found]
        self.metrics: list[str] = []
        bar = ipywidgets.HBox(
            [self.window, self.view, self.pause, self.follow, self.status],
            layout=ipywidgets.Layout(align_items="center", flex_flow="row wrap"),
        )
        self.grid = ipywidgets.GridBox(
            self.figures,
            layout=ipywidgets.Layout(
                grid_template_columns="repeat(auto-fit, minmax(min(330px, 100%), 1fr))", width="100%"
            ),
        )
        self.legend = ipywidgets.HTML(_legend(layout))
        self.root = ipywidgets.VBox([bar, self.legend, self.grid, self.table])
        self.root.add_class("jp-AmlDashboard")
        self.add_metrics(metrics)
        self.feed: StreamFeed | None = None

    def connect(self, feed_id: str, telemetry: RunTelemetry, *, done: bool) -> StreamFeed:
        """Make the feed, whose first message carries all that is known. Runs on the loop."""
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
            figures=list(self.figures),
            marks=[mark for chart in self.charts for mark in chart.marks],
            specs=[spec for chart in self.charts for spec in chart.specs],
            layout=layout.wire(RING, BUCKETS),
            heat=layout.many,
            done=done,
        )
        return self.feed

    def add_metrics(self, names: tuple[str, ...]) -> bool:
        """Give new metrics a chart, the first few of them; returns whether there are any."""
        new = [name for name in names if name not in self.metrics][: METRICS - len(self.metrics)]
        for name in new:
            chart = charts.metric_chart(name)
            self.metrics.append(name)
            self.charts.append(chart)
            self.figures.append(chart.figure())
        if new:
            self._show_figures()
        return bool(new)

    def _show_figures(self, telemetry: RunTelemetry | None = None) -> None:
        self.grid.children = list(self.figures)
        feed = getattr(self, "feed", None)
        if feed is None:
            return
        with feed.hold_sync():
            if telemetry is not None:
                feed.use([Columns(telemetry.node(n), self.plan.columns[n]) for n in self.plan.nodes])
                feed.layout = self.plan.wire(RING, BUCKETS)
            feed.figures = list(self.figures)
            feed.marks = [mark for chart in self.charts for mark in chart.marks]
            feed.specs = [spec for chart in self.charts for spec in chart.specs]

    def prepare(self, layout: Layout) -> tuple[list[charts.Chart], list[Any]]:
        """Build the GPU charts of another view, off the loop: charts and their figures."""
        found = charts.gpu_charts(layout, self.x)
        return found, [chart.figure() for chart in found]

    def switch(self, layout: Layout, built: tuple[list[charts.Chart], list[Any]], telemetry: RunTelemetry) -> list[Any]:
        """Show the GPU charts of another view; the page asks for its data.

        Returns
        -------
        list
            Widgets that are no longer shown, to be closed off the loop.
        """
        old = _with_parts(self.figures[: self._of_gpus])
        self.plan = layout
        self.charts[: self._of_gpus], self.figures[: self._of_gpus] = built
        self._of_gpus = len(built[0])
        self._show_figures(telemetry)
        kept = {id(widget) for widget in _with_parts([getattr(self, "feed", None), self.root])}
        return [widget for widget in old if id(widget) not in kept]

    def say(self, note: str, metrics: int) -> None:
        """Say beside the GPUs what happened to them, and of how many metrics the charts are the first few."""
        text = _legend(self.plan, note, f"{len(self.metrics)} of {metrics} metrics" if metrics > METRICS else "")
        if text != self.legend.value:
            self.legend.value = text

    def close(self) -> None:
        """Close every widget, with the layouts, styles and scales that each brought along."""
        for widget in _with_parts([self.feed, self.root]):
            if widget.comm is not None:
                widget.close()


def _with_parts(found: Any) -> list[Any]:
    """All widgets that are reached from some by what they send to the page, those first."""
    waiting, seen = list(found), dict[int, Any]()
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
    """Which colour is which GPU (many have none of their own), and what else there is to say."""
    if not layout.gpus:
        text = note or layout.note or "No GPU is used: the charts show the host."
        text = " · ".join(filter(None, (text, metrics)))
        return f'<span class="jp-AmlDashboard-note">{html.escape(text)}</span>'
    what = gpu_counts((msgspec.to_builtins(gpu) for gpu in layout.gpus), "×")
    if layout.many:
        what += f" on {len(layout.nodes)} nodes" if len(layout.nodes) > 1 else ""
        what += ": mean, least to most"
    what = html.escape(" · ".join(filter(None, (what, metrics))))
    if note:
        what += f' · <strong class="jp-AmlDashboard-news">{html.escape(note)}</strong>'
    if layout.many:
        return f'<span class="jp-AmlDashboard-note">{what}</span>'
    chips = "".join(
        f'<span class="jp-AmlDashboard-chip"><i style="background:{GPUS[k]}"></i>{html.escape(gpu.label)}</span>'
        for k, gpu in enumerate(layout.gpus)
    )
    return f'<span class="jp-AmlDashboard-legend">{chips}<span class="jp-AmlDashboard-note">{what}</span></span>'
