from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_amltrain.automl.job.metrics import value_of_loss
from jupyter_amltrain.automl.job.trials import Board, ModelTrial, TrialJournal
from jupyter_amltrain.schema.child_run import CHILDREN, ChildRuns


def line(loss: float, learner: str = "rf", **config: Any) -> str:
    found = {
        "learner": learner, "config": {"FLAML_sample_size": 9, **config}, "validation_loss": loss, "trial_time": 0.5,
        "wall_clock_time": 1.0, "sample_size": 9,
    }  # fmt: skip
    return json.dumps(found) + "\n"


def journal_of(folder: Path, **options: Any) -> TrialJournal:
    return TrialJournal(str(folder), "accuracy", options, time.time())


def append(journal: TrialJournal, text: str) -> None:
    with open(journal.path, "a", encoding="utf-8") as file:
        file.write(text)


def test_board_has_each_trial_and_the_best(tmp_path: Path) -> None:
    journal, reported = journal_of(tmp_path / "checkpoints"), list[ModelTrial]()
    board = Board(journal, "accuracy", str(tmp_path), reported.append)
    append(journal, line(0.5, trees=4) + line(0.25, "lgbm", leaves=8) + line(float("inf")))
    board.close("The end.")
    found = msgspec.json.decode((tmp_path / CHILDREN).read_bytes(), type=ChildRuns)
    assert [trial.value for trial in found.runs] == [0.5, 0.75, None] and found.message == "The end."
    assert [trial.best for trial in found.runs] == [False, True, False]
    assert found.runs[1].params == {"learner": "lgbm", "leaves": 8} and found.runs[2].state == "failed"
    assert [trial.number for trial in reported] == [1]


def test_next_attempt_continues_with_trials_and_time(tmp_path: Path) -> None:
    first = TrialJournal(str(tmp_path), "accuracy", {}, time.time() - 30)
    append(first, line(0.5, trees=4) + line(0.3, trees=6) + line(0.2, "lgbm", leaves=8) + '{"learner": "rf", "conf')
    first.update()
    again = journal_of(tmp_path)
    assert again.continued == 3 and again.path != first.path and again.earlier_s == pytest.approx(30, abs=5)
    assert again.starting_points() == {"rf": {"trees": 6}, "lgbm": {"leaves": 8}}
    append(again, line(0.1))
    assert again.update() and [trial.number for trial in again.trials] == [0, 1, 2, 3]
    assert again.best is again.trials[3]


def test_trials_of_another_search_are_removed(tmp_path: Path) -> None:
    append(first := journal_of(tmp_path, rows=10), line(0.5))
    first.update()
    assert journal_of(tmp_path, rows=10).continued == 1
    assert journal_of(tmp_path, rows=11).continued == 0


def test_trials_beyond_the_number_are_left_out(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, max_trials=1)
    append(journal, line(0.5) + line(0.1))
    journal.update()
    assert [trial.loss for trial in journal.trials] == [0.5]


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    journal, text = journal_of(tmp_path), line(0.5)
    append(journal, text[:20])
    assert not journal.update()
    append(journal, text[20:])
    assert journal.update() and len(journal.trials) == 1


@pytest.mark.parametrize(("metric", "value"), [("accuracy", 0.75), ("rmse", 0.25)])
def test_value_follows_from_the_loss(metric: str, value: float) -> None:
    assert value_of_loss(metric, 0.25) == value
