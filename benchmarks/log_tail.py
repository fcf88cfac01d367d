"""The log of a run as it grows, by the events of its backend."""

from __future__ import annotations

from collections.abc import AsyncIterator

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.streams import Chunk


async def log_chunks(backend: Backend, run_id: str) -> AsyncIterator[Chunk]:
    """Yield new parts of a log until its run has ended."""
    events, offset = backend.events(), 0
    while True:
        ended = (await backend.poll([run_id]))[run_id].state.terminal
        while (chunk := await backend.read(run_id, "log", offset)).data:
            offset = chunk.offset
            yield chunk
        if ended:
            return
        await events.wait([run_id], [run_id], 1.0)
