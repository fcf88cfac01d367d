"""Runs by what a person calls them, over all targets. Runs on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from jupyter_amltrain.errors import AmlTrainError, TargetError, UnknownRun, UnknownTarget
from jupyter_amltrain.places import Places
from jupyter_amltrain.runs.directory import RunDirectory
from jupyter_amltrain.runs.lookup import match
from jupyter_amltrain.runs.store import RunStore
from jupyter_amltrain.spec.run import Run, RunHandle, make_handle, split_handle
from jupyter_amltrain.target_list import TargetList
from jupyter_amltrain.targets import Targets

log = logging.getLogger(__name__)


class RunFinder:
    """Asks the targets for their runs, and takes them into the store."""

    def __init__(
        self, targets: Targets, computes: TargetList, places: Places, store: RunStore, directory: RunDirectory
    ) -> None:
        self._targets, self._computes, self._places = targets, computes, places
        self._store, self._directory = store, directory

    async def runs(self, target: str | None = None) -> list[Run]:
        """Every run of `target` (default: of all targets that answer), newest first."""
        if target is not None:
            self._targets.get(target)  # UnknownTarget before anything is asked
        names = [target] if target else [t.name for t in await self._computes.refresh()]
        for name in names:
            try:
                await self._directory.read(self._places.backend(name))
            except (TargetError, UnknownTarget):  # it does not answer, or was deleted just now
                if target is not None:
                    raise
            self._places.wake(name)
        return self._directory.runs(names)

    async def refresh(self, target: str | None = None) -> None:
        """Take in the runs of every target (or of one), all at once; a silent one costs the others no time."""
        names = [target] if target else [t.name for t in await self._computes.refresh()]

        async def take(name: str) -> None:
            try:
                await self._directory.read(self._places.backend(name))
                self._places.wake(name)
            except (AmlTrainError, OSError) as error:
                log.info("runs of %s: %s", name, error)

        await asyncio.gather(*map(take, names))

    async def resolve(self, text: str = "last") -> RunHandle:
        """``last``, a handle, a run id, or the unambiguous beginning of one.

        Raises
        ------
        UnknownRun
            Names the near matches.
        """
        text = text.strip()
        if "/" in text:
            target, run_id = split_handle(text)
            handle = make_handle(target, run_id)
            if self._store.get(handle) is not None or await self._directory.find(self._places.backend(target), run_id):
                self._places.wake(target)
                return handle
        runs = await self.runs()
        try:
            return match(text, [run.handle for run in runs])
        except UnknownRun:
            # A folder that cannot be listed, of a newer schema say, tells why when it is asked for.
            for place in await self._computes.refresh() if text.isprintable() and "/" not in text else ():
                with contextlib.suppress(TargetError, UnknownTarget):
                    await self._places.backend(place.name).find(text)
            raise
