"""Samples on their way to a page: one wire form for dashboards and for the panel.

A message of samples is one buffer, little-endian. First one head for each part, which is the samples of one node:
node and count (uint16), number of the first sample (uint32). Then the times of all parts (float64, unix seconds)
and all values (float32, or bfloat16), part after part, series after series. A message of one part may end with
series in percent (uint8, 255 for *unknown*). NaN means *unknown*.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.kernel.telemetry import NodeTelemetry, known

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]
    Float64 = NDArray[np.float64]

_HEAD = [("node", "<u2"), ("count", "<u2"), ("first", "<u4")]


class Samples(NamedTuple):
    """Samples of one node: number of the first, times ``(n,)`` and values ``(series, n)``."""

    node: int
    first: int
    t: Float64
    values: Float32


class Columns:
    """The series of a node that a page receives.

    Parameters
    ----------
    names
        Series of the node in wire order. The values of others are unknown.
    """

    def __init__(self, node: NodeTelemetry, names: Sequence[str]) -> None:
        self.node = node
        self.names = tuple(names)
        self._of = node.columns
        self._index = [node.index.get(name, -1) for name in names]

    @property
    def stale(self) -> bool:
        """Whether the node's series have changed since this object was created."""
        return self._of is not self.node.columns

    def _pick(self, table: Float32) -> Float32:
        """Return the rows of `table` (series first) that are sent."""
        import numpy as np

        picked = table[self._index]
        if -1 in self._index:
            picked[[k for k, i in enumerate(self._index) if i < 0]] = np.nan
        return np.ascontiguousarray(picked, dtype=np.float32)

    def since(self, first: int) -> Samples:
        """Return the samples from number `first` on that the ring still has."""
        t, rows = self.node.since(first)
        return Samples(self.node.node, self.node.ticks - len(t), t, self._pick(rows))

    def at(self, t: Float64, newest: int) -> Float32:
        """Return the values at the times `t`, from the `newest` samples; unknown without a sample near the time."""
        import numpy as np

        _, _, times, rows = self.since(max(0, self.node.ticks - newest))
        out = np.full((len(self.names), len(t)), np.nan, np.float32)
        if not len(times) or not len(t):
            return out
        at = np.clip(np.searchsorted(times, t), 0, len(times) - 1)
        before = np.maximum(at - 1, 0)
        at = np.where(np.abs(times[before] - t) < np.abs(times[at] - t), before, at)
        near = np.abs(times[at] - t) <= period_of(self.node)
        out[:, near] = rows[:, at[near]]
        return out

    def snapshot(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return ring and history as of now: head, and the buffers ``[x, y, buckets]``.

        Safe on any thread: a reloaded page requests the state of every widget, and the main
        thread replies while the loop adds ticks.
        """
        while True:
            before = self.node.changes
            try:
                snapshot = self._snapshot()
            except (IndexError, ValueError):
                if before == self.node.changes:
                    raise
                continue
            if not before % 2 and before == self.node.changes:
                return snapshot
            time.sleep(0)  # yield to the loop thread

    def _snapshot(self) -> tuple[dict[str, Any], list[bytes]]:
        node, _, t, rows = self.since(0)
        history = self.node.history
        count = history.count
        buckets = history.t[:count].tobytes()
        for values in history.values:
            buckets += self._pick(values[:, :count]).tobytes()
        head = {"n": node, "s": self.node.ticks, "k": len(t), "b": count, "w": history.width, "p": history.filled}
        return head, [t.tobytes(), rows.tobytes(), buckets]


def encode(parts: Sequence[Samples], percents: Float32 | None = None, *, halves: bool = False) -> bytes:
    """Return the message of these samples.

    Parameters
    ----------
    percents
        ``(series, n)``, sent as whole percent after the values of a single part.
    halves
        Send values with 3 digits.
    """
    import numpy as np

    heads = np.array([(part.node, len(part.t), part.first) for part in parts], _HEAD).tobytes()
    times = [part.t.tobytes() for part in parts]
    values = [bfloat16(part.values) if halves else part.values.tobytes() for part in parts]
    return b"".join([heads, *times, *values, b"" if percents is None else whole_percents(percents)])


def bfloat16(values: Float32) -> bytes:
    """Return the values as bfloat16, the upper half of a float32: its range and NaN, with 3 digits."""
    import numpy as np

    halves: NDArray[np.uint16] = ((values.view(np.uint32) + np.uint32(0x8000)) >> 16).astype(np.uint16)
    halves[np.isnan(values)] = 0x7FC0  # rounding can carry into the sign of a NaN
    return halves.tobytes()


def whole_percents(values: Float32) -> bytes:
    """Return the values as uint8 of 0 to 100, 255 for *unknown*."""
    import numpy as np

    return np.where(np.isnan(values), 255, np.clip(np.rint(values), 0, 100)).astype(np.uint8).tobytes()


def period_of(node: NodeTelemetry) -> float:
    """Return the seconds between two samples of a node."""
    return known(node.header.get("period")) or 1.0
