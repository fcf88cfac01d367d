"""``amltrain submit|runs|compute|monitor|model``: the magics' commands in a shell.

Exit codes: 0 done, 1 a run failed or a target refused, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from jupyter_amltrain.commands.parsers import COMMANDS, HelpWanted, parser_of
from jupyter_amltrain.errors import AmlTrainError, CommandError, ResultMissing, RunFailed

if TYPE_CHECKING:
    from jupyter_amltrain.api import TrackedRun

#: A cell magic has no counterpart in a shell.
_MAGIC = re.compile(r"(?<!%)%(?:aml_(submit|runs|compute|monitor|model)|pip)\b")
_HELP = """Submit scripts as supervised, tracked runs, and look after them.

Examples::

    amltrain compute
    amltrain submit train.py --param epochs=5 --wait
    amltrain runs logs last --follow
    amltrain monitor

usage: amltrain submit|runs|compute|monitor|model ...

amltrain <command> --help tells more.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    code = 0
    try:
        code = _carried_out(words)
        if sys.stdout is not None:  # `>&-`
            sys.stdout.flush()  # here it can be caught, at the interpreter's end it cannot
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if (api := sys.modules.get("jupyter_amltrain.api")) is not None:
            api.close()  # stops the watching; runs go on
    return code


def _carried_out(words: list[str]) -> int:
    """The exit code of a command, what went wrong said in one line."""
    try:
        return _command(words)
    except HelpWanted as wanted:
        print(wanted)
        return 0
    except AmlTrainError as error:
        _say(f"amltrain: {error}", sys.stderr)
        return 2 if isinstance(error, CommandError) else 1
    except KeyboardInterrupt:
        print("amltrain: interrupted; runs go on.", file=sys.stderr)
        return 130


