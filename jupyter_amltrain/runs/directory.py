"""What the targets tell of their runs, taken into the store: for lists and for attaching."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

import msgspec

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.runs.imports import Imports
from jupyter_amltrain.runs.outcome import why
from jupyter_amltrain.runs.store import RunStore
from jupyter_amltrain.spec.run import Run, RunHandle


class RunDirectory:
    """Reads targets into the store; the watchers take over what still lives."""

    def __init__(self, store: RunStore, imports: Imports) -> None:
        self._store, self._imports = store, imports

    async def read(self, backend: Backend) -> None:
        """Take in all runs of a target; drop ended ones that it no longer has."""
        asked = time.time()
        found = await backend.list()
        for run in found:
            self._adopt(run)
        self._forget(backend.target.name, {run.handle for run in found}, asked)

    async def find(self, backend: Backend, run_id: str) -> bool:
        """Take in one run; False when the target has no such run."""
        run = await backend.find(run_id)
        if run is not None:
            self._adopt(run)
        return run is not None

    def runs(self, targets: Sequence[str]) -> list[Run]:
        """What is known of the runs of `targets`, newest first."""
        known = [entry.run for entry in self._store.entries() if entry.run.target in targets]
        return sorted(known, key=lambda run: run.created, reverse=True)

    def _adopt(self, run: Run) -> None:
        entry = self._store.get(run.handle)
        if entry is None:
            if run.status.state.terminal:
                run = self._imports.known(msgspec.structs.replace(run, error=why(run, "")))
            self._store.put(run)
        elif not run.status.state.terminal:
            self._store.amend(run.handle, status=run.status)
        # The end of a run that was seen alive is its watcher's to tell.

    def _forget(self, target: str, there: Collection[RunHandle], asked: float) -> None:
        """Another kernel deleted them; a run that is younger than the question is not meant."""
        for entry in self._store.entries():
            run = entry.run
            gone = run.target == target and run.handle not in there and run.created < asked
            if gone and run.folder and run.status.state.terminal:
                self._store.remove(run.handle)
