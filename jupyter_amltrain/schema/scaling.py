"""A job that is measured at several widths: the limits of each run, and its throughput."""

from __future__ import annotations

import msgspec

#: What a width counts, with its singular.
UNITS = {"processes": "process", "nodes": "node"}


class ScalingSlice(msgspec.Struct, frozen=True, kw_only=True):
    """One width of a measurement: the run ends by itself after some seconds or steps.

    Attributes
    ----------
    group
        Id that the runs of one submit have in common.
    unit
        ``processes`` or ``nodes``.
    width, widths
        Number of them in this run, and in all runs of the submit.
    seconds
        Run time after the first point of a metric, so that the start does not count.
    steps
        Steps after the first one that is logged; 0 for no limit.
    start_s
        Run time without a metric after which the run ends.
    price
        Per hour, of all machines of this width; ``None`` if nothing is charged or the price is not known.
    """

    group: str
    unit: str = "processes"
    width: int
    widths: tuple[int, ...]
    seconds: float
    steps: int = 0
    start_s: float
    price: float | None = None
    currency: str = ""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of one width.

    Attributes
    ----------
    rate
        Per second; ``None`` with a `problem`, unless it is ``noisy``.
    counted
        What `rate` counts: ``samples``, ``images``, ..., or ``steps``.
    metric
        Name of the metric that was read.
    error
        Relative standard error of `rate`.
    points
        Points of the metric after the warm-up.
    whole
        Whether the metrics cover the time or the steps of the slice.
    problem
        Empty, or why the width cannot be compared: ``none`` (no metric with steps), ``few`` (points),
        ``ranks`` (each process logs), ``noisy``.
    """

    slice: ScalingSlice
    rate: float | None = None
    counted: str = ""
    metric: str = ""
    error: float = 0.0
    points: int = 0
    whole: bool = False
    problem: str = "none"
