"""The operation ``log``: parts of a log, as bytes or as a terminal shows them."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from jupyter_amltrain.frontend.log_screen import LogScreen, lines_before
from jupyter_amltrain.frontend.protocol import Reply, Request, op
from jupyter_amltrain.text import tilde

if TYPE_CHECKING:
    from jupyter_amltrain.backends.base import Backend
    from jupyter_amltrain.backends.streams import Chunk
    from jupyter_amltrain.kernel.controller import Controller

#: Limits of the bytes of a log in one reply; the minimum is the longest UTF-8 character.
MAX_LOG_BYTES, MIN_LOG_BYTES = 1 << 18, 4
#: Maximum number of screens kept: a tab with the logs of all ranks has up to 16.
MAX_SCREENS = 64


class GetLog(Request, frozen=True, kw_only=True):
    """Get part of a log.

    Attributes
    ----------
    offset
        First byte; a negative number counts from the end.
    limit
        Maximum number of bytes; the kernel may return fewer.
    child
        Id of a step or trial whose log is requested; empty for the run's own.
    rank
        Process of a distributed run.
    screen
        Id that a page has chosen for one view of this log: the reply has lines of its terminal; empty: text.
    earlier
        Maximum number of lines that the page wants before byte `offset + limit`, where its lines begin. They are
        drawn on a screen of their own; 0: not such a request.
    """

    handle: str
    offset: int = 0
    limit: int = 1 << 17
    child: str = ""
    rank: int = 0
    screen: str = ""
    earlier: int = 0


class LogReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`GetLog`.

    Attributes
    ----------
    text
        Whole characters only; carriage returns unchanged. Empty if the request names a screen or wants earlier lines.
    start, offset
        First byte of this part, and the offset of the next request.
    ended
        The run has ended and this is the end of its log.
    path
        Path of the whole log.
    restarts
        Number of times that the job has rewritten its log; if it grows, text of earlier replies is outdated.
    ranks
        Processes with a log of their own.
    failed_rank
        Process that failed first; ``None`` without one.
    fresh
        The screen is a new one, with line 0 at byte `start`: the request was the first, its `offset` was not where the
        screen is, or the kernel has dropped the screen.
    first, lines
        All lines from number `first` on, each with codes of its colors only. They replace those that the page has.
        The last one has no end yet.
    marks
        Numbers of lines, and the byte at which each begins, where a new screen would show the same of what follows.
    """

    text: str
    start: int
    offset: int
    ended: bool
    path: str = ""
    restarts: int = 0
    ranks: int = 1
    failed_rank: int | None = None
    fresh: bool = False
    first: int = 0
    lines: tuple[str, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()


class LogHandlers:
    """Handler of the operation ``log``."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        #: Screens by log and view, the one that was read last at the end.
        self._screens: OrderedDict[tuple[str, str, int, str], LogScreen] = OrderedDict()

    @op("log")
    async def read(self, request: GetLog) -> LogReply:
        """Return part of the log of a run, or of one of its steps or trials."""
        controller = self._controller
        entry = controller.entry(await controller.find(request.handle))
        run = entry.run
        ended = run.status.state.terminal  # before the read: a log that is read after the run's end is complete
        if not run.folder:
            return LogReply(text="", start=0, offset=0, ended=ended)
        backend = controller.backend(run.target)
        if request.child:
            return await self._read_child(backend, run.run_id, request)
        read = functools.partial(backend.read, run.run_id, f"log/{request.rank}")
        if request.earlier:
            return await _read_earlier(read, request)
        limit = _limit(request)
        chunk = await read(request.offset, limit)
        if not chunk.data and request.offset > 0 and backend.files.log_may_shrink:
            end = (await read(-1, 1)).offset
            if end < request.offset:  # the job emptied it: read from its new start
                chunk = await read(0, limit)
        return msgspec.structs.replace(
            self._part(request, chunk, ended and len(chunk.data) < limit),
            path=tilde(await backend.files.log_path(run.run_id)),
            restarts=0 if request.rank else entry.log.restarts,
            ranks=run.status.ranks,
            failed_rank=run.status.failed_rank,
        )

    async def _read_child(self, backend: Backend, run_id: str, request: GetLog) -> LogReply:
        children = (await backend.children.list(run_id)).runs
        ended = any(run.id == request.child and run.ended is not None for run in children)
        read = functools.partial(backend.children.read_log, run_id, request.child)
        if request.earlier:
            return await _read_earlier(read, request)
        limit = _limit(request)
        chunk = await read(request.offset, limit)
        return self._part(request, chunk, ended and len(chunk.data) < limit)

    def _part(self, request: GetLog, chunk: Chunk, complete: bool) -> LogReply:
        """Return bytes of a log as text, or what they change on the screen of a view."""
        data, start = chunk.data, chunk.offset - len(chunk.data)
        at_line = request.offset < 0 < start
        if not request.screen:
            text, skipped, left = cut(data, complete, line=at_line)
            return LogReply(text=text, start=start + skipped, offset=chunk.offset - left, ended=complete)
        key = (request.handle, request.child, request.rank, request.screen)
        screen = self._screens.pop(key, None)
        fresh = screen is None or screen.offset != start or request.offset != start
        if screen is None or fresh:
            skipped = _skipped(data, line=at_line)
            data, start = data[skipped:], start + skipped
            screen = LogScreen(start)
        self._screens[key] = screen
        while len(self._screens) > MAX_SCREENS:
            self._screens.popitem(last=False)
        first, lines, marks = screen.feed(data, complete=complete)
        return LogReply(
            text="",
            start=start,
            offset=screen.offset,
            ended=complete,
            fresh=fresh,
            first=first,
            lines=tuple(lines),
            marks=tuple(marks),
        )


def _limit(request: GetLog) -> int:
    return min(max(request.limit, MIN_LOG_BYTES), MAX_LOG_BYTES)


async def _read_earlier(read: Callable[[int, int], Awaitable[Chunk]], request: GetLog) -> LogReply:
    """Return the lines before those of a page."""
    offset, limit, data = max(0, request.offset), _limit(request), b""
    while len(data) < limit:
        chunk = await read(offset + len(data), limit - len(data))
        if not chunk.data:
            break
        data += chunk.data
    skipped = _skipped(data, line=offset > 0)
    lines, before = lines_before(data[skipped:], request.earlier)
    start = offset + skipped + before
    return LogReply(text="", start=start, offset=offset + len(data), ended=False, lines=tuple(lines))


def cut(data: bytes, complete: bool, *, line: bool = False) -> tuple[str, int, int]:
    """Return the whole characters of `data`, and the number of bytes left out before and after them.

    Parameters
    ----------
    complete
        No more bytes follow: an incomplete last character is decoded as it is.
    line
        Start at the first line that begins in `data`, if any.
    """
    skipped = _skipped(data, line=line)
    left = 0 if complete else _incomplete(data[skipped:])
    return data[skipped : len(data) - left].decode("utf-8", "replace"), skipped, left


def _skipped(data: bytes, *, line: bool) -> int:
    """Return the number of bytes before the first whole character, or before the first line that begins in `data`."""
    skipped = 0
    while skipped < min(3, len(data)) and data[skipped] & 0xC0 == 0x80:
        skipped += 1
    return (data.find(b"\n", 0, -1) + 1 if line else 0) or skipped


def _incomplete(data: bytes) -> int:
    """Return the number of bytes of an incomplete last character."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if back < length else 0
    return 0
