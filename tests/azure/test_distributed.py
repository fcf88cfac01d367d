"""Several processes on Azure: the same script gives the same figures there and here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.connected_api import lab
from tests.distributed.scripts import TRAINING, needs_torch
from tests.helpers import DEADLINE

pytestmark = [pytest.mark.thorough, needs_torch]

#: The training without MLflow: each loss is a line of the log.
PRINTED = (
    TRAINING.replace("import mlflow, torch", "import torch").replace(
        'mlflow.log_metric("loss", mean.item() / world, step=step)',
        'print("loss", step, mean.item() / world, flush=True)',
    )
    + '\nprint("process", rank, "ends", flush=True)\n'
)


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("distributed")) as module:
        yield module


def losses(run: Any) -> list[float]:
    """The printed losses of rank 0."""
    return [float(line.split()[-1]) for line in run.logs().splitlines() if line.startswith("[rank 0] loss ")]


def test_losses_of_two_nodes_are_those_of_two_processes_here(api: Any) -> None:
    there = api.submit(PRINTED, target="cpu", nodes=2, distribution="pytorch", name="ddp").wait(3 * DEADLINE)
    here = api.submit(PRINTED, target="local", processes=2, gpus=0, name="ddp").wait(3 * DEADLINE)
    assert "process 1 ends" in there.logs(rank=1) and "process 0 ends" not in there.logs(rank=1)
    assert not there.logs(rank=2) and "[rank 1] process 1 ends" in there.logs()
    assert len(losses(there)) == 10 and losses(there) == pytest.approx(losses(here), rel=1e-6, abs=1e-6)
