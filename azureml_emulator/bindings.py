"""Inputs and outputs of a job: downloaded before it starts, uploaded after it has ended."""

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
#: Names of outputs for the job's own artifacts, its files in ./outputs and ./logs.
OWN = ("default", "artifacts")


class NoInput(Exception):
    """There is no data at an input's URI; the message is the service's."""


async def fetch(world: World, workspace_id: str, inputs: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Download the inputs of a job to a folder; returns the command's value for each name.

    Raises
    ------
    NoInput
        There is no data at the URI: the service accepts such a job, which fails at its start (INDEX.md).
    """
    values: dict[str, str] = {}
    for name, binding in inputs.items():
        if binding["jobInputType"] == "literal":
            values[name] = str(binding["value"])
        elif binding.get("mode") == "Direct":
            values[name] = binding["uri"]
        else:
            values[name] = str(await _download(world, workspace_id, binding, root / f"INPUT_{name}"))
    return values


async def _download(world: World, workspace_id: str, binding: Mapping[str, Any], folder: Path) -> Path:
    blob = storage(world)
    uri = str(binding["uri"])
    if public.is_public(world, uri):
        return await asyncio.to_thread(_public, world, uri, binding["jobInputType"] in FILES, folder)
    try:
        container, prefix = await place(world, workspace_id, uri)
    except LookupError as error:
        raise NoInput(_missing(uri, str(error))) from None
    single = binding["jobInputType"] in FILES
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
    """Copy a file or folder of the emulated public web."""
    source = world.part(public.Public).path_of(uri)
    if source is None:
        raise NoInput(_missing(uri, "The requested stream was not found"))
    folder.mkdir(parents=True)
    if source.is_dir():
        shutil.copytree(source, folder, dirs_exist_ok=True)
        return folder
    shutil.copy(source, folder / source.name)
    return folder / source.name if single else folder


def _missing(uri: str, reason: str) -> str:
    # After recording 02: "Error Code: ScriptExecution.StreamAccess.<what>", "Native Error: ...", "Error Message: ...".
    return (
        "\nError Code: ScriptExecution.StreamAccess.NotFound\n"
        "Native Error: error in streaming from input data sources\n\tStreamError(NotFound)\n"
        "=> stream not found\n\tNotFound\n"
        f"Error Message: {reason}. Please make sure the request uri is correct: {uri}"
    )


def prepare(outputs: Mapping[str, Any], root: Path, job: str) -> dict[str, str]:
    """Create folders for the named outputs of a job; returns the command's value for each name."""
    values = {}
    for name, binding in outputs.items():
        if name in OWN:
            continue
        folder = root / f"OUTPUT_{name}"
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        file = target(name, job, binding).rstrip("/").rpartition("/")[2]
        values[name] = str(folder / (file if binding["jobOutputType"] in FILES else ""))
    return values


def target(name: str, job: str, binding: Mapping[str, Any]) -> str:
    """Return the URI of an output: the requested one, otherwise a folder (or file) in the default datastore.

    The default is one of the two that the SDK looks at (``_get_named_output_uri``).
    """
    if name in OWN:
        return f"azureml://datastores/workspaceartifactstore/paths/ExperimentRun/dcid.{job}/"
    last = name if binding["jobOutputType"] in FILES else f"{name}/"
    uri = str(binding.get("uri") or "") or f"azureml://datastores/workspaceblobstore/paths/azureml/{job}/{last}"
    return uri.replace("${{name}}", job)


async def destination(world: World, workspace_id: str, uri: str, kind: str = "uri_folder") -> tuple[str, str]:
    """Return container and prefix of an output; for a file, those of its folder."""
    container, prefix = await place(world, workspace_id, uri)
    await storage(world).make(container)
    folder = prefix.rstrip("/").rpartition("/")[0] if kind in FILES else prefix.rstrip("/")
    return container, f"{folder}/" if folder else ""
