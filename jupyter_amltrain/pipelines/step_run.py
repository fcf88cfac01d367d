"""A step of a pipeline, or a part of a split one, as its driver knows it."""

from __future__ import annotations

import asyncio

from jupyter_amltrain.pipelines.pipeline_event import PipelineEvent
from jupyter_amltrain.pipelines.plan import PlannedStep
from jupyter_amltrain.pipelines.step_output import StepOutput
from jupyter_amltrain.schema.child_run import ChildRun
from jupyter_amltrain.schema.run import RunHandle, RunState, make_handle, split_handle

#: State of a step that has not started, and of one that never will.
WAITING, SKIPPED = "waiting", "skipped"


class StepRun:
    """One step: what the journal has of it, and the state of its run.

    Attributes
    ----------
    name
        Of the step; of a part with its number behind a colon.
    handle
        Of its run; of the earlier run whose result is used.
    """

    def __init__(self, step: PlannedStep, name: str = "") -> None:
        self.step, self.name = step, name or step.name
        self.handle = RunHandle("")
        self.key = ""
        self.sent = self.cancel_requested = False
        self.state, self.reason = WAITING, ""
        self.created: float | None = None
        self.started: float | None = None
        self.ended: float | None = None
        self.reused = ""
        self.outputs: dict[str, StepOutput] = {}
        self.task: asyncio.Task[None] | None = None

    @property
    def has_run(self) -> bool:
        """Whether it has a run of its own."""
        return bool(self.handle) and not self.reused

    @property
    def is_ended(self) -> bool:
        """Whether it has ended, or will never start."""
        return self.state == SKIPPED or self.ended is not None

    @property
    def is_completed(self) -> bool:
        """Whether others can use its outputs."""
        return self.state == RunState.COMPLETED.value and self.is_ended

    def begin(self, event: PipelineEvent) -> None:
        """Take the run that it has."""
        self.handle, self.key = make_handle(event.target, event.run_id), event.key
        self.created, self.state = event.time, RunState.PREPARING.value

    def end(self, event: PipelineEvent) -> None:
        """Take its end."""
        self.state, self.reason, self.reused, self.outputs = event.state, event.reason, event.reused, event.outputs
        self.started, self.ended = event.started, event.ended or event.time
        if event.reused:
            self.handle = RunHandle(event.reused)
            self.created = event.time

    def skip(self, reason: str) -> None:
        """Note that it will never start."""
        self.state, self.reason = SKIPPED, reason

    @property
    def row(self) -> ChildRun:
        """The step as a row of the pipeline's run."""
        return ChildRun(
            id=split_handle(self.handle)[1] if self.has_run else self.name,
            name=self.name,
            state=self.state,
            detail=self.reason,
            created=self.created,
            started=self.started,
            ended=self.ended,
            handle=self.handle,
            reused=bool(self.reused),
        )
