from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.commands.files import export_path
from jupyter_amltrain.commands.monitor import repeat, snapshot_text
from jupyter_amltrain.errors import CommandError

GPU = {
    "index": 0, "name": "NVIDIA H100", "util": 93.0, "memory": 40_536.0, "memory_total": 81_559,
    "power": 612.4, "temperature": 61,
}  # fmt: skip
UNKNOWN = {"index": 1, "name": "MIG 1g.10gb", "util": None, "memory": 12, "memory_total": None, "power": None}


def test_monitor_table_shows_gpus() -> None:
    host = {"cpu": 40.2, "memory": 3 * 2**30}
    head, first, second, line, note = snapshot_text({"gpus": [GPU, UNKNOWN], "host": host, "note": "Half."}).split("\n")
    assert head.split() == ["name", "util", "memory", "power", "temperature"]
    assert first.startswith("GPU 0 ") and second.startswith("GPU 1 ")
    assert all(text in first for text in ("NVIDIA H100", "93 %", "40,536 MiB of 81,559 MiB", "612 W", "61 °C"))
    assert second.count("n/a") == 3 and " 0 " not in second  # what it cannot tell is never 0
    assert line == "host: cpu 40 % of all cores, memory 3.0 GiB" and note == "Half."


def test_monitor_table_without_gpu_shows_host() -> None:
    text = snapshot_text({"gpus": [], "host": {"cpu": 1.0}, "note": "No NVIDIA driver here."})
    assert text == "host: cpu 1 % of all cores, memory n/a\nNo NVIDIA driver here."
    assert snapshot_text({"gpus": [], "host": {}, "note": ""}) == "No sample yet."


class View:
    def __init__(self, n: int) -> None:
        self.left = n

    def snapshot(self) -> dict[str, Any]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return {"gpus": [GPU], "host": {}, "note": ""}


def test_monitor_table_is_rewritten_until_interrupt() -> None:
    written: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        repeat(View(3), written.append, period=0.01, rewrite=True)
    assert len(written) == 3 and not written[0].startswith("\x1b")
    assert written[1].startswith("\x1b[2A\x1b[J") and written[1].endswith(written[0])


def test_monitor_once_as_json_prints_one_line() -> None:
    written: list[str] = []
    repeat(View(3), written.append, period=60, as_json=True, once=True)
    (line,) = written
    assert json.loads(line)["gpus"][0]["util"] == 93.0 and line.count("\n") == 1


def test_export_with_invalid_file_fails_before_reading(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for path, text in {
        "a.cvs": "example a.csv",
        "a.parqet": "example a.parquet",
        "a": "example a.csv",
        f"{tmp_path}/nowhere/a.csv": "does not exist",
        f"{tmp_path}/folder.csv": "is a folder",
    }.items():
        with pytest.raises(CommandError) as caught:
            export_path(path)
        assert text in str(caught.value) and "\n" not in str(caught.value)
    assert export_path(f"{tmp_path}/a.PNG") == f"{tmp_path}/a.PNG"


def test_monitor_table_shows_processes_limits_and_activity() -> None:
    gpu = {"index": 100, "name": "H100", "util": 97, "sm_activity": 41, "memory": 38912, "memory_total": 81920}
    gpu |= {"power": 612, "power_limit": 700, "temperature": 61}
    process = {"gpu": 100, "pid": 4711, "user": "ada", "command": "python train.py", "memory": 3072, "sm": None}
    text = snapshot_text({"gpus": [gpu], "processes": [process], "host": {}, "note": ""})
    assert "0 MIG 0" in text and "612 W of 700 W" in text and "41 %" in text
    assert "ada" in text and "python train.py" in text and "n/a" in text
    assert "SM activity" not in snapshot_text({"gpus": [{**gpu, "sm_activity": None}], "host": {}})
