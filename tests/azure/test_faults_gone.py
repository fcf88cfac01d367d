"""What somebody else has deleted, and what only seems to be gone for a moment."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.azure.conftest import Azure
from tests.azure.followed_runs import assert_complete, start_run
from tests.azure.notebook_session import SIZE, NotebookSession, cluster_of, until

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def desk(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotebookSession]:
    with cluster_of(azure, tmp_path_factory.mktemp("runs")) as made:
        yield made


def deleted(desk: NotebookSession, path: str) -> None:
    """As somebody else would, with the studio."""
    desk.azure.control("/gone", below=path)


def test_submit_to_deleted_compute_is_refused(desk: NotebookSession) -> None:
    desk.good(f"%aml_compute create doomed --kind amlcompute --size {SIZE} --yes --wait")
    deleted(desk, "/computes/doomed")
    message = desk.bad("%%aml_submit --name late --target doomed\nprint(1)")
    assert "There is no compute 'doomed'" in message
    assert not [j for j in desk.jobs() if j.startswith("late")]
    assert "doomed" in desk.good("%aml_compute list").text
    assert "There is no compute 'doomed'" in desk.bad("%aml_compute test doomed")
    desk.good("%aml_compute delete doomed --yes --wait")
    assert "doomed" not in desk.good("%aml_compute list").text


#: As ARM says it of the assert_complete workspace, and as run history and ARM say it of one job.
PASSING = {
    "workspace": {
        "error": {
            "code": "ResourceNotFound",
            "message": "The Resource 'Microsoft.MachineLearningServices/workspaces/ml-dev' under resource group 'ml'"
            " was not found.",
        }
    },
    "job": {"error": {"code": "UserError", "message": "Run was not found."}},
}


@pytest.mark.parametrize("what", PASSING)
def test_transient_404_keeps_run(desk: NotebookSession, what: str) -> None:
    """A server of the service may lag behind the others, and say so for seconds."""
    run = start_run(desk, f"passing-{what}", lines=80)
    desk.azure.control("/fault", match=r"GET (management|eastus)\S+", times=10**6, status=404, body=PASSING[what])
    until(lambda: what == "job" or not run.run.reachable)
    time.sleep(4.0)
    assert run.run.status.state.value != "lost"
    desk.steady()
    assert_complete(run, 80)


def test_deleted_workspace_marks_run_lost(azure: Azure, tmp_path: Path) -> None:
    from jupyter_amltrain import api

    with cluster_of(azure, tmp_path) as desk:
        run = start_run(desk, "homeless")
        deleted(desk, "")
        until(lambda: not run.run.reachable)
        for cell in ("%%aml_submit --name never\nprint(1)", "%aml_runs list --target cpu", desk.connect_line):
            message = desk.bad(cell)
            assert re.search(r"ml-dev|lab", message) and re.search(r"no |not found|gone", message, re.I), message
        until(lambda: run.run.status.state.value == "lost", "that the run is lost", 30)
        for word in ("ml-dev", f"%aml_runs logs {run.handle}", "%aml_compute connect"):
            assert word in run.run.error
        assert "line 1\n" in desk.good(f"%aml_runs logs {run.handle}").text  # what was returned stays
        assert "no workspace 'ml-dev'" in desk.good("%aml_compute list").text
        api.close()
        message = desk.bad(f"%aml_runs attach {run.handle}")
        path = re.search(r"log of homeless-\w+ that was read is kept: (\S+) ", message)
        assert path and "line 1\n" in Path(path[1]).expanduser().read_text(), message
