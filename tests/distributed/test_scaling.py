"""`--scaling`: a job is measured at several widths, one after another, with real processes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.errors import CommandError, RunCanceled, RunFailed
from tests.helpers import api_of, state_root, until

from .scripts import needs_torch

WAIT_S = 180.0
#: Logs without the package mlflow, whose import takes seconds; rank and number of processes as for TensorFlow.
LOG = """
import json, os, time, urllib.request
config = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}, "cluster": {"worker": ["one"]}}'))
rank, world = config["task"]["index"], len(config["cluster"]["worker"])
def call(op, **body):
    headers = {"Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"], "Content-Type": "application/json"}
    url = os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/" + op
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
def log(name, value, step):
    point = {"key": name, "value": value, "timestamp": int(time.time() * 1000), "step": step}
    call("runs/log-batch", run_id=run, metrics=[point])
run = call("runs/create", experiment_id="0")["run"]["info"]["run_id"]
"""
#: Each further process adds as much as the first one.
TRAINING = (
    LOG
    + """
for step in range(10**6):
    if rank == 0:
        log("samples_per_second", 100.0 * world, step)
    time.sleep(0.02)
"""
)
#: Seeded training by DistributedDataParallel, as in the documentation: the data are shared by rank.
DDP = """
import time, mlflow, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(2048, 64)
mine = data[rank::world]
for step in range(10**6):
    began = time.perf_counter()
    loss = model(mine).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        mlflow.log_metric("samples_per_second", len(mine) * world / (time.perf_counter() - began), step=step)
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("scaling")) as module:
        yield module


def measure(api: Any, code: str = TRAINING, **more: Any) -> Any:
    fields = {"distribution": "tensorflow", "scaling": [1, 2], "scaling_steps": 40, "name": "train", **more}
    return api.submit(code, **fields)


def spans(scaling: Any) -> list[tuple[float, float]]:
    """Begin and end of each run."""
    phases = [run.status.phases for run in scaling.runs]
    return [(found[0].start, found[-1].end or 0.0) for found in phases]


@pytest.mark.thorough
def test_widths_are_measured_one_after_another_and_compared(api: Any) -> None:
    scaling = measure(api)
    assert scaling.runs[1].state == "preparing" and scaling.runs[1].run.folder == ""
    report = scaling.wait(WAIT_S).report()
    assert [width.measurement.rate for width in report.widths] == [100.0, 200.0] and report.best == 2
    assert [(run.state, run.status.reason, run.status.ranks) for run in scaling.runs] == [
        ("completed", "slice", 1), ("completed", "slice", 2)
    ]  # fmt: skip
    first, second = spans(scaling)
    assert first[1] <= second[0]
    assert [run.tags["scaling.processes"] for run in scaling.runs] == ["1", "2"]
    assert scaling.runs[0].error() is None
    text = repr(scaling)
    assert "200" in text and "Use --processes 2." in text


@pytest.mark.thorough
def test_time_limit_counts_from_first_metric(api: Any) -> None:
    scaling = measure(api, "import time\ntime.sleep(2)\n" + TRAINING, scaling_steps=None, scaling_time=1.5)
    scaling.wait(WAIT_S)
    for run in scaling.runs:
        points = run.metrics()["samples_per_second"]
        assert points[-1][1] - points[0][1] >= 1.0


@pytest.mark.thorough
def test_run_that_ends_before_its_slice_is_measured_whole(api: Any) -> None:
    report = measure(api, TRAINING.replace("10**6", "15"), scaling_steps=1000).wait(WAIT_S).report()
    assert report.best == 2 and report.widths[1].measurement.points == 12


def test_failed_width_ends_the_rest(api: Any) -> None:
    scaling = measure(api, LOG + "raise ValueError('bad luck')\n", scaling=[1, 2, 4])
    with pytest.raises(RunFailed):
        scaling.wait(WAIT_S)
    until(lambda: all(run.status.state.terminal for run in scaling.runs), "the end of all")
    assert [run.state for run in scaling.runs] == ["failed", "canceled", "canceled"]
    assert not any(run.run.folder for run in scaling.runs[1:])
    assert len(scaling.report().verdict) == 1 and "failed" in scaling.report().verdict[0]


def test_job_without_metric_is_not_measured_at_further_widths(api: Any) -> None:
    scaling = measure(api, "print('done')\n").wait(WAIT_S)
    assert [run.state for run in scaling.runs] == ["completed", "canceled"]
    assert "samples_per_second" in scaling.report().verdict[0]


