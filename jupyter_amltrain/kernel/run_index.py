"""Index of the runs of all targets, and lookup by handle, id or prefix."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import itertools
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.past_runs import PastRun
from jupyter_amltrain.errors import AmlTrainError, TargetError, TargetUnreachable, UnknownRun, UnknownTarget
from jupyter_amltrain.kernel.backend_pool import BackendPool
from jupyter_amltrain.kernel.bounded_reads import FIRST_S
from jupyter_amltrain.kernel.outcome_text import explained
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.kernel.target_file import TargetFile
from jupyter_amltrain.kernel.target_status import TargetStatusCache
from jupyter_amltrain.schema.run import Run, RunHandle, make_handle, split_handle


def match_run(text: str, handles: Sequence[RunHandle]) -> RunHandle:
    """Return the one of `handles` (newest first) that `text` matches; ``last`` is the newest.

    Raises
    ------
    UnknownRun
        No run or several runs match; the message names close matches.
    """
    if text == "last":
        if not handles:
            raise UnknownRun("No runs yet.", hint="Start a cell with %%aml_submit.")
        return handles[0]
    ids = {handle: split_handle(handle)[1] for handle in handles}
    exact = [h for h, i in ids.items() if text in (h, i)]
    matches = exact or [h for h, i in ids.items() if i.startswith(text) or h.startswith(text)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UnknownRun(
            f"{text!r} matches {len(matches)} runs: {', '.join(matches[:4])}.", hint="Use a longer prefix."
        )
    names: dict[str, RunHandle] = {i: h for h, i in ids.items()}
    names.update({str(h): h for h in ids})
    near = [names[m] for m in difflib.get_close_matches(text, names, 3, 0.5)]
    guess = f"Did you mean {' or '.join(dict.fromkeys(near))}? " if near else ""
    raise UnknownRun(f"No run {text!r}.", hint=f"{guess}%aml_runs lists them.")


#: Runs, and ended runs of an index, that are added before other tasks of the loop get a turn.
_BATCH, _PAST_BATCH = 50, 1000


class TargetRunReader:
    """Reads runs of targets into the store; the watchers follow those that are live."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def read(self, backend: Backend, is_current: Callable[[], bool] = lambda: True) -> None:
        """Add all runs of a target to the store; remove ended ones that the target no longer has.

        Known ended runs are not read again, because they do not change.

        Parameters
        ----------
        is_current
            Called after the target has answered; returns False if it was deleted in the meantime.
        """
        requested_at, began, target = time.time(), time.monotonic(), backend.target.name
        known = {
            entry.run_id
            for entry in self._store.entries()
            if entry.target == target and (entry.unread or _is_settled(entry.run))
        }
        ids, result = await backend.list(known)
        if not is_current():
            return
        await self._adopt(backend, result, began)
        self._forget(target, ids, requested_at)

    async def read_copies(self, backend: Backend) -> bool:
        """Add the runs that this machine knows of a target that does not answer, once; return whether there are any."""
        target = backend.target.name
        if any(entry.target == target for entry in self._store.entries()):
            return False
        runs = await backend.files.known_runs()
        for run in runs:
            if self._store.get(run.handle) is None:
                ended = run.status.state.terminal
                self._store.put(explained(run) if ended else msgspec.structs.replace(run, reachable=False))
        return bool(runs)

    async def find(self, backend: Backend, run_id: str) -> bool:
        """Add one run to the store; return False if the target does not have it."""
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
        result = await backend.find(entry.run.run_id)
        entry = self._store.get(handle)
        if result is None or entry is None or not entry.run.partial:
            return
        if result.damaged:
            self._store.correct(result)
        else:
            self._store.amend(handle, spec=result.spec, partial=False)

    def entries(self, targets: Sequence[str]) -> list[Entry]:
        """Return the stored runs of `targets`, newest first."""
        known = [entry for entry in self._store.entries() if entry.target in targets]
        return sorted(known, key=lambda entry: entry.created, reverse=True)

    async def _adopt(self, backend: Backend, result: Sequence[Run | PastRun], began: float) -> None:
        """Add the runs that a target returned for a request sent at `began` (monotonic seconds)."""
        await self._adopt_past([run for run in result if isinstance(run, PastRun)], began)
        runs = [run for run in result if isinstance(run, Run)]
        # Partial runs already have their import state from their files.
        ended = [
            run for run in runs if run.status.state.terminal and not run.partial and self._store.get(run.handle) is None
        ]
        states = await backend.files.import_states([run.run_id for run in ended]) if ended else []
        tracking = {run.handle: state for run, state in zip(ended, states, strict=True) if state}
        for number, run in enumerate(runs, 1):
            if not number % _BATCH:
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
                pass  # the stored run is more complete than what can be read now
            elif not known.folder and known.status.reason == "launch":
                # The submit got no answer, but the target has the run.
                self._store.correct(explained(run))
            elif not run.status.state.terminal:
                self._store.amend(run.handle, status=run.status)
            # The watcher reports the end of a run that was live in the store.

    async def _adopt_past(self, runs: Sequence[PastRun], began: float) -> None:
        """Add ended runs of an index to the store."""
        removed = self._store.removed_since
        for start in range(0, len(runs), _PAST_BATCH):
            some = runs[start : start + _PAST_BATCH]
            self._store.put_past(run for run in some if not removed(run.handle, began))
            await asyncio.sleep(0)

    def _forget(self, target: str, is_current: Collection[str], requested_at: float) -> None:
        """Remove runs that another kernel deleted; runs created after the request are kept."""
        for entry in self._store.entries():
            removed = entry.target == target and entry.run_id not in is_current and entry.created < requested_at
            if removed and entry.run.folder and entry.run.status.state.terminal:
                self._store.remove(entry.handle)


