"""Thumbnails of image files that a job wrote, drawn by a short process of their own.

The files may be anything: ``python -m jupyter_amltrain.tracking.thumbnails`` has limits of memory and time, and a file
that ends the process costs only its own thumbnail. It imports Pillow, which comes with Matplotlib.
"""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec

from jupyter_amltrain.rpc import child_process

#: Files over this size have no thumbnail, bytes.
MAX_FILE_BYTES = 16 << 20
#: Pixels of an image that is decoded.
MAX_PIXELS = 48_000_000
#: Bytes of the two sizes of a thumbnail, before base64, and the heights in pixels that are tried.
LARGE_BYTES, SMALL_BYTES = 9_000, 3_200
_HEIGHTS = {LARGE_BYTES: (360, 300, 240, 180, 140), SMALL_BYTES: (180, 140, 110, 80, 56)}
#: Width of a thumbnail relative to its height.
_MAX_RATIO = 3
#: Files that are given to one process, and its limits.
MAX_FILES, TIMEOUT_S, MAX_MEMORY_BYTES, MAX_CPU_S = 24, 30.0, 2 << 30, 20
#: Image types by the first bytes of a file.
_TYPES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"\s*(?:<\?xml[^>]*>\s*|<!--.*?-->\s*|<!DOCTYPE[^>]*>\s*)*<svg\b", re.DOTALL), "image/svg+xml"),
)


class Thumbnail(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a file; `large` and `small` are ``data:`` URLs, or empty."""

    is_image: bool = True  #: or unknown

    width: int = 0
    height: int = 0
    title: str = ""
    large: str = ""
    small: str = ""


def media_type(data: bytes) -> str:
    """Return the media type of an image file by its content; empty if it is none that a page can show."""
    return next((name for pattern, name in _TYPES if pattern.match(data[:2000])), "")


def thumbnails(files: Sequence[bytes]) -> list[Thumbnail]:
    """Return the thumbnails of image files, in their order. Blocks for up to a minute.

    A file that cannot be decoded gets an empty one.
    """
    drawn: list[Thumbnail] = []
    failures = 0
    while len(drawn) < len(files) and failures < 3:
        some = files[len(drawn) : len(drawn) + MAX_FILES]
        lines = _run(some)
        drawn += lines
        if len(lines) < len(some):  # the process died of the next file
            failures += 1
            drawn.append(Thumbnail())
    return drawn + [Thumbnail()] * (len(files) - len(drawn))


def _run(files: Sequence[bytes]) -> list[Thumbnail]:
    data = b"".join(struct.pack(">Q", len(file)) + file for file in files)
    process = subprocess.Popen(
        child_process.command(__name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_process.environment(),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(data, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    found = []
    for line in output.splitlines()[: len(files)]:
        try:
            found.append(msgspec.json.decode(line, type=Thumbnail))
        except msgspec.MsgspecError:
            break
    return found


# ---- in the process


def main() -> None:
    """Entry point of the process: files, each after its length, to one line of JSON for each."""
    _limit()
    source: BinaryIO = sys.stdin.buffer
    while head := source.read(8):
        (size,) = struct.unpack(">Q", head)
        data = source.read(size)
        try:
            facts = draw(data)
        except Exception:  # the decoder of a damaged file may raise anything
            facts = {}
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def _limit() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    except (ImportError, OSError, ValueError):  # Windows, or a lower limit is set: the time limit remains
        pass


def draw(data: bytes) -> dict[str, Any]:
    """Return the fields of a file's :class:`Thumbnail`."""
    kind = media_type(data)
    if not kind:
        return {"is_image": False}
    if kind == "image/svg+xml":
        width, height = _svg_size(data)
        return {"width": width, "height": height, **_original(kind, data)}
    try:
        from PIL import Image
    except ImportError:
        return _original(kind, data)
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    image: Any = Image.open(io.BytesIO(data), formats=["PNG", "JPEG", "GIF", "WEBP"])
    facts: dict[str, Any] = {"width": image.width, "height": image.height}
    title = str(image.info.get("Title") or "") if kind == "image/png" else ""
    facts["title"] = " ".join(title.split())[:200].encode("utf-8", "replace").decode()
    if image.width * image.height > MAX_PIXELS:
        return facts
    image.draft("RGB", (1200, 600))  # a large photo is decoded at a fraction of its size
    image.thumbnail((1200, 600))
    image = _on_white(image)
    return facts | {"large": _encoded(image, LARGE_BYTES), "small": _encoded(image, SMALL_BYTES)}


def _on_white(image: Any) -> Any:
    """Return the image without transparency, as dark text on a dark page cannot be read."""
    from PIL import Image

    image = image.convert("RGBA")
    base = Image.new("RGBA", image.size, "white")
    base.alpha_composite(image)
    return base.convert("RGB")


def _encoded(image: Any, limit: int) -> str:
    """Return the largest copy of an image within `limit` bytes as a URL."""
    from PIL import features

    options = {"format": "WEBP", "quality": 82, "method": 4} if features.check("webp") else {"format": "JPEG"}
    for height in _HEIGHTS[limit]:
        copy = image.copy()
        copy.thumbnail((_MAX_RATIO * height, height))
        data = io.BytesIO()
        copy.save(data, **options)
        if data.tell() <= limit:
            return _url(f"image/{options['format']}".lower(), data.getvalue())
    return ""


def _original(kind: str, data: bytes) -> dict[str, str]:
    """Return the file itself as its thumbnail if it is small."""
    return {
        "large": _url(kind, data) if len(data) <= LARGE_BYTES else "",
        "small": _url(kind, data) if len(data) <= SMALL_BYTES else "",
    }


def _url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _svg_size(data: bytes) -> tuple[int, int]:
    """Return width and height of an SVG file in pixels, from its first element; zeros if it names none."""
    match = re.search(rb"<svg\b[^>]*", data[:20_000])
    head, number = match[0] if match else b"", rb"\s*=\s*[\"']\s*(\d{1,5}(?:\.\d*)?)\s*(pt|px)?\s*[\"']"
    found = []
    for name in (rb"\bwidth", rb"\bheight"):
        size = re.search(name + number, head)
        found.append(round(float(size[1]) * (4 / 3 if size[2] == b"pt" else 1)) if size else 0)
    return found[0], found[1]


if __name__ == "__main__":
    main()
