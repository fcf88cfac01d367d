"""Text and exception for the end of a run: what happened, where, and what to type next."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

import msgspec

from jupyter_amltrain.agent.protocol import RESTART_PREFIX
from jupyter_amltrain.agent.supervise.outcome import cause_in_log
from jupyter_amltrain.errors import AmlTrainError, RunCanceled, RunFailed, RunLost, SubmitError
from jupyter_amltrain.jobs.requirements import package_of
from jupyter_amltrain.schema.run import Run, RunState, RunStatus

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_ERROR = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
#: Python 3.13 can color its tracebacks; PyTorch writes the rank before each line.
_AROUND = re.compile(r"\x1b\[[0-9;]*m|^\[rank\d+\]: ?", re.MULTILINE)
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
#: How parsers of arguments begin what they complain about, and the exit codes that they end with.
_COMPLAINT = re.compile(
    r"^[\w./-]+: (?:error: |No module named |Error while finding module )|^(?:Usage )?[Ee]rror: |^ERROR: "
    r"|^Could not override |^Error merging override "
)
USAGE_CODES = (1, 2)
#: Lines at the end of a log in which such a complaint stands.
_COMPLAINT_LINES = 12
#: Lines of log that an error shows.
TAIL_LINES = 12


def cell_line(run: Run, log: str) -> int | None:
    """Return the cell's line of the last traceback in `log`; ``None`` without a traceback.

    The innermost frame in the submitted script counts, because the user can change that line.
    """
    log = _AROUND.sub("", log)
    start = log.rfind("Traceback (most recent call last):")
    start = max(start, log.rfind("  File ") if start < 0 else start)
    if start < 0:
        return None
    lines = [int(m["line"]) for m in _FRAME.finditer(log, start) if _is_script(m["file"], run.spec.script_name)]
    return lines[-1] - run.spec.line_offset if lines else None


def _is_script(file: str, name: str) -> bool:
    """Whether a frame's file is the submitted script: in ``source/``, or where a service put the code."""
    file = file.replace("\\", "/")
    if file.endswith(f"source/{name}") or file == name:
        return True
    return file.endswith(f"/{name}") and "/site-packages/" not in file and "/lib/python" not in file


def log_of_last_attempt(log: str) -> str:
    """Return the part of a log after the last line between two attempts."""
    return log[max(0, log.rfind(f"\n{RESTART_PREFIX}")) :]


def last_error(log: str) -> str:
    """Return the last line of the last traceback in `log`, e.g. ``ValueError: no``."""
    log = _AROUND.sub("", log)
    start = log.rfind("Traceback (most recent call last):")
    if start < 0:
        return ""
    for line in log[start:].splitlines()[1:]:
        if line and not line[0].isspace() and _ERROR.match(line):
            return line.strip()
    return ""


def last_line(log: str) -> str:
    """Return the last error of a log's last attempt, else its last line; empty for an empty log."""
    log = log_of_last_attempt(log)
    return last_error(log) or next((line for line in reversed(log.splitlines()) if line.strip()), "")


def last_complaint(log: str) -> str:
    """Return the last line of a log if a parser of arguments complains there, e.g. ``train.py: error: no --x``.

    Typer draws a box around its complaint, and Hydra has more lines behind its own.
    """
    lines = [line.strip(" \t│╭╰─╯╮") for line in log.splitlines()[-_COMPLAINT_LINES:]]
    lines = [line for line in lines if line]
    found = [line for line in lines if _COMPLAINT.search(line)]
    if found and (found[-1] == lines[-1] or found[-1] == lines[0] or "override" in found[-1]):
        return found[-1]
    return lines[-1] if lines and any(line.startswith("Usage:") for line in lines) else ""


def _short(text: str, limit: int = 200) -> str:
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
        line = cell_line(run, log)
        location = f" in line {line} of the {'cell' if run.spec.cell else 'script'}" if line else ""
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
    elif cause.get("text") and not status.cause:
        what = f"{what.rstrip('.')}; {cause['text']}" if what else cause["text"]
    if cause.get("action"):
        what = f"{what.rstrip('.')}. {cause['action']}"
    return _sentence(what) if what else "The reason is not known."


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
        exit_code=run.status.exit_code,
        log_tail=tail,
        cell_line=cell_line(run, log),
    )
