"""Events to clients about runs and targets: sent on change, at most two a second, not to hidden panels.

Loop thread only. A client subscribes with the request ``events``;
see :class:`~jupyter_amltrain.frontend.clients.Subscribe`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.transport import FolderEvents
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.frontend import clients
from jupyter_amltrain.frontend.clients import MAX_MESSAGES_PER_S, FrontendClient, Subscribe, TargetState
from jupyter_amltrain.frontend.gpu_stream import GpuMeters, GpuStreams
from jupyter_amltrain.frontend.protocol import Beat, Changes, Notice, Reply, StateSnapshot, op
from jupyter_amltrain.frontend.subscriptions import RunDetails, StreamInterest
from jupyter_amltrain.kernel.run_provider import RunProvider
from jupyter_amltrain.kernel.run_row import row_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.target_file import LOCAL
from jupyter_amltrain.kernel.target_status import OperationFinished
from jupyter_amltrain.loop import TokenBucket
from jupyter_amltrain.schema.rows import RunRow
from jupyter_amltrain.schema.run import Run, RunHandle, RunState

if TYPE_CHECKING:
    from jupyter_amltrain.kernel.controller import Controller

#: Maximum number of runs in a snapshot, and of rows in one message of changes.
MAX_SNAPSHOT_RUNS, MAX_CHANGED_ROWS = 500, 100
#: Seconds between two ``beat`` events.
BEAT_INTERVAL_S = 2.0
#: Maximum wait of a snapshot for the targets' lists of runs, and for the targets (seconds).
LIST_TIMEOUT_S = 1.0
#: Maximum number of comms: pages reconnect, and some never unsubscribe.
MAX_CLIENTS = 24
#: Maximum length of a comm's id.
MAX_COMM_LENGTH = 200


class EventsReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`~jupyter_amltrain.frontend.clients.Subscribe`.

    Attributes
    ----------
    snapshot
        Whether a snapshot follows on the comm.
    reason
        Why there are no GPUs to stream, or why a target cannot be sampled; else empty.
    """

    snapshot: bool
    reason: str = ""


