"""Reads of targets that hold up no list, record or log: what is known here is shown while a target does not answer."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple, TypeVar

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import TargetUnreachable
from jupyter_amltrain.loop import LoopThread

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Seconds that a cell waits for a target, and that a program or a terminal does, which asks each for the first time;
#: `AMLTRAIN_READ_LIMIT` sets others.
LIMIT_S, PROGRAM_LIMIT_S = 0.7, 10.0
#: Seconds for a target of which nothing is known here: its connection, or the process that asks it, may be starting.
FIRST_S = 4.0
#: Part of it for a target that has not answered another caller in time: commands read several things.
_LATE_PART = 0.4
#: Seconds without an answer after which a target counts as silent: a slow service needs a few for one.
SILENT_AFTER_S = 3.0


class _Pending(NamedTuple):
    target: str
    began: float  #: monotonic seconds
    task: asyncio.Task[None]


class BoundedReads:
    """Starts reads that refresh what this kernel knows, and waits for each at most :data:`LIMIT_S` in a notebook.

    A read that takes longer goes on, so that the next caller gets what it brings. Until it has ended, the same read is
    not started again. Loop thread only.
    """

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._pending: dict[Hashable, _Pending] = {}
        self._errors: dict[str, TargetUnreachable] = {}  #: of targets whose last read has failed
        self._limit_s = float(
            os.environ.get("AMLTRAIN_READ_LIMIT") or (LIMIT_S if "ipykernel" in sys.modules else PROGRAM_LIMIT_S)
        )

    async def value(
        self,
        backend: Backend,
        key: Hashable,
        read: Callable[[], Awaitable[T]],
        known: T,
        probe: Callable[[], Awaitable[object]] | None = None,
        *,
        strict: bool = False,
        limit_s: float = 0.0,
    ) -> T:
        """Return what `read` returns from a target, or `known` if the target does not answer in time.

        What is on this machine is read without a limit. Other errors that `read` raises in time are raised.

        Parameters
        ----------
        probe
            A small request. While it is answered in time, `read` may take longer, because it reads much.
        strict
            Also raise that the target is unreachable.
        limit_s
            Seconds to wait at least.
        """
        if backend.files.are_local:
            return await read()
        limit = max(limit_s, self._limit_s * (_LATE_PART if self._is_late(backend.target.name) else 1.0))
        until = time.monotonic() + limit
        while (earlier := self._pending.get(key)) is not None:  # it may have begun before what the caller wants to see
            left = min(earlier.began + limit, until) - time.monotonic()
            if left <= 0 or not (await asyncio.wait({earlier.task}, timeout=left))[0]:
                return known
        results: list[T] = []
        failures: list[Exception] = []

        async def run() -> None:
            try:
                results.append(await read())
                self._errors.pop(backend.target.name, None)
            except Exception as error:  # raised in the caller, if it still waits
                if isinstance(error, TargetUnreachable):
                    self._errors[backend.target.name] = error
                if strict or not isinstance(error, TargetUnreachable):
                    failures.append(error)
                log.info("%s: %s", key, error)
            finally:
                self._pending.pop(key, None)

        task = self._loop.start(run(), f"read {key}")
        self._pending[key] = _Pending(backend.target.name, time.monotonic(), task)
        await asyncio.wait({task}, timeout=max(0.0, until - time.monotonic()))
        while probe is not None and not task.done():
            if not await self.value(backend, ("probe", backend.target.name), _answer(probe), False):
                break
            await asyncio.wait({task}, timeout=limit)
        if failures:
            raise failures[0]
        return results[0] if results else known

    def late(self) -> list[str]:
        """Return the targets whose runs are read for longer than lists wait, and those that failed, with the reason."""
        now = time.monotonic()
        slow = {
            one.target
            for key, one in self._pending.items()
            if isinstance(key, tuple) and key[0] == "runs" and now - one.began >= self._limit_s
        }
        return sorted(slow - self._errors.keys()) + [
            f"{name} ({error})" for name, error in sorted(self._errors.items())
        ]

    def _is_late(self, target: str) -> bool:
        now = time.monotonic()
        return any(one.target == target and now - one.began >= self._limit_s for one in self._pending.values())

    def silent_s(self, target: str) -> float:
        """Return for how many seconds a target has not answered; 0 unless that is unusually long."""
        began = min((one.began for one in self._pending.values() if one.target == target), default=None)
        age = 0.0 if began is None else time.monotonic() - began
        return age if age >= SILENT_AFTER_S else 0.0

    def silence_text(self, target: str) -> str:
        """Return a sentence about a target that did not answer in time, or failed to."""
        if target in self._errors:
            return str(self._errors[target])
        silent = self.silent_s(target)
        return f"{target} has not answered for {silent:.0f} s." if silent else f"{target} did not answer in time."


def _answer(probe: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[bool]]:
    async def answer() -> bool:
        await probe()
        return True

    return answer
