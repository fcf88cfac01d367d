"""PNG of a record, saved in notebooks for readers without the labextension."""

from __future__ import annotations

import functools
import io
import math
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_amltrain.agent.telemetry.gpu_columns import ACTIVITY
from jupyter_amltrain.agent.telemetry.gpu_names import gpu_counts, gpu_name
from jupyter_amltrain.output.palette import BLUE, GPUS, GRID, HEAT, INK, RED, RED_GROUND, SHADE, SOFT, STATES, TEAL
from jupyter_amltrain.output.sheet import MARGIN, WIDTH, Sheet, clip, number, number_text
from jupyter_amltrain.output.sweep_picture import sweep_parts
from jupyter_amltrain.output.text_view import gpu_texts, throughput_text
from jupyter_amltrain.text import seconds_text

Record = dict[str, Any]

#: Height of a row of charts in CSS pixels, and of a low row.
ROW, STRIP = 128, 92

#: Maximum charts of a row; a last row with fewer charts fills the width.
COLUMNS = 3

#: Maximum metrics in an image.
METRICS = 6


@dataclass(frozen=True)
class Span:
    """Time axis shared by all charts of a record.

    Attributes
    ----------
    start
        Unix seconds of the origin.
    length
        Seconds.
    shades
        Intervals (seconds from the start) in which the script did not run.
    """

    start: float
    length: float
    shades: tuple[tuple[float, float], ...] = ()

    def seconds(self, times: Sequence[Any]) -> list[float]:
        """Convert unix seconds to seconds from the start."""
        return [number(t) - self.start for t in times]


@dataclass(frozen=True)
class Chart:
    """One small chart.

    Attributes
    ----------
    title, value
        Texts above the chart, left and right.
    unit
        ``step`` (x is steps, y any number), or ``percent``, ``bytes``, ``watts`` over time.
    lines
        Values and color of each line; NaN is a gap.
    band
        Low, high and color of an area behind the lines.
    total
        Capacity, drawn as a dashed line.
    top
        Upper end of the y axis; ``None`` derives it from the values.
    dashed
        Additional dashed lines.
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
    """Return the time axis of a record; ``None`` without telemetry."""
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
        if high - low > 0.01 * length:  # narrower shades would be invisible
            shades.append((low, high))
    return Span(start, length, tuple(shades))


def metric_charts(record: Record) -> list[Chart]:
    """Return the charts of the first :data:`METRICS` metrics."""
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
        last = series.get("last")
        text = last[:8] if isinstance(last, str) else "" if math.isnan(number(last)) else number_text(number(last))
        charts.append(Chart(name, text, "step", steps[:count], ((values[:count], BLUE),)))
    return charts


def host_charts(telemetry: Record, span: Span | None) -> list[Chart]:
    """Return the charts of CPU and memory of the run's processes."""
    times = telemetry.get("t") or []
    if len(times) < 2 or span is None:
        return []
    seconds = span.seconds(times)
    charts: list[Chart] = []
    for name, title, unit in (("cpu", "CPU", "percent"), ("memory", "Memory", "bytes")):
        values = [number(value) for value in telemetry.get(name) or []][: len(seconds)]
        known = [value for value in values if not math.isnan(value)]
        if not known:
            continue
        if unit == "bytes":
            text = f"max {bytes_text(max(known))}"
        else:
            cpus = telemetry.get("cpus")
            text = f"mean {sum(known) / len(known):.0f} %" + (f" of {100 * cpus:.0f} %" if cpus else "")
        charts.append(Chart(title, text, unit, seconds[: len(values)], ((values, TEAL),), TEAL))
    return charts


def draw_row(sheet: Sheet, top: float, charts: Sequence[Chart], span: Span | None, height: float = ROW) -> None:
    """Draw charts side by side over the whole width."""
    width = WIDTH / len(charts)
    for column, chart in enumerate(charts):
        _draw(sheet.axes(column * width + 44, top + 26, width - 58, height - 52), chart, span)


def _draw(axes: Any, chart: Chart, span: Span | None) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    over_time = chart.unit != "step" and span is not None
    length = time_unit(span.length)[1] if over_time and span else 1.0
    x = [value / length for value in chart.x]
    known = [v for values, _ in chart.lines for v in values if not math.isnan(v)]
    highest = max([*known, chart.total or 0.0, chart.top or 0.0], default=0.0)
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
    if not known:
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
        if x:  # no margins beside the curve; a single point gets some
            axes.set_xlim(*((x[0] - 1, x[0] + 1) if min(x) == max(x) else (min(x), max(x))))
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
        return
    for begin, end in span.shades:
        axes.axvspan(begin / length, end / length, color=SHADE, linewidth=0, zorder=0)
    time_axis(axes, span.length)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    if not highest:  # no values: show no scale
        axes.set_yticks([])
    highest = highest / size or 1.0
    axes.set_ylim(-0.03 * highest, 1.06 * highest)  # keep a line at zero fully visible
    ending = {"percent": "%", "watts": "W"}.get(chart.unit, unit)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} {ending}" if value else "0"))


