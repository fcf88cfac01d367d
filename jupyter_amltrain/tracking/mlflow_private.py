"""All that this package uses of MLflow beside its public API: tables, engines, registries, handlers.

No public call of MLflow accepts a run id, and replaying through public calls is twenty times slower and not
repeatable (``log_outputs`` adds rows each time). So rows are written through MLflow's own ORM classes, which are the
same in all versions of :data:`TESTED` except for the tables of logged models. ``tests/tracking/test_mlflow_private.py``
fails when a version moves any of it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

#: Oldest and newest version of MLflow with which all of this was tested.
TESTED = ("2.20", "3.17")

#: The module whose import takes longest.
STORE = "mlflow.store.tracking.sqlalchemy_store"

#: Milliseconds that a write waits for MLflow's own server.
BUSY_MS = 30_000

Row = dict[str, Any]


# ---- the database


def open_tracking(uri: str, artifacts: str) -> Any:
    """Open MLflow's tracking store of a database; it is created or refused by its schema."""
    from mlflow.store.tracking import sqlalchemy_store

    opened: Any = sqlalchemy_store.SqlAlchemyStore
    return opened(uri, artifacts)


def open_registry(uri: str) -> Any:
    """Open MLflow's model registry of a database."""
    from mlflow.store.model_registry import sqlalchemy_store

    opened: Any = sqlalchemy_store.SqlAlchemyStore
    return opened(uri)


def close(store: Any) -> None:
    """Close the connections of an open store: MLflow keeps engines forever, even of a file that was removed."""
    store.engine.dispose()


def forget(uri: str) -> None:
    """Close MLflow's engine of a database, whether or not opening it worked."""
    from mlflow.store.tracking import sqlalchemy_store

    for name in ("_engine_map", "_db_uri_sql_alchemy_engine_map"):  # MLflow 3.x, 2.x
        engine = getattr(sqlalchemy_store.SqlAlchemyStore, name, {}).pop(uri, None)
        if engine is not None:
            engine.dispose()


def has_logged_models() -> bool:
    """Return whether this MLflow (3.x) has tables for logged models."""
    return hasattr(_tables(), "SqlLoggedModel")


def _tables() -> Any:
    from mlflow.store.tracking.dbmodels import models

    return models


