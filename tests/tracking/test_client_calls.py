"""In a job MLflow's client gets what it gets of a server of MLflow; each difference has a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .team_server import TeamServer

SCRIPT = Path(__file__).with_name("client_calls.py")

#: Experiments and models that the job itself has made are in the project when the run is recorded: until then they
#: cannot be renamed or deleted, and the error says so.
REFUSED = {
    "rename_experiment", "delete_experiment", "restore_experiment", "delete_model_version",
    "delete_prompt_version", "rename_registered_model",
}  # fmt: skip
#: What follows from those; and what the first run of a script, and runs after it, are in a job (docs/mlflow.md).
OTHERWISE = {
    "search_experiments", "search_experiments filter", "search_registered_models all", "delete_registered_model",
    "get_experiment_by_name unknown", "get_parent_run",
}  # fmt: skip


def results(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.partition("CALLS")[2].splitlines()[0])
    return found


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_job_gets_what_a_server_gives(api: Any, tmp_path: Path) -> None:
    job = results(api.submit(SCRIPT, name="calls").wait(600).logs())
    server = TeamServer(tmp_path / "team").start()
    try:
        env = {**os.environ, **server.credentials, "MLFLOW_TRACKING_URI": server.uri}
        done = subprocess.run([sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True, check=False)
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr[-2000:]
    there = results(done.stdout)
    different = {name for name in there if job[name] != there[name]}
    assert different <= REFUSED | OTHERWISE, {name: (job[name], there[name]) for name in different}
    assert len(there) > 125
    for name in REFUSED & different:
        assert "INVALID_STATE" in str(job[name]), (name, job[name])
