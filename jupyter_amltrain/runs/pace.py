"""How often something may be done: at once after a quiet time, seldom in a flood."""

from __future__ import annotations

import time


class Pace:
    """A token bucket: `rate` tokens a second, at most `burst` of them."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._tokens, self._at = float(burst), time.monotonic()

    def due(self) -> float:
        """Seconds until there is a token; takes none."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (1 - self._tokens) / self._rate)

    def wait(self) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        pause = self.due()
        if pause == 0:
            self._tokens -= 1
        return pause
