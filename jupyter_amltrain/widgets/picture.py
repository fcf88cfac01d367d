"""A record as a PNG: what stays in a saved notebook for readers without our renderer.

Drawn in the worker process with Matplotlib's Agg canvas; ``pyplot`` is never imported,
because it picks a backend for the whole process and keeps figures alive.
"""

from __future__ import annotations

import functools
import io
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

from jupyter_amltrain.runs.text import gpu_words, seconds_text
from jupyter_amltrain.runs.throughput import throughput_words
from jupyter_amltrain.widgets import picture_gpus
from jupyter_amltrain.widgets.palette import INK, SOFT, STATES
from jupyter_amltrain.widgets.picture_charts import (
    COLUMNS,
    MARGIN,
    METRICS,
    ROW,
    WIDTH,
    Chart,
    Record,
    Sheet,
    clip,
    draw_row,
    host_charts,
    metric_charts,
    number_text,
    time_span,
)

#: Pixels per CSS pixel, each way.
SCALE = 2
#: Bytes that a saved notebook spends on one picture at most.
MAX_BYTES = 120_000

_HEAD, _LINE = 54, 17
#: Characters of a line of text.
_LINE_CHARS = 130
#: Height and what draws it at its top.
Part = tuple[float, Callable[[Sheet, float], None]]


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
    parts = _parts(record)
    height = round(sum(part[0] for part in parts))
    for scale in (SCALE, 1.5, 1.0):
        png = _render(parts, height, scale)
        if len(png) <= MAX_BYTES:
            break
    return {"png": png, "width": WIDTH, "height": height}


def _parts(record: Record) -> list[Part]:
    """What is drawn, from top to bottom."""
    span = time_span(record)
    gpu = record.get("gpu") or {}
    gpus = picture_gpus.gpu_charts(gpu, span)
    parts: list[Part] = [(_HEAD, lambda sheet, top: _header(sheet, record))]
    idle = picture_gpus.banner(record)
    if idle:
        parts.append(
            (picture_gpus.banner_height(idle), functools.partial(picture_gpus.draw_banner, lines=idle, record=record))
        )
    metrics, host = metric_charts(record), host_charts(record.get("telemetry") or {}, span)

    def rows(charts: list[Chart]) -> None:
        for i in range(0, len(charts), COLUMNS):
            parts.append((ROW, functools.partial(draw_row, charts=charts[i : i + COLUMNS], span=span)))

    if not gpus:
        rows(metrics + host)
    else:
        rows(metrics)
        parts.append((picture_gpus.NAMES, lambda sheet, top: picture_gpus.draw_names(sheet, top, gpu)))
        rows(gpus)
        if span and picture_gpus.heat_height(gpu):
            parts.append(
                (picture_gpus.heat_height(gpu), lambda sheet, top: picture_gpus.draw_heat(sheet, top, gpu, span))
            )
        rows(host)
    lines = _lines(record)
    if lines:
        parts.append((_LINE * len(lines) + 10, lambda sheet, top: _foot(sheet, top, lines)))
    return parts


def _render(parts: list[Part], height: int, scale: float) -> bytes:
    sheet = Sheet(height, scale)
    top = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in a script that the font lacks shows boxes
        for tall, paint in parts:
            paint(sheet, top)
            top += tall
        sheet.canvas.draw()
    return _png(sheet.canvas)


def _png(canvas: Any) -> bytes:
    """The canvas with a palette of 128 colours: a third of the bytes, to the eye the same."""
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
    why = record.get("error") or record.get("detail") or _phases(record)
    color = STATES["failed"] if record.get("error") else SOFT
    sheet.text(MARGIN, 42, clip(" ".join(str(why or "").split()), 130), 7.5, color)


def _foot(sheet: Sheet, top: float, lines: list[tuple[str, str]]) -> None:
    for index, (text, color) in enumerate(lines):
        sheet.text(MARGIN, top + 12 + index * _LINE, text, 7.5, color)


def _lines(record: Record) -> list[tuple[str, str]]:
    """Summary, parameters and results below the charts: text and colour."""
    lines = []
    error = " ".join(str(record.get("error") or "").split())
    if len(error) > _LINE_CHARS:  # the head shows its beginning
        lines += [(line, STATES["failed"]) for line in textwrap.wrap(clip(error, 4 * _LINE_CHARS), _LINE_CHARS)]
    summary = record.get("summary") or {}
    rate = throughput_words(
        {name: (metric or {}).get("last") for name, metric in (record.get("metrics") or {}).items()}
    )
    summed = gpu_words(record.get("gpu") or {}, summary, rate) if summary else []
    if summed:
        # its name is said above the charts; a figure stays with its unit
        # (notes of what happened are sentences)
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
        lines.append((clip(f"GPU use cannot be told:  {truth.get('detail') or ''}", 130), SOFT))
    for title, values in (("params", record.get("params") or {}), ("results", record.get("outputs") or {})):
        if values:
            text = "   ".join(f"{name} = {_value(value)}" for name, value in values.items())
            lines.append((clip(f"{title}:  {text}", 130), SOFT))
    hidden = max(0, len(record.get("metrics") or {}) - METRICS) + int(record.get("metrics_hidden") or 0)
    if hidden > 0:
        lines.append((f"{hidden} more metrics are in MLflow", SOFT))
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


def _value(value: Any) -> str:
    return number_text(value) if isinstance(value, float) else clip(str(value), 40)
