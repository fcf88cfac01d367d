"""The request ``events``: what pages hear without asking."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.panel import protocol
from jupyter_amltrain.panel.compute_rows import Compute
from jupyter_amltrain.panel.events import Events
from jupyter_amltrain.panel.protocol import EventsReply, Reply

if TYPE_CHECKING:
    from jupyter_amltrain.controller import Controller


class EventsAnswers:
    """Holds the pages of this kernel; they are made with the first request."""

    def __init__(self, controller: Controller, compute: Compute, cell_runs: Callable[[], bool]) -> None:
        self._controller, self._compute, self._cell_runs = controller, compute, cell_runs
        self._events: Events | None = None

    def ops(self) -> dict[type, Callable[[Any], Coroutine[Any, Any, Reply]]]:
        """What is answered here."""
        return {protocol.Events: self._answer}

    async def _answer(self, asked: protocol.Events) -> EventsReply:
        if self._events is None:
            self._events = Events(self._controller, self._compute, self._cell_runs)
        return await self._events.events(asked)

    def notice(self, level: str, text: str, target: str = "") -> None:
        """Tell all pages something that a person should hear of."""
        if self._events is not None:
            self._events.notice(level, text, target)

    def close(self) -> None:
        """Send nothing more to any page."""
        if self._events is not None:
            self._events.close()
            self._events = None
