"""News of folders on this machine, from the kernel by inotify (Linux) or by looking.

Each :class:`FolderChanges` has an inotify instance of its own: what one consumer has
taken is still news for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from jupyter_amltrain.transports.base import Changes

if TYPE_CHECKING:
    from inotify_simple import INotify

#: Where the system cannot tell us of changes, look this often (seconds).
LOOK = 0.1


class FolderChanges(Changes):
    """See :class:`Changes`. Files that appear, grow or are replaced in a folder are its news."""

    def __init__(self) -> None:
        self._inotify: INotify | None = None
        self._watched: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        self._news: set[str] = set()
        self._wake = asyncio.Event()

    async def wait(self, paths: Sequence[str], timeout: float) -> Collection[str]:
        """See :meth:`Changes.wait`."""
        wanted = set(paths)
        if not self._watch(wanted):
            await asyncio.sleep(min(LOOK, timeout))
            return list(wanted)
        if not self._news & wanted:
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout)
        news = self._news & wanted
        self._news -= news
        return news

    def _watch(self, wanted: set[str]) -> bool:
        """Watch exactly `wanted`; False when the system cannot."""
        if sys.platform != "linux":
            return False
        from inotify_simple import INotify, flags

        if self._inotify is None:
            try:
                self._inotify = INotify(nonblocking=True)
            except OSError:  # too many instances of this user
                return False
            asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._drain)
        mask = flags.MODIFY | flags.MOVED_TO | flags.CREATE | flags.ONLYDIR
        for path in wanted - self._watched.keys():
            try:
                wd = self._inotify.add_watch(path, mask)
            except (FileNotFoundError, NotADirectoryError):
                continue  # not there yet: the folder above tells when it comes
            except OSError:  # too many watches of this user
                return False
            self._watched[path], self._paths[wd] = wd, path
            self._news.add(path)  # what came before the watch is news too
        for path in self._watched.keys() - wanted:
            wd = self._watched.pop(path)
            self._paths.pop(wd, None)
            self._news.discard(path)
            with contextlib.suppress(OSError):
                self._inotify.rm_watch(wd)
        return True

    def _drain(self) -> None:
        from inotify_simple import flags

        assert self._inotify is not None
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                self._news |= self._watched.keys()
                continue
            path = self._paths.get(event.wd)
            if path is None:
                continue
            if event.mask & flags.IGNORED:  # the folder is gone
                self._paths.pop(event.wd, None)
                self._watched.pop(path, None)
            self._news.add(path)
        if self._news:
            self._wake.set()

    def close(self) -> None:
        """See :meth:`Changes.close`."""
        if self._inotify is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None
            self._watched.clear()
            self._paths.clear()