class Rows:
    """Rows of a store in one transaction; a context manager, which keeps only what was committed.

    Parameters
    ----------
    store
        From :func:`open_tracking`.
    """

    def __init__(self, store: Any) -> None:
        import sqlalchemy
        from sqlalchemy.orm import Session

        self._tables = _tables()
        self._session = Session(store.engine)
        self._session.execute(sqlalchemy.text(f"PRAGMA busy_timeout = {BUSY_MS}"))

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.close()

    def commit(self) -> None:
        """Commit the transaction."""
        self._session.commit()

    def flush(self) -> None:
        """Send the changes to the database, which checks them."""
        self._session.flush()

    def _get(self, table: str, key: Any) -> Any:
        return self._session.get(getattr(self._tables, table), key)

    def _add(self, table: str, **columns: Any) -> Any:
        row = getattr(self._tables, table)(**columns)
        self._session.add(row)
        self._session.flush()
        return row

    def _merge(self, table: str, **columns: Any) -> None:
        """Insert or replace one row by its primary key."""
        self._session.merge(getattr(self._tables, table)(**columns))

    # -- runs

    def run(self, run_id: Any) -> Any:
        """Return the row of a run, whose columns may be set; ``None`` without one."""
        return self._get("SqlRun", run_id)

    def add_run(self, run_id: str, experiment: int, name: str, start: int, user: str, artifacts: str) -> None:
        """Add a running run; `start` in ms since 1970."""
        self._add(
            "SqlRun",
            run_uuid=run_id,
            name=name,
            artifact_uri=artifacts,
            experiment_id=experiment,
            source_type="UNKNOWN",
            source_name="",
            entry_point_name="",
            user_id=user,
            status="RUNNING",
            start_time=start,
            end_time=None,
            deleted_time=None,
            source_version="",
            lifecycle_stage="active",
        )

    def descendants(self, run_id: str) -> list[str]:
        """Return the ids of the runs nested below a run, children before their own children."""
        tag = self._tables.SqlTag
        run_ids, parents = list[str](), [run_id]
        while parents:
            rows = self._session.query(tag).filter_by(key="mlflow.parentRunId").filter(tag.value.in_(parents))
            parents = sorted({str(row.run_uuid) for row in rows} - {run_id, *run_ids})
            run_ids += parents
        return run_ids

    def tag(self, run_id: str, key: str) -> str | None:
        """Return a tag of a run."""
        row = self._get("SqlTag", (key, run_id))
        return None if row is None else str(row.value)

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        """Set a tag of a run."""
        self._merge("SqlTag", key=key, run_uuid=run_id, value=value)

    def remove_tag(self, run_id: str, key: str) -> None:
        """Remove a tag of a run, if it has it."""
        row = self._get("SqlTag", (key, run_id))
        if row is not None:
            self._session.delete(row)
            self._session.flush()

    def has_param(self, run_id: str, key: str) -> bool:
        """Return whether a run has a parameter."""
        return self._get("SqlParam", (key, run_id)) is not None

    def set_param(self, run_id: str, key: str, value: str) -> None:
        """Set a parameter of a run."""
        self._merge("SqlParam", key=key, run_uuid=run_id, value=value)

    def set_experiment_tag(self, experiment: int, key: str, value: str) -> None:
        """Set a tag of an experiment."""
        self._merge("SqlExperimentTag", key=key, value=value, experiment_id=experiment)

    def remove_experiment_tag(self, experiment: int, key: str) -> None:
        """Remove a tag of an experiment, if it has it."""
        row = self._get("SqlExperimentTag", (key, experiment))
        if row is not None:
            self._session.delete(row)
            self._session.flush()

    # -- datasets and links

    def dataset(self, experiment: int, new_id: str, **columns: Any) -> str:
        """Return the id of a dataset by `name` and `digest`; it is added with `columns` if it is new."""
        table = self._tables.SqlDataset
        same = {"experiment_id": experiment, "name": columns["name"], "digest": columns["digest"]}
        row = self._session.query(table).filter_by(**same).first()
        if row is None:
            row = self._add("SqlDataset", dataset_uuid=new_id, experiment_id=experiment, **columns)
        return str(row.dataset_uuid)

    def link(self, new_id: str, ends: tuple[str, str, str, str], step: int = 0) -> str:
        """Return the id of a link between type and id of a source and of a destination; it is added if it is new."""
        row = self._get("SqlInput", ends)
        if row is None:
            names = ("source_type", "source_id", "destination_type", "destination_id")
            columns: Row = {"input_uuid": new_id, **dict(zip(names, ends, strict=True))}
            if hasattr(self._tables.SqlInput, "step"):  # MLflow 3.x
                columns["step"] = step
            row = self._add("SqlInput", **columns)
        return str(row.input_uuid)

    def set_link_tag(self, link: str, name: str, value: str) -> None:
        """Set a tag of a link."""
        self._merge("SqlInputTag", input_uuid=link, name=name, value=value)

    # -- metrics

    def add_points(self, rows: list[Row]) -> None:
        """Insert points of metrics that the store does not have: thousands in one statement."""
        self._insert("SqlMetric", rows)

    def add_model_points(self, rows: Iterable[Row]) -> None:
        """Insert points of the metrics of logged models that the store has."""
        rows = list(rows)
        known = {i for i in {row["model_id"] for row in rows} if self.model(i) is not None}
        self._insert("SqlLoggedModelMetric", [row for row in rows if row["model_id"] in known])

    def _insert(self, table: str, rows: list[Row]) -> None:
        import sqlalchemy

        if rows:
            target = getattr(self._tables, table).__table__
            self._session.execute(sqlalchemy.insert(target).prefix_with("OR IGNORE"), rows)

    def latest(self, run_id: str, key: str) -> Any:
        """Return the row with the current value of a metric; ``None`` without one."""
        return self._get("SqlLatestMetric", (key, run_id))

    def set_latest(self, run_id: str, key: str, columns: Row) -> None:
        """Set the current value of a metric."""
        self._merge("SqlLatestMetric", key=key, run_uuid=run_id, **columns)

    def points(self, run_id: str, key: str, step: int, timestamp: int) -> Iterator[Any]:
        """Yield the rows of the points of a metric at one step and time."""
        place = {"key": key, "run_uuid": run_id, "step": step, "timestamp": timestamp}
        yield from self._session.query(self._tables.SqlMetric).filter_by(**place)

    def has_metrics(self, run_id: str, prefix: str) -> bool:
        """Return whether a run has a metric whose name begins with `prefix`."""
        table = self._tables.SqlLatestMetric
        found = self._session.query(table).filter(table.run_uuid == run_id, table.key.like(prefix + "%"))
        return bool(found.count())

    def remove_metrics(self, run_id: str, prefix: str, keys: Sequence[str] | None = None) -> None:
        """Delete metrics of a run: `keys`, or all whose names begin with `prefix`."""
        import sqlalchemy

        self._session.flush()
        for name in ("SqlMetric", "SqlLatestMetric"):
            table = getattr(self._tables, name)
            of_run = sqlalchemy.delete(table).where(table.run_uuid == run_id)
            # SQLite takes a thousand variables in one statement
            chunks = [of_run.where(table.key.like(prefix + "%"))]
            if keys is not None:
                chunks = [of_run.where(table.key.in_(keys[i : i + 500])) for i in range(0, len(keys), 500)]
            for statement in chunks:
                self._session.execute(statement.execution_options(synchronize_session=False))
        self._session.expire_all()  # the session must not return deleted rows

    # -- logged models of MLflow 3.x

    def model(self, model_id: Any) -> Any:
        """Return the row of a logged model, whose columns may be set; ``None`` without one."""
        return self._get("SqlLoggedModel", model_id) if has_logged_models() else None

    def models_of(self, run_id: str) -> list[Any]:
        """Return the rows of the models that a run has logged, the oldest first."""
        if not has_logged_models():
            return []
        table = self._tables.SqlLoggedModel
        rows = self._session.query(table).filter_by(source_run_id=run_id)
        return list(rows.order_by(table.creation_timestamp_ms).all())

    def add_model(self, model_id: str, experiment: int, artifacts: str, created: int, **columns: Any) -> None:
        """Add a pending logged model; `created` in ms since 1970."""
        from mlflow.entities import LoggedModelStatus

        self._add(
            "SqlLoggedModel",
            model_id=model_id,
            experiment_id=experiment,
            artifact_location=artifacts,
            creation_timestamp_ms=created,
            last_updated_timestamp_ms=created,
            status=LoggedModelStatus.PENDING.to_int(),
            lifecycle_stage="active",
            **columns,
        )

    def set_model_status(self, row: Any, status: str, changed: int) -> None:
        """Set the status of a logged model by the word of MLflow's API, such as ``LOGGED_MODEL_READY``."""
        from mlflow.entities import LoggedModelStatus

        word = status.replace("LOGGED_MODEL_", "").replace("UPLOAD_", "")
        row.status = LoggedModelStatus(word).to_int()
        row.last_updated_timestamp_ms = changed

    def delete_model(self, row: Any, changed: int) -> None:
        """Mark a logged model as deleted, as MLflow does."""
        row.lifecycle_stage = "deleted"
        row.last_updated_timestamp_ms = changed

    def remove_model_tag(self, model_id: str, key: str) -> None:
        """Remove a tag of a logged model, if it has it."""
        row = self._get("SqlLoggedModelTag", (model_id, key))
        if row is not None:
            self._session.delete(row)

    def set_model_pair(self, kind: str, model_id: str, experiment: int, key: str, value: str) -> None:
        """Set a parameter or a tag (`kind`: ``param``, ``tag``) of a logged model."""
        pair = {f"{kind}_key": key, f"{kind}_value": value}
        self._merge(f"SqlLoggedModel{kind.capitalize()}", model_id=model_id, experiment_id=experiment, **pair)


