"""The lines of a run are there: of each rank, of a trial, after a killed kernel, in a notebook without one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from jupyter_amltrain import api
from jupyter_amltrain.inside.line_report import LineReport
from jupyter_amltrain.output import picture
from jupyter_amltrain.schema.record import RECORD_MIME
from tests.distributed.scripts import LEAVE, needs_torch
from tests.helpers import DEADLINE, api_of, kernel_of, until

pytestmark = pytest.mark.thorough

#: A script that works in one line and sleeps in another.
WORK = """
import time
def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(200))  # works
for _ in range({}):
    time.sleep(0.02)  # sleeps
    work(0.02)
"""

#: Rank 3 computes longer in each step, while the others wait for it.
DDP = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    if rank == 3:
        time.sleep(0.1)  # only rank 3
    loss = model(torch.randn(8, 4)).mean()
    optimizer.zero_grad()
    loss.backward()  # gradients of all
    optimizer.step()
    dist.barrier()
"""


@pytest.fixture
def own_api(tmp_path: Path) -> Iterator[Any]:
    with api_of(tmp_path, AMLTRAIN_CPU_SLOTS="4") as module:
        yield module


def seconds(report: LineReport) -> dict[str, float]:
    """Return the time in each line of the main threads, by its comment."""
    main = [use for use in report.lines if not use.process and not use.thread and "  # " in use.text]
    return {use.text.partition("  # ")[2]: use.own for use in main}


@needs_torch
def test_each_of_four_ranks_has_its_lines(own_api: Any) -> None:
    run = own_api.submit(DDP + LEAVE, processes=4, name="ddp").wait(DEADLINE)
    assert run.status.ranks == 4
    found = [seconds(run.read_lines(rank=rank)) for rank in range(4)]
    assert found[3]["only rank 3"] > 2.0 and all("only rank 3" not in one for one in found[:3])
    assert all(found)
    assert "only rank 3" in seconds(run.read_lines())  # all of them together


def test_trial_of_a_sweep_has_its_lines(own_api: Any) -> None:
    code = WORK.format(30) + "import mlflow\nmlflow.log_metric('loss', x)\n"
    space = {"x": "uniform(0, 5)"}
    run = own_api.sweep(code, goal="minimize loss", params=space, max_trials=2, name="sweep", gpus=0)
    run.wait(DEADLINE)
    children = run.children()
    assert len(children) == 2
    for child in children:
        trial = own_api.attach(f"local/{child.id}")
        assert {"works", "sleeps"} <= set(seconds(trial.read_lines()))
        assert trial.record().lines.table.rows


def test_lines_outlive_the_kernel_that_submitted(tmp_path: Path) -> None:
    with kernel_of(tmp_path) as kernel:
        kernel.run("%%aml_submit --name killed\n" + WORK.format(200))
        kernel.kill()
        api.close()  # another one, of the same home as the kernel
        try:
            (found,) = until(lambda: api.runs("local"), "the run")
            run = api.attach(found.handle).wait(DEADLINE)
            assert {"works", "sleeps"} <= set(seconds(run.read_lines()))
        finally:
            api.close()


def test_saved_cell_has_the_lines_for_readers_without_a_kernel(tmp_path: Path) -> None:
    with kernel_of(tmp_path) as kernel:
        cell = kernel.run("%%aml_submit --wait --name saved\n" + WORK.format(50))
        data = cell.displays[-1]["data"]
    record = data[RECORD_MIME]
    assert any("sleeps" in row[-1] for row in record["lines"]["table"]["rows"]) and record["lines"]["marks"]
    assert "sleeps" in data["text/html"]
    assert record["lines"]["sentence"] in data["text/plain"]
    without = picture.draw({**record, "lines": None})
    png = picture.draw(record)
    assert png["height"] > without["height"] and Image.open(io.BytesIO(png["png"])).size[1] == 2 * png["height"]
