"""Live dashboards of a kernel: one per page and run, updated while visible.

Loop thread only. Pages send requests on the control channel, which works while a cell runs;
the widgets use comms that only the kernel opens and sends on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.kernel.gpu_record import MANY_GPUS, gpu_record, note_of
from jupyter_amltrain.kernel.run_charts import marks_of
from jupyter_amltrain.kernel.run_provider import RunProvider
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.sweep_board import board_of
from jupyter_amltrain.kernel.telemetry import NodeTelemetry
from jupyter_amltrain.loop import TokenBucket
from jupyter_amltrain.output.layout import Layout, layout_of, no_samples_text
from jupyter_amltrain.schema.child_run import ChildRuns
from jupyter_amltrain.text import finite_or_text

if TYPE_CHECKING:
    from jupyter_amltrain.output.dashboard import Dashboard

log = logging.getLogger(__name__)

#: Maximum dashboards per run and in total. Pages may reconnect, and some disappear without closing theirs.
MAX_DASHBOARDS_PER_RUN, MAX_DASHBOARDS = 3, 12
#: Seconds between updates of the metrics, and of all else that does not come with a tick.
_METRIC_INTERVAL_S, _SLOW_INTERVAL_S = 0.3, 1.0
#: Minimum seconds between two messages that make a page request the record of a run with many GPUs.
_LARGE_RECORD_INTERVAL_S = 10.0
#: Seconds that a new dashboard waits for the first sample of the other nodes.
NODES_TIMEOUT_S = 5.0
#: Maximum seconds between two updates of the table's numbers while there are ticks each second.
TABLE_INTERVAL_S = 3.0
#: Ticks come that much earlier or later.
_JITTER_S = 0.3
#: Maximum points of a metric in the first message to a page.
_MAX_POINTS = 600


class _Live:
    """One dashboard on one page."""

    def __init__(self, entry: Entry, page: str) -> None:
        self.entry, self.page = entry, page
        self.id = uuid.uuid4().hex
        self.dashboard: Dashboard | None = None
        self.shown = False
        self.reason = ""
        self.view = ""
        self.stop: Callable[[], None] | None = None
        self.push: asyncio.TimerHandle | None = None
        self.sent: dict[str, int] = {}
        self.table_key, self.table_version, self.table_at = "", 0, 0.0
        self.readings: tuple[tuple[str, ...], bytes] = ((), b"")
        self.ended = False
        self.changed_at = self.changed_sent_at = 0.0
        self.trials: ChildRuns | None = None  #: what the chart of trials shows


class LiveDashboards:
    """Registry of the live dashboards of a kernel.

    Parameters
    ----------
    runs
        Provider of the runs.
    build
        Creates the widgets of a layout, off the loop; default :class:`~.dashboard.Dashboard`.
    """

    def __init__(self, runs: RunProvider, build: Callable[[Layout, tuple[str, ...]], Dashboard] | None = None) -> None:
        self._runs = runs
        self._build = build or _build
        self._all: dict[tuple[str, str], _Live] = {}
        self._ticking: Coroutine[Any, Any, None] | None = None
        self._slow_task: asyncio.Task[None] | Any = None
        self._wake = asyncio.Event()
        self._table_versions = 0

    def open(self, entry: Entry, page: str, window: float = 600.0) -> tuple[str, str]:
        """Return the feed's id for a page (empty while the dashboard is built), and why there is none."""
        key = (entry.run.handle, page)
        live = self._all.pop(key, None)
        if live is not None and live.entry is not entry:  # deleted and submitted again
            self._close(live)
            live = None
        if live is None:
            live = _Live(entry, page)
            self._runs.change_viewers_of(entry.run.handle, 1)
            live.shown = True
            self._runs.loop.start(self._create(live, window), f"dashboard of {entry.run.handle}")
        self._all[key] = live  # keep the newest last
        self._evict(entry.run.handle)
        if live.reason:
            self._all.pop(key)
            self._hide(live)
        return (live.id if live.dashboard is not None else ""), live.reason

    def _evict(self, handle: str) -> None:
        same = [key for key in self._all if key[0] == handle]
        for key in [*same[:-MAX_DASHBOARDS_PER_RUN], *list(self._all)[:-MAX_DASHBOARDS]]:
            if key in self._all:
                self._close(self._all.pop(key))

    async def _create(self, live: _Live, window: float) -> None:
        entry = live.entry
        try:
            deadline = time.monotonic() + NODES_TIMEOUT_S
            while (layout := layout_of(entry, window)) is None or _is_partial(layout, entry, deadline):
                if entry.run.status.state.terminal:
                    live.reason = no_samples_text(entry)
                    return
                await asyncio.sleep(0.2)
                if self._is_removed(live):
                    return
            # The header names all devices, so none can appear later.
            names = tuple(entry.metrics.metrics)
            dashboard = await self._runs.loop.offload(self._build, layout, names)
            if self._is_removed(live):
                await self._runs.loop.offload(dashboard.close)
                return
            done = entry.run.status.state.terminal
            live.dashboard, live.ended = dashboard, done
            feed = dashboard.connect(live.id, entry.telemetry, done=done)
            live.stop = entry.telemetry.listen(lambda node, first: self._on_tick(live, node))
            self._update_slow(live)
            feed.rate = 4.0
            self._start_slow_updates()
        except Exception:  # top of a task; the chart library raises any error
            log.exception("dashboard of %s", entry.run.handle)
            self._close(live)
            live.reason = "Could not create the dashboard. See the kernel's log."

    def _is_removed(self, live: _Live) -> bool:
        """Return whether a page's dashboard was removed while it was built."""
        return self._all.get((live.entry.run.handle, live.page)) is not live

    def _on_tick(self, live: _Live, node: NodeTelemetry) -> None:
        feed = live.dashboard.feed if live.dashboard is not None else None
        if feed is None:
            return
        if feed.is_stale(node):  # a damaged file was restarted with other columns, or a node came later
            # The page opens the dashboard again.
            self._all.pop((live.entry.run.handle, live.page), None)
            self._close(live)
        elif live.shown and feed.delay and live.push is None:
            live.push = asyncio.get_running_loop().call_later(feed.delay, self._push, live)
        elif live.shown and not feed.delay:
            self._update_table(live)
            feed.push()

    def _push(self, live: _Live) -> None:
        """Send the ticks of several nodes that have come during the delay."""
        live.push = None
        feed = live.dashboard.feed if live.dashboard is not None else None
        if feed is not None and live.shown:
            self._update_table(live)
            feed.push()

    def follow(self, feed_id: str, shown: bool, seen: Sequence[int], view: str = "") -> bool:
        """Handle that a page shows or hides its feed; returns False if the feed no longer exists.

        Parameters
        ----------
        view
            The GPU charts that the user has chosen; empty for no change.
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
                self._runs.change_viewers_of(live.entry.run.handle, 1)
            live.dashboard.feed.catch_up(seen)
            live.sent.clear()  # metrics are small: send all
            live.table_version = 0
            self._update_slow(live)
            self._start_slow_updates()
        else:
            self._hide(live)
        return True

    async def _switch(self, live: _Live) -> None:
        """Switch to the view that was chosen last."""
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
            self._runs.change_viewers_of(live.entry.run.handle, -1)

    # -- slow updates: table and metrics

    def _start_slow_updates(self) -> None:
        self._wake.set()
        if self._slow_task is None or self._slow_task.done():
            self._slow_task = self._runs.loop.start(self._run_slow_updates(), "dashboards")

    async def _run_slow_updates(self) -> None:
        pace, slow = TokenBucket(1 / _METRIC_INTERVAL_S, 1), 0.0
        while any(live.shown and not live.ended for live in self._all.values()):
            await asyncio.sleep(max(0.05, pace.due()))
            pace.wait()
            due = time.monotonic() - slow >= _SLOW_INTERVAL_S
            slow = time.monotonic() if due else slow
            for live in list(self._all.values()):
                if live.shown and live.dashboard is not None:
                    try:
                        self._update_slow(live) if due else self._send_metrics(live, whole=False)
                    except Exception:  # an error of one dashboard must not stop the others
                        log.exception("dashboard of %s", live.entry.run.handle)

    def _send_metrics(self, live: _Live, *, whole: bool) -> None:
        """Send the points that were logged since the last call, and charts for new metrics."""
        dashboard, metrics = live.dashboard, live.entry.metrics.metrics
        if dashboard is None or dashboard.feed is None:
            return
        dashboard.add_metrics(tuple(metrics))
        new_points: dict[str, dict[str, Any]] = {}
        for name in dashboard.metrics:
            metric = metrics[name]
            first = live.sent.get(name, 0)
            if len(metric.values) > first:
                keep = metric.shown.indices(_MAX_POINTS) if first == 0 else range(first, len(metric.values))
                values = [metric.values[i] for i in keep]
                new_points[name] = {
                    "t": [metric.times[i] for i in keep],
                    "s": [metric.steps[i] for i in keep],
                    "i": list(keep),
                    "v": [value if math.isfinite(value) else None for value in values],
                    "last": None if metric.last is None else finite_or_text(metric.last),
                }
                live.sent[name] = len(metric.values)
        dashboard.feed.send_metrics(new_points, whole=whole)

    def _update_slow(self, live: _Live) -> None:
        entry, dashboard = live.entry, live.dashboard
        if dashboard is None or dashboard.feed is None:
            return
        whole = not live.sent
        self._send_metrics(live, whole=whole)
        ended = entry.run.status.state.terminal
        pause = _LARGE_RECORD_INTERVAL_S if len(dashboard.plan.gpus) > MANY_GPUS and not ended else 0.0
        if live.changed_at != entry.changed_at and time.monotonic() - live.changed_sent_at >= pause:
            # A page that was loaded after the cell ran gets no frames; this makes it request the record.
            live.changed_at, live.changed_sent_at = entry.changed_at, time.monotonic()
            dashboard.feed.send({"changed": True})
        if live.trials is not entry.children and (board := board_of(entry)) is not None:
            live.trials = entry.children
            dashboard.show_trials(board)
        dashboard.show_marks(marks_of(entry.run.status.pokes, entry.run.status.phases))
        dashboard.show_note(note_of(entry.telemetry), len(entry.metrics.metrics))
        self._update_table(live, force=not live.table_version or (ended and not live.ended))
        if ended and not live.ended:
            live.ended = True
            dashboard.feed.done = True

    def _update_table(self, live: _Live, *, force: bool = False) -> None:
        """Send the tables, or their new readings with the next ticks: the HTML is ten times as large as a tick.

        Parameters
        ----------
        force
            Send the whole tables now.
        """
        import numpy as np

        from jupyter_amltrain.kernel.gpu_tables import MAX_LISTED_GPUS
        from jupyter_amltrain.output.tables import live_table

        entry, dashboard, now = live.entry, live.dashboard, time.monotonic()
        if dashboard is None or dashboard.feed is None or not dashboard.plan.gpus:
            return
        if not force and now - live.table_at < TABLE_INTERVAL_S - _JITTER_S:
            return
        live.table_at = now
        ended = entry.run.status.state.terminal
        try:
            part = gpu_record(entry.telemetry, ended, series=False, max_now=MAX_LISTED_GPUS)
            table = live_table(part, entry.kind == "run")
        except Exception:  # a job can write anything into its files
            log.warning("cannot show the table of %s", entry.run.handle, exc_info=True)
            return
        with np.errstate(over="ignore"):  # a value over the range of float32 becomes infinite, shown as n/a
            readings = table.words, np.array(table.values, np.float32).tobytes()
        if force or table.key != live.table_key:
            live.table_key, live.readings = table.key, readings
            live.table_version = self._table_versions = self._table_versions + 1
            dashboard.feed.readings = None
            dashboard.table.value = f'<div data-version="{live.table_version}">{table.html}</div>' if table.html else ""
        elif readings != live.readings:
            pending = dashboard.feed.readings  # not sent yet: there was no tick
            changed = table.words if table.words != live.readings[0] or (pending and pending[1]) else ()
            live.readings = readings
            dashboard.feed.readings = (live.table_version, changed, readings[1])

    def _close(self, live: _Live) -> asyncio.Task[None] | None:
        self._hide(live)
        if live.stop is not None:
            live.stop()
        if live.dashboard is not None:
            dashboard, live.dashboard = live.dashboard, None
            return self._runs.loop.start(self._close_widgets(dashboard), "close a dashboard")
        return None

    async def _close_widgets(self, dashboard: Dashboard) -> None:
        await self._runs.loop.offload(dashboard.close)

    async def close(self) -> None:
        """Close all dashboards."""
        if self._slow_task is not None:
            self._slow_task.cancel()
        tasks = [task for key in list(self._all) if (task := self._close(self._all.pop(key))) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=2.0)

    def close_run(self, handle: str) -> None:
        """Close every dashboard of a run."""
        for key in [key for key in self._all if key[0] == handle]:
            self._close(self._all.pop(key))


def _is_partial(layout: Layout, entry: Entry, deadline: float) -> bool:
    """Return whether samples of other nodes of a living run are worth waiting for."""
    status = entry.run.status
    return len(layout.nodes) < status.nodes and not status.state.terminal and time.monotonic() < deadline


def _close_all(widgets: Sequence[Any]) -> None:
    for widget in widgets:
        if widget.comm is not None:
            widget.close()


def _build(layout: Layout, metrics: tuple[str, ...]) -> Dashboard:
    from jupyter_amltrain.output.dashboard import Dashboard

    return Dashboard(layout, metrics)
