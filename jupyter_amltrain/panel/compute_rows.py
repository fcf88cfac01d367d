"""The rows of the targets as pages hear of them. Runs on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.panel.page import RATE, Known
from jupyter_amltrain.spec.run import Run, RunState


class Compute(Protocol):
    """Who knows the targets."""

    async def rows(self) -> Known:
        """The targets as they are known; asks no target."""

    def listen(self, told: Callable[[str, str, str], None]) -> Callable[[], None]:
        """Call `told` on the loop when a row may have changed; returns the end of it.

        Its arguments are of a work that has ended and a person should hear of: level,
        sentence, name of the target (see :class:`~jupyter_amltrain.panel.protocol.Notice`);
        the sentence is empty for any other change.
        """


class ComputeRows:
    """Reads the rows anew when they may have changed, twice a second at most.

    Parameters
    ----------
    changed
        Called when they have.

    Attributes
    ----------
    now
        What was read last.
    """

    def __init__(self, compute: Compute, loop: LoopThread, changed: Callable[[], None]) -> None:
        self._compute, self._loop, self._changed = compute, loop, changed
        self.now = Known()
        self._counted: dict[str, bool] = {}  #: live runs, and whether they run
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def told(self, run: Run) -> None:
        """The store has something new of a run: the rows count those that run and that wait."""
        state = run.status.state
        runs = None if state.terminal else state not in (RunState.PREPARING, RunState.QUEUED)
        if runs != self._counted.get(run.handle):
            if runs is None:
                del self._counted[run.handle]
            else:
                self._counted[run.handle] = runs
            self.again()

    def gone(self, handle: str) -> None:
        """A run was removed."""
        if self._counted.pop(handle, None) is not None:
            self.again()

    def again(self) -> None:
        """They may have changed."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = self._loop.start(self._follow(), "targets for the panel")

    async def _follow(self) -> None:
        while self._again:
            self._again = False
            await self.read()
            await asyncio.sleep(1 / RATE)

    async def read(self) -> None:
        """Read them now."""
        try:
            found = await self._compute.rows()
        except AmlTrainError as error:  # what was read before is as good as anything
            found = self.now._replace(trouble=str(error))
        if found != self.now:
            self.now = found
            self._changed()

    def close(self) -> None:
        """Read no more."""
        self._again = False
        if self._task is not None:
            self._task.cancel()
