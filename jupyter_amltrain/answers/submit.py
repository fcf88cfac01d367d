"""Requests of the Submit section: writing a line and checking it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.panel.protocol import Reply

if TYPE_CHECKING:
    from jupyter_amltrain.controller import Controller


class SubmitAnswers:
    """Answers about lines that submit."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def ops(self) -> dict[type, Callable[[Any], Coroutine[Any, Any, Reply]]]:
        """What is answered here."""
        return {}
