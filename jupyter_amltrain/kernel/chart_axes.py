"""Axes of charts: round limits, ticks and their labels.

Live charts follow their data in the page, so ``labextension/src/charts/scale.ts`` has the same rules;
``tests/golden/axes.json`` pins both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from jupyter_amltrain.schema.chart import Axis

#: Intervals of an axis with round limits; ticks of a metric's axis; ticks of an axis of time or steps.
_INTERVALS, _METRIC_TICKS, X_TICKS = 3, 5, 4

#: Part of a metric's range that is left free above and below its line.
_AIR = 0.05

_STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)

_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

#: Longer units do not fit beside an axis; the title has them.
_MAX_UNIT_CHARS = 3


def _digits(value: float, digits: int = 12) -> float:
    """Round to significant digits: ``3 * 0.1`` is 0.30000000000000004."""
    return float(f"{value:.{digits}g}")


def round_ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """Return about `count` ticks at multiples of 1, 2 or 5 x 10^k between `low` and `high`."""
    span = high - low
    if not (0 < span < math.inf):
        return [low]
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor for factor in (1, 2, 5, 10) if factor == 10 or factor * power >= raw * 0.999) * power
    if whole:
        step = max(1.0, math.floor(step + 0.5))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [_digits(i * step) for i in range(first, last + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """Return labels with as many digits as tell the ticks apart and make them true."""
    size = max(map(abs, values), default=0.0)
    error = 1e-3 * min([abs(b - a) for a, b in zip(values, values[1:], strict=False)] + [size or 1.0])
    far = size >= 1e6 or 0 < size < 1e-3

    def text(value: float, digits: int) -> str:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        if far and value:
            return f"{float(mantissa):g}e{int(power)}"
        return f"{_digits(value, digits):.15g}"

    for digits in range(1, 15):
        labels = [text(value, digits) for value in values]
        if all(abs(float(label) - value) <= error for label, value in zip(labels, values, strict=True)):
            return labels
    return [f"{value:.15g}" for value in values]


def with_unit(labels: Sequence[str], unit: str) -> tuple[str, ...]:
    """Return labels with their unit, if it is short."""
    return tuple(f"{label} {unit}" if 0 < len(unit) <= _MAX_UNIT_CHARS else label for label in labels)


def ends_only(axis: Axis) -> Axis:
    """Return the axis of a low chart, which has room for two ticks."""
    return Axis(axis.min, axis.max, (axis.ticks[0], axis.ticks[-1]), (axis.labels[0], axis.labels[-1]))


def round_axis(high: float, unit: str = "") -> Axis:
    """Return the axis of a quantity from zero: a round upper end, marked there and between."""
    base, one = (2.0**20 if unit == "MiB" else 1.0), 1.0
    if unit in ("bytes", "MiB"):
        power = max(0, math.floor(math.log2(high * base or 1) / 10))
        one, unit = 1024.0**power / base, _BYTE_UNITS[power]
    top = _round_limit(high / one)
    ticks = [_digits(i * top / _INTERVALS) for i in range(_INTERVALS + 1)]
    return Axis(0.0, top * one, tuple(tick * one for tick in ticks), with_unit(tick_labels(ticks), unit))


def _round_limit(high: float) -> float:
    height = high if high > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(height / _INTERVALS))
    steps = [factor * scale * power for scale in (1, 10) for factor in _STEPS]
    return _digits(_INTERVALS * next(step for step in steps if _INTERVALS * step >= height - 1e-9 * height))


def limit_axis(limit: float, unit: str, air: float = 0.0) -> Axis:
    """Return the axis from zero of a quantity with a known maximum, with `air` above it."""
    if unit == "bytes":
        step = 2.0 ** math.ceil(math.log2(max(limit / 4, 1)))
        ticks = [i * step for i in range(int(limit / step) + 1)]
        power = int(math.log2(step) / 10)
        return Axis(0.0, limit * (1 + air), tuple(ticks), _byte_labels(ticks, power))
    ticks = [0.0, 25.0, 50.0, 75.0, 100.0] if limit == 100 else round_ticks(0, limit, _INTERVALS)
    return Axis(0.0, limit * (1 + air), tuple(ticks), with_unit(tick_labels(ticks), unit))


def _byte_labels(ticks: Sequence[float], power: int) -> tuple[str, ...]:
    return with_unit([f"{tick / 1024**power:g}" for tick in ticks], _BYTE_UNITS[power])


def metric_axis(low: float, high: float, is_log: bool = False) -> Axis:
    """Return the axis of a metric: the data with a little air, round ticks inside.

    Parameters
    ----------
    is_log
        Whether the values are powers of ten.
    """
    is_flat = high <= low
    half = (abs(low) * 0.1 or 1.0) if is_flat else 0.0
    bottom, top = low - half, high + half
    air = _AIR * (top - bottom)
    bottom, top = bottom - air, top + air
    ticks = [low] if is_flat else _log_ticks(bottom, top) if is_log else round_ticks(bottom, top, _METRIC_TICKS)
    labels = [tick_labels([10.0**tick])[0] for tick in ticks] if is_log else tick_labels(ticks)
    return Axis(bottom, top, tuple(ticks), tuple(labels))


def _log_ticks(low: float, high: float) -> list[float]:
    """Return ticks between two powers of ten: at whole powers, with few of these also at 2 and 5 times them."""
    whole = round_ticks(low, high, _METRIC_TICKS, whole=True)
    if len(whole) > 2:
        return whole
    powers = range(math.floor(low), math.ceil(high) + 1)
    fine = [tick for power in powers for factor in (1, 2, 5) if low <= (tick := power + math.log10(factor)) <= high]
    if len(fine) > 1:
        return fine
    return [math.log10(_digits(10.0**tick, 2)) for tick in round_ticks(low, high, _METRIC_TICKS - 2)]


def step_axis(first: float, last: float) -> Axis:
    """Return the axis of steps; a single step is in the middle."""
    if last <= first:
        return Axis(first - 1, first + 1, (first,), tuple(tick_labels([first])))
    ticks = round_ticks(first, last, X_TICKS, whole=True)
    return Axis(first, last, tuple(ticks), tuple(tick_labels(ticks)))


def time_axis(seconds: float) -> Axis:
    """Return the axis of the time since a start, marked at times of a clock."""
    raw = seconds / X_TICKS
    step = next((s for s in _SECONDS if s >= raw), math.ceil(raw / 86400) * 86400)
    ticks = [float(i * step) for i in range(math.floor(seconds / step + 1e-9) + 1)]
    return Axis(0.0, seconds, tuple(ticks), tuple(map(clock, ticks)))


def clock(seconds: float) -> str:
    """Return a time as ``0:05``, ``12:30`` or ``1:02:03``."""
    minutes, whole = divmod(math.floor(max(0.0, seconds) + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


# -- values


def number_text(value: float | str | None) -> str:
    """Return four significant digits, and an exponent only where the result is shorter; texts as they are."""
    if value is None or isinstance(value, str):
        return value or "–"
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if value == 0 or (value == math.floor(value) and size < 1e6):
        return f"{value:.0f}"
    if size >= 1e6 or size < 1e-4:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{mantissa}e{int(power):+d}"
    return f"{_digits(value, 4):.15g}"


def amount_text(value: float, unit: str) -> str:
    """Return a value with its unit: ``87 %``, ``39.8 GiB``, ``350 W``."""
    if unit != "bytes":
        return f"{math.floor(value + 0.5)} {unit}" if unit else number_text(value)
    power, value = 0, max(0.0, value)
    while value >= 999.5 and power < len(_BYTE_UNITS) - 1:
        power, value = power + 1, value / 1024
    digits = max(0, 3 - len(str(int(value)))) if power else 0
    return f"{re.sub(r'[.]0+$', '', f'{value:.{digits}f}')} {_BYTE_UNITS[power]}"
