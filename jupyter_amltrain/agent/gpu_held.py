"""Figures of GPUs that hold for the ticks after them, in a telemetry file that is read.

``{"seq": 12, "figures": [...]}`` stands before tick 12: a value of every column of
``gpu_figures`` (header) for the first GPU, then for the second...
"""

from __future__ import annotations

from typing import Any, List, Optional

Value = Optional[float]

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
        self._values: List[Value] = [None] * count
        self._since: Optional[float] = None
        self._new = False

    def take(self, values: Any) -> None:
        """The values of an object; the tick follows."""
        if isinstance(values, list) and len(values) == self.count:
            # A job can write into the file.
            self._values = [x if isinstance(x, (int, float)) and abs(x) < _MAX_VALUE else None for x in values]
            self._new = True

    def at(self, t: float) -> List[Value]:
        """What holds for a tick."""
        if self._new:
            self._since, self._new = t, False
        if self._since is None or not 0 <= t - self._since <= FIGURES_HOLD_S:
            return [None] * self.count
        return self._values
