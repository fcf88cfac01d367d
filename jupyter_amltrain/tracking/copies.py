"""Artifacts, models and traces of a run folder into the project's artifact folder."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from jupyter_amltrain.agent import failpoints
from jupyter_amltrain.tracking.store import TrackingStore

#: Left by an MLflow client that was killed while it wrote.
_UNFINISHED = ".artifact.uploading."


def copy_artifacts(store: TrackingStore, artifacts: Path, note: Callable[[str], None]) -> tuple[int, int]:
    """Copy what is new or changed below ``artifacts/runs`` and ``artifacts/models``.

    Returns
    -------
    tuple of int
        Files and bytes copied by this call.
    """
    files = size = 0
    kinds = [("runs", "SqlRun", "artifact_uri")]
    if store.has_logged_models:
        kinds.append(("models", "SqlLoggedModel", "artifact_location"))
    elif (artifacts / "models").is_dir():
        note(f"MLflow {store.version} has no place for models logged by MLflow 3; they are in {artifacts / 'models'}")
    for kind, table, column in kinds:
        base = artifacts / kind
        for name in sorted(os.listdir(base)) if base.is_dir() else []:
            with store.session() as session:
                row = session.get(getattr(store.models, table), name)
                target = local_folder(getattr(row, column)) if row is not None else None
            if target is None:
                note(f"artifacts of {kind[:-1]} {name} were left in the run folder")
                continue
            more = copy_tree(base / name / "artifacts", target, note)
            files, size = files + more[0], size + more[1]
    return files, size


def copy_traces(
    store: TrackingStore,
    artifacts: Path,
    traces: Iterable[dict[str, Any]],
    experiments: dict[str, int],
    note: Callable[[str], None],
) -> int:
    """Put traces of MLflow 3.x clients in; the number of them in the store afterwards."""
    infos = list(traces)
    if not infos:
        return 0
    try:
        from mlflow.entities import TraceInfo
        from mlflow.protos.service_pb2 import TraceInfoV3
        from mlflow.utils import proto_json_utils
    except ImportError:
        note(f"MLflow {store.version} cannot hold the {len(infos)} traces of this run")
        return 0
    json_utils: Any = proto_json_utils  # ships no types
    count = 0
    for given in infos:
        message = TraceInfoV3()
        try:
            json_utils.parse_dict(given, message)
            info = TraceInfo.from_proto(message)
            info.tags.pop("mlflow.artifactLocation", None)
            experiment = experiments[str(info.experiment_id)]
            where: Any = info.trace_location.mlflow_experiment
            where.experiment_id = str(experiment)
            kept = _trace(store, info)
        except Exception as error:  # MLflow's trace tables change from release to release
            note(f"trace {given.get('trace_id')}: {type(error).__name__}: {str(error)[:200]}")
            continue
        count += 1
        target = local_folder(kept.tags.get("mlflow.artifactLocation", ""))
        if target is not None:
            copy_tree(artifacts / "traces" / info.trace_id / "artifacts", target, note)
    return count


def _trace(store: TrackingStore, info: Any) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        return store.mlflow.get_trace_info(info.trace_id)
    except MlflowException:
        store.mlflow.start_trace(info)
        return store.mlflow.get_trace_info(info.trace_id)


def local_folder(uri: str) -> Path | None:
    """The folder of a ``file:`` URI, or nothing for a remote one."""
    if uri.startswith("file:"):
        return Path(url2pathname(urlsplit(uri).path))
    return Path(uri) if uri.startswith("/") else None


def copy_tree(source: Path, target: Path, note: Callable[[str], None]) -> tuple[int, int]:
    """Copy files that differ in size or time; each appears whole or not at all.

    Returns
    -------
    tuple of int
        Files and bytes copied.
    """
    files = size = 0
    for folder, folders, names in os.walk(source):
        folders.sort()
        to = target / os.path.relpath(folder, source)
        to.mkdir(parents=True, exist_ok=True)
        for name in sorted(names):
            if name.startswith(_UNFINISHED):
                continue
            here, there = Path(folder, name), to / name
            try:
                mine = here.stat()
            except FileNotFoundError:
                continue  # a broken link, or the script has just removed it
            if not stat.S_ISREG(mine.st_mode):
                note(f"{here} is no file and was not copied")
                continue
            if _same(mine, there):
                continue
            part = there.with_name(there.name + ".part")
            shutil.copy2(here, part)
            failpoints.hit("import_between_copies")
            os.replace(part, there)
            files, size = files + 1, size + mine.st_size
    return files, size


def _same(mine: os.stat_result, there: Path) -> bool:
    try:
        other = there.stat()
    except FileNotFoundError:
        return False
    return mine.st_size == other.st_size and mine.st_mtime_ns == other.st_mtime_ns
