"""``amltrain <noun> ...``: the commands of :mod:`jupyter_amltrain.commands.registry` as shell commands.

Exit codes: 0 success, 1 a run or a target operation failed, 2 usage error, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from jupyter_amltrain.commands.parser import HelpRequested
from jupyter_amltrain.commands.registry import SHELL_NOUNS, Context, Result, noun_of, run, shell_text
from jupyter_amltrain.errors import AmlTrainError, CommandError, ResultMissing, RunCanceled, RunFailed
from jupyter_amltrain.schema.job import EVERY

if TYPE_CHECKING:
    from jupyter_amltrain.commands.submit import SubmitRequest
    from jupyter_amltrain.output.scaling_runs import ScalingRuns
    from jupyter_amltrain.run import TrackedRun


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    code = 0
    try:
        code = _exit_code(words)
        if sys.stdout is not None:  # `>&-`
            sys.stdout.flush()  # an error can be caught here, but not at interpreter exit
    except BrokenPipeError:  # the reader, such as `| head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if (api := sys.modules.get("jupyter_amltrain.api")) is not None:
            api.close()  # stops watching; runs continue
    return code


def _exit_code(words: list[str]) -> int:
    """Run a command line; print an error as one line."""
    try:
        return _command(words)
    except HelpRequested as help_text:
        print(help_text)
        return 0
    except AmlTrainError as error:
        _print(f"amltrain: {error}", sys.stderr)
        if error.code == "interrupted":
            return _interrupted()
        return 2 if isinstance(error, CommandError) else 1
    except KeyboardInterrupt:
        print("amltrain: interrupted. Runs continue.", file=sys.stderr)
        return _interrupted()


def _interrupted() -> int:
    """Return the exit code after Ctrl-C; what the loop had not begun yet is no error of this process."""
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
    return 130


def _command(words: list[str]) -> int:
    """Run the command and print its result."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help(), end="")
        return 0
    if words[0] in ("-V", "--version"):
        import jupyter_amltrain

        print(jupyter_amltrain.__version__)
        return 0
    noun = noun_of(words.pop(0))
    context = Context(
        prog=f"amltrain {noun.name}",
        write=_write,
        notify=lambda line: _print(line, sys.stderr),
        sign_in=lambda event: _print(event["text"], sys.stderr),
        submitted=_submitted,
        measured=_measured,
        interactive=sys.stdout is not None and sys.stdout.isatty(),
    )
    result = run(noun.name, words, context)
    if result.notice:
        _print(f"amltrain: {result.notice}", sys.stderr)
    if "--json" in words and result.data is not None:
        print(_json(result.data))
    elif result.verbatim:
        _write(result.text)
    elif result.text:
        _print(result.text)
    return result.exit_code


def _help() -> str:
    width = max(map(len, SHELL_NOUNS))
    lines = [f"  {noun.name:<{width}}  {noun.summary}" for noun in SHELL_NOUNS.values()]
    return (
        "Submit scripts as supervised, tracked runs, and manage them.\n\n"
        "Examples::\n\n"
        "    amltrain compute\n"
        "    amltrain submit train.py --param epochs=5 --wait\n"
        "    amltrain runs logs last --follow\n"
        "    amltrain monitor\n\n"
        f"usage: amltrain {'|'.join(SHELL_NOUNS)} ...\n\n"
        "commands:\n" + "\n".join(lines) + "\n\n"
        "Help on a command: amltrain <command> --help\n"
    )


def _submitted(run: TrackedRun, submission: SubmitRequest) -> Result:
    """Print the handle of a run; with ``--wait``, its log, outcome and values."""
    from jupyter_amltrain.commands.run_log import follow
    from jupyter_amltrain.commands.runs import wait_recorded

    run.accepted()
    for note in (*run.spec.notes, *run.run.notes):
        _print(f"amltrain: note: {note}", sys.stderr)
    if not submission.wait:
        return Result(run.handle, {"handle": run.handle})
    print(run.handle, file=sys.stderr, flush=True)
    try:
        if not submission.as_json:
            follow(run, _write)
        try:
            run.wait()
        except RunFailed:
            if not submission.as_json:
                raise
        finally:
            wait_recorded(run)  # this process writes the MLflow record
    except KeyboardInterrupt:
        raise AmlTrainError(
            f"{run.handle} is still running.", hint=f"To stop it: %aml_runs cancel {run.handle}", code="interrupted"
        ) from None
    if submission.as_json:
        return Result(data=run.record(), exit_code=0 if run.state == "completed" else 1)
    missing: list[ResultMissing] = []
    for name in run.results if EVERY in run.spec.out else run.spec.out:
        try:
            print(f"{name} = {run.result(name)!r}")
        except ResultMissing as error:
            missing.append(error)
    if missing:
        raise ResultMissing.of_all(run.handle, missing)
    return Result()


def _measured(runs: ScalingRuns, submission: SubmitRequest) -> Result:
    """Measure all widths, which this process submits one after another, and print their table."""
    from jupyter_amltrain.commands.runs import wait_recorded

    for note in (*runs.runs[0].spec.notes, *runs.runs[0].accepted().run.notes):
        _print(f"amltrain: note: {note}", sys.stderr)
    failed = False
    try:
        for run in runs.runs:
            print(run.handle, file=sys.stderr, flush=True)
            try:
                run.wait()
            except RunCanceled:  # or not submitted, because an earlier one cannot be compared
                failed = failed or bool(run.run.folder)
            except RunFailed as error:
                failed = True
                _print(f"amltrain: {error}", sys.stderr)
            if run.run.folder:
                wait_recorded(run)  # this process writes the MLflow record
    except KeyboardInterrupt:
        runs.cancel()  # no other process would submit the further widths
        raise AmlTrainError("The measurement was canceled.", code="interrupted") from None
    if submission.as_json:
        return Result(data={"handles": list(runs.handles), **runs.report()._asdict()}, exit_code=int(failed))
    return Result(repr(runs), exit_code=int(failed))


def _json(data: Any) -> str:
    """Encode as ASCII JSON, which every terminal can print."""
    import msgspec

    return json.dumps(msgspec.json.decode(msgspec.json.encode(data)))


def _print(text: str, to: TextIO | None = None) -> None:
    """Print a message, with magics rewritten as shell commands."""
    print(shell_text(text), file=to or sys.stdout, flush=to is not None)


def _write(text: str) -> None:
    sys.stdout.write(
        text if text.isascii() else text.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding)
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
