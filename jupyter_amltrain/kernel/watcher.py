"""Watcher of a target: one poll for all its live runs, and the streams of those with viewers."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

import msgspec

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.streams import PER_NODE, RunEvents, StreamChanges
from jupyter_amltrain.errors import AmlTrainError, DamagedRun, TargetError, TargetUnreachable
from jupyter_amltrain.kernel.outcome_text import failure_reason
from jupyter_amltrain.kernel.shown_reader import ShownFilesReader
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.kernel.streams import LOG_WINDOW_BYTES, decode_object
from jupyter_amltrain.kernel.telemetry import NodeTelemetry
from jupyter_amltrain.loop import LoopThread, TokenBucket
from jupyter_amltrain.schema.child_run import PARENT_TYPES
from jupyter_amltrain.schema.run import RunHandle, RunState, RunStatus, split_handle

T = TypeVar("T")

#: Size above which a telemetry file is not read from its beginning; its minutes file is read instead.
LONG_TELEMETRY_BYTES = 1 << 20

#: Maximum bytes of one stream per poll, so that a file that grows faster than it is read does not delay other runs.
MAX_READ_BYTES = 256 << 20

#: Bytes of samples that one read returns at most.
CHUNK_BYTES = 1 << 20

#: Nodes of a run whose samples are read at the same time.
MAX_NODES_AT_ONCE = 8

#: Maximum size of the header of a telemetry file: 256 GPUs take about 30 kB.
_MAX_HEADER_BYTES = 256 * 1024

#: Bytes of a log that are read again before the new part; they differ if the job has rewritten the log.
_OVERLAP = 64

#: Shortest and longest interval of frames that only contain new samples.
_MIN_FRAME_INTERVAL_S, _MAX_FRAME_INTERVAL_S = 1.0, 600.0


def needs_frame(entry: Entry, grown: Collection[str]) -> bool:
    """Whether new stream data should redraw the record.

    Live charts get samples separately; the record is redrawn after a tenth of the run's
    age, so that a long run does not send its whole record each second.
    """
    if set(grown) != {"telemetry"}:
        return bool(grown)
    now = time.monotonic()
    age = max(0.0, time.time() - entry.run.created)
    if now - entry.telemetry.last_frame_at < min(_MAX_FRAME_INTERVAL_S, max(_MIN_FRAME_INTERVAL_S, age / 10)):
        return False
    entry.telemetry.last_frame_at = now
    return True


async def read_streams(backend: Backend, entry: Entry, status: RunStatus, only: Collection[str] = ()) -> frozenset[str]:
    """Read new data of the entry's streams; return the streams that grew.

    Only the last :data:`~jupyter_amltrain.kernel.streams.LOG_WINDOW_BYTES` bytes of a
    log are read if more are new. A stream whose file cannot be read is skipped, with the
    reason in ``entry.unreadable``.

    Parameters
    ----------
    only
        Streams to read; default: all.
    """
    run_id = split_handle(entry.run.handle)[1]
    if not entry.log_path:
        entry.log_path = await backend.files.log_path(run_id)
    nodes = max(1, status.nodes)
    grown = set()
    streams: list[tuple[str, Callable[[], Awaitable[bool]]]] = [
        ("telemetry", lambda: read_samples(backend, run_id, entry, nodes)),
        ("metrics", lambda: _read_metrics(backend, run_id, entry)),
        ("log", lambda: _read_log(backend, run_id, entry)),
    ]
    if status.failed_rank:
        failed = f"log/{status.failed_rank}"
        streams.append(("failed log", lambda: _read_failed_log(backend, run_id, entry, failed)))
    if _has_children(entry):  # after the log: reading the log updates them
        streams.append(("children", lambda: _read_children(backend, run_id, entry)))
    if status.state.terminal:
        streams.append(("summary", lambda: _read_summaries(backend, run_id, entry, nodes)))
    for name, read in streams:
        if only and name not in only:
            continue
        try:
            if await read():
                grown.add(name)
            entry.unreadable.pop(name, None)
        except DamagedRun as error:
            entry.unreadable[name] = str(error)
    entry.read = True
    return frozenset(grown - {"summary"})


def _has_children(entry: Entry) -> bool:
    """Whether a run has steps or trials, which reading its log updates."""
    spec = entry.run.spec
    is_parent = spec.sweep is not None or spec.driver is not None or spec.job_type in PARENT_TYPES
    return is_parent or spec.own_trials is not None


async def _read_metrics(backend: Backend, run_id: str, entry: Entry) -> bool:
    """Read new metrics; return whether there were any."""
    has_new, left = False, MAX_READ_BYTES
    while left > 0:
        start = entry.offsets["metrics"]
        chunk = await backend.read(run_id, "metrics", start)
        if not chunk.data:
            break
        left -= len(chunk.data)
        if entry.offsets["metrics"] != start:
            continue  # a concurrent read has added this part
        entry.offsets["metrics"] = chunk.offset
        has_new |= entry.metrics.feed(chunk.data)
    return has_new


async def _read_log(backend: Backend, run_id: str, entry: Entry) -> bool:
    """Read new bytes of the log; return whether there were any."""
    start = entry.offsets["log"]
    # A read from byte 0 would reopen even a file that is kept open.
    known = entry.log.last(min(_OVERLAP, start - 1)) if backend.files.log_may_shrink else b""
    chunk = await backend.read(run_id, "log", start - len(known), 2 * LOG_WINDOW_BYTES + len(known))
    data, restarted = chunk.data[len(known) :], False
    if not chunk.data.startswith(known):
        chunk = await backend.read(run_id, "log", 0, 2 * LOG_WINDOW_BYTES)
        data, restarted = chunk.data, True
    if len(data) >= 2 * LOG_WINDOW_BYTES:
        chunk = await backend.read(run_id, "log", -LOG_WINDOW_BYTES, LOG_WINDOW_BYTES)
        data = chunk.data
    # A concurrent read may have added this part. A file may be empty because its folder was moved away.
    if not data or entry.offsets["log"] != start:
        return False
    if restarted:
        entry.log.restart()
    entry.log.feed(data, chunk.offset)
    entry.offsets["log"] = chunk.offset
    return True


async def _read_failed_log(backend: Backend, run_id: str, entry: Entry, stream: str) -> bool:
    """Read the end of the log of the process that failed; return whether it was new."""
    if entry.streams.failed_log.bytes:
        return False
    chunk = await backend.read(run_id, stream, -LOG_WINDOW_BYTES, LOG_WINDOW_BYTES)
    entry.streams.failed_log.feed(chunk.data, chunk.offset)
    return bool(chunk.data)


async def _read_children(backend: Backend, run_id: str, entry: Entry) -> bool:
    """Read the steps or trials of a run; return whether any has changed."""
    result = await backend.children.list(run_id)
    if result == entry.children:
        return False
    entry.streams.children = result
    return True


async def read_samples(backend: Backend, run_id: str, entry: Entry, nodes: int = 1, *, complete: bool = True) -> bool:
    """Read new samples of every node; return whether there were any.

    Parameters
    ----------
    complete
        Read until a node has no more. Without it a read of less than a chunk is the last one of its node, which halves
        the reads of a run with many nodes; the next event or poll brings the rest.
    """
    return any(await of_nodes(nodes, lambda number: _read_samples_of(backend, run_id, entry, number, complete)))


async def of_nodes(nodes: int, read: Callable[[int], Awaitable[T]]) -> list[T]:
    """Return what `read` returns for each node, of several nodes at a time.

    Nodes that do not answer are left out; later reads bring what they have.

    Raises
    ------
    TargetUnreachable
        No node has answered.
    """
    if nodes == 1:
        return [await read(0)]
    results: list[T] = []
    silent: list[TargetUnreachable] = []
    numbers = iter(range(nodes))

    async def read_some() -> None:
        for number in numbers:
            try:
                results.append(await read(number))
            except TargetUnreachable as error:
                silent.append(error)

    tasks = [asyncio.ensure_future(read_some()) for _ in range(min(nodes, MAX_NODES_AT_ONCE))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    if not results:
        raise silent[0]
    return results


async def _read_samples_of(backend: Backend, run_id: str, entry: Entry, number: int, complete: bool) -> bool:
    """Read new samples of one node; return whether there were any."""
    node = entry.telemetry.node(number)
    stream = _node_stream("telemetry", number)
    if not node.caught_up and not await _catch_up(backend, run_id, node):
        return False
    has_new, left = False, MAX_READ_BYTES
    while left > 0:
        start = node.offset
        chunk = await backend.read(run_id, stream, start, CHUNK_BYTES)
        if not chunk.data:
            break
        left -= len(chunk.data)
        if node.offset != start:
            continue
        node.offset = chunk.offset
        has_new |= entry.telemetry.feed(number, chunk.data)
        if not complete and len(chunk.data) < CHUNK_BYTES:
            break
    return has_new


async def restart_if_truncated(backend: Backend, run_id: str, node: NodeTelemetry) -> None:
    """Restart reading if the telemetry file is shorter than the part already read: a new sampler has replaced it."""
    end = (await backend.read(run_id, _node_stream("telemetry", node.node), -1, 1)).offset
    if end < node.offset:
        node.restart()


async def _catch_up(backend: Backend, run_id: str, node: NodeTelemetry) -> bool:
    """Read only the header and the minutes of a long file; its last hour of samples is read afterwards.

    Return whether the file has anything.
    """
    stream = _node_stream("telemetry", node.node)
    end = (await backend.read(run_id, stream, -1, 1)).offset
    if node.caught_up or not end:
        return bool(end)
    if end <= LONG_TELEMETRY_BYTES:
        node.caught_up = True
        return True
    head = (await backend.read(run_id, stream, 0, _MAX_HEADER_BYTES)).data
    minutes, offset = [], 0
    while offset < MAX_READ_BYTES:
        chunk = await backend.read(run_id, _node_stream("minutes", node.node), offset)
        if not chunk.data:
            break
        minutes.append(chunk.data)
        offset = chunk.offset
    if node.caught_up or node.offset:
        return True
    node.caught_up = True
    line = head[: head.find(b"\n") + 1]
    if line:
        node.feed(line)
        node.offset = max(len(line), node.feed_minutes(b"".join(minutes)))
    return True


async def _read_summaries(backend: Backend, run_id: str, entry: Entry, nodes: int) -> bool:
    async def read(number: int) -> None:
        if entry.telemetry.summaries.get(number):
            return
        data = (await backend.read(run_id, _node_stream("summary", number), 0)).data
        summary = decode_object(data)
        if summary and _valid_summary(summary):
            summary.pop("state", None)
            for note in summary.pop("notes", None) or ():  # only the last hour of a long run was read
                entry.telemetry.node(number).add_note(*note)
            entry.telemetry.summaries[number] = summary

    await of_nodes(nodes, read)
    return False


def _node_stream(stream: str, number: int) -> str:
    return stream if number == 0 else f"{stream}/{number}"


def _valid_summary(summary: dict[str, Any]) -> bool:
    """Whether a summary has the form that the sampler writes; a job can write anything into its folder."""
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

#: Poll interval without events, because a supervisor may die without sending one.
POLL_INTERVAL_S = 2.0

#: Streams with samples, and all streams that grow without a change of the run's status: their events need no poll.
_SAMPLE_STREAMS = frozenset(PER_NODE)
_GROWING_STREAMS = _SAMPLE_STREAMS | {"metrics", "log"}

#: Maximum polls per second of a run with continuous events, and the burst without a pause.
MAX_POLLS_PER_S, MAX_POLL_BURST = 20.0, 20

#: Time after which a run that a reachable target does not know is lost.
LOST_AFTER_S = 5.0

#: Time for which unreadable files of an ended run are retried; then the run ends without them.
UNREADABLE_RETRY_S = 5.0

#: Pause before a target that did not answer is polled again.
RETRY_S = 0.5


class Watcher:
    """Updates the store from one machine of one backend.

    Parameters
    ----------
    outcome
        Returns the fields that an ended run gets besides its last status.
    over
        Called once for every run that has ended, after the store was updated.
    shown
        Reads the displays and pictures of runs with viewers.
    machine
        Number of the target's machine whose runs are watched: a machine that does not answer delays no other.
    """

    def __init__(
        self,
        backend: Backend,
        target: str,
        store: RunStore,
        loop: LoopThread,
        outcome: Callable[[Entry, RunStatus], Awaitable[dict[str, Any]]],
        over: Callable[[RunHandle], None],
        shown: ShownFilesReader,
        machine: int = 0,
    ) -> None:
        self._shown, self._machine = shown, machine
        self._backend, self._target, self._store, self._loop = backend, target, store, loop
        self._outcome, self._on_ended = outcome, over
        self._absent: dict[str, float] = {}
        self._unread: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._changes = backend.events()
        self._intervals: dict[str, TokenBucket] = {}

    def wake(self) -> None:
        """Poll now, because of a new run or viewer."""
        self._wake.set()

    def _live(self) -> dict[str, Entry]:
        placement = self._backend.placement
        return {
            entry.run.run_id: entry
            for entry in self._store.live()
            if entry.run.target == self._target
            and entry.run.folder
            and (placement is None or placement.machine_of(entry.run.run_id) == self._machine)
        }

    async def run(self) -> None:
        """Watch until the task is canceled."""
        while True:
            try:
                await self._watch()
            except Exception:
                # A bug in this package must not make waiters of a run wait forever.
                log.exception("watching %s", self._target)
                await asyncio.sleep(RETRY_S)

    async def _watch(self) -> None:
        polled_at = 0.0
        waiting: dict[str, set[str]] = {}
        while True:
            live = self._live()
            if not live:
                self._wake.clear()
                await self._wake.wait()
                continue
            # Rate limit per run: a run with many events does not delay the others.
            paces = {i: self._intervals.setdefault(i, TokenBucket(MAX_POLLS_PER_S, MAX_POLL_BURST)) for i in live}
            pause = min((paces[i].due() for i in waiting if i in live), default=POLL_INTERVAL_S)
            for i, what in (await self._news(live, pause)).items():
                waiting.setdefault(i, set()).update(what)
            if time.monotonic() - polled_at > POLL_INTERVAL_S:
                polled_at = time.monotonic()
                waiting = {i: set(what) for i, what in RunEvents.anything(live).items()}
            ready = {i: what for i, what in waiting.items() if i in live and paces[i].wait() == 0}
            waiting = {i: what for i, what in waiting.items() if i in live and i not in ready}
            for i in [i for i, what in ready.items() if what <= _GROWING_STREAMS and not _has_children(live[i])]:
                await self._read_grown(live[i], ready.pop(i))
            if ready:
                await self.poll(sorted(ready))
            for gone in self._intervals.keys() - live.keys():
                del self._intervals[gone]

    async def _news(self, live: dict[str, Entry], timeout: float) -> StreamChanges:
        """Wait for events, and return the changed streams by run id; all of them after :meth:`wake`."""
        everything = RunEvents.anything(live)
        self._wake.clear()
        viewed = [i for i, entry in live.items() if entry.viewers]
        change = asyncio.ensure_future(self._changes.wait(list(live), viewed, timeout))
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

    async def _read_grown(self, entry: Entry, what: Collection[str]) -> None:
        """Read only the streams of a run that have changed, without polling its status.

        While a cell is busy every hop to another thread costs the interpreter's switch interval.
        """
        try:
            status = entry.run.status
            if _SAMPLE_STREAMS.issuperset(what):
                nodes = max(1, status.nodes)
                has_new = await read_samples(self._backend, entry.run.run_id, entry, nodes, complete=False)
                grown = frozenset(("telemetry",) if has_new else ())
            else:
                grown = await read_streams(self._backend, entry, status, only=what)
                self._shown.request(entry, only_displays=True)
            if needs_frame(entry, grown):
                self._store.touch(entry.run.handle, samples_only=grown == {"telemetry"})
        except Exception as error:  # the next poll reports the same error
            log.info("%s", error)

    async def poll(self, run_ids: list[str]) -> None:
        """Poll `run_ids` once, read their streams and update the store."""
        async with self._lock:
            entries = {i: e for i, e in self._live().items() if i in set(run_ids)}
            if not entries:
                return
            try:
                result, failed = await self._poll(list(entries))
                for run_id, entry in entries.items():
                    if run_id in failed:
                        continue
                    if (status := result.get(run_id)) is not None:
                        self._absent.pop(run_id, None)
                        await self._observed(entry, status)
                    else:
                        self._on_missing(run_id, entry)
            except TargetError as error:  # no answer, or a rejected one, for example after an expired sign-in
                for entry in self._live().values():  # this sets a flag and does not change the state
                    self._store.amend(entry.run.handle, reachable=False)
                log.info("%s", error)
            except (AmlTrainError, OSError) as error:
                # A temporary error, such as a full disk: the next poll retries.
                log.warning("polling %s: %s", self._target, error)

    async def _poll(self, run_ids: list[str]) -> tuple[dict[str, RunStatus], set[str]]:
        """Return the states of runs, and the ids of those whose state cannot be parsed.

        If the poll of all runs fails, each run is polled alone, so that one does not hide the others.
        """
        try:
            return dict(await self._backend.poll(run_ids)), set()
        except (AmlTrainError, OSError):
            raise
        except Exception:  # a job can write anything into its files: find the run whose state fails
            if len(run_ids) == 1:
                log.warning("the state of %s/%s", self._target, run_ids[0], exc_info=True)
                return {}, {run_ids[0]}
        result: dict[str, RunStatus] = {}
        failed: set[str] = set()
        for run_id in run_ids:
            one, bad = await self._poll([run_id])
            result |= one
            failed |= bad
        return result, failed

    async def _observed(self, entry: Entry, status: RunStatus) -> None:
        """Process the status of one run; an error does not affect the other runs."""
        try:
            await self._observe(entry, status)
        except TargetError:
            raise
        except Exception:  # a bug that one run shows must not stop the others
            log.warning("polling %s", entry.run.handle, exc_info=True)

    def _on_missing(self, run_id: str, entry: Entry) -> None:
        """Handle a run that the target does not list; after :data:`LOST_AFTER_S` the run is lost."""
        first = self._absent.setdefault(run_id, time.monotonic())
        if time.monotonic() - first > LOST_AFTER_S:
            del self._absent[run_id]
            reason = self._backend.absence_reasons.get(run_id) or f"its folder {entry.run.folder} no longer exists"
            status = msgspec.structs.replace(entry.run.status, state=RunState.LOST, reason="lost", detail=reason)
            error = failure_reason(msgspec.structs.replace(entry.run, status=status), "")
            self._store.amend(entry.run.handle, status=status, error=error)
            self._on_ended(entry.run.handle)

    async def _observe(self, entry: Entry, status: RunStatus) -> None:
        handle = entry.run.handle
        has_viewers = entry.viewers > 0 or status.state.terminal
        # Read after the poll: if the run has ended, this reads the complete streams.
        grown = await self._streams(entry, status) if has_viewers else frozenset()
        if grown is None:
            return
        if status.state.terminal:  # the last record is saved in the notebook
            await self._shown.complete(entry, has_ended=True)
        elif has_viewers:
            self._shown.request(entry)
        if entry.run.status.cancel_requested and not status.state.terminal:
            # Requested by this kernel; the target's flag follows. Checked after the read, in case the request failed.
            status = msgspec.structs.replace(status, cancel_requested=True)
        seen = {"status": status, "reachable": True, "seen_at": time.time()}
        if not status.state.terminal:
            if not self._store.amend(handle, **seen) and needs_frame(entry, grown):
                self._store.touch(handle, samples_only=grown == {"telemetry"})
            return
        self._store.amend(handle, **seen, **await self._outcome(entry, status))
        self._on_ended(handle)

    async def _streams(self, entry: Entry, status: RunStatus) -> frozenset[str] | None:
        """Return the streams of a run that grew; ``None`` if they cannot be read and its end waits for the next poll.

        A full disk or a lost mount may be temporary. A run with damaged files ends without them.
        """
        run_id = entry.run.run_id
        try:
            return await read_streams(self._backend, entry, status)
        except TargetError:
            raise
        except Exception as error:  # a job can write anything into its streams; the run must still end
            if "streams" not in entry.faults:
                entry.faults.add("streams")
                is_bug = not isinstance(error, AmlTrainError | OSError)
                log.warning("reading %s: %s", entry.run.handle, error, exc_info=is_bug)
        if status.state.terminal:
            if time.monotonic() - self._unread.setdefault(run_id, time.monotonic()) < UNREADABLE_RETRY_S:
                return None
            del self._unread[run_id]
        return frozenset()
