"""Copies a run of the project's store to another MLflow server, by MLflow's public client alone.

Every step looks first what the server has: a copy that was killed is repeated, and nothing is there twice. The server
chooses ids of its own; a hidden tag holds the id that the run, or a model, has here.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent import testing
from jupyter_amltrain.tracking.mlflow_store import local_folder

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

#: Tag of the server's runs, models and model versions with the id in the project's store.
ORIGIN = "mlflow.amltrain.origin"

#: Largest parts of a batch: MLflow's own limits.
_METRICS, _PAIRS = 1000, 100

#: Tags that describe the store itself.
_OWN_TAGS = ("mlflow.amltrain.", "amltrain.cursor")

_PARENT, _ROOT = "mlflow.parentRunId", "mlflow.rootRunId"


class RunCopy:
    """Copies one run of the project's store, with its children and models.

    Parameters
    ----------
    here, there
        MLflow's clients of the project's store and of the server.
    note
        Called with one sentence for what the server does not take.
    """

    def __init__(self, here: MlflowClient, there: MlflowClient, note: Callable[[str], None]) -> None:
        self._here, self._there, self._note = here, there, note
        self._experiments: dict[str, str] = {}  #: ids here -> there
        self._runs: dict[str, str] = {}
        self._models: dict[str, str] = {}
        self._model_places: dict[str, str] = {}  #: location or URI here -> id here

    def copy(self, run_id: str) -> tuple[str, str]:
        """Copy a run; return the ids of its experiment and of itself on the server.

        Raises
        ------
        MlflowException, OSError
            The server does not answer, or refuses the run.
        """
        run = self._here.get_run(run_id)
        self._copy(run)
        for child in self._descendants(run):
            self._copy(child)
        return self._experiments[run.info.experiment_id], self._runs[run_id]

    def _copy(self, run: Run) -> None:
        there = self._created(run)
        testing.hit("team_after_create")
        self._copy_values(run, there)
        self._copy_metrics(run, there)
        testing.hit("team_after_metrics")
        self._copy_inputs(run, there)
        folder = local_folder(run.info.artifact_uri)
        if folder is not None:
            self._copy_artifacts(folder, there)
        self._copy_models(run, there)
        self._copy_versions(run, there)
        testing.hit("team_before_end")
        if run.info.status != "RUNNING":
            self._there.set_terminated(there.info.run_id, run.info.status, run.info.end_time)

    def _descendants(self, run: Run) -> Iterator[Run]:
        """Yield the runs below a run, parents first."""
        for child in self._pages(self._here.search_runs, run, f"tags.`{_PARENT}` = '{run.info.run_id}'"):
            yield child
            yield from self._descendants(child)

    def _pages(self, search: Callable[..., Any], run: Run, text: str) -> list[Run]:
        found: list[Run] = []
        token = None
        while True:
            page = search([run.info.experiment_id], filter_string=text, page_token=token, order_by=["start_time ASC"])
            found += page
            token = page.token
            if not token:
                return found

    def _experiment(self, run: Run) -> str:
        """Return the server's id of the experiment of a run, by its name."""
        from mlflow.exceptions import MlflowException

        known = self._experiments.get(run.info.experiment_id)
        if known is not None:
            return known
        name = self._here.get_experiment(run.info.experiment_id).name
        found = self._there.get_experiment_by_name(name)
        if found is None:
            try:
                there = self._there.create_experiment(name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._there.get_experiment_by_name(name)  # of somebody else, just now
                if found is None:
                    raise
                there = found.experiment_id
        else:
            there = found.experiment_id
            if found.lifecycle_stage != "active":
                self._there.restore_experiment(there)
        self._experiments[run.info.experiment_id] = str(there)
        return str(there)

    def _created(self, run: Run) -> Run:
        """Return the run on the server, which is created if it is not there."""
        experiment, info = self._experiment(run), run.info
        found = self._there.search_runs([experiment], filter_string=f"tags.`{ORIGIN}` = '{info.run_id}'", max_results=1)
        if found:
            there = found[0]
        else:
            tags = {**self._tags(run), ORIGIN: info.run_id}
            there = self._there.create_run(experiment, info.start_time, tags, info.run_name)
        self._runs[info.run_id] = there.info.run_id
        return there

    def _tags(self, run: Run) -> dict[str, str]:
        tags = {key: value for key, value in run.data.tags.items() if not key.startswith(_OWN_TAGS)}
        for key in (_PARENT, _ROOT):
            if key in tags:
                tags[key] = self._runs.get(tags[key], tags[key])
        tags.pop("mlflow.log-model.history", None)  # its paths and ids are those here
        return tags

    def _copy_values(self, run: Run, there: Run) -> None:
        """Copy parameters and tags that the server does not have."""
        from mlflow.entities import Param, RunTag

        params = [Param(key, value) for key, value in run.data.params.items() if key not in there.data.params]
        tags = [RunTag(key, value) for key, value in self._tags(run).items() if there.data.tags.get(key) != value]
        for at in range(0, max(len(params), len(tags)), _PAIRS):
            self._there.log_batch(there.info.run_id, params=params[at : at + _PAIRS], tags=tags[at : at + _PAIRS])

    def _copy_metrics(self, run: Run, there: Run) -> None:
        """Copy the points that the server does not have, in their order."""
        waiting: list[Any] = []
        for key in run.data.metrics:
            known = set()
            if key in there.data.metrics:
                known = {_point(metric) for metric in self._there.get_metric_history(there.info.run_id, key)}
            history = sorted(self._here.get_metric_history(run.info.run_id, key), key=lambda m: (m.timestamp, m.step))
            waiting += [metric for metric in history if _point(metric) not in known]
        waiting.sort(key=lambda metric: metric.timestamp)
        for at in range(0, len(waiting), _METRICS):
            points = [_plain(metric) for metric in waiting[at : at + _METRICS]]
            self._there.log_batch(there.info.run_id, metrics=points)
            testing.hit("team_after_batch")

    def _copy_inputs(self, run: Run, there: Run) -> None:
        known = {(entry.dataset.name, entry.dataset.digest) for entry in _datasets(there)}
        missing = [entry for entry in _datasets(run) if (entry.dataset.name, entry.dataset.digest) not in known]
        if missing:
            self._there.log_inputs(there.info.run_id, datasets=missing)

    # ---- artifacts

    def _copy_artifacts(self, folder: Path, there: Run) -> None:
        """Upload the files that the server does not have, or has with another size."""
        run_id = there.info.run_id
        known = dict(_listed(lambda path: self._there.list_artifacts(run_id, path)))
        for file in _files(folder):
            below = file.relative_to(folder).as_posix()
            if known.get(below) != file.stat().st_size:
                parent = os.path.dirname(below)
                with self._with_new_ids(file) as sent:
                    self._there.log_artifact(run_id, str(sent), parent or None)

    @contextlib.contextmanager
    def _with_new_ids(self, file: Path) -> Iterator[Path]:
        """Give a file as it is; the description of a model with the server's ids."""
        if file.name != "MLmodel":
            yield file
            return
        text = file.read_text(encoding="utf-8")
        for old, new in (*self._runs.items(), *self._models.items()):
            text = text.replace(old, new)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file.name
            path.write_text(text, encoding="utf-8")
            yield path

    # ---- models

    def _copy_models(self, run: Run, there: Run) -> None:
        """Copy the models that a run has logged (MLflow 3)."""
        linked = {output.model_id for output in _outputs(there)}
        for output in _outputs(run):
            model = self._here.get_logged_model(output.model_id)
            if model.source_run_id not in (None, run.info.run_id):
                continue
            copied = self._copied_model(model, there)
            for place in (str(model.artifact_location).rstrip("/"), f"models:/{model.model_id}"):
                self._model_places[place] = model.model_id
            self._model_places[f"runs:/{run.info.run_id}/{model.name}"] = model.model_id
            if copied.model_id not in linked:
                self._there.log_outputs(there.info.run_id, [type(output)(copied.model_id, output.step)])

    def _copied_model(self, model: LoggedModel, there: Run) -> LoggedModel:
        experiment = there.info.experiment_id
        known = self._there.search_logged_models([experiment], filter_string=f"tags.`{ORIGIN}` = '{model.model_id}'")
        if known:
            copied = known[0]
        else:
            copied = self._there.create_logged_model(
                experiment,
                name=model.name,
                source_run_id=there.info.run_id,
                tags={**_without(model.tags, "mlflow.modelVersions"), ORIGIN: model.model_id},
                params={key: str(value) for key, value in model.params.items()},
                model_type=model.model_type,
            )
        self._models[model.model_id] = copied.model_id
        folder = local_folder(model.artifact_location)
        if folder is not None:
            self._copy_model_artifacts(folder, copied)
        if model.status != copied.status:
            self._there.finalize_logged_model(copied.model_id, model.status)
        return copied

    def _copy_model_artifacts(self, folder: Path, copied: LoggedModel) -> None:
        known = dict(_listed(lambda path: self._there.list_logged_model_artifacts(copied.model_id, path)))
        for file in _files(folder):
            below = file.relative_to(folder).as_posix()
            if known.get(below) != file.stat().st_size or file.name == "MLmodel":
                with self._with_new_ids(file) as sent:
                    self._there.log_model_artifact(copied.model_id, str(sent), os.path.dirname(below) or None)

    def _copy_versions(self, run: Run, there: Run) -> None:
        """Register the models of a run that are registered here."""
        from mlflow.exceptions import MlflowException

        versions = self._here.search_model_versions(f"run_id = '{run.info.run_id}'")
        for version in sorted(versions, key=lambda one: int(one.version)):
            origin = f"{version.name}/{version.version}"
            try:
                self._there.create_registered_model(version.name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            known = self._there.search_model_versions(f"name = '{version.name}' and run_id = '{there.info.run_id}'")
            if any(one.tags.get(ORIGIN) == origin for one in known):
                continue
            source, model_id = self._source(version, run, there)
            more: dict[str, Any] = {"model_id": model_id} if model_id else {}  # MLflow 2 has no such argument
            more |= {"description": version.description} if version.description else {}
            self._there.create_model_version(
                version.name, source, there.info.run_id, {**version.tags, ORIGIN: origin}, **more
            )

    def _source(self, version: Any, run: Run, there: Run) -> tuple[str, str]:
        """Return where the server finds the files of a model version, and its logged model, if it is one."""
        source = str(version.source).rstrip("/")
        for place, model_id in self._model_places.items():
            if source == place or source.startswith(place + "/"):
                return f"models:/{self._models[model_id]}{source[len(place) :]}", self._models[model_id]
        below = source.removeprefix(run.info.artifact_uri.rstrip("/")).removeprefix(f"runs:/{run.info.run_id}")
        return there.info.artifact_uri.rstrip("/") + (below if below != source else ""), ""


def _point(metric: Any) -> tuple[int, int, str]:
    """Return what identifies a point of a metric; NaN equals itself."""
    return metric.timestamp, metric.step, repr(float(metric.value))


def _plain(metric: Any) -> Any:
    """Return a point without the model that it belongs to here."""
    from mlflow.entities import Metric

    return Metric(metric.key, metric.value, metric.timestamp, metric.step)


def _datasets(run: Run) -> list[Any]:
    return list(getattr(getattr(run, "inputs", None), "dataset_inputs", None) or ())


def _outputs(run: Run) -> list[Any]:
    return list(getattr(getattr(run, "outputs", None), "model_outputs", None) or ())  # MLflow 2 has none


def _without(tags: Mapping[str, Any], *names: str) -> dict[str, str]:
    return {key: str(value) for key, value in tags.items() if key not in names}


def _files(folder: Path) -> Iterable[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _listed(list_of: Callable[[str | None], list[Any]], path: str | None = None) -> Iterator[tuple[str, int]]:
    """Yield the files of a server below a path, with their sizes."""
    for entry in list_of(path):
        if entry.is_dir:
            yield from _listed(list_of, entry.path)
        else:
            yield entry.path, entry.file_size or 0
