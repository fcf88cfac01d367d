"""Faults while a run goes on: it is found again, and log and telemetry are assert_complete when they are over."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.followed_runs import LINES, assert_complete, service_request, start_run
from tests.azure.notebook_session import SIZE, NotebookSession, cluster_of, until

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def desk(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotebookSession]:
    with cluster_of(azure, tmp_path_factory.mktemp("runs")) as made:
        yield made


@pytest.fixture(autouse=True)
def steady(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test did to the service ends with it."""
    yield
    if "desk" in request.fixturenames:
        request.getfixturevalue("desk").steady()


def broken(desk: NotebookSession, what: str) -> Callable[[], None]:
    """Do `what` to the service; returns what mends it."""
    azure = desk.azure
    data = r"eastus\.api\.azureml\.ms"
    if what == "network":
        azure.control("/network", up=False)
    elif what == "connections":
        azure.control("/break-connections")
    elif what.startswith("token"):
        azure.control("/expire-tokens", revoked=what == "token-revoked")
    elif what == "signatures":
        assert azure.control("/expire-signatures")["over"]
    elif what.startswith("blob"):
        fault: dict[str, Any] = {"cut": 7} if what == "blob-cut" else {"status": int(what[-3:])}
        azure.control("/fault", match=r"GET \S+\.blob\.\S+", times=10**6, **fault)
    elif what == "slow":
        azure.control("/fault", match=data, times=3, delay=1.5)
    elif what == "429-wait":
        azure.control("/fault", match=data, times=3, status=429, headers={"Retry-After": "1"})
    else:
        fault = {"cut": 20} if what == "cut" else {"status": int(what)}
        azure.control("/fault", match=data, times=10**6, **fault)
    return desk.steady


#: What happens for a second to a run that is followed, and whether the list says that nobody answers.
DURING = {
    "network": True,
    "connections": False,
    "token-over": False,
    "token-revoked": False,
    "401": True,
    "403": True,
    "409": True,
    "429": True,
    "429-wait": False,
    "500": True,
    "503": True,
    "cut": True,
    "slow": False,
    "signatures": False,
    "blob-403": False,
    "blob-503": False,
    "blob-cut": False,
}


@pytest.mark.parametrize(
    "what", [name if name == "network" else pytest.param(name, marks=pytest.mark.thorough) for name in DURING]
)
def test_followed_run_after_fault_is_complete(desk: NotebookSession, what: str) -> None:
    run = start_run(desk, f"during-{what}")
    mend = broken(desk, what)
    if DURING[what]:
        until(lambda: not run.run.reachable)
        listed = desk.good("%aml_runs")
        assert re.search(rf"during-{what}\S+ +\w+ \(target not responding", listed.text), listed.text
        if what == "network":
            refused = desk.bad(f"%aml_runs cancel {run.handle}")
            assert "Cannot reach Azure" in refused and "Check" in refused
            assert not run.run.status.cancel_requested
            assert "Cannot reach Azure" in desk.bad("%%aml_submit --name lost\nprint('lost')")
            assert "Cannot reach Azure" in desk.bad(desk.connect_line)
    else:
        time.sleep(0.7)  # as long as it lasts for a person
    mend()
    assert_complete(run)


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [{"status": 429}, {"status": 503}, {"cut": 0}], ids=["429", "503", "cut"])
def test_refused_cancel_can_be_repeated(desk: NotebookSession, fault: dict[str, Any]) -> None:
    run = start_run(desk, "cancel", lines=600)
    desk.azure.control("/fault", match=r"POST \S+/cancel", times=10**6, **fault)
    assert "Try again" in desk.bad(f"%aml_runs cancel {run.handle}")
    assert not run.run.status.cancel_requested
    desk.steady()
    desk.good(f"%aml_runs cancel {run.handle}")
    until(lambda: run.state == "canceled")


