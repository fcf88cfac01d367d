"""Files beside a script or cell: those that travel with it, and those that its code names and that stay here."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator
from pathlib import Path

from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs import project, requirements
from jupyter_amltrain.jobs.data_paths import DataPath, named_here, only_here, written_elsewhere
from jupyter_amltrain.jobs.left_out import NO_DATA
from jupyter_amltrain.jobs.origin import SECRET_FILES, is_secret_file
from jupyter_amltrain.jobs.snapshot import ALWAYS_SKIPPED, Snapshot, data_files
from jupyter_amltrain.schema.job import JobSpec

#: Largest file or folder, largest total and most files that travel by themselves; the rest is named before the run.
MAX_BYTES, MAX_TOTAL_BYTES, MAX_FILES = 16 << 20, 64 << 20, 500

#: What does not travel without being named.
_NEVER = (*SECRET_FILES, *NO_DATA, "*.ipynb")

#: Maximum number of notes on paths that stay here.
MAX_NOTES = 5


def project_files(spec: JobSpec) -> tuple[str, ...]:
    """Return the files that travel with a job besides its modules, relative to its root. Blocks on the disk.

    A small project travels as a whole, as with ``az ml``: its code may name files by other means than their text. Of
    a larger one, and with a cell, the files travel that the code names; a folder without what its ignore files name.
    Files with secrets never do.
    """
    if spec.source or spec.job_type or spec.code_dir:
        return ()
    root = os.path.abspath(spec.code_root or ".")
    found = _small_project(spec, root)
    for one in _named(spec):
        inside = os.path.relpath(one.path, root)
        if inside == "." or inside.startswith(".." + os.sep) or _is_above(one.path, spec):
            continue
        sizes = dict(_files(one.path))
        if sum(sizes.values()) <= MAX_BYTES and sum(found.values()) + sum(sizes.values()) <= MAX_TOTAL_BYTES:
            found |= {os.path.relpath(path, root).replace(os.sep, "/"): size for path, size in sizes.items()}
    return tuple(name for name in sorted(found) if name != spec.script_name)


def _small_project(spec: JobSpec, root: str) -> dict[str, int]:
    """Return the sizes of all files below the root of a script, else below its own folder; none if they are many."""
    if spec.script:
        return {}
    for folder in dict.fromkeys([root, os.path.dirname(os.path.join(root, spec.script_name))]):
        if folder in project.NO_PROJECT:
            continue
        try:
            files = data_files(Path(folder), MAX_FILES, _NEVER)
        except SubmitError:
            continue
        sizes = {os.path.relpath(path, root).replace(os.sep, "/"): size for path, size in _sized(files.values())}
        small = {name: size for name, size in sizes.items() if size <= MAX_BYTES}
        if sum(small.values()) <= MAX_TOTAL_BYTES:
            return small
    return {}


def path_notes(spec: JobSpec, snapshot: Snapshot, target: str) -> list[str]:
    """Return a note for each path in a script that exists on this machine alone, at most :data:`MAX_NOTES`."""
    root = os.path.abspath(Path(spec.code_root or ".").expanduser())
    where = "the cell" if spec.cell else spec.script_name
    advice = "Send it with the code: --source DIR" if not spec.source else "Its ignore files leave it out"
    sent = {os.path.normpath(os.path.join(root, name)) for name in snapshot.files}
    return [
        f"Line {path.line - spec.line_offset} of {where} names {path.text!r}, which {target} does not get."
        f" {advice}; or copy it there, and pass its path: --param."
        for path in only_here(_of_script(spec), sent)
        if not _is_above(path.path, spec)
    ][:MAX_NOTES]


def loss_notes(spec: JobSpec) -> list[str]:
    """Return a note on the first file that a script writes where a service keeps nothing."""
    where = "the cell" if spec.cell else spec.script_name
    try:
        paths = written_elsewhere(requirements.script_bytes(spec))
    except OSError:
        return []
    return [
        f"Line {path.line - spec.line_offset} of {where} writes {path.text!r}, which is lost when the job ends."
        f" Write it into ./outputs: {posixpath.join('outputs', posixpath.basename(path.text))!r}"
        for path in paths[:1]
    ]


def _named(spec: JobSpec) -> list[DataPath]:
    """Return the paths that a script and the modules of its own name."""
    found = _of_script(spec)
    try:
        text = requirements.with_notebook(spec, requirements.script_bytes(spec))
        modules = project.own_modules(spec, text)
    except (OSError, SubmitError):  # the snapshot reports it
        return found
    for path in modules.values():
        if path.suffix == ".py":
            content = path.read_bytes()
            if b"__file__" in content:
                found += [one for one in named_here(content, _working(spec), str(path)) if _is_data(one.path)]
    return found


def _of_script(spec: JobSpec) -> list[DataPath]:
    try:
        text = requirements.script_bytes(spec)
    except OSError:
        return []
    file = "" if spec.script else os.path.join(os.path.abspath(spec.code_root or "."), spec.script_name)
    return named_here(text, _working(spec), file)


def _working(spec: JobSpec) -> Path:
    """Return the folder here that relative paths of the job begin at."""
    return Path(spec.source or spec.notebook_dir or ".").expanduser().absolute()


def _is_above(path: str, spec: JobSpec) -> bool:
    """Whether a path is the folder of the code, or one above it or above the working folder."""
    places = (os.path.join(os.path.abspath(spec.code_root or "."), spec.script_name), str(_working(spec)))
    return any(place == path or place.startswith(path.rstrip(os.sep) + os.sep) for place in places)


def _is_data(path: str) -> bool:
    return not path.endswith((".py", ".pyc"))


def _files(path: str) -> Iterator[tuple[str, int]]:
    """Yield the files of a path that may travel, and their sizes; none if they are too many."""
    name = os.path.basename(path)
    if name in ALWAYS_SKIPPED or is_secret_file(name):
        return
    if os.path.isfile(path):
        yield from _sized([path])
    elif os.path.isdir(path):
        try:
            names = data_files(Path(path), MAX_FILES)
        except SubmitError:  # too many, or a link that leads out
            return
        yield from _sized(one for one in names.values() if not is_secret_file(one))


def _sized(paths: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the paths and their sizes, without those that were deleted meanwhile."""
    for path in paths:
        try:
            yield path, os.path.getsize(path)
        except OSError:
            continue