class EventPublisher:
    """Sends events to the clients of one kernel; starts with the first subscription.

    Parameters
    ----------
    cell_runs
        Whether a cell runs at this moment.
    send
        Sends one event; default on the comm of this process' kernel.
    """

    def __init__(
        self, controller: Controller, cell_runs: Callable[[], bool], send: clients.Send = clients.send
    ) -> None:
        self._controller, self._cell_runs, self._send = controller, cell_runs, send
        self._clients: dict[str, FrontendClient] = {}
        self._gpus = GpuStreams(controller)
        self._targets = TargetFeed(controller, self._on_targets_changed)
        self._meters = GpuMeters(self._gpus, controller, lambda: self._targets.state.current)
        self._interest = StreamInterest(controller, lambda: self._clients.values())
        self._details = RunDetails(controller, self._on_row_changed)
        self._unsubscribe: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._listing: asyncio.Task[None] | None = None
        self._closed = False

    # ---- requests

    @op("events")
    async def subscribe(self, request: Subscribe) -> EventsReply:
        """Set what a client receives from now on."""
        if not request.comm or len(request.comm) > MAX_COMM_LENGTH or not request.comm.isprintable():
            raise CommandError(
                f"Cannot subscribe: {request.comm[:80]!r} is not the id of a comm.",
                hint="Reload the page.",
                code="comm.invalid",
                field="comm",
            )
        if self._closed or not request.shown:
            self._forget(request.comm)
            return EventsReply(snapshot=False)
        self._start()
        client = self._clients.get(request.comm)
        snapshot = client is None or (request.shown == "panel" and not client.is_shown)
        if client is None:
            client = self._add(request.comm)
        client.update(request)
        if not snapshot and not client.pending and (lag := client.lag(request.seq)) >= 0:
            if lag > clients.DELIVERY_TIMEOUT_S or request.seq < 0:
                snapshot = True
            else:  # the event may be in transit: renew when it has arrived or was lost
                delay = 1.2 * clients.DELIVERY_TIMEOUT_S
                asyncio.get_running_loop().call_later(delay, self._request_renewal, client)
        if snapshot and not client.pending:
            client.pending = True
            self._controller.loop.start(self._snapshot(client), f"snapshot for {request.comm}")
        self._interest.update()
        self._details.request(request.details)
        if client.is_shown:
            self._start_beats()
        reason = await self._gpus.follow(client, request.gpus if client.is_shown else "")
        await self._meters.update(client)
        return EventsReply(snapshot=snapshot, reason=reason)

    def notify(self, level: str, text: str, target: str = "") -> None:
        """Show a message to the users of all clients."""
        for client in self._clients.values():
            if client.listens:
                client.send(Notice, level=level, text=text, target=target)

    # ---- startup

    def _add(self, comm: str) -> FrontendClient:
        client = self._clients[comm] = FrontendClient(comm, self._send, self._on_lost)
        for old in sorted(self._clients.values(), key=lambda client: client.last_request_at)[:-MAX_CLIENTS]:
            self._forget(old.comm)
        return client

    def _start(self) -> None:
        if self._unsubscribe:
            return
        controller = self._controller
        self._unsubscribe = [
            controller.store.subscribe(self._on_run_changed),
            controller.store.on_listed(self._on_row_changed),
            controller.store.on_removed(self._on_removed),
            controller.target_manager.status.listen(self._on_operation_finished),
        ]
        self._listing = controller.loop.start(controller.refresh(), "runs for the panel")
        watcher = ExternalChangeWatcher(
            controller, lambda: any(client.is_shown for client in self._clients.values()), self._targets.refresh_soon
        )
        self._tasks.append(controller.loop.start(watcher.run(), "changes by others"))

    def _start_beats(self) -> None:
        if not any(task.get_name() == "beats" and not task.done() for task in self._tasks):
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks.append(self._controller.loop.start(self._beat(), "beats"))

    async def _beat(self) -> None:
        """Send beats to shown panels while a cell runs: the kernel is alive."""
        while any(client.is_shown for client in self._clients.values()):
            await asyncio.sleep(BEAT_INTERVAL_S)
            for client in list(self._clients.values()):
                if client.is_shown and client.listens and self._cell_runs():
                    client.send(Beat)

    # ---- snapshots

    async def _snapshot(self, client: FrontendClient) -> None:
        try:
            if self._listing is not None and not self._listing.done():
                await asyncio.wait({self._listing}, timeout=LIST_TIMEOUT_S)
            # Their files may be on a slow disk: the runs are sent without them, and the targets when they are read.
            reading = self._controller.loop.start(self._targets.refresh(), "targets for a snapshot")
            await asyncio.wait({reading}, timeout=LIST_TIMEOUT_S)
        finally:
            if self._clients.get(client.comm) is client:
                self._send_snapshot(client)
            client.pending = False
        self._gpus.restart(client)
        self._flush(client)

    def _send_snapshot(self, client: FrontendClient) -> None:
        entries = sorted(self._controller.store.entries(), key=lambda entry: entry.created, reverse=True)
        # Trials are parts of their sweep: only those that have not ended are sent, for views that show them.
        own = list(itertools.islice((entry for entry in entries if not entry.run.parent), MAX_SNAPSHOT_RUNS))
        trials = [entry for entry in self._controller.store.live() if entry.run.parent]
        rows = tuple(self._row(entry) for entry in (*own, *trials[:MAX_SNAPSHOT_RUNS]))
        client.rows = {row.handle: row for row in rows}
        client.targets = state = self._targets.state
        client.dirty.clear()
        client.removed.clear()
        client.rate_limit.wait()
        more = max(0, len(entries) - MAX_SNAPSHOT_RUNS) if len(own) == MAX_SNAPSHOT_RUNS else 0
        client.send(StateSnapshot, runs=rows, more=more, **state._asdict())

    def _row(self, entry: Entry) -> RunRow:
        return row_of(entry, self._details.of(entry.run.handle))

    def _request_renewal(self, client: FrontendClient) -> None:
        """Request that a client sends its subscription again, with the number of its last event."""
        if self._clients.get(client.comm) is client and client.listens:
            client.send(Changes, renew=True)

    # ---- changes

    def _on_run_changed(self, run: Run) -> None:
        self._interest.on_changed(run)
        self._targets.on_run_changed(run)
        self._on_row_changed(run.handle)

    def _on_row_changed(self, handle: str) -> None:
        for client in self._clients.values():
            if client.pending:  # its snapshot will have the row
                continue
            client.dirty.add(handle)
            client.removed.discard(handle)
            self._schedule(client)

    def _on_removed(self, handle: RunHandle) -> None:
        self._interest.on_removed(handle)
        self._details.forget(handle)
        self._targets.on_run_removed(handle)
        for client in self._clients.values():
            client.dirty.discard(handle)
            if client.rows.pop(handle, None) is not None:
                client.removed.add(handle)
                self._schedule(client)

    def _on_operation_finished(self, finished: OperationFinished | None) -> None:
        """Handle a change of a target's row; `finished` is set if an operation has ended."""
        self._targets.refresh_soon()
        if finished is not None and finished.text:
            self.notify(*finished)

    def _on_targets_changed(self) -> None:
        for client in self._clients.values():
            self._schedule(client)

    def _schedule(self, client: FrontendClient) -> None:
        """Send changes as soon as the rate limit allows."""
        if client.timer is None and client.listens:
            client.timer = asyncio.get_running_loop().call_later(client.rate_limit.due(), self._flush, client)

    def _flush(self, client: FrontendClient) -> None:
        client.timer = None
        if not client.listens:
            return
        if client.rate_limit.due():
            self._schedule(client)
            return
        fields: dict[str, Any] = {}
        rows, more = self._changed_rows(client)
        if rows:
            fields["runs"] = tuple(rows)
        if client.removed:
            fields["gone"] = tuple(client.removed)
            client.removed.clear()
        fields |= client.target_changes(self._targets.state)
        if fields:
            client.rate_limit.wait()
            client.send(Changes, **fields)
        if more:
            self._schedule(client)

    def _changed_rows(self, client: FrontendClient) -> tuple[list[RunRow], bool]:
        """Return rows that have changed for a client, newest first, and whether there are more."""
        rows = []
        for handle in list(client.dirty):
            client.dirty.discard(handle)
            entry = self._controller.store.get(RunHandle(handle))
            if entry is None:
                continue
            row, old = self._row(entry), client.rows.get(handle)
            if row == old or (not client.is_shown and old is not None and _status(row) == _status(old)):
                continue
            rows.append(row)
            client.rows[handle] = row
            if len(rows) >= MAX_CHANGED_ROWS:
                break
        rows.sort(key=lambda row: row.created, reverse=True)
        return rows, bool(client.dirty)

    # ---- shutdown

    def _forget(self, comm: str) -> None:
        client = self._clients.pop(comm, None)
        if client is None:
            return
        client.subscription = Subscribe(comm=comm, shown="")
        if client.timer is not None:
            client.timer.cancel()
        self._gpus.forget(client)
        self._meters.forget(client)
        self._interest.update()

    def _on_lost(self, client: FrontendClient) -> None:
        if self._clients.get(client.comm) is client:
            self._forget(client.comm)

    def close(self) -> None:
        """Ask all clients to subscribe again, because a new publisher may reply, and stop sending."""
        self._closed = True
        for client in self._clients.values():
            client.send(Changes, renew=True)
        for comm in list(self._clients):
            self._forget(comm)
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe.clear()
        for task in [*self._tasks, *([self._listing] if self._listing is not None else [])]:
            task.cancel()
        self._tasks.clear()
        self._targets.close()
        self._details.close()
        self._meters.close()
        self._gpus.close()


