"""MLflow's server of a project for the jobs of this machine: they ask it for other runs, models and searches."""

from __future__ import annotations

import json
import os

from jupyter_amltrain.rpc import child_process

#: Seconds without a call after which the server ends; the next call starts another.
_IDLE_TIMEOUT_S = 600.0


def job_server_command(project: str) -> list[str]:
    """Return the command of the server, which serves until its standard input closes.

    It prints its address as a line of JSON: ``agent/mlflow/project_server.py`` reads it.
    """
    args = {"project": os.path.abspath(project), "start": "", "front": False, "idle": _IDLE_TIMEOUT_S, "create": True}
    return child_process.command("jupyter_amltrain.tracking.page_server", json.dumps(args))
