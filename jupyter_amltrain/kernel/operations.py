"""Operations on compute targets: at most one per target, in the background, reported in its row. Loop thread only."""

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

#: How long a service that is slow to report a target's state is waited for.
STATUS_TIMEOUT_S = 0.7

#: Does the work of an operation; returns what to tell the user, or ``None`` for the usual sentence.
OperationBody = Callable[[Progress], Awaitable[str | None]]


class ActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an action; the fields are those of :class:`~jupyter_amltrain.frontend.target_handlers.ActReply`.

    Attributes
    ----------
    ask
        What the user must agree to first, because it costs or loses something.
    errors
        What is wrong with the values, by field.
    said
        What to tell the user.
    begun
        An operation is under way; :meth:`Works.finished` waits for it.
    """

    accepted: bool = False
    ask: str = ""
    errors: dict[str, str] = {}
    said: str = ""
    begun: bool = False


class TargetOperations:
    """Starts operations on targets, and records in the status cache how far each is and how it ended."""

    def __init__(self, loop: LoopThread, status: TargetStatusCache) -> None:
        self._loop, self._status = loop, status
        self._tasks: dict[str, asyncio.Task[str | Exception]] = {}

    @staticmethod
    def require_idle(entry: TargetEntry) -> None:
        """Check that no operation is under way on a target.

        Raises
        ------
        CommandError
            One is.
        """
        if entry.busy and entry.work is not None:
            raise CommandError(
                f"{entry.target.name!r} is being {PARTICIPLES[entry.work.verb]}; wait for the end of that first.",
                hint="%aml_compute list shows how far it is.",
            )

    def start(self, entry: TargetEntry, verb: str, do: OperationBody, values: Mapping[str, Any]) -> ActionResult:
        """Start an operation on an idle target.

        Parameters
        ----------
        values
            What was given for it; they are named when it has finished.
        """
        name = entry.target.name
        entry.work = Operation(verb=verb, since=time.time())
        self._tasks[name] = self._loop.start(self._run(entry, verb, do, values), f"{verb} {name}")
        self._status.notify()
        return ActionResult(accepted=True, begun=True)

    async def _run(
        self, entry: TargetEntry, verb: str, do: OperationBody, values: Mapping[str, Any]
    ) -> str | Exception:
        name, work = entry.target.name, Operation(verb=verb, since=time.time())

        def progress(text: str) -> None:
            entry.work = msgspec.structs.replace(work, detail=text)
            self._status.notify()

        try:
            message = await do(progress) or done_text(verb, name, values)
            await self._update_status(name, verb)
        except Exception as error:  # the end of a task: its row shows the error
            if not isinstance(error, AmlTrainError):
                log.exception("%s %s", verb, name)
                error = AmlTrainError(f"{type(error).__name__}: {error}")
            entry.work = msgspec.structs.replace(work, error=str(error))
            await self._reload()
            self._status.notify(OperationFinished("error", failed_text(verb, name, str(error)), name))
            return error.with_traceback(None)
        entry.work = None
        if verb == "delete":
            self._status.discard(name)
            await self._reload()
        self._status.notify(OperationFinished("success", message, name))
        return message

    async def _update_status(self, name: str, verb: str) -> None:
        """Let the row show what an operation has made of the target, if the service reports it in time."""
        if verb not in ("test", "delete"):
            with contextlib.suppress(AmlTrainError, asyncio.TimeoutError):
                await asyncio.wait_for(self._status.check_now(name), STATUS_TIMEOUT_S)

    async def _reload(self) -> None:
        with contextlib.suppress(AmlTrainError):  # a state root that cannot be read is reported elsewhere
            await self._status.refresh()

    def forget_failure(self, name: str) -> None:
        """Drop the failure of a target's last operation, so that its row shows the present state."""
        entry = self._status.get(name)
        if entry is not None and entry.stored and entry.work is not None and entry.work.error:
            entry.work = None
            self._status.notify()

    def progress(self, name: str) -> str:
        """How far the operation on a target is; empty when there is none."""
        entry = self._status.get(name)
        return entry.work.detail if entry is not None and entry.work is not None else ""

    async def finished(self, name: str, patience: float) -> str | None:
        """Wait for the last operation on a target and return its message; ``None`` after `patience` seconds.

        Raises
        ------
        AmlTrainError
            Why it failed.
        """
        task = self._tasks[name]
        await asyncio.wait([task], timeout=patience)
        if not task.done():
            return None
        result = task.result()
        if isinstance(result, Exception):
            raise result
        return result
