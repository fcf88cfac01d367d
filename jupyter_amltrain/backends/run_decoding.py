"""``job.json`` and ``state.json`` -> :class:`~jupyter_amltrain.spec.run.Run`: the one place that decodes them.

What cannot be decoded is a run, too: one that says so and can be deleted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.spec.job import JobSpec
from jupyter_amltrain.spec.run import DAMAGED, Phase, Run, RunHandle, RunState, RunStatus

#: What wrong types and numbers out of range raise on their way into a struct.
_UNDECODABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)

#: Notes of a target that are read: a job may write its state file.
_MAX_NOTES = 8
#: Processes of a run whose logs can be read; for the same reason.
_MAX_RANKS = 4096


def run_of(handle: RunHandle, folder: str, job: Mapping[str, Any], state: Mapping[str, Any]) -> Run:
    """Decode a run; a damaged one is returned as such, never raised."""
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
        why = " ".join(str(error).split())[:200]
        text = (
            f"Run {handle!r} is damaged: job.json cannot be understood ({why}). "
            f"Remove it with: %aml_runs delete --force {handle}"
        )
        return damaged_run(handle, folder, text, created if isinstance(created, (int, float)) else 0.0)


def damaged_run(handle: RunHandle, folder: str, why: str, created: float) -> Run:
    """A run whose folder cannot be understood.

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
    """``state.json`` -> status; unknown fields of newer agents are ignored."""
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
        notes=tuple(map(_text, list(state.get("notes") or ())[:_MAX_NOTES])),
    )


def _text(value: Any) -> str:
    """`value` as text that every terminal and wire takes: JSON may hold half a surrogate pair."""
    return str(value).encode("utf-8", "replace").decode()


def _path(value: Any) -> str:
    """`value` as a path; bytes that are not UTF-8 stand in it as Python writes them (PEP 383)."""
    return str(value).encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _printable(spec: JobSpec) -> JobSpec:
    """The job with lone surrogates in what lists show replaced.

    Raises
    ------
    ValueError
        A path or the script holds some that stand for no byte of a file name, or a time is none.
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
