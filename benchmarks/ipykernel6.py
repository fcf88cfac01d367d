"""ipykernel 6 beside the one that is installed: a folder for ``PYTHONPATH``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VERSION = "6.29.5"


def folder() -> Path:
    """Where it lies; installed at first use."""
    place = Path(__file__).parents[1] / "build" / f"ipykernel-{VERSION}"
    if not (place / "ipykernel").exists():
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(place), f"ipykernel=={VERSION}"], check=True)
    return place
