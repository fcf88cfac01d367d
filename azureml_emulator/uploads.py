"""Uploads files of a job's nodes to its artifact store, while it runs and at its end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from azureml_emulator.blob import Blob

# Files that grow: they become append blobs and only new bytes are sent. All others are sent whole when they rest.
GROWING = (".jsonl", ".txt", ".log", ".out", ".csv")


@dataclass
class _Seen:
    """What of a file is in the store."""

    inode: int
    size: int
    mtime: int
    growing: bool
    waits: bool = False


async def begin(store: Blob, container: str, name: str) -> None:
    """An empty append blob; what was there is gone."""
    headers = {"x-ms-blob-type": "AppendBlob", "x-ms-blob-content-type": "text/plain"}
    await store.request("PUT", f"/{container}/{name}", "", b"", headers)


class Uploads:
    """Copies folders to containers, again and again.

    Parameters
    ----------
    store
        Where to.
    folders
        ``(local folder, container, prefix in it, live)``; a folder that is not live is copied by the last call only.
    private
        Also files that only their owner may read (switch ``uploader_user``).
    appended
        Files that grow are append blobs; else they are written whole each time (switch ``logs_appended``).
    """

    def __init__(
        self,
        store: Blob,
        folders: list[tuple[Path, str, str, bool]],
        private: bool = True,
        appended: bool = True,
    ) -> None:
        self._store = store
        self._private, self._appended = private, appended
        self._folders = folders
        self._seen: dict[Path, _Seen] = {}
        self._busy = asyncio.Lock()

    async def copy(self, last: bool = False) -> None:
        """Copy what is new.

        Parameters
        ----------
        last
            Nothing writes any more: files that have only just changed, and folders that are not live, go too.
        """
        async with self._busy:
            for folder, container, prefix, live in self._folders:
                if not live and not last:
                    continue
                for path in _files(folder):
                    try:
                        await self._one(path, container, prefix + path.relative_to(folder).as_posix(), last)
                    except (OSError, aiohttp.ClientError):
                        # It was replaced or removed while it was read; the next round reads it again.
                        if last:
                            raise

    async def _one(self, path: Path, container: str, name: str, last: bool) -> None:
        found = path.stat()
        if not self._private and not found.st_mode & 0o004:
            return
        seen = self._seen.get(path)
        same = seen is not None and seen.inode == found.st_ino
        rests = seen is not None and same and (seen.size, seen.mtime) == (found.st_size, found.st_mtime_ns)
        if seen is not None and rests and not seen.waits:
            return
        growing = path.suffix in GROWING
        if growing and not self._appended:
            await self._store.put(container, name, path.read_bytes(), "text/plain")
            self._seen[path] = _Seen(found.st_ino, found.st_size, found.st_mtime_ns, True)
            return
        if not growing:
            # Whole files: wait until one round has seen no change, so that half a model is not sent twice a second.
            if found.st_size <= 1 << 20 or rests or last:
                await self._store.put(container, name, path.read_bytes(), "application/octet-stream")
                self._seen[path] = _Seen(found.st_ino, found.st_size, found.st_mtime_ns, False)
            else:
                self._seen[path] = _Seen(found.st_ino, found.st_size, found.st_mtime_ns, False, waits=True)
            return
        at = seen.size if seen is not None and same and found.st_size >= seen.size else 0
        if seen is not None and at == found.st_size and at > 0 and same and not seen.waits:
            at = 0  # rewritten in place, at the same length
        if at == 0 and not (seen is not None and same and seen.size == 0):
            await begin(self._store, container, name)
        with open(path, "rb") as file:
            file.seek(at)
            data = file.read(found.st_size - at)
        if data:
            await self._store.append(container, name, data)
        self._seen[path] = _Seen(found.st_ino, at + len(data), found.st_mtime_ns, True)


def _files(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(here, name)
            if path.is_file() and not path.is_symlink():
                yield path
