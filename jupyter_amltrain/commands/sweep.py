"""``sweep``: search values of parameters with many runs of one cell, script or job file."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Defaults, Examples, Result, parser_of
from jupyter_amltrain.commands.submit import Notebook, Submission, job_flags, job_of_line, notebook_flags, secret
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.jobs.sweep import search_of
from jupyter_amltrain.schema.job import validated
from jupyter_amltrain.schema.search_space import Expression, is_expression, parameter_names, parse_expression
from jupyter_amltrain.schema.sweep import SAMPLERS, Sweep, parse_goal, parse_policy

#: Flags of a submit that a sweep does not have.
_WITHOUT = ("--param",)


def param(text: str) -> tuple[str, Any]:
    """``k=v`` of a fixed parameter, or ``k=uniform(0, 1)`` of one that is searched."""
    name, equals, value = text.partition("=")
    if equals and is_expression(value):
        return name, parse_expression(name, value)
    return flag_types.param(text)


def _flags(parser: Parser) -> None:
    parser.takes_rest = True
    parser.flag("script", nargs="?", help="a .py file (arguments follow --), or a sweep.yml of az ml")
    parser.flag(
        "--param", metavar="K=V", type=param, repeated=True, field="params",
        samples=("lr=loguniform(1e-4,1e-1)", "layers=choice(1,2,3)"),
        help="search K: choice, randint, uniform, quniform, loguniform, qloguniform, normal, qnormal, lognormal,"
        " qlognormal; any other value is fixed",
    )  # fmt: skip
    parser.flag("--goal", metavar="GOAL", type=parse_goal, samples=("'maximize accuracy'", "'minimize loss'"),
                help="the primary metric, which each trial logs to MLflow or returns with --out")  # fmt: skip
    parser.flag("--sampler", metavar="|".join(SAMPLERS), type=flag_types.OneOf(**dict.fromkeys(SAMPLERS, "")),
                offers=SAMPLERS, help="how values are chosen; default random")  # fmt: skip
    parser.flag("--seed", metavar="N", type=flag_types.count, help="the same seed proposes the same trials")
    parser.flag("--policy", metavar="POLICY", type=parse_policy, dest="policy",
                samples=("'bandit(slack_factor=0.1,evaluation_interval=1,delay_evaluation=5)'", "median_stopping",
                         "'truncation_selection(20)'"),
                help="stops trials that fall behind: bandit, median_stopping, truncation_selection or none"
                " (default)")  # fmt: skip
    parser.flag("--max-trials", metavar="N", type=flag_types.count, samples=("20",),
                help="number of trials; default 20, with --sampler grid every point")  # fmt: skip
    parser.flag("--max-concurrent", metavar="N", type=flag_types.count, samples=("4",),
                help="trials at the same time; default 4")  # fmt: skip
    parser.flag("--max-duration", metavar="TIME", type=flag_types.duration, samples=("1h",),
                help="end the sweep after this time")  # fmt: skip
    parser.flag("--trial-timeout", metavar="TIME", type=flag_types.duration, samples=("10m",),
                help="stop a trial after this time")  # fmt: skip
    parser.flag(
        "--target", metavar="NAME,...",
        help="where the trials run, or several targets with commas; default the target in use",
    )  # fmt: skip
    job_flags(parser, without=_WITHOUT)
    if parser.magic:
        notebook_flags(parser)
    parser.flag("--wait", action="store_true", help="wait until the sweep ends; a failed sweep is an error")
    parser.flag("--dry-run", action="store_true", help="print the request without sending it")
    if parser.magic:
        parser.flag("--as", dest="as_name", metavar="NAME", type=flag_types.variable, help="assign the sweep to NAME")
    else:
        parser.flag("--json", action="store_true", help="print JSON")


def sweep_of_line(args: argparse.Namespace) -> tuple[Sweep, dict[str, Any]]:
    """Return the sweep of a parsed line, and the fixed parameters.

    Raises
    ------
    CommandError
        No parameter is searched, or the goal is missing.
    """
    params = dict(args.param)
    if len(params) < len(args.param):
        names = [name for name, _ in args.param]
        twice = next(name for name in names if names.count(name) > 1)
        raise CommandError(f"--param {twice} is given twice.", hint="Give it once.", code="sweep.twice", field="params")
    if not any(isinstance(value, Expression) for value in params.values()):
        raise CommandError(
            "No parameter is searched.",
            hint="Try: --param 'lr=loguniform(1e-4,1e-1)'",
            code="sweep.no_space",
            field="params",
        )
    if args.goal is None:
        raise CommandError(
            "The sweep has no goal.", hint="Try: --goal 'maximize accuracy'", code="sweep.no_goal", field="goal"
        )
    return search_of(
        params, goal=args.goal, sampler=args.sampler or "random", seed=args.seed, policy=args.policy,
        max_trials=args.max_trials, max_concurrent=args.max_concurrent, max_duration=args.max_duration,
        trial_timeout=args.trial_timeout,
    )  # fmt: skip


def parse_sweep(
    tokens: Sequence[str],
    cell: str | None = None,
    *,
    prog: str = "%aml_sweep",
    defaults: Defaults | None = None,
    first_line: int = 2,
) -> Submission:
    """Parse the words of a line and the text of a cell; arguments as of :func:`.submit.parse_submit`.

    Raises
    ------
    CommandError
        The line or the cell is invalid.
    """
    args = parser_of("sweep", prog).parse(tokens)
    return _submission(args, cell, prog, defaults or Defaults(), first_line)


def _submission(
    args: argparse.Namespace,
    cell: str | None,
    prog: str,
    defaults: Defaults,
    first_line: int = 2,
    notebook: Notebook | None = None,
) -> Submission:
    sweep, fixed = sweep_of_line(args)
    args.param = [*fixed.items()]
    names = parameter_names(sweep.space)
    spec, _ = job_of_line(args, args.rest, cell, prog, defaults, first_line, notebook, defined=names)
    return Submission(
        spec=validated(spec),
        sweep=sweep,
        target=args.target or defaults.target or None,
        wait=args.wait,
        dry_run=args.dry_run,
        as_name=getattr(args, "as_name", None),
        as_json=getattr(args, "json", False),
    )


def _run(args: argparse.Namespace, context: Context) -> Result:
    """Print the plan of a sweep, or send it and continue as `context` does after a submit."""
    from jupyter_amltrain import api

    notebook = None if context.namespace is None else Notebook(context.namespace, context.history)
    submission = _submission(args, context.cell, context.prog, context.defaults, notebook=notebook)
    sweep = submission.sweep
    assert sweep is not None
    if submission.dry_run:
        plan = api.plan_sweep(submission.spec, sweep, target=submission.target)
        return Result(json.dumps(plan.request, indent=2, ensure_ascii=False) + "\n", verbatim=True)
    secrets = {name: secret(name, os.environ) for name in submission.spec.secrets}
    run = api.submit_sweep(submission.spec, sweep, target=submission.target, secrets=secrets)
    return context.submitted(run, submission)


COMMANDS = (
    Command(
        summary="Search values of parameters with many runs of a cell or script.",
        run=_run,
        flags=_flags,
        examples=Examples(
            (
                "%%aml_sweep --param lr=loguniform(1e-4,1e-1) --goal 'maximize accuracy' --max-trials 20",
                "%%aml_sweep --param layers=choice(1,2,3) --sampler grid --goal 'minimize loss' --wait",
                "%%aml_sweep --param lr=loguniform(1e-4,1e-1) --sampler bayesian --goal 'minimize loss'",
                "%%aml_sweep --param lr=uniform(0,1) --goal 'maximize acc' --policy bandit(slack_factor=0.1)",
                "%aml_sweep train.py --param lr=loguniform(1e-4,1e-1) --goal 'minimize loss'",
            ),
            ("amltrain sweep train.py --param 'lr=loguniform(1e-4,1e-1)' --goal 'minimize loss' --wait",),
        ),
    ),
)
