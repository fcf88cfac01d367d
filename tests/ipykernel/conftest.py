from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import SETTINGS, end_all


@contextlib.contextmanager
def environ_of(folder: Path) -> Iterator[dict[str, str]]:
    """Environment of kernels with a state root below `folder`; nothing outlives it."""
    home = folder / "home"
    made = {k: v for k, v in os.environ.items() if not k.startswith(("AMLTRAIN_", "MLFLOW_"))}
    made |= SETTINGS
    made |= {
        "AMLTRAIN_HOME": str(home),
        "AMLTRAIN_QUEUE": str(folder / "queue"),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }
    (folder / "work").mkdir()
    (folder / "elsewhere").mkdir()
    try:
        yield made
    finally:
        end_all(home)


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of kernels with a state root of their own; nothing outlives the test."""
    with environ_of(tmp_path) as made:
        yield made
