from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.kernel.sweep_board import board_of
from jupyter_amltrain.schema.child_run import ChildRun, ChildRuns
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunHandle, RunState, RunStatus
from jupyter_amltrain.schema.sweep import Objective, OwnTrials

OWN = OwnTrials(objective=Objective("accuracy", "maximize"), searcher="FLAML", max_trials=3)


def entry_of(*trials: dict[str, Any], own: OwnTrials | None = OWN, state: RunState = RunState.RUNNING) -> Entry:
    spec = JobSpec(name="x", own_trials=own)
    entry = Entry(Run(handle=RunHandle("local/x"), created=0.0, spec=spec, status=RunStatus(state=state)))
    rows = [
        ChildRun(id=f"t{i}", name=f"t{i}", kind="trial", number=i, state="completed", started=1.0, ended=2.0, **trial)
        for i, trial in enumerate(trials)
    ]
    entry.streams.children = ChildRuns(runs=tuple(rows), message="Continues.")
    return entry


def test_trials_of_a_job_are_on_its_board() -> None:
    entry = entry_of(
        {"value": 0.5, "params": {"learner": "rf", "trees": 4}},
        {"value": 0.9, "params": {"learner": "lgbm", "rate": 0.1}, "best": True},
    )
    board = board_of(entry)
    assert board is not None and board.own and board.best == 1 and board.message == "Continues."
    assert list(board.params) == ["learner", "trees", "rate"] and board.params["trees"] == (4, None)
    assert board.counts_text == "2 of 3 trials" and board.goal_text == "maximize accuracy, sampling: FLAML"
    assert [axis.name for axis in board.axes] == ["learner", "trees", "rate", ""]
    msgspec.json.encode(board)


def test_rare_parameters_have_no_axis() -> None:
    trials = [{"value": 0.1, "params": {"learner": "rf", f"own{i}": i}} for i in range(30)]
    board = board_of(entry_of(*trials))
    assert board is not None and "learner" in board.params and len(board.params) == 10


@pytest.mark.parametrize(("first", "last", "kind"), [(0.0001, 1.0, "log"), (0.5, 1.0, "linear")])
def test_axis_of_an_unknown_space_follows_from_its_values(first: float, last: float, kind: str) -> None:
    values = [first, 0.6, 0.7, last]
    board = board_of(entry_of(*({"value": 0.1, "params": {"rate": value}} for value in values)))
    assert board is not None and board.axes[0].kind == kind


def test_job_that_ended_before_its_first_trial_has_no_board() -> None:
    assert board_of(entry_of(own=OWN)) is not None
    assert board_of(entry_of(own=OWN, state=RunState.FAILED)) is None
    assert board_of(entry_of(own=None)) is None
