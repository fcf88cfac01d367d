"""The project's model registry: register files of a run, list models, download them."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_amltrain.errors import CommandError, UnknownModel
from jupyter_amltrain.schema.run_file import RunFile, models_of
from jupyter_amltrain.state_dir import locked, project_store, read_json
from jupyter_amltrain.tracking import importer
from jupyter_amltrain.tracking.copies import copy_file, copy_tree
from jupyter_amltrain.tracking.mlflow_store import TrackingStore, local_folder
from jupyter_amltrain.tracking.registrations import (
    HANDLE,
    ORIGIN,
    PATH,
    TYPE,
    ensure_model,
    opened_registry,
    set_version_tags,
    versions_of,
)


def path_in_run(path: str) -> str:
    """Return the path below the outputs of a run: ``outputs/model`` -> ``model``.

    Raises
    ------
    CommandError
        The path leads out of the run, or names all of it.
    """
    normal = posixpath.normpath(path.replace(os.sep, "/"))
    below = normal.removeprefix("outputs/")
    if normal.startswith("/") or ".." in normal.split("/") or below in (".", "", "outputs"):
        raise CommandError(f"--path {path}: not a path within the run.", hint="Try: --path outputs/model")
    return below


def only_model(found: Collection[str], run: str, files: Sequence[str] = ()) -> str:
    """Return the only model of a run.

    Parameters
    ----------
    files
        Files of the run that are no models; the error names some of them.

    Raises
    ------
    CommandError
        The run has no model, or several; their paths are named.
    """
    if len(found) == 1:
        return next(iter(found))
    if found:
        raise CommandError(
            f"{run} has {len(found)} models: {', '.join(sorted(found)[:5])}.", hint=f"Choose one: --path {min(found)}"
        )
    if files:
        more = f" and {len(files) - 5} more" if len(files) > 5 else ""
        raise CommandError(
            f"No model found in {run}. Its files: {', '.join(files[:5])}{more}.",
            hint=f"Choose one: --path {files[0]}",
        )
    raise CommandError(
        f"No model found in {run}: it has written no files.",
        hint="Write the model to os.environ['AML_OUTPUT_DIR'], or log it with MLflow.",
    )


def folder_size(folder: Path) -> dict[str, int]:
    """Return ``files`` and ``bytes`` below a folder."""
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return {"files": len(sizes), "bytes": sum(sizes)}


def rename_into_place(new: Path, to: Path) -> None:
    """Rename a filled folder to its final name; an empty folder of that name is replaced.

    Raises
    ------
    CommandError
        Something else has that name.
    """
    try:
        if to.is_dir():
            to.rmdir()  # only an empty one
        elif to.exists():
            raise FileExistsError
        os.rename(new, to)
    except OSError as error:
        raise CommandError(
            f"{to} already exists and is not overwritten.", hint="Choose another folder: --to FOLDER"
        ) from error


def find_version(rows: Sequence[Mapping[str, Any]], name: str, version: str, where: str) -> Mapping[str, Any]:
    """Return the row of a model; the newest version if none is given.

    Raises
    ------
    UnknownModel
        No such model or version; close matches are named.
    """
    versions = [row for row in rows if row["name"] == name]
    if not versions:
        import difflib

        names = list(dict.fromkeys(str(row["name"]) for row in rows))
        near = difflib.get_close_matches(name, names, 2, 0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else "%aml_model list shows them."
        raise UnknownModel(f"There is no model {name!r} in {where}.", hint=hint)
    if not version:
        return versions[0]
    for row in versions:
        if row["version"] == version:
            return row
    existing = ", ".join(row["version"] for row in versions[:5])
    raise UnknownModel(f"Model {name!r} has no version {version} in {where}.", hint=f"There are: {existing}.")


def register(
    run_dir: str,
    project: str,
    *,
    handle: str,
    name: str,
    path: str = "",
    kind: str = "",
    description: str = "",
    tags: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Create a model version from files of a run; files of the run folder are copied into the project's store.

    Parameters
    ----------
    path
        ``outputs/model``: an output of the run, an artifact or a logged model. Empty takes the only one.
    kind
        ``mlflow_model`` or ``custom_model``; empty checks for an ``MLmodel`` file.

    Raises
    ------
    CommandError
        There is no such file or folder, or it is not an MLflow model.
    """
    importer.import_run(run_dir, project, handle=handle)
    job = read_json(Path(run_dir) / "job.json")
    if (job.get("tracking") or {}).get("mode") == "direct":
        raise CommandError(
            f"{handle} logs to its own tracking server, and its models are there.", hint="Register them there."
        )
    with _store(project) as (store, registry):
        run = _Run(store, Path(run_dir), job, handle)
        files, source, run_id = run.model(path)
        is_mlflow = (files / "MLmodel").is_file()
        kind = kind or ("mlflow_model" if is_mlflow else "custom_model")
        if kind == "mlflow_model" and not is_mlflow:
            raise CommandError(
                f"{path or source.name} of {handle} has no MLmodel file, so it is not an MLflow model.",
                hint="Try: --type custom_model",
            )
        stored = run.store_files(files, source)
        ensure_model(registry, name)
        created = registry.create_model_version(name, stored.as_uri(), run_id, description=description or None)
        version = str(int(created.version))
        set_version_tags(registry, name, version, {**(tags or {}), TYPE: kind, HANDLE: handle, PATH: str(source)})
        return {"name": name, "version": version, "type": kind, "path": str(stored), "run": handle}


