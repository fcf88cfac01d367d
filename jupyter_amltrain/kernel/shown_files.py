"""Files of one run that its record shows: displayed values between the lines of the log, and pictures.

Loop thread only. :mod:`jupyter_amltrain.kernel.shown_reader` reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import msgspec

from jupyter_amltrain.kernel.display_forms import MAX_WHOLE_CHARS, TEXT, Forms
from jupyter_amltrain.kernel.streams import ShownPlace
from jupyter_amltrain.schema.record import RunDisplay, RunPicture
from jupyter_amltrain.tracking.thumbnails import Thumbnail

#: Displays in a record, characters of all their forms, and of these and the thumbnails of pictures.
MAX_DISPLAYS, MAX_CHARS, MAX_WITH_PICTURES = 12, 40_000, 48_000
#: Pictures in a record, and characters of all their thumbnails where nothing is displayed.
MAX_PICTURES, MAX_THUMBNAIL_CHARS = 12, 60_000
#: Times that the file of a display is looked for: it may come after the line of the log.
MAX_TRIES = 30

#: Path, size and time of a file.
PictureKey = tuple[str, int, float]


class FileReading:
    """State of the reading of one kind of files of one run, in the background."""

    def __init__(self) -> None:
        self.wanted = False
        self.due = 0.0  #: monotonic seconds before which they are not read again
        self.task: asyncio.Task[None] | None = None
        self.lock = asyncio.Lock()


class RunDisplays:
    """Displays of one run that its log names, or its folder has."""

    def __init__(self) -> None:
        self.reading = FileReading()
        self.forms: dict[int, Forms] = {}  #: by number
        self.tries: dict[int, int] = {}  #: of those whose file was not there
        self.listed: tuple[int, ...] = ()  #: numbers of files from before the known part of the log
        self.listed_for: Any = None  #: state of the log for which they were listed

    def shown(self, among: Sequence[ShownPlace]) -> tuple[tuple[RunDisplay, ...], int]:
        """Return the newest displays with the forms that fit in a record, in the order of the log; and how many more.

        Parameters
        ----------
        among
            Their places in the log, of those that it names.
        """
        places = {place.number: place for place in among}
        numbers = [*(n for n in self.listed if n not in places), *places]
        left, found = MAX_CHARS, []
        for number in reversed(numbers[-MAX_DISPLAYS:]):
            if number not in self.forms:
                continue
            forms, place = self.forms[number], places.get(number)
            data = {mime: form for mime, form in forms.data.items() if mime != TEXT} or forms.data
            sizes, is_partial = forms.sizes, False
            if forms.chars > min(left, MAX_WHOLE_CHARS):
                data, sizes, is_partial = forms.small, forms.small_sizes, True
                if _chars_of(data) > left:
                    data = {}
            if forms.picture and not data:  # it stands among the pictures
                continue
            left -= _chars_of(data)
            shown = RunDisplay(
                number=number, version=forms.version, data=data, sizes=sizes, partial=is_partial,
                picture=forms.picture, title=forms.title,
            )  # fmt: skip
            found.append(msgspec.structs.replace(shown, line=place.line, blocks=place.blocks) if place else shown)
        return tuple(reversed(found)), max(0, len(numbers) - MAX_DISPLAYS)


class RunPictures:
    """Image files of one run, with the thumbnails of the newest."""

    def __init__(self) -> None:
        self.reading = FileReading()
        self.found: tuple[RunPicture, ...] = ()  #: oldest first, without thumbnails
        self.drawn: dict[PictureKey, Thumbnail] = {}  #: by path, size and time
        self.read = False  #: a search has ended
        self.final = False  #: it was a search after the end of the run

    def shown(
        self, room: int = MAX_THUMBNAIL_CHARS, without: Container[str] = ()
    ) -> tuple[tuple[RunPicture, ...], int]:
        """Return the newest pictures, oldest first, and how many more there are.

        Parameters
        ----------
        room
            Characters of all their thumbnails.
        without
            Paths of pictures that stand between the lines of the log.
        """
        found = [picture for picture in self.found if picture.path not in without]
        newest = found[-MAX_PICTURES:]
        drawn = [self.drawn.get(key_of(picture), Thumbnail()) for picture in newest]
        is_large = sum(len(thumbnail.large) for thumbnail in drawn) <= room
        shown = []
        for picture, thumbnail in reversed(list(zip(newest, drawn, strict=True))):
            url = thumbnail.large if is_large else thumbnail.small
            room -= len(url)
            shown.append(_with(picture, thumbnail, url if room >= 0 else ""))
        return tuple(reversed(shown)), max(0, len(found) - MAX_PICTURES)

    def get(self, path: str) -> RunPicture | None:
        """Return a picture by its path."""
        return next((picture for picture in self.found if picture.path == path), None)


class ShownFiles(NamedTuple):
    """What a record shows of the files of a run, and how many more of each there are."""

    displays: tuple[RunDisplay, ...]
    displays_hidden: int
    pictures: tuple[RunPicture, ...]
    pictures_hidden: int


def shown_files(displays: RunDisplays, pictures: RunPictures, places: Sequence[ShownPlace]) -> ShownFiles:
    """Return what fits in a record; a picture stands in the log or among the pictures, not in both."""
    shown, hidden = displays.shown(places)
    figures = sum(_chars_of(display.data) for display in shown if display.picture)
    others = sum(_chars_of(display.data) for display in shown if not display.picture)
    room = max(0, (MAX_WITH_PICTURES if others else MAX_THUMBNAIL_CHARS) - others - figures)
    return ShownFiles(shown, hidden, *pictures.shown(room, {display.picture for display in shown}))


def key_of(picture: RunPicture) -> PictureKey:
    """Return the key of a picture's current content."""
    return picture.path, picture.bytes, picture.time


def _with(picture: RunPicture, drawn: Thumbnail, url: str) -> RunPicture:
    size = {"width": drawn.width, "height": drawn.height}
    return msgspec.structs.replace(picture, **size, title=drawn.title, thumbnail=url)


def _chars_of(data: dict[str, Any]) -> int:
    return len(msgspec.json.encode(data)) if data else 0
