"""The parts of a mirror without a service: the log of many processes, numbers without gap, files after a crash."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.azure.service import logs, metrics
from jupyter_amltrain.azure.service.logs import FileDelta, advance_position
from jupyter_amltrain.azure.service.mirror_files import MirrorFiles
from jupyter_amltrain.kernel.streams import MetricLog
from jupyter_amltrain.kernel.telemetry import NodeTelemetry


def text(folder: Path) -> str:
    return (folder / logs.MERGED).read_text()


def take(folder: Path, attempt: int = 1, ended: bool = False, **came: Any) -> None:
    """One sync; each call has its own object, as each call of the process has."""
    mirror = MirrorFiles(folder)
    changes = {name: data if isinstance(data, FileDelta) else FileDelta(data) for name, data in came.items()}
    logs.append_logs(mirror, changes, attempt=attempt, ended=ended)
    mirror.save()


STD = "user_logs/std_log.txt"
P0, P1 = "user_logs/std_log_process_0.txt", "user_logs/std_log_process_01.txt"
BUILD = "azureml-logs/20_image_build_log.txt"


def test_single_process_log_is_copied_exactly(tmp_path: Path) -> None:
    take(tmp_path, **{STD: b"half a li"})
    take(tmp_path, **{STD: b"ne\r50 %\n"})
    assert (tmp_path / logs.MERGED).read_bytes() == b"half a line\r50 %\n"


def test_multi_process_log_lines_have_rank_labels(tmp_path: Path) -> None:
    take(tmp_path, **{P0: b"a\nb", P1: b"x\n"})
    take(tmp_path, **{P0: b"c\n", P1: b"no end"})
    take(tmp_path, ended=True, **{P0: b"", P1: b""})
    assert text(tmp_path) == "[rank 0] a\n[rank 1] x\n[rank 0] bc\n[rank 1] no end\n"
    assert (tmp_path / "log/rank-1.txt").read_text() == "x\nno end"


def test_image_build_log_comes_first(tmp_path: Path) -> None:
    take(tmp_path, **{BUILD: b"Step 1\nStep"})
    take(tmp_path, **{BUILD: b" 2", STD: b"hello\n"})
    take(tmp_path, **{BUILD: b"late\n", STD: b"bye\n"})
    assert text(tmp_path).splitlines() == [
        "amltrain: --- building the environment's image ---",
        "Step 1",
        "Step 2",
        "amltrain: --- the job starts ---",
        "hello",
        "bye",
    ]


def test_restarted_job_is_marked_once_in_log(tmp_path: Path) -> None:
    take(tmp_path, **{STD: b"first, cut o"})
    take(tmp_path, attempt=2, **{STD: FileDelta(b"again\n", restarted=True)})
    take(tmp_path, attempt=2, **{STD: b"ends\n"})
    lines = text(tmp_path).splitlines()
    assert lines[0] == "first, cut o" and "attempt 2" in lines[1] and lines[2:] == ["again", "ends"]


def test_retry_logs_of_attempt_are_used(tmp_path: Path) -> None:
    names = ["retry_001/user_logs/std_log.txt", STD]
    assert logs.attempt_logs(names) == {1: {STD: names[0]}} and logs.log_files(names) == [STD]
    take(tmp_path, **{STD: b"live\n"})
    mirror = MirrorFiles(tmp_path)
    logs.append_logs(mirror, {STD: FileDelta(b"the rest\n")}, attempt=1, ended=True)
    logs.end_attempt(mirror, 1)
    logs.end_attempt(mirror, 1)
    assert mirror.read_position(STD)["offset"] == 0
    logs.append_logs(mirror, {STD: FileDelta(b"again\n")}, attempt=2, ended=False)
    mirror.save()
    lines = text(tmp_path).splitlines()
    assert lines[:2] == ["live", "the rest"] and "attempt 2" in lines[2] and lines[3:] == ["again"]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        (STD, ""),
        (P0, "[rank 0] "),
        ("user_logs/std_log_process_12_ps.txt", "[rank 12 ps] "),
        ("user_logs/mine.txt", "[mine.txt] "),
    ],
)
def test_log_label_names_rank(name: str, label: str) -> None:
    assert logs.label(name) == label


def test_unsaved_log_append_is_repeated(tmp_path: Path) -> None:
    take(tmp_path, **{STD: b"saved\n"})
    mirror = MirrorFiles(tmp_path)
    logs.append_logs(mirror, {STD: FileDelta(b"lost with the process\n")}, attempt=1, ended=False)
    take(tmp_path, **{STD: b"lost with the process\n"})
    assert text(tmp_path) == "saved\nlost with the process\n"


def test_read_offset_and_tail_advance() -> None:
    known: dict[str, Any] = {"offset": 0, "tail": ""}
    advance_position(known, b"x" * 40, False)
    assert known["offset"] == 40 and len(bytes.fromhex(known["tail"])) == 32
    advance_position(known, b"yz", True)
    assert known["offset"] == 2 and bytes.fromhex(known["tail"]) == b"yz"


# ---- telemetry and journal


HEADER = {
    "schema": 1,
    "columns": ["seq", "t", *metrics._COLUMNS],
    "gpu_columns": list(metrics._GPU_COLUMNS),
    "gpus": [],
}


def tick(seq: int, t: float) -> list[Any]:
    return [seq, t, 1.0, *[None] * (len(metrics._COLUMNS) - 1)]


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def numbers(folder: Path) -> list[tuple[int, float]]:
    found = [json.loads(line) for line in (folder / "telemetry/node-0.jsonl").read_bytes().splitlines()]
    return [(row[0], row[1]) for row in found if isinstance(row, list)]


def test_telemetry_after_restart_continues(tmp_path: Path) -> None:
    mirror = MirrorFiles(tmp_path)
    metrics.take_ticks(mirror, 0, lines(HEADER, tick(0, 10), tick(1, 11)), False)
    metrics.take_ticks(mirror, 0, lines(HEADER, tick(0, 20), {"seq": 1, "note": "x"}, tick(1, 21)), True)
    metrics.take_ticks(mirror, 0, lines(tick(2, 22)), False)
    assert numbers(tmp_path) == [(0, 10), (1, 11), (2, 20), (3, 21), (4, 22)]
    node = NodeTelemetry(0)
    assert node.feed((tmp_path / "telemetry/node-0.jsonl").read_bytes()) == 5 and node.seq == 4


def test_telemetry_from_mlflow_is_not_doubled_by_file(tmp_path: Path) -> None:
    mirror = MirrorFiles(tmp_path)
    header = {**HEADER, "gpus": []}
    metrics.add_ticks(mirror, 0, header, [[10.0, *tick(0, 0)[2:]], [20.0, *tick(0, 0)[2:]]])
    metrics.add_ticks(mirror, 0, header, [[20.0, *tick(0, 0)[2:]], [30.0, *tick(0, 0)[2:]]])
    mirror.save()
    mirror = MirrorFiles(tmp_path)
    metrics.take_ticks(mirror, 0, lines(HEADER, *[tick(i, i) for i in range(33)]), False)
    assert numbers(tmp_path) == [(0, 10), (1, 20), (2, 30), (3, 31), (4, 32)]


def record(seq: int, key: str, step: int) -> dict[str, Any]:
    body = {"run_id": "r", "key": key, "value": float(step), "timestamp": step, "step": step}
    return {"seq": seq, "t": step, "op": "runs/log-metric", "b": body}


INIT = {"seq": 1, "t": 0, "op": "init", "b": {}, "a": {"id": "r", "exp_id": "0", "exp_name": "e", "name": "n"}}


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / metrics.JOURNAL).read_bytes().splitlines()]


def test_metric_journal_is_copied_exactly(tmp_path: Path) -> None:
    data = lines(INIT, record(2, "loss", 0))
    metrics.take_journal(MirrorFiles(tmp_path), data, False)
    assert journal(tmp_path) == [INIT, record(2, "loss", 0)]


def test_metric_points_from_mlflow_are_not_doubled(tmp_path: Path) -> None:
    mirror = MirrorFiles(tmp_path)
    points = [{"key": "loss", "value": float(i), "timestamp": i, "step": i} for i in range(2)]
    batch = {"t": 1, "op": "runs/log-batch", "b": {"run_id": "r", "metrics": points}}
    metrics.add_records(mirror, [batch], INIT["a"])
    metrics.take_journal(mirror, lines(INIT, *[record(i + 2, "loss", i) for i in range(4)]), False)
    found = journal(tmp_path)
    assert [r["seq"] for r in found] == [1, 2, 3, 4] and found[0]["op"] == "init"
    series = MetricLog()
    series.feed((tmp_path / metrics.JOURNAL).read_bytes())
    assert [p["step"] for r in found for p in r["b"].get("metrics", [r["b"]] if "key" in r["b"] else [])] == [
        0,
        1,
        2,
        3,
    ]


def test_late_mlflow_answer_adds_no_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [{"key": "loss", "value": 1.0, "timestamp": 1000 + i, "step": i} for i in range(2)]
    pending: Future[metrics.FetchedPoints] = Future()
    pending.set_result(metrics.FetchedPoints({"loss": points}, [{"key": "lr", "value": "1"}], True))
    monkeypatch.setitem(metrics._requests, str(tmp_path), pending)  # the question of a sync before this one
    mirror = MirrorFiles(tmp_path)
    came = lines(record(1, "loss", 0), record(2, "loss", 1))
    metrics.take_journal(mirror, came, False)
    advance_position(mirror.read_position(metrics.AGENT + metrics.JOURNAL), came, False)
    nobody: Any = None
    metrics.FallbackMetrics(nobody, nobody, "job", mirror, "Preparing", False).figures(True)
    assert [r["b"]["step"] for r in journal(tmp_path)] == [0, 1]


def test_restarted_metric_journal_continues(tmp_path: Path) -> None:
    mirror = MirrorFiles(tmp_path)
    metrics.take_journal(mirror, lines(INIT, record(2, "loss", 0)), False)
    metrics.take_journal(mirror, lines(INIT, record(2, "loss", 0), record(3, "loss", 1)), True)
    assert [(r["seq"], r["op"]) for r in journal(tmp_path)] == [
        (1, "init"),
        (2, "runs/log-metric"),
        (3, "runs/log-metric"),
        (4, "runs/log-metric"),
    ]


def test_system_metrics_become_telemetry() -> None:
    def series(*pairs: tuple[int, float]) -> list[dict[str, Any]]:
        return [{"timestamp": t, "value": v, "step": i} for i, (t, v) in enumerate(pairs)]

    found = metrics.telemetry(
        {
            "system/gpu_0_utilization_percentage": series((10_000, 50.0), (20_000, 60.0)),
            "system/gpu_1_memory_usage_megabytes": series((10_020, 1048.576)),
            "system/cpu_utilization_percentage": series((10_000, 7.0)),
            "system/node_1/cpu_utilization_percentage": series((10_000, 9.0)),
            "system/whatever": series((1, 1.0)),
        }
    )
    header, rows = found[0]
    assert [gpu["index"] for gpu in header["gpus"]] == [0, 1] and len(rows) == 2
    node = NodeTelemetry(0)
    node.feed(lines(header, *[[i, *row] for i, row in enumerate(rows)]))
    t, values = node.since(0)
    assert list(t) == [10.0, 20.0]
    assert values[node.index["gpu0.util"]].tolist() == [50.0, 60.0]
    assert values[node.index["gpu1.memory"]][0] == 1000.0 and values[node.index["host_cpu"]][0] == 7.0
    assert found[1][1][0][1 + metrics._COLUMNS.index("host_cpu")] == 9.0
