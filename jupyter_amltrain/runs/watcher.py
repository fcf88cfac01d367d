"""One watcher a target: one poll for all its runs, streams of those that somebody looks at."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from jupyter_amltrain.backends.base import PER_NODE, Backend, News, RunChanges
from jupyter_amltrain.errors import AmlTrainError, TargetError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.runs.pace import Pace
from jupyter_amltrain.runs.reading import read_streams, read_ticks, worth_a_frame
from jupyter_amltrain.runs.store import Entry, RunStore
from jupyter_amltrain.spec.run import RunHandle, RunState, RunStatus

log = logging.getLogger(__name__)

#: Even without news, ask this often: a supervisor may have died without a word (seconds).
ASK = 2.0
#: News that need no poll.
_TICKS = frozenset(PER_NODE)
#: Looks a second at one run while its news never stop, and how many may follow at once.
LOOKS, BURST = 20.0, 20
#: A run that a reachable target does not know for so long is lost (seconds).
GONE = 5.0
#: An ended run whose files cannot be read is looked at again for so long, then ends without them (seconds).
UNREADABLE = 5.0
#: A target that does not answer is asked again after this (seconds).
RETRY = 0.5


class Watcher:
    """Feeds the store from one backend.

    Parameters
    ----------
    outcome
        Gives the fields that an ended run gets beside its last status.
    over
        Called once for every run that was seen to end, after the store says so.
    """

    def __init__(
        self,
        backend: Backend,
        target: str,
        store: RunStore,
        loop: LoopThread,
        outcome: Callable[[Entry, RunStatus], Awaitable[dict[str, Any]]],
        over: Callable[[RunHandle], None],
    ) -> None:
        self._backend, self._target, self._store, self._loop = backend, target, store, loop
        self._outcome, self._over = outcome, over
        self._absent: dict[str, float] = {}
        self._unread: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._changes = backend.changes()
        self._paces: dict[str, Pace] = {}

    def wake(self) -> None:
        """There is a new run, or a new looker."""
        self._wake.set()

    def _live(self) -> dict[str, Entry]:
        return {
            entry.run.run_id: entry
            for entry in self._store.live()
            if entry.run.target == self._target and entry.run.folder
        }

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                await self._watch()
            except Exception:
                # A bug of ours; who waits for a run must not wait for ever because of it.
                log.exception("watching %s", self._target)
                await asyncio.sleep(RETRY)

    async def _watch(self) -> None:
        asked = 0.0
        waiting: dict[str, set[str]] = {}
        while True:
            live = self._live()
            if not live:
                self._wake.clear()
                await self._wake.wait()
                continue
            # A run that floods waits for its turn; the others do not wait for it.
            paces = {i: self._paces.setdefault(i, Pace(LOOKS, BURST)) for i in live}
            pause = min((paces[i].due() for i in waiting if i in live), default=ASK)
            for i, what in (await self._news(live, pause)).items():
                waiting.setdefault(i, set()).update(what)
            if time.monotonic() - asked > ASK:
                asked = time.monotonic()
                waiting = {i: set(what) for i, what in RunChanges.anything(live).items()}
            ready = {i: what for i, what in waiting.items() if i in live and paces[i].wait() == 0}
            waiting = {i: what for i, what in waiting.items() if i in live and i not in ready}
            for i in [i for i, what in ready.items() if what <= _TICKS]:
                del ready[i]
                await self._sampled(live[i])
            if ready:
                await self.look(sorted(ready))
            for gone in self._paces.keys() - live.keys():
                del self._paces[gone]

    async def _news(self, live: dict[str, Entry], timeout: float) -> News:
        """Ids with news, and of what; all of them when a run or a looker was added."""
        everything = RunChanges.anything(live)
        self._wake.clear()
        looked = [i for i, entry in live.items() if entry.lookers]
        change = asyncio.ensure_future(self._changes.wait(list(live), looked, timeout))
        wake = asyncio.ensure_future(self._wake.wait())
        try:
            done, _ = await asyncio.wait({change, wake}, return_when=asyncio.FIRST_COMPLETED)
            return change.result() if change in done else everything
        except AmlTrainError:
            await asyncio.sleep(RETRY)
            return everything
        finally:
            change.cancel()
            wake.cancel()

    async def _sampled(self, entry: Entry) -> None:
        """Read the ticks alone: they say nothing of the status, and charts wait for them.

        While a cell is busy every hop to another thread costs the interpreter's switch interval.
        """
        try:
            came = await read_ticks(self._backend, entry.run.run_id, entry, max(1, entry.run.status.nodes))
            if came and worth_a_frame(entry, {"telemetry"}):
                self._store.touch(entry.run.handle)
        except Exception as error:  # the next look finds the same and says so
            log.info("%s", error)

    async def look(self, run_ids: list[str]) -> None:
        """Poll `run_ids` once, read their streams, put what was found."""
        async with self._lock:
            entries = {i: e for i, e in self._live().items() if i in set(run_ids)}
            if not entries:
                return
            try:
                found, failed = await self._poll(list(entries))
                for run_id, entry in entries.items():
                    if run_id in failed:
                        continue
                    if (status := found.get(run_id)) is not None:
                        self._absent.pop(run_id, None)
                        await self._observed(entry, status)
                    else:
                        self._missed(run_id, entry)
            except TargetError as error:  # no answer, or one that refuses us: a sign-in that is over, say
                for entry in self._live().values():  # a flag, never a state
                    self._store.amend(entry.run.handle, reachable=False)
                log.info("%s", error)
            except (AmlTrainError, OSError) as error:
                # A full disk, say: whatever it is, the next look may find it gone.
                log.warning("looking at %s: %s", self._target, error)

    async def _poll(self, run_ids: list[str]) -> tuple[dict[str, RunStatus], set[str]]:
        """The states of runs, and the ids of those whose state cannot be understood.

        One of those must not hide the others: where all together fail, each is asked for alone.
        """
        try:
            return dict(await self._backend.poll(run_ids)), set()
        except (AmlTrainError, OSError):
            raise
        except Exception:
            if len(run_ids) == 1:
                log.warning("the state of %s/%s", self._target, run_ids[0], exc_info=True)
                return {}, {run_ids[0]}
        found: dict[str, RunStatus] = {}
        failed: set[str] = set()
        for run_id in run_ids:
            one, bad = await self._poll([run_id])
            found |= one
            failed |= bad
        return found, failed

    async def _observed(self, entry: Entry, status: RunStatus) -> None:
        """Take in what was seen of one run; what is wrong with it is no other run's."""
        try:
            await self._observe(entry, status)
        except TargetError:
            raise
        except Exception:
            log.warning("looking at %s", entry.run.handle, exc_info=True)

    def _missed(self, run_id: str, entry: Entry) -> None:
        """The target answers and does not know the run: once is nothing, for long is the end."""
        first = self._absent.setdefault(run_id, time.monotonic())
        if time.monotonic() - first > GONE:
            del self._absent[run_id]
            status = msgspec.structs.replace(
                entry.run.status, state=RunState.LOST, reason="lost", detail=self._backend.lost(entry.run)
            )
            error = f"{entry.run.handle} is lost: {status.detail}. Submit it again."
            self._store.amend(entry.run.handle, status=status, error=error)
            self._over(entry.run.handle)

    async def _observe(self, entry: Entry, status: RunStatus) -> None:
        handle = entry.run.handle
        looked_at = entry.lookers > 0 or status.state.terminal
        # Read after the poll: when the poll saw the end, this reads all there is.
        news = await self._streams(entry, status) if looked_at else frozenset()
        if news is None:
            return
        if entry.run.status.cancel_requested and not status.state.terminal:
            # Asked for here; the target's own flag follows. Seen after the reading: it may have been refused meanwhile.
            status = msgspec.structs.replace(status, cancel_requested=True)
        seen = {"status": status, "reachable": True, "seen_at": time.time()}
        if not status.state.terminal:
            if not self._store.amend(handle, **seen) and worth_a_frame(entry, news):
                self._store.touch(handle)
            return
        self._store.amend(handle, **seen, **await self._outcome(entry, status))
        self._over(handle)

    async def _streams(self, entry: Entry, status: RunStatus) -> frozenset[str] | None:
        """Which streams of a run grew; ``None``: they cannot be read, and its end waits for the next look.

        A full disk or a lost mount may be over in a moment. A job that spoiled its files is ended without them.
        """
        run_id = entry.run.run_id
        try:
            return await read_streams(self._backend, entry, status)
        except TargetError:
            raise
        except Exception as error:
            if "streams" not in entry.faults:
                entry.faults.add("streams")
                ours = not isinstance(error, AmlTrainError | OSError)
                log.warning("reading %s: %s", entry.run.handle, error, exc_info=ours)
        if status.state.terminal:
            if time.monotonic() - self._unread.setdefault(run_id, time.monotonic()) < UNREADABLE:
                return None
            del self._unread[run_id]
        return frozenset()
