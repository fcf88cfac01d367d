"""Requests about Azure ML workspaces: the line that connects one, and forgetting one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.commands.connect import compose
from jupyter_amltrain.commands.magic_line import quote
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.panel import protocol
from jupyter_amltrain.panel.protocol import ActReply, ConnectReply, Reply
from jupyter_amltrain.workspaces import bills

if TYPE_CHECKING:
    from jupyter_amltrain.controller import Controller

#: Seconds that an answer waits until a workspace is forgotten: the process that talks to Azure may have to start.
PATIENCE = 2.0


class ConnectAnswers:
    """Answers about lines that connect: nobody is signed in here, the line in a cell does that."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def ops(self) -> dict[type, Callable[[Any], Coroutine[Any, Any, Reply]]]:
        """What is answered here."""
        return {protocol.Connect: self._connect}

    async def _connect(self, asked: protocol.Connect) -> ConnectReply:
        connections = self._controller.connections
        known, current = await connections.all()
        made = await self._controller.loop.offload(compose, asked.values, [facts.name for facts in known])
        if made.place is None:
            return ConnectReply(line=made.line, errors=made.errors, note=made.note)
        try:
            place = await connections.completed(made.place)
        except CommandError as error:  # the name is taken, or it has another here
            return ConnectReply(line=made.line, errors={"name": str(error)}, note=made.note)
        again = f"{place.name} is connected already: this signs in again and looks for its computes anew."
        note = again if place.name in [facts.name for facts in known] else made.note
        return ConnectReply(line=made.line, note=note)


async def disconnect(controller: Controller, asked: protocol.DoAct) -> ActReply:
    """Forget a workspace, after what is lost was read; the same as ``%aml_compute disconnect``."""
    name, connections = asked.target, controller.connections
    line = f"%aml_compute disconnect {quote(name)} --yes"
    try:
        if asked.dry or not asked.confirmed:
            _, mine, live = await connections.held(name)
            on = [target.name for target in mine if bills(target)]
            return ActReply(accepted=False, ask=loss(name, [target.name for target in mine], on, live), line=line)
        work = controller.loop.start(connections.disconnect(name, confirmed=True), f"disconnect {name}")
        await asyncio.wait({work}, timeout=PATIENCE)
        said = work.result() if work.done() else f"{name} is being disconnected."
    except AmlTrainError as error:
        return ActReply(accepted=False, errors={"": str(error)}, line=line)
    return ActReply(accepted=True, said=said, line=line)


def loss(name: str, targets: list[str], on: list[str], live: list[str]) -> str:
    """What a person has to know before a workspace is forgotten."""
    off = f"its target {targets[0]}" if len(targets) == 1 else f"its {len(targets)} targets"
    said = [f"Forgets {name}{f' and takes {off} off the list' if targets else ''}. Nothing is done at Azure."]
    if on:
        said.append(f"What is on bills there as before ({', '.join(on)}).")
    if live:
        runs = "1 of its runs goes" if len(live) == 1 else f"{len(live)} of its runs go"
        said.append(f"{runs} on there ({', '.join(live[:3])}) and would not be watched any more.")
    return " ".join(said)
