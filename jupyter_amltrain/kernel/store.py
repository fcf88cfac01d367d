"""The kernel's ledger of runs: one writer (the loop), any number of subscribers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from jupyter_amltrain.backends.past_runs import PastRun
from jupyter_amltrain.kernel.outcome_text import explained
from jupyter_amltrain.kernel.streams import LogWindow, MetricLog
from jupyter_amltrain.kernel.telemetry import RunTelemetry
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.child_run import ChildRuns
from jupyter_amltrain.schema.record import GpuTelemetry
from jupyter_amltrain.schema.run import Run, RunHandle, RunStatus, advances

log = logging.getLogger(__name__)

Unsubscribe = Callable[[], None]

#: Removed runs that are remembered, for lists that were being read at that time.
_REMOVED = 1000


class _Streams:
    """What arrived of a run's streams."""

    __slots__ = ("children", "gpu_part", "log", "metrics", "offsets", "spark", "telemetry", "unreadable")

    def __init__(self) -> None:
        self.children = ChildRuns()
        self.metrics = MetricLog()
        self.telemetry = RunTelemetry()
        self.log = LogWindow()
        self.gpu_part: tuple[Any, GpuTelemetry | None] | None = None
        self.offsets = {"log": 0, "metrics": 0}
        self.spark: tuple[int, bool, tuple[int, ...]] = (0, False, ())
        self.unreadable: dict[str, str] = {}


class Entry:
    """One run and what arrived of its streams. Touched by the loop thread only.

    A kernel holds thousands of runs that nobody looks at: the row of a past one is decoded, and what
    belongs to the streams is made, when it is first asked for.
    """

    __slots__ = (
        "_faults",
        "_run",
        "_streams",
        "brief",
        "changed_at",
        "created",
        "handle",
        "kind",
        "log_path",
        "lookers",
        "read",
    )

    def __init__(self, run: Run | PastRun, now: float | None = None) -> None:
        self.handle, self.created = run.handle, run.created
        self._run = run
        self._streams: _Streams | None = None
        self.log_path = ""  #: where the whole log lies; empty before it was asked for
        self.kind = "run"  #: or monitor
        self.lookers = 0  #: how many want its streams
        self.read = False  #: whether its streams were read
        self.brief: Any = None  #: what a row says of streams that were let go of
        self._faults: set[str] | None = None
        self.changed_at = time.monotonic() if now is None else now

    @property
    def run(self) -> Run:
        """The run as it is known now."""
        if isinstance(self._run, PastRun):
            self._run = explained(self._run.read())
        return self._run

    @run.setter
    def run(self, run: Run) -> None:
        self._run, self.created = run, run.created

    @property
    def unread(self) -> bool:
        """Whether it is an ended run of an index that nobody has looked at yet."""
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
        """What arrived of its streams."""
        if self._streams is None:
            self._streams = _Streams()
        return self._streams

    @property
    def faults(self) -> set[str]:
        """Parts of its record that could not be made, each logged once."""
        if self._faults is None:
            self._faults = set()
        return self._faults

    def release(self) -> None:
        """Forget what arrived of its streams: it can be read again."""
        self._streams, self.read = None, False

    @property
    def children(self) -> ChildRuns:
        """Its steps or trials."""
        return self.streams.children

    @property
    def metrics(self) -> MetricLog:
        """What the script logged."""
        return self.streams.metrics

    @property
    def telemetry(self) -> RunTelemetry:
        """What the samplers wrote."""
        return self.streams.telemetry

    @property
    def log(self) -> LogWindow:
        """The end of the log."""
        return self.streams.log

    @property
    def offsets(self) -> dict[str, int]:
        """Bytes of each stream read so far."""
        return self.streams.offsets

    @property
    def unreadable(self) -> dict[str, str]:
        """Streams whose file cannot be read, and why."""
        return self.streams.unreadable

    @property
    def gpu_part(self) -> tuple[Any, GpuTelemetry | None] | None:
        """Of the last record, and what it was made of."""
        return self.streams.gpu_part

    @gpu_part.setter
    def gpu_part(self, part: tuple[Any, GpuTelemetry | None] | None) -> None:
        self.streams.gpu_part = part

    @property
    def spark(self) -> tuple[int, bool, tuple[int, ...]]:
        """Of the last row: ticks, ended, numbers."""
        return self.streams.spark

    @spark.setter
    def spark(self, spark: tuple[int, bool, tuple[int, ...]]) -> None:
        self.streams.spark = spark