def test_submit_with_lost_answer_is_found_later(desk: NotebookSession) -> None:
    """The service has the job, and cannot be reached: the error names that, and the run is found again."""
    from jupyter_amltrain import api

    azure = desk.azure
    azure.control("/fault", match=r"PUT management\S+/jobs/", times=1, cut=9)
    azure.control("/fault", match=r"(GET|PUT) management\S+/jobs/", times=10**6, after=1, cut=0)
    message = desk.bad("%%aml_submit --name unsure --as unsure\nprint('once')")
    name = re.search(r"not known whether (unsure-\w+) was accepted", message)
    assert name and "%aml_runs" in message and "was not submitted" not in message
    desk.steady()
    assert name[1] in desk.good("%aml_runs list --target cpu").text
    again = api.attach(f"cpu/{name[1]}")
    again.wait(30)
    assert again.logs() == "once\n" and [j for j in desk.jobs() if j.startswith("unsure-")] == [name[1]]


@pytest.mark.thorough
@pytest.mark.parametrize("point", ["azure_during_upload", "azure_before_put", "azure_after_put"])
def test_killed_service_process_during_submit_recovers(
    desk: NotebookSession, point: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is started again, and the service is asked whether it has the job."""
    from jupyter_amltrain import api

    monkeypatch.setenv("AMLTRAIN_FAILPOINT", point)
    monkeypatch.setenv("AMLTRAIN_FAILPOINT_ONCE", str(tmp_path))
    api.close()  # its process takes the environment when it starts
    name = point.replace("_", "-")
    seen = desk.cell(f"%%aml_submit --name {name} --target cpu --as killed --wait\nprint('{point}')")
    assert (tmp_path / point).exists()
    there = [j for j in desk.jobs() if j.startswith(name)]
    if point == "azure_after_put":
        assert seen.error is None and len(there) == 1
        assert desk.shell.user_ns["killed"].logs() == f"{point}\n"
    else:
        message = seen.one_line()
        assert "ended (killed by signal 9)" in message and "was not submitted" in message
        assert not there
        desk.good(f"%%aml_submit --name {name}-again --target cpu --wait\nprint('{point}')")
    monkeypatch.delenv("AMLTRAIN_FAILPOINT")
    api.close()


@pytest.mark.thorough
def test_killed_service_process_before_save_keeps_files_exact(
    desk: NotebookSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from jupyter_amltrain import api

    run = start_run(desk, "mirror")
    monkeypatch.setenv("AMLTRAIN_FAILPOINT", "azure_before_mirror_save")
    monkeypatch.setenv("AMLTRAIN_FAILPOINT_ONCE", str(tmp_path))
    api.close()
    run = api.attach(run.handle)
    until(lambda: run.logs() and (tmp_path / "azure_before_mirror_save").exists())
    assert_complete(run)
    monkeypatch.delenv("AMLTRAIN_FAILPOINT")
    api.close()


@pytest.mark.thorough
def test_preempted_low_priority_run_continues(desk: NotebookSession) -> None:
    desk.good(f"%aml_compute create spot --kind amlcompute --size {SIZE} --low-priority --yes --wait")
    run = start_run(desk, "spot", "spot")
    desk.azure.control("/preempt", job=run.run_id)
    run.wait(60)
    lines = run.logs().splitlines()
    marks = [line for line in lines if line.startswith("amltrain:")]
    assert len(marks) == 1 and "attempt 2" in marks[0]
    at = lines.index(marks[0])
    assert lines[at + 1 :] == [f"line {i}" for i in range(LINES)] and lines[:at] == lines[at + 1 :][:at]
    seq = run.telemetry()["seq"].tolist()
    assert seq == list(range(len(seq)))


@pytest.mark.thorough
def test_preempted_run_finds_its_checkpoints(desk: NotebookSession) -> None:
    desk.good(f"%aml_compute create kept --kind amlcompute --size {SIZE} --low-priority --yes --wait")
    code = (
        "import os, time\nplace = os.environ['AML_CHECKPOINT_DIR'] + '/step'\n"
        "if os.path.exists(place): print('from', open(place).read()); raise SystemExit\n"
        "open(place, 'w').write('7')\nprint('up', flush=True)\ntime.sleep(600)"
    )
    desk.good(f"%%aml_submit --name kept --target kept --max-restarts 1 --as kept\n{code}")
    run = desk.shell.user_ns["kept"]
    until(lambda: "up" in run.logs(), "the first attempt")
    time.sleep(3)  # the mount writes to the storage
    desk.azure.control("/preempt", job=run.run_id)
    run.wait(60)
    assert "from 7" in run.logs() and run.status.attempt == 2


@pytest.mark.thorough
def test_image_build_failure_is_reported(desk: NotebookSession, tmp_path: Path) -> None:
    desk.azure.control("/switch", fail_build="CliV2")
    conda = tmp_path / "bad.yml"
    conda.write_text("dependencies: [python=3.11, pip, {pip: [no-such-package]}]\n")
    cell = desk.cell(f"%%aml_submit --name image --env {conda} --wait --target cpu\nprint(1)")
    desk.azure.control("/switch", fail_build="")
    from jupyter_amltrain.errors import RunFailed

    assert isinstance(cell.error, RunFailed) and "Traceback" not in cell.text
    message = str(cell.error)
    assert "environment" in message and "%aml_runs logs" in message and "\n" not in message
    log = desk.good("%aml_runs logs image").text
    assert "environment's image" in log


@pytest.mark.thorough
def test_cluster_provisioning_failure_is_reported(desk: NotebookSession) -> None:
    """`wait --wait` says the reason, and nothing stays that could bill."""
    desk.azure.control("/switch", fail_provisioning="broken")
    message = desk.bad(f"%aml_compute create broken --kind amlcompute --size {SIZE} --yes --wait")
    desk.azure.control("/switch", fail_provisioning="")
    assert "broken" in message and len(message) > 40
    assert '"broken"' not in (desk.home / "targets.json").read_text()
    until(lambda: not [c for c in _service(desk) if c == "broken"])


def _service(desk: NotebookSession) -> list[str]:
    """Computes at the service."""
    return [row["name"] for row in service_request("computes.list")]


@pytest.mark.thorough
def test_unavailable_nodes_are_in_queued_detail(desk: NotebookSession) -> None:
    """A run that waits for ever tells why."""
    desk.azure.control("/switch", fail_allocation="nowhere")
    desk.good(f"%aml_compute create nowhere --kind amlcompute --size {SIZE} --yes --wait")
    desk.good("%%aml_submit --name stuck --target nowhere --as run\nprint(1)")
    run = desk.shell.user_ns["run"]
    assert re.search("waits for|not enough capacity", until(lambda: run.status.detail))
    desk.good(f"%aml_runs cancel {run.handle}")
    until(lambda: run.state == "canceled")
    desk.azure.control("/switch", fail_allocation="")


@pytest.mark.thorough
def test_create_beyond_quota_is_refused(desk: NotebookSession) -> None:
    desk.azure.control("/quota", standardDSv2Family=2)
    jobs, wire = desk.jobs(), len(desk.wire())
    assert wire >= 0
    message = desk.bad(f"%aml_compute create many --kind amlcompute --size {SIZE} --max-nodes 4 --yes --wait")
    assert re.search(r"quota|cores", message) and "many" in message
    assert not [w for w in desk.wire() if w["method"] == "PUT" and "/computes/" in w["path"]]
    desk.azure.control("/quota", standardDSv2Family=24)
    assert desk.jobs() == jobs


def test_run_files_hold_no_signed_address(desk: NotebookSession) -> None:
    """Signed addresses are secrets: they live in the process only."""
    run = start_run(desk, "addresses")
    run.wait(60)
    folder = Path(run.run.folder)
    assert json.loads((folder / "mirror.json").read_text())["facts"]["complete"]
    for path in folder.rglob("*"):
        if path.is_file():
            assert b"sig=" not in path.read_bytes(), path


@pytest.mark.thorough
def test_files_that_another_process_sends_are_accepted(desk: NotebookSession, tmp_path: Path) -> None:
    """The SDK checks, then uploads without overwriting: the second one is refused by the storage."""
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch\nLABEL test=sent-twice\n")
    job = tmp_path / "job.yml"
    job.write_text(
        "type: command\ncommand: echo trained\ncompute: azureml:cpu\nenvironment:\n  build:\n    path: ./context\n"
    )
    desk.azure.control(
        "/fault",
        match=r"PUT \S+\.blob\.\S+/Dockerfile",
        times=1,
        status=409,
        body="<Error><Code>BlobAlreadyExists</Code><Message>The specified blob already exists.</Message></Error>",
        headers={"x-ms-error-code": "BlobAlreadyExists"},
    )
    desk.good(f"%aml_submit {job} --wait --as sent")
    assert "trained" in desk.shell.user_ns["sent"].logs()
