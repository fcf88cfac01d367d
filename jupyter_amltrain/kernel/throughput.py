"""Throughput of a run from its metrics: which metric tells it, and its figure after the warm-up."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from jupyter_amltrain.kernel.streams import Metric
from jupyter_amltrain.schema.scaling import Measurement, ScalingSlice

STEPS = "steps"
#: Units of throughput, most informative first.
_RATE_UNITS = (
    ("samples", r"samples?|examples?|items?"),
    ("images", r"images?|imgs?"),
    ("sequences", r"sequences?|seqs?|sentences?"),
    ("frames", r"frames?"),
    ("tokens", r"tokens?|toks?"),
    ("batches", r"batch(?:es)?"),
    (STEPS, r"steps?|it|its|iters?|iterations?"),
)
_PER_SECOND = r"_?(?:per_?(?:s|sec|secs|second|seconds)|_s|_sec|_second|ps)$"
_RATES = [(unit, re.compile(rf"(?:^|_)(?:{words}){_PER_SECOND}")) for unit, words in _RATE_UNITS]
_PLAIN = re.compile(r"(?:^|_)throughput$")
#: Names of evaluation metrics, whose rates do not describe training.
_NOT_TRAINING = re.compile(r"(?:^|_)(?:eval|valid|validation|val|test|predict)_")
#: Names of rates of one of the processes.
_OF_PART = re.compile(r"(?:^|_)(?:per_)?(?:device|gpu|rank|worker)(?:_|$)")

#: Part of the points that are warm-up, and the least number of them; the first steps compile, allocate and fill caches.
WARM_UP_PART, WARM_UP_POINTS = 0.2, 2
#: Points after the warm-up that a figure needs.
MIN_POINTS = 5
#: Relative standard error above which a figure is noisy.
MAX_ERROR = 0.1
#: Part of the time of a slice that its metrics must cover; the last point comes a little before the end.
_WHOLE_PART = 0.9
#: Parts of a slice whose figures are compared for its error.
_BLOCKS = 5
#: Points for each step from which on each process is assumed to log.
_MANY_PER_STEP = 1.5


class RateName(NamedTuple):
    """What the name of a metric says about its value; a smaller `rank` is more informative."""

    rank: int
    counted: str
    of_part: bool = False


def rate_name(name: str) -> RateName | None:
    """Return what a metric counts per second of training; ``None`` if its name does not say so.

    `counted` is empty for a name such as ``throughput``.
    """
    plain = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_")
    if _NOT_TRAINING.search(plain):
        return None
    of_part = bool(_OF_PART.search(plain))
    rank = next((k for k, (_, pattern) in enumerate(_RATES) if pattern.search(plain)), None)
    if rank is not None:
        return RateName(rank, _RATES[rank][0], of_part)
    return RateName(len(_RATES), "", of_part) if _PLAIN.search(plain) else None


def throughput_text(values: Mapping[str, float | str | None]) -> str:
    """Return ``412 samples/s``; empty if no such metric is logged.

    Parameters
    ----------
    values
        Last value of each metric, by name.
    """
    best: tuple[int, str] | None = None
    for name, value in values.items():
        rate = rate_name(name)
        if rate is None or not isinstance(value, (int, float)) or not value > 0:
            continue
        words = f"{rate_text(value)} {rate.counted}/s" if rate.counted else f"throughput {rate_text(value)}"
        if best is None or rate.rank < best[0]:
            best = (rate.rank, words)
    return best[1] if best else ""


def rate_text(value: float) -> str:
    """Return three significant digits: ``3.21``, ``12,345``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def measure(metrics: Mapping[str, Metric], measured: ScalingSlice) -> Measurement:
    """Return the throughput of a run.

    The most informative rate that the script logs often enough decides (``samples_per_second``); without one, the
    steps per second of the metric with the most steps.
    """
    figures = list(_figures(metrics))
    if not figures:
        return Measurement(slice=measured)
    # A summary at the end is a rate, too, and has one point.
    name, counted, found = next((figure for figure in figures if figure[2].problem != "few"), figures[0])
    problem = found.problem
    if not problem and measured.width > 1 and _each_process_logs(metrics[name]):
        problem = "ranks"
    return Measurement(
        slice=measured,
        rate=found.rate,
        counted=counted,
        metric=name[:250],
        error=found.error,
        points=found.points,
        whole=is_whole(metrics, measured),
        problem=problem,
    )


