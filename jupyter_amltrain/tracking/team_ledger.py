"""What a project sends to its team's MLflow server: a file for each run, which outlives kernels and outages."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.state_dir import project_store, read_json, write_json

#: Folder in the project's store.
FOLDER = "team"

#: States of an entry: to be sent; sent; not accepted by the server.
WAITING, SENT, REFUSED = "waiting", "sent", "refused"

Entry = dict[str, Any]


def add(project: str, run_id: str, handle: str, uri: str, submitted: float) -> None:
    """Note that a run is to be sent; one that was sent to this server stays.

    Parameters
    ----------
    run_id
        MLflow's id in the project's store.
    uri
        The server.
    submitted
        Unix seconds: runs are sent in this order.
    """
    known = entry_of(project, run_id)
    if known and known["uri"] == uri and known["state"] == SENT:
        return
    entry = {"schema": 1, "run": run_id, "handle": handle, "uri": uri, "submitted": submitted, "state": WAITING}
    _file(project, run_id).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(_file(project, run_id), entry)


def update(project: str, run_id: str, **changes: Any) -> None:
    """Change fields of an entry."""
    entry = entry_of(project, run_id)
    if entry:
        write_json(_file(project, run_id), {**entry, **changes})


def entry_of(project: str, run_id: str) -> Entry:
    """Return the entry of a run; empty if it is not to be sent."""
    if not run_id:
        return {}
    with contextlib.suppress(AmlTrainError):
        entry = read_json(_file(project, run_id))
        if isinstance(entry, dict) and {"run", "uri", "state"} <= entry.keys():
            return entry
    return {}


def renew(project: str, run_ids: Collection[str]) -> None:
    """Let runs that were refused wait again; forget why those that wait have not been sent so far."""
    for entry in unsent(project):
        if entry["state"] == WAITING or entry["run"] in run_ids:
            update(project, entry["run"], state=WAITING, error="")


def waiting(project: str) -> list[Entry]:
    """Return the entries of runs that are to be sent, in the order of their submission."""
    return [entry for entry in unsent(project) if entry["state"] == WAITING]


def unsent(project: str) -> list[Entry]:
    """Return the entries of runs that are to be sent or were refused, in the order of their submission."""
    folder = project_store(project) / FOLDER
    entries = [entry_of(project, path.stem) for path in folder.glob("*.json")]
    found = [entry for entry in entries if entry.get("state") in (WAITING, REFUSED)]
    return sorted(found, key=lambda entry: float(entry.get("submitted") or 0.0))


def page_of(entry: Entry) -> str:
    """Return the address of a run that was sent, in the server's pages; empty for another one."""
    if entry.get("state") != SENT:
        return ""
    return f"{entry['uri'].rstrip('/')}/#/experiments/{entry['experiment']}/runs/{entry['there']}"


def text_of(entry: Entry) -> str:
    """Return an entry as text; empty for a run that is not sent anywhere."""
    if not entry:
        return ""
    if page := page_of(entry):
        return page
    error = f": {entry['error']}" if entry.get("error") else ""
    return f"{entry['state']} for {entry['uri']}{error}"


def _file(project: str, run_id: str) -> Path:
    return project_store(project) / FOLDER / f"{run_id}.json"
