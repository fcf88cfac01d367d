"""Programs that do not call MLflow, as jobs: their metrics are in the record, once, with their source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers import DEADLINE, api_of, until
from tests.tiers import thorough

TENSORBOARD = """
import os, time
from torch.utils.tensorboard import SummaryWriter
from pathlib import Path
train, val = SummaryWriter("logs/train", flush_secs=1), SummaryWriter("logs/validation", flush_secs=1)
train.add_text("text", "no number")
for step in range(6):
    train.add_scalar("loss", 1 / (step + 1), step)
    val.add_scalar("loss", 2 / (step + 1), step)
    time.sleep(0.4)
    if step == 3:
        train.flush()
        while not Path("go").exists():
            time.sleep(0.05)
train.close(), val.close()
"""
XGBOOST = """
import numpy, xgboost
x = numpy.random.default_rng(0).random((100, 3))
data = xgboost.DMatrix(x, x[:, 0])
xgboost.train({"eval_metric": "rmse"}, data, 12, evals=[(data, "train")])
"""
LIGHTGBM = """
import lightgbm, numpy
x = numpy.random.default_rng(0).random((100, 3))
data = lightgbm.Dataset(x, x[:, 0])
calls = [lightgbm.log_evaluation(1)]
lightgbm.train({"metric": "l2", "verbose": -1}, data, 5, valid_sets=[data], valid_names=["valid"], callbacks=calls)
"""
OPTUNA = """
import optuna
optuna.create_study().optimize(lambda trial: trial.suggest_float("x", 0, 1) ** 2, n_trials=4)
"""
KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy
x = numpy.random.default_rng(0).random((64, 3))
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], epochs=3, validation_split=0.25, verbose=VERBOSE)
"""
SKLEARN = """
import numpy
from sklearn.linear_model import LogisticRegression
x = numpy.random.default_rng(0).random((40, 3))
LogisticRegression(C=0.5).fit(x, x[:, 0] > 0.5)
"""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with api_of(tmp_path_factory.mktemp("trackers")) as module:
        yield module


def steps(run: Any, name: str) -> list[int]:
    """Steps of a metric in the run's record."""
    series = run.record().metrics.get(name)
    return list(series.step) if series is not None else []


@pytest.mark.thorough
def test_event_files_of_tensorboard_are_followed_and_whole(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = api.submit(TENSORBOARD)
    until(lambda: 3 in steps(run, "train/loss"), DEADLINE)  # while it runs
    assert not run.run.status.state.terminal
    (tmp_path / "go").touch()
    run.wait(DEADLINE)
    record = run.record()
    assert set(record.metrics) == {"train/loss", "validation/loss"}
    assert steps(run, "train/loss") == steps(run, "validation/loss") == list(range(6))
    assert {series.source for series in record.metrics.values()} == {"TensorBoard"}


@pytest.mark.thorough
def test_files_that_the_jobs_python_cannot_read_are_a_note_while_it_runs(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "packages" / "tensorboard").mkdir(parents=True)
    (tmp_path / "packages" / "tensorboard" / "__init__.py").write_text("raise ModuleNotFoundError(name='tensorboard')")
    (tmp_path / "packages" / "tensorboardX.py").touch()
    code = """
import time, tensorboardX
from pathlib import Path
Path("events.out.tfevents.1").write_text("")
Path("events.out.tfevents.2").write_text("")
while not Path("go").exists():
    time.sleep(0.05)
"""
    run = api.submit(code, env={"PYTHONPATH": str(tmp_path / "packages")})
    until(lambda: run.record().notes)
    assert not run.run.status.state.terminal
    (tmp_path / "go").touch()
    (note,) = run.wait(DEADLINE).record().notes
    assert note.endswith("the job's Python has no package tensorboard. Install it there: pip install tensorboard")


@pytest.mark.thorough
def test_killed_sink_reads_the_files_again_without_repeating(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = api.submit(TENSORBOARD)
    until(lambda: 3 in steps(run, "train/loss"), DEADLINE)
    supervisor = json.loads((Path(run.run.folder) / "state.json").read_text())["supervisor"]["pid"]
    sink = next(child for child in psutil.Process(supervisor).children() if child.children())  # the job has none
    sink.kill()
    (tmp_path / "go").touch()
    run.wait(DEADLINE)
    assert steps(run, "train/loss") == steps(run, "validation/loss") == list(range(6))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "names", "count"),
    [
        pytest.param(XGBOOST, {"train-rmse"}, 12, id="xgboost"),
        pytest.param(LIGHTGBM, {"valid-l2"}, 5, id="lightgbm"),
        pytest.param(OPTUNA, {"value"}, 4, id="optuna"),
        pytest.param(KERAS.replace("VERBOSE", "1"), {"loss", "val_loss"}, 3, id="keras", marks=pytest.mark.thorough),
        pytest.param(
            KERAS.replace("VERBOSE", "2"), {"loss", "val_loss"}, 3, id="keras in lines", marks=pytest.mark.thorough
        ),
    ],
)
def test_printed_metrics_of_library_are_recorded(api: Any, code: str, names: set[str], count: int) -> None:
    run = api.submit(code).wait(DEADLINE)
    assert set(run.record().metrics) == names
    for name in names:
        first = min(steps(run, name))  # LightGBM counts from 1
        assert steps(run, name) == list(range(first, first + count))


@pytest.mark.thorough
@pytest.mark.parametrize("code", [SKLEARN, *thorough(XGBOOST)], ids=["sklearn", "xgboost"])
def test_autolog_logs_what_mlflow_knows_of_the_library(api: Any, code: str) -> None:
    run = api.submit(code, autolog=True).wait(DEADLINE)
    record = run.record()
    assert record.metrics
    assert {series.source for series in record.metrics.values()} == {""}
    name = "C" if code == SKLEARN else "num_boost_round"
    assert record.params or run.mlflow.data.params[name]


@pytest.mark.thorough
def test_lines_of_the_users_pattern_are_in_the_record_of_a_short_run(api: Any) -> None:
    code = "for i in range(5): print(f'loss {1 / (i + 1):.3f} after {i} batches')"
    run = api.submit(code, metrics=["loss=loss {value} after {step} batches"]).wait(DEADLINE)
    assert steps(run, "loss") == list(range(5))
    assert run.record().metrics["loss"].source == "printed lines"


@pytest.mark.thorough
def test_run_without_metrics_says_how_to_record_them(api: Any) -> None:
    code = "import time\nfor i in range(9): print(f'loss {1 / (i + 1):.3f} after {i} batches'); time.sleep(0.1)"
    run = api.submit(code).wait(DEADLINE)
    note = next(note for note in run.record().notes if "--metric" in note)
    pattern = note.rpartition("--metric ")[2].strip("'")
    again = api.submit(code, metrics=[pattern]).wait(DEADLINE)
    assert steps(again, "loss") == list(range(9))
    assert not any("--metric" in note for note in again.record().notes)
