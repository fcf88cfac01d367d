"""The project's model registry: register what a run left behind, list it, copy it out again."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_amltrain.errors import CommandError, UnknownModel
from jupyter_amltrain.state_dir import locked, project_store, read_json
from jupyter_amltrain.tracking import importer
from jupyter_amltrain.tracking.copies import copy_file, copy_tree, local_folder
from jupyter_amltrain.tracking.store import TrackingStore, database_uri


def path_in_run(path: str) -> str:
    """``outputs/model`` -> ``model``: a path below the outputs of a run.

    Raises
    ------
    CommandError
        It leads out of the run, or to all of it.
    """
    asked = posixpath.normpath(path.replace(os.sep, "/"))
    below = asked.removeprefix("outputs/")
    if asked.startswith("/") or ".." in asked.split("/") or below in (".", "", "outputs"):
        raise CommandError(f"--path {path}: it is a path within the run.", hint="Try: --path outputs/model")
    return below


def only(found: Collection[str], run: str) -> str:
    """The one model that a run left.

    Raises
    ------
    CommandError
        There is none, or more than one; their paths are named.
    """
    if len(found) == 1:
        return next(iter(found))
    if found:
        raise CommandError(
            f"{run} left {len(found)} models: {', '.join(sorted(found)[:5])}.", hint=f"Say which: --path {min(found)}"
        )
    raise CommandError(
        f"{run} left no model: no output, and none logged by MLflow.",
        hint="Name its files: --path outputs/model. A script writes them to $AML_OUTPUT_MODEL (--output model).",
    )


def counted(folder: Path) -> dict[str, int]:
    """``files`` and ``bytes`` below a folder."""
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return {"files": len(sizes), "bytes": sum(sizes)}


def settle(new: Path, to: Path) -> None:
    """Give a filled folder its name, which may be an empty folder's.

    Raises
    ------
    CommandError
        There is something at that name.
    """
    try:
        if to.is_dir():
            to.rmdir()  # only an empty one
        elif to.exists():
            raise FileExistsError
        os.rename(new, to)
    except OSError as error:
        raise CommandError(
            f"{to} is there already, and nothing is overwritten.", hint="Name another folder: --to FOLDER"
        ) from error


def chosen(rows: Sequence[Mapping[str, Any]], name: str, version: str, where: str) -> Mapping[str, Any]:
    """The row of a model; the newest where no version is given.

    Raises
    ------
    UnknownModel
        Near matches are named.
    """
    mine = [row for row in rows if row["name"] == name]
    if not mine:
        import difflib

        names = list(dict.fromkeys(str(row["name"]) for row in rows))
        near = difflib.get_close_matches(name, names, 2, 0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else "%aml_model list shows them."
        raise UnknownModel(f"There is no model {name!r} in {where}.", hint=hint)
    if not version:
        return mine[0]
    for row in mine:
        if row["version"] == version:
            return row
    there = ", ".join(row["version"] for row in mine[:5])
    raise UnknownModel(f"Model {name!r} has no version {version} in {where}.", hint=f"There are: {there}.")


#: Tags of a version: what it is, which run it is of, and where in the run it was.
TYPE, HANDLE, PATH = "amltrain.model_type", "amltrain.handle", "amltrain.path"


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
    """Make a version of a model of files that a run left; they are copied into the project's store.

    Parameters
    ----------
    path
        ``outputs/model``: an output of the run, an artifact or a logged model. Empty takes the only one there is.
    kind
        ``mlflow_model`` or ``custom_model``; empty looks whether there is an ``MLmodel`` file.

    Raises
    ------
    CommandError
        There is no such file or folder, or it is no MLflow model.
    """
    importer.import_run(run_dir, project, handle=handle)
    job = read_json(Path(run_dir) / "job.json")
    if (job.get("tracking") or {}).get("mode") == "direct":
        raise CommandError(
            f"{handle} logs to its own tracking server, and its models are there.", hint="Register them there."
        )
    with _store(project) as (store, registry):
        found = _Run(store, Path(run_dir), job, handle)
        place, source, run_id = found.model(path)
        kind = kind or ("mlflow_model" if (place / "MLmodel").is_file() else "custom_model")
        if kind == "mlflow_model" and not (place / "MLmodel").is_file():
            raise CommandError(
                f"{path or source.name} of {handle} has no MLmodel file, so it is no MLflow model.",
                hint="Try: --type custom_model",
            )
        kept = found.kept(place, source)
        version = _version(registry, name, kept, run_id, description)
        marks = {**(tags or {}), TYPE: kind, HANDLE: handle, PATH: str(source)}
        from mlflow.entities import model_registry

        tag: Any = model_registry.ModelVersionTag  # has no types
        for key, value in marks.items():
            registry.set_model_version_tag(name, str(version), tag(key, value))
        return {"name": name, "version": str(version), "type": kind, "path": str(kept), "run": handle}


def list_models(project: str) -> list[dict[str, Any]]:
    """Every version of every model of a project, by name, newest version first."""
    if not (project_store(project) / "mlflow.db").exists():
        return []
    with _store(project) as (_, registry):
        rows = [_row(version) for version in _versions(registry, "")]
    return sorted(rows, key=lambda row: (row["name"].lower(), -int(row["version"])))


def download(project: str, name: str, version: str, folder: str) -> dict[str, Any]:
    """Copy the files of a model into a folder that is not there yet, or empty.

    Parameters
    ----------
    version
        Empty for the newest.

    Raises
    ------
    UnknownModel
        There is none of that name and version; near matches are named.
    CommandError
        The folder has something in it, or the files are gone.
    """
    rows = list_models(project)
    row = chosen(rows, name, version, "this folder's project")
    place = Path(row["path"])
    if not place.exists():
        raise CommandError(f"The files of {name}:{row['version']} are gone: {place}.", hint="Register it again.")
    to = Path(folder)
    new = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        if place.is_dir():
            copy_tree(place, new, lambda _: None)
        else:
            new.mkdir(parents=True)
            copy_file(place, new / place.name)
        settle(new, to)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return {"name": name, "version": row["version"], "folder": str(to), **counted(to)}


# ---- the store


@contextlib.contextmanager
def _store(project: str) -> Iterator[tuple[TrackingStore, Any]]:
    """Tracking store and registry of a project, under the lock of the importer."""
    from mlflow.store.model_registry import sqlalchemy_store

    place = project_store(project)
    with locked(place / "import.lock", importer.LOCK_TIMEOUT), TrackingStore(project) as store:
        opened: Any = sqlalchemy_store.SqlAlchemyStore
        registry = opened(database_uri(project))
        try:
            yield store, registry
        finally:
            registry.engine.dispose()


def _version(registry: Any, name: str, kept: Path, run_id: str, description: str) -> int:
    from mlflow.exceptions import MlflowException

    try:
        registry.get_registered_model(name)
    except MlflowException:
        registry.create_registered_model(name)
    made = registry.create_model_version(name, kept.as_uri(), run_id, description=description or None)
    return int(made.version)


def _versions(registry: Any, wanted: str) -> Iterator[Any]:
    token = None
    while True:
        page = registry.search_model_versions(wanted, max_results=500, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _row(version: Any) -> dict[str, Any]:
    place = local_folder(str(version.source or ""))
    tags = dict(version.tags)
    return {
        "name": version.name,
        "version": str(version.version),
        "type": tags.pop(TYPE, ""),
        "run": tags.pop(HANDLE, ""),
        "path": str(place or version.source or ""),
        "created": (version.creation_timestamp or 0) / 1000,
        "description": version.description or "",
        "tags": {key: value for key, value in tags.items() if key != PATH},
    }


class _Run:
    """What a run left: outputs in its folder, artifacts and logged models in the store.

    Those of nested runs, too: a script that loops over ``mlflow.start_run()`` logs its
    models to the run and its children. What a child left is called ``<name of the child>/<name>``.
    """

    def __init__(self, store: TrackingStore, folder: Path, job: Mapping[str, Any], handle: str) -> None:
        self.store, self.folder, self.job, self.handle = store, folder, job, handle
        self.run_id = str(job["tracking"]["run_id"])
        info = store.mlflow.get_run(self.run_id).info
        self.experiment = str(info.experiment_id)
        #: Artifacts of the run and of its descendants, by what their paths begin with.
        self.artifacts: dict[str, Path] = {}
        #: Which of these runs it is, by the same.
        self.runs: dict[str, str] = {}
        with store.session() as session:
            for run_id in (self.run_id, *store.descendants(session, self.run_id)):
                row = session.get(store.models.SqlRun, run_id)
                if row is None:
                    continue
                prefix = "" if run_id == self.run_id else str(row.name or run_id).strip("/") + "/"
                if prefix in self.runs:
                    prefix = f"{prefix[:-1]}-{run_id[:8]}/"
                self.runs[prefix] = run_id
                self.artifacts[prefix] = local_folder(str(row.artifact_uri)) or Path(os.devnull)

    def model(self, path: str) -> tuple[Path, Path, str]:
        """Where the files are, what they are called within the run, and the id of the (nested) run."""
        if path:
            return self._at(path)
        found = {f"outputs/{name}": (self.folder / "outputs" / name, self.run_id) for name in self._outputs()}
        found = {name: model for name, model in found.items() if model[0].is_dir() and any(model[0].iterdir())}
        found = found or {f"outputs/{name}": model for name, model in self._logged().items()}
        found = found or {
            f"outputs/{prefix}{file.parent.relative_to(place)}": (file.parent, self.runs[prefix])
            for prefix, place in self.artifacts.items()
            for file in place.rglob("MLmodel")
        }
        name = only(found, self.handle)
        return found[name][0], Path(name), found[name][1]

    def _at(self, path: str) -> tuple[Path, Path, str]:
        below = path_in_run(path)
        source = Path("outputs") / below
        if (self.folder / source).exists():
            return self.folder / source, source, self.run_id
        for prefix, place in self.artifacts.items():
            if below.startswith(prefix) and (place / below[len(prefix) :]).exists():
                return place / below[len(prefix) :], source, self.runs[prefix]
        logged = self._logged()
        if below in logged:
            return logged[below][0], source, logged[below][1]
        there = [f"outputs/{name}" for name in (*self._outputs(), *logged)]
        hint = f"There are: {', '.join(there[:5])}." if there else "%aml_runs show tells where its files are."
        raise CommandError(f"{self.handle} left nothing at {path}.", hint=hint)

    def _outputs(self) -> list[str]:
        return sorted((self.job.get("spec") or {}).get("outputs") or {})

    def _logged(self) -> dict[str, tuple[Path, str]]:
        """Models that MLflow 3 logged in the run and its children, by name; the last of one name."""
        if not self.store.has_logged_models:
            return {}
        found: dict[str, tuple[Path, str]] = {}
        with self.store.session() as session:
            table = self.store.models.SqlLoggedModel
            for prefix, run_id in self.runs.items():
                rows = session.query(table).filter_by(source_run_id=run_id)
                for row in rows.order_by(table.creation_timestamp_ms).all():
                    place = local_folder(str(row.artifact_location))
                    if place is not None and place.is_dir():
                        found[f"{prefix}{row.name}"] = (place, run_id)
        return found

    def kept(self, place: Path, source: Path) -> Path:
        """`place` where it outlives the run's folder: files of the folder are copied to the run's artifacts."""
        if self.folder.resolve() not in place.resolve().parents:
            return place
        to = self.artifacts[""] / source
        if place.is_dir():
            copy_tree(place, to, lambda _: None)
        else:
            to.parent.mkdir(parents=True, exist_ok=True)
            copy_file(place, to)
        return to
