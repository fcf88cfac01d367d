"""Runs on both nodes of a real cluster, and sweeps."""

from __future__ import annotations

import re
from typing import Any

import pytest

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


def test_sweep_submits_each_trial_once(kernel: Kernel) -> None:
    file = kernel.runs_folder.parents[3] / "work" / "trial.py"
    file.write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--x', type=float)\n"
        "x = parser.parse_args().x\nprint(f'loss={x * x}')\n"
    )
    run = kernel.api.sweep(
        str(file), goal="minimize loss", params={"x": "choice(1,2,3,4,5,6)"}, sampler="grid", target="cluster",
        max_concurrent=4, metrics=["loss=loss={value}"], name="searched",
    )  # fmt: skip
    run.wait()
    trials = list(kernel.runs_folder.glob("searched*"))
    assert len(trials) == 6
    until(kernel.cluster.jobs, lambda jobs: not jobs)
