"""Readers of a run directory's files: streams, states, outputs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from jupyter_amltrain.agent import values
from jupyter_amltrain.agent.asking.pokes import MAX_SHOWN, MAX_TEXT
from jupyter_amltrain.agent.protocol import JOB, MAX_RESTARTS, STATE, valid_run_id
from jupyter_amltrain.backends.streams import stream_of
from jupyter_amltrain.backends.target_files import TargetFiles
from jupyter_amltrain.errors import AmlTrainError, ResultMissing
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import DAMAGED, PastAttempt, Phase, Poke, Run, RunHandle, RunState, RunStatus
from jupyter_amltrain.schema.run_file import OutValue, SavedValue, saved_value
from jupyter_amltrain.text import tilde

_FILES = {
    "log": "log/rank-{}.txt",
    "metrics": "metrics/rank-0.jsonl",
    "telemetry": "telemetry/node-{}.jsonl",
    "minutes": "telemetry/minutes-{}.jsonl",
    "summary": "telemetry/summary-{}.json",
}

#: Maximum size of an output value in bytes, and levels of lists and mappings in it.
OUTPUT_LIMIT, MAX_DEPTH = 1 << 20, 100

#: Key that marks a record of the agent; any other JSON is a value.
MARK = "amltrain"

#: Seconds to wait for a small file of a run.
READ_TIMEOUT_S = 60.0


class RunFiles:
    """Files of one run, for threads other than the loop. Every method blocks; a run may have no files.

    Parameters
    ----------
    run_id
        Id of the run; empty if the target has not accepted the run.
    """

    def __init__(self, loop: LoopThread, files: TargetFiles, run_id: str) -> None:
        self._loop, self._files, self._run_id = loop, files, run_id

    def read(self, path: str) -> bytes:
        """Return a file by its path in the run's folder; empty if it is absent or the target does not answer."""
        if not self._run_id:
            return b""
        try:
            return self._loop.call(self._files.read(self._run_id, path), READ_TIMEOUT_S)
        except AmlTrainError:
            return b""

    @property
    def have_modes(self) -> bool:
        """Whether local copies have the modes that the run gave its files: then its code can be compared by digest."""
        return self._files.copies_have_modes

    def local_copy(self, path: str = "") -> str | None:
        """Return a local path of a file or folder of the run; ``None`` if it is absent."""
        return self._loop.call(self._files.local_copy(self._run_id, path), None) if self._run_id else None


def file_of(stream: str) -> str:
    """Return the path of a stream in a run directory."""
    name, number = stream_of(stream)
    return _FILES[name].format(number)


def output_of(name: str, data: bytes, handle: str, folder: str = "") -> OutValue | ResultMissing:
    """Return the value in ``outputs/NAME.json``, or a :class:`ResultMissing` with the reason why there is none.

    For a cell the file is a record of the agent. A file that a ``.py`` script wrote itself is the value.

    Parameters
    ----------
    folder
        The run's ``outputs/`` for messages; empty if it is not on this machine.
    """

    def missing(reason: str, hint: str = "") -> ResultMissing:
        return ResultMissing(f"--out {name}: {reason} ({handle}).", hint=hint, name=name, why=reason)

    location = f"It is in {f'{tilde(folder)}/' if folder else 'the outputs of the run: '}{name}.json"
    if not data:
        return missing(
            "the script ended before its last line (sys.exit()?), so --out values could not be read",
            f"See: %aml_runs logs {handle}",
        )
    if len(data) > OUTPUT_LIMIT:
        return missing(f"the value is over {OUTPUT_LIMIT >> 20} MiB", location)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return missing(f"{name}.json is not JSON", f"Write it with: json.dump(value, open({name + '.json'!r}, 'w'))")
    record = _record(name, value)
    node = None if record is None else record.pop("node", None)
    if _depth(value) > MAX_DEPTH:
        return missing(f"the value has more than {MAX_DEPTH} nested levels", location)
    if record is None:
        return OutValue(value=value)
    graph = record.get("graph")
    graph = graph if isinstance(graph, str) and graph.removesuffix(".graph").isidentifier() else ""
    if "value" in record and "error" not in record:
        file = record.get("file")
        saved = saved_value(name, file, str(record.get("type") or ""), None, None) if _is_name(file) else None
        return OutValue(value=record["value"], saved=saved or _exact(name, node), graph=graph)
    reason, file = str(record.get("error") or "no value"), record.get("file")
    if not _is_name(file):
        return missing(reason, f"Set {name} to a number, text, list or dict at the top level of the cell.")
    saved = saved_value(name, file, str(record.get("type") or ""), record.get("shape"), record.get("label"))
    if saved is not None:
        return OutValue(saved=saved, graph=graph)
    saved_path = f"{tilde(folder)}/{file}" if folder else f"{file} in the outputs of the run"
    return missing(f"{reason}, saved as {saved_path}")


