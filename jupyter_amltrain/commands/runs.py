"""``runs``: list runs from any notebook, and follow, attach, cancel, export and delete them."""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.commands.files import DOWNLOAD, EXPORT, FILES
from jupyter_amltrain.commands.parser import RUN, Parser, run_flag
from jupyter_amltrain.commands.prune import PRUNE
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.commands.restore import RESTORE
from jupyter_amltrain.commands.resubmit import RESUBMIT
from jupyter_amltrain.commands.run_compare import COMPARE
from jupyter_amltrain.commands.run_debugger import DEBUG
from jupyter_amltrain.commands.run_lines import LINES
from jupyter_amltrain.commands.run_log import LOGS, continue_hint
from jupyter_amltrain.commands.run_questions import QUESTIONS
from jupyter_amltrain.commands.send import SEND
from jupyter_amltrain.errors import CommandError, RunError, UnrecordedRun
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.output.run_table import run_seconds
from jupyter_amltrain.schema.child_run import MAX_CHILDREN
from jupyter_amltrain.schema.run import PastAttempt, Run, RunHandle, RunState
from jupyter_amltrain.state_dir import working_folder
from jupyter_amltrain.text import ago, bytes_text, close_matches, did_you_mean, pairs, seconds_text, tilde, value_text
from jupyter_amltrain.tracking import team_ledger

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.run import TrackedRun
    from jupyter_amltrain.run_list import RunList

#: Maximum runs of a list whose metrics are read.
MAX_METRIC_RUNS = 100
#: Maximum number of runs that a confirmation names.
MAX_NAMED = 5
#: Time for which a wait in a terminal prints nothing (seconds).
_QUIET_S = 2.0
#: Maximum wait for MLflow's record of an ended run (seconds).
_RECORD_TIMEOUT_S = 120.0
#: State of a record in MLflow -> word for it, where it differs.
_RECORDING = {"pending": "recording"}
#: Codes of errors that end a wait before its run does.
_WAIT_ENDED = frozenset({"run.wait_timeout", "interrupted"})


# ---- the commands


def _shown_flags(parser: Parser) -> None:
    run_flag(parser)
    _json_flag(parser)


def _json_flag(parser: Parser) -> None:
    """Add ``--json`` of verbs whose magic shows the run itself."""
    if not parser.magic:
        parser.add_argument("--json", action="store_true", help="print JSON")


def _list_flags(parser: Parser) -> None:
    parser.flag("--target", metavar="NAME", help="only runs of this target")
    parser.flag(
        "-n", "--limit", metavar="N", type=flag_types.count, default=20, help="maximum number; 0 for all",
        samples=("20", "100", "0"),
    )  # fmt: skip
    parser.flag(
        "--sort", metavar="NAME", help="sort by a metric or parameter, highest first; lowest first with NAME:asc"
    )
    parser.flag("--parent", metavar="RUN", help="the trials of this sweep, which are not listed otherwise")


