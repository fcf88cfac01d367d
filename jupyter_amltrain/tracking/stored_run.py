"""A run as MLflow has it in a project's store, for code in the notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_amltrain.errors import StateError
from jupyter_amltrain.state_dir import project_store

if TYPE_CHECKING:
    import mlflow.entities


def stored_run(project: str, run_id: str) -> mlflow.entities.Run | None:
    """Return a run of the project's store by its MLflow id; ``None`` if the store does not have it.

    Raises
    ------
    StateError
        This MLflow cannot open the store.
    """
    if not run_id or not (project_store(project) / "mlflow.db").exists():
        return None
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    from jupyter_amltrain.tracking.mlflow_store import database_uri

    try:
        return MlflowClient(database_uri(project)).get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise StateError(f"MLflow cannot read {project_store(project)}: {str(error).splitlines()[0]}") from error
