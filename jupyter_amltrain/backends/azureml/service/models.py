"""Models of a workspace: register what a job left, list them, fetch one."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml import errors
from jupyter_amltrain.backends.azureml.service import artifacts, history, http, sdk
from jupyter_amltrain.errors import AmlTrainError, CommandError, UnknownRun
from jupyter_amltrain.tracking.models import chosen, counted, only, path_in_run, settle

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

#: Where a job's output is, and where a datastore's file is, with or without the workspace before it.
_OF_JOB = re.compile(r"azureml://jobs/(?P<job>[^/]+)/outputs/(?P<output>[^/]+)(?:/paths/(?P<path>.*))?")
#: What the agent writes of the MLflow calls of the job's first process, and where it keeps the models that they log.
_JOURNAL, _MODELS = "logs/amltrain/metrics/rank-0.jsonl", "outputs/models"
_OF_STORE = re.compile(r"azureml://(?:subscriptions/.+/)?datastores/(?P<store>[^/]+)/paths/(?P<path>.+)")


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
    """Make a version of a model of what a job left: ``{"name", "version", "type", "path"}``.

    Parameters
    ----------
    path
        ``outputs/model``: a named output of the job, or files that it wrote there. Empty takes the only model.
    kind
        ``mlflow_model`` or ``custom_model``; empty: an MLflow model where there is an ``MLmodel`` file.

    Raises
    ------
    CommandError
        The job left nothing there.
    """
    place = call.cloud.workspace(workspace)
    found = _Left(call, place, job)
    call.progress(f"Looking at what {job} left")
    uri, mlflow = found.at(path) if path else found.only()
    kind = kind or ("mlflow_model" if mlflow else "custom_model")
    if kind == "mlflow_model" and mlflow is False:
        raise CommandError(
            f"{path or uri.rpartition('/paths/')[2]} of {job} has no MLmodel file, so it is no MLflow model.",
            hint="Try: --type custom_model",
        )
    call.progress(f"Registering {name}")
    try:
        client = sdk.client(call.cloud, place)
        from azure.ai.ml.entities import Model

        wish = Model(name=name, path=uri, type=kind, description=description or None, tags=dict(tags or {}))
        made = client.models.create_or_update(wish)
    except Exception as error:
        raise _plain(error, place) from error
    version = str(sdk.field(made, "version"))
    return {"name": name, "version": version, "type": kind, "path": str(sdk.field(made, "path") or uri)}


def list_all(call: ServiceCall, *, workspace: str) -> list[dict[str, Any]]:
    """Every version of every model, by name, newest version first."""
    place = call.cloud.workspace(workspace)
    names = [
        str(item["name"])
        for item in place.arm.pages("models", api=http.ARM, act="list the models")
        if not (item.get("properties") or {}).get("isArchived")
    ]
    found = history.all_of(lambda name: _versions(place, name), names)
    return [
        row for rows in sorted(found, key=lambda rows: str(rows[0]["name"]).lower() if rows else "") for row in rows
    ]


def download(call: ServiceCall, *, workspace: str, name: str, version: str = "", folder: str) -> dict[str, Any]:
    """Fetch the files of a model into a folder that is not there yet, or empty.

    Raises
    ------
    UnknownModel
        There is none of that name and version; near matches are named.
    CommandError
        There is something in the folder.
    """
    place = call.cloud.workspace(workspace)
    row = chosen(_versions(place, name) or list_all(call, workspace=workspace), name, version, place.name)
    to = Path(folder)
    new = to.with_name(f".{to.name}.{os.getpid()}.part")
    call.progress(f"Downloading {name}:{row['version']}")
    try:
        new.mkdir(parents=True)
        settle(_fetched(call, place, row, new), to)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return {"name": name, "version": row["version"], "folder": str(to), **counted(to)}


class _Left:
    """What a job left: named outputs, and files below ``outputs/`` of its own artifacts."""

    def __init__(self, call: ServiceCall, place: Workspace, job: str) -> None:
        self.call, self.place, self.job = call, place, job
        answer = place.arm.get(f"jobs/{job}", api=http.ARM, ok=(200, 404), act=f"look at job {job}")
        if answer.status == 404:
            raise UnknownRun(f"There is no job {job!r} in {place.name}.", hint="%aml_runs lists the runs.")
        outputs = ((answer.json or {}).get("properties") or {}).get("outputs") or {}
        self.outputs = {name: str((of or {}).get("jobOutputType")) for name, of in outputs.items() if name != "default"}

    def files(self, below: str) -> list[str] | None:
        """Paths of the job's own artifacts below a path; ``None`` where the storage does not let us look."""
        try:
            return [file.path for file in artifacts.listing(self.call, self.place, self.job, [below])]
        except AmlTrainError as error:
            if errors.details_of(error).status != 403:
                raise
            return None  # the service itself may, and registers what it finds

    def at(self, path: str) -> tuple[str, bool | None]:
        """Address of a path, and whether there is an MLflow model; ``None`` where that is not known."""
        below = path_in_run(path)
        first, _, rest_of = below.partition("/")
        if first in self.outputs:
            is_model = True if self.outputs[first] == "mlflow_model" and not rest_of else None
            return f"azureml://jobs/{self.job}/outputs/{first}/paths/{rest_of}", is_model
        whole = f"outputs/{below}"
        files = self.files("outputs/")
        if files is None:
            return self._own(whole), None
        named = self.named(files)
        first, slash, rest_of = below.partition("/")
        if not _there(files, whole):
            whole = f"{named[first]}{slash}{rest_of}" if first in named else _logged(files, below) or whole
        if not _there(files, whole):
            there = ", ".join(f"outputs/{name}" for name in (*self.outputs, *named))
            raise CommandError(
                f"{self.job} left nothing at {path}.",
                hint=f"There are: {there}." if there else f"%aml_runs show {self.job} tells where its files are.",
            )
        return self._own(whole), f"{whole}/MLmodel" in files

    def only(self) -> tuple[str, bool | None]:
        """The same of the only model that there is."""
        if self.outputs:
            return self.at(f"outputs/{only([*self.outputs], self.job).removeprefix('outputs/')}")
        files = self.files("outputs/") or []
        paths = {str(PurePosixPath(file).parent) for file in files if file.endswith("/MLmodel")}
        if not paths and _there(files, "outputs/model"):
            paths = {"outputs/model"}
        names = {path: f"outputs/{name}" for name, path in self.named(files).items()}
        models = {names.get(path, path): path for path in paths}
        path = models[only(models, self.job)]
        return self._own(path), f"{path}/MLmodel" in files

    def named(self, files: Sequence[str]) -> dict[str, str]:
        """Paths of models by the name that the script gave them, as the agent's journal has it.

        MLflow 3 keeps a logged model under an id of its own; the last of a name counts.
        """
        if not any(file.startswith(f"{_MODELS}/") for file in files):
            return {}
        found: dict[str, str] = {}
        for file in artifacts.listing(self.call, self.place, self.job, [_JOURNAL]):
            for line in file.read().splitlines():
                if b'"op":"logged-models"' in line:
                    made = json.loads(line)["a"]
                    found[str(made["name"])] = f"{_MODELS}/{made['id']}/artifacts"
        return {name: path for name, path in found.items() if _there(files, path)}

    def _own(self, path: str) -> str:
        return f"azureml://jobs/{self.job}/outputs/artifacts/paths/{path}"


