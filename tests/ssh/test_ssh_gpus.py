"""A machine over SSH with GPUs, of a fake driver library under the real pynvml: slots, verdict, monitor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import RunCanceled, RunFailed
from tests.fakes import nvml
from tests.helpers import until
from tools.openssh import Sshd

from .test_ssh_runs import attach


@pytest.fixture
def gpu_box(tmp_path: Path, sshd: Sshd) -> Iterator[Sshd]:
    """A server whose sessions find two GPUs that no process uses."""
    driver = {"LD_LIBRARY_PATH": str(nvml.needed()), "AMLTRAIN_FAKE_NVML_GPUS": "2"}
    made = Sshd(tmp_path / "gpu-box", {**sshd._environ, **driver, "AMLTRAIN_FAKE_NVML_PROCESSES": str(tmp_path / "no")})
    yield made
    made.stop()


@pytest.mark.thorough
def test_unused_gpu_there_stops_run_with_verdict(api: Any, gpu_box: Sshd) -> None:
    attach(api, gpu_box)
    code = "import os, time\nprint(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\ntime.sleep(600)"
    run = api.submit(code, target="box", gpus=1, require_gpu="stop", gpu_grace=3.0)
    until(lambda: run.logs().startswith("GPU-"), "it runs on one of the GPUs")
    with pytest.raises(RunFailed):
        run.wait(120)
    record = run.record()
    assert record.reason == "gpu-unused" and record.truth is not None and record.gpu is not None
    assert len(record.gpu.gpus) == 1


@pytest.mark.thorough
def test_monitor_shows_gpus_there_without_a_run(api: Any, gpu_box: Sshd) -> None:
    attach(api, gpu_box)
    monitor = api.monitor("box", rate=10)
    until(lambda: monitor.record().gpu is not None and len(monitor.record().gpu.gpus) == 2, "both GPUs")
    assert monitor.record().handle.startswith("box/") and not api.runs()


@pytest.mark.thorough
def test_two_halves_share_a_gpu_there_and_its_row_names_them(api: Any, gpu_box: Sshd) -> None:
    attach(api, gpu_box)
    code = "import os, time\nprint(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\ntime.sleep(600)"
    runs = [api.submit(code, target="box", gpus=0.5, name=name) for name in ("first", "second")]
    until(lambda: all(run.logs().startswith("GPU-") for run in runs), "both run")
    assert len({run.logs().split()[0] for run in runs}) == 1
    shared = next(gpu for gpu in api.compute("box").gpus if gpu["assigned"])
    assert shared["assigned"] == 1 and {user["run"] for user in shared["users"]} == {run.run.run_id for run in runs}
    for run in runs:
        run.cancel()
        with pytest.raises(RunCanceled):
            run.wait(60)
