"""Sends a run to the team's MLflow server: an operation of a worker process that has the server's credentials."""

from __future__ import annotations

import os
import time
from typing import Any

from jupyter_amltrain.errors import AuthenticationError, CommandError, TargetUnreachable
from jupyter_amltrain.secret_variables import value_of
from jupyter_amltrain.state_dir import locked, project_store
from jupyter_amltrain.tracking import team_ledger
from jupyter_amltrain.tracking.mlflow_store import database_uri
from jupyter_amltrain.tracking.stored_run import stored_run

#: Seconds to wait for another process that sends a run of this project.
_LOCK_TIMEOUT_S = 600.0

#: MLflow's variables with credentials, which the keyring may have instead.
CREDENTIALS = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")

#: Of MLflow's client: a server that is away is tried again later, and a person need not read the links.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def environment(base: dict[str, str]) -> dict[str, str]:
    """Return the environment of the process that sends: with the credentials, without another server's address."""
    found = {name: value_of(name, base) for name in CREDENTIALS}
    env = {**base, **_SETTINGS, **{name: value for name, value in found.items() if value}}
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
        env.pop(name, None)
    return env


def send(project: str, run_id: str) -> dict[str, Any]:
    """Send a run that the ledger of a project names; repeatable at any point.

    Returns
    -------
    dict
        The entry of the ledger.

    Raises
    ------
    TargetUnreachable
        The server does not answer: to be tried again.
    AuthenticationError
        It does not accept the credentials.
    CommandError
        It does not accept the run, or the run was deleted here.
    """
    import requests
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    from jupyter_amltrain.tracking.team_copy import RunCopy

    with locked(project_store(project) / team_ledger.FOLDER / "send.lock", _LOCK_TIMEOUT_S):
        entry = team_ledger.entry_of(project, run_id)
        if entry.get("state") != team_ledger.WAITING:
            return entry
        uri, notes = str(entry["uri"]), list[str]()
        if stored_run(project, run_id) is None:
            raise CommandError(f"{entry.get('handle')} was deleted from the project's store.", code="team.deleted")
        try:
            copy = RunCopy(MlflowClient(database_uri(project)), MlflowClient(uri, uri), notes.append)
            experiment, there = copy.copy(run_id)
        except (MlflowException, requests.RequestException, OSError) as error:
            raise _explained(error, uri, str(entry.get("handle"))) from error
        changes = {"state": team_ledger.SENT, "experiment": experiment, "there": there, "error": ""}
        team_ledger.update(project, run_id, **changes, notes=notes, updated=time.time())
        return team_ledger.entry_of(project, run_id)


def _explained(error: Exception, uri: str, handle: str) -> Exception:
    status = _status(error)
    first = (str(error).splitlines() or [type(error).__name__])[0][:300]
    if status in (401, 403):
        return AuthenticationError(
            f"{uri} does not accept the credentials ({status}): {first}",
            hint="Set MLflow's variables in this kernel, MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or"
            " MLFLOW_TRACKING_TOKEN; or store them: keyring set amltrain MLFLOW_TRACKING_PASSWORD",
            code="team.credentials",
        )
    if status and status < 500 and status not in (404, 408, 429):
        return CommandError(
            f"{uri} does not accept the run ({status}): {first.rstrip('.')}.",
            hint=f"When that is solved: %aml_runs send {handle}",
            code="team.refused",
        )
    return TargetUnreachable(f"{uri} does not answer: {first}", code="team.unreachable")


def _status(error: Exception) -> int:
    """Return the HTTP status of an error of MLflow's client; 0 without an answer of a server."""
    response = getattr(error, "response", None)
    if response is not None:
        return int(response.status_code)
    body = getattr(error, "json", None)  # of a RestException: the server's own words
    if isinstance(body, dict) and "error_code" in body:
        return int(error.get_http_status_code())  # type: ignore[attr-defined]
    for status in (401, 403):
        if f"error code {status}" in str(error):
            return status
    return 0


def variables() -> dict[str, str]:
    """Return the variables whose change the process must see."""
    return {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_TRACKING_")}
