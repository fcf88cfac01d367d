"""Rich forms of a displayed value, made safe and bounded. They come from a job's file, which may hold anything.

A page sanitizes them once more; this is for all other readers of a saved notebook, which run what an HTML output has.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.agent.protocol import PICTURES
from jupyter_amltrain.kernel.safe_html import MAX_TEXT, safe_html
from jupyter_amltrain.kernel.streams import decode_object
from jupyter_amltrain.tracking.thumbnails import Thumbnail, media_type, thumbnails

HTML, MARKDOWN, LATEX, SVG, JSON, TEXT = (
    "text/html", "text/markdown", "text/latex", "image/svg+xml", "application/json", "text/plain"
)  # fmt: skip
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
#: Specifications that another extension of JupyterLab draws, such as Plotly's and Vega's.
_DRAWN = re.compile(r"application/vnd\.(?!jupyter\.widget)[\w.+-]{1,60}\+json\Z")
#: Characters of a JSON value, and bytes of a file.
_MAX_JSON, MAX_FILE_BYTES = 1_200_000, 16 << 20
#: Characters of a title and of the name of a file.
_MAX_LINE = 200
#: Characters of a display that a record has as it is, and of one of its images.
MAX_WHOLE_CHARS, MAX_WHOLE_IMAGE = 24_000, 16_000


_ADDRESS = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


class Forms(msgspec.Struct, frozen=True, kw_only=True):
    """The safe forms of one version of a display.

    Attributes
    ----------
    chars
        Size of the data.
    small
        What stands for the data in a record where they are too large.
    picture
        Path of the image file of the run that it shows; empty for other values.
    title
        What its image shows, as text.
    """

    version: int = 0
    picture: str = ""
    title: str = ""
    chars: int = 0
    data: dict[str, Any] = {}
    sizes: dict[str, dict[str, float]] = {}
    small: dict[str, Any] = {}
    small_sizes: dict[str, dict[str, float]] = {}


def forms_of(file: bytes, *, for_record: bool = True) -> Forms | None:
    """Return the safe forms in a display's file; ``None`` if it has none. Blocks.

    Parameters
    ----------
    for_record
        Whether to draw small copies of large images, and to leave out data that no record can have.
    """
    content = decode_object(file)
    raw = content.get("data") if content else None
    if content is None or not isinstance(raw, dict):
        return None
    data: dict[str, Any] = {}
    for mime, form in raw.items():
        mime, form = _checked(mime, form)
        if form is not None:
            data[mime] = form
    version, metadata = content.get("version"), content.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    sizes = _sizes(metadata, data)
    version = version if isinstance(version, int) and 0 <= version < 1 << 31 else 0
    if not data:
        return None
    title = _line(content.get("title")) or _alt(metadata, data)
    forms = Forms(version=version, chars=_size(data), data=data, sizes=sizes, title=title)
    if name := _line(content.get("picture")):
        forms = msgspec.structs.replace(forms, picture=f"{PICTURES}/{name}")
    if not for_record:
        return forms
    small, small_sizes = _small(data, sizes)
    kept = data if forms.chars <= MAX_WHOLE_CHARS else {}
    return msgspec.structs.replace(forms, data=kept, small=small, small_sizes=small_sizes)


def _line(text: Any) -> str:
    """Return a text of a job as one short line."""
    return "".join(letter for letter in text[:_MAX_LINE] if letter.isprintable()) if isinstance(text, str) else ""


def _alt(metadata: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Return the text that the script has given for an image."""
    forms = [metadata[mime] for mime in IMAGES if mime in data and isinstance(metadata.get(mime), dict)]
    return _line(forms[0].get("alt")) if forms else ""


def _checked(mime: Any, form: Any) -> tuple[str, Any]:
    """Return the MIME type of a form by its content, and the form; ``None`` if it cannot be shown."""
    if mime in IMAGES and isinstance(form, str):
        return _image(form)
    if not isinstance(mime, str) or (isinstance(form, str) and len(form) > MAX_TEXT):
        return "", None
    if isinstance(form, str) and form.strip():
        form = form.encode("utf-8", "replace").decode()
        if mime in (MARKDOWN, LATEX, TEXT):
            return mime, form
        if mime == HTML:
            return mime, safe_html(form)
        if mime == SVG:
            return mime, form if media_type(form.encode()) == SVG else None
    elif isinstance(form, dict | list) and (mime == JSON or _DRAWN.match(mime)) and _size(form) <= _MAX_JSON:
        return mime, form if mime == JSON or not any(map(_ADDRESS.match, _addresses(form))) else None
    return mime, None


def _image(form: str) -> tuple[str, str | None]:
    try:
        data = base64.b64decode("".join(form.split()), validate=True)
    except (binascii.Error, ValueError):
        return "", None
    kind = media_type(data)
    return kind, base64.b64encode(data).decode() if kind in IMAGES else None


def _addresses(value: Any) -> Iterator[str]:
    """Yield the texts of a specification, of which some may name files to load; not its schema."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            left += [inner for key, inner in part.items() if key != "$schema"]
        elif isinstance(part, list):
            left += part


def _sizes(metadata: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    found = {}
    for mime in data:
        own = metadata.get(mime)
        if isinstance(own, dict):
            size = {k: own[k] for k in ("width", "height") if isinstance(own.get(k), int | float) and 0 < own[k] < 1e5}
            if size:
                found[mime] = size
    return found


def _small(data: Mapping[str, Any], sizes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Return a small copy of the image of a display, and its size on the page."""
    mime = next((mime for mime in IMAGES if mime in data), "")
    if not mime or len(data[mime]) <= MAX_WHOLE_IMAGE:
        return ({mime: data[mime]}, {mime: sizes[mime]} if mime in sizes else {}) if mime else ({}, {})
    (drawn,) = thumbnails([base64.b64decode(data[mime])])
    kind, _, copy = drawn.large.removeprefix("data:").partition(";base64,")
    if not copy:
        return {}, {}
    return {kind: copy}, {kind: sizes.get(mime) or _size_of(drawn)}


def _size_of(drawn: Thumbnail) -> dict[str, float]:
    return {"width": drawn.width, "height": drawn.height} if drawn.width and drawn.height else {}


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))