def _is_name(file: Any) -> TypeGuard[str]:
    return isinstance(file, str) and "/" not in file and "\\" not in file


def _exact(name: str, node: Any) -> SavedValue | None:
    """Return the value of a node without files; ``None`` for anything else, as a run can write anything there."""
    try:
        if not isinstance(node, dict) or _depth(node) > MAX_DEPTH or next(values.files_of(node), None) is not None:
            return None
        values.read(node, os.devnull)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError, OSError):
        return None
    return SavedValue(name=name, file="", node=node)


def _record(name: str, value: Any) -> dict[str, Any] | None:
    """Return `value` if it is a record of the agent; records of older versions have no mark."""
    if not isinstance(value, dict):
        return None
    old = value.get("name") == name and value.keys() in ({"name", "value"}, {"name", "error"})
    return value if MARK in value or old else None


def _depth(value: Any) -> int:
    """Return the levels of lists and mappings in a JSON value."""
    depth, level = 0, [value]
    while level := [
        inner
        for one in level
        if isinstance(one, dict | list)
        for inner in (one.values() if isinstance(one, dict) else one)
    ]:
        depth += 1
    return depth


#: What wrong types and numbers out of range raise on their way into a struct.
_UNDECODABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)

#: Notes of a target that are read: a job may write its state file.
_MAX_NOTES = 8

#: Processes of a run whose logs can be read; for the same reason.
_MAX_RANKS = 4096
#: Unix seconds above which a time is none.
_MAX_TIME = 1e11


def run_of(handle: RunHandle, folder: str, job: Mapping[str, Any], state: Mapping[str, Any]) -> Run:
    """Decode a run; a damaged run is returned as such and raises no error."""
    created = job.get("submitted") or 0.0
    try:
        # A job that was handed to the agent by another program has no spec.
        spec = msgspec.convert(job.get("spec") or {"name": str(job.get("name") or job["run"])}, JobSpec)
        return Run(
            handle=handle,
            spec=_printable(spec),
            status=status_of(state),
            created=float(created),
            seen_at=time.time(),
            folder=folder,
            project=_path(job.get("project") or ""),
            tracking_id=str((job.get("tracking") or {}).get("run_id") or ""),
        )
    except _UNDECODABLE as error:  # msgspec.ValidationError is a ValueError
        reason = " ".join(str(error).split())[:200]
        text = (
            f"Run {handle!r} is damaged: job.json cannot be read ({reason}). "
            f"Remove it with: %aml_runs delete --force {handle}"
        )
        return damaged_run(handle, folder, text, created if isinstance(created, (int, float)) else 0.0)


def copied_runs(folder: Path) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return id, job and state of the runs of which a folder has copies, oldest first. Blocks on the disk.

    The state of a run without one is empty: only the end of some is copied.
    """
    found = []
    for place in folder.iterdir() if folder.is_dir() else ():
        job = _json_file(place / JOB)
        if valid_run_id(place.name) and job.get("run") == place.name:
            found.append((place.name, job, _json_file(place / STATE)))
    return sorted(found, key=lambda one: float(one[1].get("submitted") or 0.0))


def end_of(path: Path, limit: int = 1 << 20) -> bytes:
    """Return the last bytes of a file; empty without one. Blocks on the disk."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            return file.read(limit)
    except OSError:
        return b""


