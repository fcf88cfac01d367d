"""Inputs and outputs of a job: fetched before it starts, sent when it has ended."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from azureml_emulator import public
from azureml_emulator.datastores import place, storage
from azureml_emulator.world import World

FILES = ("uri_file",)
#: Names of outputs that are the job's own artifacts: what it leaves in ./outputs and ./logs.
OWN = ("default", "artifacts")


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
    if public.is_public(world, uri):
        return await asyncio.to_thread(_public, world, uri, said["jobInputType"] in FILES, folder)
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


def _public(world: World, uri: str, single: bool, folder: Path) -> Path:
    """A copy of what the public web has at a uri."""
    found = world.part(public.Public).path_of(uri)
    if found is None:
        raise NoInput(_missing(uri, "The requested stream was not found"))
    folder.mkdir(parents=True)
    if found.is_dir():
        shutil.copytree(found, folder, dirs_exist_ok=True)
        return folder
    shutil.copy(found, folder / found.name)
    return folder / found.name if single else folder


def _missing(uri: str, why: str) -> str:
    # After recording 02: "Error Code: ScriptExecution.StreamAccess.<what>", "Native Error: ...", "Error Message: ...".
    return (
        "\nError Code: ScriptExecution.StreamAccess.NotFound\n"
        "Native Error: error in streaming from input data sources\n\tStreamError(NotFound)\n"
        "=> stream not found\n\tNotFound\n"
        f"Error Message: {why}. Please make sure the request uri is correct: {uri}"
    )


def prepare(outputs: Mapping[str, Any], root: Path, job: str) -> dict[str, str]:
    """Folders for the named outputs of a job; for each name what the command is given."""
    found = {}
    for name, said in outputs.items():
        if name in OWN:
            continue
        folder = root / f"OUTPUT_{name}"
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        file = target(name, job, said).rstrip("/").rpartition("/")[2]
        found[name] = str(folder / (file if said["jobOutputType"] in FILES else ""))
    return found


def target(name: str, job: str, said: Mapping[str, Any]) -> str:
    """Where an output lies: what was asked for, else a folder (or file) of its own in the default datastore.

    The default is one of the two that the SDK looks at (``_get_named_output_uri``).
    """
    if name in OWN:
        return f"azureml://datastores/workspaceartifactstore/paths/ExperimentRun/dcid.{job}/"
    last = name if said["jobOutputType"] in FILES else f"{name}/"
    uri = str(said.get("uri") or "") or f"azureml://datastores/workspaceblobstore/paths/azureml/{job}/{last}"
    return uri.replace("${{name}}", job)


async def destination(world: World, workspace_id: str, uri: str, kind: str = "uri_folder") -> tuple[str, str]:
    """Container and prefix of an output: of a file, those of the folder it lies in."""
    container, prefix = await place(world, workspace_id, uri)
    await storage(world).make(container)
    folder = prefix.rstrip("/").rpartition("/")[0] if kind in FILES else prefix.rstrip("/")
    return container, f"{folder}/" if folder else ""