def is_whole(metrics: Mapping[str, Metric], measured: ScalingSlice) -> bool:
    """Return whether the metrics cover the time or the steps of a slice."""
    spans = [metric for metric in metrics.values() if len(metric.times) > 1]
    return any(
        metric.times[-1] - metric.times[0] >= measured.seconds * _WHOLE_PART
        or 0 < measured.steps <= max(metric.steps) - metric.steps[0]
        for metric in spans
    )


class _Figure(NamedTuple):
    rate: float | None
    error: float
    points: int
    problem: str


def _figures(metrics: Mapping[str, Metric]) -> Iterator[tuple[str, str, _Figure]]:
    """Yield metric, what it counts and figure of each way to tell the throughput, the most informative one first."""
    named = {name: rate_name(name) for name in metrics}
    rates = [
        (rate.rank, -len(metrics[name].values), name, rate.counted or "units")
        for name, rate in named.items()
        if rate is not None and not rate.of_part and len(_known(metrics[name]))
    ]
    for _, _, name, counted in sorted(rates):
        yield name, counted, _of_values(_known(metrics[name]))
    stepped = [
        (len({step for step, _ in _counted_on(metric)}), name)
        for name, metric in metrics.items()
        if named[name] is None and not _NOT_TRAINING.search(name.lower())
    ]
    if stepped and max(stepped)[0] >= 2:
        name = max(stepped)[1]
        yield name, STEPS, _of_steps(metrics[name])


def _counted_on(metric: Metric) -> list[tuple[int, float]]:
    """Return step and time of the points in order of time; steps that start again in each epoch are counted on."""
    points: list[tuple[int, float]] = []
    first = last = offset = 0
    stride = 1
    for time, step in sorted(zip(metric.times, metric.steps, strict=True), key=lambda point: point[0]):
        if not points:
            first = step
        elif step < last and step <= first:
            offset += last + stride - step
            first = step
        elif step > last:
            stride = step - last
        last = step
        points.append((step + offset, time))
    return points


def _known(metric: Metric) -> list[float]:
    return [value for value in metric.values if math.isfinite(value) and value > 0]


def _each_process_logs(metric: Metric) -> bool:
    steps = len({step for step, _ in _counted_on(metric)})
    return steps > 1 and len(metric.steps) / steps >= _MANY_PER_STEP


def _warm_up(points: int) -> int:
    return max(WARM_UP_POINTS, math.ceil(points * WARM_UP_PART))


def _of_values(values: Sequence[float]) -> _Figure:
    """Median of a logged rate."""
    values = values[_warm_up(len(values)) :]
    n = len(values)
    if n < MIN_POINTS:
        return _Figure(None, 0.0, n, "few")
    cuts = _cuts(n)
    return _figure(statistics.median(values), [statistics.median(values[a:b]) for a, b in cuts], n)


def _of_steps(metric: Metric) -> _Figure:
    """Steps per second, from the times of the points."""
    points = dict(_counted_on(metric))  # of a step that is logged twice, its last time
    steps, times = list(points), list(points.values())
    first = _warm_up(len(steps))
    steps, times = steps[first:], times[first:]
    n = len(steps)
    if n < MIN_POINTS or times[-1] <= times[0] or steps[-1] <= steps[0]:
        return _Figure(None, 0.0, n, "few")
    # A block ends where the next one begins: the intervals count, not the points.
    parts = [(steps[b] - steps[a]) / (times[b] - times[a]) for a, b in _cuts(n - 1) if times[b] > times[a]]
    return _figure((steps[-1] - steps[0]) / (times[-1] - times[0]), parts, n)


def _cuts(n: int) -> list[tuple[int, int]]:
    blocks = min(_BLOCKS, n)
    return [(n * k // blocks, n * (k + 1) // blocks) for k in range(blocks)]


def _figure(rate: float, parts: Sequence[float], points: int) -> _Figure:
    error = statistics.stdev(parts) / math.sqrt(len(parts)) / rate if len(parts) > 1 else 0.0
    return _Figure(rate, error, points, "noisy" if error > MAX_ERROR else "")
