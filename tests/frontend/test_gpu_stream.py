"""GPUs as pages hear of them: in order, shared, with the past first."""

from __future__ import annotations

import asyncio
import struct

import numpy as np
import pytest

from jupyter_amltrain.frontend import clients, gpu_stream
from jupyter_amltrain.frontend.clients import FrontendClient
from jupyter_amltrain.frontend.protocol import Changes, Event, Gpus, Meter
from tests.helpers import until
from tests.tiers import thorough

from .event_harness import EventHarness, house

__all__ = ["house"]


def ticks(house: EventHarness, comm: str = "c") -> tuple[Gpus, dict[str, np.ndarray]]:
    """The first event of GPUs and all that came after it, as tables."""
    first, found = None, {}
    for _, event, buffers in list(house.sent[comm]):
        if not isinstance(event, Gpus):
            continue
        if event.first:
            first, found = event, {"t": [], "util": [], "memory": [], "host": []}
        if first is None or not buffers:
            continue
        (data,), gpus = buffers, len(first.labels)
        node, n, number = struct.unpack_from("<HHI", data)
        values, percents = 8 + 8 * n, 8 + 8 * n + 8 * n
        assert node == 0 and number >= 0
        found["t"].append(np.frombuffer(data[8:values], np.float64))
        found["host"].append(np.frombuffer(data[values:percents], np.float32).reshape(2, n).T)
        util, memory = np.frombuffer(data[percents:], np.uint8).reshape(2, gpus, n)
        found["util"].append(util.T)
        found["memory"].append(memory.T)
    assert first is not None
    return first, {name: np.concatenate(parts) for name, parts in found.items()}


def count_of(house: EventHarness) -> int:
    try:
        return len(ticks(house)[1]["t"])
    except (AssertionError, ValueError):
        return 0


@pytest.mark.thorough
@pytest.mark.parametrize(("target", "gpus"), [("two", 4), *thorough(("endless", 4), ("wide", 64))])
def test_gpu_stream_of_run_is_in_order(house: EventHarness, target: str, gpus: int) -> None:
    handle = house.submit(target)
    house.open()
    assert house.ask(gpus=handle).reason == ""
    until(lambda: count_of(house) > 30)
    first, found = ticks(house)
    assert first.source == handle and len(first.labels) == gpus == len(first.names) == len(first.memory)
    assert first.labels[0] == ("GPU 0" if len(set(first.nodes)) == 1 else "n0 GPU 0")
    assert len(set(first.labels)) == gpus == len(first.nodes)
    assert first.cpus and first.host_memory and first.period == 0.1
    assert (np.diff(found["t"]) > 0).all() and np.allclose(np.diff(found["t"]), 0.1, atol=0.02)
    known = found["util"] != 255
    assert known.mean() > 0.9 and found["util"][known].max() <= 100 and 0 < found["memory"][known].max() <= 100
    assert np.isfinite(found["host"]).all()
    times = [at for at, event, _ in house.sent["c"] if isinstance(event, Gpus)]
    assert len(times) <= 2 * (times[-1] - times[0]) + 2  # two a second
    house.ask(gpus="")
    count = len(house.heard(Gpus))
    house.call(asyncio.sleep(1.2))
    assert len(house.heard(Gpus)) == count


def test_gpu_stream_sends_at_most_600_past_samples_first(house: EventHarness) -> None:
    handle = house.submit("endless")
    life = house.on(lambda: house.controller.backend("endless")._lives[handle.partition("/")[2]])
    life.start -= 200  # it has run for a while: 2000 ticks
    house.open()
    house.ask(gpus=handle)
    until(lambda: house.heard(Gpus))
    first, (data,) = next((event, buffers) for _, event, buffers in house.sent["c"] if isinstance(event, Gpus))
    assert first.first and struct.unpack_from("<HHI", data)[1] == 600
    until(lambda: count_of(house) > 605)
    assert (np.diff(ticks(house)[1]["t"]) > 0).all()


def test_gpu_stream_of_ended_run_sends_past_and_ends(house: EventHarness) -> None:
    handle = house.submit("endless")
    until(lambda: house.call(house.controller.refresh_run(handle)).telemetry.node(0).ticks > 5)
    house.call(house.controller.cancel(handle))
    until(lambda: house.on(lambda: house.controller.entry(handle).run.status.state.terminal))
    house.open()
    house.ask(gpus=handle)
    until(lambda: house.heard(Gpus) and house.heard(Gpus)[-1].ended)
    assert ticks(house)[1]["t"].size > 5


@pytest.mark.thorough
def test_target_gpu_stream_is_shared_and_released(house: EventHarness) -> None:
    for comm in ("c", "d"):
        house.open(comm)
        assert house.ask(comm, gpus="target:wide").reason == ""
    until(lambda: count_of(house) > 2)
    backend = house.on(lambda: house.controller.backend("wide"))
    assert len(backend.monitors._all) == 1
    first, found = ticks(house)
    assert len(first.labels) == 64 and np.isfinite(found["host"]).all()
    house.ask("c", shown="status")
    house.call(asyncio.sleep(0.2))
    assert len(backend.monitors._all) == 1
    house.ask("d", shown="")
    until(lambda: not backend.monitors._all)


def test_gpu_stream_unavailable_gives_reason(house: EventHarness) -> None:
    house.open()
    assert "Cannot reach 'far'" in house.ask(gpus="target:far").reason
    assert "'nowhere'" in house.ask(gpus="target:nowhere").reason
    assert "No run" in house.ask(gpus="endless/none-22222").reason
    until(lambda: any("Cannot reach" in event.note and event.ended for event in house.heard(Gpus)))


def test_gpu_meter_shows_current_target(house: EventHarness) -> None:
    house.open(shown="status", meter=0.5)
    until(lambda: any(event.util is not None for event in house.heard(Meter)))
    meter = house.heard(Meter)[-1]
    assert meter.target == "endless" and meter.gpus == 4 and 0 <= meter.util <= 100
    house.ask(shown="status", meter=0)
    backend = house.on(lambda: house.controller.backend("endless"))
    until(lambda: not backend.monitors._all)


def test_client_with_gpu_stream_only_is_pinged() -> None:
    sent: list[Event] = []
    client = FrontendClient("c", lambda comm, event, buffers: sent.append(event))
    client.send(Gpus, source="x")
    client.last_request_at -= clients.SILENCE_S + 1
    client.send(Gpus, source="x")
    client.send(Gpus, source="x")
    assert [type(event) for event in sent] == [Gpus, Gpus, Changes, Gpus]
    assert sent[2].renew and [event.seq for event in sent] == [0, 1, 2, 3]


def test_ended_monitor_is_restarted_unless_it_fails_at_once(
    house: EventHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_stream, "CHECK_INTERVAL_S", 0.05)
    monitors = house.controller.monitors
    shared = house.call(monitors.open("wide", None, 1.0))
    house.open()
    assert house.ask(gpus="target:wide").reason == ""
    assert house.on(lambda: monitors.running("wide")) == shared
    house.call(monitors.close(shared))
    own = until(lambda: house.on(lambda: monitors.running("wide")), "a monitor of our own")
    assert own != shared
    house.call(monitors.close(own))
    until(lambda: house.heard(Gpus)[-1].ended)
    house.call(asyncio.sleep(0.5))
    assert not house.on(lambda: monitors.running("wide"))  # not before its time
    monkeypatch.setattr(gpu_stream, "RESTART_INTERVAL_S", 0.1)
    until(lambda: house.on(lambda: monitors.running("wide")))
