"""What a list says of a run: small, whatever the run was."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.kernel.run_row import (
    MAX_ROW_METRICS,
    MAX_ROW_PARAMS,
    MAX_SPARK_POINTS,
    MAX_VALUE_CHARS,
    row_of,
    spark_of,
    stream_summary_of,
)
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.telemetry import RunTelemetry
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Phase, Run, RunHandle, RunState, RunStatus
from tests.telemetry_files import write_node


def entry_of(state: RunState = RunState.RUNNING, *, spec: JobSpec | None = None, **more: Any) -> Entry:
    fields = {name: more.pop(name) for name in ("error", "reachable", "tracking") if name in more}
    status = RunStatus(state=state, **more)
    spec = spec or JobSpec(name="digits", script="pass")
    return Entry(Run(handle=RunHandle("local/digits-22222"), spec=spec, status=status, created=100.0, **fields))


def point(entry: Entry, key: str, value: Any, t: float) -> None:
    if not entry.metrics.seq:
        entry.metrics.feed(b'{"seq":1,"op":"init","b":{},"a":{"id":"r"}}\n')
    body = {"run_id": "r", "key": key, "value": value, "timestamp": t * 1000, "step": 1}
    entry.metrics.feed(msgspec.json.encode({"seq": entry.metrics.seq + 1, "op": "runs/log-metric", "b": body}) + b"\n")


def test_row_times_come_from_phases() -> None:
    queued = Phase(name="queued", start=101.0, end=103.0, seconds=2.0)
    running = Phase(name="running", start=103.0)
    row = row_of(entry_of(phases=(queued, running)))
    assert (row.started, row.ended, row.phase, row.phase_start) == (103.0, None, "running", 103.0)
    ended = (queued, Phase(name="running", start=103.0, end=110.0), Phase(name="finalizing", start=110.0, seconds=1.5))
    row = row_of(entry_of(RunState.COMPLETED, phases=ended))
    assert (row.started, row.ended, row.phase, row.phase_start) == (103.0, 111.5, "", None)
    row = row_of(entry_of(RunState.CANCELED, phases=(queued,)))
    assert row.started is None and row.ended == 103.0


def test_row_metric_is_last_logged_number() -> None:
    entry = entry_of()
    assert not row_of(entry).known
    point(entry, "loss", 0.5, 10)
    point(entry, "accuracy", 0.9, 20)
    point(entry, "loss", 0.4, 30)
    entry.read = True
    row = row_of(entry)
    assert (row.metric, row.value, row.known) == ("loss", 0.4, True)
    point(entry, "accuracy", "nan", 40)
    assert (row_of(entry).metric, row_of(entry).value) == ("accuracy", "nan")


def test_row_params_are_few_and_short() -> None:
    params = {"lr": 0.1 + 0.2, "layers": [64, 32], "name": "x" * 99, "flag": True, **{f"p{i}": i for i in range(40)}}
    row = row_of(entry_of(spec=JobSpec(name="digits", script="pass", params=params)))
    assert len(row.params) == MAX_ROW_PARAMS and all(len(text) <= MAX_VALUE_CHARS for text in row.params.values())
    assert row.params["lr"] == "0.3" and row.params["layers"] == "[64, 32]" and row.params["flag"] == "true"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (entry_of(), ""),
        (entry_of(RunState.COMPLETED), ""),
        (entry_of(RunState.CANCELED), ""),
        (entry_of(RunState.FAILED, error="local/x failed: raised E.\nmore"), "local/x failed: raised E."),
        (entry_of(RunState.LOST, detail="its folder is gone"), "its folder is gone"),
        (entry_of(reachable=False), "'local' is not responding"),
        (entry_of(RunState.COMPLETED, reachable=False), ""),
        (
            entry_of(truth={"verdict": "not used", "detail": "GPU 0 stayed at 0 %"}),
            ": GPU 0 stayed at 0 %",
        ),
        (entry_of(truth={"verdict": "used", "detail": "GPU 0"}), ""),
    ],
)
def test_row_attention_is_one_sentence(entry: Entry, message: str) -> None:
    attention = row_of(entry).attention
    assert message in attention and bool(attention) == bool(message) and "\n" not in attention


def test_sparkline_of_all_gpus_has_gaps(tmp_path: Path) -> None:
    write_node(tmp_path, gpus=4, seconds=600)
    telemetry = RunTelemetry()
    telemetry.feed(0, (tmp_path / "telemetry" / "node-0.jsonl").read_bytes())
    spark = spark_of(telemetry)
    assert 30 <= len(spark) <= MAX_SPARK_POINTS and all(-1 <= value <= 100 for value in spark) and max(spark) > 0
    header = {"columns": ["seq", "t"], "gpu_columns": ["util"], "gpus": [{"index": 0}, {"index": 1}], "period": 1}
    rows = [[i, 100.0 + i, None if i < 5 else 20, None if i < 8 else 40] for i in range(10)]
    holes = RunTelemetry()
    holes.feed(0, b"".join(msgspec.json.encode(line) + b"\n" for line in [header, *rows]))
    assert spark_of(holes) == (-1,) * 5 + (20,) * 3 + (30,) * 2
    assert spark_of(RunTelemetry()) == ()


def test_sparkline_of_long_run_is_cached_between_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_amltrain.kernel import run_row as module

    made = []
    monkeypatch.setattr(module, "spark_of", lambda telemetry: made.append(1) or (1,))
    entry = entry_of()
    header = {"columns": ["seq", "t"], "gpu_columns": ["util"], "gpus": [{"index": 0}], "period": 1}
    entry.telemetry.feed(0, msgspec.json.encode(header) + b"\n")
    for i in range(2000):
        entry.telemetry.feed(0, msgspec.json.encode([i, 100.0 + i, 50]) + b"\n")
        stream_summary_of(entry)
    assert len(made) < 80 + 80 * math.log(2000 / 80) + 80
    entry.run = msgspec.structs.replace(entry.run, status=RunStatus(state=RunState.COMPLETED))
    count = len(made)
    stream_summary_of(entry), stream_summary_of(entry)
    assert len(made) == count + 1  # the end is drawn whole


def test_row_has_last_value_of_each_metric() -> None:
    entry = entry_of()
    for at in range(3):
        point(entry, "loss", 9.54e-7 / (at + 1), 10 + at)
        point(entry, "accuracy", 0.1 * at, 10 + at)
    point(entry, "broken", "nan", 20)
    for at in range(MAX_ROW_METRICS):
        point(entry, f"more{at}", at, 30)
    entry.read = True
    metrics = row_of(entry).metrics
    assert metrics["loss"] == pytest.approx(3.18e-7) and metrics["accuracy"] == pytest.approx(0.2)
    assert "broken" not in metrics and len(metrics) == MAX_ROW_METRICS


def test_sparkline_of_run_without_gpu_is_its_metric() -> None:
    entry = entry_of()
    entry.read = True
    point(entry, "loss", 4.0, 10)
    assert row_of(entry).spark == ()  # one value is no curve
    for at, value in enumerate((2.0, "nan", 0.0)):
        point(entry, "loss", value, 11 + at)
    assert row_of(entry).spark == (100, 50, -1, 0)
    for at in range(500):
        point(entry, "loss", float(at), 100 + at)
    assert len(row_of(entry).spark) == MAX_SPARK_POINTS
    point(entry, "same", 1.0, 1000)
    point(entry, "same", 1.0, 1001)
    assert row_of(entry).spark == ()
