"""Where the code of a job is: a file runs where it is while it is as it was submitted, and else from the kept copy."""

from __future__ import annotations

import filecmp
import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Sequence

from ..protocol import SOURCE, AgentError

if TYPE_CHECKING:
    from .assignment import Assignment

#: Entries of a folder that are linked into the copy; a folder with more has data that the code names elsewhere.
_MAX_LINKS = 5000


class CodePlace(NamedTuple):
    """What the process of a job gets: its arguments, and further folders of modules."""

    argv: List[str]
    search: List[str]
    note: str = ""  #: why the copy runs, one sentence; empty if it does not


def check(value: Dict[str, Any]) -> Dict[str, Any]:
    """Return a checked place of the code.

    Raises
    ------
    AgentError
        A field is invalid.
    """
    root, search, made = value.get("root", ""), value.get("search", []), value.get("made", [])
    if not isinstance(root, str) or "\0" in root or (root and not os.path.isabs(root)):
        raise AgentError("SubmitError", "Cannot submit the job: code.root must be an absolute path.")
    if not isinstance(search, list) or not all(isinstance(one, str) and os.pathsep not in one for one in search):
        raise AgentError("SubmitError", "Cannot submit the job: code.search must be a list of folders.")
    if not isinstance(made, list) or not all(isinstance(one, str) for one in made):
        raise AgentError("SubmitError", "Cannot submit the job: code.made must be a list of names.")
    return {"root": root, "search": search, "made": made}


def search_folders(job: Mapping[str, Any], code: str) -> List[str]:
    """Return the further folders of modules of a job whose code is in the folder `code`; absolute ones stay."""
    return [os.path.normpath(os.path.join(code, one)) for one in (job.get("code") or {}).get("search", ())]


def make_working_folder(cwd: str, code: str) -> None:
    """Make the working folder of a job whose code is in the folder `code`, if it is below it: no file may be in it."""
    if os.path.normpath(cwd).startswith(os.path.join(os.path.normpath(code), "")):
        try:
            os.makedirs(cwd, exist_ok=True)
        except OSError:  # the start of the job reports it
            pass


def add_search(env: Dict[str, str], folders: Sequence[str]) -> None:
    """Let Python search modules in `folders`, before those of ``PYTHONPATH``."""
    if folders:
        env["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [env.get("PYTHONPATH")])])


def place_of(task: Assignment) -> CodePlace:
    """Return where the code of a job runs now. Links what is beside the code into the copy if the copy runs."""
    copy = os.path.join(task.folder, SOURCE)
    code = task.job.get("code") or {}
    argv, root = list(task.job["argv"]), code.get("root", "")
    search = search_folders(task.job, copy)
    if not root:
        return CodePlace(argv, search)
    made = code.get("made", ())
    names = [str(one) for one in (task.job.get("snapshot") or {}).get("names") or () if one not in made]
    changed = next((name for name in names if not _is_same(os.path.join(root, name), os.path.join(copy, name))), "")
    if not changed:
        return CodePlace(argv, search_folders(task.job, root))
    link_neighbors(root, copy, names)
    spec = task.job.get("spec") or {}
    name = str(spec.get("script_name") or "")
    argv = [os.path.join(copy, name) if word == os.path.join(root, name) else word for word in argv]
    note = "%s is no longer as it was submitted: the run uses its copy." % changed
    return CodePlace(argv, [*search, *([os.path.normpath(copy)] if spec.get("module") else [])], note)


def link_neighbors(root: str, copy: str, names: List[str]) -> None:
    """Link what is beside the files `names` in `root` into the folder with their copy, so that they find it there."""
    folders = {""}
    for name in names:
        parts = name.split("/")[:-1]
        folders.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    left = _MAX_LINKS
    for folder in sorted(folders):
        try:
            entries = os.listdir(os.path.join(root, folder))
        except OSError:
            continue
        for entry in entries[:left]:
            link = os.path.join(copy, folder, entry)
            if entry == "__pycache__" or os.path.lexists(link):
                continue
            try:
                os.symlink(os.path.join(root, folder, entry), link)
            except OSError:  # a file system without links
                return
        left = max(0, left - len(entries))


def _is_same(path: str, copy: str) -> bool:
    try:
        return filecmp.cmp(path, copy, shallow=False)
    except OSError:
        return False
