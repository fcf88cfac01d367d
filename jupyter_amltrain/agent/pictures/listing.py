"""Lists the pictures in a run folder.

A job can write anything there: links are not followed, and the search is bounded.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any, Dict, Iterator, List, Tuple

from ..protocol import ARTIFACTS, PICTURES

#: Suffixes of image files that are listed.
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg")
#: Maximum number of listed files, of visited files and folders, and of levels of folders.
MAX_LISTED, MAX_VISITED, MAX_DEPTH = 400, 5000, 8
#: Files of an MLflow client that is still writing, and the small copies that ``mlflow.log_image`` makes.
_SKIPPED = re.compile(r"\.|.*[+%]compressed\.webp\Z")


def list_pictures(folder: str) -> List[Dict[str, Any]]:
    """Return the newest image files of a run, oldest first: `path` in the folder, `size`, `modified` (unix seconds)."""
    found = []
    left = [MAX_VISITED]
    for name in (PICTURES, ARTIFACTS):
        for path, status in _walk(folder, name, left, 0):
            found.append({"path": path, "size": status.st_size, "modified": status.st_mtime})
    found.sort(key=lambda row: (row["modified"], row["path"]))
    return found[-MAX_LISTED:]


def _walk(folder: str, path: str, left: List[int], depth: int) -> Iterator[Tuple[str, os.stat_result]]:
    """Yield the image files below a folder; only regular files of regular folders."""
    full = os.path.join(folder, path)
    folders = []
    try:
        if not stat.S_ISDIR(os.lstat(full).st_mode):
            return
        with os.scandir(full) as entries:
            for entry in entries:
                left[0] -= 1
                if left[0] < 0:
                    return
                inner = "%s/%s" % (path, entry.name)
                if _SKIPPED.match(entry.name) or not _is_text(inner):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(inner)
                elif entry.name.lower().endswith(SUFFIXES):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_size:
                        yield inner, status
    except OSError:  # removed or not readable: the other folders are listed
        pass
    for inner in sorted(folders) if depth < MAX_DEPTH else ():
        yield from _walk(folder, inner, left, depth + 1)


def _is_text(name: str) -> bool:
    """Whether a file name is valid UTF-8."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
