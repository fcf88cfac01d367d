"""Waits for what another process does to files, where nothing tells of it."""

from __future__ import annotations

import time
from typing import Callable, TypeVar

_Value = TypeVar("_Value")


def wait_for(look: Callable[[], _Value], seconds: float, interval_s: float = 0.02) -> _Value:
    """Return the first true result of a function, or its last one when the time is over."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found or time.monotonic() >= end:
            return found
        time.sleep(interval_s)
