"""A job that the service has is never called refused, and never sent twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.notebook_session import NotebookSession, cluster_of

PUT = r"PUT management\S+/jobs/"
FILE = """\
type: command
command: echo yaml-${{inputs.number}}
inputs: {number: 1}
environment: azureml:AzureML-ACPT-pytorch-2.8-cuda12.6@latest
compute: azureml:cpu
"""


@pytest.fixture(scope="module")
def desk(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotebookSession]:
    with cluster_of(azure, tmp_path_factory.mktemp("once")) as made:
        (made.home / "job.yml").write_text(FILE)
        yield made


@pytest.mark.thorough
@pytest.mark.parametrize("cell", ["%%aml_submit --name NAME\nprint(1)", "%aml_submit HOME/job.yml --name NAME"])
@pytest.mark.parametrize(
    "faults",
    [
        [{"times": 1, "cut": 30}, {"times": 99, "status": 409}],  # the second try finds the first one's job
        [{"times": 99, "cut": 30}],  # no try has an answer
    ],
    ids=["taken", "silent"],
)
def test_accepted_azure_job_becomes_one_run(desk: NotebookSession, cell: str, faults: list[dict[str, Any]]) -> None:
    before = desk.jobs()
    for fault in faults:
        desk.azure.control("/fault", match=PUT, **fault)
    try:
        desk.good(cell.replace("NAME", f"once{len(desk.outputs)}").replace("HOME", str(desk.home)))
    finally:
        desk.steady()
    assert len(desk.jobs()) == len(before) + 1
