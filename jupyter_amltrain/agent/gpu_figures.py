"""Figures of the GPUs that are means over some seconds: activity, transfers, throttling.

They come every :data:`FIGURES_PERIOD_S` seconds, in an object of the telemetry file
beside the tick: ``{"seq": 12, "figures": [...]}`` has a value of every column of
``gpu_figures`` (header) for the first GPU, then for the second... They hold until the next
object; see ``gpu_held``.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from . import clock, gpu_activity, gpu_throttling, gpu_transfers
from .gpu_columns import FIGURES, unit_of
from .gpu_readings import GpuReadings, Value
from .gpu_slow import NvmlGauges

#: Seconds between two readings.
FIGURES_PERIOD_S = 5.0
#: Seconds from the start to the first reading.
_FIRST_S = 1.0


class _Gauges:
    """Figures that one NVML function each returns."""

    def __init__(self, readings: GpuReadings) -> None:
        columns = [(column.name, column.nvml) for column in FIGURES if column.nvml is not None]
        self.NAMES = tuple(name for name, _ in columns)
        self._gauges = NvmlGauges(readings, [how for _, how in columns if how is not None])

    def tells(self, i: int) -> List[bool]:
        """Which columns a GPU can tell."""
        return [value is not None for value in self.read(i)]

    def read(self, i: int) -> List[Value]:
        """Values of one GPU in the order of :attr:`NAMES`."""
        return self._gauges.read(i) if self.NAMES else []


class GpuFigures:
    """Figures of the GPUs of `readings`.

    Parameters
    ----------
    columns
        Names that the file has already; ``None``: what the devices can tell.
    """

    def __init__(self, readings: GpuReadings, columns: Optional[Sequence[str]] = None) -> None:
        self.readings = readings
        sources: List[Any] = [
            gpu_activity.Activity(readings), gpu_transfers.Transfers(readings), gpu_throttling.Throttling(readings),
            _Gauges(readings),
        ]  # fmt: skip
        names = [name for source in sources for name in source.NAMES]
        count = len(readings.gpus)
        told = [[told for source in sources for told in source.tells(i)] for i in range(count)]
        if columns is None:
            known = {name for at, name in enumerate(names) if any(row[at] for row in told)}
            columns = [column.name for column in FIGURES if column.name in known]
        self.columns: List[Tuple[str, str]] = [(name, unit_of(name)) for name in columns]
        self._at = [names.index(name) if name in names else -1 for name in columns]
        self._sources = sources if self.columns else []
        self._due = clock.mono() + _FIRST_S
        self._values: List[Value] = [None] * (len(self.columns) * count)
        self._written: Optional[List[Value]] = list(self._values)

    def read(self) -> Optional[List[Value]]:
        """The values of every GPU, one list, when they are due and one has changed since they were written."""
        now = clock.mono()
        if not self._sources or now < self._due:
            return self._values if self._written is None else None
        self._due = now + FIGURES_PERIOD_S - 0.05  # a tick comes a little early or late
        values: List[Value] = []
        for i in range(len(self.readings.gpus)):
            row = [value for source in self._sources for value in source.read(i)]
            values += [row[at] if at >= 0 else None for at in self._at]
        self._values = values
        return None if values == self._written else values

    def held(self) -> List[Value]:
        """What counts now."""
        return self._values

    def written(self, values: Sequence[Value]) -> None:
        """These values are in the file."""
        self._written = list(values)

    def forget(self) -> None:
        """Tell the values again: a reader may begin here."""
        self._written = None
