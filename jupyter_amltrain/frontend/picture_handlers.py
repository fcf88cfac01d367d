"""Operations on the pictures and displays of a run: their list, and a whole picture."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.frontend.protocol import Reply, Request, op
from jupyter_amltrain.kernel.shown_files import shown_files
from jupyter_amltrain.kernel.streams import above_all_lines
from jupyter_amltrain.schema.record import RunDisplay, RunPicture
from jupyter_amltrain.tracking.thumbnails import media_type

if TYPE_CHECKING:
    from jupyter_amltrain.kernel.controller import Controller

#: Maximum bytes of a file in one reply; a multiple of 3, so that the parts in base64 can be joined.
MAX_PART_BYTES = 3 << 17


class GetPictures(Request, frozen=True, kw_only=True):
    """Get the pictures of one run, with thumbnails, and its displays."""

    handle: str


class PicturesReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`GetPictures`: the newest pictures and displays, oldest first, and the number of others."""

    pictures: tuple[RunPicture, ...] = ()
    hidden: int = 0
    displays: tuple[RunDisplay, ...] = ()
    displays_hidden: int = 0


class GetPicture(Request, frozen=True, kw_only=True):
    """Get a part of a picture's file.

    Attributes
    ----------
    path
        As the list of pictures names it.
    offset
        First byte.
    """

    handle: str
    path: str
    offset: int = 0


class PictureReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`GetPicture`.

    Attributes
    ----------
    mime
        Media type, by the file's content.
    data
        Bytes from the requested offset, base64; empty at the end.
    bytes
        Size of the whole file.
    """

    mime: str
    data: str = ""
    bytes: int = 0


class PictureHandlers:
    """Handlers of the operations ``pictures`` and ``picture``."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @op("pictures")
    async def list(self, request: GetPictures) -> PicturesReply:
        """Return the pictures and displays of a run that are known; a search for new ones begins."""
        entry = await self._controller.source(request.handle)
        files = shown_files(entry.displays, entry.pictures, above_all_lines(entry.log.end().places))
        return PicturesReply(
            pictures=files.pictures,
            hidden=files.pictures_hidden,
            displays=files.displays,
            displays_hidden=files.displays_hidden,
        )

    @op("picture")
    async def read(self, request: GetPicture) -> PictureReply:
        """Return a part of a picture's file."""
        controller = self._controller
        data = await controller.contents.read_picture(await controller.find(request.handle), request.path)
        if not data:
            raise CommandError(
                f"Cannot show {request.path[:200]!r}: it is no image, is over 16 MiB, or was deleted.",
                hint=f"Look into the run's folder: %aml_runs show {request.handle}",
            )
        part = data[max(0, request.offset) :][:MAX_PART_BYTES]
        return PictureReply(mime=media_type(data), data=base64.b64encode(part).decode(), bytes=len(data))
