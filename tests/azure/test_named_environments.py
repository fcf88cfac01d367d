"""Named environments of a workspace by ``%aml_env``, on the emulated Azure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.registry import Context
from jupyter_amltrain.commands.registry import run as run_command
from jupyter_amltrain.errors import CommandError
from tests.azure.conftest import Azure
from tests.azure.connected_api import lab

CONDA = "channels: [conda-forge]\ndependencies:\n- python=3.11\n- pip\n- pip:\n  - {package}\n"
IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:latest"


@pytest.fixture(scope="module")
def api(azure: Azure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with lab(azure, tmp_path_factory.mktemp("named")) as module:
        yield module


def line(text: str) -> str:
    return run_command("env", shlex.split(text), Context(prog="%aml_env")).text


def test_environments_of_azure_are_listed_and_shown(api: Any) -> None:
    rows = api.environments(target="cpu")
    row = next(row for row in rows if row.names == ("AzureML-sklearn-1.5",))
    assert row.curated and row.version and not any("anonymous" in row.key.lower() for row in rows)
    assert "AzureML-sklearn-1.5" in line("list --target cpu")
    shown = line("show AzureML-sklearn-1.5@latest --target cpu")
    assert "image" in shown and row.version in shown
    assert line(f"show AzureML-sklearn-1.5:{row.version} --target cpu") == shown


def test_list_without_target_has_those_of_workspaces(api: Any, azure: Azure) -> None:
    text = line("list")
    assert "No environments yet" in text and "AzureML-sklearn-1.5" in text and "Workspace lab (--target cpu)" in text
    found = run_command("env", ["list"], Context(prog="%aml_env")).data
    assert [row.key for row in found] == [row.key for row in api.environments(target="cpu")]
    azure.control("/fault", match="/environments", times=50, status=403, body={"error": {"code": "Forbidden"}})
    try:
        assert "Workspace lab is not listed" in line("list")
    finally:
        azure.control("/faults", clear=True)


@pytest.mark.parametrize("name", ["nothing", "AzureML-sklearn-1.5:999999", "azureml:nothing@latest"])
def test_unknown_environment_or_version_is_refused(api: Any, name: str) -> None:
    with pytest.raises(CommandError, match=name.removeprefix("azureml:").removesuffix("@latest")) as caught:
        line(f"show {name} --target cpu")
    assert caught.value.code == "environment.unknown" and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("create AzureML-mine conda.yml --target cpu", "environment.name"),
        ("create mine --target cpu", "environment.file"),
        ("create mine kernel --target cpu", "environment.file"),
        ("freeze AzureML-sklearn-1.5 --target cpu", "environment.unsupported"),
        ("delete AzureML-sklearn-1.5 --target cpu", "environment.unsupported"),
    ],
)
def test_line_that_azure_cannot_carry_out_is_refused(api: Any, text: str, code: str) -> None:
    Path("conda.yml").write_text(CONDA.format(package="pandas"))
    with pytest.raises(CommandError) as caught:
        line(text)
    assert caught.value.code == code and "\n" not in str(caught.value)


@pytest.mark.thorough  # the SDK's import alone takes seconds
def test_environment_is_registered_from_conda_file_requirements_and_image(api: Any) -> None:
    Path("conda.yml").write_text(CONDA.format(package="pandas==2.2.2"))
    Path("requirements.txt").write_text("polars==1.0\n")
    assert "mine:1" in line("create mine conda.yml --target cpu")
    assert "mine:2" in line("create mine requirements.txt --target cpu")
    assert "mine:3" in line(f"create mine {IMAGE} --target cpu")
    row = api.environment("mine", target="cpu")
    assert (row.version, row.versions, row.image) == ("3", ("3", "2", "1"), IMAGE)
    first, second = (api.environment(f"mine:{version}", target="cpu") for version in (1, 2))
    assert "pandas==2.2.2" in "\n".join(first.requested) and "polars==1.0" in "\n".join(second.requested)
    assert api.environments(target="cpu")[0].key == "mine:3"
    assert "mine" in line("list --target cpu").splitlines()[1] and "3, 2, 1" in line("show mine --target cpu")
    run = api.submit("print(1)", target="cpu", environment="mine@latest", gpus=0)
    assert run.wait(120).logs()
    assert all("mine" not in row.names for row in api.environments(target="local"))
