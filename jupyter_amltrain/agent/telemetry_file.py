"""``telemetry/node-<number>.jsonl``: a header, then one array a tick, and objects for what changes seldom.

Ticks are numbered 0, 1, 2... without gap or repeat, also over a restart of the
sampler and a full disk: a number is used up only when its whole line is written.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from .gpu_held import HeldFigures
from .minutes import Tick, number
from .protocol import TELEMETRY, cut_torn_tail
from .reduce import Value

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
