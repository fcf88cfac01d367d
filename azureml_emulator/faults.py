"""Fault injection: error statuses, broken and slow connections, for a limited number of requests."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Fault:
    """One fault: the requests that it matches and its effect.

    Attributes
    ----------
    match : re.Pattern
        Sought in ``"METHOD host/path"`` (with ``?query`` where there is one).
    times : int
        Requests it still hits.
    status, body, headers
        Answer with these instead of the service; without a status the service answers.
    cut : int or None
        Break the connection after so many bytes of the answer's body (0: before the status line).
    delay : float
        Seconds of the wall before the answer.
    rate : float or None
        Bytes of the answer's body in a second of the wall: a slow line.
    after : int
        Matching requests that go through before the first hit.
    """

    match: re.Pattern[str]
    times: int = 1
    status: int | None = None
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    delay: float = 0.0
    rate: float | None = None
    after: int = 0
    hits: int = 0


class Faults:
    """Armed faults, oldest first; a request uses the first match."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def add(self, match: str, **what: Any) -> Fault:
        """Arm a fault.

        Raises
        ------
        TypeError
            A field that faults do not have.
        """
        fault = Fault(re.compile(match), **what)
        self._waiting.append(fault)
        return fault

    def take(self, line: str) -> Fault | None:
        """Return the fault for this request, and decrement its count."""
        for fault in self._waiting:
            if not fault.match.search(line):
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            fault.times -= 1
            fault.hits += 1
            if fault.times <= 0:
                self._waiting.remove(fault)
            return fault
        return None

    def clear(self) -> None:
        """Disarm all."""
        self._waiting.clear()

    def waiting(self) -> int:
        """Hits still to come."""
        return sum(fault.times for fault in self._waiting)
