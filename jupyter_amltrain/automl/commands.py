"""``automl``: search the best model for a column of a table, as one run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from jupyter_amltrain.automl.cell import is_table, run_name, with_task
from jupyter_amltrain.automl.data import input_of_path, readable, readable_path
from jupyter_amltrain.automl.functions import search_job
from jupyter_amltrain.automl.job.metrics import METRICS, TASKS
from jupyter_amltrain.automl.options import ENGINES, LEARNERS, SearchOptions, check_engine, checked
from jupyter_amltrain.automl.plan_text import plan_text, shown_request
from jupyter_amltrain.commands.parser import Parser
from jupyter_amltrain.commands.registry import Command, Context, Defaults, Examples, Result
from jupyter_amltrain.commands.submit import SubmitRequest, job_flags, run_flags, send, submission_of
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import flag_types
from jupyter_amltrain.jobs.flags import job_fields, typed_values
from jupyter_amltrain.schema.inputs import JobInput
from jupyter_amltrain.text import close_matches, did_you_mean, notebook_name

#: Flags of a submit that a search does not have: it is one process, and its code is ours.
_WITHOUT = (
    "--source", "--param", "--style", "--out", "--metric", "--autolog", "--nodes", "--processes", "--distribution",
    "--launcher", "--deepspeed", "--input", "--output", "--service",
)  # fmt: skip


def words(text: str) -> list[str]:
    """One word, or several with commas."""
    return [word for part in text.split(",") if (word := part.strip())]


def _flags(parser: Parser) -> None:
    flag = parser.flag
    variable = "a variable of the notebook, or " if parser.magic else ""
    flag("--data", metavar="NAME|FILE",
         help=f"the table: {variable}a file (CSV, TSV, Parquet, JSON, Excel) or a folder of such files")  # fmt: skip
    flag("--target-column", metavar="COLUMN", help="the column that the model predicts")
    flag("--task", metavar="TASK", offers=TASKS, default="",
         help=f"{', '.join(TASKS)}; default by the values of the column")  # fmt: skip
    flag("--metric", dest="goal_metric", metavar="METRIC", offers=tuple(METRICS), default="", field="metric",
         help="by which models are compared; default accuracy, r2 or rmse")  # fmt: skip
    flag("--max-minutes", metavar="N", type=flag_types.minutes, samples=("10", "90s"),
         help="time of the whole run; default 10, without --max-trials")  # fmt: skip
    flag("--max-trials", metavar="N", type=flag_types.count, samples=("50",),
         help="end after so many trials; without --max-minutes the result is the same each time")  # fmt: skip
    flag("--test-data", metavar="NAME|FILE", help="rows to score the model on; default a part of the data")
    flag("--test-share", metavar="SHARE", type=flag_types.share, samples=("0.2",), default=0.0,
         help="part of the rows that no trial sees; default 0.2")  # fmt: skip
    flag("--time-column", metavar="COLUMN", default="", help="of a forecast: the column with the time")
    flag("--series", metavar="COLUMN,...", type=words, default=[],
         help="of a forecast: columns that tell several series apart")  # fmt: skip
    flag("--horizon", metavar="N", type=flag_types.count, samples=("12",),
         help="of a forecast: steps to predict; default a tenth of the series, at most 24")  # fmt: skip
    flag("--drop", metavar="COLUMN,...", type=words, default=[], help="columns that the model must not use")
    flag("--learners", metavar="NAME,...", type=words, default=[], offers=LEARNERS,
         help="models to try; default those that are installed and fit")  # fmt: skip
    flag("--early-stop", action="store_true", help="end before the time when the models have converged")
    flag("--seed", metavar="N", type=flag_types.count, default=0, help="of the split and of the search; default 0")
    flag("--explain", action="store_true", help="compute how much each column matters (permutation importance)")
    flag("--register", metavar="NAME", default="", help="register the model under this name")
    flag("--engine", metavar="ENGINE", offers=ENGINES, default="flaml", help="the program that searches; default flaml")
    flag("--target", metavar="NAME", help="where to run; default the target in use")
    job_flags(parser, without=_WITHOUT)
    run_flags(parser, dry_run="print what would be searched and sent; submit nothing")


def _run(args: argparse.Namespace, context: Context) -> Result:
    from jupyter_amltrain import api

    search, names, submission = _submission(args, context)
    if not submission.dry_run:
        return context.submitted(send(submission), submission)
    plan = api.plan_spec(submission.spec, target=submission.target_name)
    target = submission.target_name or api.current_target()
    return Result(plan_text(search, names, plan, target), shown_request(plan.request))


def _submission(args: argparse.Namespace, context: Context) -> tuple[SearchOptions, dict[str, str], SubmitRequest]:
    """Return the search, the names of its tables, and what is sent."""
    check_engine(args.engine)
    for flag, value in (("--data", args.data), ("--target-column", args.target_column)):
        if not value:
            raise CommandError(
                f"{context.prog}: {flag} is missing.",
                hint=f"Example: {context.prog} --data {'df' if context.magic else 'table.csv'} --target-column y",
                code="automl.missing",
                field=flag.lstrip("-").replace("-", "_"),
            )
    search = SearchOptions(
        target=args.target_column, task=args.task, metric=args.goal_metric, max_minutes=args.max_minutes,
        max_trials=args.max_trials, patience=args.early_stop, seed=args.seed, learners=tuple(args.learners),
        test_share=args.test_share, time=args.time_column, series=tuple(args.series), horizon=args.horizon,
        drop=tuple(args.drop), explain=args.explain, register=args.register,
    )  # fmt: skip
    namespace = context.namespace or {}
    names = {"data": args.data, **({"test": args.test_data} if args.test_data else {})}
    values = {name: namespace[name] for name in names.values() if name in namespace}
    files = {part: input_of_path(name) for part, name in names.items() if name not in values}
    _check_tables(names, values, files, namespace)
    if len(values) not in (0, len(names)):
        raise CommandError(
            "--data and --test-data: one is a variable, the other a file.", hint="Use two variables, or two files.",
            code="automl.data", field="test_data",
        )  # fmt: skip
    search, notes = _with_task(search, names, values, files)
    fields = _fields(args, context.defaults, search)
    fields["notes"] = notes
    target = args.target or context.defaults.target or None
    spec = search_job(search, fields, target=target, values=values, files=files)
    return search, names, submission_of(args, spec, "", context.defaults.target)


def _check_tables(
    names: Mapping[str, str], values: Mapping[str, Any], files: Mapping[str, JobInput], namespace: Mapping[str, Any]
) -> None:
    """Raise for a variable that is no table, and for a name that is neither a variable nor a file."""
    for part, name in names.items():
        flag = "--data" if part == "data" else "--test-data"
        if name in values and not is_table(values[name]):
            kind = type(values[name]).__name__
            raise CommandError(
                f"{flag} {name}: a {kind} is no table.", hint="Use a frame of pandas, or a file.",
                code="automl.data", field=part,
            )  # fmt: skip
        is_path = part in files and files[part].local
        if is_path and not os.path.exists(files[part].path) and name.isidentifier():
            near = close_matches(name, [one for one, value in namespace.items() if is_table(value)], 1)
            raise CommandError(
                f"{flag} {name}: there is no such variable and no such file.",
                hint=did_you_mean(near, "Run the cell that makes it first."), code="automl.data", field=part,
            )  # fmt: skip


def _with_task(
    search: SearchOptions, names: Mapping[str, str], values: Mapping[str, Any], files: Mapping[str, JobInput]
) -> tuple[SearchOptions, tuple[str, ...]]:
    """Return the search with its task; a table that is at hand is checked before anything is sent."""
    if values:
        test = values[names["test"]] if "test" in names else None
        return with_task(search, values[names["data"]], test)
    if readable(files["data"]):
        return with_task(search, files["data"].path, readable_path(files.get("test")))
    if not search.task:
        raise CommandError(
            f"--data {names['data']}: its rows are not read here, so that the task is not known.",
            hint=f"Add --task {'|'.join(TASKS)}", code="automl.task", field="task",
        )  # fmt: skip
    return checked(search), ()


def _fields(args: argparse.Namespace, defaults: Defaults, search: SearchOptions) -> dict[str, Any]:
    """Return the fields of the job that the line sets."""
    fields = job_fields(typed_values(args))
    fields.setdefault("name", run_name(search))
    fields.setdefault("experiment", defaults.experiment or notebook_name() or "default")
    fields.setdefault("timeout", defaults.timeout)
    fields.setdefault("tracking_uri", defaults.tracking_uri)
    if not fields["environment"] and defaults.environment:
        from jupyter_amltrain.jobs import flag_values

        fields["environment"] = flag_values.environment_of(defaults.environment)
    return fields


COMMANDS = (
    Command(
        summary="Search the best model for a column of a table.",
        run=_run,
        flags=_flags,
        examples=Examples(
            (
                "%aml_automl --data df --target-column survived --max-minutes 5",
                "%aml_automl --data df --target-column price --metric mae --max-trials 50 --explain",
                "%aml_automl --data sales.csv --target-column sold --time-column day --horizon 14",
                "%aml_automl --data df --target-column churn --target gpubox --register churn --wait",
            ),
            ("amltrain automl --data table.csv --target-column y --max-minutes 5 --wait",),
        ),
    ),
)
