"""A project's MLflow SQLite store: created completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import uuid
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from jupyter_amltrain.agent import testing
from jupyter_amltrain.errors import StateError
from jupyter_amltrain.state_dir import project_store
from jupyter_amltrain.tracking import mlflow_private
from jupyter_amltrain.tracking.mlflow_private import BUSY_MS, Rows

#: Longest path that SQLite can open, with room for the name of its journal.
MAX_PATH_BYTES = 500


def database_uri(project: str | os.PathLike[str]) -> str:
    """Return the ``sqlite:`` URI of the project's store."""
    return f"sqlite:///{project_store(project) / 'mlflow.db'}"


def artifact_root(project: str | os.PathLike[str]) -> Path:
    """Return the folder of the project's artifacts."""
    return project_store(project) / "mlartifacts"


def artifact_roots(project: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the folders that may have artifacts of the project's store.

    The second one is MLflow's own, for experiments that a notebook creates without a server.
    """
    return artifact_root(project), Path(project) / "mlruns"


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

        self.version: str = mlflow.__version__
        self.root = artifact_root(project)
        path = project_store(project) / "mlflow.db"
        try:
            if path.exists():
                _check(path)
            else:
                _create(path, self.root)
            try:
                self.mlflow = mlflow_private.open_tracking(database_uri(project), self.root.as_uri())
            except BaseException:  # close the database after any error, and raise it again
                mlflow_private.forget(database_uri(project))
                raise
        except MlflowException as error:
            if "disk is full" in str(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
            raise StateError(
                f"MLflow {self.version} cannot open {path}: {str(error).splitlines()[0]}",
                hint="Upgrade it with: mlflow db upgrade sqlite:///" + str(path),
            ) from error

    def __enter__(self) -> TrackingStore:
        return self

    def __exit__(self, *exc: object) -> None:
        mlflow_private.close(self.mlflow)  # the next import must not get a connection to a removed file

    @property
    def has_logged_models(self) -> bool:
        """Return whether this MLflow (3.x) has tables for logged models."""
        return mlflow_private.has_logged_models()

    def rows(self) -> Rows:
        """Begin a transaction, which waits for other writers."""
        return Rows(self.mlflow)

    def experiment(self, name: str) -> int:
        """Return the id of the experiment `name`; it is created, or restored if it was deleted."""
        experiment = self.mlflow.get_experiment_by_name(name)
        if experiment is None:
            return int(self.mlflow.create_experiment(name, None, []))
        if experiment.lifecycle_stage != "active":
            self.mlflow.restore_experiment(experiment.experiment_id)
        return int(experiment.experiment_id)

    def folder_of(self, kind: str, name: str) -> Path | None:
        """Return the artifact folder of a run or a logged model (`kind`: ``runs``, ``models``).

        ``None`` where the store has no such thing, or its artifacts are not on this machine.
        """
        with self.rows() as rows:
            row = rows.run(name) if kind == "runs" else rows.model(name)
            uri = row and (row.artifact_uri if kind == "runs" else row.artifact_location)
        return local_folder(str(uri)) if uri else None

    def location(self, experiment: int, *parts: str) -> str:
        """Return the URI for the artifacts of a new run or model.

        In the experiment's own folder if that is on this machine, as in MLflow
        itself; else (created through a server: ``mlflow-artifacts:``) in the project's folder.
        """
        base = str(self.mlflow.get_experiment(str(experiment)).artifact_location)
        if not base.startswith(("file:", "/")):
            base = (self.root / str(experiment)).as_uri()
        return "/".join([base.rstrip("/"), *parts, "artifacts"])


def local_folder(uri: str) -> Path | None:
    """Return the folder of a ``file:`` URI; ``None`` for a remote one."""
    if uri.startswith("file:"):
        return Path(url2pathname(urlsplit(uri).path))
    return Path(uri) if uri.startswith("/") else None


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
            mlflow_private.open_tracking(uri, root.as_uri())
        finally:
            mlflow_private.forget(uri)
        testing.hit("import_new_store")
        os.replace(new, path)
    except BaseException:  # remove the unfinished file after any error, and raise it again
        for left in path.parent.glob(new.name + "*"):  # also its journal
            with contextlib.suppress(OSError):
                left.unlink()
        raise


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
