"""``make azure-live`` on the sandbox: what holds there it finds to hold, what is flipped not, and nothing stays."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from azureml_emulator.switches import PACES, TABLE
from tests.azure.conftest import ROOT, Azure
from tests.azureml_emulator.test_jobs import Cloud
from tools.azure_live import CHECKED, job_checks, workspace_checks
from tools.azure_live.findings import dumped
from tools.azure_live.observed import OBSERVED

SECRET = re.compile(r"[?&]sig=|\beyJ[\w-]{8,}\.")


def started(azure: Azure, folder: Path, *more: str, **environ: str) -> subprocess.Popen[str]:
    where = ["--subscription", azure.subscription, "--resource-group", azure.resource_group]
    size = ["--size", "Standard_DS2_v2", "--seconds", "3", "--limit", "2", "--json", str(folder / "live.json")]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), **azure.environ, "AMLTRAIN_AZURE_LIVE": "1", **environ}
    return subprocess.Popen(
        [sys.executable, "-m", "tools.azure_live", *where, "--workspace", azure.workspace, *size, *more],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def nothing_stays(azure: Azure) -> None:
    cloud = Cloud(azure)
    assert azure.control("/billing") == []
    assert cloud.arm("GET", "/computes").json()["value"] == []
    assert cloud.arm("GET", "/models").json()["value"] == []
    for job in cloud.arm("GET", "/jobs", listViewType="All").json()["value"]:
        assert job["properties"]["status"] in ("Completed", "Failed", "Canceled"), job["name"]
    assert azure.control("/problems") == {"problems": [], "refused_hosts": []}


@pytest.mark.thorough
def test_live_check_of_flipped_switch_fails(azure_env: Azure, tmp_path: Path) -> None:
    azure_env.control("/switch", logs_uploaded_live=False, delete_missing=404)
    process = started(azure_env, tmp_path, "--yes")
    output, _ = process.communicate(timeout=150)
    assert process.returncode == 3, output
    text = (tmp_path / "live.json").read_text()
    found: dict[str, Any] = json.loads(text)
    results = {row["switch"]: row["result"] for row in found["rows"]}
    assert set(results) == (set(TABLE) - PACES) | set(OBSERVED)
    assert {name: results[name] for name in ("code_folder", "jobs_newest_first", "power_failure")} == dict.fromkeys(
        ("code_folder", "jobs_newest_first", "power_failure"), "holds"
    ), output
    results = {switch: result for switch, result in results.items() if switch in TABLE}
    assert {switch for switch, result in results.items() if result == "does not hold"} == {
        "logs_uploaded_live",
        "delete_missing",
    }, output
    assert {switch for switch, result in results.items() if result != "not checked"} == set(CHECKED), output
    assert (found["left"], found["bills"], found["ended early"]) == ([], [], "")
    assert not SECRET.search(text + output)
    assert "No machine in the workspace is costing money" in output and "DOES NOT HOLD" in output
    nothing_stays(azure_env)


def test_live_check_instance_failure_needs_status_and_errors() -> None:
    failed = {"lastOperation": {"operationStatus": "StartFailed"}, "errors": [{"error": {"code": "Allocation"}}]}
    assert workspace_checks.failure_found(failed) == (
        True,
        "state None, operationStatus StartFailed, errors Allocation",
    )
    assert workspace_checks.failure_found({**failed, "errors": None})[0] is False
    assert workspace_checks.failure_found({"lastOperation": {"operationStatus": "Failed"}})[0] is False
    assert workspace_checks.failure_found({"lastOperation": {"operationStatus": "Succeeded"}})[0] is None


def test_live_check_queue_reasons_need_record() -> None:
    record = ["cancelationReason", "queueingInfo", "status"]
    assert job_checks.reasons_found({})[0] is None
    assert job_checks.reasons_found({"details": ["status"], "runs/ID": record})[0] is True
    assert job_checks.reasons_found({"details": record, "runs/ID": record})[0] is False
    assert job_checks.reasons_found({"details": ["status"], "runs/ID": ["status"]})[0] is False


@pytest.mark.thorough
def test_live_check_interrupted_cleans_up(azure_env: Azure, tmp_path: Path) -> None:
    process = started(azure_env, tmp_path, "--yes")
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.strip() == "Running":
            process.send_signal(signal.SIGINT)
            break
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1, output
    assert "interrupted" in json.loads((tmp_path / "live.json").read_text())["ended early"]
    assert "NOT DELETED" not in output and "No machine in the workspace is costing money" in output
    nothing_stays(azure_env)


@pytest.mark.thorough
def test_live_check_without_confirmation_does_nothing(azure_env: Azure, tmp_path: Path) -> None:
    for more, environ, word, code in (
        (["--yes"], {"AMLTRAIN_AZURE_LIVE": ""}, "AMLTRAIN_AZURE_LIVE=1", 2),
        ([], {}, "costs less than 1 USD", 1),
    ):
        process = started(azure_env, tmp_path, *more, **environ)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == code and word in output, output
    assert azure_env.control("/wire") == []


def test_live_check_writes_no_secret() -> None:
    with pytest.raises(ValueError, match="signature or a token"):
        dumped({"url": "https://x/y?sv=1&sig=abc"})
    assert json.loads(dumped({"a": [1, None]})) == {"a": [1, None]}
