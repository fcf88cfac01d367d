"""What the backends of a cluster have in common, on its login node and over SSH: checks, plan, submit."""

from __future__ import annotations

import abc
import asyncio
import posixpath
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.agent.queue.job_fields import default_grace
from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.backends.base import LaunchPlan
from jupyter_amltrain.backends.capabilities import TargetSettings
from jupyter_amltrain.backends.honored import check_honored
from jupyter_amltrain.backends.local_limits import check_machine
from jupyter_amltrain.errors import TargetError
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.schema.job import MAX_NODES, JobSpec
from jupyter_amltrain.schema.target import TargetInfo
from jupyter_amltrain.slurm import checks, script
from jupyter_amltrain.slurm.overview import ClusterOverview
from jupyter_amltrain.slurm.target import SlurmTarget

#: Seconds for which the limits of a cluster are not asked again.
_FACTS_KEPT_S = 300.0
#: Seconds that an attach waits for the job that looks at the shared folder.
PROBE_TIMEOUT_S = 15.0


class ClusterBackend(AgentBackend):
    """Runs jobs by sbatch; the state of a run comes from Slurm and from the run's folder."""

    #: Whether the job gets the variables of a login there, and not those of the kernel.
    uses_login = False

    def _begin(self, target: SlurmTarget) -> None:
        """Set what both backends have."""
        self.target = target
        self.monitors = None  # type: ignore[assignment]
        self.overview = ClusterOverview(self._transport)
        self.settings = TargetSettings(target.name)
        self._use_image()
        self._facts: dict[str, Any] = {}
        self._facts_at = float("-inf")
        self._facts_guard = asyncio.Lock()

    def _use_image(self) -> None:
        """Let jobs in an image have the interpreter of the image, unless the target names one."""
        if self.cluster.container and not self.cluster.python:
            self._machine = msgspec.structs.replace(self._machine, python="python3")

    @property
    def cluster(self) -> SlurmTarget:
        """The target, with its own type."""
        assert isinstance(self.target, SlurmTarget)
        return self.target

    async def facts(self, max_age_s: float = _FACTS_KEPT_S) -> Mapping[str, Any]:
        """Return what the cluster is: partitions with limits, nodes, version."""
        async with self._facts_guard:
            if time.monotonic() - self._facts_at > max_age_s:
                self._facts = await self._transport.call("limits", {"partition": self.cluster.partition})
                self._facts_at = time.monotonic()
            return self._facts

    @property
    @abc.abstractmethod
    def _agent_file(self) -> str:
        """Path of the agent's file on the login node."""

    @property
    @abc.abstractmethod
    def _agent_python(self) -> str:
        """Interpreter that runs the agent there."""

    def _script_machine(self) -> script.LoginNode:
        return script.LoginNode(
            agent=self._agent_file,
            # The agent runs in the image, too, where Slurm starts the image.
            python="python3" if self.cluster.container_runtime == "pyxis" else self._agent_python,
            home=self._transport.home,
            kill_wait=int(self._facts.get("kill_wait") or 30),
        )

    def check_job(self, spec: JobSpec) -> None:
        """See :meth:`Backend.check_job`; a run may have as many nodes as the partition gives."""
        check_honored(spec, self.cluster)
        check_machine(spec, self.target.name, self._machine.has_our_disk, machines=MAX_NODES)

    async def plan_script(self, plan: LaunchPlan) -> LaunchPlan:
        """Return a plan with the script of its job.

        Raises
        ------
        TargetError, SpecError
            The cluster has no such partition, or the partition does not allow what the job asks for.
        """
        facts, spec = await self.facts(), plan.spec
        checks.check_target(self.cluster, facts)
        checks.check_job(spec, self.cluster, facts)
        grace, longest = default_grace(), checks.longest_of(self.cluster, facts)
        text = script.batch_script(spec, self.cluster, plan.run_id, self._script_machine(), grace, longest)
        request = {**plan.request, "grace": grace}
        ranks = request.get("ranks")
        if ranks and not ranks["processes"] and spec.resources.gpu_count:
            request["ranks"] = {**ranks, "processes": spec.resources.gpu_count}
        if self.cluster.container_runtime == "apptainer":
            request["argv"] = [
                *("apptainer", "exec", "--nv", "--bind", self._transport.home, self.cluster.container),
                *request["argv"],
            ]
        request["slurm"] = {"script": text, "login": self.uses_login, "nodes": spec.resources.nodes}
        return msgspec.structs.replace(plan, request=request, text=text)

    async def checked_cluster(self, info: TargetInfo) -> TargetInfo:
        """Return what a check tells of the cluster beside the login node.

        Raises
        ------
        TargetError
            It has no such partition, or its nodes do not share the folder for runs.
        """
        facts = await self.facts(0.0)
        checks.check_target(self.cluster, facts)
        partitions = checks.partitions_of(self.cluster, facts)
        names = [str(row["name"]) for row in partitions]
        rows = checks.nodes_of(partitions, facts)
        cpus = sum(row["nodes"] * row["cpus"] for row in rows)
        gpus = sum(row["nodes"] * sum(row["gpus"].values()) for row in rows)
        used = sum(sum(kinds.values()) for name, kinds in facts["used"].items() if name in names)
        slots = {"cpu": {"total": cpus, "free": max(0, cpus - sum(row["cpus_used"] for row in rows))}}
        if gpus:
            slots["gpu"] = {"total": gpus, "free": max(0, gpus - used)}
        detail = f"Slurm {facts['version']}, partition {', '.join(names)}"
        note = await self._probe()
        return msgspec.structs.replace(info, slots=slots, detail=f"{detail}. {note}" if note else detail)

    async def _probe(self) -> str:
        """Look at the folder for runs from a compute node, once; return a note if that was not possible.

        Raises
        ------
        TargetError
            The nodes do not share it, or the lines before a job fail there.
        """
        python, target = self._agent_python, self.cluster
        proven = f"{target.partition}:{self._transport.home}"
        if target.proven == proven:
            return ""
        try:
            answer = await self._ask_node(0)
        except TargetError as error:
            if error.code != "slurm.refused":
                raise
            try:
                answer = await self._ask_node(1)  # some partitions take only jobs with a GPU
            except TargetError:
                raise error from None
        if (problem := checks.probe_error(answer, target, python)) is not None:
            raise problem
        note = checks.probe_note(answer)
        if not note:
            self.target = msgspec.structs.replace(target, proven=proven)
        return note

    async def _ask_node(self, gpus: int) -> Mapping[str, Any]:
        text = script.probe_script(self.cluster, self._agent_python, gpus)
        return await self._transport.call("probe", {"script": text, "timeout": PROBE_TIMEOUT_S})

    async def _check_interpreter(self, spec: JobSpec, snapshot: Snapshot) -> tuple[str, ...]:
        if self.cluster.modules or self.cluster.setup or self.cluster.container:
            return ()  # these bring another interpreter, or its packages
        return await super()._check_interpreter(spec, snapshot)


def below(home: str, name: str) -> str:
    """Return the state root of a target below the folder for all of them."""
    return posixpath.join(home, "slurm", name)
