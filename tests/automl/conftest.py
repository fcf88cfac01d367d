from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

#: Folder with FLAML, which the jobs of a test need, too.
_FLAML = importlib.util.find_spec("flaml")


@pytest.fixture
def flaml() -> dict[str, str]:
    """Variables with which a job finds FLAML."""
    if _FLAML is None or _FLAML.origin is None:
        pytest.skip("FLAML is not installed")
    return {"PYTHONPATH": str(Path(_FLAML.origin).parents[1])}
