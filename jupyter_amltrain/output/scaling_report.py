"""Whether more processes or machines pay: speed-up, efficiency and cost of each width, and a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from jupyter_amltrain.kernel.throughput import MIN_POINTS, STEPS, rate_text
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.scaling import UNITS, Measurement
from jupyter_amltrain.text import counted

#: Efficiency from which a width is worth its price, and below which it does not pay.
WORTH, POOR = 0.7, 0.5
#: Speed-up below which nothing is gained, whatever the noise.
GAIN = 1.05
#: Steps per second that are this much faster cannot come from a smaller batch for each process alone.
_FASTER_STEPS = 1.15
#: What a script logs so that widths can be compared.
LOG_LINE = 'mlflow.log_metric("samples_per_second", samples_of_all_processes / seconds, step=step)'
_BATCH_DEPENDS = frozenset((STEPS, "batches"))


class Width(NamedTuple):
    """One width, compared with the smallest one.

    Attributes
    ----------
    measurement
        ``None`` if its run has not ended, or has not completed.
    speedup, efficiency
        ``None`` where they cannot be compared.
    cost
        Of 1,000 of what is counted; ``None`` without a price.
    """

    width: int
    state: str
    measurement: Measurement | None = None
    speedup: float | None = None
    efficiency: float | None = None
    cost: float | None = None


class ScalingReport(NamedTuple):
    """The widths of one submit.

    Attributes
    ----------
    verdict
        Sentences; empty before two widths have ended.
    best
        The width to use; ``None`` where no figure shows it.
    """

    unit: str
    counted: str
    currency: str
    widths: tuple[Width, ...]
    verdict: tuple[str, ...]
    best: int | None

    @property
    def titles(self) -> tuple[str, ...]:
        """Titles of the columns of :meth:`values`."""
        cost = (f"{self.currency} per 1,000 {self.counted}".lstrip(),) if self._has_cost else ()
        return (self.unit, f"{self.counted or 'steps'}/s", "speed-up", "efficiency", *cost)

    @property
    def _has_cost(self) -> bool:
        return any(width.cost is not None for width in self.widths)

    def values(self, width: Width) -> tuple[str, ...]:
        """Return the texts of a row; empty where nothing is known."""
        rate = width.measurement.rate if width.measurement is not None else None
        cost = ("" if width.cost is None else f"{width.cost:.3g}",) if self._has_cost else ()
        return (
            str(width.width),
            "" if rate is None else rate_text(rate),
            "" if width.speedup is None else _times(width.speedup),
            "" if width.efficiency is None else _percent(width.efficiency),
            *cost,
        )


def is_scaling(records: Sequence[RunRecord]) -> bool:
    """Whether the runs are the widths of one measurement."""
    groups = {record.scaling.slice.group if record.scaling is not None else "" for record in records}
    return len(groups) == 1 and "" not in groups


def scaling_report(records: Sequence[RunRecord]) -> ScalingReport:
    """Return the report about the runs of one measurement, by increasing width."""
    rows = sorted(
        ((record, record.scaling) for record in records if record.scaling is not None), key=lambda r: r[1].slice.width
    )
    states = [_measured_state(record) for record, _ in rows]
    ended = [
        (state, found.slice.width, found if state == "completed" else None)
        for state, (_, found) in zip(states, rows, strict=True)
    ]
    return _report(ended, found=rows[0][1])


def _measured_state(record: RunRecord) -> str:
    """Return the state of a run; one that was canceled after its whole slice is as good as completed."""
    is_whole = record.scaling is not None and record.scaling.whole
    return "completed" if record.state == "canceled" and is_whole else record.state


def _report(ended: Sequence[tuple[str, int, Measurement | None]], found: Measurement) -> ScalingReport:
    unit, counted = found.slice.unit, next((m.counted for _, _, m in ended if m is not None and m.counted), "")
    base = ended[0][2]
    widths = tuple(_width(state, width, measured, base) for state, width, measured in ended)
    verdict, best = _verdict(widths, unit)
    return ScalingReport(unit, counted, found.slice.currency, widths, verdict, best)


def _width(state: str, width: int, measured: Measurement | None, base: Measurement | None) -> Width:
    if measured is None or measured.rate is None:
        return Width(width, state, measured)
    price = measured.slice.price
    cost = price / 3600 / measured.rate * 1000 if price else None
    if base is None or base.rate is None or base.counted != measured.counted:
        return Width(width, state, measured, cost=cost)
    speedup = measured.rate / base.rate
    return Width(width, state, measured, speedup, speedup * base.slice.width / width, cost)


def _verdict(widths: Sequence[Width], unit: str) -> tuple[tuple[str, ...], int | None]:
    broken = next((width for width in widths if width.state in ("failed", "lost", "canceled")), None)
    ended = [width for width in widths if width.state == "completed"]
    problem = next((text for width in ended if (text := _problem(width, unit)) and not _is_clear(ended, width)), "")
    left = [str(width.width) for width in widths if width.measurement is None and width is not broken]
    if broken is not None:
        more = f"; {_and(left)} {'was' if len(left) == 1 else 'were'} not measured" if left else ""
        problem_words = [problem] if problem else []
        stopped = f"The measurement ended: the run with {_count(broken.width, unit)} {_how(broken.state)}{more}."
        return (*problem_words, *([] if problem and broken.state == "canceled" else [stopped])), None
    if problem:
        return (problem,), None
    if len(ended) < 2:
        return (), None
    if different := _incomparable(ended, unit):
        return (different,), None
    sentences = [_compared(ended, k, unit) for k in range(1, len(ended))]
    if len(ended) < len(widths):
        return tuple(sentences), None
    best = _best(ended)
    flag = "--processes" if unit == "processes" else "--nodes"
    base = ended[0].width
    advice = f"Use {flag} {best}." if best != 1 else f"Stay with {_count(1, unit)}."
    if best == base != 1:
        advice = f"Use {flag} {base}, or measure fewer."
    return (*sentences, advice, *_assumption(ended, unit)), best


def _problem(width: Width, unit: str) -> str:
    """Return why a width cannot be compared, and what to do."""
    found = width.measurement
    if found is None or not found.problem:
        return ""
    runs = f"the run with {_count(width.width, unit)}"
    longer = f"Measure longer: --scaling-time {math.ceil(found.slice.seconds * 5)}s"
    if found.problem == "none":
        return f"Cannot tell: {runs} logged no metric with steps. Let rank 0 log one: {LOG_LINE}"
    if found.problem == "few":
        return (
            f"Cannot tell: {runs} logged {counted(found.points, 'point')} of {found.metric} after"
            f" the warm-up, at least {MIN_POINTS} are needed. {longer}, or log more often."
        )
    if found.problem == "ranks":
        return (
            f"Cannot tell: in {runs} each process logs {found.metric}, as if each did the whole work."
            f" Share the data by rank, and let rank 0 log the samples of all: {LOG_LINE}"
        )
    return (
        f"Cannot tell: the speed of {runs} varies too much (standard error {_percent(found.error)} of"
        f" {rate_text(found.rate or 0.0)} {found.counted}/s). {longer}"
    )


def _is_clear(ended: Sequence[Width], noisy: Width) -> bool:
    """Return whether a width whose figure is noisy is no faster whatever the noise, so that it needs no longer run."""
    base = ended[0]
    others = ended[1:] if noisy is base else [noisy]
    return bool(others) and all(_is_no_gain(base, other) for other in others)


def _incomparable(ended: Sequence[Width], unit: str) -> str:
    """Return why the figures of two widths do not mean the same; empty if they do."""
    kinds = {width.measurement.counted for width in ended if width.measurement is not None}
    if len(kinds) > 1:
        things = ", ".join(sorted(kinds))
        return f"Cannot tell: the widths count different things ({things}). Log the same metric in all."
    if not kinds <= _BATCH_DEPENDS:
        return ""
    for width in ended[1:]:
        if width.speedup is not None and width.speedup < _FASTER_STEPS:
            most = _times(width.speedup * width.width / ended[0].width)
            return (
                f"Cannot tell: {_times(width.speedup)} times the steps per second with {_count(width.width, unit)} is"
                f" no gain if a step has the same samples, and {most} times as fast if the batch has grown with the"
                f" {unit}. Log the samples: {LOG_LINE}"
            )
    return ""


def _compared(ended: Sequence[Width], k: int, unit: str) -> str:
    base, before, width = ended[0], ended[k - 1], ended[k]
    speedup, efficiency = width.speedup or 0.0, width.efficiency or 0.0
    head = f"{_count(width.width, unit)} {'is' if width.width == 1 else 'are'}"
    if not is_gain(base, width):
        return f"{head} no faster than {base.width} ({_times(speedup)} times): do not distribute."
    fast = f"{head} {_times(speedup)} times as fast as {base.width} ({_percent(efficiency)} efficient)"
    if efficiency >= WORTH:
        return f"{fast}: worth it."
    wasted = 1 - (speedup - (before.speedup or 0.0)) / ((width.width - before.width) / base.width)
    share = f"{_percent(min(1.0, max(0.0, wasted)))} of the further {width.width - before.width} is wasted"
    if efficiency >= POOR:
        return f"{fast}: only if time matters more than money; {share}."
    return f"{fast}: does not pay; {share}."


def is_gain(slower: Width, faster: Width) -> bool:
    """Whether one width is faster than another by more than the noise."""
    a, b = slower.measurement, faster.measurement
    if a is None or b is None or not a.rate or not b.rate:
        return False
    ratio = b.rate / a.rate
    return ratio >= max(GAIN, 1 + 2 * math.hypot(a.error, b.error) * ratio)


def _is_no_gain(slower: Width, faster: Width) -> bool:
    """Whether one width is no faster than another even if the noise hides the most that it can."""
    a, b = slower.measurement, faster.measurement
    if a is None or b is None or not a.rate or not b.rate or {a.problem, b.problem} - {"", "noisy"}:
        return False
    return b.rate / a.rate * (1 + 2 * math.hypot(a.error, b.error)) < GAIN


def _best(ended: Sequence[Width]) -> int:
    """Return the greatest efficient width that is faster than the next smaller one of these."""
    best = ended[0]
    for width in ended[1:]:
        if (width.efficiency or 0.0) >= WORTH and is_gain(best, width):
            best = width
    return best.width


def _assumption(ended: Sequence[Width], unit: str) -> tuple[str, ...]:
    measured = ended[0].measurement
    if measured is not None and measured.counted in _BATCH_DEPENDS:
        return (f"This holds if a step has the same samples at each width; to be sure log {LOG_LINE}",)
    if unit == "processes" and measured is not None and measured.slice.price:
        return ("The machine costs the same with any number of processes.",)
    return ()


def _how(state: str) -> str:
    return {"canceled": "was canceled", "lost": "was lost"}.get(state, "failed")


def _count(width: int, unit: str) -> str:
    return f"{width} {UNITS[unit] if width == 1 else unit}"


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _times(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _percent(value: float) -> str:
    return f"{value:.0%}".replace("%", " %")
