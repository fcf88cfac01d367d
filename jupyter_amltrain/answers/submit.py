"""Requests of the Submit section: writing a line and checking it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.forms import compose
from jupyter_amltrain.commands.magic_line import unexpanded
from jupyter_amltrain.commands.submit import Defaults
from jupyter_amltrain.errors import UnknownTarget
from jupyter_amltrain.panel import protocol
from jupyter_amltrain.panel.protocol import ComposeReply, Reply

if TYPE_CHECKING:
    from jupyter_amltrain.controller import Controller


class SubmitAnswers:
    """Answers about lines that submit.

    Parameters
    ----------
    defaults
        What holds now where a line says nothing.
    """

    def __init__(self, controller: Controller, defaults: Callable[[], Defaults]) -> None:
        self._controller, self._defaults = controller, defaults

    def ops(self) -> dict[type, Callable[[Any], Coroutine[Any, Any, Reply]]]:
        """What is answered here."""
        return {protocol.Compose: self._compose}

    async def _compose(self, asked: protocol.Compose) -> ComposeReply:
        return await self._controller.loop.offload(self._composed, asked)

    def _composed(self, asked: protocol.Compose) -> ComposeReply:
        """Reads files and parses code: not on the loop."""
        defaults = self._defaults()
        made = compose(asked.old, asked.values, cell=asked.cell, script=asked.script, defaults=defaults)
        target = made.values.get("target") or defaults.target
        if target and "target" not in made.errors and not unexpanded([target]):
            try:
                self._controller.targets.get(target)
            except UnknownTarget as error:
                made.errors["target"] = str(error)
        return ComposeReply(line=made.line, values=made.values, errors=made.errors, notes=made.notes)