@pytest.mark.thorough
def test_processes_that_all_log_are_told(api: Any) -> None:
    scaling = measure(api, TRAINING.replace("if rank == 0:", "if True:")).wait(WAIT_S)
    assert scaling.report().best is None and "rank 0" in scaling.report().verdict[0]


def test_cancel_ends_the_running_width_and_the_rest(api: Any) -> None:
    scaling = measure(api, TRAINING, scaling=[1, 2, 4], scaling_steps=None, scaling_time=600)
    until(lambda: scaling.runs[0].state == "running", "the first width")
    scaling.cancel()
    with pytest.raises(RunCanceled):
        scaling.wait(WAIT_S)
    assert [run.state for run in scaling.runs] == ["canceled"] * 3


def test_cancel_of_the_running_width_ends_the_rest(api: Any) -> None:
    scaling = measure(api, TRAINING, scaling_steps=None, scaling_time=600)
    until(lambda: scaling.runs[0].state == "running", "the first width")
    scaling.runs[0].cancel()
    until(lambda: scaling.runs[1].status.state.terminal, "the end of the second")
    assert scaling.runs[1].state == "canceled" and not scaling.runs[1].run.folder


@pytest.mark.thorough
def test_cancel_of_a_waiting_width_leaves_the_running_one(api: Any) -> None:
    scaling = measure(api, TRAINING, scaling_steps=200)
    scaling.runs[1].cancel()
    assert scaling.runs[1].state == "canceled"
    scaling.runs[0].wait(WAIT_S)
    assert scaling.runs[0].state == "completed" and "was canceled" in scaling.report().verdict[0]


@pytest.mark.thorough
def test_report_is_the_same_in_another_kernel(api: Any) -> None:
    scaling = measure(api).wait(WAIT_S)
    api.close()
    again = type(scaling)([api.attach(handle).handle for handle in scaling.handles])
    assert again.report().verdict == scaling.report().verdict and again.report().best == 2


def test_width_that_the_target_cannot_run_is_refused_before_anything_starts(api: Any) -> None:
    before = len(api.runs())
    with pytest.raises(CommandError):
        measure(api, scaling="nodes:1,2")
    assert len(api.runs()) == before


@pytest.mark.thorough
@needs_torch
def test_ddp_is_measured_at_one_and_two_processes(api: Any) -> None:
    scaling = api.submit(DDP, scaling=[1, 2], scaling_time=8, name="ddp").wait(2 * WAIT_S)
    report = scaling.report()
    assert [run.status.ranks for run in scaling.runs] == [1, 2]
    assert [width.measurement.counted for width in report.widths] == ["samples"] * 2
    # Two shared cores: the figures are real, and which verdict they lead to is theirs.
    assert all((width.measurement.rate or 0) > 0 for width in report.widths) and report.verdict


@pytest.mark.thorough
def test_command_line_prints_table_of_all_widths(api: Any, capsys: Any) -> None:
    from jupyter_amltrain import cli

    Path("train.py").write_text(TRAINING)
    line = "submit train.py --distribution tensorflow --scaling 1,2 --scaling-steps 40"
    with contextlib.suppress(SystemExit):
        assert cli.main(line.split()) == 0
    out = capsys.readouterr().out
    assert "speed-up" in out and "Use --processes 2." in out
    assert cli.main([*line.split(), "--dry-run"]) == 0
    plans = json.loads(capsys.readouterr().out)
    assert [plan["slice"]["steps"] for plan in plans] == [40, 40] and plans[1]["ranks"]["processes"] == 2


@pytest.mark.thorough
def test_notebook_keeps_table_as_text_and_html(tmp_path: Path) -> None:
    from nbclient import NotebookClient

    cell = f"%%aml_submit --distribution tensorflow --scaling 1,2 --scaling-steps 40 --wait --as measured\n{TRAINING}"
    import nbformat  # it takes seconds

    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(text) for text in ("%load_ext jupyter_amltrain", cell, "pass")]
    with state_root(tmp_path):
        NotebookClient(notebook, timeout=int(2 * WAIT_S), kernel_name="python3").execute()
    (output,) = [found for found in notebook.cells[1].outputs if "data" in found]
    for kind in ("text/plain", "text/html"):
        assert "efficiency" in output["data"][kind] and "Use --processes 2." in output["data"][kind]
