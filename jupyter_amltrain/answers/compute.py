"""Requests about targets, and their rows for those who listen."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jupyter_amltrain.answers.connect import disconnect
from jupyter_amltrain.backends.registry import forms
from jupyter_amltrain.commands.compute import line_of
from jupyter_amltrain.commands.connect import connect_fields
from jupyter_amltrain.commands.forms import submit_fields
from jupyter_amltrain.commands.submit import Defaults
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.panel import protocol
from jupyter_amltrain.panel.page import Known
from jupyter_amltrain.panel.protocol import ActReply, KindsReply, Reply
from jupyter_amltrain.spec.fields import TargetKind
from jupyter_amltrain.target_list import News
from jupyter_amltrain.workspaces import rows_of

if TYPE_CHECKING:
    from jupyter_amltrain.controller import Controller


class ComputeAnswers:
    """Answers about targets; see :class:`~jupyter_amltrain.panel.compute_rows.Compute` for the rest.

    Parameters
    ----------
    defaults
        What holds now where a line that submits says nothing.
    """

    def __init__(self, controller: Controller, defaults: Callable[[], Defaults] = Defaults) -> None:
        self._controller, self._defaults = controller, defaults

    def ops(self) -> dict[type, Callable[[Any], Coroutine[Any, Any, Reply]]]:
        """What is answered here."""
        return {protocol.Kinds: self._kinds, protocol.DoAct: self._act}

    async def _kinds(self, asked: protocol.Kinds) -> KindsReply:
        names, _ = await self._controller.connections.all()
        kinds = kinds_for_a_person(forms(), [facts.name for facts in names])
        return KindsReply(kinds=kinds, submit=submit_fields(self._defaults()), connect=connect_fields())

    async def _act(self, asked: protocol.DoAct) -> ActReply:
        if asked.verb == "disconnect":
            return await disconnect(self._controller, asked)
        line = line_of(asked.verb, asked.target, asked.kind, asked.values)
        try:
            done = await self._controller.computes.act(
                asked.verb,
                asked.target,
                kind=asked.kind,
                values=asked.values,
                dry=asked.dry,
                confirmed=asked.confirmed,
            )
        except CommandError as error:
            return ActReply(accepted=False, errors={"": str(error)}, line=line)
        asks = bool(done.ask) or (done.accepted and asked.confirmed)
        return ActReply(
            accepted=done.accepted,
            ask=done.ask,
            errors=done.errors,
            said=done.said,
            line=f"{line} --yes" if line and asks else line,
        )

    async def rows(self) -> Known:
        """The targets and the workspaces as they are known."""
        computes, connections = self._controller.computes, self._controller.connections
        targets = await computes.refresh()
        workspaces = rows_of(*await connections.all(), targets)
        computes.shown()
        return Known(computes.current, computes.rows(), workspaces)

    def listen(self, told: Callable[[str, str, str], None]) -> Callable[[], None]:
        """See :meth:`jupyter_amltrain.panel.compute_rows.Compute.listen`."""

        def heard(news: News | None) -> None:
            told(*(news or News("", "", "")))

        return self._controller.computes.listen(heard)


def kinds_for_a_person(kinds: Sequence[TargetKind], workspaces: Sequence[str]) -> tuple[TargetKind, ...]:
    """Who has connected a workspace sees its kinds first, and is asked which one only where there is a choice."""
    if not workspaces:
        return tuple(kinds)
    made = []
    for kind in kinds:
        there = {"advanced": True} if len(workspaces) == 1 else {"choices": ("", *workspaces)}
        fields = [replace(field, **there) if field.name == "workspace" else field for field in kind.fields]
        made.append(replace(kind, fields=tuple(fields)))
    return tuple(sorted(made, key=lambda kind: not any(field.name == "workspace" for field in kind.fields)))
