"""A record is small whatever the run was, and honest JSON."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.kernel.run_record import METRICS, record_of
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.streams import Metric
from jupyter_amltrain.output.text_view import record_text
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.record import RunRecord
from jupyter_amltrain.schema.run import Run, RunState, RunStatus, make_handle
from tests import telemetry_files as files

LIMIT = 200_000


def entry_of(state: RunState = RunState.RUNNING, detail: str = "", **more: Any) -> Entry:
    spec = more.pop("spec", JobSpec(name="r"))
    status = RunStatus(state=state, detail=detail)
    return Entry(Run(handle=make_handle("local", "r-22222"), spec=spec, status=status, created=1.0, **more))


def bytes_of(record: RunRecord) -> int:
    return len(json.dumps(msgspec.to_builtins(record), ensure_ascii=False).encode())


def many_points(entry: Entry, metrics: int, points: int) -> None:
    metric = Metric()  # one stands for all: a record counts and draws each
    for i in range(points):
        metric.append(10**6 + i, float(i), -1.23456789e-120 * (i % 977))
    for number in range(metrics):
        entry.metrics.metrics[f"metric/{number}"] = metric


def test_record_with_many_metric_points_is_bounded() -> None:
    entry = entry_of()
    many_points(entry, 60, 100_000)
    entry.log.feed(b"\x00\xff line\n" * 40_000, 360_000)
    entry.telemetry.feed(0, b'{"columns":["seq","t","cpu","memory"],"cpus":2,"memory_total":8e9}\n')
    entry.telemetry.feed(
        0,
        b"".join(b"[%d,1795249210.%03d,99.87654321,%d]\n" % (i, i % 1000, 10**9 + i * 7919) for i in range(40_000)),
    )
    record = record_of(entry)
    assert bytes_of(record) < LIMIT
    assert len(record.metrics) == METRICS
    assert all(m.n == 100_000 and len(m.step) == len(m.value) <= 300 for m in record.metrics.values())
    assert len(record.telemetry.t) <= 300 and len(record.log.tail) <= 8192


def test_record_with_long_texts_is_bounded() -> None:
    big = {f"name{i}": "é" * 1900 for i in range(400)}
    spec = JobSpec(name="r", params=big, tags=dict(big), experiment="e" * 250)
    entry = entry_of(RunState.FAILED, spec=spec, outputs=dict(big), error="x" * 10**6, detail="y" * 10**6)
    many_points(entry, 12, 400)
    entry.metrics.metrics["m" * 10**6] = entry.metrics.metrics.pop("metric/0")
    record = record_of(entry)
    assert bytes_of(record) < LIMIT
    assert record.params["name0"] == big["name0"] and record.tags["name0"] == big["name0"]


def test_record_large_output_is_cut_and_others_kept() -> None:
    record = record_of(entry_of(outputs={"large": list(range(10**5)), "small": [1, 2]}))
    assert str(record.outputs["large"]).endswith("… (large)") and record.outputs["small"] == [1, 2]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_record_nan_or_infinity_is_valid_json_and_named(value: float) -> None:
    entry = entry_of()
    entry.metrics.metrics["loss"] = Metric()
    entry.metrics.metrics["loss"].append(0, 0.0, value)
    text = msgspec.json.encode(record_of(entry))
    assert (
        msgspec.json.decode(text)["metrics"]["loss"].items()
        >= {"step": [0], "value": [None], "last": str(value), "n": 1}.items()
    )
    assert f"loss {value}" in record_text(record_of(entry))


def test_record_of_ended_run_has_no_telemetry_age() -> None:
    for state, known in ((RunState.RUNNING, True), (RunState.COMPLETED, False)):
        entry = entry_of(state)
        entry.telemetry.feed(0, b'{"columns":["seq","t","cpu","memory"]}\n[0,1.0,null,5]\n')
        telemetry = record_of(entry).telemetry
        assert (telemetry.age is not None) is known
        assert telemetry.cpu == (None,) and telemetry.memory == (5.0,) and telemetry.memory_total is None


def test_record_gpu_age_grows_without_samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = entry_of()
    files.write_node(tmp_path, gpus=1, seconds=10)
    entry.telemetry.feed(0, (tmp_path / "telemetry" / "node-0.jsonl").read_bytes())
    for now in (1.0, 61.0):
        monkeypatch.setattr(time, "time", lambda now=now: files.START + 9 + now)
        record = record_of(entry)
        assert record.gpu is not None and (record.gpu.age, record.telemetry.age) == (now, now)


def test_record_with_many_children_is_bounded() -> None:
    from jupyter_amltrain.schema.child_run import ChildRun, ChildRuns

    entry = entry_of()
    runs = [
        ChildRun(
            id=f"{i}", name="é" * 100, detail="é" * 200, metric="m" * 60, url="https://x/" + "y" * 300, best=i == 1
        )
        for i in range(100)
    ]
    entry.streams.children = ChildRuns(runs=tuple(runs), hidden=5)
    record = record_of(entry)
    assert bytes_of(record) < 100_000
    assert any(run.best for run in record.children) and len(record.children) + record.children_hidden == 105


@pytest.mark.parametrize(
    ("raised", "first", "lines", "line"),
    [(2, 2, 3, 2), (4, 2, 5, 4), (6, 4, 3, 6), (1, 0, 0, 0), (9, 0, 0, 0)],
)
def test_record_of_failed_cell_has_lines_around_error(raised: int, first: int, lines: int, line: int) -> None:
    script = "lr = 1\n" + "\n".join(f"text {number}" for number in range(2, 7))
    entry = entry_of(RunState.FAILED, spec=JobSpec(name="r", script=script, script_name="script.py"))
    log = f'Traceback (most recent call last):\n  File "/x/source/script.py", line {raised}, in <module>\nValueError\n'
    entry.log.feed(log.encode(), len(log))
    code = record_of(entry).excerpt
    assert (code is not None) is bool(lines)
    if code:
        assert (code.first, len(code.lines), code.line) == (first, lines, line)
        assert code.lines[code.line - code.first] == f"text {raised}"
    entry.run = msgspec.structs.replace(entry.run, status=RunStatus(state=RunState.COMPLETED))
    assert record_of(entry).excerpt is None


def test_lines_around_error_are_those_of_the_cell() -> None:
    script, cell = "import os\nimport json\nx = read('x')\nraise x\n", "import json\n\nraise x"
    spec = JobSpec(name="r", script=script, cell=cell, script_name="script.py")
    entry = entry_of(RunState.FAILED, spec=spec)
    log = 'Traceback (most recent call last):\n  File "/x/source/script.py", line 4, in <module>\nValueError\n'
    entry.log.feed(log.encode(), len(log))
    code = record_of(entry).excerpt
    assert code is not None and code.lines[:3] == ("import json", "", "raise x") and code.line == 4
