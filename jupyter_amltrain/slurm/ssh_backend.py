"""Backend of a cluster whose login node SSH reaches: the same calls over the link of :mod:`..backends.ssh`."""

from __future__ import annotations

from typing import ClassVar

from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.backends.base import LaunchPlan
from jupyter_amltrain.backends.ssh import SshBackend, SshTransport
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.target import ComputeTarget, TargetInfo
from jupyter_amltrain.slurm.cluster_runs import ClusterBackend
from jupyter_amltrain.slurm.target import SlurmTarget, with_facts
from jupyter_amltrain.slurm.transports import SlurmLoginTransport
from jupyter_amltrain.state_dir import StateRoot


class SlurmLoginBackend(ClusterBackend, SshBackend):
    """Backend of a cluster whose login node SSH reaches."""

    Target: ClassVar[type[ComputeTarget]] = SlurmTarget
    transport_type: ClassVar[type[SshTransport]] = SlurmLoginTransport
    uses_login = True

    def __init__(self, target: SlurmTarget, loop: LoopThread, root: StateRoot) -> None:
        SshBackend.__init__(self, target.login(), loop, root, target.name)
        self._begin(target)

    @property
    def _agent_file(self) -> str:
        return self._ssh.connection.facts["agent"]

    @property
    def _agent_python(self) -> str:
        return self._ssh.connection.facts["python"]

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`; completes the target's fields with what the login node says."""
        login = await self._connect(self.cluster.login())
        self.target = with_facts(self.cluster, login)
        self._use_image()
        return await self.checked_cluster(await AgentBackend.check(self))

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """See :meth:`Backend.plan`."""
        plan = await super().plan(spec, snapshot, run_id)
        if "agent" not in self._ssh.connection.facts:  # the folder is known, and nothing was asked yet
            await self._connect(self.cluster.login())
        return await self.plan_script(plan)
