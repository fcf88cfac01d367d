"""The log of a run as it grows, by the events of its backend, as the kernel's watcher reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.streams import STATUS, Chunk

#: Seconds without an event after which the status is asked for.
_SILENCE_S = 1.0
_LIMIT = 1 << 20


async def log_chunks(backend: Backend, run_id: str) -> AsyncIterator[Chunk]:
    """Yield new parts of a log until its run has ended."""
    events, offset = backend.events(), 0
    news = {run_id: {STATUS}}
    while True:
        what = news.get(run_id)
        ended = (not what or STATUS in what) and (await backend.poll([run_id]))[run_id].state.terminal
        while True:
            chunk = await backend.read(run_id, "log", offset, _LIMIT)
            offset = chunk.offset
            if chunk.data:
                yield chunk
            if len(chunk.data) < _LIMIT:
                break
        if ended:
            return
        news = {one: set(streams) for one, streams in (await events.wait([run_id], [run_id], _SILENCE_S)).items()}
