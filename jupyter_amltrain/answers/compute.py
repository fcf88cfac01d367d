"""Requests about targets, and their rows for those who listen."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_amltrain.backends.registry import kind_of
from jupyter_amltrain.panel import protocol
from jupyter_amltrain.panel.protocol import KindsReply, Reply
from jupyter_amltrain.spec.rows import TargetRow

if TYPE_CHECKING:
    from jupyter_amltrain.controller import Controller


class ComputeAnswers:
    """Answers about targets; see :class:`~jupyter_amltrain.panel.events.Compute` for the rest."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def ops(self) -> dict[type, Callable[[Any], Coroutine[Any, Any, Reply]]]:
        """What is answered here."""
        return {protocol.Kinds: self._kinds}

    async def _kinds(self, asked: protocol.Kinds) -> KindsReply:
        return KindsReply(kinds=(), submit=())

    async def rows(self) -> tuple[str, tuple[TargetRow, ...]]:
        """Name of the target in use, and all of them."""
        return await self._controller.loop.offload(self._read)

    def _read(self) -> tuple[str, tuple[TargetRow, ...]]:
        targets = self._controller.targets
        current, rows = targets.current, []
        for target in targets.all():
            fields = {k: v for k, v in msgspec.to_builtins(target).items() if k not in ("name", "kind")}
            row = TargetRow(name=target.name, kind=kind_of(target), current=target.name == current, fields=fields)
            rows.append(row)
        return current, tuple(rows)

    def listen(self, told: Callable[[str, str, str], None]) -> Callable[[], None]:
        """Rows change with their file only."""
        return lambda: None
