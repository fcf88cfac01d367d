"""Telemetry files: ticks, minutes, and values that hold for the ticks after them."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from ..protocol import TELEMETRY, cut_torn_tail
from .reduce import Value, reduce

HeldValue = Optional[float]

#: Seconds until figures are too old to be shown: they are written when one changes, and each minute.
FIGURES_HOLD_S = 70.0

_MAX_VALUE = 1e15


class HeldFigures:
    """Figures of a file of an earlier version: they hold until the next object with figures.

    Parameters
    ----------
    count
        Number of values of an object.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._values: List[HeldValue] = [None] * count
        self._since: Optional[float] = None
        self._new = False

    def set_values(self, values: Any) -> None:
        """Take the values of an object; its tick follows."""
        if isinstance(values, list) and len(values) == self.count:
            # A job can write into the file.
            self._values = [x if isinstance(x, (int, float)) and abs(x) < _MAX_VALUE else None for x in values]
            self._new = True

    def at(self, t: float) -> List[HeldValue]:
        """Return the values that hold for a tick at `t`."""
        if self._new:
            self._since, self._new = t, False
        if self._since is None or not 0 <= t - self._since <= FIGURES_HOLD_S:
            return [None] * self.count
        return self._values


MINUTES = "telemetry/minutes-%d.jsonl"

#: Seconds.
MINUTE = 60


class Tick(NamedTuple):
    """One line of the telemetry file."""

    seq: int
    t: float  #: unix seconds
    values: List[Value]
    end: int  #: byte just after the line


def short(value: float) -> Value:
    """Round a mean to three digits, a large one to five: enough for charts, and it keeps lines short."""
    digits = len(str(int(abs(value))))
    rounded = round(value, 3 - digits if digits < 3 else min(0, 5 - digits))
    return int(rounded) if rounded == int(rounded) else rounded


def number(value: Any) -> str:
    """Return the JSON of a number; ``12345000000`` is ``12345e6``."""
    if value is None:
        return "null"
    if isinstance(value, float):
        return repr(value)
    text = str(value)
    digits = text.rstrip("0")
    zeros = len(text) - len(digits)
    return "%se%d" % (digits, zeros) if zeros > 2 and digits else text


