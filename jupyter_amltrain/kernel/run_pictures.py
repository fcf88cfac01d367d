"""``RunPictures``: image files of one run, with the thumbnails of the newest. Loop thread only."""

from __future__ import annotations

import asyncio

import msgspec

from jupyter_amltrain.schema.record import RunPicture
from jupyter_amltrain.tracking.thumbnails import Thumbnail

#: Path, size and time of a file.
PictureKey = tuple[str, int, float]

#: Pictures in a record, and characters of all their thumbnails.
MAX_SHOWN, MAX_THUMBNAIL_CHARS = 12, 60_000


class RunPictures:
    """Image files of one run, with the thumbnails of the newest."""

    def __init__(self) -> None:
        self.found: tuple[RunPicture, ...] = ()  #: oldest first, without thumbnails
        self.drawn: dict[PictureKey, Thumbnail] = {}  #: by path, size and time
        self.read = False  #: a search has ended
        self.final = False  #: it was a search after the end of the run
        self.due = 0.0  #: of the next search, monotonic seconds
        self.wanted = False
        self.task: asyncio.Task[None] | None = None
        self.lock = asyncio.Lock()

    def shown(self, room: int = MAX_THUMBNAIL_CHARS) -> tuple[RunPicture, ...]:
        """Return the newest pictures with thumbnails of at most `room` characters, oldest first."""
        newest = self.found[-MAX_SHOWN:]
        drawn = [self.drawn.get(key_of(picture), Thumbnail()) for picture in newest]
        is_large = sum(len(thumbnail.large) for thumbnail in drawn) <= room
        shown = []
        for picture, thumbnail in reversed(list(zip(newest, drawn, strict=True))):
            url = thumbnail.large if is_large else thumbnail.small
            room -= len(url)
            shown.append(_with(picture, thumbnail, url if room >= 0 else ""))
        return tuple(reversed(shown))

    @property
    def hidden(self) -> int:
        """Number of pictures that a record does not contain."""
        return max(0, len(self.found) - MAX_SHOWN)

    def get(self, path: str) -> RunPicture | None:
        """Return a picture by its path."""
        return next((picture for picture in self.found if picture.path == path), None)


def key_of(picture: RunPicture) -> PictureKey:
    """Return the key of a picture's current content."""
    return picture.path, picture.bytes, picture.time


def _with(picture: RunPicture, drawn: Thumbnail, url: str) -> RunPicture:
    size = {"width": drawn.width, "height": drawn.height}
    return msgspec.structs.replace(picture, **size, title=drawn.title, thumbnail=url)
