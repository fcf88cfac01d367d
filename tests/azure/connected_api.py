"""The plain functions over the emulated Azure: a connected workspace with a cluster of two nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.azure.conftest import Azure
from tests.helpers import api_of

if TYPE_CHECKING:
    from jupyter_amltrain.loop import LoopThread
    from jupyter_amltrain.state_dir import StateRoot

SIZE = "Standard_DS2_v2"


def carry_out(line: str) -> str:
    """What ``%aml_compute LINE --wait`` says."""
    from jupyter_amltrain.commands.registry import Context, run

    words = [*line.split(), "--yes", "--wait"]
    return run("compute", words, Context(prog="%aml_compute", notify=lambda line: None)).text


def connect(azure: Azure) -> None:
    """The sandbox's workspace, as ``lab``."""
    from jupyter_amltrain.commands.registry import Context, run

    line = f"connect --subscription {azure.subscription} --resource-group {azure.resource_group} --name lab"
    run("compute", [*line.split(), "--workspace", azure.workspace], Context(prog="%aml_compute"))


async def store_workspace(loop: LoopThread, root: StateRoot, azure: Azure, **more: str) -> dict[str, Any]:
    """Connect the sandbox's workspace and store its facts, without a controller; the service's answer."""
    from jupyter_amltrain.azure.client import client_of
    from jupyter_amltrain.azure.workspace_file import WorkspaceFacts, WorkspaceFile

    found: dict[str, Any] = await client_of(loop, root).request("workspace.connect", {**azure.where, **more})
    facts = {field: found[field] for field in WorkspaceFacts.__struct_fields__ if field in found}
    WorkspaceFile(root).put(WorkspaceFacts(**facts))
    return found


@contextlib.contextmanager
def lab(azure: Azure, folder: Path, **more: str) -> Iterator[Any]:
    """``jupyter_amltrain.api`` with the workspace ``lab`` and the targets ``cpu`` and ``free`` (serverless)."""
    azure.control("/reset")
    azure.control("/switch", scale_seconds=0.1, create_seconds=0.05)
    quick = {"AMLTRAIN_AZURE_BACKOFF": "0.02", "AMLTRAIN_AZURE_WARM": "0"}
    with api_of(folder, **azure.environ, **quick, **more) as api:
        connect(azure)
        carry_out(f"create cpu --kind amlcompute --size {SIZE} --max-nodes 2")
        carry_out(f"create free --kind serverless --size {SIZE}")
        yield api


def submit(line: str, cell: str | None = None) -> Any:
    """What ``%aml_submit LINE`` gives."""
    from jupyter_amltrain.commands import magic_line
    from jupyter_amltrain.commands import submit as command

    prog = "%%aml_submit" if cell else "%aml_submit"
    return command.send(command.parse_submit(magic_line.split(line), cell, prog=prog))


def plan(line: str, cell: str | None = None) -> str:
    """What ``%aml_submit LINE --dry-run`` prints."""
    from jupyter_amltrain.commands import magic_line
    from jupyter_amltrain.commands import submit as command

    return command.plan_text(command.parse_submit(magic_line.split(f"{line} --dry-run"), cell))


def log(run: Any) -> str:
    """The whole log of a run."""
    from jupyter_amltrain.commands.run_log import log_text

    return log_text(run)