def _list(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain.output.run_table import run_table

    listed = read_runs(args.target, args.limit, args.parent or "")
    runs = sorted_runs(listed, args.sort) if args.sort else listed.runs
    if not runs and not listed.late:
        return Result("No runs yet. Start a cell with %%aml_submit, or type: amltrain submit train.py", [])
    shown = run_table(runs, listed.metrics)
    # A piped table is read by programs or opened in an editor.
    width = None if context.magic or not sys.stdout.isatty() else shutil.get_terminal_size().columns
    notes = []
    if listed.total > len(runs):
        notes.append(f"Showing {len(runs)} of {listed.total} runs. All of them: %aml_runs list -n 0")
    if listed.late:
        notes.append(f"Runs as last known, because there is no answer: {', '.join(listed.late)}.")
    rows = [_row(run, listed.metrics.get(run.handle, {})) for run in runs]
    notes_html = "".join(f"<div>{note}</div>" for note in notes)
    return Result(
        "\n".join([shown.text(width), *notes]), rows, html=shown.html() + notes_html if context.charts else ""
    )


def _attached(name: str, context: Context, *, as_json: bool = False) -> Result:
    """Return a run, as the magic shows it or as the command line prints it."""
    from jupyter_amltrain import api

    run = api.attach(name)
    if context.magic:
        return Result(value=run)
    return Result(data=run.record()) if as_json else Result(show_text(run))


def _attach(args: argparse.Namespace, context: Context) -> Result:
    return _attached(args.run, context, as_json=not context.magic and args.json)


def _last(args: argparse.Namespace, context: Context) -> Result:
    return _attached("last", context, as_json=not context.magic and args.json)


def _best_flags(parser: Parser) -> None:
    parser.flag("run", nargs="?", default="", help="the sweep; default the newest one")
    _json_flag(parser)


def _best(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    run = api.attach(f"best {args.run}".strip())
    again = "%aml_runs again" if context.magic else "amltrain runs again"
    values = ", ".join(f"{name} {value_text(value)}" for name, value in run.spec.params.items())
    text = "\n".join(filter(None, [values, f"To run it again: {again} {run.handle}"]))
    if context.magic:
        return Result(text, value=run)
    return Result(data=run.record()) if args.json else Result(f"{text}\n\n{show_text(run)}")


def _show(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    if not context.magic:
        return _attached(args.run, context, as_json=args.json)
    return Result(show_text(api.attach(args.run)))


def _cancel_flags(parser: Parser) -> None:
    parser.flag("run", nargs="+", help=f"{RUN}, or last")


def _cancel(args: argparse.Namespace, context: Context) -> Result:
    return Result("\n".join(cancel(args.run)))


def _wait_flags(parser: Parser) -> None:
    parser.flag("run", nargs="*", default=["last"], help=f"{RUN}; several for all of them; default last")
    parser.flag(
        "--timeout", metavar="TIME", type=flag_types.duration, help="stop waiting after this time: 30s, 15m",
        samples=("30m", "2h", "1d"),
    )  # fmt: skip


def _wait(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    # Resolve all before waiting for any; two names may be of one run.
    runs = list({run.handle: run for run in map(api.attach, args.run)}.values())
    if context.magic:
        waited = wait_all(runs, args.timeout, line=context.rewrite_line)
        return Result(value=waited[0]) if len(waited) == 1 else Result(value=waited, shown=True)  # `Out` shows the list
    end = None if args.timeout is None else time.monotonic() + args.timeout
    lines, failures = list[str](), list[RunError]()
    for run in runs:
        try:
            run.wait(None if end is None else max(0.0, end - time.monotonic()))
        except TimeoutError:
            return Result("\n".join(lines), notice=f"{run.handle} is still running.", exit_code=1)
        except RunError as error:
            failures.append(error)
        lines.append(f"{run.handle} {run.state}")
    if failures and len(runs) == 1:
        raise failures[0]
    return Result("\n".join(lines), notice="\n".join(map(str, failures)), exit_code=int(bool(failures)))


def _dashboard_flags(parser: Parser) -> None:
    run_flag(parser)
    window_flag(parser)


def window_flag(parser: Parser) -> None:
    """Add ``--window``, the time range of charts."""
    parser.flag(
        "--window", metavar="TIME|all", type=flag_types.window, default=600.0,
        help="time range of the charts; default 10m", samples=("10m", "1h", "all"),
    )  # fmt: skip


def _dashboard(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    return Result(value=api.attach(args.run).dashboard(window=args.window))


def _delete_flags(parser: Parser) -> None:
    _cancel_flags(parser)
    parser.flag("-f", "--force", "-y", "--yes", action="store_true", help="delete without asking")
    parser.flag("--without-mlflow", action="store_true", help="also delete a run that MLflow has no record of")


def _delete(args: argparse.Namespace, context: Context) -> Result:
    return Result("\n".join(delete(args.run, args.force, args.without_mlflow, context.prog)))


def _ui(args: argparse.Namespace, context: Context) -> Result:
    if not context.magic:
        notice = "The MLflow server stops when this shell exits, or after 30 minutes without a request."
        return Result(ui_text(ui(keep=True)), notice=notice)
    from html import escape

    url, path = mlflow_page()
    link = f'MLflow: <a href="{escape(path or url)}" target="_blank" rel="noopener">{escape(url)}</a>'
    return Result(ui_text(url), html=link)


COMMANDS = (
    Command(
        verb="list",
        summary="List the newest runs.",
        run=_list,
        flags=_list_flags,
        json=True,
        examples=Examples(("%aml_runs",), ("amltrain runs",)),
    ),
    Command(
        verb="show",
        summary="Show all details of a run.",
        run=_show,
        flags=_shown_flags,
    ),
    LOGS,
    LINES,
    *QUESTIONS,
    DEBUG,
    Command(
        verb="attach",
        summary="Show a run here again and return it.",
        run=_attach,
        flags=_shown_flags,
        examples=Examples(("run = %aml_runs attach local/digits-k3f9x",)),
    ),
    Command(
        verb="cancel",
        summary="Cancel runs.",
        run=_cancel,
        flags=_cancel_flags,
        examples=Examples(("%aml_runs cancel digits-k3f9x",)),
    ),
    Command(
        verb="wait",
        summary="Wait until a run ends, or all of several; a failed run is an error.",
        run=_wait,
        flags=_wait_flags,
    ),
    Command(verb="last", summary="Show the newest run and return it.", run=_last, flags=_json_flag),
    Command(
        verb="best",
        summary="Show the best trial of a sweep and return it.",
        run=_best,
        flags=_best_flags,
        examples=Examples(("%aml_runs best", "best = %aml_runs best digits-k3f9x"), ("amltrain runs best last",)),
    ),
    RESUBMIT,
    RESTORE,
    COMPARE,
    FILES,
    DOWNLOAD,
    Command(
        verb="dashboard",
        summary="Show charts of a run's GPUs, host and metrics, live or after its end.",
        run=_dashboard,
        flags=_dashboard_flags,
        examples=Examples(("%aml_runs dashboard last --window 30m",)),
        shell=False,  # charts need a browser
    ),
    EXPORT,
    Command(
        verb="delete",
        summary="Delete the folders of ended runs: log, outputs, files (MLflow's record stays).",
        run=_delete,
        flags=_delete_flags,
    ),
    PRUNE,
    SEND,
    Command(verb="ui", summary="Open MLflow's web pages with the runs of this folder.", run=_ui),
)


# ---- operations


class Listed(NamedTuple):
    """Runs of a list: the newest ones, the last values of their metrics, the number of all, and the targets that
    have not answered yet.
    """

    runs: list[Run]
    metrics: dict[RunHandle, dict[str, float]]
    total: int
    late: list[str] = []


def read_runs(target: str | None = None, limit: int = 20, parent: str = "") -> Listed:
    """Return the newest runs; `limit` 0 for all. Only the newest :data:`MAX_METRIC_RUNS` have metrics.

    Parameters
    ----------
    parent
        List the trials of this sweep; empty for the runs that are no trials.
    """
    from jupyter_amltrain.kernel.session import controller
    from jupyter_amltrain.run import ANSWER_TIMEOUT_S

    own = controller()

    async def get() -> Listed:
        handles = await own.handles(target)
        whole = await own.resolve(parent) if parent else ""
        listed: Iterator[RunHandle] = (handle for handle in handles if own.entry(handle).run.parent == whole)
        if parent:
            handles = [*listed]
            listed = iter(handles)
        shown = list(itertools.islice(listed, limit or None))
        is_whole = not limit or len(shown) < limit
        return Listed(
            [own.entry(handle).run for handle in shown],
            await own.contents.last_metrics(shown[:MAX_METRIC_RUNS]),
            len(shown) if is_whole else len(handles),
            own.backends.reads.late(),
        )

    return own.loop.call(get(), ANSWER_TIMEOUT_S)


def listing(target: str | None = None, limit: int = 20) -> list[dict[str, Any]]:
    """Return the newest runs as JSON-serializable rows; `limit` 0 for all."""
    listed = read_runs(target, limit)
    return [_row(run, listed.metrics.get(run.handle, {})) for run in listed.runs]


def sorted_runs(listed: Listed, by: str) -> list[Run]:
    """Return the runs sorted by a metric or parameter: ``NAME`` or ``NAME:asc``; runs without it come last.

    Raises
    ------
    CommandError
        No run of the list has this metric or parameter.
    """
    name = by.removesuffix(":asc").removesuffix(":desc")

    def value(run: Run) -> float | None:
        found = listed.metrics.get(run.handle, {}).get(name, run.spec.params.get(name))
        return float(found) if isinstance(found, (int, float)) and found == found else None

    known = [(number, run) for run in listed.runs if (number := value(run)) is not None]
    if not known:
        names = sorted({n for run in listed.runs for n in (*listed.metrics.get(run.handle, ()), *run.spec.params)})
        hint = did_you_mean(close_matches(name, names), f"Names: {', '.join(names[:8])}" if names else "")
        raise CommandError(f"--sort: no listed run has a number {name!r}.", hint=hint, code="runs.sort", field="sort")
    known.sort(key=lambda pair: pair[0], reverse=not by.endswith(":asc"))
    return [run for _, run in known] + [run for run in listed.runs if value(run) is None]


def _row(run: Run, metrics: Mapping[str, float]) -> dict[str, Any]:
    return {
        "handle": run.handle,
        "name": run.spec.name,
        "state": run.status.state.value,
        "reason": run.status.reason,
        "reachable": run.reachable,
        "cancel_requested": run.cancel_requested,
        "created": run.created,
        "seconds": run_seconds(run, time.time()),
        "experiment": run.experiment,
        "params": run.spec.params,
        "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
        "outputs": run.outputs,
        "error": run.error,
    }


def show_text(run: TrackedRun) -> str:
    """Return all details of one run as text."""
    from jupyter_amltrain.output.provenance_text import provenance_lines
    from jupyter_amltrain.output.text_view import record_text

    record = run.record()
    spec, status, state = run.spec, run.run.status, run.run
    tracking = _RECORDING.get(state.tracking, state.tracking)
    facts = [
        ("name", spec.name),
        ("experiment", state.experiment),
        ("repeats", spec.repeats),
        ("submitted", ago(record.created)),
        ("params", ", ".join(f"{k}={v!r}" for k, v in spec.params.items())),
        ("tags", ", ".join(f"{k}={v}" for k, v in spec.tags.items())),
        ("source", tilde(spec.source) if spec.source else ""),
        ("time limit", seconds_text(spec.timeout) if spec.timeout else ""),
        ("restarts", _restarts(status.attempt - 1, spec.max_restarts)),
        *((f"attempt {number}", _past_attempt(past)) for number, past in enumerate(status.attempts, 1)),
        ("metrics from", ", ".join(sorted({metric.source for metric in record.metrics.values() if metric.source}))),
        ("exit code", "" if status.exit_code is None else str(status.exit_code)),
        ("devices", ", ".join(status.devices)),
        ("GPU sharing", "allowed (--share-gpus)" if spec.share_gpus else ""),
        *provenance_lines(run.read_provenance()),
        ("folder", tilde(state.folder)),
        ("MLflow", f"run {state.tracking_id} ({tracking})" if state.tracking_id else ""),
        ("team's MLflow", team_ledger.text_of(team_ledger.entry_of(state.project, state.tracking_id))),
    ]
    return f"{record_text(record, child_rows=MAX_CHILDREN)}\n\n{pairs(facts)}"


def _restarts(count: int, allowed: int) -> str:
    """``1 of 3``; a target may start a job again by itself, too."""
    if count > allowed:
        return f"{count}, {count - allowed} of them by the target" if allowed else f"{count}, by the target"
    return f"{count} of {allowed}" if allowed else ""


def _past_attempt(past: PastAttempt) -> str:
    """``exited with code 3 after 12 s``."""
    after = "" if past.seconds is None else f" after {seconds_text(past.seconds)}"
    return f"{past.detail or past.reason}{after}"


def wait(run: TrackedRun, timeout: float | None = None, line: Callable[[str], Any] | None = None) -> TrackedRun:
    """Wait for the end.

    Parameters
    ----------
    timeout
        Seconds; ``None`` for no limit.
    line
        Rewrites the status line of a terminal; called with an empty text when the wait ends.

    Raises
    ------
    RunError
        The run did not complete, or the wait was interrupted or timed out.
    """
    with interruptible(run):
        try:
            return run.wait(timeout) if line is None else _wait_with_line(run, timeout, line)
        except TimeoutError:
            raise RunError(
                f"{run.handle} is still running after {seconds_text(timeout)}.",
                hint=continue_hint(run),
                code="run.wait_timeout",
            ) from None


def wait_all(
    runs: Sequence[TrackedRun], timeout: float | None = None, line: Callable[[str], Any] | None = None
) -> RunList:
    """Wait for the end of all runs; parameters as of :func:`wait`.

    Raises
    ------
    RunError
        The wait was interrupted or timed out, or a run did not complete: after the end of all.
    """
    from jupyter_amltrain.run_list import RunList

    end = None if timeout is None else time.monotonic() + timeout
    failures: list[RunError] = []
    for run in runs:
        try:
            wait(run, None if end is None else max(0.0, end - time.monotonic()), line)
        except RunError as error:
            if error.code in _WAIT_ENDED:
                raise
            failures.append(error)
    if len(failures) > 1:
        ended = [f"{run.handle} ({run.state})" for run in runs if run.state != RunState.COMPLETED.value]
        more = f" and {len(ended) - MAX_NAMED} more" if len(ended) > MAX_NAMED else ""
        raise RunError(
            f"{len(ended)} of {len(runs)} runs did not complete: {', '.join(ended[:MAX_NAMED])}{more}.",
            hint=f"See: %aml_runs show {ended[0].split()[0]}",
            code="run.several",
        ) from failures[0]
    if failures:
        raise failures[0]
    return RunList(runs)


@contextlib.contextmanager
def interruptible(run: TrackedRun) -> Iterator[None]:
    """Context in which an interrupt ends the wait but never the run.

    Raises
    ------
    RunError
        After an interrupt; an error, so that "Run All" stops.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise RunError(
            f"Interrupted: {run.handle} is still running.", hint=continue_hint(run), code="interrupted"
        ) from None


def _wait_with_line(run: TrackedRun, timeout: float | None, line: Callable[[str], Any]) -> TrackedRun:
    from jupyter_amltrain.output.text_view import state_line

    start = time.monotonic()
    silence = _QUIET_S  # print nothing for short waits
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


def cancel(names: Sequence[str]) -> list[str]:
    """Cancel runs; return one sentence for each."""
    from jupyter_amltrain import api

    lines = []
    for run in [api.attach(name) for name in names]:  # resolve all before canceling any
        state = run.status.state
        if state.terminal and not run.run.damaged:
            lines.append(f"{run.handle} has already ended ({state.value}).")
            continue
        run.cancel()
        lines.append(f"{run.handle}: cancel requested.")
    return lines


def delete(names: Sequence[str], force: bool, without_mlflow: bool = False, prog: str = "%aml_runs") -> list[str]:
    """Delete ended runs; return one sentence for each.

    Parameters
    ----------
    without_mlflow
        Also delete runs without a record in MLflow, because it could not be written.

    Raises
    ------
    CommandError
        `force` is not set (the message names what would be lost), or a run has not ended.
    UnrecordedRun
        Data that a run logged would be lost.
    """
    from jupyter_amltrain import api

    runs = [api.attach(name) for name in names]
    for run in runs:
        if not run.status.state.terminal:
            raise not_ended_error(run.run, prog)
    handles = " ".join(run.handle for run in runs)
    if not force:
        unrecorded = {run.handle: reason for run in runs if (reason := run.unrecorded())}
        sizes = [(run.run, run.record().log.bytes if i < MAX_NAMED else 0) for i, run in enumerate(runs)]
        flags = "--force --without-mlflow" if unrecorded else "--force"
        raise CommandError(
            deletion_warning(sizes, unrecorded),
            hint=f"To delete: {prog} delete {flags} {handles}",
            code="confirm.delete",
        )
    lines = list[str]()
    for run in runs:
        try:
            run.delete(without_mlflow=without_mlflow)
        except UnrecordedRun as error:
            deleted = " ".join(lines)
            raise UnrecordedRun(
                f"{deleted} {error.message}".strip(),
                hint=f"To delete it anyway: {prog} delete --force --without-mlflow {run.handle}",
            ) from error
        lines.append(f"{run.handle} deleted.")
    return lines


def not_ended_error(run: Run, prog: str = "%aml_runs") -> CommandError:
    """Return the error for deleting a live run."""
    return CommandError(
        f"{run.handle} is {run.status.state.value}: only ended runs can be deleted.",
        hint=f"Cancel it first: {prog} cancel {run.handle}",
        code="run.not_ended",
    )


def deletion_warning(runs: Sequence[tuple[Run, int]], unrecorded: Mapping[RunHandle, str] | None = None) -> str:
    """Return a message about the data that deleting runs would lose.

    Parameters
    ----------
    runs
        Runs, each with the bytes of its log; the message names the first :data:`MAX_NAMED`.
    unrecorded
        Runs without a record in MLflow, and the reason.
    """
    lost = "; ".join(
        f"{run.handle}: the log ({bytes_text(size)}), outputs and all files in {run.folder}"
        for run, size in runs[:MAX_NAMED]
    )
    more = f"; and the same for {len(runs) - MAX_NAMED} more" if len(runs) > MAX_NAMED else ""
    text = f"This permanently deletes {lost}{more}."
    if not unrecorded:
        return f"{text} The MLflow record is kept."
    named = "; ".join(f"{handle} ({reason})" for handle, reason in list(unrecorded.items())[:MAX_NAMED])
    named += f"; and {len(unrecorded) - MAX_NAMED} more" if len(unrecorded) > MAX_NAMED else ""
    text = f"{text} MLflow has no record of {named}: metrics, parameters, artifacts and models would be lost as well."
    return f"{text} The MLflow records of the others are kept." if len(unrecorded) < len(runs) else text


def ui(project: str | None = None, *, keep: bool = False) -> str:
    """Start MLflow's server for a project's runs, or find a running one; return its address.

    Parameters
    ----------
    project
        Folder of the notebook; default the working folder.
    keep
        Keep the server after this process (a command line exits at once): it stops with the terminal's shell.
    """
    if keep:
        from jupyter_amltrain.tracking.ui import start as start_ui

        return str(start_ui(project or working_folder(), keep=True)["url"])
    from jupyter_amltrain import api

    return api.ui(project)


def mlflow_page(project: str | None = None) -> tuple[str, str]:
    """Start MLflow's server as :func:`ui` does; return its address and its path at the Jupyter server, if any."""
    from jupyter_amltrain.api import mlflow_page as page

    return page(project)


def ui_text(url: str) -> str:
    """Return one line about MLflow's page."""
    note = " (opens for 15 minutes)" if "?token=" in url else ""
    return f"MLflow shows this folder's runs at {url}{note}"


def wait_recorded(run: TrackedRun, timeout: float = _RECORD_TIMEOUT_S) -> bool:
    """Wait up to `timeout` seconds until MLflow's record of an ended run is written; return whether it is."""
    deadline = time.monotonic() + timeout
    while run.run.tracking == "pending":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
