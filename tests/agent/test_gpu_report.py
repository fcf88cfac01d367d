"""``python -m tests.gpu.report`` on the fake driver of a recorded GPU: the costs are measured, CUDA is skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import nvml
from tests.fakes.nvml import h100


@pytest.mark.thorough
def test_gpu_report_has_costs_and_counted_skips() -> None:
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(nvml.needed()),
        "AMLTRAIN_FAKE_NVML_PRICES": str(h100.PRICES),
        "AMLTRAIN_FAKE_NVML_GPUS": "1",
    }
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.report"],
        env=environ,
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "Fake H100" in done.stdout and "skipped" in done.stdout
    rows = dict(line.strip("| ").split(" | ", 1) for line in done.stdout.splitlines() if line.startswith("| "))
    assert "GPM" in rows["sources"] and "Samples" in rows["CPU of a call, us"]
