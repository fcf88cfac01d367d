"""Dashboards of pages: made once, fed while seen, closed when there are too many."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.streams import Metric
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.output import live
from jupyter_amltrain.output.live import MAX_DASHBOARDS, MAX_DASHBOARDS_PER_RUN, LiveDashboards
from jupyter_amltrain.schema.run import Poke, RunState
from tests import telemetry_files as files
from tests.output.test_feed import entry_of, instances, lines_of

DEADLINE = 60.0


class Shown:
    """Counts viewers, in place of the controller."""

    def __init__(self, loop: LoopThread) -> None:
        self.loop = loop
        self.viewers: dict[str, int] = {}

    def change_viewers_of(self, handle: str, more: int) -> None:
        self.viewers[handle] = self.viewers.get(handle, 0) + more


class DashboardHarness:
    """One kernel's dashboards, entered as the front end does."""

    def __init__(self, loop: LoopThread) -> None:
        self.loop, self.sources = loop, Shown(loop)
        self.live = LiveDashboards(self.sources)

    def on(self, fn: Callable[..., Any], *args: Any) -> Any:
        async def go() -> Any:
            return fn(*args)

        return self.loop.call(go(), DEADLINE)

    def open(self, entry: Entry, page: str) -> tuple[str, str]:
        """Ask as a page does: again until there is an answer."""
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            feed, why = self.on(self.live.open, entry, page)
            if feed or why:
                return feed, why
            time.sleep(0.02)
        raise AssertionError("no answer")

    def tasks(self) -> set[asyncio.Task[Any]]:
        return set(self.loop._tasks)

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE
        while not self.on(true):
            assert time.monotonic() < end
            time.sleep(0.02)

    def sent(self, entry: Entry, page: str) -> list[dict[str, Any]]:
        """From now on, what goes out to a page; of ticks, node, count and first of each part under `heads`."""
        messages: list[dict[str, Any]] = []
        feed = self.live._all[(entry.run.handle, page)].dashboard.feed  # type: ignore[union-attr]
        assert feed is not None

        def take(content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
            if "n" in content:
                assert buffers
                content = {**content, "heads": list(struct.iter_unpack("<HHI", buffers[0][: 8 * content["n"]]))}
            messages.append(content)

        feed.send = take
        return messages


@pytest.fixture
def house() -> Iterator[DashboardHarness]:
    loop = LoopThread("test-loop")
    yield DashboardHarness(loop)
    loop.close()


def fed(folder: Path, ticks: int = 20) -> tuple[Entry, list[bytes]]:
    entry = entry_of()
    lines = lines_of(folder, 2, 200)
    entry.telemetry.feed(0, b"".join(lines[: ticks + 2]))
    return entry, lines[ticks + 2 :]


def test_live_dashboard_opened_twice_is_same(house: DashboardHarness, tmp_path: Path) -> None:
    entry, lines = fed(tmp_path)
    first, _ = house.open(entry, "page")
    assert first and house.open(entry, "page") == (first, "")
    assert house.open(entry, "other")[0] != first
    assert house.sources.viewers[entry.run.handle] == 2
    messages = house.sent(entry, "page")
    for line in lines[:5]:
        house.on(entry.telemetry.feed, 0, line)
    assert [m["heads"] for m in messages if "n" in m] == [[(0, 1, tick)] for tick in range(20, 25)]


def test_live_dashboard_sends_table_readings_with_ticks(
    house: DashboardHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "TABLE_INTERVAL_S", 0.0)
    entry, lines = fed(tmp_path)
    feed, _ = house.open(entry, "page")
    house.until(lambda: bool(house.live._all[(entry.run.handle, "page")].table_version))
    dashboard = house.live._all[(entry.run.handle, "page")].dashboard
    assert dashboard is not None
    messages, table = house.sent(entry, "page"), dashboard.table.value
    for line in lines[:5]:
        house.on(entry.telemetry.feed, 0, line)
    versions = [message["v"] for message in messages if "v" in message]
    assert versions and f'data-version="{versions[0]}"' in table and dashboard.table.value == table
    # A page that was hidden gets the whole table.
    house.on(house.live.follow, feed, False, ())
    house.on(house.live.follow, feed, True, (25,))
    assert dashboard.table.value != table


def test_live_dashboard_marks_statements_in_all_charts(house: DashboardHarness, tmp_path: Path) -> None:
    entry, _ = fed(tmp_path)
    entry.metrics.metrics["loss"] = Metric()
    entry.metrics.metrics["loss"].append(7, files.START + 1.0, 0.5)
    house.open(entry, "page")
    dashboard = house.live._all[(entry.run.handle, "page")].dashboard
    assert dashboard is not None and dashboard.feed is not None
    feed = dashboard.feed

    def marked() -> list[tuple[Any, Any]]:
        pairs = zip(feed.marks, feed.specs, strict=True)
        return [(mark, spec) for mark, spec in pairs if spec["kind"] == "marks"]

    assert not marked()
    for count in (1, 2):
        pokes = tuple(Poke(time=files.START + 10.0 * at, step=7, text=f"lr = {at}") for at in range(count))
        status = msgspec.structs.replace(entry.run.status, pokes=pokes)
        entry.run = msgspec.structs.replace(entry.run, status=status)
        house.until(lambda count=count: len(marked()) > 0 and len(marked()[0][1]["marks"]) == count)  # type: ignore[misc]
    charts = dashboard.charts
    assert len(marked()) == len(charts) > 2 and all(
        chart.marks[-1] in figure.marks for chart, figure in zip(charts, dashboard.figures, strict=True)
    )
    (_, by_step), (_, by_time) = marked()[0], marked()[1]
    assert by_step["steps"] and not by_time["steps"] and "lr = 1" in by_time["marks"][1]["label"]
    assert list(charts[0].marks[-1].x) == [7.0] * 6 and charts[1].marks[-1].x[3] - charts[1].marks[-1].x[0] == 10.0
    switched = house.on(dashboard.prepare, dashboard.plan)
    house.on(dashboard.switch, dashboard.plan, switched, entry.telemetry)
    assert len(marked()) == len(dashboard.charts)


def test_live_dashboard_hidden_then_shown_sends_missing_samples(house: DashboardHarness, tmp_path: Path) -> None:
    entry, lines = fed(tmp_path)
    feed, _ = house.open(entry, "page")
    assert house.on(house.live.follow, feed, False, ())
    assert house.sources.viewers[entry.run.handle] == 0
    messages = house.sent(entry, "page")
    entry.metrics.feed(b'{"seq":1,"op":"init","b":{},"a":{"id":"r"}}\n')
    for line in lines[:5]:
        house.on(entry.telemetry.feed, 0, line)
    assert not messages
    assert house.on(house.live.follow, feed, True, (20,))
    assert [m["heads"] for m in messages if "n" in m] == [[(0, 5, 20)]]
    assert house.sources.viewers[entry.run.handle] == 1
    assert not house.on(house.live.follow, "nobody", True, ())


def test_live_dashboard_of_several_machines_sends_their_ticks_together(house: DashboardHarness, tmp_path: Path) -> None:
    entry, lines = fed(tmp_path)
    entry.telemetry.feed(1, b"".join(lines_of(tmp_path, 2, 20, node=1)))
    feed, _ = house.open(entry, "page")
    messages = house.sent(entry, "page")

    def ticks(first: int) -> None:
        for line in lines[first : first + 5]:
            for node in (0, 1):
                entry.telemetry.feed(node, line)

    house.on(ticks, 0)
    house.until(lambda: any("n" in message for message in messages))
    house.on(house.live.follow, feed, False, ())
    house.on(ticks, 5)
    house.on(house.live.follow, feed, True, (25, 25))
    assert [m["heads"] for m in messages if "n" in m] == [[(0, 5, 20), (1, 5, 20)], [(0, 5, 25), (1, 5, 25)]]


def test_live_dashboard_is_replaced_when_a_node_comes_later(house: DashboardHarness, tmp_path: Path) -> None:
    entry, _ = fed(tmp_path)
    first, _ = house.open(entry, "page")
    house.on(entry.telemetry.feed, 1, b"".join(lines_of(tmp_path, 2, 20, node=1)))
    second, _ = house.open(entry, "page")
    assert second != first
    dashboard = house.live._all[(entry.run.handle, "page")].dashboard
    assert dashboard is not None and dashboard.plan.nodes == (0, 1)


def test_live_dashboard_new_metric_gets_chart(house: DashboardHarness, tmp_path: Path) -> None:
    entry, _ = fed(tmp_path)
    house.open(entry, "page")
    messages = house.sent(entry, "page")

    def log(seq: int, name: str, value: float) -> None:
        body = {"run_id": "r", "key": name, "value": value, "timestamp": int(files.START * 1000), "step": seq}
        record = {"seq": seq, "op": "runs/log-metric", "b": body}
        entry.metrics.feed(msgspec.json.encode(record) + b"\n")

    house.on(entry.metrics.feed, b'{"seq":1,"op":"init","b":{},"a":{"id":"r"}}\n')
    for i in range(6):
        house.on(log, 2 + i, f"m{i}", float(i))
    until = time.monotonic() + DEADLINE
    while not any("m" in m for m in messages) and time.monotonic() < until:
        time.sleep(0.02)
    changes = [m for m in messages if "m" in m]
    assert set(changes[0]["m"]) <= {f"m{i}" for i in range(6)} and changes[0]["m"]["m0"] == {
        "t": [files.START],
        "s": [2],
        "i": [0],
        "v": [0.0],
        "last": 0.0,
    }
    dashboard = house.live._all[(entry.run.handle, "page")].dashboard
    assert dashboard is not None and dashboard.feed is not None and dashboard.metrics[0] == "m0"
    assert len(dashboard.feed.specs) == len(dashboard.feed.marks)


def test_live_dashboard_over_limit_drops_oldest_page(house: DashboardHarness, tmp_path: Path) -> None:
    entry, _ = fed(tmp_path)
    for number in range(MAX_DASHBOARDS_PER_RUN + 2):
        house.open(entry, f"page {number}")
    assert len(house.live._all) == MAX_DASHBOARDS_PER_RUN <= MAX_DASHBOARDS
    assert house.sources.viewers[entry.run.handle] == MAX_DASHBOARDS_PER_RUN


def test_live_dashboard_of_ended_run_without_samples_gives_reason(house: DashboardHarness) -> None:
    entry = entry_of()
    status = msgspec.structs.replace(entry.run.status, state=RunState.COMPLETED)
    entry.run = msgspec.structs.replace(entry.run, status=status)
    feed, why = house.open(entry, "page")
    assert not feed and "No samples" in why and house.sources.viewers[entry.run.handle] == 0


def test_live_dashboard_without_sample_waits(house: DashboardHarness, tmp_path: Path) -> None:
    entry = entry_of()
    assert house.on(house.live.open, entry, "page") == ("", "")
    house.on(entry.telemetry.feed, 0, b"".join(lines_of(tmp_path, 1, 3)))
    assert house.open(entry, "page")[0]


def test_live_dashboard_end_is_sent_after_streams_are_read(house: DashboardHarness, tmp_path: Path) -> None:
    entry, _ = fed(tmp_path)
    house.open(entry, "page")
    dashboard = house.live._all[(entry.run.handle, "page")].dashboard
    assert dashboard is not None and dashboard.feed is not None and not dashboard.feed.done

    def end() -> None:
        status = msgspec.structs.replace(entry.run.status, state=RunState.COMPLETED)
        entry.run = msgspec.structs.replace(entry.run, status=status)

    house.on(end)
    until = time.monotonic() + DEADLINE
    while not dashboard.feed.done and time.monotonic() < until:
        time.sleep(0.02)
    assert dashboard.feed.done


@pytest.mark.parametrize("gpus", [2, 16])
def test_live_dashboard_announces_end_at_once(house: DashboardHarness, tmp_path: Path, gpus: int) -> None:
    entry = entry_of()
    entry.telemetry.feed(0, b"".join(lines_of(tmp_path, gpus, 20)))
    house.open(entry, "page")
    messages = house.sent(entry, "page")

    def end() -> None:
        status = msgspec.structs.replace(entry.run.status, state=RunState.COMPLETED)
        entry.run, entry.changed_at = msgspec.structs.replace(entry.run, status=status), time.monotonic()

    house.on(end)
    house.until(lambda: {"changed": True} in messages)


def test_live_dashboard_forgotten_stops_waiting_task(house: DashboardHarness) -> None:
    entry = entry_of()
    house.on(house.live.open, entry, "page")
    house.on(house.live.close_run, entry.run.handle)
    house.until(lambda: f"dashboard of {entry.run.handle}" not in [task.get_name() for task in house.tasks()])
    assert house.sources.viewers == {entry.run.handle: 0}


def test_live_dashboard_failed_connect_leaves_no_widget(house: DashboardHarness, tmp_path: Path) -> None:
    entry, _ = fed(tmp_path)
    before = set(instances())
    house.live._update_slow = lambda live: 1 / 0  # type: ignore[assignment]
    feed, why = house.open(entry, "page")
    assert not feed and "kernel's log" in why
    house.until(lambda: set(instances()) == before)
    assert house.sources.viewers == {entry.run.handle: 0} and not entry.telemetry._listeners


def test_live_dashboard_with_changed_series_is_replaced(house: DashboardHarness, tmp_path: Path) -> None:
    """A file whose header was damaged goes on with what the machine has now."""
    entry, _ = fed(tmp_path)
    old, _ = house.open(entry, "page")
    other = lines_of(tmp_path / "other", 3, 40)
    house.on(entry.telemetry.feed, 0, b"".join([other[0], *other[-15:]]))
    assert entry.telemetry.node(0).ticks > 0 and not house.on(house.live.follow, old, True, [0])
    assert house.sources.viewers == {entry.run.handle: 0} and not entry.telemetry._listeners
    new, _ = house.open(entry, "page")
    dashboard = house.live._all[(entry.run.handle, "page")].dashboard
    assert new != old and dashboard is not None and len(dashboard.plan.gpus) == 3


def test_live_close_closes_every_dashboard(house: DashboardHarness, tmp_path: Path) -> None:
    entry, _ = fed(tmp_path)
    house.open(entry, "one")
    house.open(entry, "two")
    house.loop.call(house.live.close(), DEADLINE)
    assert house.sources.viewers == {entry.run.handle: 0} and not house.live._all
