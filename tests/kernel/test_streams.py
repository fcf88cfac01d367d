from __future__ import annotations

import itertools
import json
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_amltrain.kernel.streams import IncrementalDownsampler, LogWindow, MetricLog, downsample


def _point(run: str, value: float, timestamp: int) -> dict[str, object]:
    return {"run_id": run, "key": "loss", "value": value, "timestamp": timestamp, "step": 1}


def _journal() -> bytes:
    batch = {
        "run_id": "main",
        "metrics": [
            {"key": "loss", "value": "NaN", "timestamp": "2500", "step": "2"},
            {"key": "é", "value": 1},
        ],
        "params": [{"key": "lr", "value": "0.1"}],
    }
    rows = [
        {"seq": 1, "t": 1, "op": "init", "b": {}, "a": {"id": "main"}},
        {"seq": 2, "t": 2, "op": "runs/log-metric", "b": _point("main", 0.5, 1500)},
        {"seq": 3, "t": 3, "op": "runs/create", "b": {}, "a": {"id": "child"}},
        {"seq": 4, "t": 4, "op": "runs/log-metric", "b": _point("child", 9, 1)},
        {"seq": 5, "t": 5, "op": "runs/log-batch", "b": batch},
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@given(st.lists(st.integers(0, len(_journal())), max_size=8))
def test_metrics_fed_in_pieces_equal_whole_stream(cuts: list[int]) -> None:
    whole, log = _journal(), MetricLog()
    edges = [0, *sorted(cuts), len(whole)]
    for a, b in zip(edges, edges[1:], strict=False):
        log.feed(whole[a:b])
    assert list(log.metrics) == ["loss", "é"]
    assert list(log.metrics["loss"].steps) == [1, 2]
    assert list(log.metrics["loss"].times) == [1.5, 2.5]
    assert log.metrics["loss"].values[0] == 0.5 and math.isnan(log.metrics["loss"].values[1])
    assert log.params == {"lr": "0.1"}


def test_metric_journal_fed_twice_is_not_doubled() -> None:
    log = MetricLog()
    log.feed(_journal())
    log.feed(_journal())
    assert len(log.metrics["loss"].values) == 2


def _logged(*points: tuple[int, int, float], **more: object) -> MetricLog:
    """Metric ``loss`` of a journal with points: step, time in ms, value."""
    log = MetricLog()
    log.feed(json.dumps({"seq": 1, "op": "init", "b": {}, "a": {"id": "main"}}).encode() + b"\n")
    for seq, (step, time, value) in enumerate(points, 2):
        body = {"run_id": "main", "key": "loss", "value": value, "timestamp": time, "step": step, **more}
        log.feed(json.dumps({"seq": seq, "op": "runs/log-metric", "b": body}).encode() + b"\n")
    return log


@pytest.mark.parametrize(
    ("points", "last", "count"),
    [
        ([(0, 1, 3.0), (1, 2, 2.0), (0, 1, 3.0), (1, 2, 2.0)], 2.0, 2),  # log_model of MLflow 3 sends all again
        ([(0, 1, 3.0), (1, 2, 2.0), (0, 1, 3.0)], 2.0, 2),  # ... or those of its step
        ([(2, 1, 1.0), (0, 2, 3.0), (1, 3, 2.0)], 1.0, 3),  # steps out of order
        ([(0, 1, 3.0), (0, 2, 2.0), (0, 3, 1.0)], 1.0, 3),  # no steps
        ([(0, 3, 1.0), (0, 1, 3.0), (0, 2, 2.0)], 1.0, 3),  # sent late, as by asynchronous logging
        ([(0, 1, 3.0), (0, 1, 1.0), (0, 1, 2.0), (0, 1, 1.0)], 2.0, 3),  # in one millisecond
        ([(0, 1, 3.0), (1, 2, math.nan), (1, 2, math.nan)], math.nan, 2),
    ],
)
def test_metric_value_is_that_of_last_step_and_time(
    points: list[tuple[int, int, float]], last: float, count: int
) -> None:
    metric = _logged(*points).metrics["loss"]
    assert metric.last == pytest.approx(last, nan_ok=True)
    assert len(metric.values) == len(metric.steps) == len(metric.times) == count


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.sampled_from([1.0, 2.0, math.nan])), max_size=20))
def test_metric_has_each_point_once(points: list[tuple[int, int, float]]) -> None:
    metrics = _logged(*points).metrics
    stored = [] if not points else [*zip(metrics["loss"].steps, map(str, metrics["loss"].values), strict=True)]
    times = [] if not points else [round(1000 * time) for time in metrics["loss"].times]
    expected = dict.fromkeys((step, str(value), time) for step, time, value in points)
    assert [(*pair, time) for pair, time in zip(stored, times, strict=True)] == list(expected)


def test_metric_chart_is_in_order_of_steps() -> None:
    metric = _logged((2, 1, 1.0), (0, 2, 3.0), (1, 3, 2.0)).metrics["loss"]
    assert [metric.values[i] for i in metric.in_order(metric.shown.indices())] == [3.0, 2.0, 1.0]


