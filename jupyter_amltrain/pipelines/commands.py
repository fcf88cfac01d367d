"""``%%aml_step`` defines a step, ``%aml_pipeline`` runs steps and lists them."""

from __future__ import annotations

import argparse
import os
from typing import Any

import msgspec

from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Examples, Result
from jupyter_amltrain.commands.submit import (
    SubmitRequest,
    job_flags,
    job_of_line,
    notebook_flags,
    run_flags,
    secret,
)
from jupyter_amltrain.commands.submit import plan_text as request_text
from jupyter_amltrain.commands.sweep import param, search_flags, sweep_of_line
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.jobs.closure import Notebook
from jupyter_amltrain.pipelines import functions, schedule, steps
from jupyter_amltrain.pipelines.pipeline_job import PipelineRequest
from jupyter_amltrain.pipelines.split import PART
from jupyter_amltrain.pipelines.steps import Need, StepDefinition
from jupyter_amltrain.run import TrackedRun
from jupyter_amltrain.schema import az_yaml
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.search_space import Expression, parameter_names
from jupyter_amltrain.schema.sweep import Sweep
from jupyter_amltrain.text import pairs

#: Flags of a job that a step does not have.
_WITHOUT = ("--name", "--experiment", "--param")


def _needs(text: str) -> tuple[Need, ...]:
    """``data``, ``prep.data`` or ``table=prep.data``, several with commas."""
    return tuple(steps.need(part) for part in text.split(",") if part.strip())


def _step_flags(parser: Parser) -> None:
    parser.flag("name", metavar="NAME", type=steps.check_name, help="name of the step")
    parser.flag("script", nargs="?", help="a .py file in place of the cell")
    parser.flag("-m", "--module", metavar="NAME", default="", help="run this module, as python -m does")
    parser.flag(
        "--in", dest="needs", metavar="NAME", type=_needs, repeated=True, samples=("data", "table=prep.data"),
        help="take what another step makes by --out or --output: a variable of this name; of files it is their path",
    )  # fmt: skip
    parser.flag("--after", metavar="STEP", type=flag_types.names, repeated=True,
                help="start when this step has ended, too")  # fmt: skip
    parser.flag("--map", metavar="PATTERN", default="", samples=("'data/*.csv'",),
                help="one run for each file: the variable part is its path")  # fmt: skip
    parser.flag("--target", metavar="NAME", help="where to run; default that of the pipeline")
    parser.flag("--param", metavar="K=V", type=param, repeated=True, field="params",
                samples=("lr=0.1", "lr=loguniform(1e-4,1e-1)"),
                help="value of a parameter; with --goal also what is searched, as of %%%%aml_sweep")  # fmt: skip
    search_flags(parser)
    job_flags(parser, without=_WITHOUT)
    if parser.magic:
        notebook_flags(parser, values=False)


def _define(args: argparse.Namespace, context: Context) -> Result:
    """Make a cell or file a step of this notebook."""
    needs = tuple(one for part in args.needs for one in part)
    after = tuple(dict.fromkeys(name for part in args.after for name in part))
    if context.cell is None and not (args.script or args.module):
        raise CommandError(
            f"{context.prog} {args.name}: there is no cell and no file.",
            hint=f"Write %%aml_step {args.name} above the code of a cell, or name a .py file.",
            code="pipeline.empty",
        )
    notebook = None if context.namespace is None else Notebook(context.namespace, context.history)
    args.name_of_step, args.name, args.experiment = args.name, None, None
    sweep, searched = _sweep(args)
    names = [need.name for need in needs] + ([PART] if args.map else []) + searched
    spec, _ = job_of_line(args, [], context.cell, context.prog, context.defaults, 2, notebook, defined=names,
                          keeps=False)  # fmt: skip
    step = StepDefinition(
        name=args.name_of_step,
        spec=msgspec.structs.replace(spec, name=args.name_of_step),
        target=args.target or "",
        needs=needs,
        after=after,
        split=args.map,
        sweep=sweep,
    )
    steps.define(step)
    return Result(f"{_described(step)}. {spec.taken.line}".strip(), value=None)


