"""Trials of a sweep as one array of their target: their points are known at the start, and the target starts them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.capabilities import RunArrays
from jupyter_amltrain.errors import TargetError
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.sweep import Sweep, trial_count

#: Seconds until a call is tried again whose target does not answer.
RETRY_S = 5.0
#: Trials of an array that are submitted at the same time.
MAX_SUBMITS = 8
_LOOK_S = 0.1


def knows_points(sweep: Sweep) -> bool:
    """Whether the points of all trials are known before the first one has ended."""
    return sweep.sampler == "grid" or (sweep.sampler in ("random", "sobol") and sweep.limits.max_trials is not None)


async def arrays_for(sweep: Sweep, backends: Sequence[Backend]) -> RunArrays | None:
    """Return what queues all trials of a sweep together; ``None`` if they are submitted one by one.

    Raises
    ------
    TargetError
        The target does not answer.
    """
    arrays = backends[0].arrays if len(backends) == 1 else None
    if arrays is None or not knows_points(sweep):
        return None
    return arrays if 1 < trial_count(sweep) <= await arrays.max_runs() else None


class TrialArray:
    """An array that was opened for the trials of a sweep.

    Parameters
    ----------
    name
        Name of the array: the driver's run id, so that a driver that was started again finds it.
    """

    def __init__(self, arrays: RunArrays, name: str) -> None:
        self._arrays, self._name = arrays, name
        self.submits = asyncio.Semaphore(MAX_SUBMITS)

    async def open(
        self,
        spec: JobSpec,
        run_ids: Sequence[str],
        max_running: int,
        environ: Mapping[str, str],
        secrets: Mapping[str, str],
    ) -> None:
        """See :meth:`RunArrays.open`."""
        await self._arrays.open(self._name, spec, run_ids, max_running, environ, secrets)

    async def release_when(self, is_submitted: Callable[[], bool]) -> None:
        """Let the trials start once all are submitted, or were refused."""
        while not is_submitted():
            await asyncio.sleep(_LOOK_S)
        await self.release()

    async def release(self) -> None:
        """Let the trials start; try again while the target does not answer."""
        await _tried(lambda: self._arrays.release(self._name))

    async def cancel(self) -> None:
        """Cancel all trials; try again while the target does not answer."""
        await _tried(lambda: self._arrays.cancel(self._name))


async def _tried(call: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await call()
            return
        except TargetError:
            await asyncio.sleep(RETRY_S)
