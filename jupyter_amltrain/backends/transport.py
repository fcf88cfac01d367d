"""Transports: how calls and bytes reach a machine."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import errno
import os
import shutil
import stat
import sys
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain import errors
from jupyter_amltrain.agent.protocol import open_regular
from jupyter_amltrain.jobs.launch import TargetMachine
from jupyter_amltrain.loop import LoopThread

if TYPE_CHECKING:
    from inotify_simple import INotify


class FileEvents(abc.ABC):
    """News of folders for one consumer; what came between two calls is not lost."""

    @abc.abstractmethod
    async def wait(self, paths: Sequence[str], timeout: float) -> Collection[str]:
        """Wait until something in the folders `paths` may have changed, or `timeout` s.

        Returns the folders with news; all of them where the machine cannot tell. A
        folder's first mention is news.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Stop listening."""


class Transport(abc.ABC):
    """Reaches one machine. Every method runs on the loop and blocks nothing.

    Paths are paths of that machine. A machine that does not answer raises
    :class:`~jupyter_amltrain.errors.TargetUnreachable`; nothing else does.
    """

    #: State root of the agent on that machine.
    home: str
    #: What the plans of jobs must know about that machine.
    machine: TargetMachine

    @abc.abstractmethod
    async def call(self, op: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """One call of the agent (see ``agent/calls.py``), started there if need be.

        Raises
        ------
        TargetUnreachable
            The machine does not answer.
        AmlTrainError
            What the agent refused, as its own error type where it has one.
        """

    @abc.abstractmethod
    async def put(self, files: Mapping[str, bytes | str], folder: str) -> None:
        """Write `files` under `folder` (0700/0600): bytes as they are, a path is copied."""

    @abc.abstractmethod
    async def read_from(self, path: str, offset: int, limit: int) -> bytes:
        """Up to `limit` bytes of `path` from byte `offset`; empty at the end or when absent."""

    @abc.abstractmethod
    async def size(self, path: str) -> int:
        """Bytes in `path`; 0 when absent."""

    @abc.abstractmethod
    async def list(self, folder: str) -> Sequence[str]:
        """Paths of all files below `folder`, relative to it, sorted; none where it does not exist."""

    @abc.abstractmethod
    async def fetch(self, path: str) -> str | None:
        """Path on this machine of a file or folder, which another machine's is copied to; ``None`` when absent."""

    @abc.abstractmethod
    def changes(self) -> FileEvents:
        """A new consumer of news of folders."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go of what was opened; runs go on."""


#: Open files, at most.
MAX_OPEN_FILES = 64

#: Bytes that are read at once; more than that is work for a thread.
READ_BYTES = 1 << 16

_NOWAIT = getattr(os, "RWF_NOWAIT", None)


class Tails:
    """Descriptors of files of which somebody has read the beginning. For one thread."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._able = _NOWAIT is not None

    def read(self, path: str, offset: int, limit: int) -> bytes | None:
        """What :func:`read` would give, or ``None`` when only a thread may find out."""
        fd = self._open.get(path)
        # From its beginning one also reads what is replaced, not appended to.
        if fd is None or _NOWAIT is None or offset == 0:
            return None
        piece = bytearray(min(limit, READ_BYTES))
        try:
            count = os.preadv(fd, [piece], offset, _NOWAIT)
            # At its end: another file may have its name now. Who reads some bytes again never gets none.
            if count < READ_BYTES and os.fstat(fd).st_nlink == 0:
                self._forget(path)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                self._able = self._able and error.errno != errno.EOPNOTSUPP
                self._forget(path)
            return None
        return None if count == READ_BYTES else bytes(piece[:count])

    def wants(self, path: str, offset: int) -> bool:
        """Whether a descriptor of `path` would be kept after reading from `offset`."""
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
        """Let go of files that were deleted: as long as they are open, they keep their disk."""
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
    """Up to `limit` bytes from `offset`, and the open descriptor if it shall be kept, else -1.

    Raises
    ------
    OSError
        The file is not there or no regular one, or cannot be read.
    """
    fd = open_regular(path)
    try:
        os.lseek(fd, offset, os.SEEK_SET)
        parts = []
        while limit > 0 and (part := os.read(fd, limit)):
            parts.append(part)
            limit -= len(part)
    except BaseException:
        os.close(fd)
        raise
    if not keep:
        os.close(fd)
        fd = -1
    return b"".join(parts), fd


#: Where the system cannot tell us of changes, look this often (seconds).
POLL_INTERVAL_S = 0.1


class FolderEvents(FileEvents):
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
            await asyncio.sleep(min(POLL_INTERVAL_S, timeout))
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


# A path through a file, a name that no file can have or a link to itself is as absent as one that never was.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


class LocalTransport(Transport):
    """Reaches the machine that the kernel runs on.

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
        self._tails = Tails()

    async def call(self, op: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """See :meth:`Transport.call`; no interpreter is started for it."""
        answer = await self._loop.offload(_call, op, dict(payload), self.home)
        self._tails.sweep()  # it may have deleted something
        if error := answer.get("error"):
            raise agent_error(error)
        return answer

    async def put(self, files: Mapping[str, bytes | str], folder: str) -> None:
        """See :meth:`Transport.put`."""
        try:
            await self._loop.offload(_put, dict(files), Path(folder))
        except OSError as error:
            if not str(error.filename or "").startswith(self.home):
                raise
            raise _unusable(self.home, error) from error

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

    async def list(self, folder: str) -> Sequence[str]:
        """See :meth:`Transport.list`."""
        return await self._loop.offload(_list, folder)

    async def fetch(self, path: str) -> str | None:
        """See :meth:`Transport.fetch`; nothing is copied."""
        return path if await self._loop.offload(os.path.exists, path) else None

    def changes(self) -> FileEvents:
        """See :meth:`Transport.changes`."""
        return FolderEvents()

    async def close(self) -> None:
        """See :meth:`Transport.close`."""
        self._tails.close()


def agent_error(error: Mapping[str, Any]) -> errors.AmlTrainError:
    """What the agent refused, as our error type of that name where there is one."""
    kind = errors.of_name(str(error.get("type"))) or errors.SubmitError
    return kind(str(error.get("message")))


def _call(op: str, payload: dict[str, Any], home: str) -> dict[str, Any]:
    from jupyter_amltrain.agent import calls
    from jupyter_amltrain.backends.agent_zipapp import build

    try:
        agent = str(build(Path(home)))
    except OSError as error:
        raise _unusable(home, error) from error
    return calls.call(op, payload, home, queue=None, agent=agent)


def _unusable(home: str, error: OSError) -> errors.StateError:
    """What cannot be written below `home`, in one sentence."""
    return errors.StateError(
        f"Cannot write {error.filename or home}: {error.strerror or error}.",
        hint=f"Make {home} writable, or set AMLTRAIN_HOME to a folder that is, then restart the kernel.",
    )


def _put(files: dict[str, bytes | str], folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        for part in reversed(Path(name).parents[:-1]):  # `parents=True` would leave them readable
            (folder / part).mkdir(mode=0o700, exist_ok=True)
        if isinstance(content, bytes):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
        else:
            shutil.copyfile(content, path)
            # As the snapshot's digest has it. What we may execute also depends on mount options, and on being root.
            os.chmod(path, 0o700 if os.stat(content).st_mode & stat.S_IXUSR else 0o600)


def _list(folder: str) -> list[str]:
    found = (os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names)
    return sorted(found)


def _size(path: str) -> int:
    try:
        facts = os.stat(path)
        return facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise
