"""``runs``: what was submitted from anywhere, and what can be done with it."""

from __future__ import annotations

import codecs
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.tables import ago, pairs, table
from jupyter_amltrain.errors import CommandError, RunError, TargetError, UnrecordedRun
from jupyter_amltrain.naming import tilde
from jupyter_amltrain.runs.text import bytes_text, seconds_text
from jupyter_amltrain.spec.child_run import MAX_CHILDREN
from jupyter_amltrain.spec.run import DAMAGED, NOT_WRITTEN, Run, RunHandle, RunState
from jupyter_amltrain.state import working_folder

if TYPE_CHECKING:
    from jupyter_amltrain.api import TrackedRun

#: A log up to this size is printed whole; of a larger one the head and the end (bytes).
LOG_CAP = 200_000
_HEAD = 20_000
#: Pause between two looks at a followed log (seconds).
_LOOK = 0.25
#: Bytes of a followed log that are read again before what is new: they differ where the job has rewritten it.
_OVERLAP = 64
#: Bytes of a log that are read at once.
_BLOCK = 1 << 20
#: Runs that a question about many names.
NAMED = 5
#: A wait in a terminal says nothing for this time (seconds).
_SILENCE = 2.0


def listing(target: str | None = None, limit: int = 20) -> list[dict[str, Any]]:
    """The newest runs as JSON-able rows; `limit` 0 for all."""
    from jupyter_amltrain.session import controller
    from jupyter_amltrain.tracked_run import ANSWER

    found = controller().loop.call(controller().runs(target, limit or None), ANSWER)
    return [_row(run) for run in found]


def _row(run: Run) -> dict[str, Any]:
    return {
        "handle": run.handle,
        "name": run.spec.name,
        "state": run.status.state.value,
        "reason": run.status.reason,
        "reachable": run.reachable,
        "cancel_requested": run.cancel_requested,
        "created": run.created,
        "seconds": _ran(run, time.time()),
        "experiment": run.spec.experiment,
        "params": run.spec.params,
        "outputs": run.outputs,
        "error": run.error,
    }


def _ran(run: Run, now: float) -> float | None:
    """Seconds in which the script ran, those of a phase that still lasts included; ``None``: it has not begun."""
    spent = [p.seconds for p in run.status.phases if p.name == "running" and p.seconds is not None]
    if run.status.state is RunState.RUNNING:
        # The target's clock may differ from ours.
        spent += [max(now - p.start, 0.0) for p in run.status.phases if p.name == "running" and p.end is None]
    return sum(spent) if spent else None


def listing_text(rows: Sequence[dict[str, Any]]) -> str:
    """The table of ``runs list``."""
    if not rows:
        return "No run yet. Begin a cell with %%aml_submit, or: amltrain submit train.py"
    lines = []
    for row in rows:
        state = DAMAGED if row["reason"] == DAMAGED else row["state"]
        if row["reason"] == NOT_WRITTEN:
            state += " (its disk is full: may be old)"
        if row["cancel_requested"] and state in ("preparing", "queued", "running"):
            state += " (cancel requested)"
        if not row["reachable"]:
            state += " (target not responding)"
        took = "" if row["seconds"] is None else seconds_text(row["seconds"])
        values = ", ".join(f"{k}={_short(v)}" for k, v in {**row["params"], **row["outputs"]}.items())
        lines.append([row["handle"], state, ago(row["created"]), took, row["experiment"], values])
    return table(["run", "state", "submitted", "ran", "experiment", "params and outputs"], lines)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:24]


def show_text(run: TrackedRun) -> str:
    """What is known of one run."""
    from jupyter_amltrain.runs.text import record_text

    record = run.record()
    spec, status, known = run.spec, run.run.status, run.run
    facts = [
        ("name", spec.name),
        ("experiment", spec.experiment),
        ("submitted", ago(record.created)),
        ("params", ", ".join(f"{k}={v!r}" for k, v in spec.params.items())),
        ("tags", ", ".join(f"{k}={v}" for k, v in spec.tags.items())),
        ("source", tilde(spec.source) if spec.source else ""),
        ("time limit", seconds_text(spec.timeout) if spec.timeout else ""),
        ("exit code", "" if status.exit_code is None else str(status.exit_code)),
        ("devices", ", ".join(status.devices)),
        ("GPU sharing", "allowed (--share-gpus)" if spec.share_gpus else ""),
        ("folder", tilde(known.folder)),
        ("MLflow", f"run {known.tracking_id} ({known.tracking})" if known.tracking_id else ""),
    ]
    return f"{record_text(record, child_rows=MAX_CHILDREN)}\n\n{pairs(facts)}"


def log_text(run: TrackedRun, tail: int | None = None) -> str:
    """The log as a terminal would show it; of a long one the head, the end and its path."""
    from jupyter_amltrain.runs.series import collapse

    if tail is not None:
        return collapse(run.logs(tail=tail)) if tail else ""
    path = run.log_path
    data, size = run.read_log(-LOG_CAP, LOG_CAP)
    if size <= LOG_CAP:
        return collapse(data.decode("utf-8", "replace"))
    head = run.read_log(0, _HEAD)[0].decode("utf-8", "replace").rpartition("\n")[0]
    end = data[_HEAD:].decode("utf-8", "replace").partition("\n")[2]
    gap = f"... {bytes_text(size - LOG_CAP)} left out; the whole log: {path} ..."
    return f"{collapse(head)}\n{gap}\n{collapse(end)}"


def child_log_text(run: TrackedRun, step: str, tail: int | None = None) -> str:
    """The log of a step or trial as a terminal would show it."""
    from jupyter_amltrain.runs.series import collapse

    return collapse(run.logs(tail, step)) if tail != 0 else ""


def follow_child(run: TrackedRun, step: str, write: Callable[[str], Any], tail: int | None = None) -> None:
    """Write the log of a step or trial as it grows until that has ended."""
    known = 0
    while True:
        done = run.child(step).ended is not None or run.status.state.terminal  # asked first, as of a run
        text = run.logs(step=step)
        if not known and tail is not None:
            known = len(text) - len("\n".join(text.splitlines()[-tail:])) if tail else len(text)
        write(text[known:])
        known = max(known, len(text))
        if done:
            return
        time.sleep(_LOOK)


def no_log(run: TrackedRun) -> str:
    """What is said in the place of a log without a line, and why there is none where that is known."""
    ended = run.run.status.state.terminal
    return f"{run.handle} has {'written no log' if ended else 'no log yet'}. Its state: %aml_runs show {run.handle}"


def follow(run: TrackedRun, write: Callable[[str], Any], tail: int | None = None) -> None:
    """Write the log as it grows until the run has ended; never raises for how it ended."""
    from jupyter_amltrain.runs.series import LOG_RESTARTED

    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offset, last = 0, b""
    if tail is not None:
        text = run.logs(tail=tail)
        last, offset = run.read_log(-_OVERLAP, _OVERLAP)
        if text:
            write(text + "\n")
    while True:
        done = run.status.state.terminal  # asked first: what comes after is all there is
        while True:
            with contextlib.suppress(TargetError):
                data, end = run.read_log(offset - len(last), _BLOCK)
                if data and not data.startswith(last):
                    offset, last = 0, b""
                    decoder.reset()
                    write(LOG_RESTARTED)
                    continue
                if block := data[len(last) :]:
                    offset, last = end, data[-_OVERLAP:]
                    write(decoder.decode(block))
                    continue
            break
        if done:
            return
        try:
            run.wait(_LOOK)
        except (TimeoutError, RunError):
            continue


def wait(run: TrackedRun, timeout: float | None = None, line: Callable[[str], Any] | None = None) -> TrackedRun:
    """Wait for the end.

    Parameters
    ----------
    timeout
        Seconds; ``None`` waits for ever.
    line
        Rewrites the one line of a terminal that says how the run is; called with an
        empty text at the end.

    Raises
    ------
    RunError
        It did not complete, or it goes on: the waiting was interrupted or took too long.
    """
    with going_on(run):
        try:
            return run.wait(timeout) if line is None else _wait_aloud(run, timeout, line)
        except TimeoutError:
            raise RunError(
                f"{run.handle} is still running after {seconds_text(timeout)} of waiting.", hint=still(run)
            ) from None


@contextlib.contextmanager
def going_on(run: TrackedRun) -> Iterator[None]:
    """An interrupt in here ends the waiting, never the run, and says so.

    Raises
    ------
    RunError
        For an interrupt: an error, so that "Run All" stops here as the user wanted.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise RunError(f"Interrupted: {run.handle} is still running.", hint=still(run)) from None


def _wait_aloud(run: TrackedRun, timeout: float | None, line: Callable[[str], Any]) -> TrackedRun:
    from jupyter_amltrain.runs.text import state_line

    start = time.monotonic()
    silence = _SILENCE  # nothing for quick things
    try:
        while True:
            spent = time.monotonic() - start
            left = silence if timeout is None else min(silence, timeout - spent)
            try:
                return run.wait(max(left, 0.0))
            except TimeoutError:
                spent = time.monotonic() - start
                if timeout is not None and spent >= timeout:
                    raise
                line(f"{state_line(run.record())}  {seconds_text(spent)}")
                silence = 0.5
    finally:
        line("")


def still(run: TrackedRun) -> str:
    """What to type for a run that goes on."""
    return f"%aml_runs cancel {run.handle} stops it, %aml_runs wait {run.handle} waits again."


def cancel(names: Sequence[str]) -> list[str]:
    """Ask for the end of runs; one sentence each."""
    from jupyter_amltrain import api

    said = []
    for run in [api.attach(name) for name in names]:  # all are known before one is touched
        state = run.status.state
        if state.terminal and not run.run.damaged:
            said.append(f"{run.handle} has ended already ({state.value}); nothing to cancel.")
            continue
        run.cancel()
        said.append(f"{run.handle}: cancel requested.")
    return said


def delete(names: Sequence[str], force: bool, without_mlflow: bool = False, prog: str = "%aml_runs") -> list[str]:
    """Remove ended runs.

    Parameters
    ----------
    without_mlflow
        Also runs that MLflow has no record of, because it could not be written.

    Raises
    ------
    CommandError
        Without `force` (says what would be lost), or a run has not ended.
    UnrecordedRun
        What a run logged would be lost.
    """
    from jupyter_amltrain import api

    runs = [api.attach(name) for name in names]
    for run in runs:
        if not run.status.state.terminal:
            raise not_ended(run.run, prog)
    handles = " ".join(run.handle for run in runs)
    if not force:
        unrecorded = {run.handle: why for run in runs if (why := run.unrecorded())}
        sizes = [(run.run, run.record().log.bytes if i < NAMED else 0) for i, run in enumerate(runs)]
        flags = "--force --without-mlflow" if unrecorded else "--force"
        raise CommandError(lost_text(sizes, unrecorded), hint=f"If that is meant: {prog} delete {flags} {handles}")
    said = list[str]()
    for run in runs:
        try:
            run.delete(without_mlflow=without_mlflow)
        except UnrecordedRun as error:
            done = " ".join(said)
            raise UnrecordedRun(
                f"{done} {error.message}".strip(),
                hint=f"If that is meant: {prog} delete --force --without-mlflow {run.handle}",
            ) from error
        said.append(f"{run.handle} deleted.")
    return said


def not_ended(run: Run, prog: str = "%aml_runs") -> CommandError:
    """Why a live run cannot be deleted."""
    return CommandError(
        f"{run.handle} is {run.status.state.value}; only ended runs can be deleted.",
        hint=f"First: {prog} cancel {run.handle}",
    )


def lost_text(runs: Sequence[tuple[Run, int]], unrecorded: Mapping[RunHandle, str] | None = None) -> str:
    """What deleting runs would cost.

    Parameters
    ----------
    runs
        Each with the bytes of its log, which the first :data:`NAMED` are asked for.
    unrecorded
        Those that MLflow has no record of, and why.
    """
    lost = "; ".join(
        f"{run.handle}: log ({bytes_text(size)}), outputs, files in {run.folder}" for run, size in runs[:NAMED]
    )
    more = f"; and the same of {len(runs) - NAMED} more" if len(runs) > NAMED else ""
    text = f"This would be lost for good: {lost}{more}."
    if not unrecorded:
        return f"{text} MLflow's record stays."
    named = "; ".join(f"{handle} ({why})" for handle, why in list(unrecorded.items())[:NAMED])
    named += f"; and {len(unrecorded) - NAMED} more" if len(unrecorded) > NAMED else ""
    text = f"{text} MLflow has no record of {named}: metrics, parameters, artifacts and models would be lost, too."
    return f"{text} MLflow's record of the others stays." if len(unrecorded) < len(runs) else text


def ui(project: str | None = None, *, keep: bool = False) -> str:
    """Start MLflow's page on a project's runs, or find the one that runs; returns its address.

    Parameters
    ----------
    project
        Folder of the notebook; default the working folder.
    keep
        Let the page outlive this process (a command line ends at once): it ends with the shell of the terminal.
    """
    if keep:
        from jupyter_amltrain.tracking import start_ui

        return str(start_ui(project or working_folder(), keep=True)["url"])
    from jupyter_amltrain import api

    return api.ui(project)


def mlflow_page(project: str | None = None) -> tuple[str, str]:
    """Start MLflow's page as :func:`ui` does; returns its address and its path at the Jupyter server, if any."""
    from jupyter_amltrain.api.tracked_runs import mlflow_page as page

    return page(project)


def ui_text(url: str) -> str:
    """One line about the page."""
    note = " (opens for 15 minutes)" if "?token=" in url else ""
    return f"MLflow shows this folder's runs at {url}{note}"


def recorded(run: TrackedRun, timeout: float = 120.0) -> bool:
    """Wait until MLflow's record of an ended run is written, or `timeout` seconds are over."""
    deadline = time.monotonic() + timeout
    while run.run.tracking == "pending":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