def list_models(project: str) -> list[dict[str, Any]]:
    """Return every version of every model of a project, by name, newest version first."""
    if not (project_store(project) / "mlflow.db").exists():
        return []
    with _store(project) as (_, registry):
        rows = [_row(version) for version in versions_of(registry, "")]
    return sorted(rows, key=lambda row: (row["name"].lower(), -int(row["version"])))


def download(project: str, name: str, version: str, folder: str) -> dict[str, Any]:
    """Copy the files of a model into a new or empty folder.

    Parameters
    ----------
    version
        Empty for the newest.

    Raises
    ------
    UnknownModel
        No such model or version; close matches are named.
    CommandError
        The folder is not empty, or the files were removed.
    """
    rows = list_models(project)
    row = find_version(rows, name, version, "this folder's project")
    files = Path(row["path"])
    if not files.exists():
        raise CommandError(f"The files of {name}:{row['version']} were removed: {files}.", hint="Register it again.")
    to = Path(folder)
    new = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        if files.is_dir():
            copy_tree(files, new, lambda _: None)
        else:
            new.mkdir(parents=True)
            copy_file(files, new / files.name)
        rename_into_place(new, to)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return {"name": name, "version": row["version"], "folder": str(to), **folder_size(to)}


# ---- the store


@contextlib.contextmanager
def _store(project: str) -> Iterator[tuple[TrackingStore, Any]]:
    """Open the tracking store and registry of a project, under the lock of the importer."""
    lock = project_store(project) / "import.lock"
    with locked(lock, importer.LOCK_TIMEOUT_S), TrackingStore(project) as store, opened_registry(project) as registry:
        yield store, registry


def _row(version: Any) -> dict[str, Any]:
    files = local_folder(str(version.source or ""))
    tags = dict(version.tags)
    return {
        "name": version.name,
        "version": str(version.version),
        "type": tags.pop(TYPE, ""),
        "run": tags.pop(HANDLE, ""),
        "path": str(files or version.source or ""),
        "created": (version.creation_timestamp or 0) / 1000,
        "description": version.description or "",
        "tags": {key: value for key, value in tags.items() if key not in (PATH, ORIGIN)},
    }


