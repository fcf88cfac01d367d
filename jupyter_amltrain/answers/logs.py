"""Parts of logs, cut between characters."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.naming import tilde
from jupyter_amltrain.panel import protocol
from jupyter_amltrain.panel.protocol import LogReply, Reply

if TYPE_CHECKING:
    from jupyter_amltrain.backends.base import Backend
    from jupyter_amltrain.controller import Controller

#: Bytes that one answer has at most; at least what the longest character takes.
MOST, LEAST = 1 << 18, 4


class LogAnswers:
    """Answers about logs."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def ops(self) -> dict[type, Callable[[Any], Coroutine[Any, Any, Reply]]]:
        """What is answered here."""
        return {protocol.GetLog: self._log}

    async def _log(self, asked: protocol.GetLog) -> LogReply:
        controller = self._controller
        entry = controller.entry(await controller.find(asked.handle))
        run = entry.run
        ended = run.status.state.terminal  # asked first: what is read after is all there is
        if not run.folder:
            return LogReply(text="", start=0, offset=0, ended=ended)
        backend = controller.backend(run.target)
        limit = min(max(asked.limit, LEAST), MOST)
        if asked.child:
            return await self._child_log(backend, run.run_id, asked, limit)
        chunk = await backend.read(run.run_id, "log", asked.offset, limit)
        if not chunk.data and asked.offset > 0 and backend.log_may_shrink:
            end = (await backend.read(run.run_id, "log", -1, 1)).offset
            if end < asked.offset:  # the job has emptied it: from its new beginning
                chunk = await backend.read(run.run_id, "log", 0, limit)
        whole = ended and len(chunk.data) < limit
        text, skipped, left = cut(chunk.data, whole, line=asked.offset < 0 and chunk.offset > len(chunk.data))
        return LogReply(
            text=text,
            start=chunk.offset - len(chunk.data) + skipped,
            offset=chunk.offset - left,
            ended=whole,
            path=tilde(await backend.log_path(run.run_id)),
            restarts=entry.log.restarts,
        )

    async def _child_log(self, backend: Backend, run_id: str, asked: protocol.GetLog, limit: int) -> LogReply:
        """Part of the log of a step or trial."""
        children = (await backend.children(run_id)).runs
        ended = any(run.id == asked.child and run.ended is not None for run in children)
        chunk = await backend.read_child(run_id, asked.child, asked.offset, limit)
        whole = ended and len(chunk.data) < limit
        text, skipped, left = cut(chunk.data, whole, line=asked.offset < 0 and chunk.offset > len(chunk.data))
        start = chunk.offset - len(chunk.data) + skipped
        return LogReply(text=text, start=start, offset=chunk.offset - left, ended=whole)


def cut(data: bytes, whole: bool, *, line: bool = False) -> tuple[str, int, int]:
    """The whole characters of `data`; bytes left out before them, and after them.

    Parameters
    ----------
    whole
        Nothing follows: a torn last character stays torn.
    line
        Begin at the first line that begins in `data`, if one does.
    """
    skipped = 0
    while skipped < min(3, len(data)) and data[skipped] & 0xC0 == 0x80:
        skipped += 1
    if line:
        skipped = data.find(b"\n", 0, -1) + 1 or skipped
    left = 0 if whole else _torn(data[skipped:])
    return data[skipped : len(data) - left].decode("utf-8", "replace"), skipped, left


def _torn(data: bytes) -> int:
    """Bytes of a last character that are not all there."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if back < length else 0
    return 0
