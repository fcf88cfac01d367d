"""The mirror of a job on this machine, read and written by the kernel. Blocks on the disk: call it off the loop.

``<state root>/azure/<workspace>/<job>/`` has the form of a run directory, so that readers of run directories (the
MLflow importer, ``%aml_runs logs``) can read it; :mod:`.service.mirror` fills it.
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

from jupyter_amltrain.agent.protocol import GIT_DIFF
from jupyter_amltrain.azure.job_body import spec_from, spec_of_foreign_job, sweep_of_body, tracking_id
from jupyter_amltrain.backends.run_files import OUTPUT_LIMIT, file_of
from jupyter_amltrain.errors import StateError
from jupyter_amltrain.jobs.origin import Origin
from jupyter_amltrain.schema.child_run import CHILDREN, ChildRuns
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import RunStatus
from jupyter_amltrain.state_dir import SCHEMA, write_json

#: State reported by the agent in the job.
AGENT_STATE = "agent.json"
SOURCE = "source.json"
#: Folder with the logs of steps or trials that have been read.
CHILD_LOGS = "children"


def folder_of(root: Path, workspace: str, name: str) -> Path:
    """Return the folder of a job's mirror."""
    return root / "azure" / workspace / name


def spec_of(name: str, job: Mapping[str, Any]) -> tuple[JobSpec, bool]:
    """Return the spec of a job from its JSON, and whether jupyter_amltrain submitted it."""
    own = spec_from(job.get("properties") or {})
    if own is None:
        return spec_of_foreign_job(name, job), False
    return own if own.sweep is not None else msgspec.structs.replace(own, sweep=sweep_of_body(job)), True


def create(
    folder: Path, name: str, spec: JobSpec, created: float, target: str, digest: str = "", origin: Origin | None = None
) -> None:
    """Create the folder with its ``job.json``, which names the target; an existing one is not changed.

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
        "target": target,
        "name": spec.name,
        "argv": [],
        "experiment": spec.experiment,
        "project": spec.project,
        "submitted": created,
        "tracking": {"run_id": tracking_id(name), "mode": "sink"},
        "snapshot": {"digest": digest},
        "spec": msgspec.to_builtins(spec),
        **({"provenance": msgspec.to_builtins(origin.provenance)} if origin else {}),
    }
    try:
        for part in ("log", "metrics", "telemetry", "outputs", "artifacts"):
            (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)
        if origin and origin.git_diff:
            (folder / GIT_DIFF).write_text(origin.git_diff, encoding="utf-8", errors="replace")
        write_json(path, job)
    except OSError as error:
        raise StateError(
            f"Cannot write {folder}: {error.strerror or error}.", hint="Free some space, or set AMLTRAIN_HOME."
        ) from error


def write_end(folder: Path, status: RunStatus, ended: float | None) -> None:
    """Write the final state of a run, for the importer; idempotent."""
    if not folder.is_dir():
        return
    state = {**msgspec.to_builtins(status), "schema": SCHEMA, "state": status.state.value, "changed": ended}
    with contextlib.suppress(OSError):  # the next poll writes it again
        write_json(folder / "state.json", state)


def agent_state(folder: Path) -> dict[str, Any]:
    """Return the agent's last state; empty if none was fetched."""
    return _json(folder / AGENT_STATE)


def has_begun(folder: Path) -> bool:
    """Return whether there is a sign of a running job: its agent's state, or a log."""
    return bool(agent_state(folder)) or any(path.stat().st_size for path in (folder / "log").glob("*.txt"))


def source_text(folder: Path) -> str:
    """Return a description of the source of the metrics."""
    return str(_json(folder / SOURCE).get("words") or "")


def is_complete(folder: Path) -> bool:
    """Return whether the mirror has all files of an ended run."""
    return bool(_facts(folder).get("complete"))


#: Note of a run that could not log a model.
MODELS_REFUSED = (
    "A model was not logged, nor the metrics of autologging with it: the job logs to Azure ML's own MLflow, which has"
    " no logged models, and this version of MLflow needs them. Use mlflow.autolog(log_models=False), or submit the"
    " script itself (%aml_submit train.py): then its models are recorded."
)


def notes(folder: Path) -> tuple[str, ...]:
    """Return notes about an ended run, from its files."""
    return (MODELS_REFUSED,) if _facts(folder).get("models_refused") else ()


def read(folder: Path, stream: str, offset: int, limit: int) -> tuple[bytes, int]:
    """Return bytes of a stream and the offset after them; a negative offset counts from the end."""
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
    """Return the file with a value of ``--out``; empty if there is none."""
    try:
        with open(folder / "outputs" / f"{name}.json", "rb") as file:
            return file.read(OUTPUT_LIMIT + 1)
    except OSError:
        return b""


def children(folder: Path) -> ChildRuns:
    """Return the steps or trials of a run."""
    try:
        return msgspec.json.decode((folder / CHILDREN).read_bytes(), type=ChildRuns)
    except (OSError, msgspec.MsgspecError):
        return ChildRuns()


def remove(folder: Path) -> None:
    """Delete a mirror."""
    shutil.rmtree(folder, ignore_errors=True)


def _facts(folder: Path) -> dict[str, Any]:
    facts = _json(folder / "mirror.json").get("facts")
    return facts if isinstance(facts, dict) else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