class _Run:
    """Models of a run: outputs in its folder, artifacts and logged models in the store.

    Includes nested runs: a script that loops over ``mlflow.start_run()`` logs its
    models to the run and its children. A child's model is named ``<name of the child>/<name>``.
    """

    def __init__(self, store: TrackingStore, folder: Path, job: Mapping[str, Any], handle: str) -> None:
        self.store, self.folder, self.job, self.handle = store, folder, job, handle
        self.run_id = str(job["tracking"]["run_id"])
        info = store.mlflow.get_run(self.run_id).info
        self.experiment = str(info.experiment_id)
        #: Artifacts of the run and of its descendants, by the prefix of their paths.
        self.artifacts: dict[str, Path] = {}
        #: Ids of these runs, by the same prefix.
        self.runs: dict[str, str] = {}
        with store.rows() as rows:
            for run_id in (self.run_id, *rows.descendants(self.run_id)):
                row = rows.run(run_id)
                if row is None:
                    continue
                prefix = "" if run_id == self.run_id else str(row.name or run_id).strip("/") + "/"
                if prefix in self.runs:
                    prefix = f"{prefix[:-1]}-{run_id[:8]}/"
                self.runs[prefix] = run_id
                self.artifacts[prefix] = local_folder(str(row.artifact_uri)) or Path(os.devnull)

    def model(self, path: str) -> tuple[Path, Path, str]:
        """Return the files' path, their path within the run, and the id of the (nested) run."""
        if path:
            return self._at(path)
        models = {f"outputs/{name}": (self.folder / "outputs" / name, self.run_id) for name in self._outputs()}
        models = {name: model for name, model in models.items() if model[0].is_dir() and any(model[0].iterdir())}
        models = models or {f"outputs/{name}": model for name, model in self._logged().items()}
        models = models or {
            f"outputs/{prefix}{file.parent.relative_to(folder)}": (file.parent, self.runs[prefix])
            for prefix, folder in self.artifacts.items()
            for file in folder.rglob("MLmodel")
        }
        files = self._files()
        models = models or {path: (self.folder / path, self.run_id) for path in models_of(files)}
        name = only_model(models, self.handle, [file.path for file in files])
        return models[name][0], Path(name), models[name][1]

    def _at(self, path: str) -> tuple[Path, Path, str]:
        below = path_in_run(path)
        source = Path("outputs") / below
        if (self.folder / source).exists():
            return self.folder / source, source, self.run_id
        for prefix, folder in self.artifacts.items():
            if below.startswith(prefix) and (folder / below[len(prefix) :]).exists():
                return folder / below[len(prefix) :], source, self.runs[prefix]
        logged = self._logged()
        if below in logged:
            return logged[below][0], source, logged[below][1]
        existing = [f"outputs/{name}" for name in (*self._outputs(), *logged)] or [file.path for file in self._files()]
        hint = f"Available: {', '.join(existing[:5])}." if existing else f"See: %aml_runs files {self.handle}"
        raise CommandError(f"{self.handle} has no files at {path}.", hint=hint)

    def _files(self) -> list[RunFile]:
        """Return the files in the run's ``outputs/``."""
        outputs = self.folder / "outputs"
        files = sorted(file for file in outputs.rglob("*") if file.is_file())
        return [RunFile(path=f"outputs/{file.relative_to(outputs).as_posix()}", size=0) for file in files]

    def _outputs(self) -> list[str]:
        return sorted((self.job.get("spec") or {}).get("outputs") or {})

    def _logged(self) -> dict[str, tuple[Path, str]]:
        """Return models that MLflow 3 logged in the run and its children, by name; the last of each name."""
        models: dict[str, tuple[Path, str]] = {}
        with self.store.rows() as rows:
            for prefix, run_id in self.runs.items():
                for row in rows.models_of(run_id):
                    folder = local_folder(str(row.artifact_location))
                    if folder is not None and folder.is_dir():
                        models[f"{prefix}{row.name}"] = (folder, run_id)
        return models

    def store_files(self, files: Path, source: Path) -> Path:
        """Copy files of the run's folder to the run's artifacts, so that they survive it; return their path."""
        if self.folder.resolve() not in files.resolve().parents:
            return files
        to = self.artifacts[""] / source
        if files.is_dir():
            copy_tree(files, to, lambda _: None)
        else:
            to.parent.mkdir(parents=True, exist_ok=True)
            copy_file(files, to)
        return to
