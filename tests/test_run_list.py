"""``aml.runs()``: a list of runs that knows frames and tables."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_amltrain.commands import runs as commands
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.run_list import RunList

SCRIPT = """
import mlflow
for step in range(3):
    mlflow.log_metric("loss", lr / (step + 1), step=step)
"""


@pytest.fixture
def two(api: Any) -> Any:
    for lr in (0.1, 0.3):
        api.submit(SCRIPT, params={"lr": lr, "epochs": 3}, name="sweep", tags={"team": "a"}).wait(120)
    return api


def test_runs_are_a_list_with_frame_and_table(two: Any) -> None:
    runs = two.runs()
    assert isinstance(runs, list) and len(runs) == 2 and isinstance(runs[:1], RunList) and len(runs[:1]) == 1
    frame = runs.to_frame()
    assert list(frame["handle"]) == [run.handle for run in runs]
    assert list(frame["params.lr"]) == [0.3, 0.1] and list(frame["tags.team"]) == ["a", "a"]
    assert list(frame["metrics.loss"]) == pytest.approx([0.1, 0.1 / 3])
    assert set(frame["state"]) == {"completed"} and str(frame["created"].dtype).endswith("UTC]")
    assert runs[0].handle in runs._repr_html_() and "loss" in runs._repr_html_()
    assert RunList().to_frame().empty and "No runs" in RunList()._repr_html_()


@pytest.mark.thorough
def test_run_has_params_tags_and_frame_of_metrics(two: Any) -> None:
    run = two.runs()[0]
    assert run.params == {"lr": 0.3, "epochs": 3} and run.tags == {"team": "a"}
    frame = run.metrics().to_frame()
    assert list(frame.columns) == ["metric", "step", "time", "value"]
    assert list(frame["step"]) == [0, 1, 2] and list(frame["value"]) == pytest.approx([0.3, 0.15, 0.1])
    assert run.metrics()["loss"][0][0] == 0


@pytest.mark.thorough
def test_sorted_runs_of_unknown_name_propose_another(two: Any) -> None:
    listed = commands.read_runs()
    by_lr = [run.spec.params["lr"] for run in commands.sorted_runs(listed, "lr:asc")]
    by_loss = [run.spec.params["lr"] for run in commands.sorted_runs(listed, "loss")]
    assert (by_lr, by_loss) == ([0.1, 0.3], [0.3, 0.1])
    with pytest.raises(CommandError, match="loss") as error:
        commands.sorted_runs(listed, "los")
    assert error.value.code == "runs.sort"


@pytest.mark.thorough
def test_listing_has_metrics_and_counts_hidden_runs(two: Any) -> None:
    assert commands.listing()[0]["metrics"] == {"loss": pytest.approx(0.1)}
    assert commands.read_runs(limit=1).total == 2
