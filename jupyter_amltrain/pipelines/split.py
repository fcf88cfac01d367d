"""A step with ``--map``: a run for each file of a pattern, and what these runs make, gathered."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.pipelines.step_output import StepOutput
from jupyter_amltrain.schema.inputs import JobInput

#: Name of the file in the step: the variable of a cell, and ``$AML_INPUT_PART``.
PART = "part"
#: Largest number of files.
MAX_PARTS = 1000


def files_of_pattern(pattern: str, folder: str) -> list[str]:
    """Return the absolute paths of the files, by name. Blocks on the disk.

    Raises
    ------
    SpecError
        There are none, or too many.
    """
    whole = os.path.join(folder, os.path.expanduser(pattern))
    found = sorted(path for path in glob.glob(whole, recursive=True) if os.path.isfile(path))
    if not found:
        raise SpecError("no file of this machine matches.", hint=f"Files are looked for in {folder}.",
                        code="pipeline.map", field="map").about(f"--map {pattern}")  # fmt: skip
    if len(found) > MAX_PARTS:
        raise SpecError(f"{len(found)} files match; at most {MAX_PARTS} are supported.",
                        hint="Let one run read a folder of them.", code="pipeline.map",
                        field="map").about(f"--map {pattern}")  # fmt: skip
    return [os.path.abspath(path) for path in found]


def part_input(path: str, backend: Backend) -> JobInput:
    """Return a file of this machine as the input of a run."""
    return JobInput(type="uri_file", path=path, upload=not backend.files.are_local)


def artifacts(folder: Path, output: StepOutput, path: str, upload: bool) -> JobInput:
    """Return a folder with the folder ``outputs`` of a run; arguments as of :func:`gathered`. Blocks on the disk."""
    to = folder / "steps" / f"artifacts-{output.run_id}"
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(path, to / "outputs")
    return JobInput(type="uri_folder", path=str(to), upload=upload)


def gathered(folder: Path, output: StepOutput, paths: Sequence[str], upload: bool) -> JobInput:
    """Return one folder with the data of all parts, each below its number. Blocks on the disk.

    Parameters
    ----------
    folder
        Folder of the driver's run.
    paths
        The data of each part on this machine.
    """
    name = "-".join(["parts", output.parts[0].run_id, Path(output.parts[0].path).name])
    to = folder / "steps" / name
    new = to.with_name(f".{name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for number, path in enumerate(paths):
        place = new / f"{number:04d}"
        if os.path.isdir(path):
            shutil.copytree(path, place)
        else:
            shutil.copyfile(path, place.with_suffix(Path(path).suffix))
    shutil.rmtree(to, ignore_errors=True)
    os.replace(new, to)
    return JobInput(type="uri_folder", path=str(to), upload=upload)
