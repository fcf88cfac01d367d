"""Functions that a device does not have, and when each may be asked again."""

from __future__ import annotations

from typing import Dict, Hashable

from . import clock
from .gpu_devices import NEVER

#: Seconds until a refused function is asked again: MIG modes and permissions change.
REFUSED_RETRY_S = 60.0


class Refusals:
    """Remembers which functions a device refused."""

    def __init__(self) -> None:
        self._until: Dict[Hashable, float] = {}

    def __contains__(self, key: Hashable) -> bool:
        """Whether the function of this key is not to be called now."""
        until = self._until.get(key)
        return until is not None and clock.mono() < until

    def note(self, key: Hashable, code: int) -> None:
        """Take what a call returned."""
        if code in NEVER:
            self._until[key] = clock.mono() + REFUSED_RETRY_S
        else:
            self._until.pop(key, None)
