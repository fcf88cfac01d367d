"""Facade of the kernel for magics, panel, command line and plain functions. Loop thread only.

It does not import IPython. Callers use ``controller.loop.call`` or ``.post``. Closing it stops watching; runs
continue.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.target_kinds import target_kinds
from jupyter_amltrain.errors import (
    AmlTrainError,
    CommandError,
    TargetError,
    UnknownRun,
    UnrecordedRun,
)
from jupyter_amltrain.kernel.backend_pool import BackendPool
from jupyter_amltrain.kernel.environments import EnvironmentManager
from jupyter_amltrain.kernel.finish import RunFinalizer, StreamCache, refresh_run
from jupyter_amltrain.kernel.job_submitter import JobSubmitter
from jupyter_amltrain.kernel.mlflow_live import LiveRecorder
from jupyter_amltrain.kernel.mlflow_queue import MlflowImportQueue
from jupyter_amltrain.kernel.models import ModelRegistry
from jupyter_amltrain.kernel.monitors import Monitors
from jupyter_amltrain.kernel.observers import FrameCallback, RunObservers
from jupyter_amltrain.kernel.run_contents import RunContents
from jupyter_amltrain.kernel.run_index import RunIndex, TargetRunReader
from jupyter_amltrain.kernel.run_record import record_of
from jupyter_amltrain.kernel.run_row import StreamSummary, stream_summary_of
from jupyter_amltrain.kernel.scaling import ScalingDriver
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.kernel.submit_queue import SubmitQueue
from jupyter_amltrain.kernel.target_file import TargetFile
from jupyter_amltrain.kernel.targets import TargetManager
from jupyter_amltrain.kernel.team_queue import TeamQueue
from jupyter_amltrain.kernel.workspaces import workspaces_class
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.failure import FailedFrame
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import Run, RunHandle, split_handle
from jupyter_amltrain.state_dir import StateRoot
from jupyter_amltrain.text import notebook_path

log = logging.getLogger(__name__)

#: Seconds that the reply to a page waits for the pictures of an ended run.
PAGE_TIMEOUT_S = 2.0


class Controller:
    """Configures targets, submits jobs, watches runs.

    Parameters
    ----------
    root
        State root; default the user's.
    """

    def __init__(self, root: StateRoot | None = None) -> None:
        self.root = root or StateRoot()
        self.loop = LoopThread()
        self.store = RunStore(self.loop)
        self.targets = TargetFile(self.root, target_kinds(), notebook_path())
        self.imports = MlflowImportQueue(self.loop, self.root, self._imported, self._local_copy)
        self.team = TeamQueue(self.loop, self.root)
        self.stream_cache = StreamCache(self.store)
        self.recorder = LiveRecorder(self.loop, self.store, self.imports, self.backend)
        self._observers = RunObservers(self.store, self.imports.picture)
        self._finalizer = RunFinalizer(
            self.loop, self.store, self.imports, self._observers, self.stream_cache, self.backend
        )
        ends = (self._finalizer.outcome, self._finalizer.on_ended)
        self.backends = BackendPool(self.loop, self.root, self.targets, self.store, *ends)
        self.target_manager = TargetManager(self.loop, self.targets, self.backends, self.store, self._forget)
        status = self.target_manager.status
        self.workspaces = workspaces_class()(self.loop, self.root, self.targets, status, self.store)
        self.models = ModelRegistry(self.loop, self.imports, self.targets, self.workspaces)
        directory = TargetRunReader(self.store)
        self._run_index = RunIndex(self.targets, status, self.backends, self.store, directory)
        self._submit_queue = SubmitQueue(self.loop, self.store, self._on_submitted)
        self._scaling = ScalingDriver(
            self.loop, self.store, self._submit_queue, self._measured, self._finalizer.ended, self.cancel
        )
        self.contents = RunContents(self.loop, self.store, self.backends, self.entry)
        self.monitors = Monitors(self.loop, self.backend)
        self.environments = EnvironmentManager(self.loop, self.root, self.backend)
        self.jobs = JobSubmitter(
            self.loop, self.targets, status, self.backend, self.environments.names,
            self._submit_queue, self._scaling,
        )  # fmt: skip
        #: Called on the loop before anything is closed, so that front ends stop first.
        self.closers: list[Callable[[], Awaitable[None]]] = []
        if left := self.team.project_left():
            self.loop.post(self.team.settle(left))

    # ---- targets

    def backend(self, name: str) -> Backend:
        """Return the live backend of a target, created at first use with its watcher."""
        return self.backends.backend(name)

    async def _forget(self, name: str, outlived: bool) -> None:
        """Release the monitors of a removed target and, unless the service keeps them, its runs."""
        await self.monitors.close_of(name)
        if outlived:
            return
        for handle in await self.backends.drop(name):
            self._finalizer.on_removed(handle)

    # ---- submitting

    async def _measured(self, handle: RunHandle) -> None:
        """Wait until a run has ended and its metrics are read."""
        await self._finalizer.wait(self.entry(handle))
        if self.store.get(handle) is not None:
            await self.refresh_run(handle)

    async def accepted(self, handle: RunHandle) -> Run:
        """Wait until the target has accepted the run; raise its error if the target rejected it."""
        await self._submit_queue.accepted(handle)
        return self.entry(handle).run

    def _on_submitted(self, handle: RunHandle) -> None:
        """Handle the end of a submit: the target has accepted or rejected the run."""
        if self.entry(handle).run.status.state.terminal:
            self._finalizer.ended(handle)
        else:
            self.backends.wake(split_handle(handle)[0])
            self.imports.warm()
            self.imports.postpone()
            self.recorder.follow(handle)
            self.loop.start(self._note_price(handle), f"price of {handle}")

    async def _note_price(self, handle: RunHandle) -> None:
        """Note the price of a run on a billed target in the first one of that price from this notebook."""
        name = split_handle(handle)[0]
        price = await self.jobs.run_price(name, self.entry(handle).run.spec)
        if price is None or not await self.loop.offload(self.targets.note_billed, name, price.amount):
            return
        entry = self.store.get(handle)
        if entry is not None:
            self.store.amend(handle, notes=(*entry.run.notes, price.text))

    # ---- runs

    async def runs(self, target: str | None = None, limit: int | None = None) -> list[Run]:
        """Runs of `target` (default: of all targets that answer), newest first; `limit` of them, or all."""
        return [entry.run for entry in (await self._run_index.runs(target))[:limit]]

    async def handles(self, target: str | None = None) -> list[RunHandle]:
        """Handles of the runs of `target` (default: of all targets that answer), newest first."""
        return [entry.handle for entry in await self._run_index.runs(target)]

    async def refresh(self, target: str | None = None) -> None:
        """Read the runs of all targets, or of one, concurrently; an unreachable target does not delay the others."""
        await self._run_index.refresh(target)

    async def stream_summary(self, handle: RunHandle) -> StreamSummary:
        """Return a summary of the streams of an ended run, read without caching them."""
        await self.load(handle)
        run = self.entry(handle).run
        scratch = Entry(run)
        if run.folder:
            fields = await refresh_run(self.backend(run.target), scratch)
            if fields.get("error"):
                self.store.amend(handle, error=fields["error"])
        return stream_summary_of(scratch)

    async def load(self, handle: RunHandle) -> Run:
        """Return the run with its complete job; lists contain only a part of it for ended runs."""
        await self._run_index.load(handle)
        return self.entry(handle).run

    async def resolve(self, text: str = "last") -> RunHandle:
        """Resolve ``last``, a handle, a run id, or an unambiguous prefix; raises ``UnknownRun``."""
        return await self._run_index.resolve(text)

    async def find(self, handle: str) -> RunHandle:
        """Return the complete handle of an existing run, as a page names it; raises ``UnknownRun``."""
        return await self._run_index.find(handle)

    def entry(self, handle: RunHandle) -> Entry:
        """Return the entry of a resolved handle."""
        entry = self.store.get(handle)
        if entry is None:
            raise UnknownRun(f"No run {handle!r}.", hint="To list the runs: %aml_runs")
        return entry

    async def cancel(self, handle: RunHandle) -> Run:
        """Request the cancellation of a run, and of the runs of a driver; does nothing for an ended run."""
        entry = self.entry(handle)
        is_sweep = entry.run.spec.sweep is not None and self.backend(entry.run.target).sweeps is None
        if is_sweep or entry.run.spec.driver is not None:
            # Its driver does the same, but it may be starting, or gone.
            self.loop.start(self._cancel_children(entry.run), f"cancel the runs of {handle}")
        if entry.run.damaged:  # its processes may still be running
            await self.backend(entry.run.target).cancel(entry.run.run_id)
            return entry.run
        if entry.run.status.state.terminal:
            return entry.run
        status = entry.run.status
        if self._scaling.skip(handle):
            return entry.run
        self.store.amend(handle, status=msgspec.structs.replace(status, cancel_requested=True))
        if entry.run.folder:
            try:
                await self.backend(entry.run.target).cancel(entry.run.run_id)
            except AmlTrainError:  # the target did not receive the request
                now = msgspec.structs.replace(entry.run.status, cancel_requested=status.cancel_requested)
                self.store.correct(msgspec.structs.replace(entry.run, status=now))
                raise
        return entry.run

    async def _cancel_children(self, run: Run) -> None:
        """Cancel the runs of a driver that have not ended."""
        children = (await self.backend(run.target).children.list(run.run_id)).runs if run.folder else ()
        for name in {split_handle(child.handle)[0] for child in children if child.ended is None and child.handle}:
            with contextlib.suppress(AmlTrainError):
                arrays = self.backend(name).arrays
                if arrays is not None:  # all at once, also those whose driver is gone
                    await arrays.cancel(run.run_id)
        for child in children:
            if child.ended is None and child.handle:
                with contextlib.suppress(AmlTrainError):
                    await self.cancel(await self.find(child.handle))

    async def unrecorded(self, handle: RunHandle) -> str:
        """Return why MLflow has no record of what an ended run logged; empty if it has one or nothing was logged.

        Retries a pending or failed import first.
        """
        run = self.entry(handle).run
        if not run.folder or not run.status.state.terminal:
            return ""
        self.imports.request(run, now=True)
        await self.imports.run(handle)
        return await self.unrecorded_so_far(handle)

    async def unrecorded_so_far(self, handle: RunHandle) -> str:
        """Return the same as :meth:`unrecorded`, from the last import."""
        run = self.entry(handle).run
        if run.tracking_state != "failed" or not run.folder:
            return ""
        if not await self._holds_metrics(run):
            return ""
        return run.tracking_error.rstrip(".") or "its import failed"

    async def _holds_metrics(self, run: Run) -> bool:
        """Whether a run's files contain data that its script logged to MLflow."""
        backend = self.backend(run.target)
        journal = await backend.read(run.run_id, "metrics", 0)  # the first line is the run itself
        return bool(journal.data.partition(b"\n")[2]) or bool(await backend.files.list(run.run_id, "artifacts"))

    async def _local_copy(self, run: Run, folder: str) -> str | None:
        return await self.backend(run.target).files.local_copy(run.run_id, folder)

    async def delete(self, handle: RunHandle, without_mlflow: bool = False) -> None:
        """Remove an ended run from its target. The MLflow record stays.

        Parameters
        ----------
        without_mlflow
            Delete the run even if MLflow has no record of it.

        Raises
        ------
        UnrecordedRun
            MLflow has no record of the run.
        """
        entry = self.entry(handle)
        if entry.run.folder:
            reason = await self.unrecorded(handle)  # its MLflow record is imported from the folder
            if reason and not without_mlflow:
                raise UnrecordedRun(
                    f"{handle} was not deleted: MLflow has no record of it ({reason}), and its metrics, parameters,"
                    " artifacts and models would be lost."
                )
            await self.backend(entry.run.target).delete(entry.run.run_id)
        elif not entry.run.status.state.terminal:  # the target is about to accept it
            raise CommandError(f"{handle} has not ended.", hint=f"Cancel it first: %aml_runs cancel {handle}")
        self.store.remove(handle)
        self._finalizer.forget(handle)

    async def wait(self, handle: RunHandle) -> Run:
        """Wait until the run has ended and its output values were read."""
        entry = self.entry(handle)
        await self._finalizer.wait(entry)
        if self.store.get(handle) is entry:  # otherwise it was removed with its target
            await self.refresh_run(handle)
            await self._observers.wait_drawn(entry.run)
        return entry.run

    def change_viewers(self, handle: RunHandle, more: int) -> None:
        """Add (1) or remove (-1) a viewer: streams of runs with viewers are read while they grow."""
        entry = self.entry(handle)
        entry.viewers += more
        if more > 0:
            self.backends.wake(entry.run.target)
            self.recorder.wake()

    def change_viewers_of(self, handle: str, more: int) -> None:
        """Add (1) or remove (-1) a viewer of a run or monitor, when its dashboard is shown or hidden."""
        if not self.monitors.change_viewers(handle, more) and self.store.get(RunHandle(handle)) is not None:
            self.change_viewers(RunHandle(handle), more)

    async def source(self, handle: str) -> Entry:
        """Return the entry of a run or monitor, by its whole handle, with its streams up to date."""
        entry = self.monitors.entry(handle)
        if entry is not None:
            return entry
        try:
            entry = await self.known_run(await self.find(handle))
            if entry.run.status.state.terminal:
                await self.backends.shown.complete(entry, PAGE_TIMEOUT_S)
            else:
                self.backends.shown.request(entry)
            return entry
        except UnknownRun:
            if handle.rpartition("/")[2].startswith("monitor-"):  # a run of this name would exist
                raise UnknownRun("This monitor ended with its kernel.", hint="Start another: %aml_monitor") from None
            raise

    async def watch(self, handle: RunHandle, on_frame: FrameCallback, rate: float = 2.0) -> None:
        """Call `on_frame(record, picture)` for every frame of a run, until the last one."""
        self.change_viewers(handle, 1)
        try:
            await self._observers.watch(handle, on_frame, rate)
        finally:
            if self.store.get(handle) is not None:
                self.change_viewers(handle, -1)

    async def known_run(self, handle: RunHandle) -> Entry:
        """Update a run as :meth:`refresh_run` does, or return it as it is known here if its target does not answer."""
        entry = self.entry(handle)
        backend = self.backend(entry.run.target)
        read = functools.partial(self.refresh_run, handle)
        entry = await self.backends.reads.value(backend, ("run", handle), read, entry, self.contents.probe(entry.run))
        is_silent = self.backends.reads.silent_s(entry.run.target) > 0
        if is_silent and entry.run.reachable and not entry.run.status.state.terminal:
            self.store.amend(handle, reachable=False)
        return entry

    async def refresh_run(self, handle: RunHandle) -> Entry:
        """Update the status, streams and output values of a run; waits for its target."""
        await self._run_index.load(handle)
        entry = self.entry(handle)
        if entry.run.folder:
            try:
                if not entry.run.status.state.terminal:
                    await self.backends.poll(entry.run.target, [entry.run.run_id])
                with self.stream_cache.reading(handle):
                    self.store.amend(handle, **await refresh_run(self.backend(entry.run.target), entry))
                if entry.run.status.state.terminal and self.imports.request(entry.run):
                    # Its kernel may have died before the import.
                    self.loop.start(self.imports.run(handle), f"import {handle}")
            except TargetError as error:
                log.info("%s", error)
        return entry

    async def record(self, handle: RunHandle) -> RunRecord:
        """Return the current record of a run."""
        return record_of(await self.with_pictures(handle))

    async def failed_frames(self, handle: RunHandle) -> tuple[FailedFrame, ...]:
        """Return the frames at which a run failed, with their variables."""
        return (await self.known_run(handle)).frames or ()

    async def with_pictures(self, handle: RunHandle) -> Entry:
        """Update a run, its displays and pictures; what its target does not tell in time comes later."""
        entry = await self.known_run(handle)
        backend, read = self.backend(entry.run.target), self.backends.reads.value
        await read(backend, ("shown files", handle), lambda: self.backends.shown.complete(entry), None)
        return entry

    async def open_ui(self, project: str) -> dict[str, Any]:
        """Start MLflow's UI for the store of `project`, or return the running one."""
        reply: dict[str, Any] = await self.imports.worker.request("ui_start", {"project": project}, timeout=180)
        return reply

    # ---- ends

    def _imported(self, handle: RunHandle, state: str) -> None:
        self.store.amend(handle, tracking=state)
        if state == "imported":
            self.team.add(self.entry(handle).run)

    async def _close(self, at_exit: bool) -> None:
        parts = (
            self.monitors.close_all,
            self.imports.close,
            self.team.close,
            *(b.close for b in self.backends),
            self.workspaces.close,
        )
        # When a kernel ends, pages have dropped its widgets: each would log an error.
        for part in parts if at_exit else (*self.closers, *parts):
            try:
                await part()
            except Exception:  # an error must not prevent closing the other parts
                log.exception("closing")

    def close(self, *, at_exit: bool = False) -> None:
        """Stop watching, without a word to clients if the interpreter ends. Runs continue."""
        try:
            self.loop.call(self._close(at_exit), 10)
        finally:
            self.loop.close()
