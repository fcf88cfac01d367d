"""``runs lines``: where the time of a run goes, by line."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from jupyter_amltrain.commands.parser import Parser, run_flag
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.text import tilde

if TYPE_CHECKING:
    import argparse

    from jupyter_amltrain.run import TrackedRun


def _flags(parser: Parser) -> None:
    run_flag(parser)
    times = ("30s", "2m", "1h")
    parser.flag(
        "--from", dest="start", metavar="TIME", type=flag_types.duration, default=0.0,
        help="only after this time since the start of the script: 2m", samples=times,
    )  # fmt: skip
    parser.flag(
        "--to", dest="end", metavar="TIME", type=flag_types.duration, help="only before this time", samples=times
    )
    parser.flag(
        "--rank", metavar="N", type=flag_types.count, help="one process of a distributed run; default all together"
    )
    parser.flag("--speedscope", metavar="FILE", help="write the stacks to a JSON file for www.speedscope.app")


def _lines(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api
    from jupyter_amltrain.inside.line_table import line_table, sentence, span_text, table_text

    run = api.attach(args.run)
    if args.speedscope:
        return Result(_write_speedscope(run, args.speedscope))
    if args.end is not None and args.end <= args.start:
        raise CommandError("--to is not after --from.", hint="Example: --from 2m --to 5m", field="end")
    report = run.read_lines(args.start, args.end, args.rank)
    if args.rank is not None and report.ranks and args.rank not in report.ranks:
        raise CommandError(
            f"--rank {args.rank}: no line of this process was sampled.",
            hint=f"Ranks: {', '.join(map(str, report.ranks))}.",
            field="rank",
        )
    if not report.lines:
        return Result(_no_lines_text(run), [])
    text = "\n".join(filter(None, [table_text(line_table(report)), span_text(report), sentence(report)]))
    return Result(text, [use._asdict() for use in report.lines])


def _no_lines_text(run: TrackedRun) -> str:
    if run.spec.no_lines:
        return f"{run.handle} was submitted with --no-lines."
    ended = run.run.status.state.terminal
    later = "" if ended else " yet"
    return f"No lines of {run.handle} were sampled{later}: its Python has not run a file of yours for a second."


def _write_speedscope(run: TrackedRun, path: str) -> str:
    file = os.path.abspath(os.path.expanduser(path))
    content = json.dumps(run.speedscope())
    try:
        with open(file, "w", encoding="utf-8") as out:
            out.write(content)
    except OSError as error:
        raise CommandError(
            f"Cannot write {tilde(file)}: {error.strerror}.", hint="Choose another file.", field="speedscope"
        ) from error
    return f"Written to {tilde(file)}. Open it at https://www.speedscope.app"


LINES = Command(
    verb="lines",
    summary="Show where the time of a run goes, by line of its code.",
    run=_lines,
    flags=_flags,
    json=True,
    examples=Examples(
        ("%aml_runs lines last", "%aml_runs lines digits-k3f9x --from 2m --to 5m"), ("amltrain runs lines last",)
    ),
)
