"""Asks a run for a checkpoint now, by a file in its checkpoint folder that its script looks at between two steps.

The script saves and removes the file: see docs/checkpoints.md. Nothing can be saved for it from outside: in the middle
of a step, model and optimizer do not fit together.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Tuple

from ..file_waits import wait_for
from ..protocol import CHECKPOINTS, CHECKPOINTS_VARIABLE, SAVE_REQUEST, AgentError
from .asked_run import AskedRun, Json

_Stamp = Tuple[int, int]

#: Seconds for which the agent waits for the checkpoint.
WAIT_S = 10.0
_LOOK_S = 0.05
#: End of the name of a file that is not whole.
_PARTS = (".part", ".tmp")
_MAX_ENTRIES = 10000


def save(run: AskedRun, question: Mapping[str, Any]) -> Json:
    """Request a checkpoint of a run; return ``folder``, ``is_saved``, and ``name`` and ``time`` of the newest one.

    Raises
    ------
    AgentError
        The checkpoint folder cannot be written.
    """
    place = (run.job.get("env") or {}).get(CHECKPOINTS_VARIABLE) or os.path.join(run.folder, CHECKPOINTS)
    place = os.path.join(str(run.job.get("cwd") or run.folder), str(place))
    request = os.path.join(place, SAVE_REQUEST)
    before = _entries(place)
    try:
        os.close(os.open(request, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        text = "Cannot ask for a checkpoint: %s: %s." % (place, error.strerror or error)
        raise AgentError("CommandError", text) from error
    is_saved = wait_for(lambda: not os.path.exists(request), WAIT_S, _LOOK_S)
    after = _entries(place)
    changed = {name: stamp for name, stamp in after.items() if before.get(name) != stamp}
    newest = max((changed or after).items(), key=lambda one: one[1], default=("", (0, 0)))
    return {"folder": place, "is_saved": is_saved, "name": newest[0], "time": newest[1][0] / 1e9}


def _entries(place: str) -> Dict[str, _Stamp]:
    """Return time and size of the checkpoints in a folder: files, or folders of several."""
    found: Dict[str, _Stamp] = {}
    try:
        entries: List[Any] = list(os.scandir(place))[:_MAX_ENTRIES]
    except OSError:
        return found
    for entry in entries:
        if entry.name != SAVE_REQUEST and not entry.name.endswith(_PARTS):
            try:
                status = entry.stat()
            except OSError:
                continue
            found[entry.name] = (status.st_mtime_ns, status.st_size)
    return found
