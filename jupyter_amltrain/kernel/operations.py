"""Background operations on targets, one at a time per target, each reported in its target's row. Loop thread only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.backends.provisioner import Progress
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.kernel.target_status import (
    PARTICIPLES,
    OperationFinished,
    TargetEntry,
    TargetStatusCache,
    done_text,
    failed_text,
)
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.rows import Operation

log = logging.getLogger(__name__)

#: Maximum wait for a service that is slow to report a target's state.
STATUS_TIMEOUT_S = 0.7

#: Coroutine of an operation; returns the message to show, or ``None`` for the default message.
OperationBody = Callable[[Progress], Awaitable[str | None]]


class ActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an action on a target.

    Attributes
    ----------
    confirmation
        Prompt that the user must confirm first, because the action costs money or loses data.
    errors
        Error messages about the values, by field.
    message
        Message to show.
    begun
        Whether an operation was started; :meth:`TargetOperations.finished` waits for it.
    """

    accepted: bool = False
    confirmation: str = ""
    errors: dict[str, str] = {}
    message: str = ""
    begun: bool = False


class TargetOperations:
    """Starts operations on targets and records their progress and result in the status cache."""

    def __init__(self, loop: LoopThread, status: TargetStatusCache) -> None:
        self._loop, self._status = loop, status
        self._tasks: dict[str, asyncio.Task[str | Exception]] = {}

    @staticmethod
    def require_idle(entry: TargetEntry) -> None:
        """Check that no operation is running on a target.

        Raises
        ------
        CommandError
            An operation is running.
        """
        if entry.busy and entry.work is not None:
            raise CommandError(
                f"{entry.target.name!r} is being {PARTICIPLES[entry.work.verb]}.",
                hint="Wait until that operation has finished; to see its progress: %aml_compute list",
            )

    def start(self, entry: TargetEntry, verb: str, body: OperationBody, values: Mapping[str, Any]) -> ActionResult:
        """Start an operation on an idle target.

        Parameters
        ----------
        values
            Values of the action, which the message at its end names.
        """
        name = entry.target.name
        entry.work = Operation(verb=verb, since=time.time())
        self._tasks[name] = self._loop.start(self._run(entry, verb, body, values), f"{verb} {name}")
        self._status.notify()
        return ActionResult(accepted=True, begun=True)

    async def _run(
        self, entry: TargetEntry, verb: str, body: OperationBody, values: Mapping[str, Any]
    ) -> str | Exception:
        name, work = entry.target.name, Operation(verb=verb, since=time.time())

        def progress(text: str) -> None:
            entry.work = msgspec.structs.replace(work, detail=text)
            self._status.notify()

        try:
            message = await body(progress) or done_text(verb, name, values)
            await self._update_status(name, verb)
        except Exception as error:  # top of a task: the row shows the error
            if isinstance(error, AmlTrainError):
                failure = error
            else:
                log.exception("%s %s", verb, name)
                failure = AmlTrainError(f"{type(error).__name__}: {error}")
            entry.failure = failure.with_traceback(None)
            entry.work = msgspec.structs.replace(work, error=str(failure))
            await self._reload()
            self._status.notify(OperationFinished("error", failed_text(verb, name, failure), name))
            return failure
        entry.work = None
        if verb == "delete":
            self._status.discard(name)
            await self._reload()
        self._status.notify(OperationFinished("success", message, name))
        return message

    async def _update_status(self, name: str, verb: str) -> None:
        """Update the row after an operation; a slow service updates it later."""
        if verb not in ("test", "delete"):
            check = self._loop.start(self._status.try_check(name), f"check {name}")
            await asyncio.wait([check], timeout=STATUS_TIMEOUT_S)

    async def _reload(self) -> None:
        with contextlib.suppress(AmlTrainError):  # an unreadable state root is reported elsewhere
            await self._status.refresh()

    def forget_failure(self, name: str) -> None:
        """Drop the failure of a target's last operation, so that its row shows the current state."""
        entry = self._status.get(name)
        if entry is not None and entry.stored and entry.work is not None and entry.work.error:
            entry.work = None
            self._status.notify()

    def progress(self, name: str) -> str:
        """Return the progress of the operation on a target; empty without one."""
        entry = self._status.get(name)
        return entry.work.detail if entry is not None and entry.work is not None else ""

    async def finished(self, name: str, timeout_s: float) -> str | None:
        """Wait for the last operation on a target and return its message; ``None`` after `timeout_s` seconds.

        Raises
        ------
        AmlTrainError
            The operation failed.
        """
        task = self._tasks[name]
        await asyncio.wait([task], timeout=timeout_s)
        if not task.done():
            return None
        result = task.result()
        if isinstance(result, Exception):
            raise result
        return result