def _status(row: RunRow) -> tuple[bool, bool, str]:
    """Return the facts that a status bar shows: whether the run has started, whether it has ended, its attention."""
    ended = row.state in ("completed", "failed", "canceled", "lost")
    return row.started is not None, ended, row.attention


class TargetFeed:
    """State of the targets for clients; refreshed after changes, at most twice a second.

    Parameters
    ----------
    on_changed
        Called when the state has changed.

    Attributes
    ----------
    state
        The newest state.
    """

    def __init__(self, controller: Controller, on_changed: Callable[[], None]) -> None:
        self._controller, self._on_changed = controller, on_changed
        self.state = TargetState()
        self._counted: dict[str, bool] = {}  #: handles of live runs, and whether each is running
        self._task: asyncio.Task[None] | None = None
        self._due = False

    def on_run_changed(self, run: Run) -> None:
        """Refresh if a run has started or ended: the rows count running and queued runs."""
        state = run.status.state
        runs = None if state.terminal else state not in (RunState.PREPARING, RunState.QUEUED)
        if runs != self._counted.get(run.handle):
            if runs is None:
                del self._counted[run.handle]
            else:
                self._counted[run.handle] = runs
            self.refresh_soon()

    def on_run_removed(self, handle: str) -> None:
        """Refresh if the run was counted."""
        if self._counted.pop(handle, None) is not None:
            self.refresh_soon()

    def refresh_soon(self) -> None:
        """Refresh as soon as the rate limit allows."""
        self._due = True
        if self._task is None or self._task.done():
            self._task = self._controller.loop.start(self._follow(), "targets for the panel")

    async def _follow(self) -> None:
        while self._due:
            self._due = False
            await self.refresh()
            await asyncio.sleep(1 / MAX_MESSAGES_PER_S)

    async def refresh(self) -> None:
        """Refresh now."""
        try:
            state = await target_state(self._controller)
        except AmlTrainError as error:  # keep the last known state
            state = self.state._replace(trouble=str(error))
        if state != self.state:
            self.state = state
            self._on_changed()

    def close(self) -> None:
        """Stop refreshing."""
        self._due = False
        if self._task is not None:
            self._task.cancel()


