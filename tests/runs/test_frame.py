"""Every tick as a table, and out of the notebook."""

from __future__ import annotations

import math
from pathlib import Path

import pandas
import pytest

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.runs.frame import check_format, frame_of, write
from tests import telemetry_files as files


@pytest.fixture
def frame(tmp_path: Path) -> pandas.DataFrame:
    for node in (0, 1):
        files.write_node(tmp_path, node, gpus=2, seconds=30, curve=lambda g, s: (None, *files.busy(g, s)[1:]))
    return frame_of({n: (tmp_path / "telemetry" / f"node-{n}.jsonl").read_bytes() for n in (0, 1)})


def test_two_nodes_by_time(frame: pandas.DataFrame) -> None:
    assert len(frame) == 60 and list(frame["node"][:4]) == [0, 1, 0, 1]
    assert frame["time"].is_monotonic_increasing and str(frame["time"].dtype).endswith("UTC]")
    one = frame[frame["node"] == 1]
    assert list(one["gpu1_memory"]) == [files.busy(1, s)[2] * 2**20 for s in range(30)]
    assert one["gpu0_util"].isna().all()  # what a device cannot tell is no number
    assert frame.attrs["units"]["gpu0_memory"] == "bytes" and frame.attrs["units"]["gpu1_power"] == "W"
    assert len(frame.attrs["gpus"][1]) == 2


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_written_and_read_again(frame: pandas.DataFrame, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"run{ending}"
    write(frame, path)
    again = pandas.read_csv(path) if ending == ".csv" else pandas.read_parquet(path)
    assert again["gpu0_power"].tolist() == frame["gpu0_power"].tolist() and len(again.columns) == len(frame.columns)


def test_a_run_without_ticks_is_an_empty_table() -> None:
    assert list(frame_of({0: b""}).columns) == ["node", "seq", "time"]


def test_what_cannot_be_written_is_said_before(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"run\.xls.*\.csv"):
        check_format(tmp_path / "run.xls")
    with pytest.raises(CommandError, match="no folder"):
        check_format(tmp_path / "nowhere" / "run.csv")


def test_series_that_change_are_columns_with_holes() -> None:
    lines = ['{"columns":["seq","t","cpu"]}', "[0,1.0,5]", '{"columns":["seq","t","memory","cpu"]}', "[1,2.0,70,6]", ""]
    frame = frame_of({0: "\n".join(lines).encode()})
    assert list(frame.seq) == [0, 1] and list(frame.cpu) == [5.0, 6.0]
    assert math.isnan(frame.memory[0]) and frame.memory[1] == 70.0
