"""Pictures of runs: which image files a run has, and their thumbnails. Loop thread only."""

from __future__ import annotations

import asyncio
import logging
import posixpath
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyter_amltrain.agent.protocol import PICTURES
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.kernel.run_pictures import MAX_SHOWN, PictureKey, RunPictures, key_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.record import RunPicture
from jupyter_amltrain.schema.run import RunHandle
from jupyter_amltrain.tracking.thumbnails import MAX_FILE_BYTES, Thumbnail, thumbnails

log = logging.getLogger(__name__)

#: Characters of a name and of a path; files with a longer path are not shown.
_MAX_NAME_CHARS, _MAX_PATH_CHARS = 120, 500
#: Seconds between two searches for new files of one run.
SEARCH_INTERVAL_S = 1.0
#: Seconds that a reader waits for the pictures of a run.
WAIT_TIMEOUT_S = 10.0
#: Maximum times that thumbnails are drawn in one search.
_MAX_ROUNDS = 4
#: Bytes of new files that are read for one search.
_MAX_READ_BYTES = 64 << 20
#: File name of ``mlflow.log_image(image, key=..., step=...)``.
_LOGGED_IMAGE = re.compile(r"(?P<key>.+?)([+%])step\2(?P<step>\d+)\2timestamp\2\d+\2[^+%]*\.\w+")


class PictureReader:
    """Searches the files of runs for pictures and draws their thumbnails in the background.

    Parameters
    ----------
    backend
        Returns the live backend of a target.
    on_change
        Called with the handle of a run whose pictures have changed.
    """

    def __init__(
        self, loop: LoopThread, backend: Callable[[str], Backend], on_change: Callable[[RunHandle], None]
    ) -> None:
        self._loop, self._backend, self._on_change = loop, backend, on_change

    def request(self, entry: Entry) -> None:
        """Search soon; a run that changes all the time is searched once a second."""
        pictures = entry.pictures
        pictures.wanted = True
        if pictures.task is None or pictures.task.done():
            pictures.task = self._loop.start(self._follow(entry, pictures), f"pictures of {entry.handle}")

    async def _follow(self, entry: Entry, pictures: RunPictures) -> None:
        while pictures.wanted:
            await asyncio.sleep(max(0.0, pictures.due - time.monotonic()))
            pictures.wanted = False
            if await self._update(entry, pictures, entry.run.status.state.terminal):
                self._notify(entry, pictures)

    def _notify(self, entry: Entry, pictures: RunPictures) -> None:
        if entry.has_pictures(pictures):
            self._on_change(entry.handle)

    async def complete(self, entry: Entry, timeout: float = WAIT_TIMEOUT_S, *, has_ended: bool = False) -> None:
        """Wait until the pictures of a run are known: of an ended run once, otherwise as they are now.

        Parameters
        ----------
        has_ended
            The run has ended, and its entry does not say so yet.
        """
        pictures, has_ended = entry.pictures, has_ended or entry.run.status.state.terminal
        if not entry.run.folder or entry.kind != "run" or pictures.final:
            return
        if pictures.read and time.monotonic() < pictures.due and not has_ended:
            return
        update = self._loop.start(self._update(entry, pictures, has_ended), f"pictures of {entry.handle}")
        if not (await asyncio.wait({update}, timeout=timeout))[0]:
            update.add_done_callback(lambda task: self._notify(entry, pictures))  # the names are known now

    async def _update(self, entry: Entry, pictures: RunPictures, has_ended: bool) -> bool:
        """Search now; return whether anything has changed."""
        try:
            async with pictures.lock:
                return await self._search(entry, pictures, has_ended)
        except (AmlTrainError, OSError) as error:
            log.info("pictures of %s: %s", entry.handle, error)
        except Exception:  # a job can write anything into its folder
            log.warning("pictures of %s", entry.handle, exc_info=True)
        return False

    async def _search(self, entry: Entry, pictures: RunPictures, has_ended: bool) -> bool:
        backend = self._backend(entry.run.target)
        rows = pictures_of(await backend.files.list_pictures(entry.run_id))
        pictures.due = time.monotonic() + SEARCH_INTERVAL_S
        before, drawn = pictures.found, pictures.drawn
        for _ in range(_MAX_ROUNDS):  # files that turn out to be no images make room for older ones
            pictures.found = _images(rows, drawn)
            new = [picture for picture in pictures.found[-MAX_SHOWN:] if key_of(picture) not in drawn]
            if not new:
                break
            drawn = drawn | await self._draw(backend, entry.run_id, new)
        changed = drawn != pictures.drawn or pictures.found != before
        listed, recent = set(map(key_of, rows)), set(map(key_of, pictures.found[-2 * MAX_SHOWN :]))
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
