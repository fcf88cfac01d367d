"""Telemetry files: ticks, minutes, and values that hold for the ticks after them."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from ..protocol import TELEMETRY, cut_torn_tail
from .reduce import Value, reduce

HeldValue = Optional[float]

#: Seconds until a figure is too old to be shown: they are written when one changes, and each minute.
FIGURES_HOLD_S = 70.0

_MAX_VALUE = 1e15


class HeldFigures:
    """Figures that hold from one object to the next, in a file that is read again.

    Parameters
    ----------
    count
        Values of an object.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._values: List[HeldValue] = [None] * count
        self._since: Optional[float] = None
        self._new = False

    def take(self, values: Any) -> None:
        """The values of an object; the tick follows."""
        if isinstance(values, list) and len(values) == self.count:
            # A job can write into the file.
            self._values = [x if isinstance(x, (int, float)) and abs(x) < _MAX_VALUE else None for x in values]
            self._new = True

    def at(self, t: float) -> List[HeldValue]:
        """What holds for a tick."""
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
    """Three digits of a mean, and five of a large one: it needs no more, and lines get short."""
    digits = len(str(int(abs(value))))
    rounded = round(value, 3 - digits if digits < 3 else min(0, 5 - digits))
    return int(rounded) if rounded == int(rounded) else rounded


def number(value: Any) -> str:
    """JSON of a number; ``12345000000`` is ``12345e6``."""
    if value is None:
        return "null"
    if isinstance(value, float):
        return repr(value)
    text = str(value)
    digits = text.rstrip("0")
    zeros = len(text) - len(digits)
    return "%se%d" % (digits, zeros) if zeros > 2 and digits else text


class Minutes:
    """The file of minutes, and the ticks of the one that is not over.

    Parameters
    ----------
    folder
        Folder that holds ``telemetry``.
    names
        Of the columns.
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
        # What a full disk refused waits here, half a day at most.
        self._waiting: List[bytes] = []
        last = cut_torn_tail(self.path)
        if not last:
            self._waiting.append(_line({"schema": 1, "columns": list(names), "period": MINUTE}))
        elif last.startswith(b"["):
            row = json.loads(last.decode())
            self.seq, self.offset = int(row[0]), int(row[4])

    def closes(self, t: float) -> bool:
        """Whether a tick at `t` is of another minute than those before it."""
        return bool(self.ticks) and int(t // MINUTE) != int(self.ticks[-1].t // MINUTE)

    def add(self, tick: Tick) -> None:
        """Take a tick, after those of an earlier minute were closed."""
        self.ticks.append(tick)

    def close(self) -> List[Tick]:
        """End the minute: append its line, and return its ticks."""
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
            self._waiting.append(_line(head).replace(b"]", b",%s]" % stats.encode()))
        self._write()
        return ticks

    def _write(self) -> None:
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError:
            return
        try:
            while self._waiting:
                size = os.fstat(handle).st_size
                try:
                    whole = os.write(handle, self._waiting[0]) == len(self._waiting[0])
                except OSError:
                    whole = False
                if not whole:
                    os.ftruncate(handle, size)
                    break
                del self._waiting[0]
        except OSError:
            pass
        finally:
            os.close(handle)
        del self._waiting[1:-720]


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


#: Digits that are kept of amounts and of counters: a line is short, and a rate still right.
_DIGITS = {
    "memory": 5, "host_memory": 4, "read_bytes": 7, "write_bytes": 7, "net_rx": 7, "net_tx": 7,
}  # fmt: skip


def shortened(names: Sequence[str], values: Sequence[Value]) -> List[Value]:
    """Host values as they are written down."""
    found: List[Value] = []
    for name, value in zip(names, values):
        if value is None or name not in _DIGITS:
            found.append(int(value) if isinstance(value, float) and value >= 100 else value)
        else:
            found.append(round(int(value), min(0, _DIGITS[name] - len(str(int(value))))))
    return found


class Telemetry:
    """The file, opened at its end.

    Parameters
    ----------
    folder
        Folder that holds ``telemetry``.
    node
        Number of the machine within the run.

    Attributes
    ----------
    header
        Its first line, or empty when there is none yet.
    next
        Number of the next tick; right after the ticks were gone through once.

    Raises
    ------
    OSError
        It cannot be opened.
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
        """The ticks after a byte, where tick number `seq` ended; the last of all sets :attr:`next`."""
        if offset > os.fstat(self.handle).st_size:
            offset, seq = 0, -1
        self.next = seq + 1
        held = HeldFigures(len(self.header.get("gpu_figures") or ()) * len(self.header.get("gpus") or ()))
        with open(self.path, "rb") as file:
            file.seek(offset)
            for line in file:
                offset += len(line)
                if line.startswith(b"["):
                    seq, t, *values = json.loads(line.decode())
                    self.next = seq + 1
                    # Written as 12345e6, meant as a whole number.
                    whole = [int(x) if isinstance(x, float) and x >= 1000 and x == int(x) else x for x in values]
                    yield Tick(seq, t, [*whole, *held.at(t)], offset)
                elif held.count and b'"figures"' in line:
                    try:
                        value = json.loads(line.decode())
                    except ValueError:
                        continue
                    held.take(value.get("figures") if isinstance(value, dict) else None)

    def begin(self, header: Dict[str, Any]) -> None:
        """Write the header of a new file now, or with the first tick when the disk does not take it."""
        self.header = header
        self._written = self._write((_json(header) + "\n").encode()) is not None

    def add(
        self,
        t: float,
        host: Sequence[Value],
        gpus: Sequence[Value],
        told: Sequence[Mapping[str, Any]],
        held: Sequence[Value] = (),
    ) -> Optional[Tick]:
        """Append a tick, behind what is `told` with it; ``None`` when the disk did not take all of it.

        Parameters
        ----------
        t
            Unix seconds.
        held
            Figures that the tick has without being written in its line; see ``gpu_figures``.
        """
        lines = [] if self._written else [_json(self.header)]
        lines += [_json(dict(seq=self.next, **object_)) for object_ in told]
        row = "[%d,%s" % (self.next, repr(t))
        row += "".join("," + number(value) for value in host)
        row += ("," + _json(gpus)[1:-1] if gpus else "") + "]"
        end = self._write("\n".join([*lines, row, ""]).encode())
        if end is None:
            return None
        self._written = True
        tick = Tick(self.next, t, [*host, *gpus, *held], end)
        self.next += 1
        return tick

    def _write(self, data: bytes) -> Optional[int]:
        size = os.fstat(self.handle).st_size
        try:
            if os.write(self.handle, data) == len(data):
                return size + len(data)
        except OSError:
            pass
        os.ftruncate(self.handle, size)
        return None


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
