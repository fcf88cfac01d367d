"""``runs debug``: a debugger in a running job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_amltrain.commands.parser import Parser, run_flag
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.jobs import flag_types

if TYPE_CHECKING:
    import argparse


def _flags(parser: Parser) -> None:
    run_flag(parser)
    parser.flag("--rank", metavar="N", type=flag_types.count, default=0, help="the process of a distributed run")


def _debug(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    api.attach(args.run).debug(rank=args.rank)
    return Result("")


DEBUG = Command(
    verb="debug",
    summary="Debug a run that was submitted with --debug: pdb at a breakpoint or at its exception.",
    run=_debug,
    flags=_flags,
    examples=Examples(("%aml_runs debug last",), ("amltrain runs debug last",)),
)
