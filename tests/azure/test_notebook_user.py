"""What a person meets at a notebook over the emulated Azure: computes that are off or gone, and wrong input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_amltrain.commands import compute
from jupyter_amltrain.commands.registry import Context
from jupyter_amltrain.commands.registry import run as run_command
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.kernel.session import controller
from tests.azure.conftest import Azure
from tests.azure.connected_api import SIZE, carry_out, lab, submit
from tests.helpers import DEADLINE, until

#: The first sentence is recorded; the lists after it are ours.
NO_REGION = {
    "error": {
        "code": "NoRegisteredProviderFound",
        "message": "No registered resource provider found for location 'mars' and API version '2023-08-01-preview' for"
        " type 'locations/vmSizes'. The supported api-versions are '2018-03-01-preview, 2024-10-01'. The supported"
        " locations are 'eastus, eastus2, westeurope'.",
    }
}


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("user")) as module:
        yield module


def row(name: str) -> dict[str, Any]:
    """A target as ``%aml_compute list`` has it."""
    return next(row for row in compute.listing() if row["target"] == name)


async def _deleted(backend: Any, name: str) -> None:
    await backend(name).compute.request("computes.delete", lambda text: None, DEADLINE, name=name)


@pytest.mark.thorough
def test_instance_is_edited_and_shown(api: Any) -> None:
    carry_out(f"create desk --kind instance --size {SIZE} --idle-shutdown 2h")

    def edit(line: str) -> str:
        return run_command("compute", ["edit", "desk", *line.split()], Context(prog="%aml_compute")).text

    assert "after 30 min idle" in edit("--idle-shutdown 30m") and "18:30 UTC" in edit("--schedule-stop 18:30")
    assert "30 min idle, and at 18:30 UTC" in compute.show_text(api.compute("desk"))
    assert row("desk")["fields"]["idle_shutdown"] == 30 and row("desk")["stops"] == api.compute("desk").stops
    assert "does not stop" in edit("--idle-shutdown off --schedule-stop off")
    with pytest.raises(CommandError) as caught:
        edit("--share-gpus yes")
    assert "sharing" in str(caught.value)


@pytest.mark.thorough
def test_job_on_stopped_instance_names_start_line(api: Any) -> None:
    carry_out(f"create mine --kind instance --size {SIZE}")
    carry_out("stop mine")
    run = submit("--target mine", "print('on at last')").accepted(DEADLINE)
    until(lambda: "%aml_compute start mine" in run.run.status.detail, "the reason")
    assert run.state == "queued"
    carry_out("start mine")
    assert run.wait(DEADLINE).state == "completed"


@pytest.mark.thorough
def test_externally_deleted_cluster_is_created_again(api: Any) -> None:
    carry_out(f"create team --kind amlcompute --size {SIZE} --max-nodes 2")
    assert submit("--target team", "print(1)").wait(DEADLINE).state == "completed"
    loop, backend = controller().loop, controller().backend  # the service alone is asked, as by another person
    loop.call(_deleted(backend, "team"), DEADLINE)
    until(lambda: "deleted in Azure" in row("team")["detail"], "the cluster is gone")
    carry_out(f"create team --kind amlcompute --size {SIZE} --max-nodes 4")
    assert (row("team")["state"], row("team")["max_nodes"]) == ("ready", 4)
    assert submit("--target team", "print(2)").wait(DEADLINE).state == "completed"
    assert len(api.runs("team")) == 2  # the run of the first one is still there


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sizes --region mars", ("no region 'mars'", "--region")),
        ("sizes --region eastu", ("no region 'eastu'", "eastus")),
        (
            "create gpus --kind amlcompute --size Standard_ND96asr_v4 --max-nodes 9",
            ("--max-nodes", "864 cores", "quota"),
        ),
        (
            "attach vm1 --kind vm --ssh-user me --password-from NOPE --resource-id /subscriptions/"
            "00000000-0000-0000-0000-000000000000/resourceGroups/r/providers/Microsoft.Compute/virtualMachines/v",
            ("--password-from", "NOPE"),
        ),
    ],
)
def test_invalid_azure_input_is_refused_before_start(api: Any, azure: Azure, line: str, words: tuple[str, ...]) -> None:
    azure.control("/fault", match=r"/locations/(mars|eastu)/", times=1, status=400, body=NO_REGION)
    words_of_line = [*line.split(), *([] if "sizes" in line else ["--yes"])]
    with pytest.raises(CommandError) as caught:
        run_command("compute", words_of_line, Context(prog="%aml_compute"))
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)
    assert not {"gpus", "vm1"} & {target.name for target in api.targets()}
    azure.control("/faults", clear=True)


def test_azure_secret_is_refused_before_prompt(api: Any) -> None:
    with pytest.raises(CommandError) as caught:
        submit("--target cpu --secret HUB_TOKEN", "print(1)")
    assert "Key Vault" in str(caught.value) and "getpass" not in str(caught.value)
