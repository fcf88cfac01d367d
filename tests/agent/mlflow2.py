"""An interpreter with the oldest supported MLflow: ``$AMLTRAIN_TEST_MLFLOW2``, else ``build/venv-mlflow2``.

``python -m tests.agent.mlflow2`` builds the latter once and prints its path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from filelock import FileLock

PLACE = Path(__file__).resolve().parents[2] / "build" / "venv-mlflow2"
#: The small client, and what its SQL store and our importer need beside it.
REQUIREMENTS = (
    "mlflow-skinny==2.20.*",  # the lower end of the range in pyproject.toml
    "sqlalchemy<2.1",
    "alembic",
    "msgspec",
    "filelock",
    "platformdirs",
)


def interpreter() -> str:
    """The interpreter, built if need be.

    Raises
    ------
    RuntimeError
        It cannot be built here (no package index).
    """
    if given := os.environ.get("AMLTRAIN_TEST_MLFLOW2"):
        return given
    PLACE.parent.mkdir(exist_ok=True)
    with FileLock(f"{PLACE}.lock"):  # workers of pytest-xdist ask for it at once
        return _built()


def _built() -> str:
    python = PLACE / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    ready, wanted = PLACE / "ready", " ".join(REQUIREMENTS)
    if ready.exists() and ready.read_text() == wanted:
        return str(python)
    shutil.rmtree(PLACE, ignore_errors=True)
    venv.create(PLACE, with_pip=False)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *REQUIREMENTS],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        shutil.rmtree(PLACE, ignore_errors=True)
        raise RuntimeError(f"Cannot install {REQUIREMENTS[0]}: {done.stderr.strip().splitlines()[-1:]}")
    ready.write_text(wanted)
    return str(python)


if __name__ == "__main__":
    print(interpreter())
