"""Displays of a run as HTML, for readers that cannot draw its record. Their forms are safe already."""

from __future__ import annotations

import base64
import html
import json
import logging
from collections.abc import Mapping, Sequence

from jupyter_amltrain.kernel.display_forms import HTML, IMAGES, JSON, LATEX, MARKDOWN, SVG
from jupyter_amltrain.kernel.safe_html import safe_html
from jupyter_amltrain.schema.record import RunDisplay

log = logging.getLogger(__name__)

#: Characters of a JSON value.
_MAX_JSON_CHARS = 2000
_BOX = '<div style="overflow: auto; max-width: 100%; margin: 4px 0">{}</div>'
_TEXT = '<pre style="white-space: pre-wrap; margin: 4px 0">{}</pre>'


def display_html(display: RunDisplay) -> str:
    """Return a display as HTML; empty if its text in the log says more."""
    data = display.data
    for mime in IMAGES:
        if mime in data:
            return _BOX.format(_image(mime, str(data[mime]), display.sizes.get(mime) or {}, display.title))
    if SVG in data:
        coded = base64.b64encode(str(data[SVG]).encode()).decode()
        return _BOX.format(_image(SVG, coded, display.sizes.get(SVG) or {}))
    if HTML in data:
        return _BOX.format(data[HTML])
    if MARKDOWN in data:
        return _BOX.format(markdown_html(str(data[MARKDOWN])) or _text(str(data[MARKDOWN])))
    if LATEX in data:  # readers with MathJax draw it, as nbconvert does
        return _BOX.format(html.escape(str(data[LATEX])))
    if JSON in data:
        text = json.dumps(data[JSON], indent=1)
        return _text(text if len(text) <= _MAX_JSON_CHARS else f"{text[:_MAX_JSON_CHARS]}…")
    return ""


def markdown_html(text: str) -> str | None:
    """Return Markdown as safe HTML; ``None`` without the library that reads it."""
    try:
        import mistune
    except ImportError:  # it comes with nbconvert
        return None
    try:
        draw = mistune.create_markdown(escape=False, plugins=["table", "strikethrough", "task_lists", "math", "url"])
        return safe_html(str(draw(text)))
    except Exception:  # a parser of somebody else's
        log.info("Markdown of a display", exc_info=True)
        return None


def between_lines(lines: Sequence[str], displays: Sequence[RunDisplay], most: int) -> list[str | list[str]]:
    """Return the last lines of a log with the displays between them: HTML of a display, or a list of lines.

    Parameters
    ----------
    most
        Maximum number of lines.
    """
    drawn: dict[int, list[str]] = {}
    replaced: set[int] = set()
    for display in displays:
        if shown := display_html(display):
            drawn.setdefault(min(display.line, len(lines)), []).append(shown)
            replaced.update(line for start, n in display.blocks for line in range(start, min(start + n, len(lines))))
    kept = [at for at in range(len(lines)) if at not in replaced][-most:]
    parts: list[str | list[str]] = []
    for at in range(-1, len(lines) + 1):
        parts += drawn.get(at, [])
        if kept and at >= kept[0] and at < len(lines) and at not in replaced:
            if parts and isinstance(parts[-1], list):
                parts[-1].append(lines[at])
            else:
                parts.append([lines[at]])
    return parts


def _text(text: str) -> str:
    return _TEXT.format(html.escape(text))


def _image(mime: str, data: str, size: Mapping[str, float], title: str = "") -> str:
    sizes = "".join(f' {name}="{round(size[name])}"' for name in ("width", "height") if name in size)
    # A transparent image is made for a light page.
    style = "max-width: 100%; height: auto; background: #fff"
    return f'<img src="data:{mime};base64,{html.escape(data)}"{sizes} alt="{html.escape(title)}" style="{style}">'
