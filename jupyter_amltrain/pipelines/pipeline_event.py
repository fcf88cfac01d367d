"""Events of a pipeline: which step has which run, and how it ended; the driver continues from its journal of them."""

from __future__ import annotations

import msgspec

from jupyter_amltrain.pipelines.step_output import StepOutput

#: File in the driver's run folder.
FILE = "pipeline.jsonl"
#: Operations: a step got a run of its own, its target has the run, the step has ended; the pipeline has ended.
START, SENT, END, FINISH = "start", "sent", "end", "finish"


class PipelineEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the journal.

    Attributes
    ----------
    op
        One of :data:`START`, :data:`SENT`, :data:`END`, :data:`FINISH`.
    step
        Name of the step; empty for the pipeline. A part of a split step has its number behind a colon.
    time
        Unix seconds.
    run_id, target
        Of a start: the id and the target that the run gets.
    key
        Of a start: what the result depends on, as a digest.
    state, reason
        Of an end: the state of the run, and why it ended.
    reused
        Of an end: handle of the run whose result is used in place of a new one.
    outputs
        Of an end: what the step has made.
    started, ended
        Of an end: Unix seconds of its run.
    """

    op: str
    step: str = ""
    time: float = 0.0
    run_id: str = ""
    target: str = ""
    key: str = ""
    state: str = ""
    reason: str = ""
    reused: str = ""
    outputs: dict[str, StepOutput] = {}
    started: float | None = None
    ended: float | None = None
