"""GPU samples for clients: those of runs, and of targets while a client shows them. Loop thread only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from jupyter_amltrain.agent.telemetry.gpu_names import gpu_name
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.frontend.clients import MAX_MESSAGES_PER_S, FrontendClient
from jupyter_amltrain.frontend.protocol import Gpus, Meter
from jupyter_amltrain.kernel.run_provider import RunProvider
from jupyter_amltrain.kernel.samples import Columns, Samples, encode, period_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.telemetry import MIB, NodeTelemetry, known
from jupyter_amltrain.loop import TokenBucket

log = logging.getLogger(__name__)

#: Prefix of a target's name in a source; other sources are handles of runs.
TARGET_PREFIX = "target:"
#: Maximum wait of a reply for a target to be sampled; later results are sent by an event (seconds).
OPEN_TIMEOUT_S = 1.5
#: Seconds between two checks of facts that have no sample: the driver's note, the end of a source.
CHECK_INTERVAL_S = 2.0
#: Minimum seconds between two starts of a monitor that ends unexpectedly.
RESTART_INTERVAL_S = 30.0
#: Minimum seconds between two events of a meter.
METER_INTERVAL_S = 1.0
#: Seconds between two attempts to sample a target.
METER_RETRY_S = 30.0
#: Maximum number of past samples in the first event.
MAX_PAST_SAMPLES = 600
#: Events do not wait for a node whose newest sample is older than this number of periods.
_STALE_PERIODS = 4.0


class _GpuStream:
    """One source for any number of clients and meters."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.since = time.monotonic()
        self.entry: Entry | None = None
        self.reason = ""
        self.clients: dict[FrontendClient, _Reader] = {}
        self.meters = 0
        self.opened = ""  #: handle of the monitor that was opened for this source
        self.opening: asyncio.Task[None] | None = None
        self.stop: Callable[[], None] = lambda: None


class _Reader:
    """State of one client of a stream."""

    def __init__(self) -> None:
        self.samples: GpuSamples | None = None
        self.pace = TokenBucket(MAX_MESSAGES_PER_S, 1)
        self.timer: Any = None
        self.note = ""
        self.ended = False


