"""Data that does not travel with the code of a job, named before the run and after it missed it. Blocks on the disk."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from pathlib import Path

from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs.origin import is_secret_file
from jupyter_amltrain.jobs.project import import_folders
from jupyter_amltrain.jobs.snapshot import IgnoreRules
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.text import bytes_text

#: What nobody misses in a run, as patterns: made by tools again, or not for the job.
NO_DATA = (
    "build", "dist", ".cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", ".idea", ".vscode",
    ".eggs", "htmlcov", "site", "mlruns", "wandb", "lightning_logs", "outputs", "logs", "venv", "env", ".ds_store",
    "*.pyc", "*.pyo", "*.egg-info", "*.log", "*.so", "*.o", "*~", "*.swp", "*.db",
)  # fmt: skip
#: Smallest size that is named, number of names, and entries of a folder that are counted.
MIN_BYTES, MAX_NAMES, MAX_ENTRIES = 100_000, 3, 5_000

#: Errors of Python and of libraries about a file that is absent, and the paths in them.
_ABSENT = re.compile(
    r"no such file|not found|does not exist|doesn't exist|(?:could ?n[o']t|cannot|unable to) open", re.I
)
_QUOTED, _WORD = re.compile(r"""(['"])(.+?)\1"""), re.compile(r"[^\s'\",;()]*[^\s'\",;().:]")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
#: Folders of a run's code: those of our agent and of the service.
_CODE_FOLDER = re.compile(r"^/.*?/(?:source|wd)/(?=.)")


_is_no_data = re.compile("|".join(map(fnmatch.translate, NO_DATA))).match


def note_of(root: str, names: Sequence[str]) -> str:
    """Return a sentence about the largest of the ignored files and folders `names` below `root`; empty for none."""
    sizes: dict[str, int] = {}
    texts: dict[str, str] = {}
    for name in names:
        if not _is_no_data(os.path.basename(name.rstrip("/")).lower()):
            size, is_whole = _size(os.path.join(root, name))
            if size >= MIN_BYTES:
                sizes[name] = size
                texts[name] = f"{name} ({'' if is_whole else 'over '}{bytes_text(size)})"
    largest = sorted(sizes, key=lambda name: -sizes[name])
    if not largest:
        return ""
    shown = ", ".join(texts[name] for name in largest[:MAX_NAMES])
    more = f" and {len(largest) - MAX_NAMES} more" if len(largest) > MAX_NAMES else ""
    file = ".amlignore" if (Path(root) / ".amlignore").exists() else ".gitignore"
    return f"Left out of the code by {file}: {shown}{more}. Pass data that the run needs: --input data=PATH."


def missed_note(spec: JobSpec, error: str, is_here: bool) -> str:
    """Return a sentence about a path or module that a run lacked and that this computer has; empty if it lacked none.

    Parameters
    ----------
    error
        Last line of the run's traceback or log.
    is_here
        Whether the run was on this computer, where it lacks only what its copy of the code lacks.
    """
    if is_here and not spec.source:
        return ""
    root = os.path.abspath(spec.source or spec.code_root or ".")
    working = root if spec.source or spec.job_type else os.path.abspath(spec.notebook_dir or ".")
    if module := _NO_MODULE.search(error):
        return _missed_module(spec, root, working, module[1])
    if not _ABSENT.search(error):
        return ""
    for text in [text for _, text in _QUOTED.findall(error)] or _WORD.findall(error):
        inside = _CODE_FOLDER.sub("", text)
        path = os.path.normpath(os.path.join(working if inside == text else root, inside))
        is_path = "/" in inside or "." in inside
        if is_path and not (is_here and os.path.isabs(inside)) and os.path.exists(path):
            where = "not in the run's copy of the code" if is_here else "on this computer only"
            return f"{inside} is {where}: {_why(spec, root, path)}"
    return ""


def _missed_module(spec: JobSpec, root: str, working: str, module: str) -> str:
    """Return a sentence about a module that is beside the script or in the folders that its imports come from."""
    for folder in dict.fromkeys([*(os.path.join(root, one) for one in import_folders(spec)), working]):
        path = os.path.join(folder, module.replace(".", os.sep))
        for file in (f"{path}.py", path):
            if os.path.exists(file):
                return f"{module} is on this computer only: {_why(spec, root, file)}"
    return ""


def _why(spec: JobSpec, root: str, path: str) -> str:
    """Return why a path here did not travel with the code, and what to do."""
    if is_secret_file(path):
        return "files with secrets do not travel. Pass their values: --secret NAME"
    name = os.path.relpath(path, root)
    ignored = _ignored_part(root, name) if spec.source and not name.startswith("..") else ""
    if ignored:
        file = ".amlignore" if os.path.exists(os.path.join(root, ".amlignore")) else ".gitignore"
        return (
            f"{ignored} was left out of the code by {file}. Pass it: --input data={os.path.join(root, ignored)},upload"
        )
    if path.endswith(".py") or os.path.exists(os.path.join(path, "__init__.py")):
        return "it did not travel with the code, which does not import it by name. Send its folder: --source DIR"
    return f"it did not travel with the code. Pass it: --input data={path},upload; or send its folder: --source DIR"


def _ignored_part(root: str, name: str) -> str:
    """Return the part of a path that the ignore files of `root` exclude; empty for none."""
    part = ""
    try:
        rules = IgnoreRules.of(root)
        for piece in name.split(os.sep):
            part = f"{part}/{piece}".lstrip("/")
            is_folder = os.path.isdir(os.path.join(root, part))
            if rules.ignores(part, is_folder):
                return part
            rules = rules.below(os.path.join(root, part), part) if is_folder else rules
    except SubmitError:  # an ignore file that cannot be read any more
        return ""
    return ""


def _size(path: str) -> tuple[int, bool]:
    """Return the bytes of a file or folder, and whether all of it was counted."""
    if not os.path.isdir(path):
        try:
            return os.lstat(path).st_size, True
        except OSError:
            return 0, True
    total = count = 0
    for folder, _, files in os.walk(path):
        for name in files:
            count += 1
            if count > MAX_ENTRIES:
                return total, False
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total, True
