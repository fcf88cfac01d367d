"""Records of living runs: what the store has meanwhile, and that the end is the same as without them."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import pytest

from tests.agent.mlflow_jobs import everything
from tests.tracking.test_importer import python

#: The first import of MLflow takes 30 s here.
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = tmp_path_factory.mktemp("run") / "digits-k3f9"
    shutil.copytree(everything()[0], run)
    return python("-m", "tests.tracking.live_imports", str(run), str(tmp_path_factory.mktemp("work")))


@pytest.mark.parametrize("case", ["grown", "two", "killed", "purged", "old"])
def test_store_after_live_imports_equals_single_import(out: Any, case: str) -> None:
    assert out[case] == {"differing": [], "files_equal": True, "left": False}


def test_living_run_is_running_in_store(out: Any) -> None:
    assert set(out["states"]) == {"recorded"}
    assert {tuple(row) for row in out["rows"]} == {("RUNNING", None)}
    assert not out["tracking"]  # the kernel takes it for the word on the last import


def test_live_import_of_ended_or_deleted_run_does_nothing(out: Any) -> None:
    assert (out["ended"], out["gone"]) == ("ended", "gone")


def test_live_import_continues_older_store(out: Any) -> None:
    assert out["older"] == 12
    assert "mlflow.amltrain.cursor" in out["tags"] and not {"amltrain.cursor", "amltrain.system"} & out["tags"].keys()


def test_record_rejected_by_live_import_is_reported_once(out: Any) -> None:
    assert out["rejects"] == [9000]
