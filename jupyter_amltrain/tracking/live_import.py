"""Imports of a run while it lives: what its script has logged so far is in MLflow's store some seconds later.

Each import goes on where the last one of this process ended. Everything is repeated by the import after the end
(:mod:`jupyter_amltrain.tracking.importer`), which does not depend on this one: only its cursor in the store and the
rejected records are taken over.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_amltrain.agent.mlflow.journal import clean
from jupyter_amltrain.agent.protocol import open_regular
from jupyter_amltrain.schema.run import RunState
from jupyter_amltrain.state_dir import check_schema, read_json, write_json
from jupyter_amltrain.tracking import importer

#: Seconds to wait for another import into the same project; a later call tries again.
LOCK_TIMEOUT_S = 1.0
#: Records per transaction: small, so that the first points of a long journal are soon visible.
CHUNK = 1000
#: Shortest seconds between two imports of pictures, artifacts and system metrics of a run.
FILES_INTERVAL_S = 20.0
#: Such an import took at most this part of the time since the last one.
FILES_SHARE = 0.05


@dataclass
class _Living:
    """What this process knows of a run that is being recorded."""

    position: importer.JournalPosition = field(default_factory=importer.JournalPosition)
    files_at: float = 0.0  #: monotonic time of the next import of files


_living: dict[str, _Living] = {}


def record_live(run_dir: str, project: str, *, handle: str) -> dict[str, Any]:
    """Bring the record of a living run up to date.

    Parameters
    ----------
    run_dir
        The run folder.
    project
        Folder that owns ``.amltrain``.
    handle
        ``"<target>/<run-id>"``.

    Returns
    -------
    dict
        ``state``: "recorded", "direct" (the script has its own server), "gone" (no run folder), or "ended" (the
        import after the end follows). ``seq``: number of the last record in the store. ``seconds``.

    Raises
    ------
    StateError
        As :func:`jupyter_amltrain.tracking.importer.import_run`; nothing is written to ``tracking.json``.
    """
    started, folder = time.monotonic(), Path(run_dir)
    living = _living.setdefault(run_dir, _Living())
    try:
        state = _record(folder, project, handle, living)
    except Exception:  # whatever stopped it
        # The next one begins again, and the store's cursor skips what is there.
        living.position = importer.JournalPosition()
        if (folder / "job.json").exists():
            raise
        state = "gone"  # deleted meanwhile
    if state != "recorded":
        _living.pop(run_dir, None)
    return {"state": state, "seq": living.position.seq, "seconds": round(time.monotonic() - started, 3)}


def _record(folder: Path, project: str, handle: str, living: _Living) -> str:
    job = clean(read_json(folder / "job.json"))
    check_schema(job, folder / "job.json")
    result = importer.blank_result(job, project)
    if result["mode"] == "direct":
        return "direct"
    state: dict[str, Any] = {}
    if (path := folder / "state.json").exists():
        state = read_json(path)
        check_schema(state, path)
    name = str(state.get("state", "preparing"))
    if name in set(RunState) and RunState(name).terminal:
        return "ended"
    with importer.open_store(project, LOCK_TIMEOUT_S, result) as store:
        replay = importer.JournalImport(store, folder, job, result, living.position)
        if not _has_begun(folder):
            return "recorded"  # the first line names the experiment; the store is ready for it
        begun = time.monotonic()
        replay.records(CHUNK)
        with_files = begun >= living.files_at
        if with_files:
            importer.copy_files(replay)
        replay.finish(state, handle, with_system=with_files)
        living.position = replay.position
        if with_files:
            took = time.monotonic() - begun
            living.files_at = time.monotonic() + max(FILES_INTERVAL_S, took / FILES_SHARE)
    _leave_word(folder, living.position)
    return "recorded"


def _has_begun(folder: Path) -> bool:
    """Return whether the journal has its first line."""
    try:
        with os.fdopen(open_regular(str(folder / "metrics" / "rank-0.jsonl")), "rb") as file:
            return file.readline().endswith(b"\n")
    except FileNotFoundError:
        return False


def _leave_word(folder: Path, position: importer.JournalPosition) -> None:
    """Say in the run folder that this run is being recorded, and what the last import must take over."""
    with contextlib.suppress(OSError):
        word = {"schema": 1, "pid": os.getpid(), "seq": position.seq, "rejects": position.rejects}
        write_json(folder / importer.LIVE_FILE, clean({**word, "updated": time.time()}))
