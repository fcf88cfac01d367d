"""Backend of a cluster on whose login node the kernel runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.backends.agent_zipapp import build
from jupyter_amltrain.backends.base import LaunchPlan
from jupyter_amltrain.jobs import environments
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.target import ComputeTarget, TargetInfo
from jupyter_amltrain.slurm.cluster_runs import ClusterRuns, below
from jupyter_amltrain.slurm.target import SlurmTarget
from jupyter_amltrain.slurm.transports import SlurmTransport
from jupyter_amltrain.state_dir import StateRoot


class SlurmBackend(AgentBackend):
    """Backend of a cluster on whose login node the kernel runs."""

    Target: ClassVar[type[ComputeTarget]] = SlurmTarget

    def __init__(self, target: SlurmTarget, loop: LoopThread, root: StateRoot) -> None:
        home = (
            os.path.abspath(os.path.expanduser(target.workdir))
            if target.workdir
            else below(str(root.path), target.name)
        )
        transport = SlurmTransport(loop, Path(home))
        agent = lambda: (str(build(home)), sys.executable)  # noqa: E731
        self._cluster = ClusterRuns(target, transport, agent, uses_login=False)
        super().__init__(target, loop, transport, target.python or self._cluster.own_python)
        self._cluster.equip(self)

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`; the first one looks at the shared folder from a compute node."""
        info = await self._cluster.completed(await super().check())
        self.target = self._cluster.target
        return info

    def complete_spec(self, spec: JobSpec) -> JobSpec:
        """See :meth:`Backend.complete_spec`."""
        return self._cluster.completed_spec(super().complete_spec(spec))

    def check_job(self, spec: JobSpec) -> None:
        """See :meth:`Backend.check_job`."""
        self._cluster.check_job(spec, self._machine.has_our_disk)

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """See :meth:`Backend.plan`."""
        notes: tuple[str, ...] = ()
        has_packages = self._cluster.has_own_packages or environments.is_built(spec) or environments.is_image(spec)
        if not has_packages and not spec.job_type and (spec.python or self._machine.python) != sys.executable:
            notes = await self._check_interpreter(spec, snapshot)
        plan = await self._cluster.with_script(await super().plan(spec, snapshot, run_id))
        return msgspec.structs.replace(plan, notes=(*plan.notes, *notes))

    async def _sent_digest(self, snapshot: Snapshot, staging: str) -> str:
        from jupyter_amltrain.jobs.snapshot import digest_of

        if all(isinstance(content, bytes) for content in snapshot.files.values()):
            return snapshot.digest
        digest: Any = await self._loop.offload(digest_of, staging, list(snapshot.files))
        return str(digest)
