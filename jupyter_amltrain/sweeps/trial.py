"""A trial of a sweep, as its driver knows it."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jupyter_amltrain.kernel.streams import downsample
from jupyter_amltrain.schema.child_run import MAX_CURVE_POINTS
from jupyter_amltrain.schema.run import Run, RunHandle, split_handle
from jupyter_amltrain.sweeps.sweep_event import Event


class TrialCanceled(Exception):
    """A trial was canceled before its target had it."""


class Trial:
    """One trial: what the journal says, and what its run reports.

    Its steps and values are all that it has reported; after its end they are its curve.
    """

    def __init__(self, number: int, params: Mapping[str, Any], handle: RunHandle, created: float) -> None:
        self.number, self.params, self.handle, self.created = number, dict(params), handle, created
        self.sent = False
        self.is_viewed = False  #: its streams are read while they grow
        self.cancel_requested = False
        self.state, self.reason, self.early = "preparing", "", False
        self.started: float | None = None
        self.ended: float | None = None
        self.value: float | None = None
        self.latest: float | None = None  #: value of the primary metric so far
        self._latest_step = -math.inf
        self.steps, self.values = array("q"), array("d")
        self.task: asyncio.Task[Run] | None = None

    @property
    def run_id(self) -> str:
        """Id of its run."""
        return split_handle(self.handle)[1]

    @property
    def target(self) -> str:
        """Name of its target."""
        return split_handle(self.handle)[0]

    @property
    def is_ended(self) -> bool:
        """Whether its end is in the journal."""
        return self.ended is not None

    def report(self, points: Sequence[tuple[int, float]]) -> None:
        """Add values of the primary metric with their steps."""
        self.steps.extend(step for step, _ in points)
        self.values.extend(value for _, value in points)
        for step, value in points:  # until its metrics are read, which have the times too
            if step >= self._latest_step:
                self._latest_step, self.latest = step, value

    def end(self, event: Event) -> None:
        """Set its end; its curve takes the place of its reports."""
        self.state, self.reason, self.early = event.state, event.reason, event.early
        self.started, self.ended, self.value = event.started, event.ended, event.number
        curve = event.points or self.curve
        self.steps, self.values = array("q"), array("d")
        self.report(curve)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """Steps and values, at most :data:`MAX_CURVE_POINTS`."""
        return [(self.steps[i], self.values[i]) for i in downsample(self.values, MAX_CURVE_POINTS)]


class Best(NamedTuple):
    """The best trial so far, of this sweep or of the one that it continues."""

    number: int
    value: float
    handle: RunHandle
    params: Mapping[str, Any]


def finite(value: float | None) -> float | None:
    """Return a value that trials can be compared by: a trial that ends with NaN is not the best one."""
    return value if value is not None and math.isfinite(value) else None
