"""The kernel's end of a feed: every tick once, the same bytes in hour 24 as in minute 10."""

from __future__ import annotations

import json
import struct
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jupyter_amltrain.kernel.samples import Columns, Samples, bfloat16, encode
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.telemetry import NodeTelemetry
from jupyter_amltrain.output.dashboard import Dashboard
from jupyter_amltrain.output.feed import StreamFeed
from jupyter_amltrain.output.layout import Layout, layout_of
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Phase, Run, RunState, RunStatus, make_handle
from tests import telemetry_files as files


def decoded(content: dict[str, Any], data: bytes, columns: Mapping[int, Any]) -> list[Samples]:
    """The parts of a message of ticks; `columns` are those of each node."""
    heads = list(struct.iter_unpack("<HHI", data[: 8 * content["n"]]))
    t, y = data[8 * content["n"] :], data[8 * (content["n"] + sum(count for _, count, _ in heads)) :]
    found = []
    for node, count, first in heads:
        size = len(columns[node]) * count * (2 if content.get("halves") else 4)
        part, y = y[:size], y[size:]
        if content.get("halves"):
            part = (np.frombuffer(part, np.uint16).astype(np.uint32) << 16).tobytes()
        found.append(
            Samples(node, first, np.frombuffer(t[: 8 * count]), np.frombuffer(part, np.float32).reshape(-1, count))
        )
        t = t[8 * count :]
    assert not y
    return found