def time_axis(axes: Any, seconds: float) -> None:
    """Set x ticks in the unit of :func:`time_unit`; only the last label names the unit."""
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


# -- text and numbers


def byte_unit(highest: float) -> tuple[str, float]:
    """Return the unit for values up to `highest` bytes: its name and its size in bytes."""
    size = 1.0
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(highest) < 1000 * size:
            return unit, size
        size *= 1024
    return "TiB", size


def bytes_text(value: float) -> str:
    """Format bytes with three significant digits: ``39.8 GiB``."""
    unit, size = byte_unit(value)
    return f"{value / size:.3g} {unit}"


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit for an axis up to `longest` seconds: its name and its length in seconds."""
    if longest < 120:
        return "s", 1.0
    return ("min", 60.0) if longest < 7200 else ("h", 3600.0)


#: Heights in CSS pixels: line of names; heat map minimum and maximum; heat map title and footer.
NAMES, MIN_HEAT_HEIGHT, MAX_HEAT_HEIGHT, HEAT_HEAD, HEAT_FOOT = 20, 24, 200, 24, 26

#: Left edge of the charts, in CSS pixels.
_LEFT = 44

_FIELDS = (("util", "Utilization", "percent"), ("memory", "Memory", "bytes"), ("power", "Power", "watts"))


def gpu_charts(gpu: Record, span: Span | None) -> list[Chart]:
    """Return the charts of utilization, memory and power; empty without GPUs or samples."""
    gpus = gpu.get("gpus") or []
    times = gpu.get("t") or []
    if not gpus or span is None or not times:
        return []
    seconds = span.seconds(times)
    return [_chart(gpu, gpus, seconds, *field) for field in _FIELDS]


def _chart(gpu: Record, gpus: list[Record], seconds: list[float], field: str, title: str, unit: str) -> Chart:
    totals = {"memory": "memory_total", "power": "power_limit"}
    sizes = {size for g in gpus if not math.isnan(size := number(g.get(totals.get(field, ""))))}
    total = max(sizes, default=math.nan)
    band = None
    dashed: tuple[tuple[list[float], str], ...] = ()
    color = GPUS[0] if len(gpus) == 1 else INK
    if gpu.get(field):
        mean, low, high = (_padded(gpu[field].get(name), len(seconds)) for name in ("mean", "low", "high"))
        lines: tuple[tuple[list[float], str], ...] = ((mean, BLUE),)
        band, color, known, peaks = (low, high, BLUE), BLUE, mean, high
    else:
        rows = [_padded(g.get(field), len(seconds)) for g in gpus[: len(GPUS)]]
        lines = tuple(zip(rows, GPUS, strict=False))
        known = peaks = [value for row in rows for value in row]
        if field == "util" and any(g.get(ACTIVITY) for g in gpus):
            dashed = tuple((_padded(g.get(ACTIVITY), len(seconds)), c) for g, c in zip(gpus, GPUS, strict=False))
        if len(gpus) == 1 and field == "util":  # bursts between two samples
            band = (rows[0], _padded(gpus[0].get("peak"), len(seconds)), GPUS[0])
    return Chart(
        title,
        _with_activity(_gpu_value(field, known, peaks, total), dashed),
        unit,
        seconds,
        lines,
        color=color,
        band=band,
        # A single line would be wrong if the GPUs differ.
        total=total if len(sizes) == 1 else None,
        top=100.0 if unit == "percent" else None,
        dashed=dashed,
    )


def _with_activity(value: str, dashed: Sequence[tuple[list[float], str]]) -> str:
    """Append the meaning of the dashed lines and their mean to a chart's value."""
    known = [value for values, _ in dashed for value in values if not math.isnan(value)]
    # Shortened, because both must fit next to the title.
    return f"{value.removeprefix('mean ')}, SM - - {sum(known) / len(known):.0f} %" if known else value


def _gpu_value(field: str, mean: Sequence[float], peaks: Sequence[float], total: float) -> str:
    mean, peaks = ([value for value in values if not math.isnan(value)] for values in (mean, peaks))
    if not mean or not peaks:
        return "n/a"
    if field != "memory":
        return f"mean {sum(mean) / len(mean):.0f} {'%' if field == 'util' else 'W'}"
    peak, whole = bytes_text(max(peaks)), "" if math.isnan(total) else f" of {bytes_text(total)}"
    if whole.endswith(peak.split()[1]):
        peak = peak.split()[0]  # "peak 40 of 79.7 GiB"
    return f"peak {peak}{whole}"


def _padded(values: Any, length: int) -> list[float]:
    numbers = [number(value) for value in values or []][:length]
    return numbers + [math.nan] * (length - len(numbers))


