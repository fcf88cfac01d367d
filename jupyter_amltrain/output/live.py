"""Live dashboards of a kernel: one for each page that shows a run, fed while it is seen.

Everything here runs on the loop. A page asks by the control channel, so this works while
a cell runs; the widgets go out by comms that only the kernel opens and sends on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.kernel.record import gpu_record
from jupyter_amltrain.kernel.run_provider import RunProvider
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.telemetry import NodeTelemetry
from jupyter_amltrain.loop import Pace
from jupyter_amltrain.output.layout import Layout, layout_of

if TYPE_CHECKING:
    from jupyter_amltrain.output.dashboard import Dashboard

log = logging.getLogger(__name__)

#: Dashboards that are kept, of one run and in all: pages come back, and some never say goodbye.
OF_A_RUN, IN_ALL = 3, 12
#: Seconds between looks at what changes rarely: table, metrics.
_SLOW = 1.0
#: Seconds between two versions of the table.
TABLE_INTERVAL_S = 3.0
#: Points of a metric that a page gets when it connects.
_POINTS = 600


class _Live:
    """One dashboard on one page."""

    def __init__(self, entry: Entry, page: str) -> None:
        self.entry, self.page = entry, page
        self.id = uuid.uuid4().hex
        self.dashboard: Dashboard | None = None
        self.shown = False
        self.why = ""
        self.view = ""
        self.stop: Callable[[], None] | None = None
        self.sent: dict[str, int] = {}
        self.table = ""
        self.table_at = 0.0
        self.ended = False
        self.changed_at = 0.0


class LiveDashboards:
    """See the module's docstring.

    Parameters
    ----------
    runs
        The runs.
    build
        Makes the widgets of a layout, off the loop; default :class:`~.dashboard.Dashboard`.
    """

    def __init__(self, runs: RunProvider, build: Callable[[Layout, tuple[str, ...]], Dashboard] | None = None) -> None:
        self._runs = runs
        self._build = build or _build
        self._all: dict[tuple[str, str], _Live] = {}
        self._ticking: Coroutine[Any, Any, None] | None = None
        self._beat: asyncio.Task[None] | Any = None
        self._wake = asyncio.Event()

    def open(self, entry: Entry, page: str, window: float = 600.0) -> tuple[str, str]:
        """The feed's id for a page (empty while it is being made), and why there will be none."""
        key = (entry.run.handle, page)
        live = self._all.pop(key, None)
        if live is not None and live.entry is not entry:  # deleted and submitted again
            self._close(live)
            live = None
        if live is None:
            live = _Live(entry, page)
            self._runs.shown(entry.run.handle, 1)
            live.shown = True
            self._runs.loop.start(self._make(live, window), f"dashboard of {entry.run.handle}")
        self._all[key] = live  # the newest is the last
        self._evict(entry.run.handle)
        if live.why:
            self._all.pop(key)
            self._hide(live)
        return (live.id if live.dashboard is not None else ""), live.why

    def _evict(self, handle: str) -> None:
        same = [key for key in self._all if key[0] == handle]
        for key in [*same[:-OF_A_RUN], *list(self._all)[:-IN_ALL]]:
            if key in self._all:
                self._close(self._all.pop(key))

    async def _make(self, live: _Live, window: float) -> None:
        entry = live.entry
        try:
            while (layout := layout_of(entry, window)) is None:
                if entry.run.status.state.terminal:
                    began = any(phase.name == "running" for phase in entry.run.status.phases)
                    live.why = "No samples were taken of this run: it " + (
                        "was too short, or its machine cannot tell." if began else "never started."
                    )
                    return
                await asyncio.sleep(0.2)
                if self._gone(live):
                    return
            # A device that appears later than its header does not exist: the header names all.
            names = tuple(entry.metrics.metrics)
            dashboard = await self._runs.loop.offload(self._build, layout, names)
            if self._gone(live):
                await self._runs.loop.offload(dashboard.close)
                return
            done = entry.run.status.state.terminal
            live.dashboard, live.ended = dashboard, done
            feed = dashboard.connect(live.id, entry.telemetry, done=done)
            live.stop = entry.telemetry.listen(lambda node, first: self._ticked(live, node))
            self._slow(live)
            feed.rate = 4.0
            self._start_beat()
        except Exception:
            log.exception("dashboard of %s", entry.run.handle)
            self._close(live)
            live.why = "The dashboard could not be made; the kernel's log says why."

    def _gone(self, live: _Live) -> bool:
        """Whether a page's dashboard was forgotten while it was made."""
        return self._all.get((live.entry.run.handle, live.page)) is not live

    def _ticked(self, live: _Live, node: NodeTelemetry) -> None:
        feed = live.dashboard.feed if live.dashboard is not None else None
        if feed is None:
            return
        if feed.stale:  # a damaged file was begun anew on what the machine has now: the page asks again
            self._all.pop((live.entry.run.handle, live.page), None)
            self._close(live)
        elif live.shown:
            feed.push(node)

    def follow(self, feed_id: str, shown: bool, seen: Sequence[int], view: str = "") -> bool:
        """A page shows its feed or has hidden it; False for a feed that is gone.

        Parameters
        ----------
        view
            The GPU charts that the reader has chosen; empty for those that are shown.
        """
        live = next((live for live in self._all.values() if live.id == feed_id), None)
        if live is None or live.dashboard is None or live.dashboard.feed is None:
            return False
        if view and view != live.view:
            live.view = view
            self._runs.loop.start(self._switch(live), f"view of {live.entry.run.handle}")
        if shown:
            if not live.shown:
                live.shown = True
                self._runs.shown(live.entry.run.handle, 1)
            live.dashboard.feed.catch_up(seen)
            live.sent.clear()  # metrics are few: all again
            self._slow(live)
            self._start_beat()
        else:
            self._hide(live)
        return True

    async def _switch(self, live: _Live) -> None:
        """Show the charts that were chosen last."""
        dashboard, view = live.dashboard, live.view
        if dashboard is None:
            return
        layout = layout_of(live.entry, dashboard.plan.window, view)
        if layout is None or layout.view == dashboard.plan.view:
            return
        built = await self._runs.loop.offload(dashboard.prepare, layout)
        if live.dashboard is dashboard and live.view == view:
            old = dashboard.switch(layout, built, live.entry.telemetry)
            await self._runs.loop.offload(_close_all, old)

    def _hide(self, live: _Live) -> None:
        if live.shown:
            live.shown = False
            self._runs.shown(live.entry.run.handle, -1)

    # -- what changes rarely

    def _start_beat(self) -> None:
        self._wake.set()
        if self._beat is None or self._beat.done():
            self._beat = self._runs.loop.start(self._beats(), "dashboards")

    async def _beats(self) -> None:
        pace = Pace(1 / _SLOW, 1)
        while any(live.shown and not live.ended for live in self._all.values()):
            await asyncio.sleep(max(0.05, pace.due()))
            pace.wait()
            for live in list(self._all.values()):
                if live.shown and live.dashboard is not None:
                    try:
                        self._slow(live)
                    except Exception:
                        log.exception("dashboard of %s", live.entry.run.handle)

    def _slow(self, live: _Live) -> None:
        from jupyter_amltrain.output.tables import table_html

        entry, dashboard = live.entry, live.dashboard
        if dashboard is None or dashboard.feed is None:
            return
        metrics = entry.metrics.metrics
        dashboard.add_metrics(tuple(metrics))
        whole = not live.sent
        news: dict[str, dict[str, Sequence[float | None]]] = {}
        for name in dashboard.metrics:
            metric = metrics[name]
            first = live.sent.get(name, 0)
            if len(metric.values) > first:
                keep = metric.shown.indices(_POINTS) if first == 0 else range(first, len(metric.values))
                values = [metric.values[i] for i in keep]
                news[name] = {
                    "t": [metric.times[i] for i in keep],
                    "s": [metric.steps[i] for i in keep],
                    "i": list(keep),
                    "v": [value if math.isfinite(value) else None for value in values],
                }
                live.sent[name] = len(metric.values)
        dashboard.feed.send_metrics(news, whole=whole)
        if live.changed_at != entry.changed_at:
            # A page that was loaded after the cell ran gets no frames: it asks when it hears this.
            live.changed_at = entry.changed_at
            dashboard.feed.send({"changed": True})
        ended = entry.run.status.state.terminal
        part = gpu_record(entry.telemetry, ended)
        dashboard.say(part.note if part is not None else "", len(metrics))
        text = table_html(part, entry.kind == "run") if dashboard.plan.gpus else ""
        now = time.monotonic()
        # Its figures change with every tick, and it is larger than all of the tick.
        if text != live.table and (whole or ended or now - live.table_at >= TABLE_INTERVAL_S):
            live.table_at = now
            live.table = dashboard.table.value = text
        if ended and not live.ended:
            live.ended = True
            dashboard.feed.done = True

    def _close(self, live: _Live) -> asyncio.Task[None] | None:
        self._hide(live)
        if live.stop is not None:
            live.stop()
        if live.dashboard is not None:
            dashboard, live.dashboard = live.dashboard, None
            return self._runs.loop.start(self._closed(dashboard), "close a dashboard")
        return None

    async def _closed(self, dashboard: Dashboard) -> None:
        await self._runs.loop.offload(dashboard.close)

    async def close(self) -> None:
        """Close all of them: nobody will feed them any more."""
        if self._beat is not None:
            self._beat.cancel()
        ends = [end for key in list(self._all) if (end := self._close(self._all.pop(key))) is not None]
        if ends:
            await asyncio.wait(ends, timeout=2.0)

    def forget(self, handle: str) -> None:
        """Close every dashboard of a run."""
        for key in [key for key in self._all if key[0] == handle]:
            self._close(self._all.pop(key))


def _close_all(widgets: Sequence[Any]) -> None:
    for widget in widgets:
        if widget.comm is not None:
            widget.close()


def _build(layout: Layout, metrics: tuple[str, ...]) -> Dashboard:
    from jupyter_amltrain.output.dashboard import Dashboard

    return Dashboard(layout, metrics)