class Page:
    """What a page would know from the messages that it got."""

    def __init__(self, feed: StreamFeed) -> None:
        self.messages: list[tuple[dict[str, Any], list[bytes]]] = []
        self.bytes = 0  #: of the buffers, and of the content's JSON
        feed.send = self._take  # type: ignore[method-assign]

    def _take(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        self.messages.append((content, buffers or []))
        self.bytes += sum(len(b) for b in buffers or []) + len(json.dumps(content))

    def ticks(self, columns: Mapping[int, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Times ``(k,)`` and values ``(columns, k)`` of all tick messages of one node."""
        parts = [decoded(content, buffers[0], columns)[0] for content, buffers in self.messages if "n" in content]
        return np.concatenate([part.t for part in parts]), np.concatenate([part.values for part in parts], axis=1)


def entry_of(**more: Any) -> Entry:
    phases = (Phase(name="queued", start=files.START - 5, end=files.START), Phase(name="running", start=files.START))
    status = RunStatus(state=RunState.RUNNING, phases=phases)
    return Entry(Run(handle=make_handle("local", "r-22222"), spec=JobSpec(name="r"), status=status, created=1.0))


def lines_of(folder: Path, gpus: int, seconds: float, node: int = 0, **more: Any) -> list[bytes]:
    files.write_node(folder, node, gpus=gpus, seconds=seconds, **more)
    return (folder / "telemetry" / f"node-{node}.jsonl").read_bytes().splitlines(keepends=True)


def connected(entry: Entry) -> tuple[Layout, StreamFeed, Page]:
    layout = layout_of(entry)
    assert layout is not None
    feed = Dashboard(layout).connect("f", entry.telemetry, done=False)
    return layout, feed, Page(feed)


@pytest.mark.parametrize("gpus", [1, 8, 64])
def test_feed_sends_scripted_curve(gpus: int, tmp_path: Path) -> None:
    entry = entry_of()
    lines = lines_of(tmp_path, gpus, 130)
    entry.telemetry.feed(0, b"".join(lines[:20]))
    layout, feed, page = connected(entry)
    first = entry.telemetry.node(0).ticks
    for line in lines[20:]:
        entry.telemetry.feed(0, line)
        feed.push()
    names = layout.columns[0]
    t, values = page.ticks(layout.columns)
    assert list(t) == [files.START + s for s in range(first, 130)]
    for gpu in {0, gpus // 2, gpus - 1}:
        for k, name in enumerate(("util", "peak", "memory", "power")):
            expected = [files.busy(gpu, s)[k] for s in range(first, 130)]
            assert values[names.index(f"gpu{gpu}.{name}")].tolist() == expected
    assert page.bytes == (130 - first) * (len('{"n": 1}') + 8 + 8 + 4 * len(names))  # a tick each, no more
    assert len(page.messages) == 130 - first


def test_feed_peak_contains_burst_between_samples(tmp_path: Path) -> None:
    """The driver's samples hold what a reading each second misses; the page gets both."""
    entry = entry_of()
    data = lines_of(tmp_path, 1, 60, curve=lambda g, s: (3, 100 if s == 41 else 3, 10, 70, 40, 1000))
    entry.telemetry.feed(0, data[0] + data[1] + data[2])
    layout, feed, page = connected(entry)
    entry.telemetry.feed(0, b"".join(data[3:]))
    feed.push()
    t, values = page.ticks(layout.columns)
    peak = values[layout.columns[0].index("gpu0.peak")]
    assert t[int(peak.argmax())] == files.START + 41 and peak.max() == 100 and np.median(peak) == 3


def test_feed_after_short_absence_sends_missing_samples(tmp_path: Path) -> None:
    entry = entry_of()
    lines = lines_of(tmp_path, 2, 300)
    entry.telemetry.feed(0, b"".join(lines[:50]))
    layout, feed, page = connected(entry)
    node = entry.telemetry.node(0)
    seen = node.ticks
    entry.telemetry.feed(0, b"".join(lines[50:]))
    feed.catch_up([seen])
    t, values = page.ticks(layout.columns)
    (content, (data,)), *more = page.messages
    assert not more and decoded(content, data, layout.columns)[0].first == seen and t[-1] == node.last_t
    assert values.shape[1] == node.ticks - seen
    feed.push()
    assert len(page.messages) == 1  # nothing is sent twice


def test_feed_after_long_absence_sends_whole_history(tmp_path: Path) -> None:
    entry = entry_of()
    lines = lines_of(tmp_path, 1, 9000)
    entry.telemetry.feed(0, b"".join(lines[:50]))
    layout, feed, page = connected(entry)
    entry.telemetry.feed(0, b"".join(lines[50:]))
    feed.catch_up([10])
    (content, buffers), node = page.messages[0], entry.telemetry.node(0)
    (head,) = content["snap"]
    columns = len(layout.columns[0])
    assert head == {"n": 0, "s": 9000, "k": 3600, "b": node.history.count, "w": 16, "p": node.history.filled}
    assert np.frombuffer(buffers[0])[-1] == node.last_t
    assert len(buffers[1]) == 4 * columns * 3600 and len(buffers[2]) == head["b"] * (8 + 3 * 4 * columns)


@pytest.mark.thorough
def test_feed_message_size_is_independent_of_run_length(tmp_path: Path) -> None:
    """The CPU of it is measured by the benchmark."""
    entry = entry_of()
    lines = lines_of(tmp_path, 8, 20_000, minutes=False, summary=False)
    entry.telemetry.feed(0, b"".join(lines[:20]))
    _, feed, page = connected(entry)
    node = entry.telemetry.node(0)
    sizes = []
    for line in [*lines[20:100], b"".join(lines[100:-80]), *lines[-80:]]:
        if entry.telemetry.feed(0, line):
            feed.push()
            sizes.append(page.bytes)
    assert sizes[1] - sizes[0] == sizes[-1] - sizes[-2] < 200
    assert node.history.count <= 1024 and node.ticks_in_ring == 3600 and node.seq == 19_999


def tick_of(gpus: int, seq: int, value: bytes = b"5") -> bytes:
    """A line of a telemetry file in which everything has one value."""
    return b"[%d,%f,%s]\n" % (seq, files.START + seq, b",".join([value] * (len(files.HOST) + 6 * gpus)))


def batches(page: Page, layout: Layout) -> list[dict[int, Samples]]:
    """The samples in each message, by node."""
    return [{part.node: part for part in decoded(content, data, layout.columns)} for content, (data,) in page.messages]


def test_feed_of_two_nodes_sends_one_message_for_both(tmp_path: Path) -> None:
    entry = entry_of()
    for node in (0, 1):
        entry.telemetry.feed(node, b"".join(lines_of(tmp_path, 2, 30, node=node)))
    layout, feed, page = connected(entry)
    assert [gpu.label for gpu in layout.gpus] == ["n0 GPU 0", "n0 GPU 1", "n1 GPU 0", "n1 GPU 1"]
    entry.telemetry.feed(1, tick_of(2, 30))
    feed.push()
    entry.telemetry.feed(0, tick_of(2, 30, b"6.125"))
    entry.telemetry.feed(1, tick_of(2, 31, b"null"))
    entry.telemetry.feed(1, tick_of(2, 32, b"7"))
    feed.push()
    feed.push()
    only, both = batches(page, layout)
    assert list(only) == [1] and only[1].first == 30 and list(only[1].t) == [files.START + 30]
    assert both[0].first == 30 and (both[0].values == 6.125).all()
    assert both[1].first == 31 and list(both[1].t) == [files.START + 31, files.START + 32]
    assert np.isnan(both[1].values[:, 0]).all() and (both[1].values[:, 1] == 7).all()


def test_feed_of_1024_gpus_sends_11_bytes_for_each(tmp_path: Path) -> None:
    entry = entry_of()
    lines = b"".join(lines_of(tmp_path, 8, 30, node=0))
    for node in range(128):
        entry.telemetry.feed(node, lines)
    layout, feed, page = connected(entry)
    for node in range(128):
        entry.telemetry.feed(node, tick_of(8, 30, b"71.53" if node else b"null"))
    feed.push()
    assert len(page.messages) == 1 and page.bytes / 1024 < 11.5
    (batch,) = batches(page, layout)
    assert sorted(batch) == list(range(128)) and np.isnan(batch[0].values).all()
    util = layout.columns[127].index("gpu7.util")
    assert batch[127].values[util, 0] == pytest.approx(71.53, rel=1 / 256)


def test_feed_delay_grows_with_nodes_up_to_one_second(tmp_path: Path) -> None:
    delays = []
    for count in (1, 2, 128):
        entry = entry_of()
        lines = b"".join(lines_of(tmp_path, 1, 5))
        for node in range(count):
            entry.telemetry.feed(node, lines)
        delays.append(connected(entry)[1].delay)
    assert delays[0] == 0 < delays[1] < 0.1 and delays[2] == 1.0


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 1e-30, 3e38, 81559.0, float("nan"), float("inf"), -float("nan")])
def test_bfloat16_keeps_three_digits_and_nan(value: float) -> None:
    (half,) = struct.unpack("<H", bfloat16(np.array([value], np.float32)))
    (read,) = struct.unpack("<f", struct.pack("<I", half << 16))
    assert read == pytest.approx(value, rel=1 / 256, nan_ok=True)


def test_samples_of_one_part_end_with_whole_percents() -> None:
    samples = Samples(3, 7, np.array([1.0, 2.0]), np.array([[0.5, 1.5]], np.float32))
    data = encode([samples], np.array([[12.4, np.nan], [101.0, -1.0]], np.float32))
    assert data[-4:] == bytes([12, 255, 100, 0])
    (read,) = decoded({"n": 1}, data[:-4], {3: ["cpu"]})
    assert (read.node, read.first, *read.t, *read.values[0]) == (3, 7, 1.0, 2.0, 0.5, 1.5)


def test_layout_is_fixed_at_first_header(tmp_path: Path) -> None:
    entry = entry_of()
    assert layout_of(entry) is None
    entry.telemetry.feed(0, b"".join(lines_of(tmp_path, 0, 10, note="no NVIDIA driver (it is not here)")))
    layout = layout_of(entry, 90.0)
    assert layout is not None and not layout.gpus and "no NVIDIA driver" in layout.note
    assert layout.start == files.START - 5 and 90.0 in layout.wire(10, 10)["windows"]
    dashboard = Dashboard(layout, ("loss",))
    feed = dashboard.connect("f", entry.telemetry, done=True)
    kinds = [spec["kind"] for spec in feed.specs]
    assert len(feed.specs) == len(feed.marks) and kinds.count("lines") == 2 and kinds.count("metric") == 1
    assert dashboard.legend.value == ""  # why there is no GPU is no news in a run that asked for none
    assert [chart.chart.title for chart in dashboard.charts] == ["loss", "CPU", "Memory"]


def test_feed_column_absent_in_header_is_missing() -> None:
    node = NodeTelemetry(0)
    node.feed(b'{"columns":["seq","t","cpu"]}\n[0,1.0,5]\n')
    values = Columns(node, ("cpu", "gpu0.util")).since(0).values
    assert values[0] == 5 and np.isnan(values[1])


def test_closed_dashboard_leaves_no_widget(tmp_path: Path) -> None:
    entry = entry_of()
    entry.telemetry.feed(0, b"".join(lines_of(tmp_path, 2, 20)))
    layout = layout_of(entry)
    assert layout is not None
    before = set(instances())
    dashboard = Dashboard(layout, ("loss",))
    dashboard.connect("f", entry.telemetry, done=False)
    dashboard.add_metrics(("accuracy",))
    dashboard.close()
    left = [type(widget).__name__ for key, widget in instances().items() if key not in before]
    assert not left


def instances() -> dict[str, Any]:
    """The widgets that have a model on the page."""
    from ipywidgets.widgets import widget

    return dict(widget._instances if hasattr(widget, "_instances") else widget.Widget.widgets)


def test_feed_snapshot_from_other_thread_is_consistent(tmp_path: Path) -> None:
    """A page that is loaded again asks for every widget: the main thread answers, while the loop takes ticks."""
    entry = entry_of()
    lines = lines_of(tmp_path, 1, 3000)
    entry.telemetry.feed(0, b"".join(lines[:100]))
    node = entry.telemetry.node(0)
    columns = Columns(node, ["cpu", "gpu0.util"])
    interval, broken = sys.getswitchinterval(), []
    sys.setswitchinterval(1e-5)
    feeding = threading.Thread(target=lambda: [entry.telemetry.feed(0, line) for line in lines[100:]])
    try:
        feeding.start()
        while feeding.is_alive():
            head, (x, _, buckets) = columns.snapshot()
            t, b = np.frombuffer(x), np.frombuffer(buckets, np.float64, head["b"])
            whole = (head["s"], (head["b"] - 1) * head["w"] + head["p"], int(t[-1] - files.START) + 1)
            if len(set(whole)) > 1 or (np.diff(t) <= 0).any() or (np.diff(b) <= 0).any():
                broken.append(whole)
    finally:
        sys.setswitchinterval(interval)
        feeding.join()
    assert not broken and node.ticks == 3000
