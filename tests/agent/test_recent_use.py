"""Whether a run has used processors or GPUs lately."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.agent.protocol import TELEMETRY
from jupyter_amltrain.agent.telemetry.recent_use import RecentUse

HEADER = {"columns": ["seq", "t", "cpu", "memory"], "gpu_columns": ["util", "peak"]}


class Samples:
    def __init__(self, folder: Path) -> None:
        self.path = folder / (TELEMETRY % 0)
        self.path.parent.mkdir()
        self.path.write_text(json.dumps(HEADER) + "\n")

    def add(self, *rows: list[Any]) -> None:
        with self.path.open("a") as file:
            file.writelines(json.dumps([0, 1.0, *row]) + "\n" for row in rows)


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return Samples(tmp_path)


@pytest.mark.parametrize(
    ("row", "is_idle"),
    [
        pytest.param([0.5, 100, 0, 0, 0, 0], True, id="none"),
        pytest.param([40, 100, 0, 0, 0, 0], False, id="cpu"),
        pytest.param([0, 100, 0, 0, 70, 80], False, id="second-gpu"),
        pytest.param([None, None], True, id="unknown"),
    ],
)
def test_use_of_processor_or_gpu_is_seen(tmp_path: Path, samples: Samples, row: list[Any], is_idle: bool) -> None:
    samples.add(row, row)
    assert RecentUse(str(tmp_path)).is_idle() is is_idle


def test_only_new_samples_count(tmp_path: Path, samples: Samples) -> None:
    use = RecentUse(str(tmp_path))
    samples.add([90, 1])
    assert not use.is_idle()
    assert not use.is_idle()  # nothing new
    samples.add([0, 1])
    assert use.is_idle()


def test_damaged_or_missing_file_is_not_idle(tmp_path: Path) -> None:
    assert not RecentUse(str(tmp_path)).is_idle()
    (tmp_path / "telemetry").mkdir()
    for text in ("", "[1,2,3]\n", "{}\n[", "\x00\n"):
        (tmp_path / (TELEMETRY % 0)).write_text(text)
        assert not RecentUse(str(tmp_path)).is_idle()
