"""The GPU part of a record's picture: up to 8 GPUs as lines, more as bands and a heat map."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from jupyter_amltrain.agent.gpu_names import gpu_counts, gpu_name
from jupyter_amltrain.widgets.palette import BLUE, GPUS, HEAT, INK, RED, RED_GROUND, SOFT
from jupyter_amltrain.widgets.picture_charts import (
    MARGIN,
    WIDTH,
    Chart,
    Record,
    Sheet,
    Span,
    bytes_text,
    clip,
    number,
    time_axis,
    time_unit,
)

#: CSS pixels: the line with the names, the heat map's least and most, its title and its end.
NAMES, HEAT_LEAST, HEAT_MOST, HEAT_HEAD, HEAT_FOOT = 20, 24, 200, 24, 26

#: Left end of the charts.
_LEFT = 44

#: Series that is drawn beside the utilization.
ACTIVITY = "sm_activity"
_FIELDS = (("util", "Utilization", "percent"), ("memory", "Memory", "bytes"), ("power", "Power", "watts"))


def gpu_charts(gpu: Record, span: Span | None) -> list[Chart]:
    """Utilization, memory and power; nothing when there are no GPUs or no samples."""
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
        band, color, known, most = (low, high, BLUE), BLUE, mean, high
    else:
        rows = [_padded(g.get(field), len(seconds)) for g in gpus[: len(GPUS)]]
        lines = tuple(zip(rows, GPUS, strict=False))
        known = most = [value for row in rows for value in row]
        if field == "util" and any(g.get(ACTIVITY) for g in gpus):
            dashed = tuple((_padded(g.get(ACTIVITY), len(seconds)), c) for g, c in zip(gpus, GPUS, strict=False))
        if len(gpus) == 1 and field == "util":  # bursts between two samples
            band = (rows[0], _padded(gpus[0].get("peak"), len(seconds)), GPUS[0])
    return Chart(
        title,
        _with_activity(_value(field, known, most, total), dashed),
        unit,
        seconds,
        lines,
        color=color,
        band=band,
        # One line for all of them would be wrong of some.
        total=total if len(sizes) == 1 else None,
        top=100.0 if unit == "percent" else None,
        dashed=dashed,
    )


def _with_activity(value: str, dashed: Sequence[tuple[list[float], str]]) -> str:
    """The value of a chart, with what its dashed lines are, and their mean."""
    known = [value for values, _ in dashed for value in values if not math.isnan(value)]
    # Shorter, for both have to stand beside the title.
    return f"{value.removeprefix('mean ')}, SM - - {sum(known) / len(known):.0f} %" if known else value


def _value(field: str, mean: Sequence[float], most: Sequence[float], total: float) -> str:
    mean, most = ([value for value in values if not math.isnan(value)] for values in (mean, most))
    if not mean or not most:
        return "n/a"
    if field != "memory":
        return f"mean {sum(mean) / len(mean):.0f} {'%' if field == 'util' else 'W'}"
    peak, whole = bytes_text(max(most)), "" if math.isnan(total) else f" of {bytes_text(total)}"
    if whole.endswith(peak.split()[1]):
        peak = peak.split()[0]  # "peak 40 of 79.7 GiB"
    return f"peak {peak}{whole}"


def _padded(values: Any, length: int) -> list[float]:
    found = [number(value) for value in values or []][:length]
    return found + [math.nan] * (length - len(found))


def draw_names(sheet: Sheet, top: float, gpu: Record) -> None:
    """What the GPUs are, and which colour is which, in one line :data:`NAMES` high."""
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
    """CSS pixels that the heat map takes; 0 without one."""
    rows = len((gpu.get("heat") or {}).get("labels") or [])
    columns = int((gpu.get("heat") or {}).get("columns") or 0)
    if not rows or not columns:
        return 0.0
    return HEAT_HEAD + _heat_rows(rows) + HEAT_FOOT


def _heat_rows(rows: int) -> float:
    return min(HEAT_MOST, max(HEAT_LEAST, 3.0 * rows if rows > 16 else 8.0 * rows))


def draw_heat(sheet: Sheet, top: float, gpu: Record, span: Span) -> None:
    """Utilization of each GPU over time: a row a GPU, nodes set apart."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    heat = gpu["heat"]
    labels, columns = heat["labels"], int(heat["columns"])
    cells = np.frombuffer(bytes.fromhex(heat["cells"]), np.uint8).reshape(len(labels), columns)
    colors = LinearSegmentedColormap.from_list("heat", HEAT, 21)  # few shades: a small file, the same to the eye
    colors.set_bad("white")
    place: dict[str, Any] = {"cmap": colors, "vmin": 0, "vmax": 100, "aspect": "auto", "interpolation": "nearest"}
    height = _heat_rows(len(labels))
    axes = sheet.axes(_LEFT, top + HEAT_HEAD, WIDTH - _LEFT - MARGIN, height)
    begin, end = (t / time_unit(span.length)[1] for t in span.seconds([gpu["t"][0], gpu["t"][-1]]))
    axes.imshow(np.ma.masked_where(cells > 100, cells), extent=(begin, end, len(labels) - 0.5, -0.5), **place)
    time_axis(axes, span.length)
    axes.tick_params(colors=SOFT, labelsize=6.5, length=0, pad=4)
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    sheet.text(_LEFT, top + HEAT_HEAD - 10, "Utilization of each GPU", 8, INK)
    scale = sheet.axes(WIDTH - MARGIN - 142, top + HEAT_HEAD - 14, 80, 8)
    scale.imshow([list(range(101))], **place)
    scale.set_axis_off()
    sheet.text(WIDTH - MARGIN - 146, top + HEAT_HEAD - 10, "idle", 6.5, ha="right")
    sheet.text(WIDTH - MARGIN - 58, top + HEAT_HEAD - 10, "100 % busy", 6.5)
    if len({_node(label) for label in labels}) == 1 and len(labels) <= 16:
        marks = [(i, i + 1, label.partition(":")[2]) for i, label in enumerate(labels)]
    else:
        starts = [i for i, label in enumerate(labels) if i == 0 or _node(label) != _node(labels[i - 1])]
        ends = [*starts[1:], len(labels)]
        marks = [(start, end, f"node {_node(labels[start])}") for start, end in zip(starts, ends, strict=True)]
        if 7 * len(marks) <= height:  # narrower nodes would be hidden by what sets them apart
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
    """Lines of the strip that says that GPUs lie idle; empty when they do not, or nobody can tell."""
    truth = record.get("truth") or {}
    if truth.get("verdict") != "not used":
        return []
    found = [" ".join(str(truth.get(name) or "").split()) for name in ("detail", "cause")]
    return [line for text in found for line in _wrapped(text, 118)][:4]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(clip(text, 2 * width), width)


def banner_height(lines: Sequence[str]) -> float:
    """CSS pixels of :func:`draw_banner`."""
    return 34 + 15 * len(lines) if lines else 0.0


def draw_banner(sheet: Sheet, top: float, lines: Sequence[str], record: Record) -> None:
    """The loud strip."""
    several = len((record.get("gpu") or {}).get("gpus") or []) > 1
    told = f"GPU idle: this run {'did' if record.get('done') else 'does'} not use its GPU{'s' if several else ''}"
    height = banner_height(lines) - 8
    sheet.box(MARGIN, top, WIDTH - 2 * MARGIN, height, RED_GROUND)
    sheet.box(MARGIN, top, 5, height, RED)
    sheet.text(MARGIN + 16, top + 14, told, 9.5, RED, weight="bold")
    for i, line in enumerate(lines):
        sheet.text(MARGIN + 16, top + 32 + 15 * i, line, 7.5, INK)
