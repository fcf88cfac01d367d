"""Models of a workspace: register the output of a job, list and download models."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.azure import errors
from jupyter_amltrain.azure.service import artifacts, assets, job_outputs, sdk
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.tracking.model_registry import (
    find_version,
    folder_size,
    only_model,
    path_in_run,
    rename_into_place,
)

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace
    from jupyter_amltrain.azure.service.operations import ServiceCall

#: URI of a job's output.
_OF_JOB = re.compile(r"azureml://jobs/(?P<job>[^/]+)/outputs/(?P<output>[^/]+)(?:/paths/(?P<path>.*))?")
#: The agent's journal of the MLflow calls of the job's first process, and the folder of the models that they log.
_JOURNAL, _MODELS = "logs/amltrain/metrics/rank-0.jsonl", "outputs/models"


def register(
    call: ServiceCall,
    *,
    workspace: str,
    job: str,
    name: str,
    path: str = "",
    kind: str = "",
    description: str = "",
    tags: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Register a model version from a job's output: ``{"name", "version", "type", "path"}``.

    Parameters
    ----------
    path
        ``outputs/model``: a named output of the job, or files that it wrote there. Empty selects the only model.
    kind
        ``mlflow_model`` or ``custom_model``; empty: an MLflow model if there is an ``MLmodel`` file.

    Raises
    ------
    CommandError
        The job wrote nothing to that path.
    """
    place = call.cloud.workspace(workspace)
    outputs = _JobOutputs(call, place, job)
    call.progress(f"Looking for models of {job}")
    uri, mlflow = outputs.at(path) if path else outputs.only()
    kind = kind or ("mlflow_model" if mlflow else "custom_model")
    if kind == "mlflow_model" and mlflow is False:
        raise CommandError(
            f"{path or uri.rpartition('/paths/')[2]} of {job} is not an MLflow model: the file MLmodel is missing.",
            hint="Use --type custom_model",
        )
    call.progress(f"Registering {name}")
    try:
        client = sdk.client(call.cloud, place)
        from azure.ai.ml.entities import Model

        model = Model(name=name, path=uri, type=kind, description=description or None, tags=dict(tags or {}))
        registered = client.models.create_or_update(model)
    except Exception as error:  # the SDK raises the errors of several libraries
        raise _translated(error, place) from error
    version = str(sdk.field(registered, "version"))
    return {"name": name, "version": version, "type": kind, "path": str(sdk.field(registered, "path") or uri)}


def list_all(call: ServiceCall, *, workspace: str) -> list[dict[str, Any]]:
    """List all versions of all models, by name, newest version first."""
    place = call.cloud.workspace(workspace)
    return assets.all_versions(place, "models", _row)


def download(call: ServiceCall, *, workspace: str, name: str, version: str = "", folder: str) -> dict[str, Any]:
    """Download the files of a model into a new or empty folder.

    Raises
    ------
    UnknownModel
        There is no such model or version; similar names are suggested.
    CommandError
        The folder is not empty.
    """
    place = call.cloud.workspace(workspace)
    row = find_version(_versions(place, name) or list_all(call, workspace=workspace), name, version, place.name)
    to = Path(folder)
    new = to.with_name(f".{to.name}.{os.getpid()}.part")
    call.progress(f"Downloading {name}:{row['version']}")
    try:
        new.mkdir(parents=True)
        rename_into_place(_download_version(call, place, row, new), to)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return {"name": name, "version": row["version"], "folder": str(to), **folder_size(to)}


class _JobOutputs:
    """Outputs of a job: named outputs, and files below ``outputs/`` of its own artifacts."""

    def __init__(self, call: ServiceCall, ws: Workspace, job: str) -> None:
        self.call, self.place, self.job = call, ws, job
        outputs = job_outputs.named_outputs(ws, job)
        self.outputs = {name: str(output.get("jobOutputType")) for name, output in outputs.items()}

    def files(self, below: str) -> list[str] | None:
        """Return paths of the job's own artifacts below a path; ``None`` if access to the storage is denied."""
        try:
            return [file.path for file in artifacts.list_job_files(self.call, self.place, self.job, [below])]
        except AmlTrainError as error:
            if errors.details_of(error).status != 403:
                raise
            return None  # the service itself has access, and registers what it finds

    def at(self, path: str) -> tuple[str, bool | None]:
        """Return the URI of a path, and whether it is an MLflow model; ``None`` if unknown."""
        below = path_in_run(path)
        first, _, rest_of = below.partition("/")
        if first in self.outputs:
            is_model = True if self.outputs[first] == "mlflow_model" and not rest_of else None
            return f"azureml://jobs/{self.job}/outputs/{first}/paths/{rest_of}", is_model
        whole = f"outputs/{below}"
        files = self.files("outputs/")
        if files is None:
            return self._artifact_uri(whole), None
        named = self.named(files)
        first, slash, rest_of = below.partition("/")
        if not _has_path(files, whole):
            whole = f"{named[first]}{slash}{rest_of}" if first in named else _mlflow_artifact(files, below) or whole
        if not _has_path(files, whole):
            available = ", ".join(f"outputs/{name}" for name in (*self.outputs, *named))
            raise CommandError(
                f"--path: {self.job} wrote nothing to {path}.",
                hint=f"Available: {available}." if available else f"List its files with %aml_runs show {self.job}.",
            )
        return self._artifact_uri(whole), f"{whole}/MLmodel" in files

    def only(self) -> tuple[str, bool | None]:
        """Return the URI of the only model, and whether it is an MLflow model."""
        if self.outputs:
            return self.at(f"outputs/{only_model([*self.outputs], self.job).removeprefix('outputs/')}")
        files = self.files("outputs/") or []
        paths = {str(PurePosixPath(file).parent) for file in files if file.endswith("/MLmodel")}
        if not paths and _has_path(files, "outputs/model"):
            paths = {"outputs/model"}
        names = {path: f"outputs/{name}" for name, path in self.named(files).items()}
        models = {names.get(path, path): path for path in paths}
        path = models[only_model(models, self.job)]
        return self._artifact_uri(path), f"{path}/MLmodel" in files

    def named(self, files: Sequence[str]) -> dict[str, str]:
        """Return paths of models by the name that the script gave them, from the agent's journal.

        MLflow 3 stores a logged model under its own id; the last model of a name is used.
        """
        if not any(file.startswith(f"{_MODELS}/") for file in files):
            return {}
        paths: dict[str, str] = {}
        for file in artifacts.list_job_files(self.call, self.place, self.job, [_JOURNAL]):
            for line in file.read().splitlines():
                if b'"op":"logged-models"' in line:
                    model = json.loads(line)["a"]
                    paths[str(model["name"])] = f"{_MODELS}/{model['id']}/artifacts"
        return {name: path for name, path in paths.items() if _has_path(files, path)}

    def _artifact_uri(self, path: str) -> str:
        return f"azureml://jobs/{self.job}/outputs/artifacts/paths/{path}"


