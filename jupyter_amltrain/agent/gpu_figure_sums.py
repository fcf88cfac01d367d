"""Means of a run's GPU figures, and for how many seconds its GPUs were throttled."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

#: Of each figure the sum of value x seconds, and the seconds in which it was told.
Sums = Dict[str, List[float]]
_THROTTLED = "throttled_"


def add(sums: Sums, pauses: Sequence[float], columns: Mapping[str, Sequence[Any]]) -> None:
    """Add ticks.

    Parameters
    ----------
    pauses
        Seconds of each tick; 0 for one that stands for no time.
    columns
        Values of each figure, by tick.
    """
    for name, values in columns.items():
        row = sums.setdefault(name, [0.0, 0.0])
        for pause, value in zip(pauses, values):
            if value is not None:
                row[0] += value * pause
                row[1] += pause


def results(sums: Sums) -> Dict[str, Any]:
    """``<figure>_mean``, and ``throttled_power_s`` and ``throttled_heat_s`` in seconds; ``None``: never told."""
    found: Dict[str, Any] = {}
    for name, (total, seconds) in sums.items():
        if name.startswith(_THROTTLED):
            found[name + "_s"] = round(total / 100, 1) if seconds else None
        else:
            found[name + "_mean"] = round(total / seconds, 1) if seconds else None
    return found
