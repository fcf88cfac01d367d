"""This machine: calls run in-process, files are read from disk."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_amltrain import errors
from jupyter_amltrain.launch import TargetMachine
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.transports import tails
from jupyter_amltrain.transports.base import Changes, Transport
from jupyter_amltrain.transports.inotify import FolderChanges

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
        self._tails = tails.Tails()

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
            data, fd = await self._loop.offload(tails.read, path, offset, limit, self._tails.wants(path, offset))
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

    def changes(self) -> Changes:
        """See :meth:`Transport.changes`."""
        return FolderChanges()

    async def close(self) -> None:
        """See :meth:`Transport.close`."""
        self._tails.close()


def agent_error(error: Mapping[str, Any]) -> errors.AmlTrainError:
    """What the agent refused, as our error type of that name where there is one."""
    kind = errors.of_name(str(error.get("type"))) or errors.SubmitError
    return kind(str(error.get("message")))


def _call(op: str, payload: dict[str, Any], home: str) -> dict[str, Any]:
    from jupyter_amltrain.agent import calls
    from jupyter_amltrain.transports.agent_zipapp import build

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
