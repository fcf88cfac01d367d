"""AutoML files of ``az ml`` for tables, as jobs of this machine and of machines over SSH."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.automl.cell import DEFAULT_RESTARTS, job_of
from jupyter_amltrain.automl.data import input_of_path
from jupyter_amltrain.automl.job.metrics import TASKS
from jupyter_amltrain.automl.mltable import folder_of
from jupyter_amltrain.automl.options import LEARNERS, SearchOptions, checked
from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.errors import CommandError, SpecError
from jupyter_amltrain.kernel.job_submitter import JobSubmitter
from jupyter_amltrain.plugins import offers
from jupyter_amltrain.schema.az_yaml import JobFile
from jupyter_amltrain.schema.az_yaml_job import file_of
from jupyter_amltrain.schema.inputs import JobInput, is_address
from jupyter_amltrain.schema.job import JobSpec

#: Limits of the service where a file has none.
_MINUTES, _TRIALS = 360.0, 1000
#: Metrics of the service that order models as one here does.
_METRICS = {
    "accuracy": "accuracy",
    "auc_weighted": "roc_auc",
    "r2_score": "r2",
    "normalized_root_mean_squared_error": "rmse",
    "normalized_mean_absolute_error": "mae",
}
#: The service's models, by FLAML's names.
_LEARNERS = {
    "light_gbm": "lgbm",
    "lightgbm": "lgbm",
    "xg_boost_classifier": "xgboost",
    "xg_boost_regressor": "xgboost",
    "xgboostclassifier": "xgboost",
    "xgboostregressor": "xgboost",
    "random_forest": "rf",
    "randomforest": "rf",
    "extreme_random_trees": "extra_tree",
    "extremerandomtrees": "extra_tree",
    "logistic_regression": "lrl2",
    "logisticregression": "lrl2",
    "knn": "kneighbor",
    "cat_boost": "catboost",
    "catboost": "catboost",
}
#: Keys that change what is learned, and that are not supported here.
_REFUSED = ("weight_column_name", "cv_split_column_names")
_LIMITS = ("timeout_minutes", "max_trials", "trial_timeout_minutes", "enable_early_termination")
_FORECAST = ("time_column_name", "forecast_horizon", "time_series_id_column_names", "frequency", "seasonality")
_TRAINING = ("allowed_training_algorithms", "blocked_training_algorithms", "enable_model_explainability")


async def search_on_machine(submitter: JobSubmitter, spec: JobSpec, target: str) -> tuple[str, JobSpec] | None:
    """Return target and job of a search for a file of ``type: automl``; ``None`` where a service runs it itself."""
    if spec.job_type != "automl" or not isinstance(submitter.backend(target), AgentBackend):
        return None
    return target, await submitter.loop.offload(job_of_file, spec)


def job_of_file(spec: JobSpec) -> JobSpec:
    """Return the job of a file with ``type: automl``. Blocks on the disk.

    Raises
    ------
    SpecError
        The file is invalid, or only the service can run it.
    """
    job = file_of(spec)
    search, files = search_of(job)
    try:
        search = checked(search)
    except CommandError as error:
        raise job.error((), error.message, error.hint) from None
    fields: dict[str, Any] = {
        "name": spec.name,
        "experiment": spec.experiment,
        "tags": spec.tags,
        "timeout": spec.timeout,
        "tracking_uri": spec.tracking_uri,
        "max_restarts": DEFAULT_RESTARTS,
        "env": {str(name): str(value) for name, value in (job.doc.get("environment_variables") or {}).items()},
        "notes": (*spec.notes, *_notes(job)),
    }
    made = job_of(search, fields, folder=spec.project or spec.notebook_dir, files=files)
    return msgspec.structs.replace(made, parent=spec.parent, repeats=spec.repeats)


def search_of(job: JobFile) -> tuple[SearchOptions, dict[str, JobInput]]:
    """Return the search of a file, and its tables as inputs: ``data`` and ``test``.

    Raises
    ------
    SpecError
        A value is invalid or not supported here; the message names line and key.
    """
    doc = job.doc
    task = str(doc.get("task") or "").lower()
    if task not in TASKS:
        what = "the task is missing." if not task else f"only the service trains {task}: images, text and the like."
        raise job.error(("task",), what, f"Here: {', '.join(TASKS)}. Or use {offers()}.")
    for key in _REFUSED:
        if doc.get(key):
            raise job.error((key,), "not supported on this target.", f"Leave it out, or use {offers()}.")
    target = doc.get("target_column_name")
    if not isinstance(target, str) or not target:
        raise job.error(("target_column_name",), "the target column is missing.", "Example: target_column_name: y")
    files, read = _tables(job)
    search = SearchOptions(
        target=target, task=task, metric=_metric(job), read=read, test_share=_share(job), **_limits(job),
        **_training(job), **_forecasting(job, task), **_features(job),
    )  # fmt: skip
    return search, files


def _tables(job: JobFile) -> tuple[dict[str, JobInput], dict[str, Any]]:
    if job.doc.get("training_data") is None:
        raise job.error(
            ("training_data",), "the training data is missing.", "Example: training_data: {path: table.csv}"
        )
    data, read = _table(job, "training_data")
    files = {"data": data}
    if job.doc.get("test_data") is not None:
        files["test"], other = _table(job, "test_data")
        if other != read:
            reason = "its files are not of the kind of the training data."
            raise job.error(("test_data",), reason, "Use the same kind.")
    return files, read


def _table(job: JobFile, key: str) -> tuple[JobInput, dict[str, Any]]:
    """Return the input of a table, and how its files are read."""
    value = job.doc[key]
    path = value.get("path") if isinstance(value, Mapping) else value
    if not isinstance(path, str) or not path:
        raise job.error((key, "path"), "the path is missing.", "Name a file, or a folder with an MLTable file.")
    if is_address(path):
        if path.partition(":")[0] not in ("http", "https"):
            hint = f"Name a file or folder of this machine, or use {offers()}."
            raise job.error((key, "path"), f"{path} is data of a workspace.", hint)
        return JobInput(type="uri_file", path=path), {}
    whole = path if os.path.isabs(path) else os.path.normpath(os.path.join(job.folder, path))
    if not os.path.exists(whole):
        raise job.error((key, "path"), f"there is no such file or folder: {path}.", "Correct the path.")
    is_table = os.path.isdir(whole) and os.path.exists(os.path.join(whole, "MLTable"))
    if not is_table:
        return input_of_path(whole), {}
    try:
        return folder_of(whole)
    except SpecError as error:
        raise job.error((key, "path"), error.message, error.hint) from None


def _metric(job: JobFile) -> str:
    value = job.doc.get("primary_metric")
    if not value:
        return ""
    if (name := _METRICS.get(str(value).lower())) is None:
        raise job.error(
            ("primary_metric",), f"{value} is not supported on this target.", f"Here: {', '.join(_METRICS)}."
        )
    return name


def _share(job: JobFile) -> float:
    value = job.doc.get("test_data_size") or 0.0
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise job.error(("test_data_size",), "a share of the rows, below 1, is needed.", "Example: 0.2")
    return float(value)


def _limits(job: JobFile) -> dict[str, Any]:
    limits = _mapping(job, "limits")
    minutes = limits.get("timeout_minutes", _MINUTES)
    trials = limits.get("max_trials", _TRIALS)
    each = limits.get("trial_timeout_minutes")
    for key, value in (("timeout_minutes", minutes), ("max_trials", trials), ("trial_timeout_minutes", each)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            raise job.error(("limits", key), "a number above 0 is needed.", "Example: 10")
    return {
        "max_minutes": float(minutes),
        "max_trials": int(trials),
        "trial_seconds": None if each is None else 60.0 * each,
        "patience": bool(limits.get("enable_early_termination", True)),
    }


def _training(job: JobFile) -> dict[str, Any]:
    training = _mapping(job, "training")
    allowed = _learners(job, training, "allowed_training_algorithms")
    blocked = _learners(job, training, "blocked_training_algorithms")
    if blocked and not allowed:
        installed = ("lgbm", "rf", "xgboost", "extra_tree", "xgb_limitdepth")
        allowed = tuple(name for name in installed if name not in blocked and not (
            name == "xgb_limitdepth" and "xgboost" in blocked))  # fmt: skip
    return {"learners": allowed, "explain": bool(training.get("enable_model_explainability"))}


def _learners(job: JobFile, training: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = []
    for name in training.get(key) or ():
        learner = _LEARNERS.get(str(name).lower(), str(name).lower())
        if learner in LEARNERS:
            found.append(learner)
        elif key.startswith("allowed"):
            names = ", ".join(dict.fromkeys(_LEARNERS))
            raise job.error(("training", key), f"{name} is not supported on this target.", f"Here: {names}.")
    return tuple(dict.fromkeys(found))


def _forecasting(job: JobFile, task: str) -> dict[str, Any]:
    if task != "forecasting":
        return {}
    settings = _mapping(job, "forecasting")
    if not settings.get("time_column_name"):
        raise job.error(("forecasting", "time_column_name"), "the column with the time is missing.", "Name it.")
    ids, horizon = settings.get("time_series_id_column_names") or (), settings.get("forecast_horizon")
    return {
        "time": str(settings["time_column_name"]),
        "series": (ids,) if isinstance(ids, str) else tuple(map(str, ids)),
        "horizon": horizon if isinstance(horizon, int) else None,  # "auto"
    }


def _features(job: JobFile) -> dict[str, Any]:
    mode = _mapping(job, "featurization").get("mode", "auto")
    if str(mode).lower() not in ("auto", "off", "custom"):
        raise job.error(("featurization", "mode"), f"unknown mode {mode}.", "Use auto or off.")
    return {"plain": str(mode).lower() == "off"}


def _notes(job: JobFile) -> tuple[str, ...]:
    """Return a note on keys that do nothing here."""
    known = {"limits": _LIMITS, "training": _TRAINING, "forecasting": _FORECAST[:3], "featurization": ("mode",)}
    ignored = [f"{key}.{name}" for key, names in known.items() for name in _mapping(job, key) if name not in names]
    ignored += [key for key in ("n_cross_validations", "validation_data", "validation_data_size") if key in job.doc]
    return (f"{job.name}: without effect here: {', '.join(ignored)}.",) if ignored else ()


def _mapping(job: JobFile, key: str) -> Mapping[str, Any]:
    value = job.doc.get(key) or {}
    if not isinstance(value, Mapping):
        raise job.error((key,), "a mapping is needed.", "See the schema: aka.ms/ml-cli-v2")
    return value
