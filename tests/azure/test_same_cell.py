"""The same cell here and in Azure: the same bytes run, and a seeded run logs the same values."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.lab import lab, log, submit
from tests.places import DEADLINE

CELL = """\
import hashlib, pathlib, random
import mlflow

print(hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest(), flush=True)
random.seed(seed)
loss = 1.0
for step in range(5):
    loss *= random.uniform(0.5, 0.9)
    mlflow.log_metric("loss", loss, step=step)
"""


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("same")) as module:
        yield module


def test_the_same_cell_here_and_in_azure(api: Any) -> None:
    runs = {where: submit(f"--target {where} --param seed=7 --out loss", CELL) for where in ("local", "cpu")}
    for run in runs.values():
        run.wait(DEADLINE)
    here, there = runs["local"], runs["cpu"]
    script = Path(here.run.folder, "source", "script.py").read_bytes()
    sha256 = hashlib.sha256(script).hexdigest()
    assert log(here).splitlines()[0] == log(there).splitlines()[0] == sha256
    assert here.spec.source_sha256 == there.spec.source_sha256
    assert here.spec.script == there.spec.script == script.decode()
    curves = [[(step, value) for step, _, value in run.metrics()["loss"]] for run in (here, there)]
    assert curves[0] == curves[1] and [step for step, _ in curves[0]] == list(range(5))
    assert here.result("loss") == there.result("loss") == curves[0][-1][1]


@pytest.mark.thorough
def test_the_packages_of_the_kernel(api: Any) -> None:
    run = submit("--target cpu --env kernel --param seed=7 --out loss", CELL).wait(DEADLINE)
    assert run.state == "completed", log(run)
    environment = run.spec.environment
    assert environment.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert environment.packages == (f"mlflow=={metadata.version('mlflow')}",)  # the rest is Python's own
    assert "the environment's image is built" in log(run)
    again = submit("--target local --env kernel --param seed=7 --out loss", CELL).wait(DEADLINE)
    assert again.result("loss") == run.result("loss")
