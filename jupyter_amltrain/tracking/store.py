"""An MLflow SQLite store, opened safely: made whole or not at all, ids kept as ours.

No public call of MLflow takes a run id, and replaying through public calls is twenty
times slower and not repeatable (``log_outputs`` adds rows each time). So rows go
through MLflow's own ORM classes, which are the same in 2.20 to 3.17 apart from the
tables of logged models; ``tests/test_tracking.py`` holds both ends.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jupyter_amltrain.agent import failpoints
from jupyter_amltrain.errors import StateError
from jupyter_amltrain.state import project_store

#: Milliseconds that a write waits for MLflow's own server.
BUSY_MS = 30_000


def database_uri(project: str | os.PathLike[str]) -> str:
    """``sqlite:`` URI of the project's store."""
    return f"sqlite:///{project_store(project) / 'mlflow.db'}"


def artifact_root(project: str | os.PathLike[str]) -> Path:
    """Folder of the project's artifacts."""
    return project_store(project) / "mlartifacts"


class TrackingStore:
    """The store of one project, open. Use as a context manager; hold the import lock.

    Parameters
    ----------
    project
        Folder that owns ``.amltrain``; the store is made if there is none.

    Raises
    ------
    StateError
        It cannot be made, or belongs to another version of MLflow.
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
            if not path.exists():
                _create(path, self.root)
            self.mlflow = _open(database_uri(project), self.root)
        except MlflowException as error:
            raise StateError(
                f"MLflow {self.version} cannot open {path}: {str(error).splitlines()[0]}",
                hint="Upgrade it with: mlflow db upgrade sqlite:///" + str(path),
            ) from error
        self.engine: Any = self.mlflow.engine

    def __enter__(self) -> TrackingStore:
        return self

    def __exit__(self, *exc: object) -> None:
        # MLflow keeps engines for ever; the next import must not meet a connection
        # to a file that somebody has removed since.
        self.engine.dispose()

    @property
    def has_logged_models(self) -> bool:
        """Whether this MLflow (3.x) has tables for logged models."""
        return hasattr(self.models, "SqlLoggedModel")

    def session(self) -> Any:
        """A new SQLAlchemy session that waits for other writers."""
        import sqlalchemy
        from sqlalchemy.orm import Session

        session = Session(self.engine)
        session.execute(sqlalchemy.text(f"PRAGMA busy_timeout = {BUSY_MS}"))
        return session

    def experiment(self, name: str) -> int:
        """Id of the experiment `name`; made, or brought back if it was deleted."""
        found = self.mlflow.get_experiment_by_name(name)
        if found is None:
            return int(self.mlflow.create_experiment(name, None, []))
        if found.lifecycle_stage != "active":
            self.mlflow.restore_experiment(found.experiment_id)
        return int(found.experiment_id)

    def descendants(self, session: Any, run_id: str) -> list[str]:
        """Ids of the runs nested below a run, children before their own children."""
        tag = self.models.SqlTag
        found, parents = list[str](), [run_id]
        while parents:
            rows = session.query(tag).filter_by(key="mlflow.parentRunId").filter(tag.value.in_(parents))
            parents = sorted({str(row.run_uuid) for row in rows} - {run_id, *found})
            found += parents
        return found

    def location(self, experiment: int, *parts: str) -> str:
        """URI for the artifacts of a new run or model.

        Inside the experiment's own folder if that is on this machine, as MLflow
        itself does; else (made through a server: ``mlflow-artifacts:``) in ours.
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
    """Make a new database beside its place and move it there.

    MLflow makes one by dozens of migrations; killed among them, it leaves a file that
    no MLflow opens again.
    """
    new = path.with_name(f"mlflow.db.new-{os.getpid()}")
    for left in path.parent.glob("mlflow.db.new-*"):
        left.unlink()
    os.close(os.open(new, os.O_CREAT | os.O_WRONLY, 0o600))
    _open(f"sqlite:///{new}", root).engine.dispose()
    failpoints.hit("import_new_store")
    os.replace(new, path)
