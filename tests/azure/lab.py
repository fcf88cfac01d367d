"""The plain functions over the emulated Azure: a connected workspace with a cluster of two nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.azure.conftest import Azure
from tests.places import api_of

SIZE = "Standard_DS2_v2"


def carry_out(line: str) -> str:
    """What ``%aml_compute LINE --wait`` says."""
    from jupyter_amltrain.commands import compute
    from jupyter_amltrain.commands.parsers import parser_of

    asked = parser_of("compute", "%aml_compute").parse([*line.split(), "--yes", "--wait"])
    return str(compute.carry_out(asked, wait=True, write=lambda line: None))


def connect(azure: Azure) -> None:
    """The sandbox's workspace, as ``lab``."""
    from jupyter_amltrain.commands import connect
    from jupyter_amltrain.commands.parsers import parser_of

    line = f"connect --subscription {azure.subscription} --resource-group {azure.resource_group} --name lab"
    asked = parser_of("compute", "%aml_compute").parse([*line.split(), "--workspace", azure.workspace])
    connect.carry_out(asked, lambda event: None)


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
    from jupyter_amltrain.commands import lexing
    from jupyter_amltrain.commands import submit as command

    return command.send(command.understand(lexing.split(line), cell, prog="%%aml_submit" if cell else "%aml_submit"))


def plan(line: str, cell: str | None = None) -> str:
    """What ``%aml_submit LINE --dry-run`` prints."""
    from jupyter_amltrain.commands import lexing
    from jupyter_amltrain.commands import submit as command

    return command.plan_text(command.understand(lexing.split(f"{line} --dry-run"), cell))


def log(run: Any) -> str:
    """The whole log of a run."""
    from jupyter_amltrain.commands.runs import log_text

    return log_text(run)