def test_metric_journal_garbage_line_is_skipped() -> None:
    log = MetricLog()
    log.feed(b'{"seq": 0, broken\n' + _journal())
    assert len(log.metrics["loss"].values) == 2


def test_log_window_keeps_tail_and_counts_hidden_lines() -> None:
    window = LogWindow()
    data = b"".join(b"line %d\n" % i for i in range(5000))
    window.feed(data, len(data))
    tail, hidden = window.tail()
    assert tail.endswith("line 4999\n") and len(tail) <= 8192
    assert hidden + tail.count("\n") == 5000


def test_log_window_with_unread_part_counts_no_hidden_lines() -> None:
    window = LogWindow()
    window.feed(b"a\n", 2)
    window.feed(b"the end\n", 1000)
    assert window.tail() == ("the end\n", 0) and window.bytes == 1000


def test_log_window_invalid_utf8_is_replaced() -> None:
    window = LogWindow()
    window.feed(b"ok \xff\xfe\n", 6)
    assert window.tail()[0] == "ok \ufffd\ufffd\n"


def test_log_window_keeps_lines_above_a_bar_of_any_length() -> None:
    window = LogWindow()
    at = 0
    for data in (b"start\n", *(b"\r%5d of 9000 " % i + b"#" * 40 for i in range(9000))):
        at += len(data)
        window.feed(data, at)
    assert window.tail() == ("start\n 8999 of 9000 " + "#" * 40, 0)


def test_log_window_decodes_characters_across_reads() -> None:
    window, data = LogWindow(), "é日本\n".encode()
    for at in range(len(data)):
        window.feed(data[at : at + 1], at + 1)
    assert window.tail()[0] == "é日本\n"


@given(st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=1, max_size=3000))
def test_downsample_keeps_ends_and_extremes(values: list[float]) -> None:
    keep = downsample(values, 100)
    assert len(keep) <= max(100, 2) and keep == sorted(set(keep))
    assert keep[0] == 0 and keep[-1] == len(values) - 1
    known = [v for v in values if v == v]
    if known:
        kept = [values[i] for i in keep if values[i] == values[i]]
        assert max(known) in kept and min(known) in kept


@given(st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=1, max_size=3000), st.integers(1, 7))
def test_shown_growing_series_keeps_ends_and_extremes(values: list[float], frames: int) -> None:
    column: array[float] = array("d")
    shown = IncrementalDownsampler(column)
    for frame in range(frames):  # drawn while it grows, as a live output does
        column.extend(values[frame * len(values) // frames : (frame + 1) * len(values) // frames])
        shown.indices(100)
    keep = shown.indices(100)
    assert keep == sorted(set(keep)) and len(keep) <= 100 or len(values) <= 100
    assert keep[0] == 0 and keep[-1] == len(values) - 1
    known = [v for v in values if v == v]
    if known:
        kept = [values[i] for i in keep if values[i] == values[i]]
        assert max(known) in kept and min(known) in kept


@pytest.mark.parametrize("n", [1, 5, 30, 299, 300])
def test_short_curve_keeps_every_point(n: int) -> None:
    column: array[float] = array("d")
    shown = IncrementalDownsampler(column)
    for i in range(n):  # drawn while it grows
        column.append((i * 7) % 5)
        assert shown.indices() == list(range(i + 1))


@pytest.mark.parametrize("n", [257, 400, 3000, 100_000])
def test_shown_falling_curve_has_no_long_gap(n: int) -> None:
    column = array("d", [1 / (1 + i / 20) for i in range(n)])
    keep = IncrementalDownsampler(column).indices()
    longest = max(b - a for a, b in itertools.pairwise(keep))
    assert longest <= max(4, 8 * n // 300)  # no part of the curve is one straight line


def test_shown_long_series_is_bounded() -> None:
    shown = IncrementalDownsampler(array("d", (i % 977 for i in range(300_000))))
    assert len(shown.indices()) <= 300
    assert len(shown._kept) <= IncrementalDownsampler.MAX_KEPT


def test_metric_with_huge_step_is_skipped() -> None:
    log = MetricLog()
    log.feed(_journal())
    body = {**_point("main", 1.0, 1), "step": 2**70}
    log.feed(json.dumps({"seq": 9, "op": "runs/log-metric", "b": body}).encode() + b"\n")
    assert len(log.metrics["loss"].values) == len(log.metrics["loss"].steps) == 2


def test_metric_journal_damaged_line_is_skipped() -> None:
    bad = (b"[1]\n", b"3\n", b'{"seq": "9"}\n', b'{"seq": 9, "op": 4, "b": []}\n', b"\xff\n", b"[" * 30000 + b"\n")
    odd = {"seq": 7, "op": "runs/log-batch", "b": {"run_id": "main", "metrics": "none"}}
    tag = b'{"seq": 8, "op": "runs/log-parameter", "b": {"run_id": "main", "key": "k", "value": "\\ud800"}}\n'
    log = MetricLog()
    for line in bad:
        log.feed(line)
    log.feed(_journal() + json.dumps(odd).encode() + b"\n" + tag)
    assert list(log.metrics["loss"].values)[0] == 0.5 and log.params["k"] == "\ufffd"
