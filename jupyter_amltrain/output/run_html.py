"""A run as HTML, for readers that cannot draw its record: VS Code, Colab, nbconvert, GitHub."""

from __future__ import annotations

import base64
import html
from typing import Protocol

from jupyter_amltrain.kernel.record_parts import parts_html
from jupyter_amltrain.kernel.sweep_text import best_text, counts_text
from jupyter_amltrain.output.display_html import between_lines
from jupyter_amltrain.output.palette import INK, RED, SOFT
from jupyter_amltrain.output.sweep_table import sweep_html
from jupyter_amltrain.output.text_view import state_line
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.text import bytes_text, value_text, without_ansi

#: Maximum lines of the log, and of the error.
LOG_LINES = 20
#: Style of a cell in the table of a failure's variables.
_CELL = "text-align: left; vertical-align: top"
#: Maximum metrics that the alternative text of the picture names.
_MAX_ALT_METRICS = 6


class PictureHtml(Protocol):
    """A PNG and its size in CSS pixels."""

    @property
    def png(self) -> bytes: ...

    @property
    def width(self) -> int: ...

    @property
    def height(self) -> int: ...


def run_html(record: RunRecord, picture: PictureHtml | None) -> str:
    """Return the state, the error, the picture and the end of the log; a failed run begins with error and log."""
    only_trials = record.sweep is not None and not record.sweep.own
    charts = _picture_html(record, picture) or ("" if only_trials else _values_html(record))
    charts = (sweep_html(record.sweep) if record.sweep else "") + charts
    # The process of a sweep only waits for the trials.
    log = "" if only_trials and record.state != "failed" else _log_html(record)
    error = (
        f'<pre style="color: {RED}; white-space: pre-wrap">{html.escape(record.error)}</pre>' if record.error else ""
    )
    error += _excerpt_html(record) + _frames_html(record) + parts_html(record)
    figures = _figures_html(record)
    parts = [error, log, charts, figures] if record.state == "failed" else [error, charts, figures, log]
    return f"<div><b>{html.escape(state_line(record))}</b></div>" + "".join(parts)


def _excerpt_html(record: RunRecord) -> str:
    """Return the lines of the cell around the one that raised, with their numbers."""
    if (code := record.excerpt) is None:
        return ""
    rows = []
    for number, line in enumerate(code.lines, code.first):
        row = html.escape(f"{number:>4}  {line}")
        rows.append(f"<b>{row}</b>" if number == code.line else row)
    return f"<pre>{chr(10).join(rows)}</pre>"


def _frames_html(record: RunRecord) -> str:
    """Return the variables of the lines at which the script failed; further frames are folded."""
    parts = []
    for at, frame in enumerate(record.frames):
        rows = []
        for number, (name, text) in enumerate(frame.table.rows):
            tag = "b" if number < frame.named else "span"
            rows.append(
                f'<tr><td style="{_CELL}; white-space: nowrap"><{tag}><code>{html.escape(name)}</code></{tag}></td>'
                f'<td style="{_CELL}">{html.escape(text)}</td></tr>'
            )
        more = f'<div style="color: {SOFT}">and {frame.table.more} more</div>' if frame.table.more else ""
        code = f" <code>{html.escape(frame.code)}</code>" if frame.code else ""
        title = f"{'Values at failure, ' if at == 0 else ''}{html.escape(frame.title)}"
        parts.append(
            f"<details{'' if frame.folded else ' open'}><summary>{title}:{code}</summary>"
            f'<table style="font-size: 12px">{"".join(rows)}</table>{more}</details>'
        )
    return "".join(parts)


def alt_text(record: RunRecord) -> str:
    """Return what the picture of a run shows, as text."""
    if record.sweep is not None:
        best = best_text(record.sweep)
        words = [
            f"{record.state} {'run' if record.sweep.own else 'sweep'} {record.name}",
            counts_text(record.sweep),
            *([best] if best else []),
        ]
        return f"Charts of the {'; '.join(words)}."
    metrics = [f"{name} {value_text(m.last)}" for name, m in list(record.metrics.items())[:_MAX_ALT_METRICS]]
    peak = max((value for value in record.telemetry.memory if value is not None), default=None)
    facts = [
        f"{record.state} run {record.name}",
        *([f"last values: {', '.join(metrics)}"] if metrics else []),
        *([f"memory peak {bytes_text(peak)}"] if peak else []),
    ]
    return f"Charts of the {'; '.join(facts)}."


def _picture_html(record: RunRecord, picture: PictureHtml | None) -> str:
    if picture is None:
        return ""
    data = base64.b64encode(picture.png).decode()
    return (
        f'<img src="data:image/png;base64,{data}" width="{picture.width}" height="{picture.height}" '
        f'style="max-width: 100%; height: auto" alt="{html.escape(alt_text(record))}">'
    )


def _figures_html(record: RunRecord) -> str:
    """Return the thumbnails of the figures that the script has shown or logged."""
    images = "".join(
        f'<img src="{html.escape(picture.thumbnail)}" alt="{html.escape(picture.title or picture.name)}" '
        f'title="{html.escape(picture.name)}" style="margin: 4px 8px 4px 0">'
        for picture in record.pictures
        if picture.thumbnail.startswith("data:image/")
    )
    return f"<div>{images}</div>" if images else ""


def _values_html(record: RunRecord) -> str:
    """Return metrics and results, where no picture shows them."""
    values = {name: metric.last for name, metric in record.metrics.items()} | record.outputs
    shown = ", ".join(f"{name} = {value_text(value)}" for name, value in values.items() if value is not None)
    return f"<div>{html.escape(shown)}</div>" if shown else ""


def _log_html(record: RunRecord) -> str:
    lines = without_ansi(record.log.tail).removesuffix("\n").split("\n") if record.log.tail else []
    parts = between_lines(lines, record.displays, LOG_LINES)
    if not parts:
        return ""
    title = f"Log ({bytes_text(record.log.bytes)}), last lines:"
    return f'<div style="color: {SOFT}">{title}</div>' + "".join(map(_log_part_html, parts))


def _log_part_html(part: str | list[str]) -> str:
    """Return lines of the log, or a display as it is."""
    if isinstance(part, str):
        return part
    text = html.escape("\n".join(part))
    return (
        f'<pre style="color: {INK}; background: #f6f7f9; padding: 4px 8px; '
        f'font: 12px/1.4 monospace; white-space: pre-wrap">{text}</pre>'
    )
