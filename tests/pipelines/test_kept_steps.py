"""Results of steps that later pipelines use."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from jupyter_amltrain.jobs import values
from jupyter_amltrain.pipelines.kept_steps import KEEP_DAYS, KeptStep, KeptSteps
from jupyter_amltrain.pipelines.plan import DATA
from jupyter_amltrain.pipelines.step_output import StepOutput

KEY = "ab" + "0" * 62


@pytest.fixture
def kept(home: Path, tmp_path: Path) -> KeptSteps:
    return KeptSteps(tmp_path / "kept")


def test_result_is_found_by_its_key_only(kept: KeptSteps) -> None:
    step = KeptStep(handle="local/a", outputs={"x": StepOutput(node={"as": "json", "value": 1})}, seconds=2.0)
    kept.add(KEY, step)
    assert kept.find(KEY) == step and kept.find(KEY[:-1] + "1") is None


def test_result_of_deleted_run_is_not_used(kept: KeptSteps, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    kept.add(KEY, KeptStep(handle="local/a", folder=str(run), outputs={"d": StepOutput(kind=DATA, path="outputs/d")}))
    assert kept.find(KEY) is not None
    run.rmdir()
    assert kept.find(KEY) is None


def test_result_without_its_file_is_not_used(kept: KeptSteps) -> None:
    node = {"as": "array", "file": "0" * 32 + ".npy", "bytes": 3}
    kept.add(KEY, KeptStep(handle="box/a", outputs={"x": StepOutput(node={"as": "list", "items": [node]})}))
    assert kept.find(KEY) is None
    values.store().mkdir(parents=True)
    (values.store() / node["file"]).write_bytes(b"abc")
    assert kept.find(KEY) is not None


def test_damaged_file_is_no_result(kept: KeptSteps, tmp_path: Path) -> None:
    kept.add(KEY, KeptStep(handle="local/a"))
    (path,) = (tmp_path / "kept").rglob("*.json")
    path.write_bytes(b"{")
    assert kept.find(KEY) is None


def test_result_that_nothing_uses_is_forgotten(kept: KeptSteps, tmp_path: Path) -> None:
    kept.add(KEY, KeptStep(handle="local/a"))
    (path,) = (tmp_path / "kept").rglob("*.json")
    kept.prune()
    assert kept.find(KEY) is not None
    os.utime(path, (0, time.time() - (KEEP_DAYS + 1) * 86400))
    kept.prune()
    assert kept.find(KEY) is None
