"""Which numbers of a driver are readings: a sentinel or an impossible one is none.

A driver that has no value answers with all bits set, or with rubbish while it is in trouble.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, List, Optional, Tuple

#: "No value" in 32 and in 64 bits (NVML_VALUE_NOT_AVAILABLE).
ALL_ONES_32, ALL_ONES_64 = (1 << 32) - 1, (1 << 64) - 1
NO_VALUE = frozenset({ALL_ONES_32, ALL_ONES_64})
MAX_PERCENT = 100
#: A pebibyte.
MAX_BYTES = 1 << 50

Value = Optional[float]


def number(value: int, most: Optional[float] = None) -> Optional[int]:
    """The value, or ``None`` for a sentinel and for more than `most`."""
    return None if value in NO_VALUE or (most is not None and value > most) else value


# A tick converts arrays; where no value is too large, as nearly always, C does the work.


def percents(values: Any) -> List[Optional[int]]:
    """Utilizations, percent, of an array."""
    return _up_to(MAX_PERCENT, values)


def converter(divisor: int, maximum: float, values: Any) -> Callable[[], List[Any]]:
    """Return what divides the numbers of an array by `divisor` at each call; ``None`` for a sentinel."""
    return partial(_up_to if divisor == 1 else partial(_scaled, divisor), maximum, values)


def _scaled(divisor: int, maximum: float, values: Any) -> List[Any]:
    """Divide; a result under 100 that is not whole gets one decimal."""
    exact, half = 100 * divisor, divisor // 2
    return [
        (value + half) // divisor if exact <= value <= maximum
        else round(value / divisor, 1) if value < exact
        else None
        for value in values
    ]  # fmt: skip


def _up_to(most: float, values: Any) -> List[Optional[int]]:
    found: List[Optional[int]] = values.tolist()
    return found if max(values) <= most else [value if value <= most else None for value in values]


def mebibytes(used: int, total: int) -> Optional[int]:
    """Memory in use, from bytes; more than there is is no reading."""
    return used >> 20 if 0 <= used <= total <= MAX_BYTES and total else None


def all_mebibytes(used: Any, total: Any) -> List[Optional[int]]:
    """Memories in use, from arrays of bytes; see :func:`mebibytes`."""
    if max(used) <= min(total) and min(total) > 0 and max(total) <= MAX_BYTES:
        return [value >> 20 for value in used]
    return [mebibytes(*pair) for pair in zip(used, total)]


def size_mebibytes(size: int) -> Optional[int]:
    """A size in MiB, from bytes."""
    return size >> 20 if 0 <= size <= MAX_BYTES else None


def memory(total: Optional[int], used: Optional[int]) -> Tuple[Optional[int], Optional[int]]:
    """Size and use of a device's memory, bytes; ``None`` each where it cannot be."""
    if total is None or not 0 < total <= MAX_BYTES:
        return None, None
    return total, used if used is not None and 0 <= used <= total else None
