"""Finds runs by handle, id or prefix, on all targets. Loop thread only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterable

from jupyter_amltrain.errors import AmlTrainError, TargetError, UnknownRun, UnknownTarget
from jupyter_amltrain.places import Places
from jupyter_amltrain.runs.directory import RunDirectory
from jupyter_amltrain.runs.lookup import match
from jupyter_amltrain.runs.store import Entry, RunStore
from jupyter_amltrain.spec.run import RunHandle, make_handle, split_handle
from jupyter_amltrain.target_list import TargetList
from jupyter_amltrain.targets import Targets

log = logging.getLogger(__name__)


def named(text: str) -> str:
    """The job's name in the address of its page in Azure's studio (``https://ml.azure.com/runs/NAME?wsid=...``)."""
    if not text.startswith("https://"):
        return text
    found = re.search(r"/(?:runs|jobs|experiments/[^/?]+/runs)/([^/?#]+)", text)
    return found[1] if found else text


class RunFinder:
    """Reads the runs of the targets into the store, and resolves what users call a run."""

    def __init__(
        self, targets: Targets, status: TargetList, places: Places, store: RunStore, directory: RunDirectory
    ) -> None:
        self._targets, self._status, self._places = targets, status, places
        self._store, self._directory = store, directory

    async def runs(self, target: str | None = None) -> list[Entry]:
        """Every run of `target` (default: of all targets that answer), newest first."""
        names = await self._names()
        if target is None:
            await self._take(names)
            return self._directory.entries(names)
        if target not in names:
            self._targets.get(target)  # names the near matches
        await self._read(target)
        return self._directory.entries([target])

    async def refresh(self, target: str | None = None) -> None:
        """Read the runs of every target, or of one; a target that does not answer is skipped."""
        try:
            await self._take([target] if target else await self._names())
        except AmlTrainError as error:  # targets.json cannot be read: told to who asks for targets
            log.info("%s", error)

    async def _names(self) -> list[str]:
        """Names of the targets, and of removed ones whose runs are kept."""
        return [*(there.name for there in await self._status.refresh()), *self._status.past]

    async def _take(self, names: Iterable[str]) -> None:
        """Read the runs of targets concurrently; one that does not answer delays no other."""

        async def take(name: str) -> None:
            try:
                await self._read(name)
            except (AmlTrainError, OSError) as error:
                log.info("runs of %s: %s", name, error)

        await asyncio.gather(*map(take, names))

    async def _read(self, name: str) -> None:
        backend = self._places.backend(name)
        await self._directory.read(backend, lambda: self._places.live(name) is backend)
        self._places.wake(name)

    async def load(self, handle: RunHandle) -> None:
        """Read the whole job of a run of which only what lists show is known."""
        entry = self._store.get(handle)
        if entry is not None and entry.run.partial:
            await self._directory.load(self._places.backend(entry.run.target), handle)

    async def resolve(self, text: str = "last") -> RunHandle:
        """``last``, a handle, a run id, or the unambiguous beginning of one; its whole job is read.

        Raises
        ------
        UnknownRun
            Names the near matches.
        """
        handle = await self._resolve(text)
        await self.load(handle)
        return handle

    async def _resolve(self, text: str) -> RunHandle:
        text = named(text.strip())
        if "/" in text:
            target, run_id = split_handle(text)
            handle = make_handle(target, run_id)
            if self._store.get(handle) is not None or await self._directory.find(self._places.backend(target), run_id):
                self._places.wake(target)
                return handle
        entries = await self.runs()
        try:
            return match(text, [entry.handle for entry in entries])
        except UnknownRun:
            found = await self._elsewhere(text) if text.isprintable() and "/" not in text else None
            if found is not None:
                return found
            raise

    async def find(self, handle: str) -> RunHandle:
        """Return a whole handle of a run that exists: neither ``last`` nor a beginning.

        What a page asks about may come from a notebook that somebody else wrote.

        Raises
        ------
        UnknownRun
            There is none. Names no other run.
        UnknownTarget
            There is no such target.
        """
        target, slash, run_id = handle.partition("/")
        if slash and target and run_id and "/" not in run_id and run_id not in (".", "..") and handle.isprintable():
            whole = make_handle(target, run_id)
            if self._store.get(whole) is not None:
                return whole
            if await self._directory.find(self._places.backend(target), run_id):
                self._places.wake(target)
                return whole
        raise UnknownRun(f"No run {handle!r}.", hint="%aml_runs lists them.")

    async def _elsewhere(self, run_id: str) -> RunHandle | None:
        """A run that its target does not list: of a service, where somebody else submitted it.

        A folder that cannot be listed, of a newer schema say, tells why when it is asked for.
        """
        near: RunHandle | None = None
        for place in await self._status.refresh():
            backend = self._places.backend(place.name)
            with contextlib.suppress(TargetError, UnknownTarget):
                run = await backend.find(run_id)
                if run is not None and (near is None or backend.holds(run)):
                    near = make_handle(place.name, run_id)
                    if backend.holds(run):
                        break
        if near is None:
            return None
        target = split_handle(near)[0]
        await self._directory.find(self._places.backend(target), run_id)
        self._places.wake(target)
        return near
