"""Which GPUs a run gets, from the kernel: its CUDA_VISIBLE_DEVICES, --env-var, --gpu-ids."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_amltrain.errors import AmlTrainError
from tests.fakes import driver as fake
from tests.fakes.driver import SwitchableDriver

from .conftest import Cell

SEEN = "import os\nseen = [os.environ.get(n) for n in ('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER')]"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SwitchableDriver:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake.needed(tmp_path, 4).use(monkeypatch)


@pytest.mark.thorough
def test_submit_respects_cuda_visible_devices_of_kernel(
    driver: SwitchableDriver, ip: InteractiveShell, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(flags: str) -> Any:
        cell(f"%%aml_submit --wait --out seen --as run {flags}\n{SEEN}")
        return ip.user_ns["run"].result("seen")

    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "3")
    assert seen("") == [driver.uuid(3), None]
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "2,1")
    assert seen("--gpus 2 --gpu-ids index") == ["2,1", "PCI_BUS_ID"]
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "")
    assert seen("") == ["", None]


@pytest.mark.thorough
def test_cuda_visible_devices_of_run_is_kept_or_refused(
    driver: SwitchableDriver, ip: InteractiveShell, cell: Cell, fails: Callable[[str], AmlTrainError]
) -> None:
    cell(f"%%aml_submit --wait --out seen --as run --gpus 0 --env-var CUDA_VISIBLE_DEVICES=2\n{SEEN}")
    assert ip.user_ns["run"].result("seen") == ["2", None]
    for flags in ("--gpus 1", ""):
        message = str(fails(f"%%aml_submit --wait {flags} --env-var CUDA_VISIBLE_DEVICES=2\n{SEEN}"))
        assert "CUDA_VISIBLE_DEVICES" in message and "--gpus 0" in message
    ip.user_ns["code"] = SEEN
    cell(
        "from jupyter_amltrain import api as aml\n"
        "run = aml.submit(code, env={'CUDA_VISIBLE_DEVICES': '1'}, gpus=0, out=['seen']).wait()"
    )
    assert ip.user_ns["run"].result("seen") == ["1", None]
    assert "--gpus 0" in str(fails("aml.submit(code, env={'CUDA_VISIBLE_DEVICES': '1'})"))