def _command(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        return 0
    if words[0] in ("-V", "--version"):
        import jupyter_amltrain

        print(jupyter_amltrain.__version__)
        return 0
    command = words.pop(0)
    if command not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(command, COMMANDS, 1, 0.5)
        hint = f"Did you mean amltrain {near[0]}?" if near else f"There are: {', '.join(COMMANDS)}."
        raise CommandError(f"unknown command {command!r}.", hint=hint)
    return {"submit": _submit, "runs": _runs, "compute": _compute, "monitor": _monitor, "model": _model}[command](words)


def _submit(words: list[str]) -> int:
    from jupyter_amltrain.commands import submit
    from jupyter_amltrain.commands.runs import follow, recorded

    submission = submit.understand(words, prog="amltrain submit")
    if submission.dry_run:
        print(submit.plan_text(submission))
        return 0
    run = submit.send(submission)
    run.accepted()
    for note in submission.spec.notes:
        _say(f"amltrain: note: {note}", sys.stderr)
    if not submission.wait:
        print(json.dumps({"handle": run.handle}) if submission.as_json else run.handle, flush=True)
        return 0
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
            recorded(run)  # this process holds the one who writes MLflow's record
    except KeyboardInterrupt:
        print(f"amltrain: {run.handle} is still running; amltrain runs cancel {run.handle} stops it.", file=sys.stderr)
        return 130
    if submission.as_json:
        _print_json(run)
        return 0 if run.state == "completed" else 1
    missing: list[ResultMissing] = []
    for name in run.spec.out:
        try:
            print(f"{name} = {run.result(name)!r}")
        except ResultMissing as error:
            missing.append(error)
    if missing:
        raise ResultMissing.of_all(run.handle, missing)
    return 0


def _runs(words: list[str]) -> int:
    from jupyter_amltrain import api
    from jupyter_amltrain.commands import runs

    asked = parser_of("runs", "amltrain runs").parse(words)
    if asked.verb == "list":
        rows = runs.listing(asked.target, asked.limit)
        _say(json.dumps(rows) if asked.json else runs.listing_text(rows), as_is=asked.json)
    elif asked.verb == "cancel":
        _say("\n".join(runs.cancel(asked.run)))
    elif asked.verb == "delete":
        _say("\n".join(runs.delete(asked.run, asked.force, asked.without_mlflow, "amltrain runs")))
    elif asked.verb == "export":
        from jupyter_amltrain.commands import export

        path = export.checked(asked.file)
        _say(export.export(api.attach(asked.run), path))
    elif asked.verb == "ui":
        _say(runs.ui_text(runs.ui(keep=True)))
        print("It ends with this shell, or when nobody has used it for 30 minutes.", file=sys.stderr)
    else:
        run = api.attach("last" if asked.verb == "last" else asked.run)
        if asked.verb == "wait":
            try:
                run.wait(asked.timeout)
            except TimeoutError:
                print(f"amltrain: {run.handle} is still running.", file=sys.stderr)
                return 1
            print(f"{run.handle} {run.state}")
        elif asked.verb == "logs":
            if asked.follow and asked.step:
                runs.follow_child(run, asked.step, _write, asked.tail)
            elif asked.follow:
                runs.follow(run, _write, asked.tail)
            else:
                text = (
                    runs.child_log_text(run, asked.step, asked.tail) if asked.step else runs.log_text(run, asked.tail)
                )
                _write(text)
                if not text:
                    _say(f"amltrain: {runs.no_log(run)}", sys.stderr)
        elif asked.json:
            _print_json(run)
        else:
            _say(runs.show_text(run))
    return 0


def _compute(words: list[str]) -> int:
    from jupyter_amltrain.commands import azure_sizes, compute, connect
    from jupyter_amltrain.commands.compute_parser import WORKS

    asked = parser_of("compute", "amltrain compute").parse(words)
    value: Any
    if asked.verb in connect.VERBS:
        try:
            text, value = connect.carry_out(asked, lambda event: _say(event["text"], sys.stderr))
        except KeyboardInterrupt:
            if asked.verb != "connect":
                raise
            print("amltrain: interrupted; nothing has changed.", file=sys.stderr)
            return 130
    elif asked.verb in azure_sizes.VERBS:
        text, value = azure_sizes.carry_out(asked)
    elif asked.verb == "list":
        value = compute.listing()
        text = compute.listing_text(value)
    elif asked.verb == "use":
        text = compute.use(asked.target)
        value = {"current": asked.target}
    elif asked.verb == "edit":
        text = compute.edit(asked.target, asked.share_gpus)
        value = {"target": asked.target, "share_gpus": asked.share_gpus == "yes"}
    elif asked.verb in WORKS:  # this process holds the one who does it, so it waits
        try:
            text = compute.carry_out(asked, wait=True, write=lambda line: _say(line, sys.stderr))
        except KeyboardInterrupt:
            _say(f"amltrain: interrupted; {compute.given_up(asked)}", sys.stderr)
            return 130
        value = {"said": text}
    else:
        import msgspec

        info = compute.show(asked.target)
        value = msgspec.to_builtins(info)
        text = compute.show_text(info) if asked.verb == "show" else compute.test_text(info)
    _say(json.dumps(value) if asked.json else text, as_is=asked.json)
    return 0


def _monitor(words: list[str]) -> int:
    from jupyter_amltrain import api
    from jupyter_amltrain.commands import monitor

    asked = parser_of("monitor", "amltrain monitor").parse(words)
    view = api.monitor(target=asked.target, gpus=asked.gpus, rate=asked.rate)
    rewrite = sys.stdout.isatty() and not asked.json
    try:
        with contextlib.suppress(KeyboardInterrupt):  # how one ends it
            monitor.repeat(
                view, _write, period=max(1.0, 1 / asked.rate), as_json=asked.json, rewrite=rewrite, once=asked.once
            )
    finally:
        view.stop()
    return 0


def _model(words: list[str]) -> int:
    from jupyter_amltrain.commands import model

    asked = parser_of("model", "amltrain model").parse(words)
    text, value = model.carry_out(asked, lambda line: _say(line, sys.stderr), prog="amltrain model")
    _say(json.dumps(value) if asked.json else text, as_is=asked.json)
    return 0


def _say(text: str, to: TextIO | None = None, *, as_is: bool = False) -> None:
    """Print a text of ours, with the magics that it tells to type as shell commands.

    Parameters
    ----------
    as_is
        Data for programs, which is not touched.
    """
    if not as_is:
        text = _MAGIC.sub(lambda found: f"amltrain {found[1]}" if found[1] else "pip", text)
    print(text, file=to or sys.stdout, flush=to is not None)


def _print_json(run: TrackedRun) -> None:
    import msgspec

    print(msgspec.json.encode(run.record()).decode())


def _write(text: str) -> None:
    sys.stdout.write(
        text if text.isascii() else text.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding)
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
