"""The ended trials of the sweep that another one continues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.schema.child_run import ChildRun, ChildRuns
from jupyter_amltrain.schema.run import split_handle
from jupyter_amltrain.schema.sweep import trial_count
from jupyter_amltrain.state_dir import write_json

#: Copy of the trials in the run folder of the driver.
HISTORY = "history.json"
#: Seconds until a sweep without trials is read again.
RETRY_S = 5.0


async def read_history(
    kernel: Controller, continues: str, folder: Path, is_canceled: Callable[[], bool]
) -> tuple[tuple[ChildRun, ...], int]:
    """Return the ended trials of the sweep `continues`, and the first number that it cannot have.

    A copy stays in `folder`, as that sweep may be deleted. Waits for trials until `is_canceled`.
    """
    path = folder / HISTORY
    if not path.exists():
        write_json(path, msgspec.to_builtins(await _read_continued(kernel, continues, is_canceled)))
    earlier = msgspec.convert(json.loads(path.read_bytes()), ChildRuns)
    ended = [trial for trial in earlier.runs if trial.ended is not None]
    history = tuple(msgspec.structs.replace(trial, best=False) for trial in ended)
    return history, max(earlier.first, _next_number(ended))


async def _read_continued(kernel: Controller, continues: str, is_canceled: Callable[[], bool]) -> ChildRuns:
    """Return the trials of the sweep that this one continues; `first` is the first number that it cannot have.

    A sweep that has not ended may submit further trials.
    """
    target, run_id = split_handle(continues)
    backend = kernel.backend(target)
    while True:
        run = await backend.find(run_id)  # before the trials: those of an ended sweep are complete
        trials = await backend.children.list(run_id)
        first = _next_number(trials.runs)
        if run is None or run.spec.sweep is None or run.status.state.terminal or is_canceled():
            return msgspec.structs.replace(trials, first=first)
        if trials.runs:
            return msgspec.structs.replace(trials, first=max(first, trials.first + trial_count(run.spec.sweep)))
        await asyncio.sleep(RETRY_S)  # its driver starts


def _next_number(trials: Sequence[ChildRun]) -> int:
    """Return the number after those of all trials."""
    return 1 + max((trial.number for trial in trials if trial.number is not None), default=-1)