def _there(files: Sequence[str], path: str) -> bool:
    """Whether there is such a file, or such a folder."""
    return any(file == path or file.startswith(f"{path}/") for file in files)


def _logged(files: Sequence[str], below: str) -> str:
    """Where MLflow's artifact `below` of the job's run is: the agent keeps it as ``runs/ID/artifacts/...``."""
    for file in files:
        found = re.match(rf"(outputs/(?:.*/)?runs/[^/]+/artifacts/{re.escape(below)})(?:/|$)", file)
        if found is not None:
            return found[1]
    return ""


def _versions(place: Workspace, name: str) -> list[dict[str, Any]]:
    path = f"models/{name}/versions"
    answer = place.arm.get(path, api=http.ARM, ok=(200, 404), act=f"list the versions of {name}")
    if answer.status == 404:
        return []
    items = list((answer.json or {}).get("value") or [])
    if following := (answer.json or {}).get("nextLink"):
        items += place.arm.pages(following)
    rows = [_row(name, item) for item in items if not (item.get("properties") or {}).get("isArchived")]
    return sorted(rows, key=_newest)


def _newest(row: Mapping[str, Any]) -> tuple[int, int, float]:
    """Numbers first, the highest first; versions with words by time."""
    version = str(row["version"])
    return (0, -int(version), 0.0) if version.isdigit() else (1, 0, -float(row["created"]))


