"""Charts for front ends without the labextension (VS Code, Colab), as plain ipywidgets.

The figures are those of a dashboard in JupyterLab. The kernel selects the window from the ring
or the history and sets whole arrays on the marks, at most :data:`RATE` times per second and at
most :data:`POINTS` points per line, so that message size does not grow with the run.
"""

from __future__ import annotations

import asyncio
import html
import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.kernel.min_max_history import known_mean
from jupyter_amltrain.kernel.run_charts import marks_of
from jupyter_amltrain.kernel.run_provider import RunProvider
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.telemetry import NodeTelemetry
from jupyter_amltrain.loop import TokenBucket
from jupyter_amltrain.output.layout import HOST_PREFIX, Layout, layout_of, no_samples_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from jupyter_amltrain.output.dashboard import Dashboard

    Float32 = NDArray[np.float32]
    Float64 = NDArray[np.float64]

log = logging.getLogger(__name__)

#: Maximum points of a line.
MAX_POINTS = 300
#: Maximum redraws per second.
RATE = 1.0


def needs_plain_widgets() -> bool:
    """Return whether this kernel's front end is known not to load JupyterLab extensions."""
    return "google.colab" in sys.modules or any(name in os.environ for name in ("VSCODE_PID", "VSCODE_CWD"))


def rows_since(node: NodeTelemetry, begin: float) -> tuple[Float64, Float32, Float32]:
    """Return times, minima and maxima of every column since `begin`: ticks if the ring has them, else buckets."""
    t, rows = node.since(0)
    if len(t) and (t[0] <= begin or node.ticks == len(t) == node.history.count * node.history.width):
        keep = t >= begin
        ticks = rows[:, keep]
        return t[keep], ticks, ticks
    pyramid = node.history
    keep = pyramid.t[: pyramid.count] >= begin
    values = pyramid.values[:, :, : pyramid.count]
    return pyramid.t[: pyramid.count][keep], values[0][:, keep], values[2][:, keep]


