"""The contract of a transport: one machine, reached somehow."""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jupyter_amltrain.launch import TargetMachine


class Changes(abc.ABC):
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
    def changes(self) -> Changes:
        """A new consumer of news of folders."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go of what was opened; runs go on."""
