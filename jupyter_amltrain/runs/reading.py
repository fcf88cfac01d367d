"""From a backend's streams into an entry: what is new since the last look."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import DamagedRun
from jupyter_amltrain.runs.lines import decode_object
from jupyter_amltrain.runs.series import LOG_WINDOW
from jupyter_amltrain.runs.store import Entry
from jupyter_amltrain.runs.telemetry import NodeTelemetry
from jupyter_amltrain.spec.child_run import PARENT_TYPES
from jupyter_amltrain.spec.run import RunStatus, split_handle

#: A longer file of ticks is not read from its beginning but from its minutes (bytes).
LONG = 1 << 20
#: Bytes of one stream that are read at one look: a file that grows faster than it is read must not hold up other runs.
MAX_LOOK = 256 << 20
#: Bytes in which the header of a file of ticks ends: 256 GPUs take some 30 kB.
_HEADER = 256 * 1024
#: Bytes of a log that are read again before what is new: they differ where the job has rewritten it.
_OVERLAP = 64
#: News of ticks alone are worth a frame of the record after this many seconds, at least and at most.
_SOONEST, _LATEST = 1.0, 600.0


def worth_a_frame(entry: Entry, news: Collection[str]) -> bool:
    """Whether news of streams should redraw the record.

    Ticks go to live charts by their own way; the record follows them at a tenth of the
    run's age, so that a long run does not send its whole record each second.
    """
    if set(news) != {"telemetry"}:
        return bool(news)
    now = time.monotonic()
    age = max(0.0, time.time() - entry.run.created)
    if now - entry.telemetry.told < min(_LATEST, max(_SOONEST, age / 10)):
        return False
    entry.telemetry.told = now
    return True


async def read_streams(backend: Backend, entry: Entry, status: RunStatus) -> frozenset[str]:
    """Bring the entry's streams up to date; returns which of them grew.

    Of a log only the last :data:`~jupyter_amltrain.runs.series.LOG_WINDOW` bytes are
    read when more than that is waiting. A stream whose file cannot be read is left out, and
    ``entry.unreadable`` says why.
    """
    run_id = split_handle(entry.run.handle)[1]
    if not entry.log_path:
        entry.log_path = await backend.log_path(run_id)
    nodes = max(1, status.nodes)
    news = set()
    streams: list[tuple[str, Callable[[], Awaitable[bool]]]] = [
        ("telemetry", lambda: read_ticks(backend, run_id, entry, nodes)),
        ("metrics", lambda: _read_metrics(backend, run_id, entry)),
        ("log", lambda: _read_log(backend, run_id, entry)),
    ]
    if entry.run.spec.job_type in PARENT_TYPES:  # after the log, whose reading brings them up to date
        streams.append(("children", lambda: _read_children(backend, run_id, entry)))
    if status.state.terminal:
        streams.append(("summary", lambda: _read_summaries(backend, run_id, entry, nodes)))
    for name, read in streams:
        try:
            if await read():
                news.add(name)
            entry.unreadable.pop(name, None)
        except DamagedRun as error:
            entry.unreadable[name] = str(error)
    entry.read = True
    return frozenset(news - {"summary"})


async def _read_metrics(backend: Backend, run_id: str, entry: Entry) -> bool:
    """Read what is new of the metrics; returns whether any came."""
    came, left = False, MAX_LOOK
    while left > 0:
        start = entry.offsets["metrics"]
        chunk = await backend.read(run_id, "metrics", start)
        if not chunk.data:
            break
        left -= len(chunk.data)
        if entry.offsets["metrics"] != start:
            continue  # somebody who looked at the same time has fed it
        entry.offsets["metrics"] = chunk.offset
        came |= entry.metrics.feed(chunk.data)
    return came


async def _read_log(backend: Backend, run_id: str, entry: Entry) -> bool:
    """Read what is new of the log; returns whether anything is."""
    start = entry.offsets["log"]
    # From byte 0 on even a file that is kept open would be opened again.
    known = entry.log.last(min(_OVERLAP, start - 1)) if backend.log_may_shrink else b""
    chunk = await backend.read(run_id, "log", start - len(known), 2 * LOG_WINDOW + len(known))
    data, restarted = chunk.data[len(known) :], False
    if not chunk.data.startswith(known):
        chunk = await backend.read(run_id, "log", 0, 2 * LOG_WINDOW)
        data, restarted = chunk.data, True
    if len(data) >= 2 * LOG_WINDOW:
        chunk = await backend.read(run_id, "log", -LOG_WINDOW, LOG_WINDOW)
        data = chunk.data
    # Somebody who looked at the same time may have fed it. An empty file may be one whose folder was moved away.
    if not data or entry.offsets["log"] != start:
        return False
    if restarted:
        entry.log.restart()
    entry.log.feed(data, chunk.offset)
    entry.offsets["log"] = chunk.offset
    return True


async def _read_children(backend: Backend, run_id: str, entry: Entry) -> bool:
    """Take in its steps or trials; returns whether anything is new of them."""
    found = await backend.children(run_id)
    if found == entry.children:
        return False
    entry.streams.children = found
    return True


async def read_ticks(backend: Backend, run_id: str, entry: Entry, nodes: int = 1) -> bool:
    """Read new ticks of every node; returns whether any came."""
    came = False
    for number in range(nodes):
        node = entry.telemetry.node(number)
        stream = _of_node("telemetry", number)
        if not node.caught_up:
            await _catch_up(backend, run_id, node)
        left = MAX_LOOK
        while left > 0:
            start = node.offset
            chunk = await backend.read(run_id, stream, start)
            if not chunk.data:
                break
            left -= len(chunk.data)
            if node.offset != start:
                continue
            node.offset = chunk.offset
            came |= entry.telemetry.feed(number, chunk.data)
    return came


async def read_anew(backend: Backend, run_id: str, node: NodeTelemetry) -> None:
    """Begin again with a file of ticks that is shorter than what was read: its sampler has begun another."""
    end = (await backend.read(run_id, _of_node("telemetry", node.node), -1, 1)).offset
    if end < node.offset:
        node.restart()


async def _catch_up(backend: Backend, run_id: str, node: NodeTelemetry) -> None:
    """Of a long file take the header and the minutes; its last hour of ticks is read after this."""
    stream = _of_node("telemetry", node.node)
    end = (await backend.read(run_id, stream, -1, 1)).offset
    if node.caught_up or not end:
        return
    if end <= LONG:
        node.caught_up = True
        return
    head = (await backend.read(run_id, stream, 0, _HEADER)).data
    minutes, offset = [], 0
    while offset < MAX_LOOK:
        chunk = await backend.read(run_id, _of_node("minutes", node.node), offset)
        if not chunk.data:
            break
        minutes.append(chunk.data)
        offset = chunk.offset
    if node.caught_up or node.offset:
        return
    node.caught_up = True
    line = head[: head.find(b"\n") + 1]
    if line:
        node.feed(line)
        node.offset = max(len(line), node.feed_minutes(b"".join(minutes)))


async def _read_summaries(backend: Backend, run_id: str, entry: Entry, nodes: int) -> bool:
    for number in range(nodes):
        if entry.telemetry.summaries.get(number):
            continue
        data = (await backend.read(run_id, _of_node("summary", number), 0)).data
        summary = decode_object(data)
        if summary and _valid_summary(summary):
            summary.pop("state", None)
            for note in summary.pop("notes", None) or ():  # of a long run only its last hour was read
                entry.telemetry.node(number).add_note(*note)
            entry.telemetry.summaries[number] = summary
    return False


def _of_node(stream: str, number: int) -> str:
    return stream if number == 0 else f"{stream}/{number}"


def _valid_summary(summary: dict[str, Any]) -> bool:
    """Whether a summary is as the sampler writes it: a job can write into its folder."""
    gpus = summary.get("gpus") or []
    notes = summary.get("notes") or []
    numbers = [value for name, value in summary.items() if name not in ("gpus", "hint", "notes", "state", "schema")]
    return (
        isinstance(gpus, list)
        and isinstance(notes, list)
        and all(isinstance(note, list) and len(note) == 2 and all(map(_scalar, note)) for note in notes)
        and all(isinstance(gpu, dict) and all(_scalar(value) for value in gpu.values()) for gpu in gpus)
        and all(_scalar(value) and not isinstance(value, str) for value in numbers)
    )


def _scalar(value: Any) -> bool:
    return value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
