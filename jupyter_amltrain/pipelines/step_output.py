"""What a step has made: values, and files or folders of its run; how another step gets them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.agent import values as nodes
from jupyter_amltrain.agent.protocol import OUTPUTS
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import AmlTrainError, ResultMissing, SubmitError
from jupyter_amltrain.jobs import values
from jupyter_amltrain.jobs.local_data import read_data
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.pipelines.plan import DATA, VALUE
from jupyter_amltrain.schema.inputs import JobInput
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.schema.run_file import OutValue, SavedValue

#: Output of each job of ``az ml``: a folder that has the folder ``outputs`` of the job.
ARTIFACTS = "artifacts"


class StepOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One output of a step.

    Attributes
    ----------
    kind
        :data:`~jupyter_amltrain.pipelines.plan.VALUE` or :data:`~jupyter_amltrain.pipelines.plan.DATA`.
    node
        Of a value: how it is read (:mod:`jupyter_amltrain.agent.values`), with files in the store of this user.
    target, run_id, path, type
        Of data: where it is, and its type in the schema of ``az ml``.
    digest
        Of data: that of its content where this machine has it, else what stands for it.
    parts
        Of a split step: what its runs have made, in the order of the files.
    """

    kind: str = VALUE
    node: dict[str, Any] = {}
    target: str = ""
    run_id: str = ""
    path: str = ""
    type: str = ""
    digest: str = ""
    parts: tuple[StepOutput, ...] = ()

    @property
    def identity(self) -> Any:
        """What the result of a step that takes it depends on."""
        if self.parts:
            return [part.identity for part in self.parts]
        return self.node if self.kind == VALUE else self.digest


async def outputs_of(loop: LoopThread, backend: Backend, run: Run, spec: JobSpec) -> dict[str, StepOutput]:
    """Return what the run of a step has made.

    Raises
    ------
    AmlTrainError
        A value has no form that can travel, or its file cannot be read.
    """
    found: dict[str, StepOutput] = {}
    given = await backend.files.outputs(run.run_id, spec.out_names) if spec.out_names else {}
    for name in spec.out_names:
        value = given.get(name)
        if isinstance(value, AmlTrainError):
            raise value
        if value is None:
            raise ResultMissing(f"{run.handle} has no value {name}.", name=name, why="was never set")
        found[name] = StepOutput(node=await _node_of(loop, backend, run, name, value))
    for name, output in spec.outputs.items():
        path, kind = f"{OUTPUTS}/{name}", output.type
        if spec.job_type and name == ARTIFACTS:
            path, kind = OUTPUTS, ARTIFACTS
        elif spec.job_type and kind == "uri_file":
            path = f"{path}/{name}"
        digest = await _digest(loop, backend, run, path)
        found[name] = StepOutput(kind=DATA, target=run.target, run_id=run.run_id, path=path, type=kind, digest=digest)
    return found


def outputs_of_parts(parts: Sequence[Mapping[str, StepOutput]]) -> dict[str, StepOutput]:
    """Return what a split step has made, from the outputs of its runs in the order of the files."""
    return {
        name: StepOutput(kind=first.kind, type="uri_folder", parts=tuple(part[name] for part in parts))
        for name, first in parts[0].items()
    }


async def _digest(loop: LoopThread, backend: Backend, run: Run, path: str) -> str:
    """Return the digest of data on this machine; on another one the run stands for it."""
    if not backend.files.are_local:
        return f"{run.handle}/{path}"
    local = await backend.files.local_copy(run.run_id, path)
    if local is None:
        raise ResultMissing(f"{run.handle} has written no {path}.", name=path, why="was not written")
    return await loop.offload(content_digest, local)


def content_digest(path: str) -> str:
    """Return the digest of a file or folder; that of an empty folder is empty. Blocks on the disk."""
    try:
        return read_data(path).sha256
    except SubmitError as error:
        if error.code == "data.empty":
            return ""
        raise


