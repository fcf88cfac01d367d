"""Backend of a folder: the agent of this machine with another state root."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.backends.base import LaunchPlan
from jupyter_amltrain.backends.transport import LocalTransport
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.schema.target import TargetInfo
from jupyter_amltrain.state_dir import StateRoot

from . import FolderTarget


class FolderBackend(AgentBackend):
    """Runs jobs of this machine, whose run directories are in the folder of the target."""

    Target = FolderTarget

    def __init__(self, target: FolderTarget, loop: LoopThread, root: StateRoot) -> None:
        self._home = Path(target.folder).expanduser()
        self._nice = target.nice
        super().__init__(target, loop, LocalTransport(loop, self._home), "")

    async def check(self) -> TargetInfo:
        """Check the folder, then the machine."""
        if not os.path.isdir(self._home):
            raise CommandError(f"{self._home} is no folder.", hint="Create it first.", field="folder")
        return await super().check()

    async def launch(self, plan: LaunchPlan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """Launch a job with the niceness of the target."""
        if self._nice:
            plan.request["argv"] = ["nice", "-n", str(self._nice), *plan.request["argv"]]
        return await super().launch(plan, environ, secrets)
