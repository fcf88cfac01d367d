"""Watches a target: one poll for all its runs, streams of those that somebody views."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec

from jupyter_amltrain.backends.base import PER_NODE, Backend, RunEvents, StreamNews
from jupyter_amltrain.errors import AmlTrainError, DamagedRun, TargetError
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.kernel.streams import LOG_WINDOW, decode_object
from jupyter_amltrain.kernel.telemetry import NodeTelemetry
from jupyter_amltrain.loop import LoopThread, Pace
from jupyter_amltrain.schema.child_run import PARENT_TYPES
from jupyter_amltrain.schema.run import RunHandle, RunState, RunStatus, split_handle

#: A longer file of ticks is not read from its beginning but from its minutes (bytes).
LONG_TELEMETRY_BYTES = 1 << 20

#: Bytes of one stream that are read at one look: a file that grows faster than it is read must not hold up other runs.
MAX_READ_BYTES = 256 << 20

#: Bytes in which the header of a file of ticks ends: 256 GPUs take some 30 kB.
_HEADER = 256 * 1024

#: Bytes of a log that are read again before what is new: they differ where the job has rewritten it.
_OVERLAP = 64

#: News of ticks alone are worth a frame of the record after this many seconds, at least and at most.
_SOONEST, _LATEST = 1.0, 600.0


def worth_a_frame(entry: Entry, news: Collection[str]) -> bool:
    """Whether news of streams should redraw the record.

    Ticks go to live charts by their own way; the record follows them at a tenth of the
    run's age, so that a long run does not send its whole record each second.
    """
    if set(news) != {"telemetry"}:
        return bool(news)
    now = time.monotonic()
    age = max(0.0, time.time() - entry.run.created)
    if now - entry.telemetry.told < min(_LATEST, max(_SOONEST, age / 10)):
        return False
    entry.telemetry.told = now
    return True


async def read_streams(backend: Backend, entry: Entry, status: RunStatus) -> frozenset[str]:
    """Bring the entry's streams up to date; returns which of them grew.

    Of a log only the last :data:`~jupyter_amltrain.kernel.streams.LOG_WINDOW` bytes are
    read when more than that is waiting. A stream whose file cannot be read is left out, and
    ``entry.unreadable`` says why.
    """
    run_id = split_handle(entry.run.handle)[1]
    if not entry.log_path:
        entry.log_path = await backend.log_path(run_id)
    nodes = max(1, status.nodes)
    news = set()
    streams: list[tuple[str, Callable[[], Awaitable[bool]]]] = [
        ("telemetry", lambda: read_ticks(backend, run_id, entry, nodes)),
        ("metrics", lambda: _read_metrics(backend, run_id, entry)),
        ("log", lambda: _read_log(backend, run_id, entry)),
    ]
    if entry.run.spec.job_type in PARENT_TYPES:  # after the log, whose reading brings them up to date
        streams.append(("children", lambda: _read_children(backend, run_id, entry)))
    if status.state.terminal:
        streams.append(("summary", lambda: _read_summaries(backend, run_id, entry, nodes)))
    for name, read in streams:
        try:
            if await read():
                news.add(name)
            entry.unreadable.pop(name, None)
        except DamagedRun as error:
            entry.unreadable[name] = str(error)
    entry.read = True
    return frozenset(news - {"summary"})


async def _read_metrics(backend: Backend, run_id: str, entry: Entry) -> bool:
    """Read what is new of the metrics; returns whether any came."""
    came, left = False, MAX_READ_BYTES
    while left > 0:
        start = entry.offsets["metrics"]
        chunk = await backend.read(run_id, "metrics", start)
        if not chunk.data:
            break
        left -= len(chunk.data)
        if entry.offsets["metrics"] != start:
            continue  # somebody who looked at the same time has fed it
        entry.offsets["metrics"] = chunk.offset
        came |= entry.metrics.feed(chunk.data)
    return came


async def _read_log(backend: Backend, run_id: str, entry: Entry) -> bool:
    """Read what is new of the log; returns whether anything is."""
    start = entry.offsets["log"]
    # From byte 0 on even a file that is kept open would be opened again.
    known = entry.log.last(min(_OVERLAP, start - 1)) if backend.log_may_shrink else b""
    chunk = await backend.read(run_id, "log", start - len(known), 2 * LOG_WINDOW + len(known))
    data, restarted = chunk.data[len(known) :], False
    if not chunk.data.startswith(known):
        chunk = await backend.read(run_id, "log", 0, 2 * LOG_WINDOW)
        data, restarted = chunk.data, True
    if len(data) >= 2 * LOG_WINDOW:
        chunk = await backend.read(run_id, "log", -LOG_WINDOW, LOG_WINDOW)
        data = chunk.data
    # Somebody who looked at the same time may have fed it. An empty file may be one whose folder was moved away.
    if not data or entry.offsets["log"] != start:
        return False
    if restarted:
        entry.log.restart()
    entry.log.feed(data, chunk.offset)
    entry.offsets["log"] = chunk.offset
    return True


async def _read_children(backend: Backend, run_id: str, entry: Entry) -> bool:
    """Take in its steps or trials; returns whether anything is new of them."""
    found = await backend.children(run_id)
    if found == entry.children:
        return False
    entry.streams.children = found
    return True


async def read_ticks(backend: Backend, run_id: str, entry: Entry, nodes: int = 1) -> bool:
    """Read new ticks of every node; returns whether any came."""
    came = False
    for number in range(nodes):
        node = entry.telemetry.node(number)
        stream = _of_node("telemetry", number)
        if not node.caught_up:
            await _catch_up(backend, run_id, node)
        left = MAX_READ_BYTES
        while left > 0:
            start = node.offset
            chunk = await backend.read(run_id, stream, start)
            if not chunk.data:
                break
            left -= len(chunk.data)
            if node.offset != start:
                continue
            node.offset = chunk.offset
            came |= entry.telemetry.feed(number, chunk.data)
    return came


async def read_anew(backend: Backend, run_id: str, node: NodeTelemetry) -> None:
    """Begin again with a file of ticks that is shorter than what was read: its sampler has begun another."""
    end = (await backend.read(run_id, _of_node("telemetry", node.node), -1, 1)).offset
    if end < node.offset:
        node.restart()


async def _catch_up(backend: Backend, run_id: str, node: NodeTelemetry) -> None:
    """Of a long file take the header and the minutes; its last hour of ticks is read after this."""
    stream = _of_node("telemetry", node.node)
    end = (await backend.read(run_id, stream, -1, 1)).offset
    if node.caught_up or not end:
        return
    if end <= LONG_TELEMETRY_BYTES:
        node.caught_up = True
        return
    head = (await backend.read(run_id, stream, 0, _HEADER)).data
    minutes, offset = [], 0
    while offset < MAX_READ_BYTES:
        chunk = await backend.read(run_id, _of_node("minutes", node.node), offset)
        if not chunk.data:
            break
        minutes.append(chunk.data)
        offset = chunk.offset
    if node.caught_up or node.offset:
        return
    node.caught_up = True
    line = head[: head.find(b"\n") + 1]
    if line:
        node.feed(line)
        node.offset = max(len(line), node.feed_minutes(b"".join(minutes)))


async def _read_summaries(backend: Backend, run_id: str, entry: Entry, nodes: int) -> bool:
    for number in range(nodes):
        if entry.telemetry.summaries.get(number):
            continue
        data = (await backend.read(run_id, _of_node("summary", number), 0)).data
        summary = decode_object(data)
        if summary and _valid_summary(summary):
            summary.pop("state", None)
            for note in summary.pop("notes", None) or ():  # of a long run only its last hour was read
                entry.telemetry.node(number).add_note(*note)
            entry.telemetry.summaries[number] = summary
    return False


def _of_node(stream: str, number: int) -> str:
    return stream if number == 0 else f"{stream}/{number}"


def _valid_summary(summary: dict[str, Any]) -> bool:
    """Whether a summary is as the sampler writes it: a job can write into its folder."""
    gpus = summary.get("gpus") or []
    notes = summary.get("notes") or []
    numbers = [value for name, value in summary.items() if name not in ("gpus", "hint", "notes", "state", "schema")]
    return (
        isinstance(gpus, list)
        and isinstance(notes, list)
        and all(isinstance(note, list) and len(note) == 2 and all(map(_scalar, note)) for note in notes)
        and all(isinstance(gpu, dict) and all(_scalar(value) for value in gpu.values()) for gpu in gpus)
        and all(_scalar(value) and not isinstance(value, str) for value in numbers)
    )


def _scalar(value: Any) -> bool:
    return value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))


log = logging.getLogger(__name__)

#: Even without news, ask this often: a supervisor may have died without a word (seconds).
POLL_INTERVAL_S = 2.0

#: News that need no poll.
_TICKS = frozenset(PER_NODE)

#: Looks a second at one run while its news never stop, and how many may follow at once.
LOOKS, BURST = 20.0, 20

#: A run that a reachable target does not know for so long is lost (seconds).
LOST_AFTER_S = 5.0

#: An ended run whose files cannot be read is looked at again for so long, then ends without them (seconds).
UNREADABLE_RETRY_S = 5.0

#: A target that does not answer is asked again after this (seconds).
RETRY_S = 0.5


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
                await asyncio.sleep(RETRY_S)

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
            pause = min((paces[i].due() for i in waiting if i in live), default=POLL_INTERVAL_S)
            for i, what in (await self._news(live, pause)).items():
                waiting.setdefault(i, set()).update(what)
            if time.monotonic() - asked > POLL_INTERVAL_S:
                asked = time.monotonic()
                waiting = {i: set(what) for i, what in RunEvents.anything(live).items()}
            ready = {i: what for i, what in waiting.items() if i in live and paces[i].wait() == 0}
            waiting = {i: what for i, what in waiting.items() if i in live and i not in ready}
            for i in [i for i, what in ready.items() if what <= _TICKS]:
                del ready[i]
                await self._sampled(live[i])
            if ready:
                await self.look(sorted(ready))
            for gone in self._paces.keys() - live.keys():
                del self._paces[gone]

    async def _news(self, live: dict[str, Entry], timeout: float) -> StreamNews:
        """Ids with news, and of what; all of them when a run or a looker was added."""
        everything = RunEvents.anything(live)
        self._wake.clear()
        looked = [i for i, entry in live.items() if entry.lookers]
        change = asyncio.ensure_future(self._changes.wait(list(live), looked, timeout))
        wake = asyncio.ensure_future(self._wake.wait())
        try:
            done, _ = await asyncio.wait({change, wake}, return_when=asyncio.FIRST_COMPLETED)
            return change.result() if change in done else everything
        except AmlTrainError:
            await asyncio.sleep(RETRY_S)
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
        if time.monotonic() - first > LOST_AFTER_S:
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
            if time.monotonic() - self._unread.setdefault(run_id, time.monotonic()) < UNREADABLE_RETRY_S:
                return None
            del self._unread[run_id]
        return frozenset()
