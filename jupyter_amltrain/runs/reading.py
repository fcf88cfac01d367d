"""From a backend's streams into an entry: what is new since the last look."""

from __future__ import annotations

import json
import time
from collections.abc import Collection

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.runs.series import LOG_WINDOW
from jupyter_amltrain.runs.store import Entry
from jupyter_amltrain.runs.telemetry import NodeTelemetry
from jupyter_amltrain.spec.run import RunStatus, split_handle

#: A longer file of ticks is not read from its beginning but from its minutes (bytes).
LONG = 1 << 20
#: Bytes of one stream that are read at one look: a file that grows faster than it is read must not hold up other runs.
MAX_LOOK = 256 << 20
#: Bytes in which the header of a file of ticks ends: 256 GPUs take some 30 kB.
_HEADER = 256 * 1024
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
    read when more than that is waiting.
    """
    run_id = split_handle(entry.run.handle)[1]
    if not entry.log_path:
        entry.log_path = await backend.log_path(run_id)
    news = set()
    if await read_ticks(backend, run_id, entry, max(1, status.nodes)):
        news.add("telemetry")
    left = MAX_LOOK
    while left > 0:
        start = entry.offsets["metrics"]
        chunk = await backend.read(run_id, "metrics", start)
        if not chunk.data:
            break
        left -= len(chunk.data)
        if entry.offsets["metrics"] != start:
            continue  # somebody who looked at the same time has fed it
        entry.offsets["metrics"] = chunk.offset
        if entry.metrics.feed(chunk.data):
            news.add("metrics")
    start = entry.offsets["log"]
    chunk = await backend.read(run_id, "log", start, 2 * LOG_WINDOW)
    if len(chunk.data) >= 2 * LOG_WINDOW:
        chunk = await backend.read(run_id, "log", -LOG_WINDOW, LOG_WINDOW)
    if chunk.data and entry.offsets["log"] == start:
        entry.log.feed(chunk.data, chunk.offset)
        entry.offsets["log"] = chunk.offset
        news.add("log")
    if status.state.terminal:
        await _read_summaries(backend, run_id, entry, max(1, status.nodes))
    entry.read = True
    return frozenset(news)


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


async def _read_summaries(backend: Backend, run_id: str, entry: Entry, nodes: int) -> None:
    for number in range(nodes):
        if entry.telemetry.summaries.get(number):
            continue
        data = (await backend.read(run_id, _of_node("summary", number), 0)).data
        try:
            summary = json.loads(data) if data else {}
        except (ValueError, RecursionError):
            continue
        if isinstance(summary, dict) and summary:
            summary.pop("state", None)
            entry.telemetry.summaries[number] = summary


def _of_node(stream: str, number: int) -> str:
    return stream if number == 0 else f"{stream}/{number}"