def downsample(t: Float64, low: Float32, high: Float32) -> tuple[Float64, Float32]:
    """Downsample to at most :data:`POINTS` points, keeping extremes: ``(k,)`` and ``(columns, k)``."""
    import numpy as np

    if len(t) <= MAX_POINTS and low is high:
        return t, low
    stretches = min(len(t), MAX_POINTS // 2)
    starts = np.linspace(0, len(t), stretches + 1).astype(int)[:-1]
    times = np.repeat(t[starts], 2)
    values = np.empty((len(low), 2 * stretches), np.float32)
    values[:, 0::2] = np.fmin.reduceat(low, starts, axis=1)
    values[:, 1::2] = np.fmax.reduceat(high, starts, axis=1)
    return times, values


class _PlainDashboard:
    """One displayed dashboard. Loop thread only."""

    def __init__(self, runs: RunProvider, entry: Entry, dashboard: Dashboard) -> None:
        self._runs, self._entry, self._dashboard = runs, entry, dashboard
        self._changed = asyncio.Event()
        self._changed.set()
        self.window = float(dashboard.window.value)
        self.paused = False

    def choose(self, window: float, paused: bool) -> None:
        """Apply the user's choice of window and pause."""
        self.window, self.paused = window, paused
        self._changed.set()

    async def switch(self, view: str) -> None:
        """Switch to another view of the GPU charts."""
        layout = layout_of(self._entry, self.window, view)
        if layout is not None and layout.view != self._dashboard.plan.view:
            built = await self._runs.loop.offload(self._dashboard.prepare, layout)
            self._dashboard.switch(layout, built, self._entry.telemetry)
            self._changed.set()

    async def follow(self) -> None:
        """Redraw on new data until the run has ended."""
        entry, handle = self._entry, self._entry.run.handle
        stop = entry.telemetry.listen(lambda node, first: self._changed.set())
        viewers = 1
        self._runs.change_viewers_of(handle, viewers)
        pace = TokenBucket(RATE, 2)
        try:
            while True:
                ended = entry.run.status.state.terminal
                self._changed.clear()
                if not self.paused:
                    self._draw()
                await asyncio.sleep(pace.due())
                pace.wait()
                if ended and not self._changed.is_set():
                    self._runs.change_viewers_of(handle, -viewers)
                    viewers = 0
                    await self._changed.wait()  # the user may still change the window
                elif not ended:
                    try:
                        await asyncio.wait_for(self._changed.wait(), 2.0)
                    except asyncio.TimeoutError:
                        continue
        except Exception:  # top of a task: the user sees why the charts stand still
            self._dashboard.status.value = "The charts have stopped because of an error. See the kernel's log."
            raise
        finally:
            stop()
            self._runs.change_viewers_of(handle, -viewers)

    def _draw(self) -> None:
        from jupyter_amltrain.kernel.gpu_record import gpu_record
        from jupyter_amltrain.output.tables import table_html

        entry, dashboard = self._entry, self._dashboard
        last = entry.telemetry.last_t or 0.0
        begin = last - self.window if self.window else 0.0
        dashboard.add_metrics(tuple(entry.metrics.metrics))
        dashboard.show_marks(marks_of(entry.run.status.pokes, entry.run.status.phases))
        nodes = {node.node: rows_since(node, begin) for node in entry.telemetry.nodes()}
        for chart in dashboard.charts:
            ends: list[float] = []
            for mark, spec in zip(chart.marks, chart.specs, strict=True):
                points = self._points(spec, dashboard.plan, nodes, begin)
                if points is not None:
                    with mark.hold_sync():
                        mark.x, mark.y = points
                    ends += _ends(points[1])
            if ends:
                chart.fit(min(ends), max(ends))
        start = dashboard.plan.start
        shown = max(begin, start)
        with dashboard.x.hold_sync():
            dashboard.x.min, dashboard.x.max = shown - start, max(last, shown + 1) - start
        ended = entry.run.status.state.terminal
        age = "ended" if ended else f"last sample {max(0.0, time.time() - last):.0f} s ago"
        dashboard.status.value = (
            f"sampled every {dashboard.plan.period:g} s · {age} · x axis: steps, or seconds since the start"
        )
        part = gpu_record(entry.telemetry, ended)
        dashboard.show_note(part.note if part is not None else "", len(entry.metrics.metrics))
        if dashboard.plan.gpus:
            dashboard.table.value = table_html(part, entry.kind == "run")

    def _points(self, spec: dict[str, Any], layout: Layout, nodes: dict[int, Any], begin: float) -> Any:
        import numpy as np

        if spec["kind"] == "lines":
            node = self._entry.telemetry.node(spec["node"])
            t, low, high = nodes[spec["node"]]
            names = [layout.columns[spec["node"]][column] for column in spec["columns"]]
            index = [node.index.get(name, -1) for name in names]
            if -1 in index:  # this node does not report the column
                return np.zeros(0), np.zeros((len(names), 0), np.float32)
            same = low is high
            low, high = low[index], high[index]
            times, values = downsample(t, low, low if same else high)
            return times - layout.start, values
        if spec["kind"] == "band":
            times, values = _band(self._entry, spec["field"], spec["high"], nodes)
            return times - layout.start, values
        if spec["kind"] == "metric":
            metric = self._entry.metrics.metrics[spec["name"]]
            keep = metric.in_order([i for i in metric.shown.indices(MAX_POINTS) if metric.times[i] >= begin])
            # Points that were logged without steps all have step 0: use their order instead.
            steps = [metric.steps[i] for i in keep]
            x = steps if len(set(steps)) != 1 or len(steps) == 1 else keep
            return np.array(x, float), np.array([[metric.values[i] for i in keep]])
        return None


def _ends(values: Float32) -> list[float]:
    """Return the least and the greatest value, if there are any."""
    import numpy as np

    known = values[np.isfinite(values)]
    return [float(known.min()), float(known.max())] if known.size else []


def _band(entry: Entry, field: str, top: str, nodes: dict[int, Any]) -> tuple[Float64, Float32]:
    """Return maximum, mean and minimum over all GPUs or hosts (``host.cpu``), at the times of the first node."""
    import numpy as np

    times, lows, means, highs = None, [], [], []
    for node in entry.telemetry.nodes():
        t, low, high = nodes[node.node]
        names, high_names = _series(node, field), _series(node, top)
        if not len(t) or not names or any(name not in node.index for name in names + high_names):
            continue
        index, tops = [node.index[name] for name in names], [node.index[name] for name in high_names]
        if times is None:
            times = t
        at = np.clip(np.searchsorted(t, times), 0, len(t) - 1)
        lows.append(low[index][:, at])
        means.append((low[index][:, at] + high[index][:, at]) / 2)
        highs.append(high[tops][:, at])
    if times is None:
        return np.zeros(0), np.zeros((3, 0), np.float32)
    low, high = np.concatenate(lows), np.concatenate(highs)
    rows = np.stack([np.fmax.reduce(high), known_mean(np.concatenate(means)), np.fmin.reduce(low)]).astype(np.float32)
    step = max(1, -(-len(times) // MAX_POINTS))
    return times[::step], rows[:, ::step]


def _series(node: NodeTelemetry, field: str) -> list[str]:
    """Return the series of a band's field: one for each GPU, or one of the host."""
    if field.startswith(HOST_PREFIX):
        return [field.removeprefix(HOST_PREFIX)]
    return [f"gpu{gpu.get('index', i)}.{field}" for i, gpu in enumerate(node.gpus)]


def plain_dashboard(runs: RunProvider, handle: str, window: float = 600.0) -> Any:
    """Return a box that is filled with a run's charts on the first sample and then updated by the loop."""
    import ipywidgets

    box = ipywidgets.VBox([ipywidgets.HTML("Waiting for the first sample.")])
    runs.loop.post(_fill(runs, handle, window, box))
    return box


async def _fill(runs: RunProvider, handle: str, window: float, box: Any) -> None:
    try:
        entry = await runs.source(handle)
        layout = await _layout(runs, entry, window, box.children[0])
        if layout is None:
            box.children[0].value = html.escape(no_samples_text(entry))
            return
        dashboard = await runs.loop.offload(_build, layout, tuple(entry.metrics.metrics))
        plain = _PlainDashboard(runs, entry, dashboard)
        runs.loop.start(plain.follow(), f"charts of {handle}")
        box.children = [dashboard.root]

        async def apply() -> None:
            plain.choose(float(dashboard.window.value), bool(dashboard.pause.value))

        for control in (dashboard.window, dashboard.pause):
            control.observe(lambda _: runs.loop.post(apply()), "value")
        dashboard.view.observe(lambda _: runs.loop.post(plain.switch(str(dashboard.view.value))), "value")
    except AmlTrainError as error:
        box.children[0].value = html.escape(str(error))
    except Exception:  # top of a task; widget libraries raise any error
        log.exception("charts of %s", handle)
        box.children[0].value = "Could not create the charts. See the kernel's log."


async def _layout(runs: RunProvider, entry: Entry, window: float, waiting: Any) -> Layout | None:
    runs.change_viewers_of(entry.run.handle, 1)
    try:
        while (layout := layout_of(entry, window)) is None and not entry.run.status.state.terminal:
            if reason := entry.run.status.detail:
                waiting.value = html.escape(reason)
            await asyncio.sleep(0.2)
        return layout
    finally:
        runs.change_viewers_of(entry.run.handle, -1)


def _build(layout: Layout, metrics: tuple[str, ...]) -> Dashboard:
    from jupyter_amltrain.output.dashboard import Dashboard

    dashboard = Dashboard(layout, metrics, titled=True)
    dashboard.follow.layout.display = "none"  # works only with the labextension
    return dashboard
