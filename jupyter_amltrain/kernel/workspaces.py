"""Workspaces: accounts at a service whose computes become targets. Loop thread only, except where noted.

This is what the package knows of them; a plug-in has the part ``workspaces``, a subclass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.kernel.store import RunStore
from jupyter_amltrain.kernel.target_file import TargetFile
from jupyter_amltrain.kernel.target_status import TargetStatusCache
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.plugins import parts
from jupyter_amltrain.schema.environment import EnvironmentRow
from jupyter_amltrain.schema.rows import WorkspaceRow
from jupyter_amltrain.schema.target import ComputeTarget
from jupyter_amltrain.state_dir import StateRoot


class Workspaces:
    """The connected workspaces of this user; this base class has none."""

    def __init__(
        self, loop: LoopThread, root: StateRoot, targets: TargetFile, computes: TargetStatusCache, store: RunStore
    ) -> None:
        self._loop, self._root, self._targets, self._computes, self._store = loop, root, targets, computes, store

    async def rows(self, targets: Sequence[ComputeTarget]) -> tuple[WorkspaceRow, ...]:
        """Return the rows of the list of workspaces; no network calls."""
        return ()

    def name_of(self, name: str) -> str:
        """Return the name of a connected workspace, by default the current one. Blocks on the disk.

        Raises
        ------
        CommandError
            It is not connected; the message names close matches.
        """
        raise CommandError("No workspace is connected.", code="workspace.none")

    def of_target(self, target: ComputeTarget) -> str | None:
        """Return the workspace of a target, empty for the current one; ``None`` for a target of none. Any thread."""
        return None

    async def loss(self, name: str) -> str:
        """Return the consequences of disconnecting a workspace, for the confirmation."""
        raise CommandError(f"No workspace {name!r} is connected.", code="workspace.none")

    async def disconnect(self, name: str, *, confirmed: bool = False) -> str:
        """Remove a workspace and its targets from this machine; returns the message."""
        raise CommandError(f"No workspace {name!r} is connected.", code="workspace.none")

    async def environments(self) -> tuple[dict[str, list[EnvironmentRow]], dict[str, str]]:
        """Return the environments of every workspace, and why those of one are not known, by workspace."""
        return {}, {}

    async def models(self, op: str, payload: dict[str, Any], progress: Callable[[str], None] | None) -> Any:
        """Carry out an operation on the models of a workspace: ``register``, ``list`` or ``download``."""
        raise CommandError("No workspace is connected.", code="workspace.none")

    async def close(self) -> None:
        """Close the connections."""


def workspaces_class() -> type[Workspaces]:
    """Return the class of the first plug-in that has workspaces."""
    return next(iter(parts("workspaces")), Workspaces)
