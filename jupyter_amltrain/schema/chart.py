"""Charts of a record: everything that a reader sees of them, and the place of their data in the record."""

from __future__ import annotations

from typing import Any

import msgspec

#: Names and positions that lead from a record to one of its series, such as ``("gpu", "gpus", 0, "util")``.
SeriesPath = tuple[str | int, ...]

#: Heights of a chart and of a low one, CSS pixels.
HEIGHT, STRIP_HEIGHT = 132, 56


def values_at(record: Any, path: SeriesPath) -> Any:
    """Return what a path leads to, in a record or in its JSON."""
    for part in path:
        record = getattr(record, str(part)) if isinstance(record, msgspec.Struct) else record[part]
    return record


class Axis(msgspec.Struct, frozen=True):
    """Ends of an axis, and the positions and labels of its ticks."""

    min: float
    max: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]


class ChartSeries(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line.

    Attributes
    ----------
    data
        Path of the values. Live charts find the column of a GPU or host by it.
    color
        Number of a color of the palette.
    style
        ``faint`` (thin, pale and behind the others) or ``dashed``; empty for a line that is read.
    """

    data: SeriesPath
    label: str
    color: int = 0
    style: str = ""


class Level(msgspec.Struct, frozen=True):
    """A dashed line at one height, such as the size of a memory."""

    value: float
    label: str


class Chart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One chart.

    Attributes
    ----------
    key
        Kind and name, such as ``gpu util``, ``host cpu`` and ``metric loss``.
    note
        What else the chart shows; beside the title where there is room.
    value
        Text beside the title: the newest values, or mean or peak of an ended run.
    whole
        Text of the amount that `value` is a part of.
    unit
        ``%``, ``bytes``, ``W``; empty for a number.
    x
        Path of the x values: steps, or unix seconds if `steps` is ``None``. Empty for 0, 1, 2, …
    steps
        Axis of the steps; ``None`` for a chart over time.
    y
        ``None`` without values.
    band
        Path of the ends of a range around the first series, a mapping with ``low`` and ``high``.
    height
        CSS pixels of the drawing with its axes.
    """

    key: str
    title: str
    note: str = ""
    value: str = ""
    whole: str = ""
    unit: str = ""
    x: SeriesPath = ()
    steps: Axis | None = None
    y: Axis | None = None
    series: tuple[ChartSeries, ...] = ()
    band: SeriesPath = ()
    levels: tuple[Level, ...] = ()
    height: int = HEIGHT


class PhaseShade(msgspec.Struct, frozen=True):
    """A phase in which the script did not run; seconds since the start of the charts."""

    name: str
    start: float
    end: float


class ChartMark(msgspec.Struct, frozen=True):
    """A moment of the run that all charts mark by a vertical line.

    Attributes
    ----------
    time
        Unix seconds.
    step
        Its place in charts over steps; ``None``: there it has none.
    label
        Shown on hover.
    """

    time: float
    step: int | None
    label: str


class LegendEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A name in the legend of the GPUs; its place is the number of its color.

    Attributes
    ----------
    help
        Shown on hover.
    """

    label: str
    help: str = ""


class ChartSet(msgspec.Struct, frozen=True, kw_only=True):
    """The charts of a record in their order, and what those over time have in common.

    Attributes
    ----------
    gpus
        Legend of the GPUs that have a line of their own.
    gpus_text
        Number and model of all GPUs.
    start
        Unix seconds at which the charts over time begin.
    time
        Their x axis, in seconds since `start`.
    """

    charts: tuple[Chart, ...] = ()
    gpus: tuple[LegendEntry, ...] = ()
    gpus_text: str = ""
    start: float = 0.0
    time: Axis | None = None
    phases: tuple[PhaseShade, ...] = ()
    marks: tuple[ChartMark, ...] = ()