def _sweep(args: argparse.Namespace) -> tuple[Sweep | None, list[str]]:
    """Return the search of a step and what it searches; the other parameters stay on the line."""
    if not any(isinstance(value, Expression) for _, value in args.param):
        if args.goal is not None:
            raise CommandError("No parameter is searched.", hint="Try: --param 'lr=loguniform(1e-4,1e-1)'",
                               code="sweep.no_space", field="params")  # fmt: skip
        return None, []
    args.continued = args.config = args.trials_per_gpu = None
    args.seed = functions.SEED if args.seed is None else args.seed
    sweep, fixed = sweep_of_line(args)
    args.param = [*fixed.items()]
    return sweep, parameter_names(sweep.space)


def _described(step: StepDefinition) -> str:
    made = [*step.spec.out_names, *step.spec.outputs]
    parts = [f"takes {', '.join(need.name for need in step.needs)}" if step.needs else ""]
    parts += [f"makes {', '.join(made)}" if made else ""]
    parts += [f"one run for each of {step.split}" if step.split else "", f"on {step.target}" if step.target else ""]
    text = "; ".join(filter(None, parts))
    return f"Step {step.name}{f': {text}' if text else ''}"


STEP_COMMANDS = (
    Command(
        summary="Make this cell (or a script) a step of pipelines.",
        run=_define,
        flags=_step_flags,
        shell=False,
        examples=Examples(
            (
                "%%aml_step prep --out data",
                "%%aml_step train --in data --out model --target gpubox --gpus 1",
                "%%aml_step tune --in data --param lr=loguniform(1e-4,1e-1) --goal 'minimize loss' --out model",
                "%%aml_step score --in model,data --map 'parts/*.csv' --out rows",
                "%aml_step report report.py --in table=prep.features",
            )
        ),
    ),
)


def _submit_flags(parser: Parser) -> None:
    steps_help = "steps of this notebook; default all" if parser.magic else "a pipeline.yml of az ml"
    parser.flag("steps", nargs="*", metavar="STEP", help=f"{steps_help}, or a pipeline.yml of az ml")
    parser.flag("--param", metavar="K=V", type=flag_types.param, repeated=True, field="params",
                samples=("lr=0.1", "train.lr=0.1"),
                help="value of a parameter: lr in each step that has it, train.lr in one")  # fmt: skip
    parser.flag("--target", metavar="NAME", help="where steps run that name no target; default the target in use")
    parser.flag("--no-reuse", action="store_true", help="run all steps, also those that have not changed")
    parser.flag("--only", metavar="STEP", default="", help="run this step only, with the results of the others")
    parser.flag("--from", dest="first", metavar="STEP", default="", help="run this step and all that depend on it")
    parser.flag("--keep-going", action="store_true", help="when a step has failed, start those that do not need it")
    parser.flag("--name", metavar="NAME", default="", help="name of the run")
    parser.flag("--experiment", metavar="NAME", default="", help="experiment of MLflow")
    parser.flag("--save", metavar="FILE", samples=("pipeline.yml",),
                help="write the pipeline as a file of az ml with its code beside it; submit nothing")  # fmt: skip
    run_flags(parser, "pipeline", dry_run="print the steps and which will run; submit nothing")


def _request(args: argparse.Namespace, context: Context) -> PipelineRequest:
    if args.steps and az_yaml.is_file(args.steps[0]):
        definitions, name, experiment = _of_file(args)
    else:
        definitions, name, experiment = steps.chosen(args.steps), "", ""
    return functions.request_of(
        definitions, reuse=not args.no_reuse, only=args.only, first=args.first, keep_going=args.keep_going,
        name=args.name or name, experiment=args.experiment or experiment or context.defaults.experiment,
        params={} if name else dict(args.param), target=args.target or context.defaults.target or "",
    )  # fmt: skip


