"""What the kernel keeps of a run's ticks: exact in the ring, small for the rest."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from jupyter_amltrain.kernel.telemetry import RING_TICKS, NodeTelemetry, RunTelemetry
from tests import telemetry_files as files

OLD = b'{"schema":1,"columns":["seq","t","cpu"],"units":["","s","%"],"cpus":2}\n'


def raw(folder: Path, node: int = 0) -> bytes:
    return (folder / "telemetry" / f"node-{node}.jsonl").read_bytes()


def test_telemetry_null_is_gap_and_partial_line_waits() -> None:
    node = NodeTelemetry(0)
    assert not node.feed(OLD)
    assert node.feed(b"[1,10.0,null]\n[2,11.0,50") == 1
    assert node.feed(b".5]\n") == 1
    t, rows = node.since(0)
    assert list(t) == [10.0, 11.0] and math.isnan(rows[0, 0]) and rows[0, 1] == 50.5
    assert node.seq == 2 and not node.gpus


def test_telemetry_of_64_gpus_keeps_every_value(tmp_path: Path) -> None:
    files.write_node(tmp_path, gpus=64, seconds=90)
    node = NodeTelemetry(0)
    data = raw(tmp_path)
    for at in range(0, len(data), 7001):
        node.feed(data[at : at + 7001])
    t, rows = node.since(0)
    assert len(t) == 90 and rows.shape == (len(files.HOST) + 64 * len(files.GPU), 90)
    for gpu in (0, 31, 63):
        for second in (0, 17, 89):
            got = [rows[node.index[f"gpu{gpu}.{name}"], second] for name in files.GPU]
            assert got == [np.float32(value) for value in files.busy(gpu, second)]
    assert node.slow[63]["mem_clock"] == 2619


def test_telemetry_ring_drops_old_and_history_keeps(tmp_path: Path) -> None:
    files.write_node(tmp_path, gpus=1, seconds=2 * RING_TICKS, curve=lambda g, s: (99 if s == 5 else 1, 1, 2, 3, 4, 5))
    node = NodeTelemetry(0)
    node.feed(raw(tmp_path))
    t, rows = node.since(0)
    assert len(t) == RING_TICKS and t[-1] == files.START + 2 * RING_TICKS - 1
    assert rows[node.index["gpu0.util"]].max() == 1
    assert np.nanmax(node.history.values[2, node.index["gpu0.util"]]) == 99


def test_telemetry_minutes_replace_samples_before_last_hour(tmp_path: Path) -> None:
    files.write_node(tmp_path, gpus=2, seconds=3 * 3600)
    data = raw(tmp_path)
    whole, quick = NodeTelemetry(0), NodeTelemetry(0)
    whole.feed(data)
    quick.feed(data[: data.find(b"\n") + 1])
    offset = quick.feed_minutes((tmp_path / "telemetry" / "minutes-0.jsonl").read_bytes())
    assert offset > len(data) / 2
    quick.feed(data[offset:])
    assert quick.seq == whole.seq and quick.last_t == whole.last_t
    same = quick.since(quick.ticks - 3500)[1], whole.since(whole.ticks - 3500)[1]
    assert np.array_equal(*same, equal_nan=True)
    column = whole.index["gpu1.power"]
    for k, extreme in ((0, np.nanmin), (2, np.nanmax)):  # least and most of all time
        assert extreme(quick.history.values[k, column]) == extreme(whole.history.values[k, column])
    assert quick.history.t[0] == whole.history.t[0]


def test_telemetry_minutes_with_other_columns_are_ignored() -> None:
    node = NodeTelemetry(0)
    node.feed(OLD)
    assert node.feed_minutes(b'{"schema":1,"columns":["other"]}\n[5,1,2,3,99,[1],[1],[1]]\n' * 90) == 0
    assert node.history.count == 0


def test_telemetry_slow_values_are_held() -> None:
    node = NodeTelemetry(0)
    header = {"columns": ["seq", "t", "cpu"], "gpu_columns": ["util"], "gpus": [{"index": 3}]}
    node.feed(json.dumps(header).encode() + b"\n")
    node.feed(
        b'{"seq":0,"gpu":[[0,{"throttle":4,"ecc":null}]]}\n{"seq":0,"processes":[[3,42,"mine",10,"python"]]}\n[0,1.0,1,2]\n'
    )
    node.feed(b'{"seq":1,"gpu":[[0,{"ecc":2}]]}\n{"seq":1,"note":"GPU 3 is lost"}\n[1,2.0,1,null]\n')
    assert node.columns == ["cpu", "gpu3.util"]
    assert node.slow[0]["throttle"] == 4 and node.slow[0]["ecc"] == 2
    assert node.processes == [[3, 42, "mine", 10, "python"]] and node.note == "GPU 3 is lost"


def test_telemetry_after_sampler_restart_continues() -> None:
    node = NodeTelemetry(0)
    node.feed(OLD + b"[0,1.0,1]\n[1,2.0,2]\n")
    node.feed(OLD + b"[1,2.0,2]\n[2,3.0,3]\n")  # read again from somewhere before
    assert node.since(0)[1].tolist() == [[1, 2, 3]]


def test_telemetry_listener_is_called_for_samples_only() -> None:
    telemetry, heard = RunTelemetry(), []
    stop = telemetry.listen(lambda node, first: heard.append((node.node, first, node.ticks)))
    assert not telemetry.feed(1, OLD)
    assert telemetry.feed(1, b"[0,1.0,1]\n[1,2.0,2]\n")
    assert telemetry.feed(1, b"[2,3.0,2]\n")
    stop()
    telemetry.feed(1, b"[3,4.0,2]\n")
    assert heard == [(1, 0, 2), (1, 2, 3)]
    assert [node.node for node in telemetry.nodes()] == [1] and telemetry.last_t == 4.0


def test_telemetry_notes_keep_time() -> None:
    node = NodeTelemetry(0)
    node.feed(OLD + b"[0,100.0,1]\n" + b'{"seq":1,"note":"GPU 1 fell off the bus","t":112.0}\n[1,112.0,1]\n')
    node.feed(b'{"seq":2,"note":"GPU 1 is back","t":223.0}\n[2,223.0,1]\n')
    assert node.note == "after 12 s: GPU 1 fell off the bus; after 2 min 3 s: GPU 1 is back"
    node.restart()
    node.feed(OLD + b'{"seq":1,"note":"GPU 1 fell off the bus","t":112.0}\n')
    node.add_note(50.0, "before")
    assert [text for _, text in node.notes] == ["before", "GPU 1 fell off the bus", "GPU 1 is back"]


def test_telemetry_notes_of_hostile_file_are_bounded() -> None:
    node = NodeTelemetry(0)
    node.feed(OLD + b"".join(b'{"seq":1,"note":"%d%s","t":%d}\n' % (k, b"x" * 9000, k) for k in range(1000)))
    assert len(node.notes) == 200 and len(node.note) < 10_000
