"""Operation that writes the line which connects a workspace, for the form of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from jupyter_amltrain.azure.commands.connect import compose
from jupyter_amltrain.azure.workspaces import WorkspaceManager
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.frontend.protocol import Reply, Request, op

if TYPE_CHECKING:
    from jupyter_amltrain.kernel.controller import Controller


class ComposeConnect(Request, frozen=True, kw_only=True):
    """Write the line that connects an Azure ML workspace, and check it as the magic would; does not sign in.

    Attributes
    ----------
    values
        By name of a field of the form; empty values are left out of the line.
    """

    values: dict[str, Any] = {}


class ConnectReply(Reply, frozen=True, kw_only=True):
    """Answer to :class:`ComposeConnect`.

    Attributes
    ----------
    errors
        By name of a field; the key ``""`` is about the whole line.
    note
        The workspace that the line would connect, if the values do not name it; may be empty.
    """

    line: str
    errors: dict[str, str] = {}
    note: str = ""


class ConnectHandlers:
    """Handler of the form that connects a workspace."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @op("connect")
    async def compose_connect(self, request: ComposeConnect) -> ConnectReply:
        """Write the line that connects a workspace, and check it; running it in a cell signs in."""
        connections = cast(WorkspaceManager, self._controller.workspaces)
        workspaces, _ = await connections.all()
        names = [facts.name for facts in workspaces]
        result = await self._controller.loop.offload(compose, request.values, names)
        if result.workspace is None:
            return ConnectReply(line=result.line, errors=result.errors, note=result.note)
        try:
            workspace = await connections.resolve(result.workspace)
        except CommandError as error:  # the name is taken, or the workspace has another name here
            return ConnectReply(line=result.line, errors={"name": str(error)}, note=result.note)
        known = f"{workspace.name} is already connected: this signs in again and refreshes its list of computes."
        return ConnectReply(line=result.line, note=known if workspace.name in names else result.note)