def _has_path(files: Sequence[str], path: str) -> bool:
    """Return whether there is such a file or folder."""
    return any(file == path or file.startswith(f"{path}/") for file in files)


def _mlflow_artifact(files: Sequence[str], below: str) -> str:
    """Return the path of the run's MLflow artifact `below`; the agent stores it as ``runs/ID/artifacts/...``."""
    for file in files:
        match = re.match(rf"(outputs/(?:.*/)?runs/[^/]+/artifacts/{re.escape(below)})(?:/|$)", file)
        if match is not None:
            return match[1]
    return ""


def _versions(place: Workspace, name: str) -> list[dict[str, Any]]:
    return assets.versions(place, "models", name, _row)


def _row(name: str, item: Mapping[str, Any]) -> dict[str, Any]:
    properties = item.get("properties") or {}
    return {
        **assets.facts_of(name, item),
        "type": str(properties.get("modelType") or ""),
        "run": str(properties.get("jobName") or ""),
        "path": str(properties.get("modelUri") or ""),
    }


def _download_version(call: ServiceCall, place: Workspace, row: Mapping[str, Any], new: Path) -> Path:
    """Download a model's files below `new`; returns the folder that contains them.

    Reads the datastore directly if the model's URI names it: the SDK downloads every file whose path merely starts
    like the model's, and finds nothing for a URI that names a job. Otherwise uses the SDK.
    """
    if (address := _datastore_path(place, str(row["path"]))) is not None:
        store, path = address
        root = path.rpartition("/")[0]
        files = list(artifacts.list_files(call, place, store, f"{path}/", [""]))
        files = files or [
            item
            for item in artifacts.list_files(
                call, place, store, f"{root}/" if root else "", [path[len(root) :].strip("/")]
            )
            if item.path == path.rpartition("/")[2]
        ]
        if not files:
            raise CommandError(
                f"The files of {row['name']}:{row['version']} no longer exist: {row['path']}.",
                hint="Register it again.",
            )
        artifacts.download_files(call, files, str(new))
        return new
    try:
        sdk.client(call.cloud, place).models.download(str(row["name"]), str(row["version"]), download_path=new)
    except Exception as error:  # the SDK raises the errors of several libraries
        raise _translated(error, place) from error
    return _innermost(new, str(row["name"]), str(row["path"]))


def _datastore_path(place: Workspace, uri: str) -> tuple[str, str] | None:
    """Return datastore and path of a model's URI; ``None`` for one that only the SDK may resolve."""
    if (match := _OF_JOB.fullmatch(uri)) is not None:
        if match["output"] in ("artifacts", "default"):
            return artifacts.STORE, f"ExperimentRun/dcid.{match['job']}/{match['path'] or ''}".rstrip("/")
        output = job_outputs.named_outputs(place, match["job"]).get(match["output"]) or {}
        base_uri = job_outputs.output_uri(place, match["job"], match["output"], output)
        uri = f"{base_uri.rstrip('/')}/{match['path'] or ''}"
    return job_outputs.store_path(uri)


def _innermost(new: Path, name: str, uri: str) -> Path:
    """Return the folder with the model's files; the SDK creates ``<name>/<last part of the URI>/``."""
    folder = new / name if (new / name).is_dir() else new
    inner = folder / uri.rstrip("/").rpartition("/")[2]
    return inner if inner.is_dir() and len(list(folder.iterdir())) == 1 else folder


def _translated(error: Exception, place: Workspace) -> Exception:
    return errors.error_of_exception(error, place.name) or error
