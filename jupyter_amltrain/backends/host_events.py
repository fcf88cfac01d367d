"""Events of the runs of several machines. Loop thread only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.streams import RunEvents, StreamChanges, monitor_of


class HostEvents(RunEvents):
    """Events of the runs of several machines, from the events of each.

    Parameters
    ----------
    machine_of
        Returns the number of the machine of a run; a monitor is on all of them.
    """

    def __init__(self, hosts: Sequence[Backend], machine_of: Callable[[str], int]) -> None:
        self._hosts, self._machine_of = hosts, machine_of
        self._events: dict[int, RunEvents] = {}

    async def wait(self, run_ids: Sequence[str], viewed: Sequence[str], timeout: float) -> StreamChanges:
        groups: dict[int, tuple[list[str], list[str]]] = {}
        for index, ids in enumerate((run_ids, viewed)):
            for run_id in ids:
                everywhere = range(len(self._hosts))
                for number in everywhere if monitor_of(run_id) else (self._machine_of(run_id),):
                    groups.setdefault(number, ([], []))[index].append(run_id)
        tasks = {
            asyncio.ensure_future(self._of(number).wait(*ids, timeout))
            for number, ids in (groups or {0: ([], [])}).items()
        }
        waiting, deadline = tasks, time.monotonic() + timeout
        try:
            while waiting and not any(map(_has_changes, tasks)):
                left = max(0.0, deadline - time.monotonic())
                done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)
        changes: dict[str, set[str]] = {}
        errors = []
        for task in tasks:
            if task.cancelled():
                continue
            if (error := task.exception()) is not None:
                errors.append(error)
                continue
            for run_id, streams in task.result().items():
                changes.setdefault(run_id, set()).update(streams)
        if len(errors) == len(tasks):
            raise errors[0]
        return changes

    def _of(self, number: int) -> RunEvents:
        if number not in self._events:
            self._events[number] = self._hosts[number].events()
        return self._events[number]

    def close(self) -> None:
        for events in self._events.values():
            events.close()


def _has_changes(task: asyncio.Task[StreamChanges]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None and bool(task.result())
