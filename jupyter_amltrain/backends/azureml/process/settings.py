"""Time constants and limits of the process, which its environment may change."""

from __future__ import annotations

import os


def setting(name: str, default: float) -> float:
    """A time constant, seconds: environment ``AMLTRAIN_AZURE_<NAME>``."""
    return float(os.environ.get(f"AMLTRAIN_AZURE_{name}") or default)