async def target_state(controller: Controller) -> TargetState:
    """Return the targets and workspaces that this kernel knows; makes no network calls."""
    computes, connections = controller.target_manager.status, controller.workspaces
    targets = await computes.refresh()
    workspaces = await connections.rows(targets)
    computes.check_outdated()
    return TargetState(computes.current, computes.rows(), workspaces)


class ExternalChangeWatcher:
    """Watches for runs and targets that other kernels and the command line change.

    Watches the folders of the state root (inotify). Where that is not available, and for network folders that another
    machine writes to, it polls their modification times every 2 s while a panel is shown.

    Parameters
    ----------
    is_shown
        Whether a panel is shown.
    on_targets_changed
        Called when targets or workspaces may have changed.
    """

    #: Seconds between two polls of modification times, and between two listings of remote targets.
    POLL_INTERVAL_S, REMOTE_INTERVAL_S = 2.0, 30.0
    #: Maximum rate of listings, and its burst, while other kernels keep submitting.
    LISTS_PER_S, LISTS_BURST = 2.0, 4
    #: Delays after which a new folder is listed again (seconds).
    RELIST_DELAYS_S = (0.5, 3.0)
    #: Number of consecutive events about all folders without a change after which only times are polled.
    MAX_EMPTY_EVENTS = 8

    def __init__(self, runs: RunProvider, is_shown: Callable[[], bool], on_targets_changed: Callable[[], None]) -> None:
        self._provider, self._is_shown, self._on_targets_changed = runs, is_shown, on_targets_changed
        self._runs = str(runs.root.runs)
        self._home = str(runs.root.path)
        self._lists = (str(runs.root.targets), str(runs.root.workspaces))
        self._pace = TokenBucket(self.LISTS_PER_S, self.LISTS_BURST)

    async def run(self) -> None:
        """Watch until canceled."""
        changes = FolderEvents()
        times, listed_at, empty = await self._times(), time.monotonic(), 0
        later: list[float] = []  # monotonic seconds at which listings are due
        try:
            while True:
                now = time.monotonic()
                pause = max(0.0, min([self.POLL_INTERVAL_S, *(due - now for due in later)]))
                if empty < self.MAX_EMPTY_EVENTS:
                    changed = await changes.wait((self._runs, self._home), pause)
                else:  # inotify does not work here: `wait` always reports possible changes
                    await asyncio.sleep(pause)
                    changed = ()
                due = [at for at in later if at <= time.monotonic()]
                later = [at for at in later if at not in due]
                if not changed and not due and not self._is_shown():
                    continue
                if wait := self._pace.wait():
                    await asyncio.sleep(wait)
                    self._pace.wait()
                before, times = times, await self._times()
                if len(changed) == 2 and times == before:
                    empty += 1
                elif empty < self.MAX_EMPTY_EVENTS:
                    empty = 0
                if times[1] != before[1]:
                    self._on_targets_changed()
                if times[0] != before[0]:
                    # A run's folder exists before the files in it.
                    later = [time.monotonic() + delay for delay in self.RELIST_DELAYS_S]
                if due or times[0] != before[0]:
                    await self._provider.refresh(LOCAL.name)
                if self._is_shown() and time.monotonic() - listed_at > self.REMOTE_INTERVAL_S:
                    listed_at = time.monotonic()
                    await self._provider.refresh()
        finally:
            changes.close()

    async def _times(self) -> tuple[int, tuple[int, ...]]:
        """Return the modification times of the folder of runs, and of the files of targets and workspaces."""
        runs, *lists = await self._provider.loop.offload(_times_of, self._runs, *self._lists)
        return runs, tuple(lists)


def _times_of(*paths: str) -> list[int]:
    times = []
    for path in paths:
        moment = 0
        with contextlib.suppress(OSError):
            moment = os.stat(path).st_mtime_ns
        times.append(moment)
    return times