async def _node_of(loop: LoopThread, backend: Backend, run: Run, name: str, value: OutValue) -> dict[str, Any]:
    """Return a value as a job takes it; its files are copied into the store."""
    saved = value.saved
    if value.graph:  # with all that it shares objects with
        path = await _local(backend, run, value.graph)
        kind = saved.node.get("type", "") if saved is not None else type(value.value).__name__
        node: dict[str, Any] = {"as": "graph", "items": [], "name": name, "type": kind}
        return {**node, **await loop.offload(_store_file, Path(path), ".pickle"), **nodes.NAMED}
    if saved is None:
        return {"as": "json", "value": value.value}
    if not saved.file:
        return saved.node
    paths = [await _local(backend, run, saved.file)]
    if saved.node["as"] == "values":
        folder = await backend.files.local_copy(run.run_id, f"{OUTPUTS}/{saved.name}.values")
        paths += [folder] if folder else []  # small parts are in the file itself
    return await loop.offload(_stored, saved, paths)


async def _local(backend: Backend, run: Run, name: str) -> str:
    """Return a path here of a file in the outputs of a run."""
    path = await backend.files.local_copy(run.run_id, f"{OUTPUTS}/{name}")
    if path is None:
        raise ResultMissing(f"{run.handle} has no file {name}.", name=name, why="has no file")
    return path


def _stored(saved: SavedValue, paths: Sequence[str]) -> dict[str, Any]:
    """Copy the files of a value into the store; return its node. Blocks on the disk."""
    if saved.node["as"] != "values":
        late = nodes.NAMED if saved.node["as"] in nodes.PICKLES else {}  # it may have classes of the notebook
        return {**saved.node, **_store_file(Path(paths[0]), "".join(Path(saved.file).suffixes[-1:])), **late}
    node = json.loads(Path(paths[0]).read_bytes())
    for file in nodes.files_of(node):
        _copy(Path(paths[1]) / str(file["file"]), str(file["file"]))
    return dict(node)


def _store_file(path: Path, ending: str) -> dict[str, Any]:
    whole = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            whole.update(block)
    name = whole.hexdigest()[:32] + ending
    _copy(path, name)
    return {"file": name, "bytes": path.stat().st_size}


def _copy(path: Path, name: str) -> None:
    folder = values.store()
    if os.path.basename(name) != name:
        raise ResultMissing(f"{name!r} is not the name of a file.", name=name, why="is damaged")
    if (folder / name).exists():
        os.utime(folder / name)
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = folder / f".part-{os.getpid()}-{name}"
    try:
        shutil.copyfile(path, part)
        part.chmod(0o400)  # runs have links to it
        os.replace(part, folder / name)
    finally:
        part.unlink(missing_ok=True)


def has_files(output: StepOutput) -> bool:
    """Return whether the store still has the files of a value, and note their use. Blocks on the disk."""
    if output.parts:
        return all(map(has_files, output.parts))
    try:
        for file in () if output.kind == DATA else nodes.files_of(output.node):
            os.utime(values.store() / str(file["file"]))
    except OSError:
        return False
    return True


async def input_of(output: StepOutput, source: Backend, goal: Backend, folder: str) -> JobInput:
    """Return data of a step as the input of another one; it is copied here if the two targets are different machines.

    Parameters
    ----------
    folder
        Folder of the run that made it, on its target.

    Raises
    ------
    ResultMissing
        The data no longer exists.
    """
    if source.target.name == goal.target.name and source.machines == 1:
        return JobInput(type=output.type, path=f"{folder}/{output.path}")
    local = await source.files.local_copy(output.run_id, output.path)
    if local is None:
        raise ResultMissing(
            f"{output.target}/{output.run_id} has no {output.path} any more.", name=output.path, why="was removed"
        )
    return JobInput(type=output.type, path=local, upload=not goal.files.are_local)


def node_of(output: StepOutput) -> dict[str, Any]:
    """Return a value as a job takes it: of a split step, the list of its values."""
    return {"as": "list", "items": [part.node for part in output.parts]} if output.parts else output.node
