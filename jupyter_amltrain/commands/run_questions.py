"""``runs stack``, ``runs peek``, ``runs poke`` and ``runs save``: questions to a run while it runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jupyter_amltrain.commands.parser import Parser, run_flag
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.jobs import flag_types

if TYPE_CHECKING:
    import argparse


def _stack(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api
    from jupyter_amltrain.inside.run_questions import stack_text

    stack = api.attach(args.run).stack()
    rows = [{**one._asdict(), "calls": [call._asdict() for call in one.calls]} for one in stack.threads]
    return Result(stack_text(stack), rows)


def _text_flags(parser: Parser) -> None:
    run_flag(parser)
    parser.flag("text", metavar="TEXT", nargs="+", help="Python, in quotes")
    parser.flag("--rank", metavar="N", type=flag_types.count, default=0, help="the process of a distributed run")


def _peek(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    text = api.attach(args.run).peek(" ".join(args.text), rank=args.rank)
    return Result(text, {"text": text})


def _poke(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    run = api.attach(args.run)
    run.poke(" ".join(args.text), rank=args.rank)
    return Result(f"Done in {run.handle}; kept in its file pokes.jsonl.", {})


def _save(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api
    from jupyter_amltrain.inside.run_questions import checkpoint_text

    answer = api.attach(args.run).save()
    return Result(checkpoint_text(answer, time.time()), answer._asdict())


STACK = Command(
    verb="stack",
    summary="Show in which line each thread of a running job is.",
    run=_stack,
    flags=run_flag,
    json=True,
    examples=Examples(("%aml_runs stack last",), ("amltrain runs stack last",)),
)
PEEK = Command(
    verb="peek",
    summary="Evaluate an expression in a running job.",
    run=_peek,
    flags=_text_flags,
    json=True,
    examples=Examples(
        ('%aml_runs peek last "scheduler.get_last_lr(), len(buffer)"',), ('amltrain runs peek last "epoch"',)
    ),
)
POKE = Command(
    verb="poke",
    summary="Execute a statement in a running job; it is kept with the run.",
    run=_poke,
    flags=_text_flags,
    json=True,
    examples=Examples(
        ("%aml_runs poke last \"for g in optimizer.param_groups: g['lr'] /= 10\"",),
        ('amltrain runs poke last "patience = 5"',),
    ),
)
SAVE = Command(
    verb="save",
    summary="Ask a running job for a checkpoint now.",
    run=_save,
    flags=run_flag,
    json=True,
    examples=Examples(("%aml_runs save last",), ("amltrain runs save last",)),
)
QUESTIONS = (STACK, PEEK, POKE, SAVE)