class GpuStreams:
    """GPU samples by source, shared by all clients and meters of a source."""

    def __init__(self, runs: RunProvider) -> None:
        self._runs = runs
        self._all: dict[str, _GpuStream] = {}
        self._checking: asyncio.Task[None] | None = None

    async def follow(self, client: FrontendClient, source: str) -> str:
        """Send a client the samples of `source` only; return the reason if that is impossible."""
        for other in list(self._all.values()):
            if other.source != source or not source:
                self._drop(other, client)
        if not source:
            return ""
        stream = self._stream(source)
        if client not in stream.clients:
            stream.clients[client] = _Reader()
        reason = await self._opened(stream)
        self._kick(stream, client)
        return reason

    def restart(self, client: FrontendClient) -> None:
        """Send the past samples to a client again, after it lost them or was hidden."""
        for stream in self._all.values():
            reader = stream.clients.get(client)
            if reader is not None:
                reader.samples, reader.note, reader.ended = None, "", False
                self._kick(stream, client)

    async def sample(self, source: str) -> str:
        """Sample `source` for a meter until :meth:`stop_sampling`; return the reason if that is impossible."""
        stream = self._stream(source)
        stream.meters += 1
        return await self._opened(stream)

    def stop_sampling(self, source: str) -> None:
        """Undo :meth:`sample`."""
        stream = self._all.get(source)
        if stream is not None:
            stream.meters -= 1
            self._unused(stream)

    def mean(self, source: str) -> tuple[int, float | None]:
        """Return the number of GPUs of a followed source and their current mean utilization."""
        stream = self._all.get(source)
        if stream is None or stream.entry is None:
            return 0, None
        nodes = list(stream.entry.telemetry.nodes())
        return sum(len(node.gpus) for node in nodes), _mean(nodes)

    def _stream(self, source: str) -> _GpuStream:
        stream = self._all.get(source)
        if stream is None or (stream.reason and (stream.opening is None or stream.opening.done())):
            new = _GpuStream(source)  # a source that failed before may work now
            if stream is not None:
                new.clients, new.meters = stream.clients, stream.meters
            stream = self._all[source] = new
            stream.opening = self._runs.loop.start(self._open(stream), f"GPUs of {source}")
        return stream

    async def _opened(self, stream: _GpuStream) -> str:
        if stream.opening is not None:
            await asyncio.wait({stream.opening}, timeout=OPEN_TIMEOUT_S)
        return stream.reason

    async def _open(self, stream: _GpuStream) -> None:
        try:
            if stream.source.startswith(TARGET_PREFIX):
                entry = await self._sampled(stream, stream.source[len(TARGET_PREFIX) :])
            else:
                entry = await self._runs.source(stream.source)
        except (AmlTrainError, OSError) as error:
            stream.reason = str(error)
            self._notify(stream)
            return
        if self._all.get(stream.source) is not stream:
            if stream.opened:
                await self._runs.monitors.close(stream.opened)
            return
        stream.entry = entry
        self._runs.change_viewers_of(entry.run.handle, 1)
        stop = entry.telemetry.listen(lambda node, first: self._notify(stream))

        def stopped() -> None:
            stop()
            self._runs.change_viewers_of(entry.run.handle, -1)

        stream.stop = stopped
        self._notify(stream)
        if self._checking is None or self._checking.done():
            self._checking = self._runs.loop.start(self._check(), "GPU streams")

    async def _sampled(self, stream: _GpuStream, target: str) -> Entry:
        """Return the entry of a running monitor of a target, or of a new one."""
        monitors = self._runs.monitors
        handle = monitors.running(target)
        if not handle:
            handle = stream.opened = await monitors.open(target, None, 1.0)
        entry = monitors.entry(handle)
        assert entry is not None
        return entry

    async def _check(self) -> None:
        """Send notes and the end of sources, which do not come with samples."""
        while any(stream.entry is not None for stream in self._all.values()):
            await asyncio.sleep(CHECK_INTERVAL_S)
            for stream in list(self._all.values()):
                entry = stream.entry
                ended = entry is not None and entry.kind == "monitor" and entry.run.status.state.terminal
                may_restart = not stream.opened or time.monotonic() - stream.since > RESTART_INTERVAL_S
                if ended and may_restart and (stream.clients or stream.meters):
                    # Another viewer closed the shared monitor: open another.
                    self._replace(stream)
                else:
                    self._notify(stream)

    def _replace(self, stream: _GpuStream) -> None:
        stream.stop()
        new = _GpuStream(stream.source)
        new.clients = {client: _Reader() for client in stream.clients}
        new.meters = stream.meters
        self._all[stream.source] = new
        new.opening = self._runs.loop.start(self._open(new), f"GPUs of {stream.source}")

    def _notify(self, stream: _GpuStream) -> None:
        for client in list(stream.clients):
            self._kick(stream, client)

    def _kick(self, stream: _GpuStream, client: FrontendClient) -> None:
        reader = stream.clients.get(client)
        if reader is not None and reader.timer is None:
            loop = asyncio.get_running_loop()
            reader.timer = loop.call_later(reader.pace.due(), self._flush, stream.source, client)

    def _flush(self, source: str, client: FrontendClient) -> None:
        stream = self._all.get(source)
        reader = stream.clients.get(client) if stream is not None else None
        if stream is None or reader is None:
            return
        reader.timer = None
        if not client.listens or not client.is_shown or reader.ended:
            return
        if reader.pace.due():
            self._kick(stream, client)
            return
        entry = stream.entry
        if entry is None:
            if stream.reason and stream.reason != reader.note:
                reader.note = stream.reason
                reader.pace.wait()
                client.send(Gpus, source=source, first=True, note=stream.reason, ended=True)
            return
        if reader.samples is None:
            reader.samples = GpuSamples(entry)
        samples, note = reader.samples.next(), note_of(entry)
        ended = entry.run.status.state.terminal
        if samples is None and note == reader.note and not ended:
            return
        fields, buffers = samples or ({}, [])
        reader.note, reader.ended = note, ended
        reader.pace.wait()
        client.send(Gpus, buffers, source=source, note=note, ended=ended, **fields)

    def forget(self, client: FrontendClient) -> None:
        """Stop sending to a client that was removed or hidden."""
        for stream in list(self._all.values()):
            self._drop(stream, client)

    def _drop(self, stream: _GpuStream, client: FrontendClient) -> None:
        reader = stream.clients.pop(client, None)
        if reader is not None:
            if reader.timer is not None:
                reader.timer.cancel()
            self._unused(stream)

    def _unused(self, stream: _GpuStream) -> None:
        if stream.clients or stream.meters > 0:
            return
        if self._all.get(stream.source) is stream:
            del self._all[stream.source]
        stream.stop()
        stream.stop = lambda: None
        if stream.entry is not None and stream.opened:
            self._runs.loop.start(self._runs.monitors.close(stream.opened), f"end of {stream.opened}")

    def close(self) -> None:
        """Stop all streams."""
        if self._checking is not None:
            self._checking.cancel()
        for stream in list(self._all.values()):
            for reader in stream.clients.values():
                if reader.timer is not None:
                    reader.timer.cancel()
            stream.clients.clear()
            stream.meters = 0
            self._unused(stream)