# ---- traces


def trace_info(message: dict[str, Any]) -> Any:
    """Return a trace of MLflow 3.x from the JSON of its client.

    Raises
    ------
    ImportError
        This MLflow has no such traces.
    """
    from mlflow.entities import TraceInfo
    from mlflow.protos.service_pb2 import TraceInfoV3
    from mlflow.utils import proto_json_utils

    parse: Any = proto_json_utils.parse_dict  # has no types
    proto = TraceInfoV3()
    parse(message, proto)
    return TraceInfo.from_proto(proto)


# ---- MLflow's web application

#: Methods of the local artifact repository that read or write below its folder, in any version of MLflow.
_METHODS = (
    "delete_artifacts",
    "download_artifacts",
    "download_trace_data",
    "get_local_path",
    "list_artifacts",
    "log_artifact",
    "log_artifact_from_async_stream",
    "log_artifact_from_stream",
    "log_artifacts",
    "_download_file",
)

#: Schemes of accepted artifacts: files, and the two for runs and models whose artifacts are files.
_SCHEMES = ("", "file", "runs", "models")


def application(uri: str, roots: Sequence[Path], *, proxied: bool = False) -> Callable[..., Iterable[bytes]]:
    """Return MLflow's WSGI application for a database, confined to the artifacts below `roots`.

    Parameters
    ----------
    roots
        Folders; new experiments keep their artifacts in the first one.
    proxied
        Whether it also serves the artifacts of the first folder, as ``mlflow-artifacts:/``.
    """
    for name in list(os.environ):
        if name.startswith(("MLFLOW_TRACKING_", "MLFLOW_REGISTRY_", "MLFLOW_DEPLOYMENTS_", "_MLFLOW_SERVER_")):
            del os.environ[name]
    # User and origin are checked before MLflow sees a request.
    os.environ.update(
        MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE="true",
        MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
        MLFLOW_TRACKING_URI=uri,
    )
    server: Any = importlib.import_module("mlflow.server")
    from mlflow.server import handlers

    os.environ[server.BACKEND_STORE_URI_ENV_VAR] = uri
    os.environ[server.ARTIFACT_ROOT_ENV_VAR] = roots[0].as_uri()
    if proxied:
        os.environ[server.SERVE_ARTIFACTS_ENV_VAR] = "true"
        os.environ[server.ARTIFACTS_DESTINATION_ENV_VAR] = roots[0].as_uri()
    confine(roots)
    handlers.initialize_backend_stores(uri, None, roots[0].as_uri())
    app: Callable[..., Iterable[bytes]] = server.app
    return app