def draw_names(sheet: Sheet, top: float, gpu: Record) -> None:
    """Draw GPU names and their colors in one line, :data:`NAMES` high."""
    gpus = gpu.get("gpus") or []
    middle = top + NAMES / 2
    nodes = len({g.get("node") for g in gpus})
    what = gpu_counts(gpus, "×").removeprefix("1 × " if len(gpus) == 1 else "")
    lines = not gpu.get("util") and 1 < len(gpus) <= len(GPUS)
    what = clip(what, 60) + (f" on {nodes} nodes" if nodes > 1 and not lines else "")
    _, x = sheet.text(MARGIN, middle, what, 8, INK, weight="bold")
    if not lines:
        return
    labels = [(f"n{g.get('node')} " if nodes > 1 else "") + gpu_name(g) for g in gpus]
    step = min(76.0, (WIDTH - MARGIN - x - 16) / len(labels))
    for i, label in enumerate(labels):
        left = x + 18 + i * step
        sheet.box(left, middle - 1.5, 11, 3, GPUS[i])
        sheet.text(left + 15, middle, label, 6.5 if step > 64 or nodes == 1 and step > 52 else 5.5)


def heat_height(gpu: Record) -> float:
    """Return the height of the heat map in CSS pixels; 0 without one."""
    rows = len((gpu.get("heat") or {}).get("labels") or [])
    columns = int((gpu.get("heat") or {}).get("columns") or 0)
    if not rows or not columns:
        return 0.0
    return HEAT_HEAD + _heat_rows(rows) + HEAT_FOOT


def _heat_rows(rows: int) -> float:
    return min(MAX_HEAT_HEIGHT, max(MIN_HEAT_HEIGHT, 3.0 * rows if rows > 16 else 8.0 * rows))


def draw_heat(sheet: Sheet, top: float, gpu: Record, span: Span) -> None:
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
    begin, end = (t / time_unit(span.length)[1] for t in span.seconds([gpu["t"][0], gpu["t"][-1]]))
    axes.imshow(np.ma.masked_where(cells > 100, cells), extent=(begin, end, len(labels) - 0.5, -0.5), **style)
    time_axis(axes, span.length)
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
    if truth.get("verdict") != "not used":
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

_HEAD, _LINE = 54, 17

#: Maximum characters of a line of text.
_LINE_CHARS = 130

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
    span = time_span(record)
    gpu = record.get("gpu") or {}
    gpus = gpu_charts(gpu, span)
    parts: list[Part] = [(_HEAD, lambda sheet, top: _header(sheet, record))]
    idle = banner(record)
    if idle:
        parts.append((banner_height(idle), functools.partial(draw_banner, lines=idle, record=record)))
    if record.get("sweep"):
        return parts + sweep_parts(record["sweep"]) + _foot_part(_lines(record))
    metrics, host = metric_charts(record), host_charts(record.get("telemetry") or {}, span)

    def rows(charts: list[Chart], height: float = ROW) -> None:
        columns = 2 if len(charts) == 4 else COLUMNS
        for i in range(0, len(charts), columns):
            draw = functools.partial(draw_row, charts=charts[i : i + columns], span=span, height=height)
            parts.append((height, draw))

    if not gpus:
        rows(metrics)
        rows(host, STRIP if metrics else ROW)
    else:
        rows(metrics)
        parts.append((NAMES, lambda sheet, top: draw_names(sheet, top, gpu)))
        rows(gpus)
        if span and heat_height(gpu):
            parts.append((heat_height(gpu), lambda sheet, top: draw_heat(sheet, top, gpu, span)))
        rows(host)
    return parts + _foot_part(_lines(record))


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


def _header(sheet: Sheet, record: Record) -> None:
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
    reason = record.get("error") or record.get("detail") or _phases(record)
    color = STATES["failed"] if record.get("error") else SOFT
    sheet.text(MARGIN, 42, clip(" ".join(str(reason or "").split()), 130), 7.5, color)


def _foot(sheet: Sheet, top: float, lines: list[tuple[str, str]]) -> None:
    for index, (text, color) in enumerate(lines):
        sheet.text(MARGIN, top + 12 + index * _LINE, text, 7.5, color)


def _lines(record: Record) -> list[tuple[str, str]]:
    """Return the lines below the charts: summary, parameters and results, as text and color."""
    lines = []
    error = " ".join(str(record.get("error") or "").split())
    if len(error) > _LINE_CHARS:  # the header shows its beginning
        lines += [(line, STATES["failed"]) for line in textwrap.wrap(clip(error, 4 * _LINE_CHARS), _LINE_CHARS)]
    summary = record.get("summary") or {}
    rate = throughput_text({name: (metric or {}).get("last") for name, metric in (record.get("metrics") or {}).items()})
    summed = gpu_texts(record.get("gpu") or {}, summary, rate) if summary else []
    if summed:
        # The GPU name is above the charts. Non-breaking spaces keep figures with their units;
        # notes are sentences, which may break.
        text = "GPU:  " + ", ".join(
            word.replace(" ", "\xa0") if len(word) < 40 else clip(word, 400) for word in summed[1:]
        )
        lines += [(line, INK) for line in textwrap.wrap(text, 130, subsequent_indent=" " * 10)]
    hint = str(summary.get("hint") or "")
    if hint:
        lines += [(line, INK) for line in textwrap.wrap(clip(f"hint:  {hint}", 400), 130, subsequent_indent="      ")]
    note = str((record.get("gpu") or {}).get("note") or "")
    if note and not summed:
        lines.append((clip(f"GPU:  {note}", 130), SOFT))
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
