"""Copies artifacts, models and traces of a run folder into the project's artifact folder."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from jupyter_amltrain.agent import testing
from jupyter_amltrain.agent.file_store import share_blocks
from jupyter_amltrain.agent.protocol import PICTURES
from jupyter_amltrain.tracking.mlflow_private import trace_info
from jupyter_amltrain.tracking.mlflow_store import TrackingStore, local_folder

#: Prefix of files of an MLflow client that was killed while it wrote.
_UNFINISHED = ".artifact.uploading."
#: File that MLflow writes beside a registered model when it is loaded: in a job that is the model itself, not a copy.
_LOADED = "registered_model_meta"
_BLOCK = 1 << 20


def copy_artifacts(store: TrackingStore, artifacts: Path, note: Callable[[str], None]) -> tuple[int, int]:
    """Copy new and changed files below ``artifacts/runs`` and ``artifacts/models``.

    Returns
    -------
    tuple of int
        Files and bytes copied by this call.
    """
    files = size = 0
    kinds = ["runs"]
    if store.has_logged_models:
        kinds.append("models")
    elif (artifacts / "models").is_dir():
        note(f"MLflow {store.version} cannot store models logged by MLflow 3; they are in {artifacts / 'models'}")
    for kind in kinds:
        base = artifacts / kind
        for name in sorted(os.listdir(base)) if base.is_dir() else []:
            target = store.folder_of(kind, name)
            if target is None:
                note(f"artifacts of {kind[:-1]} {name} were left in the run folder")
                continue
            copied = copy_tree(base / name / "artifacts", target, note, within=artifacts.parent)
            files, size = files + copied[0], size + copied[1]
    return files, size


def copy_figures(store: TrackingStore, folder: Path, run_id: str, note: Callable[[str], None]) -> tuple[int, int]:
    """Copy the figures that the script has shown to ``figures/`` among the artifacts of its run.

    Returns
    -------
    tuple of int
        Files and bytes copied by this call.
    """
    pictures = folder / PICTURES
    if pictures.is_symlink() or not pictures.is_dir():
        return 0, 0
    target = store.folder_of("runs", run_id)
    return (0, 0) if target is None else copy_tree(pictures, target / "figures", note, within=folder)


def copy_traces(
    store: TrackingStore,
    artifacts: Path,
    traces: Iterable[dict[str, Any]],
    experiments: dict[str, int],
    note: Callable[[str], None],
) -> int:
    """Import traces of MLflow 3.x clients; return the number of them in the store afterwards."""
    infos = list(traces)
    if not infos:
        return 0
    count = 0
    for trace in infos:
        try:
            info = trace_info(trace)
            info.tags.pop("mlflow.artifactLocation", None)
            experiment = experiments[str(info.experiment_id)]
            location: Any = info.trace_location.mlflow_experiment
            location.experiment_id = str(experiment)
            stored = _trace(store, info)
        except ImportError:
            note(f"MLflow {store.version} cannot store the {len(infos)} traces of this run")
            return 0
        except Exception as error:  # MLflow's trace tables change from release to release
            note(f"trace {trace.get('trace_id')}: {type(error).__name__}: {str(error)[:200]}")
            continue
        count += 1
        target = local_folder(stored.tags.get("mlflow.artifactLocation", ""))
        if target is not None:
            copy_tree(artifacts / "traces" / info.trace_id / "artifacts", target, note, within=artifacts.parent)
    return count


def _trace(store: TrackingStore, info: Any) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        return store.mlflow.get_trace_info(info.trace_id)
    except MlflowException:
        store.mlflow.start_trace(info)
        return store.mlflow.get_trace_info(info.trace_id)


def copy_tree(source: Path, target: Path, note: Callable[[str], None], within: Path | None = None) -> tuple[int, int]:
    """Copy files that differ in size or time; each appears completely or not at all.

    Parameters
    ----------
    within
        Links are followed only to files in this folder; ``None`` follows all. Links to folders never are.

    Returns
    -------
    tuple of int
        Files and bytes copied.
    """
    files = size = 0
    for folder, folders, names in os.walk(source):
        folders.sort()
        for name in folders:
            if os.path.islink(os.path.join(folder, name)):
                note(f"{os.path.join(folder, name)} is a link to a folder and was not copied")
        to = target / os.path.relpath(folder, source)
        to.mkdir(parents=True, exist_ok=True)
        for name in sorted(names):
            if name.startswith(_UNFINISHED) or (name == _LOADED and "MLmodel" in names):
                continue
            original, copy = Path(folder, name), to / name
            try:
                status = original.stat()
            except FileNotFoundError:
                continue  # a broken link, or the script has just removed it
            except OSError as error:
                note(f"{original} was not copied: {error.strerror}")  # circular links, no permission
                continue
            if within is not None and original.is_symlink() and not original.resolve().is_relative_to(within.resolve()):
                note(f"{original} is a link out of the run's folder and was not copied")
                continue
            if not stat.S_ISREG(status.st_mode):
                note(f"{original} is not a regular file and was not copied")
                continue
            if _same(status, copy):
                continue
            part = copy.with_name(copy.name + ".part")
            try:
                copy_file(original, part)
                testing.hit("import_between_copies")
                os.replace(part, copy)
            except OSError:
                part.unlink(missing_ok=True)  # it would keep a full disk full
                raise
            files, size = files + 1, size + status.st_size
    return files, size


def copy_file(source: Path, target: Path) -> None:
    """Copy a file with its times: shared blocks where the file system can (Btrfs, XFS), holes as holes."""
    with source.open("rb", buffering=0) as reader, target.open("wb") as writer:
        if not share_blocks(reader.fileno(), writer.fileno()):
            _copy_data(reader, writer)
    shutil.copystat(source, target)


def _copy_data(reader: FileIO, writer: BinaryIO) -> None:
    status = os.fstat(reader.fileno())
    if not hasattr(os, "SEEK_DATA") or status.st_blocks * 512 >= status.st_size:
        shutil.copyfileobj(reader, writer, _BLOCK)
        return
    at = 0
    while at < status.st_size:
        try:
            begin = os.lseek(reader.fileno(), at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                break
            raise
        at = os.lseek(reader.fileno(), begin, os.SEEK_HOLE)
        reader.seek(begin)
        writer.seek(begin)
        while begin < at and (block := reader.read(min(at - begin, _BLOCK))):
            begin += writer.write(block)
    writer.truncate(status.st_size)


def _same(status: os.stat_result, copy: Path) -> bool:
    try:
        other = copy.stat()
    except FileNotFoundError:
        return False
    return status.st_size == other.st_size and status.st_mtime_ns == other.st_mtime_ns
