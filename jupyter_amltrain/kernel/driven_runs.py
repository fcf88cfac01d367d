"""Runs that a driver submits: whether they are there, their cancellation, and their records."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Protocol

from jupyter_amltrain.errors import AmlTrainError, UnknownRun
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.schema.run import RunHandle

#: Seconds until a cancel is tried again that has not reached its run.
CANCEL_RETRY_S = 0.5
#: Seconds in which MLflow's records of the runs can be written before the driver ends.
RECORD_TIMEOUT_S = 60.0


class DrivenRun(Protocol):
    """What a driver knows of a run of its own."""

    handle: RunHandle
    task: asyncio.Task[Any] | None  #: submits it and follows it to its end
    sent: bool  #: its target has it
    cancel_requested: bool


async def exists(kernel: Controller, handle: RunHandle) -> bool:
    """Return whether a target has a run whose submit the journal does not confirm."""
    try:
        await kernel.find(handle)
    except UnknownRun:
        return False
    entry = kernel.store.get(handle)
    return entry is not None and bool(entry.run.folder)


async def cancel(kernel: Controller, run: DrivenRun) -> None:
    """Cancel a run; try again while it is being submitted, or its target does not answer."""
    run.cancel_requested = True
    while run.task is not None and not run.task.done():
        if kernel.store.get(run.handle) is not None:
            with contextlib.suppress(AmlTrainError):
                await kernel.cancel(run.handle)
                if run.sent:
                    return
        await asyncio.sleep(CANCEL_RETRY_S)


async def wait_recorded(kernel: Controller, handles: Sequence[RunHandle], seconds: float = RECORD_TIMEOUT_S) -> None:
    """Wait until MLflow has the records of runs that this process has followed, at most so many seconds.

    The record of a run that has none yet is written when the run is looked at.
    """
    deadline = time.monotonic() + min(seconds, RECORD_TIMEOUT_S)
    while time.monotonic() < deadline:
        entries = [entry for handle in handles if (entry := kernel.store.get(handle)) is not None]
        if not any(entry.run.tracking == "pending" and entry.run.project for entry in entries):
            return
        await asyncio.sleep(0.1)
