"""One sentence and one error for the end of a run."""

from __future__ import annotations

from jupyter_amltrain.errors import RunFailed
from jupyter_amltrain.runs.outcome import as_error, why
from jupyter_amltrain.spec.job import JobSpec
from jupyter_amltrain.spec.run import Run, RunState, RunStatus, make_handle


def test_a_run_that_left_its_gpus_alone() -> None:
    detail = (
        "stopped because its GPUs were not used: GPU 0 stayed at 0 % utilization and within 3 MiB of its memory before"
        " the run, for 60 s; likely cause: nothing was moved to the GPU: model.to('cuda'), batch.to('cuda')"
    )
    status = RunStatus(state=RunState.FAILED, reason="gpu-unused", detail=detail, signal=15)
    run = Run(handle=make_handle("local", "digits-1"), spec=JobSpec(name="digits"), status=status, created=0.0)
    said = why(run, "")
    assert said == f"local/digits-1 was {detail}. --require-gpu=warn lets it run."
    error = as_error(run, "one\ntwo\n")
    assert isinstance(error, RunFailed) and str(error) == said and error.log_tail == "one\ntwo"
