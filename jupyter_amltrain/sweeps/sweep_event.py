"""Events of a sweep: proposals, submits, reports and ends in order; the driver continues from its journal of them.

Reports are in it only if a policy decides by them: other values are read again from the metrics of the trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

#: File in the driver's run folder.
FILE = "sweep.jsonl"
#: Operations: a trial was proposed, was submitted, has reported values, has ended; the sweep has ended; its target
#: has an array for its trials.
ASK, SENT, REPORT, TELL, END, ARRAY = "ask", "sent", "report", "tell", "end", "array"


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the journal.

    Attributes
    ----------
    op
        One of :data:`ASK`, :data:`SENT`, :data:`REPORT`, :data:`TELL`, :data:`END`, :data:`ARRAY`.
    trial
        Number of the trial; -1 for the sweep.
    time
        Unix seconds; 0 for a report, of which there are many.
    params, run_id, target
        Of a proposal: its values, and the id and the target that its run gets.
    steps, values
        Of a report: steps and values of the primary metric that were new. Of an end: the curve. JSON has no NaN and no
        infinity, so these are texts.
    value
        Of an end: the value that the sampler gets.
    step
        In reports of earlier versions, which have one `step` and `value`.
    state, reason
        Of an end: the state of the run, and why it ended.
    early
        Of an end: the policy stopped the trial.
    started, ended
        Of an end: Unix seconds.
    """

    op: str
    trial: int = -1
    time: float = 0.0
    params: dict[str, Any] = {}
    run_id: str = ""
    target: str = ""
    steps: tuple[int, ...] = ()
    values: tuple[float | str, ...] = ()
    step: int = 0
    value: float | str | None = None
    state: str = ""
    reason: str = ""
    early: bool = False
    started: float | None = None
    ended: float | None = None

    @property
    def number(self) -> float | None:
        """The value as a number."""
        return None if self.value is None else float(self.value)

    @property
    def points(self) -> list[tuple[int, float]]:
        """Steps and values as numbers."""
        if self.op == REPORT and self.value is not None:
            return [(self.step, float(self.value))]
        return [(step, float(value)) for step, value in zip(self.steps, self.values, strict=True)]


def points_fields(points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Return the fields of an event with these steps and values."""
    values = tuple(value if math.isfinite(value) else str(value) for _, value in points)
    return {"steps": tuple(step for step, _ in points), "values": values}
