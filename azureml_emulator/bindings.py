"""Inputs and outputs of a job: fetched before it starts, sent when it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from azureml_emulator.datastores import place, storage
from azureml_emulator.world import World

FILES = ("uri_file",)


class NoInput(Exception):
    """An input is not where its uri says; the message is the service's."""


async def fetch(world: World, workspace_id: str, inputs: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Bring the inputs of a job to a folder; for each name what the command is given.

    Raises
    ------
    NoInput
        There is nothing at the uri: the service accepts such a job and fails it at its start (INDEX.md).
    """
    found: dict[str, str] = {}
    for name, said in inputs.items():
        if said["jobInputType"] == "literal":
            found[name] = str(said["value"])
        elif said.get("mode") == "Direct":
            found[name] = said["uri"]
        else:
            found[name] = str(await _bring(world, workspace_id, said, root / f"INPUT_{name}"))
    return found


async def _bring(world: World, workspace_id: str, said: Mapping[str, Any], folder: Path) -> Path:
    blob = storage(world)
    uri = str(said["uri"])
    try:
        container, prefix = await place(world, workspace_id, uri)
    except LookupError as error:
        raise NoInput(_missing(uri, str(error))) from None
    single = said["jobInputType"] in FILES
    start = prefix.rstrip("/")
    names = [name for name, _ in await blob.list(container, start)]
    names = [name for name in names if name == start or name.startswith(start + "/" if start else "")]
    if not names:
        raise NoInput(_missing(uri, "The requested stream was not found"))
    folder.mkdir(parents=True)
    only = folder
    for name in names:
        tail = name[len(start) :].lstrip("/") or name.rpartition("/")[2]
        target = folder / tail
        if name.endswith("/"):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(await blob.get(container, name) or b"")
        only = target
    return only if single or names == [start] else folder


def _missing(uri: str, why: str) -> str:
    # After recording 02: "Error Code: ScriptExecution.StreamAccess.<what>", "Native Error: ...", "Error Message: ...".
    return (
        "\nError Code: ScriptExecution.StreamAccess.NotFound\n"
        "Native Error: error in streaming from input data sources\n\tStreamError(NotFound)\n"
        "=> stream not found\n\tNotFound\n"
        f"Error Message: {why}. Please make sure the request uri is correct: {uri}"
    )


def prepare(outputs: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Folders for the named outputs of a job; for each name what the command is given."""
    found = {}
    for name, said in outputs.items():
        if name == "default":
            continue
        folder = root / f"OUTPUT_{name}"
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        found[name] = str(folder / (name if said["jobOutputType"] in FILES else ""))
    return found


def target(name: str, job: str, said: Mapping[str, Any]) -> str:
    """Where an output lies: what was asked for, else a folder of its own in the default datastore.

    The default is one of the two that the SDK looks at (``_get_named_output_uri``).
    """
    uri = str(said.get("uri") or "") or f"azureml://datastores/workspaceblobstore/paths/azureml/{job}/{name}/"
    return uri.replace("${{name}}", job)


async def destination(world: World, workspace_id: str, uri: str) -> tuple[str, str]:
    """Container and prefix of an output."""
    container, prefix = await place(world, workspace_id, uri)
    await storage(world).make(container)
    return container, prefix.rstrip("/") + "/"
