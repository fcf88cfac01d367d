"""Scripts of distributed jobs, and what they need."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")

#: Prints rank and sum of all ranks; the sum is also `total`.
ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.ones(1) * (rank + 1)
dist.all_reduce(total)
total = int(total)
print("rank", rank, "of", world, "sum", total, flush=True)
"""
#: Its end: without it PyTorch may abort when a process of it exits.
LEAVE = "dist.destroy_process_group()\n"
#: The end of DistributedDataParallel: the module holds the process group, whose threads abort a process that exits
#: before they end ("terminate called without an active exception"; PyTorch 2.13 with gloo, one run of 30 on a busy
#: machine, also with plain torchrun; none of 135 with these lines).
LEAVE_DDP = "import gc\ndel model, loss, optimizer\ngc.collect()\n" + LEAVE

#: Seeded training by DistributedDataParallel; rank 0 logs the loss of each step.
TRAINING = (
    """
import mlflow, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(64, 4)
target = data @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
for step in range(10):
    loss = torch.nn.functional.mse_loss(model(data[rank::world]), target[rank::world])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        mlflow.log_metric("loss", mean.item() / world, step=step)
dist.barrier()  # a process that leaves while another one still works may abort in gloo
"""
    + LEAVE_DDP
)

#: What each launcher tells a process, printed as JSON; no framework is needed.
ENVIRONMENT = """
import json, os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG",
         "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "AML_OUTPUT_DIR")
print(json.dumps({name: os.environ[name] for name in names if name in os.environ}))
"""