class RunStore:
    """Runs by handle. :meth:`put` refuses to let time run backwards."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._entries: dict[RunHandle, Entry] = {}
        self._live: dict[RunHandle, Entry] = {}  #: those of runs that have not ended
        self._subscribers: list[Callable[[Run], None]] = []
        self._historians: list[Callable[[RunHandle], None]] = []
        self._mourners: list[Callable[[RunHandle], None]] = []
        self._removed: dict[RunHandle, float] = {}  #: monotonic seconds

    def put(self, run: Run) -> bool:
        """Store what was observed; returns whether anything changed."""
        self._loop.check()
        entry = self._entries.get(run.handle)
        if entry is None:
            self._keep(Entry(run))
            self._tell(run)
            return True
        old = entry.run
        if not _follows(old.status, run.status):
            run = msgspec.structs.replace(run, status=old.status)
        elif old.cancel_requested and not run.cancel_requested and not run.status.state.terminal:
            # Asked for stays asked for: this observation was on its way before.
            status = msgspec.structs.replace(run.status, cancel_requested=True)
            run = msgspec.structs.replace(run, status=status)
        same = msgspec.structs.replace(run, seen_at=old.seen_at) == old
        entry.run = run
        self._keep(entry)
        if not same:
            entry.changed_at = time.monotonic()
            self._tell(run)
        return not same

    def amend(self, handle: RunHandle, **changes: Any) -> bool:
        """Change fields of a run as it is *now*: what was read before an ``await`` may be old."""
        self._loop.check()
        entry = self._entries.get(handle)
        return entry is not None and self.put(msgspec.structs.replace(entry.run, **changes))

    def correct(self, run: Run) -> None:
        """Put what contradicts what was believed: a submit or a cancel whose answer did not come.

        :meth:`put` would keep the older word, because states only go forward.
        """
        self._loop.check()
        entry = self._entries[run.handle]
        entry.run, entry.changed_at = run, time.monotonic()
        self._keep(entry)
        self._tell(run)

    def put_past(self, runs: Iterable[PastRun]) -> None:
        """Store what a target lists of its past; runs that are known already stay as they are."""
        self._loop.check()
        now, entries = time.monotonic(), self._entries
        for run in runs:
            if run.handle not in entries:
                entries[run.handle] = Entry(run, now)
                for fn in self._historians:
                    fn(run.handle)

    def touch(self, handle: RunHandle) -> None:
        """Tell the subscribers that a run's streams grew."""
        self._loop.check()
        entry = self._entries[handle]
        entry.changed_at = time.monotonic()
        self._tell(entry.run)

    def get(self, handle: RunHandle) -> Entry | None:
        """The entry of `handle`, if it is known here."""
        self._loop.check()
        return self._entries.get(handle)

    def remove(self, handle: RunHandle) -> None:
        """Forget a run that was deleted on its target."""
        self._loop.check()
        self._live.pop(handle, None)
        if self._entries.pop(handle, None) is not None:
            self._removed[handle] = time.monotonic()
            for old in list(self._removed)[:-_REMOVED]:
                del self._removed[old]
            for fn in tuple(self._mourners):
                fn(handle)

    def removed_since(self, handle: RunHandle, moment: float) -> bool:
        """Whether a run was removed after `moment` (monotonic seconds): what was read before may still show it."""
        return self._removed.get(handle, -1.0) >= moment

    def entries(self) -> Iterator[Entry]:
        """All entries, oldest first."""
        self._loop.check()
        return iter(tuple(self._entries.values()))

    def live(self) -> list[Entry]:
        """Those of runs that have not ended, oldest first."""
        self._loop.check()
        return list(self._live.values())

    def subscribe(self, fn: Callable[[Run], None]) -> Unsubscribe:
        """Call `fn` on the loop with every live run now and with any run on every change; never blocks.

        Ended runs of an index are no change: see :meth:`when_listed`.
        """
        self._loop.check()
        self._subscribers.append(fn)
        for entry in self.live():
            fn(entry.run)
        return lambda: self._subscribers.remove(fn) if fn in self._subscribers else None

    def when_listed(self, fn: Callable[[RunHandle], None]) -> Unsubscribe:
        """Call `fn` on the loop with every ended run that an index names; never blocks."""
        self._loop.check()
        self._historians.append(fn)
        return lambda: self._historians.remove(fn) if fn in self._historians else None

    def when_gone(self, fn: Callable[[RunHandle], None]) -> Unsubscribe:
        """Call `fn` on the loop with every run that is removed; never blocks."""
        self._loop.check()
        self._mourners.append(fn)
        return lambda: self._mourners.remove(fn) if fn in self._mourners else None

    def _keep(self, entry: Entry) -> None:
        handle = entry.run.handle
        self._entries[handle] = entry
        if entry.run.status.state.terminal:
            self._live.pop(handle, None)
        else:
            self._live[handle] = entry

    def _tell(self, run: Run) -> None:
        for fn in tuple(self._subscribers):
            try:
                fn(run)
            except Exception:  # a subscriber's fault must not keep the news from the others, or stop a watcher
                log.exception("telling of %s", run.handle)


def _follows(old: RunStatus, new: RunStatus) -> bool:
    if old.state is new.state:
        return not old.state.terminal or new.version >= old.version
    return advances(old.state, new.state)
