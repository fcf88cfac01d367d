"""What the system says of a thread: how long it ran, and how often it had to stop.

This file must load no module that a script might then find loaded (so not ``__future__``).
"""

import os

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Tuple


def content(path: str, size: int = 256) -> bytes:
    """Return a small file; empty if there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, size)
    except OSError:
        return b""
    finally:
        os.close(handle)


def run_time(native: int) -> "Tuple[float, float]":
    """Return the seconds for which a thread has run, and for which it was ready to run."""
    data = content("/proc/self/task/%d/schedstat" % native).split()
    return (float(data[0]) / 1e9, (float(data[0]) + float(data[1])) / 1e9) if len(data) > 1 else (0.0, 0.0)


def switches(native: int) -> "Tuple[float, float]":
    """Return how often a thread has begun to wait, and how often it lost its processor."""
    words = content("/proc/self/task/%d/status" % native, 4096).split()
    if len(words) < 4 or not words[-3].isdigit() or not words[-1].isdigit():
        return 0.0, 0.0
    return float(words[-3]), float(words[-1])