def _of_file(args: argparse.Namespace) -> tuple[list[StepDefinition], str, str]:
    """Return the steps of a file of ``az ml``, its name and its experiment."""
    from jupyter_amltrain.pipelines.pipeline_file import steps_of_file
    from jupyter_amltrain.schema import az_yaml_job

    if len(args.steps) > 1:
        raise CommandError(
            f"{args.steps[0]} has the steps of the pipeline; {args.steps[1]} cannot be added.", hint="Leave it out.",
            code="pipeline.file",
        )  # fmt: skip
    job = az_yaml.load(args.steps[0])
    spec = az_yaml_job.spec_of_line(job, dict(args.param), {})
    if spec.job_type != "pipeline":
        raise CommandError(
            f"{args.steps[0]} is a job of type {spec.job_type}.", hint=f"Submit it: %aml_submit {args.steps[0]}",
            code="pipeline.file",
        )  # fmt: skip
    spec = msgspec.structs.replace(spec, project=os.getcwd())
    found = [msgspec.structs.replace(step, target=_target_of(step.target, args)) for step in steps_of_file(spec)]
    return found, spec.name, "" if spec.experiment == "default" else spec.experiment


def _target_of(compute: str, args: argparse.Namespace) -> str:
    """Return the target of a step of a file; the line takes precedence."""
    from jupyter_amltrain import api

    return "" if args.target or not compute else api.target_of_compute(compute)


def _submit(args: argparse.Namespace, context: Context) -> Result:
    """Run steps, or save them, or print the plan."""
    from jupyter_amltrain import api

    if args.steps and az_yaml.is_file(args.steps[0]) and (found := _service_file(args, context)) is not None:
        job, target = found
        if args.dry_run:
            return Result(request_text(SubmitRequest(spec=job, target=target)) + "\n", verbatim=True)
        return _submitted(args, context, api.submit_spec(job, target=target), job, target)
    request = _request(args, context)
    if args.save:
        from jupyter_amltrain.pipelines.saved_pipeline import save

        return Result(save(request, args.save))
    target = functions.service_of(request)
    if target and not args.dry_run:
        from jupyter_amltrain.pipelines.saved_pipeline import service_job

        job = service_job(request, target)
        return _submitted(args, context, api.submit_spec(job, target=target), job, target)
    job = functions.job_of_request(request)
    assert job.driver is not None
    if args.dry_run:
        return Result(functions.plan_text_of(job, target), job.driver.plan)
    secrets = {name: secret(name, os.environ) for name in job.secrets}
    return _submitted(args, context, api.submit_spec(job, target="local", secrets=secrets), job, "local")


def _submitted(args: argparse.Namespace, context: Context, run: TrackedRun, job: JobSpec, target: str) -> Result:
    submission = SubmitRequest(
        spec=job,
        target=target,
        wait=args.wait,
        as_name=getattr(args, "as_name", None),
        as_json=getattr(args, "json", False),
    )
    return context.submitted(run, submission)


def _service_file(args: argparse.Namespace, context: Context) -> tuple[JobSpec, str] | None:
    """Return the job of a file and its target, if that is a service which runs the file itself."""
    from jupyter_amltrain.schema import az_yaml_job

    target = _file_target(args.steps[0], args, context)
    if not functions.runs_files(target):
        return None
    job = az_yaml.load(args.steps[0])
    if wrong := next((flag for flag in ("save", "only", "first", "no_reuse", "keep_going") if getattr(args, flag)), ""):
        flag = {"first": "--from"}.get(wrong, f"--{wrong.replace('_', '-')}")
        raise CommandError(
            f"{flag} is not supported for a file on {target!r}: the service decides which steps run.",
            hint=f"Leave it out, or write settings: in {args.steps[0]}.", code="pipeline.service", field=wrong,
        )  # fmt: skip
    spec = az_yaml_job.spec_of_line(job, dict(args.param), {})
    return msgspec.structs.replace(spec, project=os.getcwd()), target


def _file_target(path: str, args: argparse.Namespace, context: Context) -> str:
    """Return the target of a file: that of the line, of the file, or the one in use."""
    from jupyter_amltrain import api

    compute = az_yaml.load(path).compute
    return (
        args.target or (api.target_of_compute(compute) if compute else context.defaults.target) or api.current_target()
    )


def _list(args: argparse.Namespace, context: Context) -> Result:
    """Show the steps of this notebook."""
    found = steps.defined().values()
    if not found:
        return Result("No steps yet. Write %%aml_step NAME above a cell.")
    rows: list[tuple[str, str]] = [(one.name, _described(one).partition(": ")[2]) for one in found]
    data: list[dict[str, Any]] = [
        {"name": one.name, "needs": [need.name for need in one.needs], "makes": [*one.spec.out, *one.spec.outputs]}
        for one in found
    ]
    return Result(pairs(rows), data)


