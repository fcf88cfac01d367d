"""Bringing a run home: its streams, its values, the sentence that says how it ended."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from jupyter_amltrain.backends.base import Backend, Chunk
from jupyter_amltrain.errors import AmlTrainError, ResultMissing
from jupyter_amltrain.runs.outcome import why
from jupyter_amltrain.runs.reading import read_streams
from jupyter_amltrain.runs.store import Entry
from jupyter_amltrain.spec.run import RunState, RunStatus

log = logging.getLogger(__name__)


async def settled(backend: Backend, entry: Entry) -> dict[str, Any]:
    """Read what the streams have; the fields that an ended run gets beside its status."""
    try:
        await read_streams(backend, entry, entry.run.status)
    except AmlTrainError:
        raise
    except Exception:  # a job can write anything into them: what else is known of the run is shown
        if "streams" not in entry.faults:
            entry.faults.add("streams")
            log.warning("reading %s", entry.run.handle, exc_info=True)
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
    missing = [v for v in found.values() if isinstance(v, AmlTrainError)]
    error: AmlTrainError | None = missing[0] if missing else None
    known = [v for v in missing if isinstance(v, ResultMissing)]
    if missing and len(known) == len(missing):
        error = ResultMissing.of_all(run.handle, known)
    return {"outputs": {**entry.run.outputs, **values}, "error": None if error is None else str(error)}


async def read_log(
    backend: Backend, run_id: str, tail_bytes: int | None = None, child: str = "", rank: int = 0
) -> bytes:
    """The log of one process of a run, or of its child of that id: all of it, or its last `tail_bytes` bytes."""

    async def read(offset: int, limit: int = 1 << 20) -> Chunk:
        if child:
            return await backend.read_child(run_id, child, offset, limit)
        return await backend.read(run_id, f"log/{rank}", offset, limit)

    if tail_bytes is not None:
        return (await read(-tail_bytes, tail_bytes)).data
    parts, offset = [], 0
    while (chunk := await read(offset)).data:
        parts.append(chunk.data)
        offset = chunk.offset
    return b"".join(parts)
