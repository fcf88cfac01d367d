"""PNG of a record, saved in notebooks for readers without the labextension."""

from __future__ import annotations

import functools
import io
import math
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.agent.supervise.outcome import GPU_UNUSED
from jupyter_amltrain.kernel.chart_axes import number_text
from jupyter_amltrain.output.palette import GPUS, HEAT, INK, RED, RED_GROUND, SHADE, SOFT, STATES
from jupyter_amltrain.output.sheet import MARGIN, WIDTH, Sheet, clip, number, style_axes
from jupyter_amltrain.output.sweep_picture import sweep_parts
from jupyter_amltrain.schema.chart import STRIP_HEIGHT, Axis, Chart, ChartSet, SeriesPath, values_at
from jupyter_amltrain.text import seconds_text

Record = dict[str, Any]

#: Height of a row of charts in CSS pixels, and of a low row.
ROW, STRIP = 128, 92

#: Maximum charts of a row; a last row with fewer charts fills the width.
COLUMNS = 3

#: Maximum metrics in an image.
METRICS = 6


#: Characters of title and value that fit side by side in the usual size.
_TITLE_CHARS = 26


def draw_row(sheet: Sheet, top: float, charts: Sequence[Chart], record: Record, height: float = ROW) -> None:
    """Draw charts side by side over the whole width."""
    width = WIDTH / len(charts)
    for column, chart in enumerate(charts):
        _draw(sheet.axes(column * width + 44, top + 26, width - 58, height - 52), chart, record)


def _draw(axes: Any, chart: Chart, record: Record) -> None:
    """Draw a chart with its data, which are in the record."""
    shared = chart_set(record)
    x_axis = chart.steps or shared.time
    origin = 0.0 if chart.steps else shared.start
    rows = [[number(value) for value in _values(record, series.data)] for series in chart.series]
    xs = [number(x) - origin for x in _values(record, chart.x)] if chart.x else [float(i) for i in range(len(rows[0]))]
    color = INK if len(rows) > 1 else GPUS[chart.series[0].color]
    if chart.band:
        low, high = ([number(value) for value in _values(record, (*chart.band, end))] for end in ("low", "high"))
        _area(axes, xs, low, high, color)
    for series, y in zip(chart.series, rows, strict=True):
        if series.style == "faint":
            if [other.style for other in chart.series].count("") == 1:  # bursts; those of several would hide lines
                _area(axes, xs, rows[1], y, GPUS[series.color])
            continue
        style = {"linewidth": 0.9, "dashes": (3, 2)} if series.style == "dashed" else {"linewidth": 1.3}
        axes.plot(xs[: len(y)], y[: len(xs)], color=GPUS[series.color], solid_joinstyle="round", **style)
        if sum(not math.isnan(value) for value in y) == 1:
            axes.plot(xs[: len(y)], y[: len(xs)], color=GPUS[series.color], marker="o", markersize=4)
    for level in chart.levels:
        axes.axhline(level.value, color=SOFT, linewidth=1, dashes=(4, 2.5))
    title, value = clip(chart.title, 22), _with_dashed(chart, rows)
    size = 8.0 if len(title) + len(value) <= _TITLE_CHARS else 7.0
    axes.set_title(title, loc="left", size=size, color=INK, pad=4, parse_math=False)
    axes.set_title(value, loc="right", size=size, color=color, weight="bold", pad=4, parse_math=False)
    style_axes(axes)
    if chart.y is None:
        axes.text(0.5, 0.5, "n/a", transform=axes.transAxes, size=9, color=SOFT, ha="center", va="center")
        axes.set_yticks([])
    else:
        air = 0.02 * (chart.y.max - chart.y.min)  # keeps a line at zero fully visible
        axes.set_ylim(chart.y.min - air, chart.y.max + air)
        axes.set_yticks(chart.y.ticks, chart.y.labels)
    if x_axis is not None:
        _mark_x(axes, x_axis)
    if chart.steps is None:
        for phase in shared.phases:
            axes.axvspan(phase.start, phase.end, color=SHADE, linewidth=0, zorder=0)
    for mark in shared.marks:
        at = mark.time - shared.start if chart.steps is None else mark.step if chart.x else None
        if at is not None:
            axes.axvline(at, color=INK, linewidth=0.8, dashes=(1.5, 1.5))


