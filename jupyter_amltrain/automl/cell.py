"""The job of a search: a short cell that calls the package ``aml_automl``, which travels with it."""

from __future__ import annotations

import pprint
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import msgspec

from jupyter_amltrain.automl.job import forecast
from jupyter_amltrain.automl.job import table as tables
from jupyter_amltrain.automl.job.errors import UnusableData
from jupyter_amltrain.automl.job.metrics import FORECASTING
from jupyter_amltrain.automl.options import SearchOptions, checked
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.jobs import closure, script
from jupyter_amltrain.jobs.closure import Notebook
from jupyter_amltrain.jobs.kept_names import keep_for
from jupyter_amltrain.jobs.values import notes as value_notes
from jupyter_amltrain.schema.inputs import JobInput, input_variable
from jupyter_amltrain.schema.job import MAX_NAME, JobSpec, validated

#: Package that the job imports: the modules of the folder ``job``.
PACKAGE = "aml_automl"
#: How often a run starts again that was killed: it continues after the trials that it has.
DEFAULT_RESTARTS = 3
#: On a busy machine, threads that spin while they wait make a fit ten times slower.
_ENV = {"OMP_WAIT_POLICY": "PASSIVE"}
_IMPORTS = "import flaml, mlflow, pandas, sklearn  # what the search needs"


def modules() -> dict[str, str]:
    """Return the sources of the package, by the names of its modules."""
    folder = resources.files("jupyter_amltrain.automl").joinpath("job")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".py")), key=lambda file: file.name)
    return {f"{PACKAGE}/{file.name.removesuffix('.py')}": file.read_text(encoding="utf-8") for file in files}


def text_of(search: SearchOptions, data: str, test: str = "") -> str:
    """Return the text of the cell.

    Parameters
    ----------
    data, test
        Expressions of the table and of the held-out one.
    """
    options = search.as_dict()
    text = pprint.pformat(options, width=100, sort_dicts=False)
    body = ["import os", _IMPORTS] if "os." in f"{data}{test}" else [_IMPORTS]
    tables = f"{data}, test={test}" if test else data
    return "\n".join([*body, "", f"import {PACKAGE}", "", f"best = {PACKAGE}.run({tables}, options={text})", ""])


def job_of(
    search: SearchOptions,
    fields: Mapping[str, Any],
    *,
    folder: str,
    values: Mapping[str, Any] | None = None,
    files: Mapping[str, JobInput] | None = None,
    is_local: bool = True,
) -> JobSpec:
    """Return the job of a search.

    Parameters
    ----------
    search
        With its task and metric.
    fields
        Further fields of the job.
    folder
        The job's project and working folder.
    values, files
        The table, and a held-out one: variables of the notebook in this order, or files by ``data`` and ``test``.
    is_local
        Whether the job runs with this interpreter.
    """
    values, files = values or {}, files or {}
    names = [*values, *(f'os.environ["{input_variable(name)}"]' for name in files)]
    cell = text_of(search, *names)
    own = closure.named(Notebook(values, tuple), tuple(values), ())
    made = script.from_cell(
        cell, magic_line="%aml_automl", before=own.statements, known=own.names, keep=keep_for(is_local)
    )
    notes = (*fields.get("notes", ()), *value_notes(own.values, "Table"), *made.notes)
    job = {
        "script": made.text,
        "cell": cell,
        "source_sha256": made.sha256,
        "line_offset": made.line_offset,
        "notebook_dir": folder,
        "project": folder,
        "values": own.values,
        "modules": modules(),
        "own_trials": search.own_trials,
    }
    inputs = {**fields.get("inputs", {}), **files}
    env = {**_ENV, **fields.get("env", {})}
    return validated(JobSpec(**{**fields, **job, "notes": notes, "inputs": inputs, "env": env}))


def with_task(search: SearchOptions, data: Any, test: Any = None) -> tuple[SearchOptions, tuple[str, ...]]:
    """Return a checked search for a table that is at hand, and notes on what was guessed.

    Raises
    ------
    CommandError
        The table cannot give a model.
    """
    notes: tuple[str, ...] = ()
    try:
        frame, task = tables.usable(tables.read(data, search.read), search.as_dict())
        if not (search.task or search.time):
            notes = (f"The task is {task}, by the values of {search.target}. Another one: --task.",)
        search = checked(msgspec.structs.replace(search, task=task))
        rows, values = tables.checked(frame, search.target, task)
        if task == FORECASTING:
            forecast.series_of(rows, values, forecast.time_column_of(rows, search.time), search.series, search.horizon)
        if test is not None:
            given = tables.read(test, search.read)
            tables.check_columns(given.columns, search.target, of="test data")
            tables.checked(given, search.target, task, "test data")
    except UnusableData as error:
        raise unusable(error) from None
    return search, notes


def run_name(search: SearchOptions) -> str:
    """Return the name of a run that is given none."""
    return re.sub(r"[^\w.-]+", "-", f"automl-{search.target}").strip("-")[:MAX_NAME]


def unusable(error: UnusableData) -> CommandError:
    """Return the error of data as one of a command."""
    return CommandError(str(error), code="automl.data", field="data")


def is_table(value: Any) -> bool:
    """Whether a variable of a notebook is a table."""
    kind = type(value)
    is_frame = kind.__module__.partition(".")[0] in ("pandas", "polars", "pyarrow") and hasattr(value, "columns")
    return is_frame or (isinstance(value, dict) and bool(value)) or getattr(value, "ndim", 0) == 2
