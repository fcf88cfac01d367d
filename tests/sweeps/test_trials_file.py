"""Size of the file with the trials of a sweep."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.schema.child_run import CHILDREN, MAX_CHILDREN_BYTES, MAX_CURVE_POINTS, ChildRun, ChildRuns
from jupyter_amltrain.sweeps.trials_file import TrialsFile


def trials_of(count: int, params: dict[str, Any], best: int = 7) -> ChildRuns:
    values = tuple(None if i == 3 else math.sin(i) / 3 for i in range(MAX_CURVE_POINTS))
    return ChildRuns(
        runs=tuple(
            ChildRun(
                id=f"search-{i}-abcde", name=f"search-{i}", kind="trial", state="completed", metric="val_accuracy",
                value=i / 7, best=i == best, created=1.7e9 + i / 7, started=1.7e9 + i / 3, ended=1.7e9 + i, number=i,
                params=params, handle=f"local/search-{i}-abcde", steps=tuple(range(0, 40_000, 1000)), values=values,
            )
            for i in range(count)
        )
    )  # fmt: skip


def written(folder: Path) -> ChildRuns:
    data = (folder / CHILDREN).read_bytes()
    assert len(data) <= MAX_CHILDREN_BYTES
    return msgspec.json.decode(data, type=ChildRuns)


def test_few_trials_are_written_whole(tmp_path: Path) -> None:
    trials = trials_of(1000, {"lr": 0.0123456789, "layers": 3})
    TrialsFile(tmp_path).write(trials)
    assert written(tmp_path) == trials


@pytest.mark.thorough
def test_ten_thousand_trials_fit_with_curves(tmp_path: Path) -> None:
    trials = trials_of(10_000, {f"parameter_{i}": 0.0123456789 for i in range(5)})
    TrialsFile(tmp_path).write(trials)
    found = written(tmp_path)
    assert [(trial.number, trial.value, trial.params) for trial in found.runs] == [
        (trial.number, trial.value, trial.params) for trial in trials.runs
    ]
    assert all(1 < len(trial.steps) == len(trial.values) < MAX_CURVE_POINTS for trial in found.runs)
    assert {(trial.steps[0], trial.steps[-1]) for trial in found.runs} == {(0, 39_000)} and not found.hidden


@pytest.mark.thorough
@pytest.mark.parametrize("count", [10_000, 300])
def test_trials_that_do_not_fit_are_hidden_and_best_one_stays(tmp_path: Path, count: int) -> None:
    trials = trials_of(count, {"text": "x" * (3 * MAX_CHILDREN_BYTES // count)})
    TrialsFile(tmp_path).write(trials)
    found = written(tmp_path)
    assert found.hidden and found.hidden + len(found.runs) == count
    assert [trial.number for trial in found.runs if trial.best] == [7] and found.runs[-1].number == count - 1


def test_unchanged_trials_are_not_written_again(tmp_path: Path) -> None:
    file = TrialsFile(tmp_path)
    file.write(trials_of(3, {}))
    before = (tmp_path / CHILDREN).stat().st_ino
    file.write(trials_of(3, {}))
    assert (tmp_path / CHILDREN).stat().st_ino == before
    file.write(trials_of(4, {}))
    assert len(written(tmp_path).runs) == 4
