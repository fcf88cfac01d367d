"""Pictures of runs: which image files a run has, and their thumbnails. Loop thread only."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.agent.protocol import PICTURES
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.kernel.shown_files import MAX_PICTURES, PictureKey, RunPictures, key_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.record import RunPicture
from jupyter_amltrain.tracking.thumbnails import MAX_FILE_BYTES, Thumbnail, thumbnails

#: Characters of a name and of a path; files with a longer path are not shown.
_MAX_NAME_CHARS, _MAX_PATH_CHARS = 120, 500
#: Maximum times that thumbnails are drawn in one search.
_MAX_ROUNDS = 4
#: Bytes of new files that are read for one search.
_MAX_READ_BYTES = 64 << 20
#: File name of ``mlflow.log_image(image, key=..., step=...)``.
_LOGGED_IMAGE = re.compile(r"(?P<key>.+?)([+%])step\2(?P<step>\d+)\2timestamp\2\d+\2[^+%]*\.\w+")


class PictureFiles:
    """The image files of runs; a :class:`~jupyter_amltrain.kernel.shown_reader.ShownKind`."""

    name, interval_s = "pictures", 1.0

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop

    def of(self, entry: Entry) -> RunPictures:
        """Return what is known of a run's pictures."""
        return entry.pictures

    def is_known(self, entry: Entry, *, has_ended: bool) -> bool:
        """Whether they were searched after the end, or just now."""
        pictures = entry.pictures
        return pictures.final or (pictures.read and not has_ended and time.monotonic() < pictures.reading.due)

    async def read(self, entry: Entry, backend: Backend, *, has_ended: bool) -> bool:
        """Search now; return whether anything has changed."""
        pictures = entry.pictures
        rows = pictures_of(await backend.files.list_pictures(entry.run_id))
        before, drawn = pictures.found, pictures.drawn
        for _ in range(_MAX_ROUNDS):  # files that turn out to be no images make room for older ones
            pictures.found = _images(rows, drawn)
            new = [picture for picture in pictures.found[-MAX_PICTURES:] if key_of(picture) not in drawn]
            if not new:
                break
            drawn = drawn | await self._draw(backend, entry.run_id, new)
        changed = drawn != pictures.drawn or pictures.found != before
        listed, recent = set(map(key_of, rows)), set(map(key_of, pictures.found[-2 * MAX_PICTURES :]))
        pictures.drawn = {
            key: one for key, one in drawn.items() if key in recent or (key in listed and not one.is_image)
        }
        pictures.found, pictures.read, pictures.final = _images(rows, drawn), True, has_ended
        return changed

    async def _draw(self, backend: Backend, run_id: str, new: Sequence[RunPicture]) -> dict[PictureKey, Thumbnail]:
        """Return the thumbnails of pictures, the newest first; empty ones of files that are too large."""
        left, keys, files = _MAX_READ_BYTES, [], []
        for picture in reversed(new):
            if picture.bytes <= min(left, MAX_FILE_BYTES):
                data = await backend.files.read(run_id, picture.path, MAX_FILE_BYTES)
                left -= len(data)
                keys.append(key_of(picture))
                files.append(data)
        drawn = await self._loop.offload(thumbnails, files) if files else []
        return {key_of(picture): Thumbnail() for picture in new} | dict(zip(keys, drawn, strict=True))


def _images(rows: Sequence[RunPicture], drawn: Mapping[PictureKey, Thumbnail]) -> tuple[RunPicture, ...]:
    """Return the rows without files that turned out to be no images."""
    return tuple(picture for picture in rows if drawn.get(key_of(picture), Thumbnail()).is_image)


def pictures_of(rows: Sequence[Mapping[str, Any]]) -> tuple[RunPicture, ...]:
    """Convert the rows of ``Backend.list_pictures``."""
    pictures = []
    for row in rows:
        path = str(row["path"])
        if len(path) <= _MAX_PATH_CHARS:
            kind = "figure" if path.startswith(f"{PICTURES}/") else "artifact"
            pictures.append(
                RunPicture(
                    path=path,
                    name=_name(path),
                    kind=kind,
                    bytes=int(row["size"]),
                    time=round(float(row["modified"]), 3),
                )
            )
    return tuple(pictures)


def _name(path: str) -> str:
    """Return the name of a file for display."""
    name = posixpath.basename(path)
    if match := _LOGGED_IMAGE.fullmatch(name):
        name = f"{match['key'].replace('~', '/')} step {match['step']}"
    name = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 1]}…"
