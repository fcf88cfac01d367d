"""Runs outlive their compute: the service keeps them, and so do lists, outputs and handles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.azure.conftest import Azure
from tests.azure.notebook_session import SIZE, NotebookSession, cluster_of

pytestmark = pytest.mark.thorough


@pytest.fixture
def desk(azure: Azure, tmp_path: Path) -> Iterator[NotebookSession]:
    with cluster_of(azure, tmp_path) as made:
        yield made


def test_run_of_deleted_cluster_is_readable(desk: NotebookSession) -> None:
    desk.good("%%aml_submit --name kept --out answer --wait\nprint('one line')\nanswer = 42")
    handle = desk.good("import jupyter_amltrain as aml; run = aml.attach('last'); print(run.handle)").text.strip()
    assert handle.startswith("cpu/kept-")
    assert "local" in desk.good("%aml_compute delete cpu --yes --wait").text
    assert "cpu" not in desk.good("%aml_compute list").text
    assert handle in desk.good("%aml_runs").text
    assert "one line" in desk.good(f"%aml_runs logs {handle}").text
    message = "'cpu' was deleted; its runs can still be read. They are in %aml_runs list --target cpu."
    assert message in desk.bad("%%aml_submit --target cpu\nprint(1)")
    assert handle in desk.good("%aml_runs list --target cpu").text
    assert desk.good("print(aml.attach('last').result('answer'))").text.strip() == "42"
    desk.good("%aml_compute disconnect lab --yes")
    assert handle not in desk.good("%aml_runs").text
    seen = desk.good("run").text
    assert "no longer exists" in seen and "Traceback" not in seen


def test_live_run_of_deleted_cluster_ends(desk: NotebookSession) -> None:
    desk.good("%%aml_submit --name cut\nimport time\nprint('begun', flush=True)\ntime.sleep(600)")
    desk.good("import jupyter_amltrain as aml; run = aml.attach('last')")
    desk.good("%aml_compute delete cpu --yes --wait")
    desk.cell("run.wait(100)")  # an error, when the service calls it one
    assert desk.good("print(run.state)").text.strip() in ("canceled", "failed")
    assert "cut-" in desk.good("%aml_runs").text


def test_recreated_cluster_has_old_runs(desk: NotebookSession) -> None:
    desk.good("%%aml_submit --name before --wait\nprint('of the first')")
    desk.good("%aml_compute delete cpu --yes --wait")
    desk.cluster(more="--idle-minutes 7")
    desk.good("%%aml_submit --name after --wait\nprint('of the second')")
    listed = desk.good("%aml_runs").text
    assert "before-" in listed and "after-" in listed


def test_refused_recreate_keeps_old_runs(desk: NotebookSession) -> None:
    desk.good("%%aml_submit --name before --wait\nprint('of the first')")
    desk.good("%aml_compute delete cpu --yes --wait")
    body = {"error": {"code": "BadRequest", "message": "This cannot be made today."}}
    desk.azure.control("/fault", match=r"PUT .*computes/cpu", times=1, status=400, body=body)
    assert "cannot be made today" in desk.bad(f"%aml_compute create cpu --kind amlcompute --size {SIZE} --yes --wait")
    assert "before-" in desk.good("%aml_runs").text
    assert "of the first" in desk.good("%aml_runs logs last").text
    desk.cluster()
    assert "before-" in desk.good("%aml_runs list --target cpu").text


def test_live_run_of_deleted_cluster_blocks_disconnect(desk: NotebookSession) -> None:
    desk.good("%%aml_submit --name cut\nimport time\ntime.sleep(600)")
    desk.good("import jupyter_amltrain as aml; run = aml.attach('last').accepted()")
    desk.azure.control("/fault", match=r"(GET|POST) .*(/jobs|/runs|/history)", times=10_000, status=503)
    desk.good("%aml_compute delete cpu --yes --wait")
    assert "(cpu/cut-" in desk.bad("%aml_compute disconnect lab")
    desk.steady()
    desk.good("%aml_compute disconnect lab --yes")


def test_cluster_of_other_workspace_does_not_adopt_runs(desk: NotebookSession) -> None:
    desk.good("%%aml_submit --name theirs --wait\nprint('of the first')")
    desk.good("%aml_compute delete cpu --yes --wait")
    path = desk.home / "targets.json"
    value = json.loads(path.read_text())
    value["past"]["cpu"]["workspace"] = "elsewhere"  # as if it had been another workspace's
    path.write_text(json.dumps(value))
    message = desk.bad(f"%aml_compute create cpu --kind amlcompute --size {SIZE} --max-nodes 1 --yes --wait")
    assert "deleted 'cpu'" in message
    message = desk.bad("%aml_compute create cpu --kind fake --yes --wait")
    assert "deleted 'cpu'" in message
