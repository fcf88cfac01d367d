"""The live backends of this process and their watchers, made at first use. Runs on the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.lifecycle import Provisioned
from jupyter_amltrain.backends.registry import backend_class, kind_of
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.runs.store import Entry, RunStore
from jupyter_amltrain.runs.watcher import Watcher
from jupyter_amltrain.spec.run import RunHandle, RunStatus
from jupyter_amltrain.spec.target import ComputeTarget
from jupyter_amltrain.state import StateRoot
from jupyter_amltrain.targets import Targets

log = logging.getLogger(__name__)


class Places:
    """One backend and one watcher for each target that was asked for.

    Parameters
    ----------
    outcome, over
        As :class:`~jupyter_amltrain.runs.watcher.Watcher` takes them.
    """

    def __init__(
        self,
        loop: LoopThread,
        root: StateRoot,
        targets: Targets,
        store: RunStore,
        outcome: Callable[[Entry, RunStatus], Awaitable[dict[str, Any]]],
        over: Callable[[RunHandle], None],
    ) -> None:
        self._loop, self._root, self._targets, self._store = loop, root, targets, store
        self._outcome, self._over = outcome, over
        self._backends: dict[str, Backend] = {}
        self._watchers: dict[str, Watcher] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    def backend(self, name: str) -> Backend:
        """The live backend of a target, made at first use, with its watcher."""
        self._loop.check()
        if name not in self._backends:
            backend = self.draft(self._targets.get(name))
            self._backends[name] = backend
            watcher = Watcher(backend, name, self._store, self._loop, self._outcome, self._over)
            self._watchers[name] = watcher
            self._tasks[name] = self._loop.start(watcher.run(), f"watch {name}")
        return self._backends[name]

    def draft(self, target: ComputeTarget) -> Backend:
        """A backend of a target that need not be stored; nobody watches it."""
        make: Any = backend_class(kind_of(target))
        backend: Backend = make(target, self._loop, self._root)
        return backend

    def live(self, name: str) -> Backend | None:
        """The backend of a target if it has been asked for."""
        return self._backends.get(name)

    def watcher(self, name: str) -> Watcher | None:
        """The watcher of a target if its backend has been asked for."""
        return self._watchers.get(name)

    def __iter__(self) -> Iterator[Backend]:
        return iter(tuple(self._backends.values()))

    def changed(self, there: Iterable[ComputeTarget]) -> list[str]:
        """Take over what another kernel has stored; returns the names of targets that have to be dropped."""
        stored = {target.name: target for target in there}
        out: list[str] = []
        for name, backend in self._backends.items():
            target = stored.get(name)
            if target == backend.target:
                continue
            if target is not None and type(target) is type(backend.target) and isinstance(backend, Provisioned):
                backend.renew(target)
            else:
                out.append(name)
        return out

    async def drop(self, name: str) -> None:
        """Stop watching a target and let go of its backend; its runs are left alone."""
        self._loop.check()
        self._watchers.pop(name, None)
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()
        if (backend := self._backends.pop(name, None)) is not None:
            try:
                await backend.close()
            except Exception:  # it is gone for us either way
                log.exception("closing %s", name)