def _is_settled(run: Run) -> bool:
    """Whether the run cannot change any more; a damaged run may be repaired."""
    return bool(run.folder) and run.status.state.terminal and not run.damaged


log = logging.getLogger(__name__)


def job_name_in_url(text: str) -> str:
    """Return the job's name from the URL of its page at a service (``https://HOST/runs/NAME?...``)."""
    if not text.startswith("https://"):
        return text
    result = re.search(r"/(?:runs|jobs|experiments/[^/?]+/runs)/([^/?#]+)", text)
    return result[1] if result else text


async def _found(backend: Backend, run_id: str) -> tuple[Run | None] | None:
    """Return a run of a target, or that it has none; ``None`` is for a target that does not answer."""
    return (await backend.find(run_id),)


class RunIndex:
    """Reads the runs of the targets into the store, and resolves handles, ids and prefixes."""

    def __init__(
        self,
        targets: TargetFile,
        status: TargetStatusCache,
        places: BackendPool,
        store: RunStore,
        directory: TargetRunReader,
    ) -> None:
        self._targets, self._status, self._backends = targets, status, places
        self._store, self._reader = store, directory

    async def runs(self, target: str | None = None) -> list[Entry]:
        """Return the runs of `target` (default: of all targets that answer), newest first."""
        names = await self._names()
        if target is None:
            await self._read_all(names)
            if not self._reader.entries(names):  # the only runs may be those of a target that is starting
                await self._read_all(names, FIRST_S)
            return self._reader.entries(names)
        if target not in names:
            self._targets.get(target)  # names the near matches
        try:
            await self._read(target)
            if not self._reader.entries([target]):
                await self._read(target, FIRST_S)
        except TargetUnreachable:
            if not any(entry.unread or entry.run.folder for entry in self._reader.entries([target])):
                raise  # nothing is known here
        return self._reader.entries([target])

    async def refresh(self, target: str | None = None) -> None:
        """Read the runs of every target, or of one; a target that does not answer is skipped."""
        try:
            await self._read_all([target] if target else await self._names())
        except AmlTrainError as error:  # targets.json cannot be read: callers that list targets see the error
            log.info("%s", error)

    async def _names(self) -> list[str]:
        """Names of the targets, and of removed ones whose runs are kept."""
        return [*(is_current.name for is_current in await self._status.refresh()), *self._status.retired]

    async def _read_all(self, names: Iterable[str], limit_s: float = 0.0) -> None:
        """Read the runs of targets concurrently; a target that does not answer does not delay the others."""

        async def read(name: str) -> None:
            try:
                await self._read(name, limit_s)
            except (AmlTrainError, OSError) as error:
                log.info("runs of %s: %s", name, error)

        await asyncio.gather(*map(read, names))

    async def _read(self, name: str, limit_s: float = 0.0) -> None:
        """Read the runs of a target; one that does not answer in time brings them later."""
        backend = self._backends.backend(name)

        async def read() -> bool:
            await self._reader.read(backend, lambda: self._backends.live(name) is backend)
            self._backends.wake(name)
            return True

        is_read = False
        try:
            reads = self._backends.reads
            is_read = await reads.value(backend, ("runs", name), read, False, strict=True, limit_s=limit_s)
        finally:
            if not is_read and await self._reader.read_copies(backend):
                self._backends.wake(name)  # who watches them notices when it answers

    async def load(self, handle: RunHandle) -> None:
        """Read the whole job of a run of which only what lists show is known."""
        entry = self._store.get(handle)
        if entry is not None and entry.run.partial:
            backend = self._backends.backend(entry.run.target)
            await self._backends.reads.value(backend, ("job", handle), lambda: self._reader.load(backend, handle), None)

    async def resolve(self, text: str = "last") -> RunHandle:
        """Resolve ``last``, ``best``, a handle, a run id, or an unambiguous prefix, and read the job of the run.

        ``last`` is the newest run that is no trial, ``best`` the best trial of the newest sweep, and ``best SWEEP``
        that of another one.

        Raises
        ------
        UnknownRun
            No run or several runs match; the message names close matches.
        """
        handle = await self._resolve(text)
        await self.load(handle)
        return handle

    async def _resolve(self, text: str) -> RunHandle:
        text = job_name_in_url(text.strip())
        if text == "best" or text.startswith("best "):
            return await self._best(text[len("best") :].strip())
        if "/" in text:
            target, run_id = split_handle(text)
            handle = make_handle(target, run_id)
            if await self._is_there(handle):
                return handle
        entries = await self.runs()
        if text == "last":  # trials are parts of their sweep
            entries = list(itertools.islice((entry for entry in entries if not entry.run.parent), 1))
        try:
            return match_run(text, [entry.handle for entry in entries])
        except UnknownRun as unknown:
            if not text.isprintable() or "/" in text:
                raise
            found, silent = await self._find_unlisted(text)
            if found is None and silent:
                hint = f"{unknown.hint} It may be on {' or '.join(silent)}, of which there is no answer."
                raise UnknownRun(unknown.message, hint=hint) from None
            if found is None:
                raise
            return found

    async def _best(self, sweep: str) -> RunHandle:
        """Return the best trial of a sweep; empty for the newest one."""
        if sweep:
            handle = await self.resolve(sweep)
        else:
            found = next((entry for entry in await self.runs() if entry.run.spec.sweep is not None), None)
            if found is None:
                raise UnknownRun("No sweep yet.", hint="Start a cell with %%aml_sweep.")
            handle = found.handle
        entry = self._store.get(handle)
        target, run_id = split_handle(handle)
        if entry is None or entry.run.spec.sweep is None:
            raise UnknownRun(f"{handle} is not a sweep.", hint="To list the runs: %aml_runs")
        children = await self._backends.backend(target).children.list(run_id)
        best = next((child for child in children.runs if child.best), None)
        if best is None:
            raise UnknownRun(f"{handle} has no completed trial with a value yet.", hint=f"See: %aml_runs show {handle}")
        return await self.find(best.handle or make_handle(target, best.id))

    async def find(self, handle: str) -> RunHandle:
        """Return the handle of an existing run by its complete handle; ``last`` and prefixes are not accepted.

        The handle comes from a page, whose notebook may be untrusted.

        Raises
        ------
        UnknownRun
            The run does not exist. The message names no other run.
        UnknownTarget
            The target does not exist.
        """
        target, slash, run_id = handle.partition("/")
        if slash and target and run_id and "/" not in run_id and run_id not in (".", "..") and handle.isprintable():
            whole = make_handle(target, run_id)
            if await self._is_there(whole):
                return whole
        raise UnknownRun(f"No run {handle!r}.", hint="To list the runs: %aml_runs")

    async def _is_there(self, handle: RunHandle) -> bool:
        """Whether a run is known, or its target has it.

        Raises
        ------
        TargetUnreachable
            The target does not answer, and the run is not known here.
        """
        if self._store.get(handle) is not None:
            return True
        target, run_id = split_handle(handle)
        backend, reads = self._backends.backend(target), self._backends.reads
        read = functools.partial(self._reader.find, backend, run_id)
        found = await reads.value(backend, ("find", handle), read, None)
        if found is None:
            await self._reader.read_copies(backend)
            if self._store.get(handle) is None:
                found = await reads.value(backend, ("find", handle), read, None, limit_s=FIRST_S)
        if found is None and self._store.get(handle) is None:
            raise TargetUnreachable(f"{reads.silence_text(target)} {handle} is not known here.")
        if found is not False:
            self._backends.wake(target)
        return found is not False

    async def _find_unlisted(self, run_id: str) -> tuple[RunHandle | None, list[str]]:
        """Find a run that its target does not list, for example a run of another user of a service.

        The other value are the targets that did not answer.

        A run folder that lists skip, such as one of a newer schema, raises its error here.
        """
        near: RunHandle | None = None
        reads, silent = self._backends.reads, list[str]()
        for target_spec in await self._status.refresh():
            backend = self._backends.backend(target_spec.name)
            with contextlib.suppress(TargetError, UnknownTarget):
                read = functools.partial(_found, backend, run_id)
                found = await reads.value(backend, ("search", target_spec.name, run_id), read, None, limit_s=FIRST_S)
                run = found[0] if found else None
                if found is None:
                    silent.append(target_spec.name)
                if run is not None and (near is None or not run.is_guest):
                    near = make_handle(target_spec.name, run_id)
                    if not run.is_guest:
                        break
        if near is None:
            return None, silent
        target = split_handle(near)[0]
        await self._reader.find(self._backends.backend(target), run_id)
        self._backends.wake(target)
        return near, silent
