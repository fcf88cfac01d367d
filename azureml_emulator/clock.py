"""Durations of the emulated service, which may run faster than the wall clock."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import datetime, timedelta, timezone

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?")


def seconds_of(duration: str | None, default: float = 120.0) -> float:
    """ISO 8601 duration -> seconds: ``PT1M40S`` -> 100."""
    found = _DURATION.fullmatch(duration or "")
    if not found or not duration:
        return default
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


class Clock:
    """Sleeps at `speed` times the wall's pace; stamps are always the wall's own time.

    A stamp ahead of the client's clock would be a lie that no service tells, so speed shortens waits only:
    a cluster's idle time of 120 s lasts 1.2 s at speed 100. Tokens and SAS live by the wall's time too.
    """

    def __init__(self) -> None:
        self._speed = 1.0
        self._since = time.monotonic()
        self._before = 0.0
        self._changed = asyncio.Event()

    @property
    def speed(self) -> float:
        """Seconds of the service that go by in one second of the wall."""
        return self._speed

    def set_speed(self, factor: float) -> None:
        """Change the pace; sleepers notice at once.

        Raises
        ------
        ValueError
            The factor is not above 0.
        """
        if factor <= 0:
            raise ValueError(f"speed must be above 0, not {factor}")
        self._before, self._since, self._speed = self.seconds(), time.monotonic(), factor
        self._changed.set()
        self._changed = asyncio.Event()

    def seconds(self) -> float:
        """Seconds of the service since it began; for billing and idle times."""
        return self._before + (time.monotonic() - self._since) * self._speed

    async def sleep(self, seconds: float) -> None:
        """Sleep `seconds` of the service."""
        until = self.seconds() + seconds
        while (left := until - self.seconds()) > 0:
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), left / self._speed)
            except asyncio.TimeoutError:
                pass

    def stamp(self, offset: float = 0.0) -> str:
        """Now plus `offset` seconds as the compute and job services write it: ``+00:00``, up to 7 decimals."""
        at = datetime.now(timezone.utc) + timedelta(seconds=offset)
        decimals = f"{at.microsecond:06d}7".rstrip("0")
        return at.strftime("%Y-%m-%dT%H:%M:%S.") + decimals + "+00:00"

    def stamp_z(self, offset: float = 0.0) -> str:
        """Now plus `offset` seconds as workspaces write it: ``Z``."""
        return self.stamp(offset).replace("+00:00", "Z")
