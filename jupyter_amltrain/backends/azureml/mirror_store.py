"""The mirror of a job on this machine, read and written from the kernel. Blocks on the disk: call it off the loop.

``<state root>/azure/<workspace>/<job>/`` has the form of our run folder, so that the readers of run folders (the
MLflow importer, ``%aml_runs logs``) read it; :mod:`.job.mirror` fills it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.backends.azureml.job_body import foreign, spec_from, tracking_id
from jupyter_amltrain.backends.run_files import OUTPUT_LIMIT, file_of
from jupyter_amltrain.errors import StateError
from jupyter_amltrain.schema.child_run import ChildRuns
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import RunStatus
from jupyter_amltrain.state_dir import SCHEMA, write_json

#: What the agent in the job says of it.
AGENT_STATE = "agent.json"
SOURCE = "source.json"
#: Steps or trials of a run, and below it the log of each that somebody has read.
CHILDREN, CHILD_LOGS = "children.json", "children"


def folder_of(root: Path, workspace: str, name: str) -> Path:
    """Where a job's mirror lies."""
    return root / "azure" / workspace / name


def spec_of(name: str, job: Mapping[str, Any]) -> tuple[JobSpec, bool]:
    """The spec of a job from its JSON, and whether it is one of ours."""
    own = spec_from(job.get("properties") or {})
    return (own, True) if own is not None else (foreign(name, job), False)


def begin(folder: Path, name: str, spec: JobSpec, created: float, digest: str = "") -> None:
    """Make the folder with its ``job.json``; one that is there is left alone.

    Raises
    ------
    StateError
        The state root cannot be written.
    """
    path = folder / "job.json"
    if path.exists():
        return
    job = {
        "schema": SCHEMA,
        "run": name,
        "name": spec.name,
        "argv": [],
        "experiment": spec.experiment,
        "project": spec.project,
        "submitted": created,
        "tracking": {"run_id": tracking_id(name), "mode": "sink"},
        "snapshot": {"digest": digest},
        "spec": msgspec.to_builtins(spec),
    }
    try:
        for part in ("log", "metrics", "telemetry", "outputs", "artifacts"):
            (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(path, job)
    except OSError as error:
        raise StateError(
            f"Cannot write {folder}: {error.strerror or error}.", hint="Free some space, or set AMLTRAIN_HOME."
        ) from error


def end(folder: Path, status: RunStatus, ended: float | None) -> None:
    """Write how a run ended, for the importer; twice is harmless."""
    if not folder.is_dir():
        return
    state = {**msgspec.to_builtins(status), "schema": SCHEMA, "state": status.state.value, "changed": ended}
    with contextlib.suppress(OSError):  # it is written again by the next look
        write_json(folder / "state.json", state)


def agent_state(folder: Path) -> dict[str, Any]:
    """What the agent said last; empty when nothing came home."""
    return _json(folder / AGENT_STATE)


def source(folder: Path) -> str:
    """Where the figures come from, in words."""
    return str(_json(folder / SOURCE).get("words") or "")


def ended(folder: Path) -> bool:
    """Whether the mirror has all that there is of a run that is over."""
    return bool((_json(folder / "mirror.json").get("facts") or {}).get("complete"))


def read(folder: Path, stream: str, offset: int, limit: int) -> tuple[bytes, int]:
    """Bytes of a stream and the offset after them; a negative offset counts from the end."""
    try:
        with open(folder / file_of(stream), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            offset = max(0, size + offset) if offset < 0 else offset
            file.seek(offset)
            data = file.read(limit)
    except FileNotFoundError:
        return b"", max(0, offset)
    return data, offset + len(data)


def output(folder: Path, name: str) -> bytes:
    """The file of a value of ``--out``; empty when there is none."""
    try:
        with open(folder / "outputs" / f"{name}.json", "rb") as file:
            return file.read(OUTPUT_LIMIT + 1)
    except OSError:
        return b""


def children(folder: Path) -> ChildRuns:
    """Steps or trials of a run."""
    try:
        return msgspec.json.decode((folder / CHILDREN).read_bytes(), type=ChildRuns)
    except (OSError, msgspec.MsgspecError):
        return ChildRuns()


def remove(folder: Path) -> None:
    """Forget a mirror."""
    shutil.rmtree(folder, ignore_errors=True)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
