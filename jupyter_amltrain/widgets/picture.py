"""A run's record as a PNG: what stays in a saved notebook for readers without our renderer.

Drawn in the worker process with Matplotlib's Agg canvas; ``pyplot`` is never imported,
because it picks a backend for the whole process and keeps figures alive.
"""

from __future__ import annotations

import io
import math
import warnings
from typing import Any

from jupyter_amltrain.runs.text import seconds_text

#: CSS pixels of the picture's width; it is drawn at twice that.
WIDTH = 760
SCALE = 2
#: Bytes that a saved notebook spends on one picture at most.
MAX_BYTES = 120_000

_COLUMNS = 3
_METRICS = 6
_INK, _SOFT, _GRID = "#1f2933", "#66727f", "#e4e8ec"
_BLUE, _TEAL = "#1967a8", "#0f8a7a"
_STATES = {
    "completed": "#1a7f43",
    "failed": "#c0392b",
    "lost": "#c0392b",
    "canceled": "#8a6d1a",
    "running": "#1967a8",
    "finalizing": "#1967a8",
}

Record = dict[str, Any]
#: One small chart: title, value as text, x, y, unit, colour.
Chart = tuple[str, str, list[float], list[float], str, str]


def draw(record: Record) -> dict[str, Any]:
    """Draw a record.

    Parameters
    ----------
    record
        The JSON of ``application/vnd.amltrain.run+json``. Absent parts are left out.

    Returns
    -------
    dict
        ``png``: bytes, at most 120 kB; ``width`` and ``height`` in CSS pixels (the
        picture has twice as many each way).
    """
    charts = _metric_charts(record) + _host_charts(record.get("telemetry") or {})
    lines = _lines(record)
    for scale in (SCALE, 1.5, 1.0):
        png, height = _render(record, charts, lines, scale)
        if len(png) <= MAX_BYTES:
            break
    return {"png": png, "width": WIDTH, "height": height}


def _render(record: Record, charts: list[Chart], lines: list[str], scale: float) -> tuple[bytes, int]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = math.ceil(len(charts) / _COLUMNS)
    head, row, foot = 54, 128, 17 * len(lines) + (10 if lines else 0)
    height = head + rows * row + foot
    figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=100 * scale, facecolor="white")
    canvas: Any = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _header(figure, record, height)
    for index, chart in enumerate(charts):
        column, line = index % _COLUMNS, index // _COLUMNS
        width = WIDTH / _COLUMNS
        left, top = column * width + 44, head + line * row + 26
        box = (left / WIDTH, 1 - (top + 76) / height, (width - 58) / WIDTH, 76 / height)
        _chart(figure.add_axes(box), chart)
    for index, text in enumerate(lines):
        y = 1 - (head + rows * row + 12 + index * 17) / height
        figure.text(14 / WIDTH, y, text, size=7.5, color=_SOFT, va="center", parse_math=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in a script that the font lacks shows boxes
        canvas.draw()
    return _png(canvas), height


def _png(canvas: Any) -> bytes:
    """The canvas with a palette of 128 colours: a third of the bytes, to the eye the same."""
    from PIL import Image

    size = canvas.get_width_height(physical=True)
    image = Image.frombuffer("RGBA", size, canvas.buffer_rgba(), "raw", "RGBA", 0, 1)
    buffer = io.BytesIO()
    image.convert("RGB").quantize(128).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _header(figure: Any, record: Record, height: int) -> None:
    state = str(record.get("state") or "unknown")
    colour = _STATES.get(state, _SOFT)
    y = 1 - 21 / height
    name = _clip(str(record.get("name") or record.get("handle") or "run"), 40)
    title = figure.text(14 / WIDTH, y, name, size=12, weight="bold", color=_INK, va="center", parse_math=False)
    renderer = figure.canvas.get_renderer()
    after = title.get_window_extent(renderer).x1 / figure.bbox.width + 12 / WIDTH
    badge = figure.text(
        after + 6 / WIDTH,
        y,
        state,
        size=8,
        color="white",
        va="center",
        weight="bold",
        bbox={"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": "none"},
    )
    after = badge.get_window_extent(renderer).x1 / figure.bbox.width + 14 / WIDTH
    seconds = _duration(record)
    if seconds is not None:
        lasted = figure.text(after, y, seconds_text(seconds), size=9, color=_INK, va="center")
        after = lasted.get_window_extent(renderer).x1 / figure.bbox.width + 14 / WIDTH
    right = _clip(str(record.get("handle") or ""), 44)
    handle = figure.text(1 - 14 / WIDTH, y, right, size=8, color=_SOFT, va="center", ha="right", parse_math=False)
    if handle.get_window_extent(renderer).x0 / figure.bbox.width < after:
        handle.remove()
    why = record.get("error") or record.get("detail") or _phases(record)
    figure.text(
        14 / WIDTH,
        1 - 42 / height,
        _clip(" ".join(str(why or "").split()), 130),
        size=7.5,
        color=_STATES["failed"] if record.get("error") else _SOFT,
        va="center",
        parse_math=False,
    )


def _chart(axes: Any, chart: Chart) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    title, last, x, y, unit, colour = chart
    name, length = _time_unit(max(x)) if unit != "step" else ("", 1.0)
    x = [value / length for value in x]
    axes.plot(x, y, color=colour, linewidth=1.4, solid_joinstyle="round")
    if len([value for value in y if not math.isnan(value)]) == 1:
        axes.plot(x, y, color=colour, marker="o", markersize=4)
    if min(x) == max(x):
        axes.set_xlim(x[0] - 1, x[0] + 1)
    axes.set_title(_clip(title, 22), loc="left", size=8, color=_INK, pad=4, parse_math=False)
    axes.set_title(last, loc="right", size=8, color=colour, weight="bold", pad=4)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_SOFT, labelsize=6.5, length=0, pad=3)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    if unit == "step":
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} {name}"))
        axes.set_ylim(bottom=0)
        if unit == "bytes":
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _bytes(value)))
        else:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} %"))


