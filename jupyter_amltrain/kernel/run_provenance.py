"""Provenance of a run, read from the files of its folder. Loop thread only."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from jupyter_amltrain.agent.protocol import JOB, PROVENANCE, TELEMETRY
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.schema.provenance import Provenance, provenance_of
from jupyter_amltrain.schema.run import Run

#: Maximum length of the first line of a telemetry file in bytes: a machine has few GPUs.
_MAX_HEADER_BYTES = 1 << 18


async def read_provenance(backend: Backend, run: Run) -> Provenance:
    """Return what is known about the origin of a run; a file that is missing or damaged is skipped."""
    if not run.folder or run.damaged:
        return Provenance()

    async def header() -> bytes:
        try:
            data = await backend.files.read_part(run.run_id, TELEMETRY % 0, 0, _MAX_HEADER_BYTES)
        except (AmlTrainError, OSError):
            return b""
        return data.partition(b"\n")[0]

    files = (backend.files.read(run.run_id, JOB), backend.files.read(run.run_id, PROVENANCE), header())
    return provenance_of(*map(_mapping, await asyncio.gather(*files)))


def _mapping(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
