"""Runs of a cluster, from its login node and over SSH to it: its limits, the checks of a job, and the scripts."""

from __future__ import annotations

import asyncio
import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.agent.queue.job_fields import default_grace
from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.backends.base import LaunchPlan
from jupyter_amltrain.backends.capabilities import TargetSettings
from jupyter_amltrain.backends.honored import check_honored
from jupyter_amltrain.backends.local_limits import check_machine
from jupyter_amltrain.backends.transport import Transport
from jupyter_amltrain.errors import TargetError
from jupyter_amltrain.schema.job import MAX_NODES, JobSpec
from jupyter_amltrain.schema.target import TargetInfo
from jupyter_amltrain.slurm import checks, script
from jupyter_amltrain.slurm.arrays import TaskArrays
from jupyter_amltrain.slurm.overview import ClusterOverview, ClusterQuota
from jupyter_amltrain.slurm.target import SlurmTarget

#: Seconds for which the limits of a cluster are not asked again.
_FACTS_KEPT_S = 300.0
#: Seconds that an attach waits for the job that looks at the shared folder.
PROBE_TIMEOUT_S = 15.0


class ClusterRuns:
    """What both backends of a cluster do beside their own: checks, scripts, and the first look at the cluster.

    Parameters
    ----------
    agent
        Returns the agent's file on the login node, and the interpreter that runs it there.
    uses_login
        Whether jobs get the variables of a login there, and not those of the kernel.
    """

    def __init__(
        self, target: SlurmTarget, transport: Transport, agent: Callable[[], tuple[str, str]], *, uses_login: bool
    ) -> None:
        self.target, self._transport, self._agent, self._uses_login = target, transport, agent, uses_login
        self.arrays = TaskArrays(transport, self, uses_login=uses_login)
        self._facts: dict[str, Any] = {}
        self._facts_at = float("-inf")
        self._facts_guard = asyncio.Lock()

    def equip(self, backend: AgentBackend) -> None:
        """Give a backend the capabilities of a cluster in place of those of a machine."""
        backend.monitors = None  # type: ignore[assignment]
        backend.overview = ClusterOverview(self._transport)
        backend.quota = ClusterQuota(self._transport)
        backend.settings = TargetSettings(self.target.name)
        backend.arrays = self.arrays

    @property
    def own_python(self) -> str:
        """Interpreter of jobs of a target that names none, where it is not that of the machine: that of an image."""
        return "python3" if self.target.container and not self.target.python else ""

    @property
    def has_own_packages(self) -> bool:
        """Whether the lines before a job bring another interpreter, or its packages."""
        return bool(self.target.modules or self.target.setup or self.target.container)

    async def facts(self, max_age_s: float = _FACTS_KEPT_S) -> Mapping[str, Any]:
        """Return what the cluster is: partitions with limits, nodes, version."""
        async with self._facts_guard:
            if time.monotonic() - self._facts_at > max_age_s:
                self._facts = await self._transport.call("limits", {})
                self._facts_at = time.monotonic()
            return self._facts

    def completed_spec(self, spec: JobSpec) -> JobSpec:
        """Return a job as Slurm takes it: without a number of GPUs it gets none."""
        if spec.resources.gpus is not None:
            return spec
        return msgspec.structs.replace(spec, resources=msgspec.structs.replace(spec.resources, gpus=0))

    def check_job(self, spec: JobSpec, has_our_disk: bool) -> None:
        """See :meth:`Backend.check_job`; a run may have as many nodes as the partition gives."""
        check_honored(spec, self.target)
        check_machine(spec, self.target.name, has_our_disk, machines=MAX_NODES)

    async def script_of(self, spec: JobSpec, name: str, *, is_array: bool = False) -> str:
        """Return the script of a run, or of all runs of an array.

        Raises
        ------
        TargetError, SpecError
            The cluster has no such partition, or the partition does not allow what the job asks for.
        """
        facts, (agent, python) = await self.facts(), self._agent()
        checks.check_target(self.target, facts)
        checks.check_job(spec, self.target, facts)
        machine = script.LoginNode(
            agent=agent,
            # The agent runs in the image, too, where Slurm starts the image.
            python="python3" if self.target.container_runtime == "pyxis" else python,
            home=self._transport.home,
            kill_wait=int(facts.get("kill_wait") or 30),
        )
        longest = checks.longest_of(self.target, facts)
        spec = checks.with_processors(spec, self.target, facts)
        return script.batch_script(spec, self.target, name, machine, default_grace(), longest, is_array=is_array)

    async def with_script(self, plan: LaunchPlan) -> LaunchPlan:
        """Return a plan with the script of its job; raises as :meth:`script_of`."""
        spec = plan.spec
        task = self.arrays.task_of(plan.run_id)
        text = await self.script_of(spec, task.get("array") or plan.run_id, is_array=bool(task))
        request = {**plan.request, "grace": default_grace()}
        ranks = request.get("ranks")
        if ranks and not ranks["processes"] and spec.resources.gpu_count:
            request["ranks"] = {**ranks, "processes": spec.resources.gpu_count}
        if self.target.container_runtime == "apptainer":
            request["argv"] = [
                *("apptainer", "exec", "--nv", "--bind", self._transport.home, self.target.container),
                *request["argv"],
            ]
        request["slurm"] = {"script": text, "login": self._uses_login, "nodes": spec.resources.nodes, **task}
        return msgspec.structs.replace(plan, request=request, text=text)

    async def completed(self, info: TargetInfo) -> TargetInfo:
        """Return what a check tells of the cluster beside the login node.

        Raises
        ------
        TargetError
            It has no such partition, or its nodes do not share the folder for runs.
        """
        facts = await self.facts(0.0)
        checks.check_target(self.target, facts)
        partitions = checks.partitions_of(self.target, facts)
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
        return msgspec.structs.replace(
            info, slots=slots, detail=f"{detail}. {note}" if note else detail, **_node_of(rows)
        )

    async def _probe(self) -> str:
        """Look at the folder for runs from a compute node, once; return a note if that was not possible.

        Raises
        ------
        TargetError
            The nodes do not share it, or the lines before a job fail there.
        """
        target, (_, python) = self.target, self._agent()
        proven = f"{target.partition}:{self._transport.home}"
        if target.proven == proven:
            return ""
        try:
            answer = await self._ask_node(python, 0)
        except TargetError as error:
            if error.code != "slurm.refused":
                raise
            try:
                answer = await self._ask_node(python, 1)  # some partitions take only jobs with a GPU
            except TargetError:
                raise error from None
        if (problem := checks.probe_error(answer, target, python)) is not None:
            raise problem
        note = checks.probe_note(answer)
        if not note:
            self.target = msgspec.structs.replace(target, proven=proven)
        return note

    async def _ask_node(self, python: str, gpus: int) -> Mapping[str, Any]:
        text = script.probe_script(self.target, python, gpus)
        return await self._transport.call("probe", {"script": text, "timeout": PROBE_TIMEOUT_S})


def _node_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return processors, memory and GPUs of a node: the most that one has, and not those of the login node."""
    kinds: Mapping[str, int] = max((row["gpus"] for row in rows), key=lambda gpus: sum(gpus.values()), default={})
    names = [kind or "GPU" for kind, count in kinds.items() for _ in range(count)]
    return {
        "cpus": max((row["cpus"] for row in rows), default=None),
        "memory": max((row["memory"] for row in rows), default=None),
        "gpus": tuple({"index": i, "name": name, "uuid": ""} for i, name in enumerate(names)),
        "gpus_lost": (),
    }


def below(home: str, name: str) -> str:
    """Return the state root of a target below the folder for all of them."""
    return posixpath.join(home, "slurm", name)
