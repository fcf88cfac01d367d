"""Pool of the live backends of this process and their watchers, created at first use. Loop thread only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import Any

import msgspec

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.provisioner import Provisioner
from jupyter_amltrain.backends.target_kinds import backend_class, kind_of
from jupyter_amltrain.kernel.bounded_reads import BoundedReads
from jupyter_amltrain.kernel.shown_reader import ShownFilesReader
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.kernel.target_file import TargetFile
from jupyter_amltrain.kernel.watcher import Watcher
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.run import RunHandle, RunState, RunStatus
from jupyter_amltrain.schema.target import ComputeTarget
from jupyter_amltrain.state_dir import StateRoot

log = logging.getLogger(__name__)


class BackendPool:
    """One backend for each target in use, and one watcher for each of its machines.

    Parameters
    ----------
    outcome, over
        As :class:`~jupyter_amltrain.kernel.watcher.Watcher` takes them.
    """

    def __init__(
        self,
        loop: LoopThread,
        root: StateRoot,
        targets: TargetFile,
        store: RunStore,
        outcome: Callable[[Entry, RunStatus], Awaitable[dict[str, Any]]],
        over: Callable[[RunHandle], None],
    ) -> None:
        self._loop, self._root, self._targets, self._store = loop, root, targets, store
        self._outcome, self._over = outcome, over
        #: Of the runs of all targets.
        self.shown = ShownFilesReader(loop, self.backend, self._on_shown)
        #: Reads for lists and records, which no silent target holds up.
        self.reads = BoundedReads(loop)
        self._backends: dict[str, Backend] = {}
        self._watchers: dict[str, list[Watcher]] = {}
        self._tasks: dict[str, list[asyncio.Task[Any]]] = {}

    def backend(self, name: str) -> Backend:
        """The live backend of a target, or of a removed one that kept its runs; created at first use."""
        self._loop.check()
        if name not in self._backends:
            backend = self.draft(self._targets.known(name))
            self._backends[name] = backend
            watchers = self._watchers[name] = [
                Watcher(
                    backend,
                    name,
                    self._store,
                    self._loop,
                    self._outcome,
                    self._over,
                    self.shown,
                    machine,
                )
                for machine in range(backend.machines)
            ]
            self._tasks[name] = [self._loop.start(watcher.run(), f"watch {name}") for watcher in watchers]
        return self._backends[name]

    def _on_shown(self, handle: RunHandle) -> None:
        if self._store.get(handle) is not None:
            self._store.touch(handle)

    def draft(self, target: ComputeTarget) -> Backend:
        """A backend of a target that need not be stored; it has no watcher."""
        make: Any = backend_class(kind_of(target), target.variant)
        backend: Backend = make(target, self._loop, self._root)
        return backend

    def live(self, name: str) -> Backend | None:
        """The live backend of a target, if there is one."""
        return self._backends.get(name)

    def wake(self, name: str) -> None:
        """Wake the watchers of a target because of a new run or viewer."""
        for watcher in self._watchers.get(name, ()):
            watcher.wake()

    async def poll(self, name: str, run_ids: list[str]) -> None:
        """Poll some runs of a target now."""
        self.backend(name)
        await asyncio.gather(*(watcher.poll(run_ids) for watcher in self._watchers[name]))

    def __iter__(self) -> Iterator[Backend]:
        return iter(tuple(self._backends.values()))

    def changed(
        self, targets: Iterable[ComputeTarget], past: Iterable[ComputeTarget], busy: Collection[str]
    ) -> list[str]:
        """Apply stored changes of other kernels; return the names of targets that must be dropped.

        Targets in `busy` are skipped: this kernel is changing them. Those in `past` stay for their runs.
        """
        stored = {target.name: target for target in (*past, *targets)}
        idle = [name for name in self._backends if name not in busy]
        return [name for name in idle if name not in stored or not self.renew(stored[name])]

    def renew(self, target: ComputeTarget) -> bool:
        """Update the fields of a live backend; return False if it must be dropped instead."""
        backend = self._backends.get(target.name)
        if backend is None or backend.target == target:
            return True
        if type(target) is type(backend.target) and isinstance(backend, Provisioner):
            backend.renew(target)
            return True
        return False

    async def drop(self, name: str) -> list[RunHandle]:
        """Stop watching a removed target and forget its runs, which are returned."""
        self._loop.check()
        self._watchers.pop(name, None)
        for task in self._tasks.pop(name, ()):
            task.cancel()
        backend = self._backends.pop(name, None)
        removed = [entry for entry in self._store.entries() if entry.target == name]
        for entry in removed:
            if not entry.unread and not entry.run.status.state.terminal:  # observers see an end
                status = msgspec.structs.replace(entry.run.status, state=RunState.CANCELED, reason="deleted")
                self._store.amend(entry.handle, status=status, error="The run ended with its target.")
            self._store.remove(entry.handle)
        if backend is not None:
            try:
                await backend.close()
            except Exception:  # the backend is not used any more
                log.exception("closing %s", name)
        return [entry.handle for entry in removed]
