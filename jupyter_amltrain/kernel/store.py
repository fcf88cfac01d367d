"""Store of the runs that this kernel knows: one writer (the loop), any number of subscribers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from jupyter_amltrain.backends.past_runs import PastRun
from jupyter_amltrain.kernel.outcome_text import explained
from jupyter_amltrain.kernel.shown_files import RunDisplays, RunPictures
from jupyter_amltrain.kernel.streams import LogWindow, MetricLog
from jupyter_amltrain.kernel.telemetry import RunTelemetry
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.child_run import ChildRuns
from jupyter_amltrain.schema.failure import FailedFrame
from jupyter_amltrain.schema.record import GpuTelemetry
from jupyter_amltrain.schema.run import Run, RunHandle, RunStatus, advances

log = logging.getLogger(__name__)

Unsubscribe = Callable[[], None]

#: Maximum removed runs that are remembered, for lists that were being read during the removal.
_MAX_REMOVED = 1000


class _Streams:
    """Data of a run's streams that was read so far."""

    __slots__ = (
        "children",
        "displays",
        "failed_log",
        "frames",
        "gpu_part",
        "log",
        "metrics",
        "offsets",
        "parts",
        "pictures",
        "spark",
        "telemetry",
        "unreadable",
    )

    def __init__(self) -> None:
        self.children = ChildRuns()
        self.metrics = MetricLog()
        self.telemetry = RunTelemetry()
        self.log = LogWindow()
        self.failed_log = LogWindow()  #: of the process that failed, if it is not the first
        self.frames: tuple[FailedFrame, ...] | None = None  #: at which it failed; None: they were not read
        self.pictures = RunPictures()
        self.displays = RunDisplays()
        self.parts: dict[str, Any] = {}  #: further parts of its record, by name
        self.gpu_part: tuple[Any, GpuTelemetry | None] | None = None
        self.offsets = {"log": 0, "metrics": 0}
        self.spark: tuple[int, bool, tuple[int, ...]] = (0, False, ())
        self.unreadable: dict[str, str] = {}


