"""The two clocks. Durations and limits use :func:`mono` only."""

from __future__ import annotations

import os
import time

#: Name of a file with seconds to add to :func:`wall`; for the clock-jump test.
TEST_CLOCK = "AMLTRAIN_TEST_CLOCK"


def wall() -> float:
    """Unix seconds. May jump when somebody sets the clock."""
    path = os.environ.get(TEST_CLOCK)
    if not path:
        return time.time()
    try:
        with open(path) as file:
            return time.time() + float(file.read() or 0)
    except (OSError, ValueError):
        return time.time()


def mono() -> float:
    """Seconds since some moment of this boot, one clock for all processes of the machine."""
    return time.monotonic()
