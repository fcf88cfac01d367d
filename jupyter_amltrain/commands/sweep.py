"""``sweep``: search values of parameters with many runs of one cell, script or job file."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from jupyter_amltrain.commands import saved_job
from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Defaults, Examples, Result, parser_of
from jupyter_amltrain.commands.submit import (
    SubmitRequest,
    check_saved_line,
    job_flags,
    job_of_line,
    notebook_flags,
    run_flags,
    script_flags,
    secret,
    submission_of,
)
from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.jobs.closure import Notebook
from jupyter_amltrain.jobs.flags import FLAGS, typed_values
from jupyter_amltrain.jobs.params import with_params
from jupyter_amltrain.jobs.sweep import check_used, continued, of_type, part_of_gpu, search_of, service_job
from jupyter_amltrain.schema.az_yaml import is_file
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.schema.search_space import Expression, is_expression, parameter_names, parse_expression
from jupyter_amltrain.schema.searched_values import check_texts
from jupyter_amltrain.schema.sweep import SAMPLERS, Policy, Sweep, parse_goal, parse_policy
from jupyter_amltrain.schema.sweep_file import sweep_from_hdconfig, sweep_from_yaml

#: Flags of a submit that a sweep does not have.
_WITHOUT = ("--param",)


def param(text: str) -> tuple[str, Any]:
    """``k=v`` of a fixed parameter, or ``k=uniform(0, 1)`` of one that is searched."""
    name, equals, value = text.partition("=")
    if equals and is_expression(value):
        return name, parse_expression(name, value)
    return flag_types.param(text)


def _policy(text: str) -> Policy | Literal[False]:
    """``bandit(slack_factor=0.1)``; ``False`` for ``none``."""
    return parse_policy(text) or False


def _flags(parser: Parser) -> None:
    script_flags(parser, "a sweep.yml of az ml")
    parser.flag(
        "--param", metavar="K=V", type=param, repeated=True, field="params",
        samples=("lr=loguniform(1e-4,1e-1)", "layers=choice(1,2,3)"),
        help="search K: choice, randint, uniform, quniform, loguniform, qloguniform, normal, qnormal, lognormal,"
        " qlognormal; any other value is fixed",
    )  # fmt: skip
    search_flags(parser)
    parser.flag("--config", metavar="FILE", samples=("hd.yml",),
                help="a YAML file with the search: keys of a sweep file of az ml, or of an hdconfig (v1); flags of the"
                " line take precedence")  # fmt: skip
    parser.flag("--continue", dest="continued", metavar="RUN", field="continues",
                help="go on with the search of this sweep, or of last: its space and code where the line has no other;"
                " the sampler learns from its trials")  # fmt: skip
    parser.flag("--trials-per-gpu", metavar="N", type=flag_types.trials_per_gpu, samples=("4",),
                help="trials that share one GPU: the same as --gpus 1/N with --max-concurrent N")  # fmt: skip
    parser.flag(
        "--target", metavar="NAME,...",
        help="where the trials run, or several targets with commas; default the target in use",
    )  # fmt: skip
    parser.flag("--driver", metavar="NAME", field="driver_target", samples=("local",),
                help="target that runs the driver, which chooses and submits the trials; default local, this computer;"
                " that of the trials where this computer may not run it for long")  # fmt: skip
    job_flags(parser, without=_WITHOUT)
    if parser.magic:
        notebook_flags(parser)
    parser.flag("--allow-unused", action="store_true", help="search parameters that nothing in the code reads")
    parser.flag("--save", metavar="FILE", samples=("sweep.yml",),
                help="write the sweep as a file of az ml with its code beside it; submit nothing")  # fmt: skip
    run_flags(parser, "sweep")


def search_flags(parser: Parser) -> None:
    """Add the flags of a search."""
    parser.flag("--goal", metavar="GOAL", type=parse_goal, samples=("'maximize accuracy'", "'minimize loss'"),
                help="the primary metric, which each trial logs to MLflow or returns with --out")  # fmt: skip
    parser.flag("--sampler", metavar="|".join(SAMPLERS), type=flag_types.OneOf(**dict.fromkeys(SAMPLERS, "")),
                offers=SAMPLERS, help="how values are chosen; default random")  # fmt: skip
    parser.flag("--seed", metavar="N", type=flag_types.count, help="the same seed proposes the same trials")
    parser.flag("--policy", metavar="POLICY", type=_policy, dest="policy",
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


#: Fields of a job, besides its resources, that a sweep may change which continues another one without code.
_CHANGED_FLAGS = frozenset(
    (
        *("name", "experiment", "tags", "timeout", "env", "secrets", "max_restarts", "simulate_preemption"),
        *("require_gpu", "gpu_grace", "share_gpus", "gpu_ids", "priority", "tier"),
    )
)
#: Flags of the search, which a file of az ml sets itself.
_SEARCH_FLAGS = (
    "goal", "sampler", "seed", "policy", "max_trials", "max_concurrent", "max_duration", "trial_timeout", "config",
    "continued",
)  # fmt: skip


def sweep_of_line(args: argparse.Namespace) -> tuple[Sweep, dict[str, Any]]:
    """Return the sweep of a parsed line, and the fixed parameters.

    Raises
    ------
    CommandError
        No parameter is searched, or the goal is missing.
    """
    _share_gpus(args)
    params = dict(args.param)
    if len(params) < len(args.param):
        names = [name for name, _ in args.param]
        twice = next(name for name in names if names.count(name) > 1)
        raise CommandError(f"--param {twice} is given twice.", hint="Give it once.", code="sweep.twice", field="params")
    if args.config:
        return _with_config(args, params)
    if args.continued:
        return _with_earlier(args, params)
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
        params, goal=args.goal, sampler=args.sampler or "random", seed=args.seed, policy=args.policy or None,
        max_trials=args.max_trials, max_concurrent=args.max_concurrent, max_duration=args.max_duration,
        trial_timeout=args.trial_timeout,
    )  # fmt: skip


def _share_gpus(args: argparse.Namespace) -> None:
    """Let as many trials share a GPU as the line says."""
    trials = args.trials_per_gpu
    if trials is None:
        return
    args.gpus = part_of_gpu(trials, args.gpus)
    if args.max_concurrent is None:
        args.max_concurrent = trials


def _with_config(args: argparse.Namespace, params: dict[str, Any]) -> tuple[Sweep, dict[str, Any]]:
    """Return the sweep of a configuration file, changed by the flags of the line."""
    from jupyter_amltrain.schema import az_yaml

    path = os.path.abspath(os.path.expanduser(args.config))
    try:
        doc = dict(az_yaml.load_doc(path))
        if args.goal is not None:
            names = {"primary_metric_name": args.goal.metric, "primary_metric_goal": args.goal.goal}
            doc |= {**names, "objective": {"primary_metric": args.goal.metric, "goal": args.goal.goal}}
        base = sweep_from_hdconfig(doc) if "sampling" in doc else sweep_from_yaml(doc)
    except SpecError as error:
        raise error.about(f"--config {args.config}") from None
    limits = base.limits
    concurrent = doc.get("max_concurrent_runs") or (doc.get("limits") or {}).get("max_concurrent_trials")

    def chosen(value: Any, default: Any) -> Any:
        return default if value is None else value

    return search_of(
        {**base.space, **params}, goal=base.objective, sampler=chosen(args.sampler, base.sampler),
        seed=chosen(args.seed, base.seed), policy=chosen(args.policy, base.policy) or None,
        max_trials=chosen(args.max_trials, limits.max_trials),
        max_concurrent=chosen(args.max_concurrent, limits.max_concurrent if concurrent else None),
        max_duration=chosen(args.max_duration, limits.max_duration_s),
        trial_timeout=chosen(args.trial_timeout, limits.trial_timeout_s),
    )  # fmt: skip


def _with_earlier(args: argparse.Namespace, params: dict[str, Any]) -> tuple[Sweep, dict[str, Any]]:
    """Return the search of the sweep that the line continues, changed by the flags of the line."""
    base = _earlier(args).spec.sweep
    trial = _earlier(args).spec.trial
    if base is None or trial is None:
        raise CommandError(
            f"--continue {args.continued}: this run is not a sweep with a driver.",
            hint="To list the runs: %aml_runs",
            code="sweep.continue",
            field="continues",
        )
    limits = base.limits
    policy = base.policy if args.policy is None else args.policy or None
    return search_of(
        {**trial.params, **base.space, **params}, goal=args.goal or base.objective,
        sampler=args.sampler or base.sampler, seed=args.seed, policy=policy, max_trials=args.max_trials,
        max_concurrent=args.max_concurrent or limits.max_concurrent, max_duration=args.max_duration,
        trial_timeout=args.trial_timeout or limits.trial_timeout_s,
    )  # fmt: skip


def _earlier(args: argparse.Namespace) -> Run:
    """Return the sweep of ``--continue``."""
    from jupyter_amltrain import api

    return api.attach(args.continued).run


def _earlier_target(args: argparse.Namespace) -> str:
    return _earlier(args).spec.trial_target if args.continued else ""


def parse_sweep(
    tokens: Sequence[str],
    cell: str | None = None,
    *,
    prog: str = "%aml_sweep",
    defaults: Defaults | None = None,
    first_line: int = 2,
) -> SubmitRequest:
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
) -> SubmitRequest:
    args.scaling = args.template = None
    if cell is None and args.script and is_file(args.script):
        _check_file_line(args)
        spec, compute = job_of_line(args, args.rest, None, prog, defaults, first_line, None)
        sweep = of_type(spec)
    else:
        sweep, fixed = sweep_of_line(args)
        args.param = [*fixed.items()]
        names = parameter_names(sweep.space)
        if args.continued and cell is None and not args.script:
            earlier = continued(_earlier(args), None, sweep)
            spec, compute = with_params(_with_flags(earlier, args), fixed), ""
        else:
            spec, compute = job_of_line(
                args, args.rest, cell, prog, defaults, first_line, notebook, defined=names, keeps=False
            )
            spec = continued(_earlier(args), spec, sweep) if args.continued else spec
        if not args.allow_unused:
            check_used(spec, sweep)
    if args.driver:
        spec = msgspec.structs.replace(spec, driver_target=args.driver)
    return submission_of(args, spec, compute, _earlier_target(args) or defaults.target, sweep=sweep)


def _with_flags(spec: JobSpec, args: argparse.Namespace) -> JobSpec:
    """Return the job of the sweep that a line without code continues, changed by the flags of the line.

    Raises
    ------
    CommandError
        A flag decides how the code is sent or started.
    """
    for path, value in typed_values(args).items():
        name, _, part = path.partition(".")
        if path == "params":
            continue
        if name != "resources" and path not in _CHANGED_FLAGS:
            flag = next(flag.flag for flag in FLAGS if flag.field == path)
            raise CommandError(
                f"{flag} is not supported with --continue alone: the trials have the code and environment of"
                f" {args.continued}.",
                hint="Name the script again, or use the cell: %%aml_sweep --continue RUN ...",
                code="sweep.continue",
                field=path,
            )
        if part:
            value = msgspec.structs.replace(spec.resources, **{part: value})
        elif isinstance(value, dict):
            value = {**getattr(spec, name), **value}
        spec = msgspec.structs.replace(spec, **{name: value})
    return spec


def _run(args: argparse.Namespace, context: Context) -> Result:
    """Print the plan of a sweep, save it, or send it and continue as `context` does after a submit."""
    from jupyter_amltrain import api

    notebook = None if context.namespace is None else Notebook(context.namespace, context.history)
    submission = _submission(args, context.cell, context.prog, context.defaults, notebook=notebook)
    sweep = submission.sweep
    assert sweep is not None
    if args.save:
        check_saved_line(args)
        job = submission.spec
        if not job.job_type:
            check_texts(sweep.space)
            job = service_job(job, sweep)
        return Result(saved_job.save(job, submission.target_name, args.save, "%aml_sweep"))
    if submission.dry_run:
        plan = api.plan_sweep(submission.spec, sweep, target=submission.target_name)
        return Result(json.dumps(plan.request, indent=2, ensure_ascii=False) + "\n", verbatim=True)
    secrets = {name: secret(name, os.environ) for name in submission.spec.secrets}
    run = api.submit_sweep(submission.spec, sweep, target=submission.target_name, secrets=secrets)
    return context.submitted(run, submission)


def _check_file_line(args: argparse.Namespace) -> None:
    """Raise :class:`CommandError` for flags of a line that belong into its sweep file."""
    if args.trials_per_gpu is not None:
        part_of_gpu(args.trials_per_gpu, file=args.script)
    for name in _SEARCH_FLAGS:
        if getattr(args, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise CommandError(
                f"{flag} is not supported for a sweep file: the file sets it.",
                hint=f"Write it in {args.script}, or leave it out.",
                code="submit.flag_of_file",
                field=name,
            )
    if searched := next((name for name, value in args.param if isinstance(value, Expression)), ""):
        raise CommandError(
            f"--param {searched}: a sweep file sets what is searched.",
            hint=f"Write it in {args.script} below search_space:",
            code="submit.flag_of_file",
            field="params",
        )


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
                "%aml_sweep sweep.yml --target gpu-cluster --param epochs=5",
                "%aml_sweep train.py --config hd.yml",
                "%aml_sweep --continue last --param lr=loguniform(1e-3,1e-2) --max-trials 10",
            ),
            ("amltrain sweep train.py --param 'lr=loguniform(1e-4,1e-1)' --goal 'minimize loss' --wait",),
        ),
    ),
)
