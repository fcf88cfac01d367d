"""``%%aml_cell NAME``: run a cell as usual, and name it, so that ``--with NAME`` includes it in a job.

The name and the text are in IPython's history, where :mod:`jupyter_amltrain.jobs.notebook_source` finds them.
"""

from __future__ import annotations

import argparse

from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import flag_types


def _flags(parser: Parser) -> None:
    parser.flag("name", metavar="NAME", type=flag_types.variable, help="the name for --with")


def _run(args: argparse.Namespace, context: Context) -> Result:
    """Run the body in the notebook; a body that fails counts as a failed cell."""
    if context.cell is None or not context.cell.strip():
        raise CommandError(
            f"{context.prog} {args.name}: there is no cell to name.",
            hint=f"Write %%aml_cell {args.name} above the code of a cell.",
            code="cell.empty",
        )
    if context.run_cell is not None and not context.run_cell(context.cell):
        # IPython has shown why. Without an error of its own this cell would not stop "Run All".
        raise CommandError(f"%%aml_cell {args.name}: the cell failed.", hint="See its error above.", code="cell.failed")
    return Result()


COMMANDS = (
    Command(
        summary="Run this cell, and name it for --with.",
        run=_run,
        flags=_flags,
        shell=False,
        examples=Examples(("%%aml_cell setup",)),
    ),
)
