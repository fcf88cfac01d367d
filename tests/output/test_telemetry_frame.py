"""Every tick as a table, and out of the notebook."""

from __future__ import annotations

import math
from pathlib import Path

import pandas
import pytest

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.output.telemetry_frame import check_format, frame_of, write
from tests import telemetry_files as files


@pytest.fixture
def frame(tmp_path: Path) -> pandas.DataFrame:
    for node in (0, 1):
        files.write_node(tmp_path, node, gpus=2, seconds=30, curve=lambda g, s: (None, *files.busy(g, s)[1:]))
    return frame_of({n: (tmp_path / "telemetry" / f"node-{n}.jsonl").read_bytes() for n in (0, 1)})


def test_frame_of_two_nodes_is_sorted_by_time(frame: pandas.DataFrame) -> None:
    assert len(frame) == 60 and list(frame["node"][:4]) == [0, 1, 0, 1]
    assert frame["time"].is_monotonic_increasing and str(frame["time"].dtype).endswith("UTC]")
    one = frame[frame["node"] == 1]
    assert list(one["gpu1_memory"]) == [files.busy(1, s)[2] * 2**20 for s in range(30)]
    assert one["gpu0_util"].isna().all()  # what a device cannot tell is no number
    assert frame.attrs["units"]["gpu0_memory"] == "bytes" and frame.attrs["units"]["gpu1_power"] == "W"
    assert len(frame.attrs["gpus"][1]) == 2


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_frame_file_round_trip_is_equal(frame: pandas.DataFrame, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"run{ending}"
    write(frame, path)
    again = pandas.read_csv(path) if ending == ".csv" else pandas.read_parquet(path)
    assert again["gpu0_power"].tolist() == frame["gpu0_power"].tolist() and len(again.columns) == len(frame.columns)


def test_frame_without_samples_is_empty() -> None:
    assert list(frame_of({0: b""}).columns) == ["node", "seq", "time"]


def test_export_format_invalid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"run\.xls.*\.csv"):
        check_format(tmp_path / "run.xls")
    with pytest.raises(CommandError, match="does not exist"):
        check_format(tmp_path / "nowhere" / "run.csv")


def test_frame_with_changed_header_has_missing_values() -> None:
    lines = ['{"columns":["seq","t","cpu"]}', "[0,1.0,5]", '{"columns":["seq","t","memory","cpu"]}', "[1,2.0,70,6]", ""]
    frame = frame_of({0: "\n".join(lines).encode()})
    assert list(frame.seq) == [0, 1] and list(frame.cpu) == [5.0, 6.0]
    assert math.isnan(frame.memory[0]) and frame.memory[1] == 70.0


CHANGES = [
    '{"columns":["seq","t","cpu"],"gpu_columns":["util","sm_active"],"gpu_units":["percent","percent"],'
    '"gpus":[{"index":0},{"index":1}]}',
    '{"seq":0,"gpu":[[0,{"mem_clock":2619,"throttle":4,"ecc":0,"mine":3}],[1,{"mem_clock":null,"xid":79}]]}',
    "[0,1700000040.680000067,5,1,2,3,4]",
    "[1,1700000041.68,5,1,2,3,4]",
    '{"seq":2,"gpu":[[0,{"throttle":0,"mine":5,"words":"a"}],[7,{"ecc":1}]]}',
    '{"seq":2,"processes":[[0,42,"mine",5,"python"],[0,43,"other",null,""]]}',
    '{"seq":2,"note":"GPU 1 fell off the bus","t":1700000042.68}',
    '{"seq":2,"note":"GPU 1 is back","t":1700000042.68}',
    '{"seq":2,"gpu":7}',
    "[2,1700000042.68,5,1,2,3,4]",
    "",
]


def test_frame_holds_values_recorded_on_change() -> None:
    frame = frame_of({0: "\n".join(CHANGES).encode()})
    assert list(frame.gpu0_sm_active) == [2.0] * 3 and list(frame.gpu1_util) == [3.0] * 3
    assert list(frame.gpu0_throttle) == [4.0, 4.0, 0.0] and list(frame.gpu0_mem_clock) == [2619.0] * 3
    assert list(frame.gpu0_mine) == [3 * 2.0**20, 3 * 2.0**20, 5 * 2.0**20]
    assert frame.gpu1_mem_clock.isna().all() and list(frame.gpu1_xid) == [79.0] * 3
    assert list(frame.gpu0_processes)[2] == 2 and math.isnan(frame.gpu0_processes[0])
    assert pandas.isna(frame.processes[0]) and "42 python mine 5 MiB" in frame.processes[2]
    assert pandas.isna(frame.note[1]) and "fell off" in frame.note[2] and "is back" in frame.note[2]
    units = frame.attrs["units"]
    assert (units["gpu0_mem_clock"], units["gpu0_mine"], units["gpu0_sm_active"]) == ("MHz", "bytes", "percent")


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_frame_file_has_all_columns_and_millisecond_times(ending: str, tmp_path: Path) -> None:
    frame = frame_of({0: "\n".join(CHANGES).encode()})
    path = tmp_path / f"run{ending}"
    write(frame, path)
    again = pandas.read_csv(path) if ending == ".csv" else pandas.read_parquet(path)
    assert list(again.columns) == list(frame.columns)
    assert again.gpu0_throttle.tolist() == [4.0, 4.0, 0.0] and "fell off" in again.note[2]
    if ending == ".csv":
        assert again.time[0] == "2023-11-14T22:14:00.680+00:00"
    assert list(pandas.to_datetime(again.time)) == list(frame.time)
    assert {moment.microsecond % 1000 for moment in frame.time} == {0} == {moment.nanosecond for moment in frame.time}
