"""Small charts of a record's picture, and the sheet that they are put on.

Positions are CSS pixels from the top left, as in a page; Matplotlib's own count from
the bottom in fractions, which is kept in here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_amltrain.widgets.palette import BLUE, GRID, INK, SHADE, SOFT, TEAL

Record = dict[str, Any]

#: CSS pixels: the picture's width, its margin, and the height of a row of charts.
WIDTH, MARGIN, ROW = 760, 14, 128
COLUMNS = 3
#: Metrics in a picture.
METRICS = 6


class Sheet:
    """A Matplotlib figure of :data:`WIDTH` x `height` CSS pixels, `scale` pixels each."""

    def __init__(self, height: float, scale: float) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.height = height
        self.figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=100 * scale, facecolor="white")
        self.canvas: Any = FigureCanvasAgg(self.figure)

    def text(
        self, x: float, y: float, text: str, size: float = 7.5, color: str = SOFT, **more: Any
    ) -> tuple[Any, float]:
        """Write a line whose middle is at `y`; the text and where it ends (x)."""
        drawn = self.figure.text(
            x / WIDTH, 1 - y / self.height, text, size=size, color=color, va="center", parse_math=False, **more
        )
        box = drawn.get_window_extent(self.canvas.get_renderer())
        return drawn, float(box.x1 / self.figure.bbox.width * WIDTH)

    def axes(self, x: float, y: float, width: float, height: float) -> Any:
        """Axes over a rectangle whose top left corner is (`x`, `y`)."""
        box = (x / WIDTH, 1 - (y + height) / self.height, width / WIDTH, height / self.height)
        return self.figure.add_axes(box)

    def box(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """A filled rectangle."""
        from matplotlib.patches import Rectangle

        corner = (x / WIDTH, 1 - (y + height) / self.height)
        self.figure.add_artist(
            Rectangle(corner, width / WIDTH, height / self.height, facecolor=color, edgecolor="none")
        )


@dataclass(frozen=True)
class Span:
    """The time axis that all charts of a record share.

    Attributes
    ----------
    start
        Unix seconds of its zero.
    length
        Seconds.
    shades
        Stretches (seconds from the start) in which the script did not run.
    """

    start: float
    length: float
    shades: tuple[tuple[float, float], ...] = ()

    def seconds(self, times: Sequence[Any]) -> list[float]:
        """Unix seconds -> seconds from the start."""
        return [number(t) - self.start for t in times]


@dataclass(frozen=True)
class Chart:
    """One small chart.

    Attributes
    ----------
    title, value
        Above it, left and right.
    unit
        ``step`` (an x of steps, any y), or ``percent``, ``bytes``, ``watts`` over time.
    lines
        Values and colour of each line; NaN is a hole.
    band
        Low, high and colour of an area behind the lines.
    total
        A dashed line: what there is at most.
    top
        End of the y axis; ``None``: by the values.
    dashed
        More lines, dashed.
    """

    title: str
    value: str
    unit: str
    x: list[float]
    lines: tuple[tuple[list[float], str], ...]
    color: str = BLUE
    band: tuple[list[float], list[float], str] | None = None
    total: float | None = None
    top: float | None = None
    dashed: tuple[tuple[list[float], str], ...] = ()


def time_span(record: Record) -> Span | None:
    """The time axis of a record; ``None`` without telemetry."""
    sources = [(record.get(name) or {}).get("t") or [] for name in ("telemetry", "gpu")]
    ends = [number(t) for times in sources if len(times) > 1 for t in (times[0], times[-1])]
    ends = [t for t in ends if not math.isnan(t)]
    if not ends or max(ends) <= min(ends):
        return None
    start, length = min(ends), max(ends) - min(ends)
    shades = []
    for phase in record.get("phases") or []:
        begin, end = number(phase.get("start")) - start, number(phase.get("end")) - start
        if phase.get("name") == "running" or math.isnan(begin):
            continue
        low, high = max(begin, 0.0), length if math.isnan(end) else min(end, length)
        if high - low > 0.01 * length:  # else nobody sees it
            shades.append((low, high))
    return Span(start, length, tuple(shades))


def metric_charts(record: Record) -> list[Chart]:
    """The first :data:`METRICS` metrics."""
    charts: list[Chart] = []
    metrics = record.get("metrics") or {}
    for name in list(metrics)[:METRICS]:
        series = metrics[name]
        values = [number(value) for value in series.get("value") or []]
        steps = [number(step) for step in series.get("step") or range(len(values))]
        count = min(len(values), len(steps))
        if not count:
            continue
        if len(set(steps[:count])) == 1 and count > 1:  # logged without steps
            steps = [float(index) for index in range(count)]
        last = number(series.get("last"))
        text = "" if math.isnan(last) else number_text(last)
        charts.append(Chart(name, text, "step", steps[:count], ((values[:count], BLUE),)))
    return charts


def host_charts(telemetry: Record, span: Span | None) -> list[Chart]:
    """CPU and memory of the run's processes."""
    times = telemetry.get("t") or []
    if len(times) < 2 or span is None:
        return []
    seconds = span.seconds(times)
    charts: list[Chart] = []
    for name, title, unit in (("cpu", "CPU", "percent"), ("memory", "Main memory", "bytes")):
        values = [number(value) for value in telemetry.get(name) or []][: len(seconds)]
        known = [value for value in values if not math.isnan(value)]
        if not known:
            continue
        if unit == "bytes":
            text = f"max {bytes_text(max(known))}"
        else:
            text = f"mean {sum(known) / len(known):.0f} %"
            cpus = telemetry.get("cpus")
            title += f" (of {100 * cpus:.0f} %)" if cpus else ""
        charts.append(Chart(title, text, unit, seconds[: len(values)], ((values, TEAL),), TEAL))
    return charts


