"""Waits for changes of folders: by inotify where the system has it, else by comparing the times of their files."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
import time
from typing import Dict, List, Optional, Sequence, Set, Tuple

#: Seconds between two looks without inotify, and between two looks for folders that do not exist yet.
POLL_INTERVAL_S, ABSENT_INTERVAL_S = 0.1, 0.2
_MODIFY, _CREATE, _MOVED_TO, _IGNORED, _ONLYDIR = 0x2, 0x100, 0x80, 0x8000, 0x1000000
_EVENT = struct.Struct("iIII")
_NONBLOCK, _CLOEXEC = 0o4000, 0o2000000


class FolderWatch:
    """Changes of folders for several consumers; a change between two calls of one consumer is not lost."""

    def __init__(self) -> None:
        self._consumers: Dict[str, _Consumer] = {}
        self._guard = threading.Lock()

    def wait(self, paths: Sequence[str], timeout: float, key: str = "") -> List[str]:
        """Return which of `paths` have changed since the last call with this `key`, within `timeout` seconds.

        A folder counts as changed in its first call. A call ends an earlier one with the same `key`, which returns
        nothing.
        """
        with self._guard:
            consumer = self._consumers.get(key)
            if consumer is None:
                consumer = self._consumers[key] = _Consumer()
        return consumer.wait(set(paths), timeout)


class _Consumer:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = 0
        self._woken, self._wake = os.pipe()
        self._inotify = _open_inotify()
        self._watched: Dict[str, int] = {}
        self._paths: Dict[int, str] = {}
        self._changed: Set[str] = set()
        self._seen: Dict[str, Tuple[Tuple[str, int, int], ...]] = {}

    def wait(self, paths: Set[str], timeout: float) -> List[str]:
        end = time.monotonic() + timeout
        self._turn += 1
        turn = self._turn
        os.write(self._wake, b"w")
        with self._lock:
            os.read(self._woken, 1)  # each call reads what it wrote, or what woke an earlier one
            while turn == self._turn:
                absent = self._update(paths)
                found = self._changed & paths
                left = end - time.monotonic()
                if found or left <= 0:
                    self._changed -= found
                    return sorted(found)
                pause = left if self._inotify is not None and not absent else min(left, ABSENT_INTERVAL_S)
                watched = [self._woken] if self._inotify is None else [self._woken, self._inotify]
                select.select(watched, [], [], min(pause, POLL_INTERVAL_S) if self._inotify is None else pause)
                self._read()
            return []

    def _update(self, paths: Set[str]) -> bool:
        """Watch exactly these folders; return whether some of them do not exist."""
        if self._inotify is None:
            return self._compare(paths)
        libc, absent = _libc(), False
        for path in paths - set(self._watched):
            mask = _MODIFY | _CREATE | _MOVED_TO | _ONLYDIR
            number = libc.inotify_add_watch(self._inotify, os.fsencode(path), mask) if libc else -1
            if number < 0:
                absent = True
                continue
            self._watched[path], self._paths[number] = number, path
            self._changed.add(path)
        for path in set(self._watched) - paths:
            number = self._watched.pop(path)
            self._paths.pop(number, None)
            self._changed.discard(path)
            if libc:
                libc.inotify_rm_watch(self._inotify, number)
        return absent

    def _read(self) -> None:
        if self._inotify is None:
            return
        try:
            data = os.read(self._inotify, 1 << 16)
        except BlockingIOError:
            return
        at = 0
        while at + _EVENT.size <= len(data):
            number, mask, _, size = _EVENT.unpack_from(data, at)
            at += _EVENT.size + size
            path = self._paths.get(number)
            if number < 0:  # the queue of events was full
                self._changed |= set(self._watched)
            if path is not None:
                self._changed.add(path)
                if mask & _IGNORED:
                    self._paths.pop(number, None)
                    self._watched.pop(path, None)

    def _compare(self, paths: Set[str]) -> bool:
        for path in paths:
            now = _state(path)
            if now and self._seen.get(path) != now:
                self._seen[path] = now
                self._changed.add(path)
        return False


def _state(path: str) -> Tuple[Tuple[str, int, int], ...]:
    try:
        with os.scandir(path) as entries:
            found = []
            for entry in entries:
                status = entry.stat()
                found.append((entry.name, status.st_size, status.st_mtime_ns))
            return tuple(sorted(found)) or (("", 0, 0),)
    except OSError:
        return ()


_loaded: List[Optional[ctypes.CDLL]] = []


def _libc() -> Optional[ctypes.CDLL]:
    if not _loaded:
        try:
            library: Optional[ctypes.CDLL] = ctypes.CDLL(None, use_errno=True)
        except OSError:
            library = None
        _loaded.append(library if hasattr(library, "inotify_init1") else None)
    return _loaded[0]


def _open_inotify() -> Optional[int]:
    libc = _libc()
    number = libc.inotify_init1(_NONBLOCK | _CLOEXEC) if libc else -1
    return number if number >= 0 else None
