"""Transports to a login node: calls about runs go to the agent's part for Slurm, and not to its own queue."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jupyter_amltrain.backends.ssh_transport import SshTransport
from jupyter_amltrain.backends.transport import FileEvents, FolderEvents, LocalTransport
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.slurm.agent import CALLS

#: Seconds between two looks at folders that other machines change: inotify does not tell.
LOOK_INTERVAL_S = 0.5
#: Folders that are looked at in a second at most: each is a few requests to a file server.
MAX_LOOKS_PER_S = 100


def _op(op: str) -> str:
    """Return the name of a call: that of the agent's part for Slurm, where it answers in place of the agent."""
    return f"slurm.{op}" if op in CALLS else op


class SharedFolderEvents(FileEvents):
    """Change events of folders that compute nodes write: by inotify, and by looking at the sizes of the files."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop, self._local = loop, FolderEvents()
        self._seen: dict[str, tuple[tuple[str, int, int], ...]] = {}

    async def wait(self, paths: Sequence[str], timeout: float) -> Collection[str]:
        """See :meth:`FileEvents.wait`."""
        end = asyncio.get_running_loop().time() + timeout
        interval = max(LOOK_INTERVAL_S, len(paths) / MAX_LOOKS_PER_S)
        while True:
            left = end - asyncio.get_running_loop().time()
            changed = set(await self._local.wait(paths, max(0.0, min(interval, left))))
            if changed:
                return changed
            now = await self._loop.offload(_states, tuple(paths))
            changed |= {path for path, state in now.items() if self._seen.get(path, state) != state}
            self._seen = now
            if changed or left <= interval:
                return changed

    def close(self) -> None:
        """See :meth:`FileEvents.close`."""
        self._local.close()


def _states(paths: Sequence[str]) -> dict[str, tuple[tuple[str, int, int], ...]]:
    """Return names, sizes and times of the files in folders. Blocks on the disk."""
    return {path: _state(path) for path in paths}


def _state(path: str) -> tuple[tuple[str, int, int], ...]:
    found = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                status = entry.stat()
                found.append((entry.name, status.st_size, status.st_mtime_ns))
    except OSError:  # it does not exist yet, or a file was removed meanwhile
        pass
    return tuple(sorted(found))


class SlurmTransport(LocalTransport):
    """Transport to the login node that the kernel runs on."""

    async def call(self, op: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """See :meth:`Transport.call`."""
        return await super().call(_op(op), payload)

    def events(self) -> FileEvents:
        """See :meth:`Transport.events`."""
        return SharedFolderEvents(self._loop)


class SlurmLoginTransport(SshTransport):
    """Transport to a login node that SSH reaches."""

    async def _request(self, op: str, data: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        if op == "call":
            fields["call"] = _op(fields["call"])
        return await super()._request(op, data, **fields)