def _row(name: str, item: Mapping[str, Any]) -> dict[str, Any]:
    properties = item.get("properties") or {}
    return {
        "name": name,
        "version": str(item["name"]),
        "type": str(properties.get("modelType") or ""),
        "run": str(properties.get("jobName") or ""),
        "path": str(properties.get("modelUri") or ""),
        "created": history.unix((item.get("systemData") or {}).get("createdAt")) or 0.0,
        "description": str(properties.get("description") or ""),
        "tags": {str(key): str(value) for key, value in (properties.get("tags") or {}).items()},
    }


def _fetched(call: ServiceCall, place: Workspace, row: Mapping[str, Any], new: Path) -> Path:
    """Fetch a model's files below `new`; returns the folder that holds them.

    By ourselves where its address says where it is: the SDK takes every file whose path only begins like the
    model's, and of a model whose address names a job it finds none. Else by the SDK.
    """
    if (address := _stored(place, str(row["path"]))) is not None:
        store, path = address
        root = path.rpartition("/")[0]
        found = list(artifacts.stored(call, place, store, f"{path}/", [""]))
        found = found or [
            item
            for item in artifacts.stored(call, place, store, f"{root}/" if root else "", [path[len(root) :].strip("/")])
            if item.path == path.rpartition("/")[2]
        ]
        if not found:
            raise CommandError(
                f"The files of {row['name']}:{row['version']} are gone: {row['path']}.", hint="Register it again."
            )
        artifacts.fetched(call, found, str(new))
        return new
    try:
        sdk.client(call.cloud, place).models.download(str(row["name"]), str(row["version"]), download_path=new)
    except Exception as error:
        raise _plain(error, place) from error
    return _innermost(new, str(row["name"]), str(row["path"]))


def _stored(place: Workspace, uri: str) -> tuple[str, str] | None:
    """Datastore and path of a model's address; ``None`` for one that only the SDK may know."""
    if (found := _OF_JOB.fullmatch(uri)) is not None:
        if found["output"] in ("artifacts", "default"):
            return artifacts.STORE, f"ExperimentRun/dcid.{found['job']}/{found['path'] or ''}".rstrip("/")
        job = place.arm.get(f"jobs/{found['job']}", api=http.ARM, act=f"look at job {found['job']}").json or {}
        output = (job["properties"].get("outputs") or {}).get(found["output"]) or {}
        kept = str(output.get("uri") or "") or _asset(place, found["job"], found["output"])
        uri = f"{kept.rstrip('/')}/{found['path'] or ''}"
    found = _OF_STORE.fullmatch(uri)
    return None if found is None else (found["store"], found["path"].rstrip("/"))


def _asset(place: Workspace, job: str, output: str) -> str:
    """Where a job's named output lies by the data asset that the service makes of it; empty where there is none."""
    path = f"data/azureml_{job}_output_data_{output}/versions/1"
    answer = place.arm.get(path, api=http.ARM, ok=(200, 404), act=f"look for the output {output} of {job}")
    return str(((answer.json or {}).get("properties") or {}).get("dataUri") or "") if answer.status == 200 else ""


def _innermost(new: Path, name: str, uri: str) -> Path:
    """The folder with the model's files: the SDK makes ``<name>/<last part of the address>/`` of it."""
    place = new / name if (new / name).is_dir() else new
    inner = place / uri.rstrip("/").rpartition("/")[2]
    return inner if inner.is_dir() and len(list(place.iterdir())) == 1 else place


def _plain(error: Exception, place: Workspace) -> Exception:
    return errors.of_exception(error, place.name) or error
