"""What a person meets at a notebook over the emulated Azure: computes that are off or gone, and wrong input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_amltrain.commands import compute
from jupyter_amltrain.session import controller
from tests.azure.conftest import Azure
from tests.azure.lab import SIZE, carry_out, lab, submit
from tests.places import DEADLINE, until


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("user")) as module:
        yield module


def row(name: str) -> dict[str, Any]:
    """A target as ``%aml_compute list`` has it."""
    return next(row for row in compute.listing() if row["target"] == name)


async def _deleted(backend: Any, name: str) -> None:
    await backend(name).ask("computes.delete", lambda text: None, DEADLINE, name=name)


def test_job_for_a_stopped_instance_names_the_line_that_starts_it(api: Any) -> None:
    carry_out(f"create mine --kind instance --size {SIZE}")
    carry_out("stop mine")
    run = submit("--target mine", "print('on at last')").accepted(DEADLINE)
    until(lambda: "%aml_compute start mine" in run.run.status.detail, "the reason")
    assert run.state == "queued"
    carry_out("start mine")
    assert run.wait(DEADLINE).state == "completed"


def test_cluster_that_somebody_else_deleted_is_created_again(api: Any) -> None:
    carry_out(f"create team --kind amlcompute --size {SIZE} --max-nodes 2")
    assert submit("--target team", "print(1)").wait(DEADLINE).state == "completed"
    loop, backend = controller().loop, controller().backend  # the service alone is asked, as by another person
    loop.call(_deleted(backend, "team"), DEADLINE)
    until(lambda: "deleted at Azure" in row("team")["detail"], "the cluster is gone")
    carry_out(f"create team --kind amlcompute --size {SIZE} --max-nodes 4")
    assert (row("team")["state"], row("team")["max_nodes"]) == ("ready", 4)
    assert submit("--target team", "print(2)").wait(DEADLINE).state == "completed"
    assert len(api.runs("team")) == 2  # the run of the first one is still there