class Entry:
    """A run and the data of its streams. Loop thread only.

    A kernel may hold thousands of runs without viewers, so the row of a past run is decoded and the stream
    objects are created at first use.
    """

    __slots__ = (
        "_faults",
        "_run",
        "_streams",
        "stream_summary",
        "changed_at",
        "created",
        "handle",
        "kind",
        "log_path",
        "viewers",
        "read",
    )

    def __init__(self, run: Run | PastRun, now: float | None = None) -> None:
        self.handle, self.created = run.handle, run.created
        self._run = run
        self._streams: _Streams | None = None
        self.log_path = ""  #: path of the whole log; empty before it was requested
        self.kind = "run"  #: or monitor
        self.viewers = 0  #: number of viewers of its streams
        self.read = False  #: whether its streams were read
        self.stream_summary: Any = None  #: summary of streams that were released
        self._faults: set[str] | None = None
        #: Monotonic seconds of the last change, other than new samples.
        self.changed_at = time.monotonic() if now is None else now

    @property
    def run(self) -> Run:
        """Current state of the run."""
        if isinstance(self._run, PastRun):
            self._run = explained(self._run.read())
        return self._run

    @run.setter
    def run(self, run: Run) -> None:
        self._run, self.created = run, run.created

    @property
    def unread(self) -> bool:
        """Whether this is an ended run of an index that was not decoded yet."""
        return isinstance(self._run, PastRun)

    @property
    def target(self) -> str:
        """Name of the compute target."""
        return self.handle.partition("/")[0]

    @property
    def run_id(self) -> str:
        """The run's id on its target."""
        return self.handle.partition("/")[2]

    @property
    def streams(self) -> _Streams:
        """Data of its streams that was read so far."""
        if self._streams is None:
            self._streams = _Streams()
        return self._streams

    @property
    def faults(self) -> set[str]:
        """Parts of its record that could not be built, each logged once."""
        if self._faults is None:
            self._faults = set()
        return self._faults

    def release(self) -> None:
        """Release the data of its streams, which can be read again."""
        self._streams, self.read = None, False

    @property
    def children(self) -> ChildRuns:
        """Its steps or trials."""
        return self.streams.children

    @property
    def metrics(self) -> MetricLog:
        """Metrics that the script logged."""
        return self.streams.metrics

    @property
    def telemetry(self) -> RunTelemetry:
        """Samples of its machines."""
        return self.streams.telemetry

    @property
    def log(self) -> LogWindow:
        """Last part of the log."""
        return self.streams.log

    @property
    def shown_log(self) -> LogWindow:
        """Last part of the log of the process that failed, else of the first one."""
        return self.streams.failed_log if self.streams.failed_log.bytes else self.streams.log

    @property
    def pictures(self) -> RunPictures:
        """Figures that the script has shown, and images that it has logged."""
        return self.streams.pictures

    @property
    def displays(self) -> RunDisplays:
        """Values that the script has displayed with their rich forms."""
        return self.streams.displays

    @property
    def parts(self) -> dict[str, Any]:
        """States of further parts of its record, by name; see :mod:`jupyter_amltrain.kernel.record_parts`."""
        return self.streams.parts

    def shows(self, files: object) -> bool:
        """Whether `files` are still its own: they may have been released."""
        streams = self._streams
        return streams is not None and files in (streams.displays, streams.pictures, *streams.parts.values())

    @property
    def frames(self) -> tuple[FailedFrame, ...] | None:
        """Frames at which it failed, with their variables; ``None`` if they were not read."""
        return self.streams.frames

    @frames.setter
    def frames(self, frames: tuple[FailedFrame, ...] | None) -> None:
        self.streams.frames = frames

    @property
    def offsets(self) -> dict[str, int]:
        """Number of bytes of each stream read so far."""
        return self.streams.offsets

    @property
    def unreadable(self) -> dict[str, str]:
        """Streams whose file cannot be read, and why."""
        return self.streams.unreadable

    @property
    def gpu_part(self) -> tuple[Any, GpuTelemetry | None] | None:
        """GPU part of the last record, with the key of its input."""
        return self.streams.gpu_part

    @gpu_part.setter
    def gpu_part(self, part: tuple[Any, GpuTelemetry | None] | None) -> None:
        self.streams.gpu_part = part

    @property
    def spark(self) -> tuple[int, bool, tuple[int, ...]]:
        """Sparkline of the last row: ticks, ended, values."""
        return self.streams.spark

    @spark.setter
    def spark(self, spark: tuple[int, bool, tuple[int, ...]]) -> None:
        self.streams.spark = spark


