"""Text and exception for the end of a run: what happened, where, and what to type next."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping

import msgspec

from jupyter_amltrain.agent.supervise.outcome import cause_in_log
from jupyter_amltrain.errors import AmlTrainError, RunCanceled, RunFailed, RunLost, SubmitError
from jupyter_amltrain.jobs.requirements import package_of
from jupyter_amltrain.kernel.log_errors import (
    cell_line,
    last_complaint,
    last_error,
    last_text,
    log_of_last_attempt,
)
from jupyter_amltrain.schema.run import Run, RunState, RunStatus

_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
#: Exit codes of parsers of arguments that complain.
USAGE_CODES = (1, 2)
#: Lines of log that an error shows.
TAIL_LINES = 12


#: Maximum characters of the script's own words in a reason.
_MAX_QUOTED = 1000


def _short(text: str, limit: int = _MAX_QUOTED) -> str:
    return text if len(text) <= limit else f"{text[:limit].rstrip()} …"


def failure_reason(run: Run, log: str, missed: str = "") -> str | None:
    """Return why a run failed or was lost, without its handle; ``None`` for any other run.

    Parameters
    ----------
    missed
        Sentence about a file or module that the run lacked and that this computer has.
    """
    status = run.status
    if status.state is RunState.LOST:
        return _lost_text(run)
    if status.state is not RunState.FAILED:
        return None
    what = status.detail or (f"exited with code {status.exit_code}" if status.exit_code is not None else "")
    if status.reason == "gpu-unused":
        # The agent's sentence contains the finding and the likely cause.
        return f"{_sentence(what)} To let such a run continue: --require-gpu warn."
    # A service keeps the log where the agent in the job cannot read it, so the cause is determined here.
    cause = status.cause or (cause_in_log(log) if status.reason in ("exit", "service") else None) or {}
    log = log_of_last_attempt(log)
    # A library may abort while Python ends because of an error: Gloo does when the other ranks are gone.
    aborted = status.reason == "signal" and status.signal == signal.SIGABRT and not cause
    if (status.reason == "exit" or aborted) and (error := last_error(log)):
        location = _location(run, log)
        rank = "" if status.failed_rank is None else f"rank {status.failed_rank} "
        what = f"{rank}raised {_short(error)}{location}"
        if aborted:
            what += ", and was killed by SIGABRT"
        if cause.get("text"):
            what = _with_cause(status, cause, error, location)
        what += _missing_text(error, missed)
        if status.attempt > 1:
            what += f" (after {status.attempt} attempts)"
    elif status.reason == "exit" and status.exit_code in USAGE_CODES and (complaint := last_complaint(log)):
        what = f"{what.rstrip('.')}: {_short(complaint).rstrip('.')}"
        what += _missing_text(complaint, missed)
    elif status.reason == "signal" and not cause and (location := _location(run, log)):
        what = f"{what.rstrip('.')}{location}"
    elif cause.get("text") and not status.cause:
        what = f"{what.rstrip('.')}; {cause['text']}" if what else cause["text"]
    elif status.reason == "exit" and not cause and (text := last_text(log)):
        what = f"{what.rstrip('.')}: {_short(text)}"  # such as that of sys.exit("no data")
    if cause.get("action"):
        what = f"{what.rstrip('.')}. {cause['action']}"
    return _sentence(what) if what else "The reason is not known."


def canceled_text(status: RunStatus) -> str:
    """Return how far a canceled run was, and when it ended, in local time."""
    ends = [phase.end for phase in status.phases if phase.end is not None]
    at = f", on {time.strftime('%Y-%m-%d at %H:%M:%S', time.localtime(max(ends)))}" if ends else ""
    return _sentence(f"{status.detail.rstrip('.') or 'canceled'}{at}")


def _location(run: Run, log: str) -> str:
    line = cell_line(run, log)
    return f" in line {line} of the {'cell' if run.spec.cell else 'script'}" if line else ""


def _missing_text(error: str, missed: str) -> str:
    """Return what to do about a file or module that a run lacks, behind its error; empty if it lacks none."""
    if missed:
        return f". {missed}"
    module = _NO_MODULE.search(error)
    return f". Add the package: --pip {package_of(module[1])}" if module else ""


def _lost_text(run: Run) -> str:
    detail = run.status.detail or "its supervisor no longer exists"
    if run.spec.trial is not None:
        return (
            f"The driver of the sweep was lost: {detail.rstrip('.')}. Trials that run go on, and no more are submitted."
            f" To go on with the search: %aml_sweep --continue {run.handle}"
        )
    if run.spec.driver is not None:
        return (
            f"The driver of the {run.spec.driver.kind} was lost: {detail.rstrip('.')}. Runs of it go on, and no more"
            f" are submitted. To go on: %aml_runs again {run.handle}"
        )
    where = "; its checkpoints are in its folder" if run.spec.max_restarts else ""
    return f"{_sentence(detail)} Submit it again{where}."


def _sentence(text: str) -> str:
    """Return text with a capital at the start and a full stop at the end."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def explained(run: Run) -> Run:
    """Return the run with the reason of its end."""
    if run.damaged or (error := failure_reason(run, "")) == run.error:
        return run
    return msgspec.structs.replace(run, error=error)


def _with_cause(status: RunStatus, cause: Mapping[str, str], error: str, location: str) -> str:
    """Text for a failure caused by a GPU; the cause comes first, because users read the start of a sentence."""
    if title := cause.get("title"):  # the same error, in clearer words
        figures = cause.get("figures")
        return f"{title}{location}: {figures}" if figures else f"{title}{location}"
    return f"exit code {status.exit_code}; {cause['text']} (raised {_short(error)}{location})"


def as_error(run: Run, log: str) -> AmlTrainError | None:
    """Return the exception that waiting for `run` raises; ``None`` if the run completed."""
    state, reason = run.status.state, run.error or failure_reason(run, log) or ""
    if state is RunState.COMPLETED or not state.terminal:
        return None
    if state is RunState.CANCELED:
        return RunCanceled(f"{run.handle} was canceled.", hint=f"See: %aml_runs logs {run.handle}")
    if state is RunState.LOST:
        return RunLost(f"{run.handle} is lost. {reason}")
    if run.status.reason == "launch" and not run.folder:
        return SubmitError(reason)
    log = log_of_last_attempt(log)
    tail = "\n".join(log.splitlines()[-TAIL_LINES:])
    rank = f" --rank {run.status.failed_rank}" if run.status.failed_rank else ""
    return RunFailed(
        f"{run.handle} failed. {reason}",
        hint=f"See: %aml_runs logs {run.handle}{rank}",
        title=f"{run.handle} failed.",
        exit_code=run.status.exit_code,
        log_tail=tail,
        cell_line=cell_line(run, log),
    )