def _metric_charts(record: Record) -> list[Chart]:
    charts: list[Chart] = []
    metrics = record.get("metrics") or {}
    for name in list(metrics)[:_METRICS]:
        series = metrics[name]
        values = [_float(value) for value in series.get("value") or []]
        steps = [_float(step) for step in series.get("step") or range(len(values))]
        count = min(len(values), len(steps))
        if not count:
            continue
        if len(set(steps[:count])) == 1 and count > 1:  # logged without steps
            steps = [float(index) for index in range(count)]
        last = _float(series.get("last"))
        text = "" if math.isnan(last) else _number(last)
        charts.append((name, text, steps[:count], values[:count], "step", _BLUE))
    return charts


def _host_charts(telemetry: Record) -> list[Chart]:
    times = [_float(t) for t in telemetry.get("t") or []]
    if len(times) < 2:
        return []
    seconds = [t - times[0] for t in times]
    charts: list[Chart] = []
    for name, title, unit in (("cpu", "CPU", "percent"), ("memory", "Memory", "bytes")):
        values = [_float(value) for value in telemetry.get(name) or []][: len(seconds)]
        known = [value for value in values if not math.isnan(value)]
        if not known:
            continue
        if unit == "bytes":
            text = f"max {_bytes(max(known))}"
        else:
            text = f"mean {sum(known) / len(known):.0f} %"
            cpus = telemetry.get("cpus")
            title += f" (of {100 * cpus:.0f} %)" if cpus else ""
        charts.append((title, text, seconds[: len(values)], values, unit, _TEAL))
    return charts


def _lines(record: Record) -> list[str]:
    """Parameters and results below the charts."""
    lines = []
    for title, values in (
        ("params", record.get("params") or {}),
        ("results", record.get("outputs") or {}),
    ):
        if values:
            text = "   ".join(f"{name} = {_value(value)}" for name, value in values.items())
            lines.append(_clip(f"{title}:  {text}", 130))
    hidden = len(record.get("metrics") or {}) - _METRICS
    if hidden > 0:
        lines.append(f"{hidden} more metrics are in MLflow")
    return lines


def _phases(record: Record) -> str:
    parts = [
        f"{phase.get('name')} {seconds_text(phase['seconds'])}"
        for phase in record.get("phases") or []
        if phase.get("seconds") is not None
    ]
    return "  ·  ".join(parts)


def _duration(record: Record) -> float | None:
    """Seconds of the run's life, from what its phases measured."""
    known = [p["seconds"] for p in record.get("phases") or [] if p.get("seconds") is not None]
    return float(sum(known)) if known else None


def _float(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _value(value: Any) -> str:
    return _number(value) if isinstance(value, float) else _clip(str(value), 40)


def _number(value: float) -> str:
    if 1000 <= abs(value) < 1e6:
        return f"{value:.0f}"
    if value == 0 or 1e-3 <= abs(value) < 1000:
        return f"{value:.4g}"
    return f"{value:.2e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def _time_unit(longest: float) -> tuple[str, float]:
    """Unit for an axis that reaches `longest` seconds: its name and its length in seconds."""
    if longest < 120:
        return "s", 1.0
    return ("min", 60.0) if longest < 7200 else ("h", 3600.0)


def _clip(text: str, length: int) -> str:
    """At most `length` characters, without those that the font cannot draw in a line."""
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= length else text[: length - 1] + "…"
