from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tools.openssh import Sshd

from .test_ssh_runs import attach

_FLAML = importlib.util.find_spec("flaml")


@pytest.mark.thorough
@pytest.mark.skipif(_FLAML is None, reason="FLAML is not installed")
def test_search_runs_on_another_machine(api: Any, sshd: Sshd, tmp_path: Path) -> None:
    import pandas as pd

    attach(api, sshd)
    frame = pd.DataFrame({"x": range(100), "word": ["a", "b"] * 50, "y": [2.0 * x for x in range(100)]})
    assert _FLAML is not None and _FLAML.origin is not None
    env = {"PYTHONPATH": str(Path(_FLAML.origin).parents[1])}
    run = api.automl(frame, "y", max_trials=4, target="box", gpus=0, env=env).wait(240)
    assert run.result("best")["scores"]["r2"] > 0.5 and len(run.record().sweep.number) == 4
    frame.to_csv(tmp_path / "rows.csv", index=False)
    run = api.automl(tmp_path / "rows.csv", "y", max_trials=2, target="box", gpus=0, env=env).wait(240)
    assert run.result("best")["trials"] == 2
