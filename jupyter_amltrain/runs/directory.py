"""What the targets tell of their runs, taken into the store: for lists and for attaching."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.run_index import PastRun
from jupyter_amltrain.runs.outcome import explained
from jupyter_amltrain.runs.store import Entry, RunStore
from jupyter_amltrain.spec.run import Run, RunHandle

#: Runs that are taken in without a pause, and ended ones of an index: charts do not wait for a long list.
_AT_ONCE, _PAST_AT_ONCE = 50, 1000


class RunDirectory:
    """Reads targets into the store; the watchers take over what still lives."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def read(self, backend: Backend, there: Callable[[], bool] = lambda: True) -> None:
        """Take in all runs of a target; drop ended ones that it no longer has.

        An ended run does not change: of those that are known nothing is read.

        Parameters
        ----------
        there
            Asked when the target has answered: whether it has not been deleted meanwhile.
        """
        asked, began, target = time.time(), time.monotonic(), backend.target.name
        known = {
            entry.run_id
            for entry in self._store.entries()
            if entry.target == target and (entry.unread or _is_settled(entry.run))
        }
        ids, found = await backend.roster(known)
        if not there():
            return
        await self._adopt(backend, found, began)
        self._forget(target, ids, asked)

    async def find(self, backend: Backend, run_id: str) -> bool:
        """Take in one run; False when the target has no such run."""
        began = time.monotonic()
        run = await backend.find(run_id)
        if run is not None:
            await self._adopt(backend, [run], began)
        return run is not None

    async def load(self, backend: Backend, handle: RunHandle) -> None:
        """Read the whole job of a run of which only what lists show is known."""
        entry = self._store.get(handle)
        if entry is None or not entry.run.partial:
            return
        found = await backend.find(entry.run.run_id)
        entry = self._store.get(handle)
        if found is None or entry is None or not entry.run.partial:
            return
        if found.damaged:
            self._store.correct(found)
        else:
            self._store.amend(handle, spec=found.spec, partial=False)

    def entries(self, targets: Sequence[str]) -> list[Entry]:
        """What is known of the runs of `targets`, newest first."""
        known = [entry for entry in self._store.entries() if entry.target in targets]
        return sorted(known, key=lambda entry: entry.created, reverse=True)

    async def _adopt(self, backend: Backend, found: Sequence[Run | PastRun], began: float) -> None:
        """Take in what a target told when it was asked at `began` (monotonic seconds)."""
        await self._adopt_past([run for run in found if isinstance(run, PastRun)], began)
        runs = [run for run in found if isinstance(run, Run)]
        # Of those that lists know only in part their files have told it.
        ended = [
            run for run in runs if run.status.state.terminal and not run.partial and self._store.get(run.handle) is None
        ]
        states = await backend.import_states([run.run_id for run in ended]) if ended else []
        tracking = {run.handle: state for run, state in zip(ended, states, strict=True) if state}
        for number, run in enumerate(runs, 1):
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
            if self._store.removed_since(run.handle, began):
                continue
            entry = self._store.get(run.handle)
            known = None if entry is None else entry.run
            if known is None:
                run = msgspec.structs.replace(run, tracking=tracking.get(run.handle, run.tracking))
                if run.status.state.terminal:
                    run = explained(run)
                self._store.put(run)
            elif known.damaged:
                if msgspec.structs.replace(run, seen_at=known.seen_at) != known:
                    self._store.correct(explained(run))
            elif run.damaged:
                pass  # what was seen of it is more than what can be read now
            elif not known.folder and known.status.reason == "launch":
                # No answer came to its submit: its target has it all the same.
                self._store.correct(explained(run))
            elif not run.status.state.terminal:
                self._store.amend(run.handle, status=run.status)
            # The end of a run that was seen alive is its watcher's to tell.

    async def _adopt_past(self, runs: Sequence[PastRun], began: float) -> None:
        """Take in ended runs of an index."""
        removed = self._store.removed_since
        for start in range(0, len(runs), _PAST_AT_ONCE):
            some = runs[start : start + _PAST_AT_ONCE]
            self._store.put_past(run for run in some if not removed(run.handle, began))
            await asyncio.sleep(0)

    def _forget(self, target: str, there: Collection[str], asked: float) -> None:
        """Another kernel deleted them; a run that is younger than the question is not meant."""
        for entry in self._store.entries():
            gone = entry.target == target and entry.run_id not in there and entry.created < asked
            if gone and entry.run.folder and entry.run.status.state.terminal:
                self._store.remove(entry.handle)


def _is_settled(run: Run) -> bool:
    """Whether nothing about it can change; a damaged one may have been repaired."""
    return bool(run.folder) and run.status.state.terminal and not run.damaged