class Minutes:
    """The file of minutes, and the ticks of the current minute.

    Parameters
    ----------
    folder
        Folder that holds ``telemetry``.
    names
        Names of the columns.
    node
        Number of the machine within the run.

    Attributes
    ----------
    seq, offset
        Number of the last tick in the file, -1 for none, and the byte after it among the ticks.
    """

    def __init__(self, folder: str, names: Sequence[str], node: int = 0) -> None:
        self.path = os.path.join(folder, MINUTES % node)
        self.ticks: List[Tick] = []
        self.seq, self.offset = -1, 0
        # Lines that a full disk refused, half a day at most.
        self._unwritten: List[bytes] = []
        last = cut_torn_tail(self.path)
        if not last:
            self._unwritten.append(_line({"schema": 1, "columns": list(names), "period": MINUTE}))
        elif last.startswith(b"["):
            row = json.loads(last.decode())
            self.seq, self.offset = int(row[0]), int(row[4])

    def closes(self, t: float) -> bool:
        """Return whether a tick at `t` is in another minute than the earlier ticks."""
        return bool(self.ticks) and int(t // MINUTE) != int(self.ticks[-1].t // MINUTE)

    def add(self, tick: Tick) -> None:
        """Add a tick; ticks of an earlier minute must have been closed."""
        self.ticks.append(tick)

    def close(self) -> List[Tick]:
        """End the minute: append its line and return its ticks."""
        ticks, self.ticks = self.ticks, []
        if ticks and ticks[-1].seq > self.seq:
            columns = [reduce(column) for column in zip(*(tick.values for tick in ticks))]
            low = [column.low for column in columns]
            mean = [None if column.mean is None else short(column.mean) for column in columns]
            high = [column.high for column in columns]
            first, last = ticks[0], ticks[-1]
            self.seq, self.offset = last.seq, last.end
            stats = ",".join("[%s]" % ",".join(map(number, stat)) for stat in (low, mean, high))
            head = [last.seq, first.t, last.t, len(ticks), last.end]
            self._unwritten.append(_line(head).replace(b"]", b",%s]" % stats.encode()))
        self._write()
        return ticks

    def _write(self) -> None:
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError:
            return
        try:
            while self._unwritten:
                size = os.fstat(handle).st_size
                try:
                    whole = os.write(handle, self._unwritten[0]) == len(self._unwritten[0])
                except OSError:
                    whole = False
                if not whole:
                    os.ftruncate(handle, size)
                    break
                del self._unwritten[0]
        except OSError:  # a full disk: the lines are written later
            pass
        finally:
            os.close(handle)
        del self._unwritten[1:-720]


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


#: Significant digits of amounts and counters: short lines, and rates are still exact enough.
_DIGITS = {
    "memory": 5, "host_memory": 4, "read_bytes": 7, "write_bytes": 7, "net_rx": 7, "net_tx": 7,
}  # fmt: skip


def shortened(names: Sequence[str], values: Sequence[Value]) -> List[Value]:
    """Return host values with as many digits as the file stores."""
    result: List[Value] = []
    for name, value in zip(names, values):
        if value is None or name not in _DIGITS:
            result.append(int(value) if isinstance(value, float) and value >= 100 else value)
        else:
            result.append(round(int(value), min(0, _DIGITS[name] - len(str(int(value))))))
    return result


class TelemetryFile:
    """The telemetry file, opened at its end.

    Parameters
    ----------
    folder
        Folder that holds ``telemetry``.
    node
        Number of the machine within the run.

    Attributes
    ----------
    header
        First line of the file; empty while there is none.
    next
        Number of the next tick; correct after :meth:`ticks` was consumed once.

    Raises
    ------
    OSError
        The file cannot be opened.
    """

    def __init__(self, folder: str, node: int = 0) -> None:
        self.path = os.path.join(folder, TELEMETRY % node)
        cut_torn_tail(self.path)
        self.handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self.next = 0
        self.header: Dict[str, Any] = {}
        self._written = False
        with open(self.path, "rb") as file:
            line = file.readline()
        try:
            header = json.loads(line.decode())
            if isinstance(header, dict) and "columns" in header:
                self.header, self._written = header, True
        except ValueError:  # none yet, or a damaged one: a new one follows
            pass

    def ticks(self, offset: int, seq: int) -> Iterator[Tick]:
        """Yield the ticks after byte `offset`, where tick number `seq` ended; the last one sets :attr:`next`."""
        if offset > os.fstat(self.handle).st_size:
            offset, seq = 0, -1
        self.next = seq + 1
        with open(self.path, "rb") as file:
            file.seek(offset)
            for line in file:
                offset += len(line)
                if line.startswith(b"["):
                    seq, t, *values = json.loads(line.decode())
                    self.next = seq + 1
                    # Written as 12345e6, but a whole number.
                    whole = [int(x) if isinstance(x, float) and x >= 1000 and x == int(x) else x for x in values]
                    yield Tick(seq, t, whole, offset)

    def begin(self, header: Dict[str, Any]) -> None:
        """Write the header of a new file now, or with the first tick if the disk is full."""
        self.header = header
        self._written = self._write((_json(header) + "\n").encode()) is not None

    def add(
        self, t: float, host: Sequence[Value], gpus: Sequence[Value], objects: Sequence[Mapping[str, Any]]
    ) -> Optional[Tick]:
        """Append a tick at `t` (unix seconds) after `objects`, each on its own line.

        Returns ``None`` if the disk did not take all of it.
        """
        lines = [] if self._written else [_json(self.header)]
        lines += [_json(dict(seq=self.next, **object_)) for object_ in objects]
        row = "[%d,%s" % (self.next, repr(t))
        row += "".join("," + number(value) for value in host)
        row += ("," + _json(gpus)[1:-1] if gpus else "") + "]"
        end = self._write("\n".join([*lines, row, ""]).encode())
        if end is None:
            return None
        self._written = True
        tick = Tick(self.next, t, [*host, *gpus], end)
        self.next += 1
        return tick

    def _write(self, data: bytes) -> Optional[int]:
        size = os.fstat(self.handle).st_size
        try:
            if os.write(self.handle, data) == len(data):
                return size + len(data)
        except OSError:  # a full disk
            pass
        os.ftruncate(self.handle, size)
        return None


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
