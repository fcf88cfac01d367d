"""MLflow's server of a project for jobs: they ask it for other runs, models and searches."""

from __future__ import annotations

import hashlib
import json
import os
import uuid

from jupyter_amltrain.rpc import child_process

#: Seconds without a call after which the server ends; the next call starts another.
_IDLE_TIMEOUT_S = 600.0


def job_server_command(project: str, *, is_elsewhere: bool = False) -> list[str]:
    """Return the command of the server, which serves until its standard input closes.

    It prints its address as a line of JSON: ``agent/mlflow/project_server.py`` reads it.

    Parameters
    ----------
    is_elsewhere
        The jobs are on another machine: artifacts travel through the server, too, and its socket needs no secret.
    """
    args = {"project": os.path.abspath(project), "start": "", "front": False, "idle": _IDLE_TIMEOUT_S, "create": True}
    if is_elsewhere:
        args["elsewhere"] = True
    return child_process.command("jupyter_amltrain.tracking.page_server", json.dumps(args))


def project_id(project: str) -> str:
    """Return the id of a project of this computer on other machines: 16 hex digits."""
    return hashlib.sha256(f"{uuid.getnode()} {os.path.abspath(project)}".encode()).hexdigest()[:16]