class GpuMeters:
    """GPU meters for status bars: mean utilization of the current target.

    Parameters
    ----------
    current
        Returns the name of the current target.
    """

    def __init__(self, streams: GpuStreams, runs: RunProvider, current: Callable[[], str]) -> None:
        self._streams, self._runs, self._current = streams, runs, current
        self._all: dict[FrontendClient, asyncio.Task[None]] = {}

    async def update(self, client: FrontendClient) -> None:
        """Start or stop a client's meter, according to its latest request."""
        task = self._all.get(client)
        running = task is not None and not task.done()
        if not client.subscription.meter:
            self.forget(client)
        elif not running:
            self._all[client] = self._runs.loop.start(self._measure(client), f"meter of {client.comm}")

    async def _measure(self, client: FrontendClient) -> None:
        source = ""
        last: tuple[str, int, float | None] | None = None
        failed = 0.0  # monotonic seconds when the target last could not be sampled
        try:
            while client.subscription.meter:
                source_now = f"{TARGET_PREFIX}{self._current()}" if self._current() else ""
                if source_now != source or (failed and time.monotonic() - failed > METER_RETRY_S):
                    if source:
                        self._streams.stop_sampling(source)
                    source, failed = source_now, 0.0
                    if source and await self._streams.sample(source):
                        failed = time.monotonic()
                gpus, util = self._streams.mean(source)
                reading = (source[len(TARGET_PREFIX) :], gpus, util)
                # Do not repeat messages for a target without measurements.
                if source and client.listens and (util is not None or reading != last):
                    last = reading
                    client.send(Meter, target=reading[0], gpus=gpus, util=util)
                await asyncio.sleep(max(METER_INTERVAL_S, client.subscription.meter) if gpus else METER_INTERVAL_S)
        finally:
            if source:
                self._streams.stop_sampling(source)

    def forget(self, client: FrontendClient) -> None:
        """Stop the meter of a client that was removed."""
        task = self._all.pop(client, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Stop all meters."""
        for client in list(self._all):
            self.forget(client)


class GpuSamples:
    """Samples of one source for one client: one table of all nodes, with the samples of the first node as rows.

    Parameters
    ----------
    entry
        The run, or the monitor.
    """

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._columns: list[Columns] = []
        self._sent = 0  #: number of the first node's next sample

    def next(self) -> tuple[dict[str, Any], list[bytes]] | None:
        """Return the fields of the next event and its buffers; ``None`` if there are no new samples.

        The first event, and the one after a change of the machine's devices, includes past samples.
        """
        nodes = list(self.entry.telemetry.nodes())
        if not nodes:
            return None
        first = [columns.node for columns in self._columns] != nodes or any(columns.stale for columns in self._columns)
        if first:
            self._columns = [Columns(node, (*_host(self.entry), *_series(node, "util", "memory"))) for node in nodes]
            self._sent = max(0, nodes[0].ticks - MAX_PAST_SAMPLES)
        own = self._columns[0].since(self._sent)
        late = own.t > self._ready(nodes)
        if late.any():
            own = own._replace(t=own.t[: late.argmax()], values=own.values[:, : late.argmax()])
        if not len(own.t) and not first:
            return None
        behind = nodes[0].ticks - self._sent  # of the first node; the others may have a few more samples
        self._sent = own.first + len(own.t)
        fields: dict[str, Any] = {"first": first, "period": period_of(nodes[0]), "lost": _lost(nodes)}
        if first:
            fields |= _facts(nodes)
        return fields, [self._encoded(own, behind + 60)]

    def _ready(self, nodes: list[NodeTelemetry]) -> float:
        """Return the unix seconds up to which all active nodes have sent their samples."""
        period, newest = period_of(nodes[0]), nodes[0].last_t or 0.0
        if self.entry.run.status.state.terminal:
            return float("inf")
        others = [node.last_t for node in nodes[1:] if node.last_t is not None]
        return min((t + period / 2 for t in others if newest - t < _STALE_PERIODS * period), default=float("inf"))

    def _encoded(self, own: Samples, newest: int) -> bytes:
        """Return CPU and memory of the first host as values, utilization and memory of all GPUs in percent."""
        import numpy as np

        tables = [own.values, *(columns.at(own.t, newest) for columns in self._columns[1:])]
        utils, used = zip(*(np.split(table[2:], 2) for table in tables), strict=True)
        nodes = [columns.node for columns in self._columns]
        totals = [known(gpu.get("memory_total")) or np.nan for node in nodes for gpu in node.gpus]
        memories = np.concatenate(used) / np.array(totals, np.float32)[:, None] * 100
        host = own.values[:2]
        if self.entry.kind == "monitor":
            cores = known(nodes[0].header.get("cpus")) or 1.0
            host = host * np.array([[cores], [1.0]], np.float32)
        return encode([own._replace(values=host)], np.concatenate([*utils, memories]))


def _mean(nodes: list[NodeTelemetry]) -> float | None:
    """Return the current mean utilization of all GPUs in percent; ``None`` without measurements."""
    import numpy as np

    newest = [Columns(node, _series(node, "util")).since(node.ticks - 1).values for node in nodes if node.ticks]
    values = np.concatenate([np.zeros(0), *(rows[:, -1] for rows in newest)])
    return None if np.isnan(values).all() else round(float(np.nanmean(values)), 1)


def _series(node: NodeTelemetry, *fields: str) -> list[str]:
    """Return the series of all GPUs, field after field."""
    return [f"gpu{gpu.get('index', i)}.{field}" for field in fields for i, gpu in enumerate(node.gpus)]


def _host(entry: Entry) -> tuple[str, str]:
    """Return the series of CPU and memory: of the run's processes, for a monitor of the machine."""
    return ("cpu", "memory") if entry.kind == "run" else ("host_cpu", "host_memory")


def _lost(nodes: list[NodeTelemetry]) -> tuple[int, ...]:
    """Return the indices of lost GPUs, counted over all nodes."""
    flags = [node.is_lost(i) for node in nodes for i in range(len(node.gpus))]
    return tuple(i for i, lost in enumerate(flags) if lost)


def _facts(nodes: list[NodeTelemetry]) -> dict[str, Any]:
    gpus = [(node, i, gpu) for node in nodes for i, gpu in enumerate(node.gpus)]
    totals = [known(gpu.get("memory_total")) for _, _, gpu in gpus]
    cpus = known(nodes[0].header.get("cpus"))
    several = len({node.node for node, _, _ in gpus}) > 1
    return {
        "labels": tuple((f"n{node.node} " if several else "") + gpu_name({"index": i, **gpu}) for node, i, gpu in gpus),
        "nodes": tuple(node.node for node, _, _ in gpus),
        "names": tuple(str(gpu.get("name") or "") for _, _, gpu in gpus),
        "memory": tuple(None if total is None else total * MIB for total in totals),
        "cpus": None if cpus is None else int(cpus),
        "host_memory": known(nodes[0].header.get("memory_total")),
    }


def note_of(entry: Entry) -> str:
    """Return the samplers' note about the driver, or why there are no samples; one sentence."""
    nodes = list(entry.telemetry.nodes())
    note = "; ".join(dict.fromkeys(node.note for node in nodes if node.note))
    if note or nodes:
        return note
    if entry.kind == "monitor" and (reason := entry.run.error or entry.run.status.detail):
        return reason
    if not entry.run.reachable:
        return f"Target {entry.run.target!r} is not responding."
    if entry.run.status.state.terminal:
        return "This run has no samples: it was too short, never started, or its machine cannot measure them."
    return ""
