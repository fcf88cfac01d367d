"""Reduce samples to minimum, mean and maximum; ``None`` is *unknown* and is ignored.

All charts, minutes and summaries use this rule: the minimum of the minima, the maximum of the maxima, and
the mean weighted by the number of samples. ``kernel/history.py`` applies it to NumPy arrays.
"""

from __future__ import annotations

from typing import Iterable, List, NamedTuple, Optional, Sequence

Value = Optional[float]


class Reduced(NamedTuple):
    """Minimum, mean and maximum of some samples; all ``None`` if no sample is known."""

    low: Value
    mean: Value
    high: Value


_UNKNOWN = Reduced(None, None, None)


def reduce(values: Iterable[Value]) -> Reduced:
    """Reduce samples of equal weight."""
    known = [value for value in values if value is not None]
    return Reduced(min(known), sum(known) / len(known), max(known)) if known else _UNKNOWN


def mean(values: Iterable[Value]) -> Value:
    """Return the mean of the known values."""
    return reduce(values).mean


def highest(values: Iterable[Value]) -> Value:
    """Return the maximum of the known values."""
    return max((value for value in values if value is not None), default=None)


class Reducer:
    """Running sums of the samples of one column; of constant size.

    Attributes
    ----------
    total
        Sum of value x weight.
    weight
        Total weight of the known samples.
    high
        Their maximum.
    """

    __slots__ = ("high", "total", "weight")

    def __init__(self, total: float = 0, weight: float = 0, high: Value = None) -> None:
        self.total, self.weight, self.high = total, weight, high

    def add(self, value: Value, weight: float = 1) -> None:
        """Add a sample."""
        if value is not None:
            self.total += value * weight
            self.weight += weight
            if self.high is None or value > self.high:
                self.high = value

    def add_all(self, values: Iterable[Value], weights: Optional[Sequence[float]] = None) -> None:
        """Add samples, of equal weight unless `weights` are given."""
        if weights is None:
            known = [value for value in values if value is not None]
            self.total += sum(known)
            self.weight += len(known)
        else:
            pairs = [(value, weight) for value, weight in zip(values, weights) if value is not None]
            known = [value for value, _ in pairs]
            self.total += sum(value * weight for value, weight in pairs)
            self.weight += sum(weight for _, weight in pairs)
        self.high = highest((self.high, *known))

    def merge(self, other: Reducer) -> Reducer:
        """Return the reducer of both sets of samples."""
        return Reducer(self.total + other.total, self.weight + other.weight, highest((self.high, other.high)))

    def mean(self, digits: Optional[int] = None) -> Value:
        """Return the mean, rounded to `digits`; ``None`` without a known sample."""
        if not self.weight:
            return None
        value = self.total / self.weight
        return value if digits is None else round(value, digits)

    def state(self) -> List[Value]:
        """Return the values for a file: the arguments of a new reducer."""
        return [self.total, self.weight, self.high]
