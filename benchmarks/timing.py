"""Paired timings: rounds alternate between the contenders, figures are medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence


def interleaved(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run every contender once a round, in turn; each returns its own figure."""
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        order = list(contenders)
        if number % 2:
            order.reverse()  # whoever comes second finds warmer caches
        for name in order:
            figures[name].append(contenders[name]())
    return figures


def line(name: str, values: Sequence[float], unit: str) -> str:
    """``name  median (min .. max) unit, n``."""
    middle = statistics.median(values)
    return f"  {name:<34} {middle:10.2f} {unit:<4} ({min(values):.2f} .. {max(values):.2f}, n={len(values)})"


def p95(values: Sequence[float]) -> float:
    """95th percentile, nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def verdict(what: str, ratio: float, goal: float, close: float | None = None) -> str:
    """One line that says whether a ratio met its goal."""
    if ratio <= goal:
        word = "goal met"
    elif close is not None and ratio <= close:
        word = f"goal missed, within the {close:g} to close"
    else:
        word = "MISSED"
    return f"  {what:<58} ratio {ratio:7.3f}   goal <= {goal:g}   {word}"
