"""Functions of :mod:`jupyter_amltrain.api`: ``aml.automl``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyter_amltrain import api
from jupyter_amltrain.automl.cell import DEFAULT_RESTARTS, is_table, job_of, run_name, with_task
from jupyter_amltrain.automl.data import input_of_path, readable, readable_path
from jupyter_amltrain.automl.options import SearchOptions, check_engine, checked
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.jobs.flags import job_fields, keyword_values
from jupyter_amltrain.kernel.session import known_targets
from jupyter_amltrain.run import TrackedRun
from jupyter_amltrain.schema.inputs import JobInput
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.schema.target import LocalTarget
from jupyter_amltrain.state_dir import working_folder
from jupyter_amltrain.text import notebook_name


def automl(
    data: Any,
    target_column: str,
    *,
    task: str = "",
    metric: str = "",
    max_minutes: float | None = None,
    max_trials: int | None = None,
    test_data: Any = None,
    test_share: float = 0.0,
    time_column: str = "",
    series: Sequence[str] = (),
    horizon: int | None = None,
    drop: Sequence[str] = (),
    learners: Sequence[str] = (),
    early_stop: bool = False,
    seed: int = 0,
    explain: bool = False,
    register: str = "",
    engine: str = "flaml",
    target: str | None = None,
    secrets: Mapping[str, str] | None = None,
    **fields: Any,
) -> TrackedRun:
    """Search the best model for a column of a table; returns the run, as ``%aml_automl`` does.

    Parameters
    ----------
    data, test_data
        A frame, an array, or the path of a file.
    target
        Where to run; default: the target in use.
    **fields
        Further keywords of :func:`jupyter_amltrain.submit`: ``gpus``, ``env``, ``name``, ...

    Raises
    ------
    CommandError
        A value is invalid, or the table cannot give a model.

    Examples
    --------
    >>> run = automl(frame, "price", max_minutes=5)  # doctest: +SKIP
    >>> run.wait().result("best")["scores"]  # doctest: +SKIP
    """
    check_engine(engine)
    search = SearchOptions(
        target=target_column, task=task, metric=metric, max_minutes=max_minutes, max_trials=max_trials,
        patience=early_stop, seed=seed, learners=tuple(learners), test_share=test_share, time=time_column,
        series=_names(series), horizon=horizon, drop=_names(drop), explain=explain, register=register,
    )  # fmt: skip
    tables = {"data": data, **({} if test_data is None else {"test_data": test_data})}
    values = {name: table for name, table in tables.items() if is_table(table)}
    files: dict[str, JobInput] = {}
    if not values:
        paths = {"data": data, **({} if test_data is None else {"test": test_data})}
        files = {name: input_of_path(os.fspath(path)) for name, path in paths.items()}
    elif len(values) < len(tables):
        raise CommandError(
            "data and test_data: one is a table, the other is not.", hint="Use two tables.", field="data"
        )
    notes: tuple[str, ...] = ()
    if values:
        search, notes = with_task(search, data, test_data)
    elif readable(files["data"]):
        search, notes = with_task(search, files["data"].path, readable_path(files.get("test")))
    else:
        search = checked(search)
    job = job_fields(keyword_values({**fields, "secrets": secrets}))
    job.setdefault("name", run_name(search))
    job.setdefault("experiment", notebook_name() or "default")
    spec = search_job(search, {**job, "notes": notes}, target=target, values=values, files=files)
    return api.submit_spec(spec, target=target, secrets=dict(secrets or {})).accepted()


def _names(given: Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def search_job(
    search: SearchOptions,
    fields: Mapping[str, Any],
    *,
    target: str | None,
    values: Mapping[str, Any],
    files: Mapping[str, JobInput],
) -> JobSpec:
    """Return the job of a search for a target; see :func:`.cell.job_of`."""
    restarts = {} if fields.get("max_restarts") or not _restarts(target) else {"max_restarts": DEFAULT_RESTARTS}
    return job_of(
        search, {**fields, **restarts}, folder=working_folder(), values=values, files=files,
        is_local=api.is_local(target),
    )  # fmt: skip


def _restarts(target: str | None) -> bool:
    """Whether a target is a machine on which our agent starts a run again."""
    try:
        known = known_targets()
        return isinstance(known.get(target or known.current), LocalTarget | SshTarget)
    except AmlTrainError:  # unknown: the submit says so
        return False


FUNCTIONS: Mapping[str, Callable[..., Any]] = {"automl": automl}
