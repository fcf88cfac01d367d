"""Which runs exist, and which one a handle, an id or a prefix means."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.past_runs import PastRun
from jupyter_amltrain.errors import AmlTrainError, TargetError, UnknownRun, UnknownTarget
from jupyter_amltrain.kernel.backend_pool import BackendPool
from jupyter_amltrain.kernel.outcome_text import explained
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.kernel.target_file import TargetFile
from jupyter_amltrain.kernel.target_status import TargetStatusCache
from jupyter_amltrain.schema.run import Run, RunHandle, make_handle, split_handle


def match_run(text: str, handles: Sequence[RunHandle]) -> RunHandle:
    """The one of `handles` (newest first) that `text` means; ``last`` is the newest.

    Raises
    ------
    UnknownRun
        None or several; names the near matches.
    """
    if text == "last":
        if not handles:
            raise UnknownRun("There is no run yet.", hint="Start a cell with %%aml_submit.")
        return handles[0]
    ids = {handle: split_handle(handle)[1] for handle in handles}
    exact = [h for h, i in ids.items() if text in (h, i)]
    begins = exact or [h for h, i in ids.items() if i.startswith(text) or h.startswith(text)]
    if len(begins) == 1:
        return begins[0]
    if begins:
        raise UnknownRun(f"{text!r} fits {len(begins)} runs: {', '.join(begins[:4])}.", hint="Type more of it.")
    names: dict[str, RunHandle] = {i: h for h, i in ids.items()}
    names.update({str(h): h for h in ids})
    near = [names[m] for m in difflib.get_close_matches(text, names, 3, 0.5)]
    guess = f"Did you mean {' or '.join(dict.fromkeys(near))}? " if near else ""
    raise UnknownRun(f"No run {text!r}.", hint=f"{guess}%aml_runs lists them.")


#: Runs that are taken in without a pause, and ended ones of an index: charts do not wait for a long list.
_AT_ONCE, _PAST_AT_ONCE = 50, 1000


class TargetRunReader:
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


log = logging.getLogger(__name__)


def job_name_in_url(text: str) -> str:
    """The job's name in the address of its page in Azure's studio (``https://ml.azure.com/runs/NAME?wsid=...``)."""
    if not text.startswith("https://"):
        return text
    found = re.search(r"/(?:runs|jobs|experiments/[^/?]+/runs)/([^/?#]+)", text)
    return found[1] if found else text


class RunIndex:
    """Reads the runs of the targets into the store, and resolves what users call a run."""

    def __init__(
        self,
        targets: TargetFile,
        status: TargetStatusCache,
        places: BackendPool,
        store: RunStore,
        directory: TargetRunReader,
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
        text = job_name_in_url(text.strip())
        if "/" in text:
            target, run_id = split_handle(text)
            handle = make_handle(target, run_id)
            if self._store.get(handle) is not None or await self._directory.find(self._places.backend(target), run_id):
                self._places.wake(target)
                return handle
        entries = await self.runs()
        try:
            return match_run(text, [entry.handle for entry in entries])
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
