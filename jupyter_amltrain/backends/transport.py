"""Transports: how calls and bytes reach a machine."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import errno
import os
import stat
import sys
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain import errors
from jupyter_amltrain.agent.protocol import open_regular
from jupyter_amltrain.agent.whole_files import WholeFile, read_all
from jupyter_amltrain.backends.target_files import list_local
from jupyter_amltrain.backends.tree_copy import TreeCopy
from jupyter_amltrain.jobs.launch import TargetMachine
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.run_file import RunFile

if TYPE_CHECKING:
    from inotify_simple import INotify


class FileEvents(abc.ABC):
    """Change events of folders for one consumer; events between two calls are not lost."""

    @abc.abstractmethod
    async def wait(self, paths: Sequence[str], timeout: float) -> Collection[str]:
        """Wait until a file in the folders `paths` may have changed, or `timeout` s.

        Returns the changed folders; all of them if the machine has no change detection. A
        folder counts as changed in its first call.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Stop listening."""


class Transport(abc.ABC):
    """Transport to one machine. Loop thread only; no method blocks.

    Paths are paths on that machine. Only a machine that does not answer raises
    :class:`~jupyter_amltrain.errors.TargetUnreachable`.
    """

    #: State root of the agent on that machine.
    home: str
    #: Facts about that machine for the plans of jobs.
    machine: TargetMachine

    @abc.abstractmethod
    async def call(self, op: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Call the agent (see ``agent/calls.py``), which is started if necessary.

        Raises
        ------
        TargetUnreachable
            The machine does not answer.
        AmlTrainError
            The agent's error, with its own type if there is one.
        """

    @abc.abstractmethod
    async def put(self, files: Mapping[str, bytes | str], folder: str) -> None:
        """Write `files` under `folder` (0700/0600): bytes are written, a path is copied."""

    @abc.abstractmethod
    async def read_from(self, path: str, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes of `path` from byte `offset`; empty at the end or if absent."""

    @abc.abstractmethod
    async def size(self, path: str) -> int:
        """Return the size of `path` in bytes; 0 if absent."""

    @abc.abstractmethod
    async def stat(self, path: str) -> RunFile | None:
        """Return size and time of the file `path`; ``None`` if there is no regular file."""

    @abc.abstractmethod
    async def read_many(self, folder: str, names: Sequence[str], limit: int) -> Sequence[WholeFile | None]:
        """Return whole files by their paths in `folder`; see :func:`~..agent.whole_files.read_all`."""

    @abc.abstractmethod
    async def list(self, folder: str) -> Sequence[RunFile]:
        """Return all files below `folder`, with paths relative to it, by path; none if it does not exist."""

    @abc.abstractmethod
    async def fetch(self, path: str, without: Collection[str] = ()) -> str | None:
        """Return a local path of a file or folder, copied from another machine if needed; ``None`` if absent.

        Parameters
        ----------
        without
            Names of folders directly in it that need not be copied.
        """

    @abc.abstractmethod
    def events(self) -> FileEvents:
        """Return a new consumer of change events of folders."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Close files and connections; runs continue."""


#: Maximum number of open files.
MAX_OPEN_FILES = 64

#: Maximum number of bytes read on the loop; larger reads are done in a thread.
READ_BYTES = 1 << 16

_NOWAIT = getattr(os, "RWF_NOWAIT", None)


class OpenFileCache:
    """Cache of descriptors of growing files whose beginning has been read. For one thread."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._able = _NOWAIT is not None

    def read(self, path: str, offset: int, limit: int) -> bytes | None:
        """Return the same as :func:`read` without blocking, or ``None`` if the read has to be done in a thread."""
        fd = self._open.get(path)
        # Files that are replaced, not appended to, are read from offset 0.
        if fd is None or _NOWAIT is None or offset == 0:
            return None
        piece = bytearray(min(limit, READ_BYTES))
        try:
            count = os.preadv(fd, [piece], offset, _NOWAIT)
            # At the end of a deleted file: another file may have its name now.
            if count < READ_BYTES and os.fstat(fd).st_nlink == 0:
                self._forget(path)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                self._able = self._able and error.errno != errno.EOPNOTSUPP
                self._forget(path)
            return None
        return None if count == READ_BYTES else bytes(piece[:count])

    def wants(self, path: str, offset: int) -> bool:
        """Return whether to keep a descriptor of `path` after reading from `offset`."""
        return self._able and offset > 0 and path not in self._open

    def keep(self, path: str, fd: int) -> None:
        """Take over a descriptor."""
        if path in self._open:
            os.close(fd)
            return
        self.sweep()
        self._open[path] = fd
        if len(self._open) > MAX_OPEN_FILES:
            self._forget(next(iter(self._open)))

    def sweep(self) -> None:
        """Close deleted files: open ones still occupy their disk space."""
        for path, fd in list(self._open.items()):
            if os.fstat(fd).st_nlink == 0:
                self._forget(path)

    def _forget(self, path: str) -> None:
        os.close(self._open.pop(path))

    def close(self) -> None:
        """Close all."""
        for path in list(self._open):
            self._forget(path)


def read(path: str, offset: int, limit: int, keep: bool) -> tuple[bytes, int]:
    """Return up to `limit` bytes from `offset`, and the open descriptor if `keep`, else -1.

    Raises
    ------
    OSError
        The file does not exist, is not a regular file, or cannot be read.
    """
    fd = open_regular(path)
    try:
        os.lseek(fd, offset, os.SEEK_SET)
        parts = []
        while limit > 0 and (part := os.read(fd, limit)):
            parts.append(part)
            limit -= len(part)
    except BaseException:  # close the file after any error, and raise it again
        os.close(fd)
        raise
    if not keep:
        os.close(fd)
        fd = -1
    return b"".join(parts), fd


#: Seconds between two polls if the system has no change notification.
POLL_INTERVAL_S = 0.1


class FolderEvents(FileEvents):
    """Change events by inotify: files that appear, grow or are replaced in a folder."""

    def __init__(self) -> None:
        self._inotify: INotify | None = None
        self._watched: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        self._changed: set[str] = set()
        self._wake = asyncio.Event()

    async def wait(self, paths: Sequence[str], timeout: float) -> Collection[str]:
        """See :meth:`FileEvents.wait`."""
        requested = set(paths)
        if not self._watch(requested):
            await asyncio.sleep(min(POLL_INTERVAL_S, timeout))
            return list(requested)
        if not self._changed & requested:
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout)
        changed = self._changed & requested
        self._changed -= changed
        return changed

    def _watch(self, requested: set[str]) -> bool:
        """Watch exactly the requested folders; return False if the system does not support it."""
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
        for path in requested - self._watched.keys():
            try:
                wd = self._inotify.add_watch(path, mask)
            except (FileNotFoundError, NotADirectoryError):
                continue  # absent: the parent folder reports its creation
            except OSError:  # too many watches of this user
                return False
            self._watched[path], self._paths[wd] = wd, path
            self._changed.add(path)  # for changes before the watch
        for path in self._watched.keys() - requested:
            wd = self._watched.pop(path)
            self._paths.pop(wd, None)
            self._changed.discard(path)
            with contextlib.suppress(OSError):
                self._inotify.rm_watch(wd)
        return True

    def _drain(self) -> None:
        from inotify_simple import flags

        assert self._inotify is not None
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                self._changed |= self._watched.keys()
                continue
            path = self._paths.get(event.wd)
            if path is None:
                continue
            if event.mask & flags.IGNORED:  # the folder was deleted
                self._paths.pop(event.wd, None)
                self._watched.pop(path, None)
            self._changed.add(path)
        if self._changed:
            self._wake.set()

    def close(self) -> None:
        """See :meth:`FileEvents.close`."""
        if self._inotify is not None:
            with contextlib.suppress(RuntimeError):  # the loop is already closed
                asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None
            self._watched.clear()
            self._paths.clear()


# A path through a file, an invalid name and a circular link count as absent.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


class LocalTransport(Transport):
    """Transport to the machine that the kernel runs on.

    Parameters
    ----------
    loop
        Used to keep disk and sockets off the loop thread.
    home
        The state root.
    """

    def __init__(self, loop: LoopThread, home: Path) -> None:
        self._loop = loop
        self.home = str(home)
        self.machine = TargetMachine(python=sys.executable, has_our_disk=True)
        self._tails = OpenFileCache()
        self.copies: dict[str, TreeCopy] = {}  #: by the folder that :meth:`put` makes

    async def call(self, op: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """See :meth:`Transport.call`; starts no interpreter."""
        answer = await self._loop.offload(_call, op, dict(payload), self.home)
        self._tails.sweep()  # the call may have deleted files
        if error := answer.get("error"):
            raise agent_error(error)
        return answer

    async def put(self, files: Mapping[str, bytes | str], folder: str) -> None:
        """See :meth:`Transport.put`."""
        copy = self.copies[folder] = TreeCopy(files, Path(folder))
        try:
            await self._loop.offload(copy.run)
        except asyncio.CancelledError:
            copy.stop()
            raise
        except OSError as error:
            if not str(error.filename or "").startswith(self.home):
                raise
            raise _unusable(self.home, error) from error
        finally:
            del self.copies[folder]

    async def read_from(self, path: str, offset: int, limit: int) -> bytes:
        """See :meth:`Transport.read_from`."""
        if (fresh := self._tails.read(path, offset, limit)) is not None:
            return fresh
        try:
            data, fd = await self._loop.offload(read, path, offset, limit, self._tails.wants(path, offset))
        except OSError as error:
            if error.errno in _ABSENT:
                return b""
            raise
        if fd >= 0:
            self._tails.keep(path, fd)
        return data

    async def size(self, path: str) -> int:
        """See :meth:`Transport.size`."""
        return await self._loop.offload(_size, path)

    async def stat(self, path: str) -> RunFile | None:
        """See :meth:`Transport.stat`."""
        return await self._loop.offload(_stat, path)

    async def read_many(self, folder: str, names: Sequence[str], limit: int) -> Sequence[WholeFile | None]:
        """See :meth:`Transport.read_many`."""
        return await self._loop.offload(read_all, folder, tuple(names), limit)

    async def list(self, folder: str) -> Sequence[RunFile]:
        """See :meth:`Transport.list`."""
        return await self._loop.offload(list_local, folder)

    async def fetch(self, path: str, without: Collection[str] = ()) -> str | None:
        """See :meth:`Transport.fetch`; nothing is copied."""
        return path if await self._loop.offload(os.path.exists, path) else None

    def events(self) -> FileEvents:
        """See :meth:`Transport.events`."""
        return FolderEvents()

    async def close(self) -> None:
        """See :meth:`Transport.close`."""
        self._tails.close()


def agent_error(error: Mapping[str, Any]) -> errors.AmlTrainError:
    """Convert the agent's error to the error class of the same name, if there is one."""
    kind = errors.error_class(str(error.get("type"))) or errors.SubmitError
    code = str(error.get("code") or "")
    return kind(str(error.get("message")), code=code) if code else kind(str(error.get("message")))


def _call(op: str, payload: dict[str, Any], home: str) -> dict[str, Any]:
    from jupyter_amltrain.agent import calls, guests
    from jupyter_amltrain.backends.agent_zipapp import build
    from jupyter_amltrain.plugins import agent_parts

    for name, package in agent_parts().items():
        guests.register(name, package)
    try:
        agent = str(build(Path(home)))
    except OSError as error:
        raise _unusable(home, error) from error
    return calls.call(op, payload, home, queue=None, agent=agent)


def _unusable(home: str, error: OSError) -> errors.StateError:
    """Return the error for a file below `home` that cannot be written."""
    return errors.StateError(
        f"Cannot write {error.filename or home}: {error.strerror or error}.",
        hint=f"Make {home} writable, or set AMLTRAIN_HOME to a folder that is, then restart the kernel.",
    )


def _size(path: str) -> int:
    try:
        facts = os.stat(path)
        return facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise


def _stat(path: str) -> RunFile | None:
    try:
        facts = os.stat(path)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    return RunFile(path=path, size=facts.st_size, modified=facts.st_mtime) if stat.S_ISREG(facts.st_mode) else None