def confine(roots: Sequence[Path]) -> None:
    """Restrict MLflow's classes of this process to artifacts below `roots`.

    The check is in MLflow's artifact repositories, not in the address of a request, because locations of
    experiments, runs, traces, models and their versions all lead there.
    """
    from mlflow.store.artifact import artifact_repository_registry as registry
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    known: Any = registry._artifact_repository_registry._registry
    repository: Any = LocalArtifactRepository
    store: Any = SqlAlchemyStore
    for scheme in [scheme for scheme in known if scheme not in _SCHEMES]:
        known[scheme] = _refuse
    for name in _METHODS:
        method = getattr(repository, name, None)  # the methods differ between versions
        if method is not None:
            setattr(repository, name, _confined(method, roots))
    repository.__init__ = _confined_init(repository.__init__, roots)
    store.create_experiment = _confined_create(store.create_experiment, roots)


def _confined_init(init: Callable[..., None], roots: Sequence[Path]) -> Callable[..., None]:
    @functools.wraps(init)
    def checked(self: Any, artifact_uri: str, *arguments: Any, **named: Any) -> None:
        _check(local_path(artifact_uri), roots)
        init(self, artifact_uri, *arguments, **named)

    return checked


def _confined(method: Callable[..., Any], roots: Sequence[Path]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def checked(self: Any, *arguments: Any, **named: Any) -> Any:
        values = signature.bind(self, *arguments, **named).arguments
        below = values.get("artifact_path") or values.get("remote_file_path")
        if method.__name__ == "list_artifacts":
            below = values.get("path")
        name = os.path.basename(values.get("local_file") or values.get("artifact_file_name") or "")
        if method.__name__ == "download_trace_data":
            name = "traces.json"
        _check(os.path.join(local_path(self.artifact_uri), below or "", name), roots)
        return method(self, *arguments, **named)

    return checked


def _confined_create(create: Callable[..., Any], roots: Sequence[Path]) -> Callable[..., Any]:
    @functools.wraps(create)
    def checked(self: Any, name: str, artifact_location: str | None = None, *arguments: Any, **named: Any) -> Any:
        if artifact_location:
            _check(local_path(artifact_location), roots)
        return create(self, name, artifact_location, *arguments, **named)

    return checked


def local_path(uri: str) -> str:
    """Return the path of a ``file:`` URI or a plain path; anything else is refused."""
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return url2pathname(parts.path)
    if not parts.scheme or (os.name == "nt" and len(parts.scheme) == 1):
        return uri
    raise _refusal()


def _check(path: str, roots: Sequence[Path]) -> None:
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
        raise _refusal()


def _refuse(*arguments: Any, **named: Any) -> Any:
    raise _refusal()


def _refusal() -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    return MlflowException(
        "This page reads and writes artifacts of the project's own store only.", error_code=PERMISSION_DENIED
    )
