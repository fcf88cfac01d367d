"""Automated ML: seconds of a search by ``aml.automl`` against FLAML alone, with the same table and number of trials.

``python -m benchmarks.automl``. From the first trial to the model that is fitted on all rows of the search; both
choose models in turn and compare them by cross-validation, so that they do the same trials.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.timing import interleaved, line, verdict
from tests.conftest import end_all

TRIALS, ROUNDS, GOAL = 60, 3, 1.1
ALONE = """
import sys, time
import numpy as np, pandas
from flaml import AutoML
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

frame = pandas.read_csv(sys.argv[1])
x, y = frame.drop(columns="target").to_numpy(), frame["target"].to_numpy()
train, test, train_y, test_y = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
scaler = StandardScaler().fit(train)  # as our columns are: some models learn faster
train, test = scaler.transform(train), scaler.transform(test)
began = time.monotonic()
model = AutoML()
model.fit(train, train_y, task="classification", metric="accuracy", max_iter=int(sys.argv[2]), time_budget=-1, seed=0,
          verbose=0, n_jobs=int(sys.argv[3]), learner_selector="roundrobin", eval_method="cv", n_splits=5,
          log_file_name=sys.argv[1] + ".log", log_type="all", mlflow_logging=False)
print(time.monotonic() - began, (model.predict(test) == test_y).mean())
"""


def _table(path: Path) -> Path:
    from sklearn.datasets import load_breast_cancer

    load_breast_cancer(as_frame=True).frame.to_csv(path, index=False)
    return path


def _alone(table: Path) -> float:
    """Seconds of the search and the last fit by FLAML alone."""
    from jupyter_amltrain.automl.job.flaml_search import cores

    argv = [sys.executable, "-W", "ignore", "-c", ALONE, str(table), str(TRIALS), str(cores())]
    env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}  # as ours; otherwise a busy machine decides
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    return float(done.stdout.split()[0])


def _ours(table: Path) -> float:
    """Seconds from the first trial to the fitted model, of a run."""
    from jupyter_amltrain import api

    run = api.automl(table, "target", task="classification", max_trials=TRIALS).wait(600)
    best: dict[str, Any] = run.result("best")
    assert best["trials"] == TRIALS
    return float(best["seconds"])


def main() -> None:
    """Print the seconds of both, in turn, and their ratio."""
    home = Path(tempfile.mkdtemp(prefix="amltrain-automl-"))
    os.environ |= {"AMLTRAIN_HOME": str(home / "home"), "AMLTRAIN_QUEUE": str(home / "queue")}
    os.chdir(home)
    try:
        table = _table(home / "table.csv")
        began = time.monotonic()
        found = interleaved({"FLAML alone": lambda: _alone(table), "aml.automl": lambda: _ours(table)}, ROUNDS)
        for name, seconds in found.items():
            print(line(name, seconds, "s"))
        ratio = min(found["aml.automl"]) / min(found["FLAML alone"])
        print(verdict(f"a search of {TRIALS} trials", ratio, GOAL), f"({time.monotonic() - began:.0f} s)")
    finally:
        end_all(home / "home")


if __name__ == "__main__":
    main()