def _json_file(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def damaged_run(handle: RunHandle, folder: str, why: str, created: float) -> Run:
    """Return a run whose directory cannot be read.

    Parameters
    ----------
    why
        One sentence.
    created
        Unix seconds of the folder's last change, or of the submit where that is known.
    """
    return Run(
        handle=handle,
        spec=JobSpec(name=handle.partition("/")[2], script_name=""),
        status=RunStatus(state=RunState.LOST, reason=DAMAGED, detail=why),
        created=created,
        seen_at=time.time(),
        folder=folder,
        error=why,
    )


def status_of(state: Mapping[str, Any]) -> RunStatus:
    """Convert ``state.json`` to a status; unknown fields of newer agents are ignored."""
    reason = state.get("reason")
    return RunStatus(
        state=RunState(state["state"]),
        detail=_text(state.get("detail") or ""),
        reason=None if reason is None else _text(reason),
        exit_code=state.get("exit_code"),
        signal=state.get("signal"),
        phases=tuple(msgspec.convert(state.get("phases") or (), tuple[Phase, ...])),
        devices=tuple(state.get("devices") or ()),
        cancel_requested=bool(state.get("cancel_requested")),
        version=int(state.get("version") or 0),
        truth={_text(key): _text(value) for key, value in (state.get("truth") or {}).items()},
        cause={_text(key): _text(value) for key, value in (state.get("cause") or {}).items()},
        nodes=int(state.get("nodes") or 1),
        ranks=max(1, min(int(state.get("ranks") or 1), _MAX_RANKS)),
        failed_rank=_rank(state.get("failed_rank")),
        attempt=max(1, int(state.get("attempt") or 1)),
        attempts=msgspec.convert(tuple(state.get("attempts") or ())[-MAX_RESTARTS:], tuple[PastAttempt, ...]),
        notes=tuple(map(_text, list(state.get("notes") or ())[:_MAX_NOTES])),
        experiment=_text(state.get("experiment") or "")[:250],
        pokes=tuple(_pokes(state.get("pokes"))),
    )


def _pokes(rows: Any) -> Iterator[Poke]:
    for row in rows[-MAX_SHOWN:] if isinstance(rows, list) else ():
        try:
            poke = msgspec.convert(row, Poke)
        except msgspec.ValidationError:  # a job has written it
            continue
        texts = {name: _text(getattr(poke, name))[:MAX_TEXT] for name in ("who", "text", "error")}
        if abs(poke.time) < _MAX_TIME:
            yield msgspec.structs.replace(poke, **texts)


def _rank(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < _MAX_RANKS else None


def _text(value: Any) -> str:
    """Return `value` as valid UTF-8 text: JSON may contain lone surrogates."""
    return str(value).encode("utf-8", "replace").decode()


def _path(value: Any) -> str:
    """Return `value` as a path; bytes that are not UTF-8 are surrogate escapes (PEP 383)."""
    return str(value).encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _printable(spec: JobSpec) -> JobSpec:
    """Return the job with lone surrogates in listed fields replaced.

    Raises
    ------
    ValueError
        A path or the script contains invalid surrogates, or a time is invalid.
    """
    for seconds in (spec.timeout, spec.gpu_grace):
        if seconds is not None and not 0 < seconds < 1e9:
            raise ValueError(f"{seconds!r} is not a time")
    for text in (spec.script, spec.script_name, spec.source or "", spec.notebook_dir, spec.project, spec.cell):
        text.encode("utf-8", "surrogateescape")
    shown = {
        "name": spec.name,
        "experiment": spec.experiment,
        "params": spec.params,
        "tags": spec.tags,
        "parent": spec.parent,
    }
    data = json.dumps(shown, ensure_ascii=False)
    try:
        data.encode()
        return spec
    except UnicodeEncodeError:
        return msgspec.structs.replace(spec, **json.loads(data.encode("utf-8", "replace")))
