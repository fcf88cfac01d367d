"""Incremental readers of a run's streams: metrics and the end of the log."""

from __future__ import annotations

import codecs
import itertools
import json
import math
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.agent.mlflow.journal import parse, well_formed
from jupyter_amltrain.agent.mlflow.latest import LatestPoint
from jupyter_amltrain.kernel.display_places import DisplayPlace, DisplayPlaces
from jupyter_amltrain.kernel.terminal_screen import TerminalScreen

#: Maximum bytes of a line; longer ones are skipped, because a line is held in memory until its end.
MAX_LINE_BYTES = 16 << 20


class LineSplitter:
    """Splits a byte stream into complete lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._too_long = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that `data` completes, without empty ones."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if self._too_long and lines:
            lines[0], self._too_long = b"", False
        if self._too_long or len(self._rest) > MAX_LINE_BYTES:
            self._rest, self._too_long = b"", True
        for line in lines:
            if line.strip() and len(line) <= MAX_LINE_BYTES:
                yield line

    def restart(self) -> None:
        """Drop an incomplete line, because the next bytes are from another part of the file."""
        self._rest, self._too_long = b"", False


def decode_line(line: bytes) -> Any:
    """The JSON value of a line; ``None`` if the line is not JSON."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object in a whole file; ``None`` for anything else. Uses Python's JSON, which accepts ``NaN``."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


#: Maximum points of a drawn series.
MAX_DRAWN_POINTS = 300

#: Bytes of log kept in memory, and of the tail that is shown.
LOG_WINDOW_BYTES = 64 * 1024

LOG_TAIL = 8 * 1024

#: Characters of the name of a source of metrics.
MAX_SOURCE = 80

#: Shown above a log that the job has truncated.
LOG_RESTARTED = "[The job truncated its log. New content starts here.]\n"


#: Step, time and value of a point, to tell one that comes twice; all NaN are equal.
_POINT = struct.Struct("qdd")

#: Points of a metric without a finite value that are kept in a downsampled curve.
MAX_NOT_FINITE = 20