def _forget_flags(parser: Parser) -> None:
    parser.flag("steps", nargs="*", metavar="STEP", help="steps of this notebook; default all")


def _forget(args: argparse.Namespace, context: Context) -> Result:
    """Forget steps of this notebook."""
    names = [step.name for step in steps.chosen(args.steps)]
    steps.forget(names)
    return Result(f"Forgot {', '.join(names)}.")


def _schedule_flags(parser: Parser) -> None:
    parser.flag("file", nargs="?", metavar="FILE", help="a pipeline.yml of az ml; default: list the schedules")
    parser.flag("--cron", metavar="TIME", type=schedule.cron, samples=("'0 6 * * 1'",),
                help="minute, hour, day, month and day of the week; default '0 6 * * *', each day at six")  # fmt: skip
    parser.flag("--target", metavar="NAME", default="", help="where steps run that name no target")
    parser.flag("--name", metavar="NAME", default="", help="of the schedule of a service; default that of the file")
    parser.flag("--remove", metavar="NAME", default="", help="remove a schedule of a service")


def _schedule(args: argparse.Namespace, context: Context) -> Result:
    """Let a service run a file at fixed times; for a machine print the line that does, and change nothing."""
    if not args.file:
        return _schedules(args, context)
    when, target = args.cron or schedule.DAILY, _file_target(schedule.path_of(args.file), args, context)
    found = functions.schedules_of(target)
    if found is None:
        return Result(schedule.text(args.file, when, args.target))
    from jupyter_amltrain.schema import az_yaml_job

    spec = az_yaml_job.spec_of_line(az_yaml.load(args.file), {}, {})
    spec = msgspec.structs.replace(spec, project=os.getcwd())
    row = functions.schedule_file(found, args.name or schedule.name_of(args.file), when, spec, target)
    return Result(schedule.created_text(row, target), row)


def _schedules(args: argparse.Namespace, context: Context) -> Result:
    """List the schedules of a service, or remove one."""
    from jupyter_amltrain import api

    target = args.target or context.defaults.target or api.current_target()
    found = functions.schedules_of(target)
    if found is None:
        raise CommandError(
            f"{target!r} runs nothing at fixed times itself.",
            hint="For a line of cron name a file: %aml_pipeline schedule pipeline.yml", code="pipeline.schedule",
        )  # fmt: skip
    if not args.remove:
        rows = functions.schedule_rows(found)
        return Result(schedule.table_text(rows, target), rows)
    if not functions.unschedule(found, args.remove):
        raise CommandError(f"{target} has no schedule {args.remove!r}.", hint="See: %aml_pipeline schedule",
                           code="pipeline.schedule", field="remove")  # fmt: skip
    return Result(f"{target} no longer runs {args.remove}. Jobs that it has submitted stay.")


PIPELINE_COMMANDS = (
    Command(
        verb="list",
        summary="Show the steps of this notebook.",
        run=_list,
        shell=False,
        examples=Examples(("%aml_pipeline",)),
    ),
    Command(
        verb="submit",
        summary="Run steps in the order of their data.",
        run=_submit,
        flags=_submit_flags,
        examples=Examples(
            (
                "%aml_pipeline submit prep train score --wait",
                "%aml_pipeline submit --param train.lr=0.1",
                "%aml_pipeline submit --from train",
                "%aml_pipeline submit --only score",
                "%aml_pipeline submit --save pipeline.yml",
                "%aml_pipeline submit pipeline.yml --target local",
            ),
            ("amltrain pipeline submit pipeline.yml --wait",),
        ),
    ),
    Command(
        verb="schedule",
        summary="Print the line for crontab that runs a pipeline file at fixed times.",
        run=_schedule,
        flags=_schedule_flags,
        examples=Examples(
            ("%aml_pipeline schedule pipeline.yml --cron '0 6 * * 1'",),
            ("amltrain pipeline schedule pipeline.yml --cron '0 6 * * 1'",),
        ),
    ),
    Command(
        verb="forget",
        summary="Forget steps of this notebook.",
        run=_forget,
        flags=_forget_flags,
        shell=False,
        examples=Examples(("%aml_pipeline forget prep",)),
    ),
)
