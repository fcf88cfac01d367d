"""Runs on a real cluster of two nodes, from its login node: the main path."""

from __future__ import annotations

import json
import os

import pytest

from tests.slurm.conftest import Kernel, until


def test_cell_returns_log_result_and_samples(kernel: Kernel) -> None:
    code = "import os, time\nprint('job', os.environ['SLURM_JOB_ID'], flush=True)\ntime.sleep(0.5)\nx = 6 * 7"
    run = kernel.submit(code, out=["x"], gpus=1, memory="200M", cpus=1, name="first")
    assert run.wait().result("x") == 42
    assert run.logs().strip() == f"job {kernel.job(run)}"
    folder = kernel.folder(run)
    header = json.loads((folder / "telemetry" / "node-0.jsonl").read_text().splitlines()[0])
    assert header["columns"][:2] == ["seq", "t"]
    assert kernel.ended(run).state == "completed"
    script = (folder / "slurm.sh").read_text()
    assert "--gpus-per-node=1" in script and "--mem=200M" in script and "--cpus-per-task=1" in script


def test_row_has_no_field_that_the_form_hides(kernel: Kernel) -> None:
    fields = kernel.row().fields
    assert fields["partition"] == "main" and "proven" not in fields


def test_waiting_job_says_why_and_is_canceled(kernel: Kernel) -> None:
    run = kernel.submit("print('never')", options=["--hold"], name="held")
    record = until(run.record, lambda found: "JobHeldUser" in (found.detail or ""))
    assert record.state == "queued" and f"scontrol release {kernel.job(run)}" in record.detail
    run.cancel()
    assert kernel.ended(run).state == "canceled" and run.logs() == ""


def test_secret_is_in_no_file(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os\nprint(len(os.environ['SLURM_TEST_TOKEN']))"
    run = kernel.submit(code, secrets={"SLURM_TEST_TOKEN": "s3cret-of-a-run"}, name="secret")
    run.wait()
    assert run.logs().strip() == "15"
    for folder, _, names in os.walk(kernel.folder(run)):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                assert b"s3cret-of-a-run" not in file.read(), name


def test_dry_run_prints_the_script_and_sends_nothing(kernel: Kernel) -> None:
    from jupyter_amltrain.commands.submit import parse_submit, plan_text

    line = "--target cluster --nodes 2 --gpus 1 --timeout 5m --option=--nice=5"
    text = plan_text(parse_submit(line.split(), "print(1)"))
    assert text.startswith("#!/bin/bash") and "#SBATCH --nodes=2" in text and "#SBATCH --nice=5" in text
    assert not kernel.cluster.jobs()


def test_refused_job_is_one_sentence_and_leaves_nothing(kernel: Kernel) -> None:
    from jupyter_amltrain.errors import SubmitError

    with pytest.raises(SubmitError, match="[Ii]nvalid partition"):
        kernel.submit("print(1)", options=["--partition=nowhere"], name="refused")
    assert not [path for path in kernel.runs_folder.glob("*") if path.name.startswith((".new-", "refused"))]


@pytest.mark.thorough
def test_overview_shows_nodes_and_own_jobs(kernel: Kernel) -> None:
    run = kernel.submit("import time\ntime.sleep(60)", gpus=1, name="shown")
    until(run.record, lambda found: found.state == "running")
    text, rows = kernel.api.target_overview("cluster")
    assert run.handle.partition("/")[2] in text and any(row["table"] == "nodes" for row in rows)
    assert any(line.split()[:1] == ["main"] and line.split()[-2:] == ["3", "4"] for line in text.splitlines())
    run.cancel()
    kernel.ended(run)
