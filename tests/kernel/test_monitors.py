"""Monitors of a kernel: kept alive, read on when their sampler restarted, ended with a reason, forgotten."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from jupyter_amltrain.backends.streams import Chunk, StreamChanges
from jupyter_amltrain.errors import StateError, UnknownRun
from jupyter_amltrain.kernel import monitors as module
from jupyter_amltrain.kernel.monitors import Monitors
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.output import monitor_view
from jupyter_amltrain.output.monitor_view import Monitor

DEADLINE = 90.0
HEADER = b'{"schema":1,"columns":["seq","t","host_cpu"],"period":0.1}\n'


def rows(first: int, count: int, t: float) -> bytes:
    return b"".join(b"[%d,%.1f,%d]\n" % (first + i, t + i, first + i) for i in range(count))


class Machine:
    """A target with one monitor, whose file a test writes."""

    machines = 1

    def __init__(self) -> None:
        self.file, self.second = HEADER, b""
        self.requests, self.stopped = 0, 0
        self.on_keep: Callable[[], None] = lambda: None
        self.trouble: Exception | None = None
        self.gap = ""
        self.monitors = self

    async def start(self, monitor_id: str, gpus: Sequence[int] | None, period: float) -> str:
        self.requests += 1
        if self.requests > 1:
            self.on_keep()
        return "folder"

    async def stop(self, monitor_id: str) -> None:
        self.stopped += 1

    def no_samples_reason(self, monitor_id: str) -> str:
        return self.gap

    async def read(self, run_id: str, stream: str, offset: int, limit: int = 1 << 20) -> Chunk:
        if self.trouble is not None:
            raise self.trouble
        data = {"telemetry": self.file, "telemetry/1": self.second}.get(stream, b"")
        offset = max(0, len(data) + offset) if offset < 0 else offset
        piece = data[offset : offset + limit]
        return Chunk(piece, offset + len(piece))

    def events(self) -> Machine:
        return self

    async def wait(self, run_ids: Sequence[str], viewed: Sequence[str], timeout: float) -> StreamChanges:
        await asyncio.sleep(0.005)
        return {}

    def close(self) -> None:
        pass


class Kernel:
    """Monitors, asked from outside the loop."""

    def __init__(self, loop: LoopThread, machine: Machine) -> None:
        self.loop, self.machine = loop, machine
        self.monitors = Monitors(loop, lambda name: machine)  # type: ignore[arg-type, return-value]

    def open(self) -> str:
        return self.loop.call(self.monitors.open("local", None, 0.1))

    def entry(self, handle: str) -> Any:
        return self.on(self.monitors.entry, handle)

    def on(self, fn: Callable[..., Any], *args: Any) -> Any:
        async def go() -> Any:
            return fn(*args)

        return self.loop.call(go(), DEADLINE)

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE
        while not self.on(true):
            assert time.monotonic() < end
            time.sleep(0.005)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    monkeypatch.setattr(module, "KEEP_ALIVE_INTERVAL_S", 0.02)
    loop = LoopThread("test-loop")
    yield Kernel(loop, Machine())
    loop.close()


def test_monitor_restarted_sampler_is_read_from_start(kernel: Kernel) -> None:
    """A kernel that was stopped for a minute finds another file: its monitor had given it up."""
    machine = kernel.machine
    machine.file += rows(0, 50, 1000.0)
    handle = kernel.open()
    node = kernel.entry(handle).telemetry.node(0)
    kernel.until(lambda: node.seq == 49)

    def restarted() -> None:
        machine.file, machine.on_keep = HEADER, lambda: None

    machine.on_keep = restarted
    kernel.until(lambda: machine.file == HEADER)
    machine.file += rows(0, 3, 2000.0)
    kernel.until(lambda: node.last_t == 2002.0)
    assert kernel.on(lambda: (node.ticks, node.t[0], node.seq)) == (53, 1000.0, 2)


@pytest.mark.parametrize("trouble", [StateError("The state root is full."), PermissionError(13, "Permission denied")])
def test_unreadable_monitor_gives_reason(kernel: Kernel, trouble: Exception) -> None:
    kernel.machine.trouble = trouble
    entry = kernel.entry(kernel.open())
    kernel.until(lambda: entry.run.status.state.terminal)
    assert str(trouble) in str(entry.run.error)


def test_ended_monitors_over_limit_are_removed(kernel: Kernel) -> None:
    handles = []
    for _ in range(module.MAX_ENDED_MONITORS + 3):
        handles.append(kernel.open())
        entry = kernel.entry(handles[-1])
        kernel.loop.call(kernel.monitors.close(handles[-1]), DEADLINE)
        kernel.until(lambda entry=entry: entry.run.status.state.terminal)  # type: ignore[misc]
    living = kernel.open()
    assert [handle for handle in handles if kernel.entry(handle)] == handles[-module.MAX_ENDED_MONITORS :]
    assert not kernel.entry(living).run.status.state.terminal


def test_monitor_stop_failure_stops_others(kernel: Kernel) -> None:
    for _ in range(3):
        kernel.open()
    stop, machine = kernel.machine.stop, kernel.machine

    async def first_fails(monitor_id: str) -> None:
        await stop(monitor_id)
        if machine.stopped == 1:
            raise StateError("Cannot write.")

    machine.stop = first_fails  # type: ignore[method-assign]
    kernel.loop.call(kernel.monitors.close_all(), DEADLINE)
    assert machine.stopped == 3


@pytest.fixture
def view(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Monitor:
    # The package's own `monitor` is a function.
    monkeypatch.setattr(sys.modules[Monitor.__module__], "controller", lambda: kernel)
    return Monitor(kernel.open())


def test_monitor_snapshot_has_time(kernel: Kernel, view: Monitor) -> None:
    kernel.machine.file += rows(0, 3, 1000.0)
    kernel.until(lambda: kernel.monitors.entry(view.handle).telemetry.last_t == 1002.0)  # type: ignore[union-attr]
    for _ in range(2):
        found = view.snapshot()
        assert (found["t"], found["host"]["cpu"]) == (1002.0, 2)
        view.stop()


def test_snapshot_has_gpus_of_all_machines(kernel: Kernel) -> None:
    machine = kernel.machine
    machine.machines = 2
    gpus = b'[{"index":0,"name":"A"}]'
    machine.file = b'{"schema":1,"columns":["seq","t","gpu0.util"],"period":0.1,"gpus":%s}\n[0,1000.0,42]\n' % gpus
    machine.second = machine.file.replace(b",42]", b",7]")
    entry = kernel.entry(kernel.open())
    kernel.until(lambda: entry.telemetry.node(0).ticks and entry.telemetry.node(1).ticks)
    found = kernel.on(monitor_view._newest, entry)
    assert [(row["label"], row["util"]) for row in found["gpus"]] == [("node 0 GPU 0", 42.0), ("node 1 GPU 0", 7.0)]


def test_ended_monitor_snapshot_gives_reason(kernel: Kernel, view: Monitor) -> None:
    kernel.machine.trouble = StateError("The state root is full.")
    with pytest.raises(UnknownRun, match="The state root is full"):
        view.snapshot()


def test_monitor_without_samples_gives_reason_until_first_sample(kernel: Kernel, view: Monitor) -> None:
    """A service has figures of a machine only while something runs there: no wait, and no error."""
    kernel.machine.gap = "Nothing runs there."
    started = time.monotonic()
    found = view.snapshot()
    assert time.monotonic() - started < monitor_view.FIRST_SAMPLE_TIMEOUT_S / 2
    assert (found["t"], found["gpus"], found["note"]) == (None, [], "Nothing runs there.")
    record = view.record()
    assert (record.state, record.detail) == ("running", "Nothing runs there.")
    kernel.machine.file += rows(0, 3, 1000.0)
    kernel.until(lambda: kernel.monitors.entry(view.handle).telemetry.last_t == 1002.0)  # type: ignore[union-attr]
    kernel.until(lambda: not kernel.monitors.entry(view.handle).run.status.detail)  # type: ignore[union-attr]
    assert view.snapshot()["t"] == 1002.0
