"""``telemetry/minutes-<node>.jsonl``: minimum, mean and maximum of every column, a line a minute.

A reader of a day's run takes these instead of 86,400 ticks. The sum over a minute's
ticks is taken when it closes, so a tick costs the same after a day as at the start.
"""

from __future__ import annotations

import json
import os
from typing import Any, List, NamedTuple, Sequence

from .protocol import cut_torn_tail
from .reduce import Value, reduce

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
