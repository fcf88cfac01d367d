"""Backend of a cluster whose login node SSH reaches: the same calls over :class:`..SshTransport`."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.backends.base import LaunchPlan
from jupyter_amltrain.backends.ssh import SshBackend
from jupyter_amltrain.backends.ssh_transport import SshTransport
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.target import ComputeTarget, TargetInfo
from jupyter_amltrain.slurm.cluster_runs import ClusterRuns
from jupyter_amltrain.slurm.target import SlurmTarget, with_facts
from jupyter_amltrain.slurm.transports import SlurmLoginTransport
from jupyter_amltrain.state_dir import StateRoot


class SlurmLoginBackend(SshBackend):
    """Backend of a cluster whose login node SSH reaches."""

    Target: ClassVar[type[ComputeTarget]] = SlurmTarget
    transport_type: ClassVar[type[SshTransport]] = SlurmLoginTransport

    def __init__(self, target: SlurmTarget, loop: LoopThread, root: StateRoot) -> None:
        super().__init__(target.login(), loop, root, target.name)
        self._cluster = ClusterRuns(target, self._ssh, self._agent, uses_login=True)
        self.target = target
        self._cluster.equip(self)
        self._use_image()

    def _agent(self) -> tuple[str, str]:
        """Return the agent's file on the login node, and the interpreter that runs it there."""
        facts = self._ssh.connection.facts
        return facts["agent"], facts["python"]

    def _use_image(self) -> None:
        if self._cluster.own_python:
            self._machine = msgspec.structs.replace(self._machine, python=self._cluster.own_python)

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`; completes the target's fields with what the login node says."""
        cluster = self._cluster
        cluster.target = with_facts(cluster.target, await self._connect(cluster.target.login()))
        self._use_image()
        info = await cluster.completed(await AgentBackend.check(self))
        self.target = cluster.target
        return info

    def complete_spec(self, spec: JobSpec) -> JobSpec:
        """See :meth:`Backend.complete_spec`."""
        return self._cluster.completed_spec(super().complete_spec(spec))

    def check_job(self, spec: JobSpec) -> None:
        """See :meth:`Backend.check_job`."""
        self._cluster.check_job(spec, self._machine.has_our_disk)

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """See :meth:`Backend.plan`."""
        plan = await super().plan(spec, snapshot, run_id)
        if "agent" not in self._ssh.connection.facts:  # the folder is known, and nothing was asked yet
            await self._connect(self._cluster.target.login())
        return await self._cluster.with_script(plan)

    async def _check_interpreter(self, spec: JobSpec, snapshot: Snapshot) -> tuple[str, ...]:
        return () if self._cluster.has_own_packages else await super()._check_interpreter(spec, snapshot)
