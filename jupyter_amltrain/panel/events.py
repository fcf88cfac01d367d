"""What pages hear of runs and targets: pushed on change, twice a second at most, silent while hidden.

Everything here runs on the loop. A page says what it wants by the request ``events``;
see :class:`~jupyter_amltrain.panel.protocol.Events`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.panel import looks, protocol, streams
from jupyter_amltrain.panel import page as pages
from jupyter_amltrain.panel.compute_rows import Compute, ComputeRows
from jupyter_amltrain.panel.meters import Meters
from jupyter_amltrain.panel.news import News
from jupyter_amltrain.panel.page import Page
from jupyter_amltrain.panel.protocol import Beat, Changes, EventsReply, Notice, Snapshot
from jupyter_amltrain.runs.row import row_of
from jupyter_amltrain.runs.store import Entry
from jupyter_amltrain.spec.rows import RunRow
from jupyter_amltrain.spec.run import Run, RunHandle
from jupyter_amltrain.state import StateRoot

#: Runs of a snapshot, rows of one message of changes.
RUNS, ROWS = 500, 100
#: Seconds between two beats.
BEAT = 2.0
#: The first snapshot waits so long for what the targets know (seconds).
LISTED = 1.0
#: Comms that are kept: pages come back, and some never say goodbye.
PAGES = 24


class Sources(streams.Sources, looks.Sources, Protocol):
    """Who knows the runs; the controller is one."""

    root: StateRoot

    async def refresh(self, target: str | None = None) -> None:
        """Take in the runs that the targets have (or one of them has); never fails for one that is silent."""


class Events:
    """The pages of one kernel.

    Parameters
    ----------
    cell_runs
        Whether a cell runs at this moment.
    send
        Sends one event; default on the comm of this process' kernel.
    """

    def __init__(
        self, sources: Sources, compute: Compute, cell_runs: Callable[[], bool], send: pages.Send = pages.send
    ) -> None:
        self._sources, self._compute, self._cell_runs, self._send = sources, compute, cell_runs, send
        self._pages: dict[str, Page] = {}
        self._streams = streams.Streams(sources)
        self._targets = ComputeRows(compute, sources.loop, self._retargeted)
        self._meters = Meters(self._streams, sources, lambda: self._targets.now.current)
        self._looks = looks.Looks(sources, lambda: self._pages.values())
        self._details = looks.Details(sources, self._changed_row)
        self._stops: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._listed: asyncio.Task[None] | None = None
        self._closed = False

    # ---- requests

    async def events(self, wants: protocol.Events) -> EventsReply:
        """What a page wants to hear from now on."""
        if not wants.comm or len(wants.comm) > 200 or not wants.comm.isprintable():
            raise CommandError(f"{wants.comm[:80]!r} is no id of a comm.", hint="Reload the page.")
        if self._closed or not wants.shown:
            self._forget(wants.comm)
            return EventsReply(snapshot=False)
        self._begin()
        page = self._pages.get(wants.comm)
        fresh = page is None
        if page is None:
            page = self._pages[wants.comm] = Page(wants.comm, self._send, self._lost)
            for old in sorted(self._pages.values(), key=lambda p: p.asked)[:-PAGES]:
                self._forget(old.comm)
        before = page.wants
        page.heard(wants)
        shown_again = page.seen and before.shown != "panel"
        snapshot = fresh or shown_again
        if not snapshot and not page.pending and (lacks := page.lacks(wants.seq)) >= 0:
            if lacks > pages.UNDER_WAY or wants.seq < 0:
                snapshot = True
            else:  # it may be on its way: ask again when it has come, or was lost
                asyncio.get_running_loop().call_later(1.2 * pages.UNDER_WAY, self._ask, page)
        if snapshot and not page.pending:
            page.pending = True
            self._sources.loop.start(self._snapshot(page), f"snapshot for {wants.comm}")
        self._looks.update()
        self._details.want(wants.details)
        if page.seen:
            self._ticking()
        why = await self._streams.follow(page, wants.gpus if page.seen else "")
        await self._meters.want(page)
        return EventsReply(snapshot=snapshot, why=why)

    def notice(self, level: str, text: str, target: str = "") -> None:
        """Tell all pages something that a person should hear of."""
        for page in self._pages.values():
            if page.listens:
                page.send(Notice, level=level, text=text, target=target)

    # ---- beginnings

    def _begin(self) -> None:
        if self._stops:
            return
        store = self._sources.store
        self._stops = [
            store.subscribe(self._told),
            store.when_listed(self._changed_row),
            store.when_gone(self._gone),
            self._compute.listen(self._compute_told),
        ]
        start = self._sources.loop.start
        self._listed = start(self._sources.refresh(), "runs for the panel")
        news = News(self._sources, lambda: any(p.seen for p in self._pages.values()), self._targets.again)
        self._tasks.append(start(news.run(), "news for the panel"))

    def _ticking(self) -> None:
        if not any(task.get_name() == "beats" and not task.done() for task in self._tasks):
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks.append(self._sources.loop.start(self._beats(), "beats"))

    async def _beats(self) -> None:
        """While a panel is seen: say that we are alive when a cell runs."""
        while any(page.seen for page in self._pages.values()):
            await asyncio.sleep(BEAT)
            for page in list(self._pages.values()):
                if page.seen and page.listens and self._cell_runs():
                    page.send(Beat)

    # ---- snapshots

    async def _snapshot(self, page: Page) -> None:
        try:
            if self._listed is not None and not self._listed.done():
                await asyncio.wait({self._listed}, timeout=LISTED)
            await self._targets.read()
        finally:
            if self._pages.get(page.comm) is page:
                self._send_snapshot(page)
            page.pending = False
        self._streams.again(page)
        self._flush(page)

    def _send_snapshot(self, page: Page) -> None:
        entries = sorted(self._sources.store.entries(), key=lambda entry: entry.created, reverse=True)
        rows = tuple(self._row(entry) for entry in entries[:RUNS])
        page.rows = {row.handle: row for row in rows}
        page.targets = now = self._targets.now
        page.dirty.clear()
        page.gone.clear()
        page.pace.wait()
        more = max(0, len(entries) - RUNS)
        page.send(Snapshot, runs=rows, more=more, **now._asdict())

    def _row(self, entry: Entry) -> RunRow:
        return row_of(entry, self._details.of(entry.run.handle))

    def _ask(self, page: Page) -> None:
        """Have a page say again what it has."""
        if self._pages.get(page.comm) is page and page.listens:
            page.send(Changes, renew=True)

    # ---- changes

    def _told(self, run: Run) -> None:
        """The store has something new of a run."""
        self._looks.told(run)
        self._targets.told(run)
        self._changed_row(run.handle)

    def _changed_row(self, handle: str) -> None:
        for page in self._pages.values():
            page.dirty.add(handle)
            page.gone.discard(handle)
            self._soon(page)

    def _gone(self, handle: RunHandle) -> None:
        self._looks.gone(handle)
        self._details.forget(handle)
        self._targets.gone(handle)
        for page in self._pages.values():
            page.dirty.discard(handle)
            if page.rows.pop(handle, None) is not None:
                page.gone.add(handle)
                self._soon(page)

    def _compute_told(self, level: str, text: str, target: str) -> None:
        self._targets.again()
        if text:
            self.notice(level, text, target)

    def _retargeted(self) -> None:
        for page in self._pages.values():
            self._soon(page)

    def _soon(self, page: Page) -> None:
        """Send what is new when it may be sent."""
        if page.timer is None and page.listens:
            page.timer = asyncio.get_running_loop().call_later(page.pace.due(), self._flush, page)

    def _flush(self, page: Page) -> None:
        page.timer = None
        if not page.listens:
            return
        if page.pace.due():
            self._soon(page)
            return
        fields: dict[str, Any] = {}
        rows, left = self._changed(page)
        if rows:
            fields["runs"] = tuple(rows)
        if page.gone:
            fields["gone"] = tuple(page.gone)
            page.gone.clear()
        fields |= page.news(self._targets.now)
        if fields:
            page.pace.wait()
            page.send(Changes, **fields)
        if left:
            self._soon(page)

    def _changed(self, page: Page) -> tuple[list[RunRow], bool]:
        """Rows that a page has to hear of, newest first, and whether more are waiting."""
        rows = []
        for handle in list(page.dirty):
            page.dirty.discard(handle)
            entry = self._sources.store.get(RunHandle(handle))
            if entry is None:
                continue
            row, old = self._row(entry), page.rows.get(handle)
            if row == old or (not page.seen and old is not None and _stage(row) == _stage(old)):
                continue
            rows.append(row)
            page.rows[handle] = row
            if len(rows) >= ROWS:
                break
        rows.sort(key=lambda row: row.created, reverse=True)
        return rows, bool(page.dirty)

    # ---- ends

    def _forget(self, comm: str) -> None:
        page = self._pages.pop(comm, None)
        if page is None:
            return
        page.wants = protocol.Events(comm=comm, shown="")
        if page.timer is not None:
            page.timer.cancel()
        self._streams.forget(page)
        self._meters.forget(page)
        self._looks.update()

    def _lost(self, page: Page) -> None:
        """It was asked often enough."""
        if self._pages.get(page.comm) is page:
            self._forget(page.comm)

    def close(self) -> None:
        """Send nothing more, after a word to the pages: who comes after us must be asked anew."""
        self._closed = True
        for page in self._pages.values():
            page.send(Changes, renew=True)
        for comm in list(self._pages):
            self._forget(comm)
        for stop in self._stops:
            stop()
        self._stops.clear()
        for task in [*self._tasks, *([self._listed] if self._listed is not None else [])]:
            task.cancel()
        self._tasks.clear()
        self._targets.close()
        self._details.close()
        self._meters.close()
        self._streams.close()


def _stage(row: RunRow) -> tuple[bool, bool, str]:
    """What a status bar tells of a run: has it begun, has it ended, what should be known."""
    ended = row.state in ("completed", "failed", "canceled", "lost")
    return row.started is not None, ended, row.attention
