"""The job of a step's run: its code from the driver's copy, with what it takes of other steps."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.agent.protocol import SOURCE
from jupyter_amltrain.jobs import values
from jupyter_amltrain.jobs.driver import PARENT_TAG
from jupyter_amltrain.jobs.params import with_script
from jupyter_amltrain.jobs.snapshot import JOBS_FOLDER, TRIAL_FOLDER
from jupyter_amltrain.schema.inputs import JobInput
from jupyter_amltrain.schema.job import MAX_NAME, JobSpec
from jupyter_amltrain.schema.run import RunHandle

#: Folder in the driver's run folder with the code of runs that take values of other steps.
_STEPS = "steps"


def code_of(folder: Path, name: str) -> Path:
    """Return the folder with a step's code in the folder of the driver's run."""
    return folder / SOURCE / JOBS_FOLDER / name


def with_taken(spec: JobSpec, taken: Mapping[str, dict[str, Any]], data: Mapping[str, JobInput]) -> JobSpec:
    """Return the job of a step with values and data of other steps.

    A cell gets data as a variable with its path, too.
    """
    if not (taken or data):
        return spec
    if spec.trial is not None:  # of a search
        return msgspec.structs.replace(spec, trial=with_taken(spec.trial, taken, data))
    spec = msgspec.structs.replace(spec, values={**spec.values, **taken}, inputs={**spec.inputs, **data})
    if not spec.script:
        return spec
    paths = {name: f"${{{{inputs.{name}}}}}" for name in data}
    return with_script(spec, {**spec.params, **paths}, {})


def run_of(
    spec: JobSpec, folder: Path, name: str, taken: Mapping[str, dict[str, Any]], parent: RunHandle, parent_id: str
) -> JobSpec:
    """Return the job of a step's run. Blocks on the disk.

    Parameters
    ----------
    spec
        Result of :func:`with_taken`.
    folder
        Folder of the driver's run.
    name
        Name of the step; of a part of a split step with its number behind a colon.
    taken
        Values that it takes of other steps.
    parent, parent_id
        Handle of the driver's run, and id of its MLflow run.
    """
    step, _, part = name.partition(":")
    code = code_of(folder, step)
    if taken:
        code = _with_values(code, folder / _STEPS / name.replace(":", "-"), spec)
    suffix = f"-{part}" if part else ""
    return msgspec.structs.replace(
        spec,
        name=spec.name[: MAX_NAME - len(suffix)] + suffix,
        parent=parent,
        code_dir=str(code),
        tags={**spec.tags, **({PARENT_TAG: parent_id} if parent_id else {})},
        notes=(),
    )


def _with_values(code: Path, to: Path, spec: JobSpec) -> Path:
    """Write the code of a step with the files of its values; an interrupted copy is made again."""
    new = to.with_name(f".{to.name}.new")
    for old in (new, to):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(code, new, symlinks=True)
    job, place = (spec, new) if spec.trial is None else (spec.trial, new / TRIAL_FOLDER)
    for name, content in values.files(job).items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
            continue
        try:
            os.link(content, path)
        except OSError:  # another disk
            shutil.copyfile(content, path)
    os.replace(new, to)
    return to