class RunStore:
    """Runs by handle. :meth:`put` ignores states older than the stored one."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._entries: dict[RunHandle, Entry] = {}
        self._live: dict[RunHandle, Entry] = {}  #: entries of runs that have not ended
        self._subscribers: list[Callable[[Run], None]] = []
        self._listed_callbacks: list[Callable[[RunHandle], None]] = []
        self._removal_callbacks: list[Callable[[RunHandle], None]] = []
        self._removed: dict[RunHandle, float] = {}  #: monotonic seconds

    def put(self, run: Run) -> bool:
        """Store an observed run; return whether anything changed."""
        self._loop.check()
        entry = self._entries.get(run.handle)
        if entry is None:
            self._store(Entry(run))
            self._notify(run)
            return True
        old = entry.run
        if not _follows(old.status, run.status):
            run = msgspec.structs.replace(run, status=old.status)
        elif old.cancel_requested and not run.cancel_requested and not run.status.state.terminal:
            # A requested cancellation stays set: this observation is older than the request.
            status = msgspec.structs.replace(run.status, cancel_requested=True)
            run = msgspec.structs.replace(run, status=status)
        same = msgspec.structs.replace(run, seen_at=old.seen_at) == old
        entry.run = run
        self._store(entry)
        if not same:
            entry.changed_at = time.monotonic()
            self._notify(run)
        return not same

    def amend(self, handle: RunHandle, **changes: Any) -> bool:
        """Change fields of the run as stored *now*; a copy from before an ``await`` may be out of date."""
        self._loop.check()
        entry = self._entries.get(handle)
        return entry is not None and self.put(msgspec.structs.replace(entry.run, **changes))

    def correct(self, run: Run) -> None:
        """Replace a run whose stored state was wrong, after a submit or cancel without an answer.

        :meth:`put` would keep the stored state, because states only go forward.
        """
        self._loop.check()
        entry = self._entries[run.handle]
        entry.run, entry.changed_at = run, time.monotonic()
        self._store(entry)
        self._notify(run)

    def put_past(self, runs: Iterable[PastRun]) -> None:
        """Store ended runs that a target lists; known runs are not changed."""
        self._loop.check()
        now, entries = time.monotonic(), self._entries
        for run in runs:
            if run.handle not in entries:
                entries[run.handle] = Entry(run, now)
                for fn in self._listed_callbacks:
                    fn(run.handle)

    def touch(self, handle: RunHandle, *, samples_only: bool = False) -> None:
        """Notify the subscribers that a run's streams grew.

        Parameters
        ----------
        samples_only
            There are new samples and nothing else, which pages with live charts know already.
        """
        self._loop.check()
        entry = self._entries[handle]
        if not samples_only:
            entry.changed_at = time.monotonic()
        self._notify(entry.run)

    def get(self, handle: RunHandle) -> Entry | None:
        """Return the entry of `handle`, or ``None``."""
        self._loop.check()
        return self._entries.get(handle)

    def remove(self, handle: RunHandle) -> None:
        """Remove a run that was deleted on its target."""
        self._loop.check()
        self._live.pop(handle, None)
        if self._entries.pop(handle, None) is not None:
            self._removed[handle] = time.monotonic()
            for old in list(self._removed)[:-_MAX_REMOVED]:
                del self._removed[old]
            for fn in tuple(self._removal_callbacks):
                fn(handle)

    def removed_since(self, handle: RunHandle, moment: float) -> bool:
        """Whether a run was removed after `moment` (monotonic seconds); older reads may still list it."""
        return self._removed.get(handle, -1.0) >= moment

    def entries(self) -> Iterator[Entry]:
        """Return all entries, oldest first."""
        self._loop.check()
        return iter(tuple(self._entries.values()))

    def live(self) -> list[Entry]:
        """Return the entries of runs that have not ended, oldest first."""
        self._loop.check()
        return list(self._live.values())

    def subscribe(self, fn: Callable[[Run], None]) -> Unsubscribe:
        """Call `fn` on the loop now for every live run, and later for each run that changes; `fn` must not block.

        Ended runs of an index do not count as changes: see :meth:`on_listed`.
        """
        self._loop.check()
        self._subscribers.append(fn)
        for entry in self.live():
            fn(entry.run)
        return lambda: self._subscribers.remove(fn) if fn in self._subscribers else None

    def on_listed(self, fn: Callable[[RunHandle], None]) -> Unsubscribe:
        """Call `fn` on the loop for every ended run that an index lists; `fn` must not block."""
        self._loop.check()
        self._listed_callbacks.append(fn)
        return lambda: self._listed_callbacks.remove(fn) if fn in self._listed_callbacks else None

    def on_removed(self, fn: Callable[[RunHandle], None]) -> Unsubscribe:
        """Call `fn` on the loop for every run that is removed; `fn` must not block."""
        self._loop.check()
        self._removal_callbacks.append(fn)
        return lambda: self._removal_callbacks.remove(fn) if fn in self._removal_callbacks else None

    def _store(self, entry: Entry) -> None:
        handle = entry.run.handle
        self._entries[handle] = entry
        if entry.run.status.state.terminal:
            self._live.pop(handle, None)
        else:
            self._live[handle] = entry

    def _notify(self, run: Run) -> None:
        for fn in tuple(self._subscribers):
            try:
                fn(run)
            except Exception:  # an error of one subscriber must not affect the others or stop a watcher
                log.exception("notifying of %s", run.handle)


def _follows(old: RunStatus, new: RunStatus) -> bool:
    if old.state is new.state:
        return not old.state.terminal or new.version >= old.version
    return advances(old.state, new.state)
