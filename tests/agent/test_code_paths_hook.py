"""Code of a model that is the notebook's folder: without the runs in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_amltrain.agent.supervise import job_hooks

CODE = """
import os
from mlflow.utils import model_utils
paths = model_utils._validate_and_copy_code_paths([os.getcwd(), "train.py", "lib"], {to!r})
"""


@pytest.mark.thorough
def test_code_of_model_has_no_runs_of_the_project(tmp_path: Path) -> None:
    folder, to = tmp_path / "project", tmp_path / "model"
    for name in ("train.py", "lib/part.py", "lib/__pycache__/part.pyc", ".amltrain/mlartifacts/1/model.pkl"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    to.mkdir()
    env = dict(os.environ)
    job_hooks.add(env, str(tmp_path), str(tmp_path / "home"), gpus=False)
    subprocess.run([sys.executable, "-c", CODE.format(to=str(to))], env=env, cwd=folder, check=True, timeout=120)
    copied = {str(path.relative_to(to / "code")) for path in to.rglob("*") if path.is_file()}
    assert copied == {"project/train.py", "project/lib/part.py", "train.py", "lib/part.py"}
