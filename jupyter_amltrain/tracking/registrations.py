"""Writes to the project's model registry, among them what a job itself has registered.

A job registers with ``registered_model_name=`` or ``mlflow.register_model``; its sink journals the calls
(:mod:`jupyter_amltrain.agent.mlflow.sink_registry`). They are repeated here once the files are in the store.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from jupyter_amltrain.agent import testing
from jupyter_amltrain.agent.mlflow.sink_registry import CHANGES
from jupyter_amltrain.tracking import mlflow_private
from jupyter_amltrain.tracking.mlflow_store import TrackingStore, database_uri

#: Tags of a version: model type, handle of the run, and path in the run.
TYPE, HANDLE, PATH = "amltrain.model_type", "amltrain.handle", "amltrain.path"
#: Hidden tag of a version: the run and the number of the journal record that created it.
ORIGIN = "mlflow.amltrain.registered_by"
#: Hidden tag of a run: number of the last of its records that is in the registry.
CURSOR = "mlflow.amltrain.registry_cursor"

#: Artifacts of a run or of a logged model, as the job named them.
_OWN = re.compile(r"/(?P<kind>runs|models)/(?P<id>[^/]+)/artifacts(?P<below>/.*)?$")
_MODEL = re.compile(r"models:/(?P<id>m-[^/@]+)(?P<below>)$")
_REMOTE = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.I)


class ReplayedRun(Protocol):
    """A run whose journal was repeated in the project's store.

    Attributes
    ----------
    registrations
        Journal records of its calls to the model registry.
    store
        MLflow's store of the project.
    result
        Result of the import, to which notes are added.
    """

    registrations: list[dict[str, Any]]
    store: TrackingStore
    run_id: str
    result: dict[str, Any]


@contextlib.contextmanager
def opened_registry(project: str) -> Iterator[Any]:
    """Open the model registry of a project; the lock of the importer is held."""
    registry = mlflow_private.open_registry(database_uri(project))
    try:
        yield registry
    finally:
        mlflow_private.close(registry)


def ensure_model(registry: Any, name: str, description: str = "", tags: dict[str, str] | None = None) -> None:
    """Create a registered model, unless there is one of that name."""
    from mlflow.entities import model_registry
    from mlflow.exceptions import MlflowException

    entities: Any = model_registry  # has no types
    try:
        registry.get_registered_model(name)
    except MlflowException:
        pairs = [entities.RegisteredModelTag(key, value) for key, value in (tags or {}).items()]
        registry.create_registered_model(name, tags=pairs, description=description or None)


def set_version_tags(registry: Any, name: str, version: str, tags: Mapping[str, str]) -> None:
    """Set tags of a model version."""
    from mlflow.entities import model_registry

    tag: Any = model_registry.ModelVersionTag  # has no types
    for key, value in tags.items():
        registry.set_model_version_tag(name, version, tag(key, value))


def versions_of(registry: Any, filter_string: str) -> Iterator[Any]:
    """Yield model versions that match a filter."""
    token = None
    while True:
        page = registry.search_model_versions(filter_string, max_results=500, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def repeat_registrations(replay: ReplayedRun, project: str, handle: str) -> None:
    """Register what the job has registered and the project's registry does not have yet.

    Each record is repeated once, so that what the user changes later stays. One that cannot be
    repeated gets a note and stops no other.
    """
    records = [record for record in replay.registrations if record["op"] in CHANGES]
    if not records:
        return
    with opened_registry(project) as registry:
        job = _JobRegistrations(replay, registry, handle)
        for record in records:
            job.repeat(record)
        job.save_cursor(records[-1]["seq"])


class _JobRegistrations:
    """The registrations of one job; versions of the job and of the registry differ."""

    def __init__(self, replay: ReplayedRun, registry: Any, handle: str) -> None:
        self._replay, self._store, self._registry = replay, replay.store, registry
        self._handle = handle
        self._cursor = self._read_cursor()
        #: The registry's version by model and the job's version.
        self._versions: dict[tuple[str, str], str] = {}

    def _read_cursor(self) -> int:
        with self._store.rows() as rows:
            text = rows.tag(self._replay.run_id, CURSOR) or ""
        return int(text) if text.isdecimal() else 0

    def save_cursor(self, seq: int) -> None:
        """Write down that the records up to `seq` are in the registry."""
        with self._store.rows() as rows:
            rows.set_tag(self._replay.run_id, CURSOR, str(seq))
            rows.commit()

    def repeat(self, record: dict[str, Any]) -> None:
        """Repeat one record, unless the registry has it."""
        from mlflow.exceptions import MlflowException

        op, body = record["op"], record["b"]
        try:
            if op == "model-versions/create":
                self._create(record)
            elif record["seq"] > self._cursor:
                self._change(op, body)
        except (MlflowException, KeyError, TypeError, ValueError, AttributeError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            self._replay.result["notes"].append(f"model {body.get('name')!r} was not registered: {lines[0]}")

    def _create(self, record: dict[str, Any]) -> None:
        from mlflow.entities import model_registry

        body, name = record["b"], str(record["b"]["name"])
        origin = f"{self._replay.run_id}/{record['seq']}"
        number = (record.get("a") or {}).get("version")
        for version in versions_of(self._registry, f"name = '{_quoted(name)}'"):
            if version.tags.get(ORIGIN) == origin:
                self._versions[name, str(number)] = str(version.version)
                return
        if record["seq"] <= self._cursor:
            return  # the user has deleted it
        run_id, model_id, source, files = self._source(body)
        ensure_model(self._registry, name)
        tags = {str(tag["key"]): str(tag.get("value") or "") for tag in body.get("tags") or []}
        tags.update({ORIGIN: origin, HANDLE: self._handle})
        tags[TYPE] = "mlflow_model" if files is None or (files / "MLmodel").is_file() else "custom_model"
        entities: Any = model_registry  # has no types
        more = {"model_id": model_id} if model_id and self._store.has_logged_models else {}
        created = self._registry.create_model_version(
            name,
            source,
            run_id,
            tags=[entities.ModelVersionTag(key, value) for key, value in tags.items()],
            description=body.get("description") or None,
            **more,
        )
        testing.hit("import_after_model")
        self._versions[name, str(number)] = str(created.version)
        self._replay.result["notes"].append(f"registered as {name} version {created.version}")

    def _source(self, body: dict[str, Any]) -> tuple[str, str, str, Path | None]:
        """Return run, logged model, place and folder of a version's files in the store; no folder if it is elsewhere.

        Raises
        ------
        ValueError
            The files are not among the job's artifacts: a job must not name other files of this machine.
        """
        source, run_id = str(body["source"]), str(body.get("run_id") or "")
        found = _MODEL.match(source) or _OWN.search(source)
        if found is None:
            if _REMOTE.match(source):
                return run_id or self._replay.run_id, "", source, None
            raise ValueError("its files are not among the artifacts of the run. Log it with log_model")
        kind = "models" if source.startswith("models:/") else found["kind"]
        folder = self._store.folder_of(kind, found["id"])
        with self._store.rows() as rows:
            owner = found["id"]
            if kind == "models":
                owner = str(getattr(rows.model(owner), "source_run_id", "") or "")
            own = {self._replay.run_id, *rows.descendants(self._replay.run_id)}
        if folder is None or owner not in own:
            raise ValueError("the run has no such artifacts")
        files = (folder / (found["below"] or "").strip("/")).resolve()
        if not files.is_relative_to(folder.resolve()) or not files.exists():
            raise ValueError("the run has no such artifacts")
        return run_id if run_id in own else owner, found["id"] if kind == "models" else "", files.as_uri(), files

    def _change(self, op: str, body: dict[str, Any]) -> None:
        from mlflow.entities import model_registry

        entities: Any = model_registry  # has no types
        registry, name = self._registry, str(body["name"])
        if op == "registered-models/create":
            tags = {str(tag["key"]): str(tag.get("value") or "") for tag in body.get("tags") or []}
            ensure_model(registry, name, str(body.get("description") or ""), tags)
        elif op == "registered-models/update":
            registry.update_registered_model(name, body.get("description"))
        elif op == "registered-models/set-tag":
            registry.set_registered_model_tag(name, entities.RegisteredModelTag(body["key"], body.get("value") or ""))
        elif op == "registered-models/delete-tag":
            registry.delete_registered_model_tag(name, body["key"])
        elif op == "registered-models/delete-alias":
            registry.delete_registered_model_alias(name, body["alias"])
        else:
            version = self._versions[name, str(body["version"])]
            if op == "registered-models/alias":
                registry.set_registered_model_alias(name, body["alias"], version)
            elif op == "model-versions/update":
                registry.update_model_version(name, version, body.get("description"))
            elif op == "model-versions/transition-stage":
                archive = bool(body.get("archive_existing_versions"))
                registry.transition_model_version_stage(name, version, body["stage"], archive)
            elif op == "model-versions/set-tag":
                tag = entities.ModelVersionTag(body["key"], body.get("value") or "")
                registry.set_model_version_tag(name, version, tag)
            else:
                registry.delete_model_version_tag(name, version, body["key"])


def _quoted(name: str) -> str:
    return name.replace("'", "''")
