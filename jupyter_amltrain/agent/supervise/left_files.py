"""Files that a job has left in its working folder: those that were made or changed while it ran.

Two jobs that run at once in one folder have each other's files in their lists: a file does not say who wrote it.
"""

import os
import stat
import time
from collections import deque
from typing import Any, Collection, Deque, Dict, List, Optional, Tuple

from ..protocol import KEPT_LINKS, LEFT, LEFT_LINK, SCHEMA, AgentError, read_json, write_json

#: Maximum number of files in the list, of visited files and folders, of levels of folders, and seconds of a search.
_MAX_LISTED, _MAX_VISITED, _MAX_DEPTH, _MAX_S = 1000, 20_000, 8, 0.2
#: Seconds by which the time of a file may be behind the clock: a tick of the kernel.
_COARSE_S = 0.01
#: Folders that hold nothing that a script writes for its user; those that begin with a dot are skipped, too.
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "mlruns"})
#: Suffixes of files that JupyterLab and Python write by themselves.
_SKIPPED_SUFFIXES = (".ipynb", ".pyc", ".part", ".tmp")


def list_left(cwd: str, since: float, but: Collection[str] = ()) -> List[Dict[str, Any]]:
    """Return the files below a folder that were made or changed: `path`, `size`, `modified` (unix seconds).

    Parameters
    ----------
    since
        Unix seconds of the start of the job.
    but
        Folders that are left out, with all in them.
    """
    excluded = {os.path.realpath(folder) for folder in but}
    found: List[Dict[str, Any]] = []
    folders: Deque[Tuple[str, int]] = deque([("", 0)])  # those near the working folder first
    left, end = _MAX_VISITED, time.monotonic() + _MAX_S
    while folders and left > 0 and time.monotonic() < end:
        folder, depth = folders.popleft()
        try:
            entries = os.scandir(os.path.join(cwd, folder))
        except OSError:  # removed or not readable
            continue
        with entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    break
                path = folder + "/" + entry.name if folder else entry.name
                if _is_skipped(path) or not _is_text(path):
                    continue
                try:
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _MAX_DEPTH and os.path.realpath(entry.path) not in excluded:
                            folders.append((path, depth + 1))
                        continue
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode) and max(status.st_mtime, status.st_ctime) >= since - _COARSE_S:
                    found.append({"path": path, "size": status.st_size, "modified": round(status.st_mtime, 3)})
    found.sort(key=lambda row: str(row["path"]))
    return found[:_MAX_LISTED]


def note_left(folder: str, cwd: str, since: Optional[float], queue: str = "") -> None:
    """Write the list of a job into its run folder, and a link to the working folder, by which the files are read.

    Our own files, in the state root and in the folder of the queue, are left out.
    """
    if since is None or not os.path.isdir(cwd):
        return
    try:
        rows = list_left(cwd, since, (os.path.dirname(os.path.dirname(folder)), queue or folder))
        if rows:
            write_json(os.path.join(folder, LEFT), {"schema": SCHEMA, "files": rows})
            if not os.path.lexists(os.path.join(folder, LEFT_LINK)):
                os.symlink(_target(folder, cwd), os.path.join(folder, LEFT_LINK))
    except OSError:  # a full disk, or a file system without links: the files are where they are
        pass


def left_now(folder: str) -> List[Dict[str, Any]]:
    """Return the files that a run has left, as they are now; those that are gone are left out."""
    try:
        rows = (read_json(os.path.join(folder, LEFT)) or {})["files"]
    except (OSError, AgentError, KeyError, TypeError):  # it has left none, or a job has damaged the list
        return []
    found = []
    for row in rows[:_MAX_LISTED] if isinstance(rows, list) else ():
        path = str(row.get("path") or "") if isinstance(row, dict) else ""
        if not path or os.path.isabs(path) or os.pardir in path.split("/") or "\0" in path:
            continue
        try:
            status = os.lstat(os.path.join(folder, LEFT_LINK, path))
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            found.append({"path": path, "size": status.st_size, "modified": round(status.st_mtime, 3)})
    return found


def _target(folder: str, cwd: str) -> str:
    """Return a link's target: relative for a folder of the run, which may be moved."""
    inside = os.path.relpath(os.path.abspath(cwd), os.path.abspath(folder))
    return os.path.abspath(cwd) if inside.startswith(os.pardir) else inside


def _is_skipped(path: str) -> bool:
    name = os.path.basename(path)
    return name[0] == "." or path in KEPT_LINKS or name in _SKIPPED_FOLDERS or name.endswith(_SKIPPED_SUFFIXES)


def _is_text(path: str) -> bool:
    """Whether a path is valid UTF-8."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