def draw_row(sheet: Sheet, top: float, charts: Sequence[Chart], span: Span | None) -> None:
    """Up to :data:`COLUMNS` charts beside each other, :data:`ROW` high."""
    width = WIDTH / COLUMNS
    for column, chart in enumerate(charts):
        _draw(sheet.axes(column * width + 44, top + 26, width - 58, 76), chart, span)


def _draw(axes: Any, chart: Chart, span: Span | None) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    over_time = chart.unit != "step" and span is not None
    length = time_unit(span.length)[1] if over_time and span else 1.0
    x = [value / length for value in chart.x]
    every = [v for values, _ in chart.lines for v in values if not math.isnan(v)]
    highest = max([*every, chart.total or 0.0, chart.top or 0.0], default=0.0)
    unit, size = byte_unit(highest) if chart.unit == "bytes" else ("", 1.0)
    if chart.band:
        low, high, color = chart.band
        axes.fill_between(x, [v / size for v in low], [v / size for v in high], color=color, alpha=0.22, linewidth=0)
    thick = 1.4 if len(chart.lines) < 4 else 1.1
    for values, color in chart.lines:
        y = [v / size for v in values]
        axes.plot(x, y, color=color, linewidth=thick, solid_joinstyle="round")
        if sum(not math.isnan(v) for v in y) == 1:
            axes.plot(x, y, color=color, marker="o", markersize=4)
    for values, color in chart.dashed:
        axes.plot(x, [v / size for v in values], color=color, linewidth=0.9, dashes=(3, 2))
    if chart.total:
        axes.axhline(chart.total / size, color=SOFT, linewidth=1, dashes=(4, 2.5))
    if not every:
        axes.text(0.5, 0.5, "n/a", transform=axes.transAxes, size=9, color=SOFT, ha="center", va="center")
    axes.set_title(clip(chart.title, 22), loc="left", size=8, color=INK, pad=4, parse_math=False)
    axes.set_title(chart.value, loc="right", size=8, color=chart.color, weight="bold", pad=4)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, labelsize=6.5, length=0, pad=4)
    axes.yaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 2.5, 5, 10]))
    if not over_time or span is None:
        if x and min(x) == max(x):
            axes.set_xlim(x[0] - 1, x[0] + 1)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
        return
    for begin, end in span.shades:
        axes.axvspan(begin / length, end / length, color=SHADE, linewidth=0, zorder=0)
    time_axis(axes, span.length)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    if not highest:  # nothing is known: no scale is made up
        axes.set_yticks([])
    highest = highest / size or 1.0
    axes.set_ylim(-0.03 * highest, 1.06 * highest)  # a line at zero is seen whole
    ending = {"percent": "%", "watts": "W"}.get(chart.unit, unit)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} {ending}" if value else "0"))


def time_axis(axes: Any, seconds: float) -> None:
    """Ticks of an x axis in the unit of :func:`time_unit`, which only the last one names."""
    from matplotlib.ticker import MaxNLocator

    name, length = time_unit(seconds)
    end = seconds / length
    axes.set_xlim(0, end)
    ticks = [t for t in MaxNLocator(4, steps=[1, 2, 3, 5, 10]).tick_values(0, end) if 0 <= t <= end * 1.0001]
    axes.set_xticks(ticks, [*(f"{t:g}" for t in ticks[:-1]), f"{ticks[-1]:g} {name}"])
    labels = axes.get_xticklabels()
    labels[0].set_ha("left")
    if len(ticks) > 1 and ticks[-1] > 0.93 * end:
        labels[-1].set_ha("right")


# -- words and numbers


def number(value: Any) -> float:
    """`value` as a float; NaN for whatever is none, or not finite."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return math.nan
    return found if math.isfinite(found) else math.nan


def number_text(value: float) -> str:
    """Four figures."""
    if 1000 <= abs(value) < 1e6:
        return f"{value:.0f}"
    if value == 0 or 1e-3 <= abs(value) < 1000:
        return f"{value:.4g}"
    return f"{value:.2e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def byte_unit(most: float) -> tuple[str, float]:
    """Unit for values up to `most` bytes: its name, and its size in bytes."""
    size = 1.0
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(most) < 1000 * size:
            return unit, size
        size *= 1024
    return "TiB", size


def bytes_text(value: float) -> str:
    """Three figures: ``39.8 GiB``."""
    unit, size = byte_unit(value)
    return f"{value / size:.3g} {unit}"


def time_unit(longest: float) -> tuple[str, float]:
    """Unit for an axis that reaches `longest` seconds: its name and its length in seconds."""
    if longest < 120:
        return "s", 1.0
    return ("min", 60.0) if longest < 7200 else ("h", 3600.0)


def clip(text: str, length: int) -> str:
    """At most `length` characters, without those that the font cannot draw in a line."""
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= length else text[: length - 1] + "…"
