"""Deleting a run whose MLflow record could not be written: nothing it logged is lost unasked."""

from __future__ import annotations

import shlex
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands import runs
from jupyter_amltrain.commands.registry import parser_of
from jupyter_amltrain.errors import CommandError, UnrecordedRun

from ..helpers import api_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

LOGS = "import mlflow; mlflow.log_metric('loss', 0.5)"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Any]:
    with api_of(tmp_path) as module:
        yield module


@pytest.fixture
def store(api: Any) -> Path:
    """Where the project's store would be; a folder is in the way."""
    path = Path.cwd() / ".amltrain" / "mlflow.db"
    path.mkdir(parents=True)
    return path


def delete(line: str) -> list[str]:
    args = parser_of("runs", "%aml_runs").parse(["delete", *shlex.split(line)])
    return runs.delete(args.run, args.force, args.without_mlflow)


def metrics(store: Path) -> list[tuple[str, float]]:
    with sqlite3.connect(store) as connection:
        return connection.execute("SELECT key, value FROM metrics").fetchall()


@pytest.mark.thorough
def test_delete_without_mlflow_record_names_loss(api: Any, store: Path) -> None:
    run = api.submit(LOGS, name="logs", gpus=0).wait(60)
    folder = Path(run.run.folder)
    with pytest.raises(CommandError) as asks:
        delete(run.handle)
    assert "MLflow has no record" in str(asks.value) and "metrics" in str(asks.value)
    assert "record is kept" not in str(asks.value)
    assert str(asks.value).endswith(f"delete --force --without-mlflow {run.handle}")
    for flag in ("--force", "--yes"):
        with pytest.raises(UnrecordedRun, match="lost") as refuses:
            delete(f"{flag} {run.handle}")
        assert "\n" not in str(refuses.value) and folder.is_dir()
    assert delete(f"--force --without-mlflow {run.handle}") == [f"{run.handle} deleted."]
    assert not folder.exists()


@pytest.mark.thorough
def test_delete_retries_import(api: Any, store: Path) -> None:
    run = api.submit(LOGS, name="logs", gpus=0).wait(60)
    with pytest.raises(UnrecordedRun):
        delete(f"--force {run.handle}")
    store.rmdir()  # the user has made room
    with pytest.raises(CommandError, match="MLflow record is kept"):
        delete(run.handle)
    assert delete(f"--force {run.handle}") == [f"{run.handle} deleted."]
    assert ("loss", 0.5) in metrics(store)


def test_delete_of_run_without_metrics_needs_no_record(api: Any, store: Path) -> None:
    run = api.submit("x = 1", name="nothing", gpus=0).wait(60)
    assert delete(f"--force {run.handle}") == [f"{run.handle} deleted."]
