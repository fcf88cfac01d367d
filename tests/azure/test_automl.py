"""``%aml_automl`` on the emulated Azure: a command job with the table, whose log, model and trials arrive."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.azure.conftest import Azure
from tests.azure.notebook_session import cluster_of
from tests.helpers import DEADLINE

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]

FRAME = """
import numpy as np, pandas as pd
rng = np.random.default_rng(0)
x = rng.normal(size=120)
df = pd.DataFrame({"x": x, "word": rng.choice(["a", "b"], 120), "mood": np.where(x > 0, "good", "bad")})
"""
LINE = "%aml_automl --data df --target-column mood --max-trials 2 --learners rf,lgbm --explain"


def test_search_of_a_notebook_is_a_job_of_the_service(azure: Azure, tmp_path: Path) -> None:
    if importlib.util.find_spec("flaml") is None:
        pytest.skip("FLAML is not installed")
    with cluster_of(azure, tmp_path) as desk:
        desk.good(FRAME)
        assert "3 rows" in desk.bad("few = df.head(3)\n%aml_automl --data few --target-column mood")
        plan = desk.good(f"{LINE} --dry-run").text
        assert "classification of mood" in plan and "cpu" in plan and not desk.jobs()
        desk.good(f"{LINE} --as run")
        run: Any = desk.shell.user_ns["run"]
        run.wait(DEADLINE)
        assert len(desk.jobs()) == 1
        best = run.result("best")
        assert best["trials"] == 2 and best["scores"]["accuracy"] > 0.8
        log = run.logs()
        assert "Best of 2 trials" in log and "Importance" in log and "Traceback" not in log
        files = {file.path.rpartition("/")[2]: file.path for file in run.files()}
        assert {"confusion_matrix.png", "importance.png", "MLmodel", "trials.json"} <= set(files)
        trials = json.loads(run.download(files["trials.json"], tmp_path / "here").read_text())
        assert [trial["number"] for trial in trials] == [0, 1] and trials[0]["learner"] in ("rf", "lgbm")
