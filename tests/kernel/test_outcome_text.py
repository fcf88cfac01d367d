"""One sentence and one error for the end of a run."""

from __future__ import annotations

import re
import time

from jupyter_amltrain.errors import RunFailed
from jupyter_amltrain.kernel.outcome_text import as_error, canceled_text, failure_reason
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Phase, Run, RunState, RunStatus, make_handle


def test_unused_gpu_stop_error_names_cause() -> None:
    detail = (
        "stopped because its GPUs were not used: GPU 0 stayed at 0 % utilization and within 3 MiB of its memory before"
        " the run, for 60 s; likely cause: nothing was moved to the GPU: model.to('cuda'), batch.to('cuda')"
    )
    status = RunStatus(state=RunState.FAILED, reason="gpu-unused", detail=detail, signal=15)
    run = Run(handle=make_handle("local", "digits-1"), spec=JobSpec(name="digits"), status=status, created=0.0)
    message = failure_reason(run, "")
    assert message is not None
    assert message.startswith(f"S{detail[1:]}. ") and "--require-gpu warn" in message
    error = as_error(run, "one\ntwo\n")
    assert isinstance(error, RunFailed) and message in str(error) and error.log_tail == "one\ntwo"


def lost(spec: JobSpec) -> str:
    status = RunStatus(state=RunState.LOST, reason="lost", detail="its secrets were lost with the agent")
    text = failure_reason(Run(handle=make_handle("local", "search-1"), spec=spec, status=status, created=0.0), "")
    assert text is not None and "secrets" in text
    return text


def test_lost_driver_of_sweep_names_line_that_continues_it() -> None:
    text = lost(JobSpec(name="search", trial=JobSpec(name="search"), secrets=("TOKEN",)))
    assert "%aml_sweep --continue local/search-1" in text and "Submit" not in text


def test_lost_run_with_restarts_names_its_checkpoints() -> None:
    assert "checkpoints" in lost(JobSpec(name="digits", max_restarts=1))
    assert "checkpoints" not in lost(JobSpec(name="digits"))


def failed(log: str, **cause: str) -> str:
    status = RunStatus(
        state=RunState.FAILED, reason="exit", detail="exited with code 1", exit_code=1, cause=cause or {}
    )
    spec = JobSpec(name="digits", cell="x", script_name="digits.py")
    text = failure_reason(Run(handle=make_handle("local", "digits-1"), spec=spec, status=status, created=0.0), log)
    assert text is not None
    return text


LOG = """Traceback (most recent call last):
  File "/r/source/digits.py", line 7, in <module>
RuntimeError: CUDA error: x
"""


def test_failure_with_xid_begins_with_xid() -> None:
    text = failed(
        LOG, kind="xid", text="GPU 0 reported Xid 79 (GPU has fallen off the bus) 2 s before", action="Reboot"
    )
    assert text.startswith("Exit code 1; GPU 0 reported Xid 79")
    assert "CUDA error: x in line 7" in text and text.endswith(". Reboot.")


def test_abort_after_an_error_names_the_error() -> None:
    status = RunStatus(state=RunState.FAILED, reason="signal", detail="killed by SIGABRT", signal=6)
    spec = JobSpec(name="digits", cell="x", script_name="digits.py")
    run = Run(handle=make_handle("local", "digits-1"), spec=spec, status=status, created=0.0)
    text = failure_reason(run, LOG) or ""
    assert "CUDA error: x in line 7" in text and "SIGABRT" in text
    assert failure_reason(run, "no traceback") == "Killed by SIGABRT."


def test_cuda_oom_failure_names_line() -> None:
    title, figures = "CUDA out of memory on GPU 0", "1.0 GiB more was requested"
    text = failed(
        LOG, kind="cuda-oom", text=f"{title}: {figures}", title=title, figures=figures, action="Wait for the others"
    )
    assert re.search(r"GPU 0 in line 7\b.*1\.0 GiB", text) and "RuntimeError" not in text


def test_cuda_oom_of_an_older_agent_keeps_its_text() -> None:
    text = failed(LOG, kind="cuda-oom", text="CUDA out of memory on GPU 0: 1.0 GiB more was asked for", action="Wait")
    assert "CUDA out of memory on GPU 0: 1.0 GiB" in text and "in line 7" in text


def test_failure_without_traceback_keeps_detail() -> None:
    status = "exited with code 1; GPU 0 was lost just before"
    run = Run(
        handle=make_handle("local", "digits-1"),
        spec=JobSpec(name="digits"),
        status=RunStatus(
            state=RunState.FAILED, reason="exit", detail=status, exit_code=1, cause={"text": "x", "action": "Look"}
        ),
        created=0.0,
    )
    assert failure_reason(run, "") == f"E{status[1:]}. Look."


def test_cuda_oom_in_service_log_is_recognized() -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00"
    error += " GiB of which 12.00 MiB is free. Process 7 has 2.00 GiB memory in use. Including non-PyTorch memory, this"
    log = LOG.replace("RuntimeError: CUDA error: x", f"{error} process has 5.90 GiB memory in use.")
    text = failed(log)
    assert re.search(r"in line 7\b.*1\.0 GiB", text) and "12.0 MiB of 8.0 GiB was free" in text
    assert "pid 7 held 2.0 GiB" in text and "torch.OutOfMemoryError" not in text


def test_canceled_run_says_when() -> None:
    end = time.mktime((2026, 11, 29, 16, 3, 12, 0, 0, -1))
    phases = (Phase(name="queued", start=end - 9, end=end - 5), Phase(name="running", start=end - 5, end=end))
    status = RunStatus(state=RunState.CANCELED, detail="canceled while running", phases=phases)
    assert re.fullmatch(r"Canceled while running\b.*2026-11-29\b.*16:03:12\.", canceled_text(status))
    assert canceled_text(RunStatus(state=RunState.CANCELED)) == "Canceled."
