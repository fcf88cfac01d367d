"""Bringing a run home: its streams, its values, the sentence that says how it ended."""

from __future__ import annotations

from typing import Any

import msgspec

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.runs.outcome import why
from jupyter_amltrain.runs.reading import read_streams
from jupyter_amltrain.runs.store import Entry
from jupyter_amltrain.spec.run import RunState, RunStatus


async def settled(backend: Backend, entry: Entry) -> dict[str, Any]:
    """Read what the streams have; the fields that an ended run gets beside its status."""
    await read_streams(backend, entry, entry.run.status)
    return await outcome(backend, entry, entry.run.status)


async def outcome(backend: Backend, entry: Entry, status: RunStatus) -> dict[str, Any]:
    """Values of ``--out`` and, unless all is well, one sentence why. Fields of a run."""
    run = entry.run
    if not status.state.terminal or run.damaged:
        return {}
    if status.state is not RunState.COMPLETED:
        ended = msgspec.structs.replace(run, status=status)
        return {"error": why(ended, entry.log.tail()[0])}
    absent = [name for name in run.spec.out if name not in run.outputs]
    if not absent:
        return {}
    found = await backend.outputs(run.run_id, absent)
    values = {k: v for k, v in found.items() if not isinstance(v, AmlTrainError)}
    missing = [str(v) for v in found.values() if isinstance(v, AmlTrainError)]
    return {"outputs": {**entry.run.outputs, **values}, "error": missing[0] if missing else None}


async def read_log(backend: Backend, run_id: str, tail_bytes: int | None = None) -> bytes:
    """The log: all of it, or its last `tail_bytes` bytes."""
    if tail_bytes is not None:
        return (await backend.read(run_id, "log", -tail_bytes, tail_bytes)).data
    parts, offset = [], 0
    while (chunk := await backend.read(run_id, "log", offset)).data:
        parts.append(chunk.data)
        offset = chunk.offset
    return b"".join(parts)
