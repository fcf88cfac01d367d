"""A job of two nodes with two processes each: they find each other, their logs are one, each node is measured once."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.connected_api import lab, log, submit
from tests.helpers import DEADLINE

FLAGS = "--target cpu --nodes 2 --processes 2 --distribution pytorch --out total"
#: Every process sends its rank to the first one and receives the sum.
SOCKETS = """\
import os, socket, time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
node, local = int(os.environ["NODE_RANK"]), int(os.environ["LOCAL_RANK"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    others, total = [], 0
    with socket.create_server(place) as server:
        while len(others) < world - 1:
            other, _ = server.accept()
            others.append(other)
            total += int(other.makefile().readline())
    for other in others:
        other.sendall(f"{total}\\n".encode())
else:
    end = time.monotonic() + 120
    while True:
        try:
            first = socket.create_connection(place, 30)
            break
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)
    first.sendall(f"{rank}\\n".encode())
    total = int(first.makefile().readline())
print(f"rank {rank} of {world} is process {local} of node {node}: {total}", flush=True)
time.sleep(1.5)
"""
TORCH = """\
import os, torch, torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank())])
dist.all_reduce(value)
total = int(value.item())
rank = dist.get_rank()
local, node = os.environ["LOCAL_RANK"], os.environ["NODE_RANK"]
print(f"rank {rank} of {dist.get_world_size()} is process {local} of node {node}: {total}", flush=True)
import time; time.sleep(1.5)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("ranks")) as module:
        yield module


def check(api: Any, cell: str) -> None:
    run = submit(FLAGS, cell).wait(DEADLINE)
    lines = [line for line in log(run).splitlines() if " is process " in line]
    assert sorted(lines) == [
        f"[rank {rank}] rank {rank} of 4 is process {rank % 2} of node {rank // 2}: 6" for rank in range(4)
    ]
    assert run.result("total") == 6 and run.run.status.nodes == 2
    frame = run.telemetry()
    assert sorted(set(frame["node"])) == [0, 1]
    # One sampler on each node: its ticks are numbered without a gap and without a second of the same number.
    for node in (0, 1):
        ticks = _ticks(api, run, node)
        assert len(ticks) >= 2 and ticks == list(range(len(ticks)))
    assert not _ticks(api, run, 2)


def _ticks(api: Any, run: Any, node: int) -> list[int]:
    seen = run.run

    async def read() -> bytes:
        backend = api.controller().backend(seen.target)
        return bytes((await backend.read(seen.run_id, f"telemetry/{node}", 0)).data)

    data = api.controller().loop.call(read(), DEADLINE)
    return [json.loads(line)[0] for line in data.splitlines() if line.startswith(b"[")]


@pytest.mark.thorough
def test_four_ranks_on_two_nodes_communicate(api: Any) -> None:
    check(api, SOCKETS)


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch on this machine")
def test_gloo_all_reduce_sums(api: Any) -> None:
    check(api, TORCH)