def _values(record: Record, path: SeriesPath) -> Any:
    try:
        return values_at(record, path) or ()
    except (KeyError, TypeError):
        return ()  # no GPU reports it


def _area(axes: Any, x: Sequence[float], low: Sequence[float], high: Sequence[float], color: str) -> None:
    count = min(len(x), len(low), len(high))
    axes.fill_between(x[:count], low[:count], high[:count], color=color, alpha=0.22, linewidth=0)


def _with_dashed(chart: Chart, rows: Sequence[Sequence[float]]) -> str:
    """Return a chart's value with the mean of its dashed lines, shortened: both must fit next to the title."""
    dashed = [row for series, row in zip(chart.series, rows, strict=True) if series.style == "dashed"]
    known = [value for row in dashed for value in row if not math.isnan(value)]
    value = clip(chart.value, 24)
    return f"{value.removeprefix('mean ')}, SM - - {sum(known) / len(known):.0f} %" if known else value


def _mark_x(axes: Any, axis: Axis) -> None:
    axes.set_xlim(axis.min, axis.max)
    axes.set_xticks(axis.ticks, axis.labels)
    labels = axes.get_xticklabels()
    if axis.ticks[0] == axis.min:
        labels[0].set_ha("left")
    if len(labels) > 1 and axis.ticks[-1] > axis.min + 0.93 * (axis.max - axis.min):
        labels[-1].set_ha("right")


def chart_set(record: Record) -> ChartSet:
    """Return the charts of a record."""
    return msgspec.convert(record.get("charts") or {}, ChartSet)


#: Heights in CSS pixels: line of names; heat map minimum and maximum; heat map title and footer.
NAMES, MIN_HEAT_HEIGHT, MAX_HEAT_HEIGHT, HEAT_HEAD, HEAT_FOOT = 20, 24, 200, 24, 26

#: Left edge of the charts, in CSS pixels.
_LEFT = 44


def draw_names(sheet: Sheet, top: float, charts: ChartSet) -> None:
    """Draw the legend of the GPUs in one line, :data:`NAMES` high."""
    middle, labels = top + NAMES / 2, [entry.label for entry in charts.gpus]
    what = charts.gpus_text.removeprefix("1 × " if len(labels) == 1 else "")
    _, x = sheet.text(MARGIN, middle, clip(what, 60 if labels else 110), 8, INK, weight="bold")
    if len(labels) < 2:
        return
    step = min(76.0, (WIDTH - MARGIN - x - 16) / len(labels))
    for i, label in enumerate(labels):
        left = x + 18 + i * step
        sheet.box(left, middle - 1.5, 11, 3, GPUS[i])
        sheet.text(left + 15, middle, label, 6.5 if step > 64 or len(label) < 8 and step > 52 else 5.5)


def heat_height(gpu: Record) -> float:
    """Return the height of the heat map in CSS pixels; 0 without one."""
    rows = len((gpu.get("heat") or {}).get("labels") or [])
    columns = int((gpu.get("heat") or {}).get("columns") or 0)
    if not rows or not columns:
        return 0.0
    return HEAT_HEAD + _heat_rows(rows) + HEAT_FOOT


def _heat_rows(rows: int) -> float:
    return min(MAX_HEAT_HEIGHT, max(MIN_HEAT_HEIGHT, 3.0 * rows if rows > 16 else 8.0 * rows))