class Metric:
    """Points of one metric in order of arrival: ``steps`` int64, ``times`` float64 unix s, ``values`` float64."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.times = array("d")
        self.values = array("d")
        #: The point that is the value of the metric; ``None`` before the first.
        self.latest: LatestPoint | None = None
        self.source = ""  #: the tracker that is not MLflow
        self._known: set[bytes] | None = None  #: all points, once one has come that is not the latest
        self.shown = IncrementalDownsampler(self.values)
        #: Numbers of the first points that are NaN or infinite.
        self.not_finite: list[int] = []

    @property
    def last(self) -> float | None:
        """Value of the metric; ``None`` before the first point."""
        return None if self.latest is None else self.latest.value

    def append(self, step: int, time: float, value: float) -> bool:
        """Add one point; return whether it is new, because a script may send it twice."""
        if self._is_repeated(step, time, value):
            return False
        if self.latest is None:
            self.latest = LatestPoint(step, time, value)
        else:
            self.latest.offer(step, time, value)
        if not math.isfinite(value) and len(self.not_finite) < MAX_NOT_FINITE:
            self.not_finite.append(len(self.values))
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)
        return True

    def _is_repeated(self, step: int, time: float, value: float) -> bool:
        latest = self.latest
        # Most points are the latest ones, so most metrics never need the set.
        if latest is None or step > latest.step or (step == latest.step and time > latest.time):
            if self._known is not None:
                self._known.add(_POINT.pack(step, time, value))
            return False
        if self._known is None:
            self._known = set(map(_POINT.pack, self.steps, self.times, self.values))
        point = _POINT.pack(step, time, value)
        if point in self._known:
            return True
        self._known.add(point)
        return False

    def in_order(self, indices: Iterable[int]) -> list[int]:
        """Return indices of points in the order of a chart: by step, then time, as in MLflow."""
        return sorted(indices, key=lambda i: (self.steps[i], self.times[i], i))


class MetricLog:
    """Metrics and parameters that a script logged, read from the sink's journal."""

    def __init__(self) -> None:
        self._lines = LineSplitter()
        self._run_id: str | None = None
        self.metrics: dict[str, Metric] = {}
        self.params: dict[str, str] = {}
        self.seq = 0

    def feed(self, data: bytes) -> bool:
        """Parse bytes of the journal; return whether there was a metric or parameter."""
        changed = False
        for line in self._lines.feed(data):
            # A job can write into the journal, so invalid lines are skipped.
            try:
                record = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                record = parse(line)  # accepts lone surrogates, too
            if not well_formed(record):
                continue
            seq = record["seq"]
            if seq <= self.seq:
                continue  # the sink repeats nothing; a reader that rewinds may
            self.seq = seq
            try:
                changed |= self._apply(record["op"], record["b"], record.get("a") or {})
            except (TypeError, ValueError, AttributeError, OverflowError):
                continue  # no client of MLflow sends it
        return changed

    def _apply(self, op: str | None, body: dict[str, Any], answer: dict[str, Any]) -> bool:
        if op == "init":
            self._run_id = answer.get("id")
            return False
        if body.get("run_id", body.get("run_uuid")) != self._run_id:
            return False  # nested runs have their own page in MLflow
        if op == "runs/log-metric":
            self._point(body)
        elif op == "runs/log-parameter":
            self.params[str(body.get("key"))] = str(body.get("value", ""))
        elif op == "runs/log-batch":
            for point in _objects(body.get("metrics")):
                self._point(point, str(answer.get("source") or "")[:MAX_SOURCE])
            for param in _objects(body.get("params")):
                self.params[str(param.get("key"))] = str(param.get("value", ""))
        else:
            return False
        return True

    def _point(self, point: dict[str, Any], source: str = "") -> None:
        try:
            value = float(point["value"])
            step = int(point.get("step") or 0)
            time = float(point.get("timestamp") or 0) / 1000
            name = str(point["key"])
            if not -(2**63) <= step < 2**63:
                return
            metric = self.metrics.setdefault(name, Metric())
            metric.source = metric.source or source
            metric.append(step, time, value)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            return  # no client of MLflow sends it


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Iterate over the objects in a list; empty for any other value."""
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


class ShownPlace(NamedTuple):
    """Place of a display in the end of a log.

    Attributes
    ----------
    line
        Number of the line before which it stands; -1 above the first line.
    blocks
        First line and number of lines of each text that it replaces.
    """

    number: int
    line: int
    blocks: tuple[tuple[int, int], ...]


def above_all_lines(places: Iterable[ShownPlace]) -> tuple[ShownPlace, ...]:
    """Return places above the lines of a log, for displays without the lines between which they stand."""
    return tuple(place._replace(line=-1, blocks=()) for place in places)


class LogEnd(NamedTuple):
    """The last lines of a log, the number of lines before them (0: unknown), and its displays."""

    text: str
    hidden: int
    places: tuple[ShownPlace, ...] = ()


class LogWindow:
    """The end of a log: its last :data:`LOG_WINDOW_BYTES` bytes, and the lines that a terminal shows of it."""

    def __init__(self) -> None:
        self.restarts = -1  #: number of times the job has rewritten its log
        self.restart()

    def restart(self) -> None:
        """Restart at byte 0, because the job has rewritten its log."""
        self._window, self._whole, self.bytes = b"", True, 0
        self._new_screen()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.restarts += 1

    def _new_screen(self) -> None:
        self.displays = DisplayPlaces()
        self._screen = TerminalScreen(LOG_WINDOW_BYTES, lambda mark: self.displays.mark(mark, self._screen.cursor))

    @property
    def whole(self) -> bool:
        """Whether all of the log was fed, so that it has the marks of all displays."""
        return self._whole

    def last(self, count: int) -> bytes:
        """Return the last bytes that were fed, at most `count`."""
        return self._window[-count:] if count > 0 else b""

    def feed(self, data: bytes, end: int) -> None:
        """Add `data`, which ends at byte `end` of the log; a gap before it clears the window."""
        if end - len(data) != self.bytes:
            self._whole = False
            self._window = b""
            self._new_screen()
            self._decoder.reset()
            data = data.partition(b"\n")[2] or data  # the rest of a line
        self._screen.feed(self._decoder.decode(data))
        self.displays.settle(self._screen.cursor)
        self._window = (self._window + data)[-LOG_WINDOW_BYTES:]
        self.bytes = end

    def tail(self, limit: int = LOG_TAIL) -> tuple[str, int]:
        """Return the last `limit` characters as whole lines, and the number of lines before them (0: unknown)."""
        return self.end(limit)[:2]

    def end(self, limit: int = LOG_TAIL) -> LogEnd:
        """Return the last `limit` characters as whole lines, since the script has cleared its output.

        The texts of displays have a limit of their own: a table must not push out the lines before it.
        """
        lines, above = self._screen.lines(), self._screen.first
        blocks = self.displays.open_lines(self._screen.cursor)
        covered = {
            line - above
            for some in blocks.values()
            for start, n in some
            for line in range(max(start, above), start + n)
        }
        begin = min(max(0, self.displays.first_line - above), len(lines) - 1)
        first, left = len(lines), {False: limit + 1, True: limit + 1}
        while first > begin and len(lines[first - 1]) + 1 <= left[(first - 1) in covered]:
            first -= 1
            left[first in covered] -= len(lines[first]) + 1
        text = "\n".join(lines[first:]) if first < len(lines) else lines[-1][-limit:]
        first = min(first, len(lines) - 1)
        hidden, shift = above + first, 0
        if hidden == 0 and self.restarts and self._whole:
            text, shift = LOG_RESTARTED + text, 1
        places = tuple(
            _shown_place(place, blocks[place.number], above + first - shift) for place in self.displays.places.values()
        )
        return LogEnd(text, hidden if self._whole else 0, places)


def _shown_place(place: DisplayPlace, blocks: Sequence[tuple[int, int]], first: int) -> ShownPlace:
    """Return a place with line numbers relative to line `first`."""
    line = blocks[0][0] - first if blocks and not place.is_above else -1
    shown = []
    for start, n in blocks:
        begin, end = max(0, start - first), start + n - first
        if end > begin:
            shown.append((begin, end - begin))
    return ShownPlace(place.number, max(-1, line), tuple(shown))


def downsample(
    values: Sequence[float], points: int = MAX_DRAWN_POINTS, among: Sequence[int] | None = None
) -> list[int]:
    """Indices of at most `points` values that keep first, last and every bucket's extremes.

    Parameters
    ----------
    among
        Indices to choose from, ascending; default all.
    """
    among = range(len(values)) if among is None else among
    n = len(among)
    if n <= points:
        return list(among)
    buckets = points // 2
    keep = {among[0], among[n - 1]}
    for b in range(buckets - 1):
        bucket = among[b * n // (buckets - 1) : (b + 1) * n // (buckets - 1)]
        keep.update(_extremes(values, bucket))
    return sorted(keep)


def _extremes(values: Sequence[float], indices: Sequence[int]) -> tuple[int, int]:
    known = [i for i in indices if values[i] == values[i]]
    if not known:
        return indices[0], indices[0]  # a hole stays a hole
    return min(known, key=values.__getitem__), max(known, key=values.__getitem__)


class IncrementalDownsampler:
    """Incremental downsampling of an array that grows: the indices of the drawn values.

    The extremes of complete blocks are computed once, so that the cost of a frame depends only on
    the new values. Blocks grow with the series, so that all parts of the curve keep their shape.
    """

    #: Size of the first blocks, and maximum indices kept of complete blocks.
    FIRST_BLOCK = 4
    MAX_KEPT = 2048

    def __init__(self, values: array[float]) -> None:
        self._values = values
        self._done = 0
        self._kept: list[int] = []
        self._block = self.FIRST_BLOCK

    def indices(self, points: int = MAX_DRAWN_POINTS) -> list[int]:
        """Return the indices of :func:`downsample` for all values so far."""
        n = len(self._values)
        while n - self._done >= self._block:
            end = self._done + self._block
            self._kept += self._representatives(range(self._done, end))
            self._done = end
            if len(self._kept) > self.MAX_KEPT:
                self._block *= 2
                blocks = itertools.groupby(self._kept, key=lambda i: i // self._block)
                self._kept = [i for _, block in blocks for i in self._representatives(list(block))]
        if n <= points:  # a short curve keeps every point
            return list(range(n))
        among = [*self._kept, *range(self._done, n)]
        if among and among[-1] != n - 1:
            among.append(n - 1)
        return downsample(self._values, points, among)

    def _representatives(self, indices: Sequence[int]) -> list[int]:
        return sorted({indices[0], *_extremes(self._values, indices)})
