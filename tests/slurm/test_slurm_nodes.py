"""Runs on both nodes of a real cluster."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.scripts import needs_mpirun
from tests.slurm.conftest import Kernel, until

pytestmark = pytest.mark.thorough

DDP = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x = torch.arange(32).float().reshape(8, 4)[rank::2] / 10
y = x.sum(1, keepdim=True)
for step in range(3):
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print("loss", step, round(total.item(), 5), flush=True)
print("node", os.environ.get("SLURMD_NODENAME", "here"), "rank", rank, "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


def losses(run: Any) -> list[str]:
    return re.findall(r"loss \d [\d.]+", run.logs())


def test_two_nodes_train_as_two_processes_here(kernel: Kernel) -> None:
    here = kernel.api.submit(DDP, target="local", processes=2, gpus=0, name="here")
    run = kernel.submit(DDP, nodes=2, processes=1, name="both")
    assert kernel.ended(run).state == "completed", run.logs()
    here.wait()
    assert len(losses(run)) == 3 and losses(run) == losses(here)
    logs = "".join((kernel.folder(run) / "log" / f"rank-{rank}.txt").read_text() for rank in range(2))
    assert "node n1 rank 0 of 2" in logs and "node n2 rank 1 of 2" in logs
    for node in range(2):
        assert (kernel.folder(run) / "telemetry" / f"node-{node}.jsonl").exists()


def test_process_that_fails_on_second_node_ends_the_run(kernel: Kernel) -> None:
    fails = "if os.environ['RANK'] == '1':\n    raise ValueError('no data')\n"
    code = f"import os, time\nprint('up', flush=True)\n{fails}time.sleep(600)"
    run = kernel.submit(code, nodes=2, processes=1, name="uneven")
    record = kernel.ended(run)
    assert record.state == "failed" and "no data" in record.error


def test_cancel_ends_both_nodes(kernel: Kernel) -> None:
    run = kernel.submit("import time\nprint('up', flush=True)\ntime.sleep(600)", nodes=2, processes=1, name="stopped")
    until(run.logs, lambda text: "up" in text)
    run.cancel()
    assert kernel.ended(run).state == "canceled"


def test_restart_starts_both_nodes_again(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMLTRAIN_RESTART_PAUSE", "0.1")
    code = """
import os, sys
path = os.path.join(os.environ["AML_CHECKPOINT_DIR"], "of-" + os.environ["RANK"])
is_second = os.path.exists(path)
open(path, "w").close()
print("again" if is_second else "first", flush=True)
if not is_second and os.environ["RANK"] == "1":
    sys.exit(5)
"""
    run = kernel.submit(code, nodes=2, processes=1, max_restarts=2, name="twice")
    assert kernel.ended(run).state == "completed", run.logs()
    assert "again" in (kernel.folder(run) / "log" / "rank-1.txt").read_text()


RANKS = """
import json, os, time
names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURMD_NODENAME")
print("ranks", json.dumps([os.environ.get(name) for name in names]), flush=True)
time.sleep(1)
"""


def ranks_of(kernel: Kernel, run: Any, count: int) -> list[list[str]]:
    logs = [(kernel.folder(run) / "log" / f"rank-{rank}.txt").read_text() for rank in range(count)]
    return [json.loads(log.partition("ranks ")[2].splitlines()[0]) for log in logs]


@needs_mpirun
def test_mpirun_starts_processes_on_both_nodes(kernel: Kernel) -> None:
    run = kernel.submit(RANKS, nodes=2, processes=2, distribution="mpi", name="mpi")
    assert kernel.ended(run).state == "completed", run.logs()
    found = ranks_of(kernel, run, 4)
    assert [row[:2] for row in found] == [[str(rank), "4"] for rank in range(4)]
    assert [row[2] for row in found] == ["0", "1", "0", "1"] and [row[3] for row in found] == ["n1", "n1", "n2", "n2"]


@needs_mpirun
def test_process_of_mpi_that_fails_on_second_node_ends_the_run(kernel: Kernel) -> None:
    fails = "if os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n    raise ValueError('no data')\n"
    code = f"import os, time\n{fails}time.sleep(600)"
    run = kernel.submit(code, nodes=2, processes=1, distribution="mpi", name="mpi-fails")
    record = kernel.ended(run)
    assert record.state == "failed" and "no data" in record.error


@pytest.fixture
def no_mpirun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A PATH with Slurm and the shell, and no mpirun."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in (
        "sh",
        "bash",
        "true",
        "sed",
        "env",
        "python3",
        "srun",
        "sbatch",
        "squeue",
        "scancel",
        "scontrol",
        "sinfo",
    ):
        program = shutil.which(name)
        assert program is not None
        (folder / name).symlink_to(program)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.usefixtures("no_mpirun")
def test_srun_starts_processes_where_there_is_no_mpirun(kernel: Kernel) -> None:
    run = kernel.submit(RANKS, nodes=2, processes=2, distribution="mpi", name="srun")
    assert kernel.ended(run).state == "completed", run.logs()
    found = ranks_of(kernel, run, 4)
    assert [row[:2] for row in found] == [[str(rank), "4"] for rank in range(4)]
    assert {row[3] for row in found} == {"n1", "n2"}


@pytest.mark.usefixtures("no_mpirun")
def test_cancel_ends_processes_of_srun(kernel: Kernel) -> None:
    code = "import time\nprint('up', flush=True)\ntime.sleep(600)"
    run = kernel.submit(code, nodes=2, processes=1, distribution="mpi", name="srun-stopped")
    until(run.logs, lambda text: "up" in text)
    run.cancel()
    assert kernel.ended(run).state == "canceled"


@pytest.mark.usefixtures("no_mpirun")
def test_process_of_srun_that_fails_on_second_node_ends_the_run(kernel: Kernel) -> None:
    fails = "if os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n    raise ValueError('no data')\n"
    code = f"import os, time\n{fails}time.sleep(600)"
    run = kernel.submit(code, nodes=2, processes=1, distribution="mpi", name="srun-fails")
    record = kernel.ended(run)
    assert record.state == "failed" and "no data" in record.error