def draw_heat(sheet: Sheet, top: float, gpu: Record, shared: ChartSet) -> None:
    """Draw utilization of each GPU over time: one row per GPU, nodes separated."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    heat = gpu["heat"]
    labels, columns = heat["labels"], int(heat["columns"])
    cells = np.frombuffer(bytes.fromhex(heat["cells"]), np.uint8).reshape(len(labels), columns)
    colors = LinearSegmentedColormap.from_list("heat", HEAT, 21)  # few shades: a smaller file
    colors.set_bad("white")
    style: dict[str, Any] = {"cmap": colors, "vmin": 0, "vmax": 100, "aspect": "auto", "interpolation": "nearest"}
    height = _heat_rows(len(labels))
    axes = sheet.axes(_LEFT, top + HEAT_HEAD, WIDTH - _LEFT - MARGIN, height)
    begin, end = (t - shared.start for t in (gpu["t"][0], gpu["t"][-1]))
    axes.imshow(np.ma.masked_where(cells > 100, cells), extent=(begin, end, len(labels) - 0.5, -0.5), **style)
    if shared.time is not None:
        _mark_x(axes, shared.time)
    axes.tick_params(colors=SOFT, labelsize=6.5, length=0, pad=4)
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    sheet.text(_LEFT, top + HEAT_HEAD - 10, "Utilization of each GPU", 8, INK)
    scale = sheet.axes(WIDTH - MARGIN - 142, top + HEAT_HEAD - 14, 80, 8)
    scale.imshow([list(range(101))], **style)
    scale.set_axis_off()
    sheet.text(WIDTH - MARGIN - 146, top + HEAT_HEAD - 10, "idle", 6.5, ha="right")
    sheet.text(WIDTH - MARGIN - 58, top + HEAT_HEAD - 10, "100 % busy", 6.5)
    if len({_node(label) for label in labels}) == 1 and len(labels) <= 16:
        marks = [(i, i + 1, label.partition(":")[2]) for i, label in enumerate(labels)]
    else:
        starts = [i for i, label in enumerate(labels) if i == 0 or _node(label) != _node(labels[i - 1])]
        ends = [*starts[1:], len(labels)]
        marks = [(start, end, f"node {_node(labels[start])}") for start, end in zip(starts, ends, strict=True)]
        if 7 * len(marks) <= height:  # separators would hide narrower nodes
            for start in starts[1:]:
                axes.axhline(start - 0.5, color="white", linewidth=1.2)
    free = 0.0
    for start, end, word in marks:
        middle = (start + end) / 2 * height / len(labels)
        if middle >= free:
            sheet.text(_LEFT - 4, top + HEAT_HEAD + middle, word, 5.5, ha="right")
            free = middle + 7.9


def _node(label: str) -> str:
    return label.partition(":")[0]


def banner(record: Record) -> list[str]:
    """Return the lines of the idle-GPU banner; empty if the GPUs are used or their use is unknown."""
    truth = record.get("truth") or {}
    if truth.get("verdict") != "not used" or record.get("reason") == GPU_UNUSED:  # then the reason says it
        return []
    texts = [" ".join(str(truth.get(name) or "").split()) for name in ("detail", "cause")]
    return [line for text in texts for line in _wrapped(text, 118)][:4]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(clip(text, 2 * width), width)


def banner_height(lines: Sequence[str]) -> float:
    """Return the height of the idle-GPU banner in CSS pixels."""
    return 34 + 15 * len(lines) if lines else 0.0


def draw_banner(sheet: Sheet, top: float, lines: Sequence[str], record: Record) -> None:
    """Draw the idle-GPU banner."""
    several = len((record.get("gpu") or {}).get("gpus") or []) > 1
    title = f"GPU idle: this run {'did' if record.get('done') else 'does'} not use its GPU{'s' if several else ''}"
    height = banner_height(lines) - 8
    sheet.box(MARGIN, top, WIDTH - 2 * MARGIN, height, RED_GROUND)
    sheet.box(MARGIN, top, 5, height, RED)
    sheet.text(MARGIN + 16, top + 14, title, 9.5, RED, weight="bold")
    for i, line in enumerate(lines):
        sheet.text(MARGIN + 16, top + 32 + 15 * i, line, 7.5, INK)


#: Pixels per CSS pixel, in each direction.
SCALE = 2

#: Maximum bytes of one image in a saved notebook.
MAX_BYTES = 120_000

_HEAD, _LINE, _REASON_LINE = 54, 17, 14

#: Maximum lines of the reason of a run's end.
_MAX_REASON_LINES = 10

#: Maximum characters of a line of text.
_LINE_CHARS = 130

#: Maximum lines of the script that are listed by their time.
_TIME_LINES = 4

#: CSS pixels of a group's title in the table of figures, and of a figure; figures of a row, and characters of one.
_TITLE_WIDTH, _FIGURE_WIDTH, _FIGURES, _FIGURE_CHARS = 86, 164, 4, 34

#: Height of a part in CSS pixels, and the function that draws it at a given top.
Part = tuple[float, Callable[[Sheet, float], None]]


def draw(record: Record) -> dict[str, Any]:
    """Draw a record.

    Parameters
    ----------
    record
        The JSON of ``application/vnd.amltrain.run+json``. Absent parts are omitted.

    Returns
    -------
    dict
        ``png``: bytes, at most 120 kB; ``width`` and ``height`` in CSS pixels (the
        image has twice as many pixels in each direction).
    """
    parts = _parts(record)
    height = round(sum(part[0] for part in parts))
    for scale in (SCALE, 1.5, 1.0):
        png = _render(parts, height, scale)
        if len(png) <= MAX_BYTES:
            break
    return {"png": png, "width": WIDTH, "height": height}


def _parts(record: Record) -> list[Part]:
    """Return the parts of the image, from top to bottom."""
    gpu = record.get("gpu") or {}
    shared = chart_set(record)
    kinds: dict[str, list[Chart]] = {"metric": [], "gpu": [], "host": []}
    for chart in shared.charts:
        kinds[chart.key.split(" ")[0]].append(chart)
    reason = _reason(record)
    parts: list[Part] = [(_HEAD + _REASON_LINE * (len(reason) - 1), lambda sheet, top: _header(sheet, record, reason))]
    idle = banner(record)
    if idle:
        parts.append((banner_height(idle), functools.partial(draw_banner, lines=idle, record=record)))
    foot = _table_part(_figures(record)) + _foot_part(_lines(record))
    if record.get("sweep"):
        return parts + sweep_parts(record["sweep"]) + foot

    def rows(charts: list[Chart]) -> None:
        columns = 2 if len(charts) == 4 else COLUMNS
        for i in range(0, len(charts), columns):
            row = charts[i : i + columns]
            height = STRIP if kinds["metric"] and row[0].height == STRIP_HEIGHT else ROW
            parts.append((height, functools.partial(draw_row, charts=row, record=record, height=height)))

    rows(kinds["metric"][:METRICS])
    if kinds["gpu"]:
        parts.append((NAMES, lambda sheet, top: draw_names(sheet, top, shared)))
        rows(kinds["gpu"])
        if heat_height(gpu):
            parts.append((heat_height(gpu), lambda sheet, top: draw_heat(sheet, top, gpu, shared)))
    rows(kinds["host"])
    return parts + foot


def _figures(record: Record) -> list[list[str]]:
    """Return the figures of the GPUs of an ended run: a row for each group, whose title comes first."""
    tables = [table for table in record.get("tables") or () if table.get("key") == "gpu summary"]
    return [[cell for cell in row if cell] for table in tables for row in table.get("rows") or ()]


def _table_part(rows: list[list[str]]) -> list[Part]:
    return [(_LINE * len(rows) + 8, lambda sheet, top: _table(sheet, top, rows))] if rows else []


def _table(sheet: Sheet, top: float, rows: list[list[str]]) -> None:
    for index, (title, *texts) in enumerate(rows):
        y = top + 12 + index * _LINE
        sheet.text(MARGIN, y, title, 7.5, SOFT)
        if len(texts) > _FIGURES or any(len(text) > _FIGURE_CHARS for text in texts):
            sheet.text(MARGIN + _TITLE_WIDTH, y, clip(", ".join(texts), 115), 7.5, INK)
            continue
        for column, text in enumerate(texts):
            sheet.text(MARGIN + _TITLE_WIDTH + column * _FIGURE_WIDTH, y, text, 7.5, INK)


def _foot_part(lines: list[tuple[str, str]]) -> list[Part]:
    return [(_LINE * len(lines) + 10, lambda sheet, top: _foot(sheet, top, lines))] if lines else []


def _render(parts: list[Part], height: int, scale: float) -> bytes:
    sheet = Sheet(height, scale)
    top = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # characters that the font lacks are drawn as boxes
        for part_height, draw_part in parts:
            draw_part(sheet, top)
            top += part_height
        sheet.canvas.draw()
    return _png(sheet.canvas)


def _png(canvas: Any) -> bytes:
    """Encode the canvas with a palette of 128 colors: a third of the bytes, with no visible difference."""
    from PIL import Image

    size = canvas.get_width_height(physical=True)
    image = Image.frombuffer("RGBA", size, canvas.buffer_rgba(), "raw", "RGBA", 0, 1)
    buffer = io.BytesIO()
    image.convert("RGB").quantize(128).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _reason(record: Record) -> list[str]:
    """Return the lines below the name: why the run has ended so, or how long its phases took."""
    text = str(record.get("error") or record.get("detail") or _phases(record) or "")
    return textwrap.wrap(clip(" ".join(text.split()), _MAX_REASON_LINES * _LINE_CHARS), _LINE_CHARS) or [""]


def _header(sheet: Sheet, record: Record, reason: list[str]) -> None:
    state = str(record.get("state") or "unknown")
    name = clip(str(record.get("name") or record.get("handle") or "run"), 40)
    _, x = sheet.text(MARGIN, 21, name, 12, INK, weight="bold")
    badge = {"boxstyle": "round,pad=0.35", "facecolor": STATES.get(state, SOFT), "edgecolor": "none"}
    _, x = sheet.text(x + 18, 21, state, 8, "white", weight="bold", bbox=badge)
    seconds = _duration(record)
    if seconds is not None:
        _, x = sheet.text(x + 14, 21, seconds_text(seconds), 9, INK)
    right = clip(str(record.get("handle") or ""), 44)
    handle, _ = sheet.text(WIDTH - MARGIN, 21, right, 8, ha="right")
    left = handle.get_window_extent(sheet.canvas.get_renderer()).x0 / sheet.figure.bbox.width * WIDTH
    if left < x + 14:
        handle.remove()
    color = STATES["failed"] if record.get("error") else SOFT
    for index, line in enumerate(reason):
        sheet.text(MARGIN, 42 + index * _REASON_LINE, line, 7.5, color)


def _foot(sheet: Sheet, top: float, lines: list[tuple[str, str]]) -> None:
    for index, (text, color) in enumerate(lines):
        sheet.text(MARGIN, top + 12 + index * _LINE, text, 7.5, color)


def _lines(record: Record) -> list[tuple[str, str]]:
    """Return the lines below the charts: summary, parameters and results, as text and color."""
    lines = []
    hint = str((record.get("summary") or {}).get("hint") or "")
    if hint:
        lines += [(line, INK) for line in textwrap.wrap(clip(f"hint:  {hint}", 400), 130, subsequent_indent="      ")]
    lines += _time_by_line(record.get("lines") or {})
    note = str((record.get("gpu") or {}).get("note") or "")
    lines += [(line, SOFT) for line in textwrap.wrap(clip(f"GPU:  {note}", 400), 130)] if note else []
    truth = record.get("truth") or {}
    if truth.get("verdict") == "cannot tell":
        lines.append((clip(f"GPU use is unknown:  {truth.get('detail') or ''}", 130), SOFT))
    for title, values in (("params", record.get("params") or {}), ("results", record.get("outputs") or {})):
        if values:
            text = "   ".join(f"{name} = {_param_value(value)}" for name, value in values.items())
            lines.append((clip(f"{title}:  {text}", 130), SOFT))
    hidden = max(0, len(record.get("metrics") or {}) - METRICS) + int(record.get("metrics_hidden") or 0)
    if hidden > 0:
        lines.append((f"{hidden} more metrics in MLflow", SOFT))
    return lines


def _time_by_line(part: Record) -> list[tuple[str, str]]:
    """Return in which lines of the script the time went: the sentence about them, and the first ones."""
    table = part.get("table") or {}
    titles = [column.get("title") for column in table.get("columns") or ()]
    lines = [(clip(str(part["sentence"]), 130), INK)] if part.get("sentence") else []
    for *cells, code in (table.get("rows") or ())[:_TIME_LINES]:
        facts = " · ".join(f"{title} {cell}" for title, cell in zip(titles, cells, strict=False) if cell)
        lines.append((clip(f"{facts}   {code}", 130), SOFT))
    return lines


def _phases(record: Record) -> str:
    parts = [
        f"{phase.get('name')} {seconds_text(phase['seconds'])}"
        for phase in record.get("phases") or []
        if phase.get("seconds") is not None
    ]
    return "  ·  ".join(parts)


def _duration(record: Record) -> float | None:
    """Return the run's duration in seconds, as the sum of its phases."""
    known = [p["seconds"] for p in record.get("phases") or [] if p.get("seconds") is not None]
    return float(sum(known)) if known else None


def _param_value(value: Any) -> str:
    return number_text(value) if isinstance(value, float) else clip(str(value), 40)
