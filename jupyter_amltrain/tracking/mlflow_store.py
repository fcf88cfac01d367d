"""A project's MLflow SQLite store: created completely or not at all, with amltrain's run ids.

No public call of MLflow accepts a run id, and replaying through public calls is twenty
times slower and not repeatable (``log_outputs`` adds rows each time). So rows are written
through MLflow's own ORM classes, which are the same in 2.20 to 3.17 except for the
tables of logged models; the tests cover both ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import uuid
from pathlib import Path
from typing import Any

from jupyter_amltrain.agent import testing
from jupyter_amltrain.errors import StateError
from jupyter_amltrain.state_dir import project_store

#: Milliseconds that a write waits for MLflow's own server.
BUSY_MS = 30_000
#: Longest path that SQLite can open, with room for the name of its journal.
MAX_PATH_BYTES = 500


def database_uri(project: str | os.PathLike[str]) -> str:
    """Return the ``sqlite:`` URI of the project's store."""
    return f"sqlite:///{project_store(project) / 'mlflow.db'}"


def artifact_root(project: str | os.PathLike[str]) -> Path:
    """Return the folder of the project's artifacts."""
    return project_store(project) / "mlartifacts"


class TrackingStore:
    """The open store of one project. Use as a context manager; hold the import lock.

    Parameters
    ----------
    project
        Folder that owns ``.amltrain``; a missing store is created.

    Raises
    ------
    StateError
        The store cannot be created, or belongs to another version of MLflow.
    """

    def __init__(self, project: str | os.PathLike[str]) -> None:
        import mlflow
        from mlflow.exceptions import MlflowException
        from mlflow.store.tracking.dbmodels import models

        self.version: str = mlflow.__version__
        self.models: Any = models
        self.root = artifact_root(project)
        path = project_store(project) / "mlflow.db"
        try:
            if path.exists():
                _check(path)
            else:
                _create(path, self.root)
            try:
                self.mlflow = _open(database_uri(project), self.root)
            except BaseException:  # close the database after any error, and raise it again
                _forget(database_uri(project))
                raise
        except MlflowException as error:
            if "disk is full" in str(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
            raise StateError(
                f"MLflow {self.version} cannot open {path}: {str(error).splitlines()[0]}",
                hint="Upgrade it with: mlflow db upgrade sqlite:///" + str(path),
            ) from error
        self.engine: Any = self.mlflow.engine

    def __enter__(self) -> TrackingStore:
        return self

    def __exit__(self, *exc: object) -> None:
        # MLflow keeps engines forever; the next import must not get a connection
        # to a file that was removed since.
        self.engine.dispose()

    @property
    def has_logged_models(self) -> bool:
        """Return whether this MLflow (3.x) has tables for logged models."""
        return hasattr(self.models, "SqlLoggedModel")

    def session(self) -> Any:
        """Return a new SQLAlchemy session that waits for other writers."""
        import sqlalchemy
        from sqlalchemy.orm import Session

        session = Session(self.engine)
        session.execute(sqlalchemy.text(f"PRAGMA busy_timeout = {BUSY_MS}"))
        return session

    def experiment(self, name: str) -> int:
        """Return the id of the experiment `name`; it is created, or restored if it was deleted."""
        experiment = self.mlflow.get_experiment_by_name(name)
        if experiment is None:
            return int(self.mlflow.create_experiment(name, None, []))
        if experiment.lifecycle_stage != "active":
            self.mlflow.restore_experiment(experiment.experiment_id)
        return int(experiment.experiment_id)

    def descendants(self, session: Any, run_id: str) -> list[str]:
        """Return the ids of the runs nested below a run, children before their own children."""
        tag = self.models.SqlTag
        run_ids, parents = list[str](), [run_id]
        while parents:
            rows = session.query(tag).filter_by(key="mlflow.parentRunId").filter(tag.value.in_(parents))
            parents = sorted({str(row.run_uuid) for row in rows} - {run_id, *run_ids})
            run_ids += parents
        return run_ids

    def location(self, experiment: int, *parts: str) -> str:
        """Return the URI for the artifacts of a new run or model.

        In the experiment's own folder if that is on this machine, as in MLflow
        itself; else (created through a server: ``mlflow-artifacts:``) in the project's folder.
        """
        base = str(self.mlflow.get_experiment(str(experiment)).artifact_location)
        if not base.startswith(("file:", "/")):
            base = (self.root / str(experiment)).as_uri()
        return "/".join([base.rstrip("/"), *parts, "artifacts"])


def _open(uri: str, root: Path) -> Any:
    from mlflow.store.tracking import sqlalchemy_store

    opened: Any = sqlalchemy_store.SqlAlchemyStore
    return opened(uri, root.as_uri())


def _create(path: Path, root: Path) -> None:
    """Create a database under a temporary name and rename it.

    MLflow creates a database by dozens of migrations; killed during them, it leaves a file that
    no MLflow can open. Each attempt has its own name: MLflow keeps the engine of a
    file forever, even of a file that was removed because the disk was full.
    """
    for left in path.parent.glob("mlflow.db.new-*"):
        left.unlink()
    new = path.with_name(f"mlflow.db.new-{uuid.uuid4().hex[:12]}")
    uri = f"sqlite:///{new}"
    try:
        os.close(os.open(new, os.O_CREAT | os.O_WRONLY, 0o600))
        _check(new, writes=True)
        try:
            _open(uri, root)
        finally:
            _forget(uri)
        testing.hit("import_new_store")
        os.replace(new, path)
    except BaseException:  # remove the unfinished file after any error, and raise it again
        for left in path.parent.glob(new.name + "*"):  # also its journal
            with contextlib.suppress(OSError):
                left.unlink()
        raise


def _forget(uri: str) -> None:
    """Close MLflow's engine of a database, whether or not opening it worked."""
    from mlflow.store.tracking import sqlalchemy_store

    for name in ("_engine_map", "_db_uri_sql_alchemy_engine_map"):  # MLflow 3.x, 2.x
        engine = getattr(sqlalchemy_store.SqlAlchemyStore, name, {}).pop(uri, None)
        if engine is not None:
            engine.dispose()


def _check(path: Path, *, writes: bool = False) -> None:
    """Check quickly whether SQLite can open a database; MLflow tries for more than a minute.

    Raises
    ------
    StateError
        SQLite cannot open it.
    """
    connection = None
    try:
        connection = sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None)
        connection.execute("SELECT count(*) FROM sqlite_master")
        if writes:  # its journal has a longer name
            connection.execute("BEGIN")
            connection.execute("CREATE TABLE probe (x)")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        if "disk is full" in str(error):
            raise
        reason, hint = str(error), "Move or remove it; the next import creates a new one."
        if path.is_dir():
            reason = "it is a folder"
        elif len(os.fsencode(path)) > MAX_PATH_BYTES:
            reason = f"its path is too long for SQLite ({len(os.fsencode(path))} bytes)"
            hint = "Move the notebook to a folder with a shorter path."
        elif "unable to open" in reason:
            hint = "Check the permissions of the file and its folder."
        database = path.with_name("mlflow.db")
        raise StateError(f"MLflow's store {database} cannot be opened: {reason}.", hint=hint) from error
    finally:
        if connection is not None:
            connection.close()
