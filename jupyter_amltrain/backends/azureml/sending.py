"""Handing a job to the service, whatever becomes of the answer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from jupyter_amltrain.agent import failpoints
from jupyter_amltrain.backends.azureml.client import Unanswered
from jupyter_amltrain.backends.azureml.looks import pace
from jupyter_amltrain.errors import SubmitUnsure, TargetError, TargetUnreachable


async def sent(ask: Callable[..., Awaitable[Any]], op: str, name: str, silence: float, **payload: Any) -> Any:
    """Have the Azure process submit a job.

    When that process ends in the middle, the service is asked by the next one whether it has the job: a job
    that bills is never taken for one that was refused.

    Parameters
    ----------
    ask
        :meth:`.holdings.AzureHoldings.ask`.
    name
        Of the job, which no other has.
    silence
        Seconds without news until it is given up.

    Raises
    ------
    TargetUnreachable
        The process ended before the service had the job.
    SubmitUnsure
        Nobody answers within half a minute (``AMLTRAIN_AZURE_UNSURE``, seconds).
    """
    failpoints.hit("kernel_before_submit")
    try:
        made = await ask(op, None, silence, **payload)
    except Unanswered as error:
        made = await _found(ask, name, error)
    failpoints.hit("kernel_after_submit")
    return made


async def _found(ask: Callable[..., Awaitable[Any]], name: str, error: Unanswered) -> dict[str, Any]:
    until = time.monotonic() + float(os.environ.get("AMLTRAIN_AZURE_UNSURE") or 30)
    absent = 0
    while True:
        try:
            found = await ask("jobs.get", name=name)
        except TargetError as silent:
            if time.monotonic() > until:
                raise SubmitUnsure(
                    f"{error.message} Whether {name} was accepted is not known.",
                    hint="When Azure answers again, %aml_runs lists it if it was; look there first.",
                ) from silent
        else:
            if found is not None:
                return {"name": name, "created": found["row"].get("created")}
            absent += 1
            if absent > 1:  # a request that was on its way when the process ended has arrived by now
                raise TargetUnreachable(f"{error.message} {name} was not submitted.", hint="Submit it again.")
        await asyncio.sleep(min(1.0, pace()))
