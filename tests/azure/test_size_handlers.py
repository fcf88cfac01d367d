"""The list of machine sizes for the form of a new target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain.azure.catalog import GIB, Quotas, Size
from jupyter_amltrain.azure.ops.sizes import GetSizes, SizesReply, size_rows
from jupyter_amltrain.frontend.handlers import RequestHandlers
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.state_dir import StateRoot
from tests.helpers import DEADLINE

V100 = Size(
    name="Standard_NC6s_v3",
    family="standardNCSv3Family",
    cpus=6,
    memory=112.0 * GIB,
    gpus=1,
    gpu_name="NVIDIA V100",
    gpu_memory=16.0 * GIB,
    low_priority=False,
    price=3.06,
    price_low=0.61,
)


@pytest.fixture
def controller(home: Path) -> Iterator[Controller]:
    made = Controller(StateRoot(home))
    yield made
    made.close()


def test_sizes_request_without_workspace_returns_error(controller: Controller) -> None:
    handlers = RequestHandlers(controller)
    reply = controller.loop.call(handlers.answer(GetSizes(kind="amlcompute")), DEADLINE)
    assert isinstance(reply, SizesReply) and reply.ok and not reply.sizes
    assert "workspace" in reply.error


def test_size_rows_have_gpu_price_quota_and_retirement() -> None:
    quotas = Quotas([{"family": "standardNCSv3Family", "used": 6, "limit": 24}])
    (row,) = size_rows([V100], quotas)
    assert (row.gpus, row.gpu, row.price, row.fit) == (1, "NVIDIA V100 16 GB", 3.06, 3)
    assert row.price_low is None and row.fit_low is None  # not offered as a low-priority machine
    assert row.retired and row.retirement.startswith("retired")
    (unknown,) = size_rows([V100], Quotas())
    assert unknown.fit is None
