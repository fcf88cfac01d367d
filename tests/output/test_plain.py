"""Charts without our labextension: what the marks get, and who is counted as a looker."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.output.plain import MAX_POINTS, downsample, plain_dashboard, rows_since
from jupyter_amltrain.schema.run import RunState
from tests import telemetry_files as files
from tests.output.test_feed import entry_of, lines_of

DEADLINE = 60.0


class Sources:
    """One run, where the controller would be."""

    def __init__(self, loop: LoopThread, entry: Entry) -> None:
        self.loop, self.entry, self.viewers = loop, entry, 0

    async def source(self, handle: str) -> Entry:
        return self.entry

    def change_viewers_of(self, handle: str, more: int) -> None:
        self.viewers += more

    def until(self, true: Callable[[], bool]) -> None:
        async def ask() -> bool:
            return true()

        end = time.monotonic() + DEADLINE
        while not self.loop.call(ask()):
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.close()


def end(entry: Entry) -> None:
    status = msgspec.structs.replace(entry.run.status, state=RunState.COMPLETED)
    entry.run = msgspec.structs.replace(entry.run, status=status)


def all_of(widget: Any) -> list[Any]:
    return [widget, *(x for child in getattr(widget, "children", ()) for x in all_of(child))]


def test_plain_chart_of_few_samples_is_exact(tmp_path: Path) -> None:
    entry = entry_of()
    entry.telemetry.feed(0, b"".join(lines_of(tmp_path, 1, MAX_POINTS - 1)))
    node = entry.telemetry.node(0)
    t, values = downsample(*rows_since(node, 0.0))
    assert list(t) == [files.START + s for s in range(MAX_POINTS - 1)]
    assert np.array_equal(values, node.since(0)[1], equal_nan=True)


def test_plain_chart_with_empty_node_is_drawn(loop: LoopThread, tmp_path: Path) -> None:
    entry = entry_of()
    for number in (0, 1):
        entry.telemetry.feed(number, b"".join(lines_of(tmp_path, 8, 20, number)))
    entry.telemetry.feed(2, lines_of(tmp_path, 8, 20, 2)[0])  # its header alone
    sources = Sources(loop, entry)
    box = plain_dashboard(sources, entry.run.handle)
    marks: list[Any] = []

    def drawn() -> bool:
        figures = [widget for widget in all_of(box) if hasattr(widget, "marks")]
        marks[:] = [mark for figure in figures for mark in figure.marks if mark.fill == "between"]
        return len(marks) == 3 and all(len(mark.x) == 20 for mark in marks)

    sources.until(drawn)
    axes = {figure.title: figure.axes[1] for figure in all_of(box) if hasattr(figure, "marks")}
    assert list(axes["GPU utilization"].tick_labels.values()) == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    assert {label.split(" ")[-1] for label in axes["GPU memory"].tick_labels.values()} == {"GiB"}
    assert axes["Memory"].scale.min == 0
    util = [np.mean([files.busy(gpu, s)[0] for gpu in range(8)]) for s in range(20)]  # type: ignore[type-var]
    assert np.allclose(marks[0].y[1], util)


@pytest.mark.parametrize(("gpus", "bands"), [(0, 2), (1, 5)])
def test_plain_charts_of_nine_hosts_are_bands(loop: LoopThread, tmp_path: Path, gpus: int, bands: int) -> None:
    entry, lines = entry_of(), b"".join(lines_of(tmp_path, gpus, 20))
    for number in range(9):
        entry.telemetry.feed(number, lines)
    sources = Sources(loop, entry)
    box = plain_dashboard(sources, entry.run.handle)

    def drawn() -> bool:
        figures = [widget for widget in all_of(box) if hasattr(widget, "marks")]
        marks = [mark for figure in figures for mark in figure.marks if mark.fill == "between"]
        return len(marks) == bands and all(len(mark.x) == 20 and np.isfinite(mark.y).all() for mark in marks)

    sources.until(drawn)


def test_plain_chart_missing_values_are_gaps_without_warning(loop: LoopThread, tmp_path: Path) -> None:
    entry = entry_of()
    entry.telemetry.feed(0, b"".join(lines_of(tmp_path, 9, 20, curve=lambda gpu, s: [None] * 6)))
    from jupyter_amltrain.output.plain import _band

    nodes = {node.node: rows_since(node, 0.0) for node in entry.telemetry.nodes()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t, rows = _band(entry, "util", "peak", nodes)
    assert len(t) == 20 and np.isnan(rows).all()


def test_plain_dashboard_failure_releases_viewer(loop: LoopThread, tmp_path: Path) -> None:
    entry = entry_of()
    entry.telemetry.feed(0, b"".join(lines_of(tmp_path, 1, 20)))
    sources = Sources(loop, entry)
    plain_dashboard(sources, entry.run.handle)
    sources.until(lambda: sources.viewers == 1 and bool(entry.telemetry._listeners))
    sources.until(lambda: not entry.telemetry.__dict__.update(nodes=lambda: 1 / 0))
    sources.until(lambda: sources.viewers == 0 and not entry.telemetry._listeners)


@pytest.mark.thorough
def test_plain_dashboard_of_ended_run_releases_viewer(loop: LoopThread, tmp_path: Path) -> None:
    entry = entry_of()
    entry.telemetry.feed(0, b"".join(lines_of(tmp_path, 1, 20)))
    sources = Sources(loop, entry)
    box = plain_dashboard(sources, entry.run.handle)
    sources.until(lambda: sources.viewers == 1 and bool(entry.telemetry._listeners))
    sources.until(lambda: end(entry) is None)
    sources.until(lambda: sources.viewers == 0)
    assert any("ended" in str(getattr(widget, "value", "")) for widget in all_of(box))


def test_plain_dashboard_of_monitor_shows_notes(loop: LoopThread, tmp_path: Path) -> None:
    entry = entry_of()
    entry.kind = "monitor"
    entry.telemetry.feed(0, b"".join([*lines_of(tmp_path, 1, 20), b'{"seq":20,"note":"GPU 0 fell off the bus"}\n']))
    box = plain_dashboard(Sources(loop, entry), entry.run.handle)
    texts: list[str] = []

    def drawn() -> bool:
        texts[:] = [str(getattr(widget, "value", "")) for widget in all_of(box)]
        return any("temperature" in text for text in texts)

    Sources(loop, entry).until(drawn)
    assert not any("this run" in text for text in texts)
    assert any("fell off the bus" in text for text in texts)
