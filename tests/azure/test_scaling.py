"""`--scaling` on Azure: processes of one machine end together by their agents, machines by the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.connected_api import carry_out, lab
from tests.helpers import DEADLINE

pytestmark = pytest.mark.thorough

#: A size of which the emulator has a price.
PRICED = "Standard_NC6s_v3"
#: Rank 0 logs by MLflow's REST; the others wait for it.
TRAINING = """
import json, os, time, urllib.request
def call(op, **body):
    headers = {"Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"], "Content-Type": "application/json"}
    url = os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/" + op
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if rank == 0:
    run = call("runs/create", experiment_id="0")["run"]["info"]["run_id"]
for step in range(10**6):
    if rank == 0:
        point = {"key": "samples_per_second", "value": 100.0 * world, "step": step}
        call("runs/log-batch", run_id=run, metrics=[{**point, "timestamp": int(time.time() * 1000)}])
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("scaling")) as module:
        carry_out(f"create priced --kind amlcompute --size {PRICED} --max-nodes 2")
        yield module


@pytest.mark.parametrize(
    ("target", "widths", "ends", "costs"),
    [("cpu", [1, 2], ["slice", "slice"], False), ("priced", "nodes:1,2", ["slice", "canceled"], True)],
)
def test_widths_are_measured(api: Any, target: str, widths: Any, ends: list[str], costs: bool) -> None:
    measured = api.submit(TRAINING, target=target, distribution="pytorch", scaling=widths, scaling_time=5)
    report = measured.wait(2 * DEADLINE).report()
    assert [width.measurement.rate for width in report.widths] == [100.0, 200.0], report
    assert report.best == 2
    assert [run.status.reason for run in measured.runs] == ends
    found = [width.cost for width in report.widths]
    # Twice the machines at twice the speed: a sample costs the same.
    assert (found[0] and found[0] == pytest.approx(found[1])) if costs else found == [None, None]
