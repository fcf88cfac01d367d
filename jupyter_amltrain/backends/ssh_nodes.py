"""Backend of several machines over SSH: a run of one node is on one of them, a run of several nodes on one each.

A run of one node goes to the machine with the most room, and every later request about it goes there. A run of several
nodes has the same id on each of its machines. The run folder of node 0 is the truth for state, metrics, values and
files; logs of ranks and telemetry are read from the machine that has them. The agents connect to each other, so a run
needs no kernel once it is submitted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.agent.telemetry.gpu_names import gpu_name
from jupyter_amltrain.backends.base import Backend, LaunchPlan
from jupyter_amltrain.backends.capabilities import TargetMonitors, TargetSettings
from jupyter_amltrain.backends.environments import BuiltEnvironments
from jupyter_amltrain.backends.host_events import HostEvents
from jupyter_amltrain.backends.local_limits import check_machine
from jupyter_amltrain.backends.nodes_files import NodesFiles
from jupyter_amltrain.backends.nodes_submit import NodesSubmit, require_different
from jupyter_amltrain.backends.past_runs import PastRun
from jupyter_amltrain.backends.run_placement import RunPlacement
from jupyter_amltrain.backends.ssh_hosts import HostBackend, SshHosts
from jupyter_amltrain.backends.streams import PER_NODE, Chunk, RunEvents, monitor_of, stream_of
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.environment import Environment, EnvironmentRow
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run, RunStatus
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.schema.target import TargetInfo
from jupyter_amltrain.state_dir import StateRoot

log = logging.getLogger(__name__)

#: Runs whose number of nodes and ranks is kept.
_MAX_KNOWN_RUNS = 1000
#: Seconds that a cancel waits for the machines besides the first one, which passes it on to them.
_OTHERS_TIMEOUT_S = 2.0
#: Seconds in which a machine may start a monitor or remove an environment without a sign of life.
_SLOW_S = 60.0


class NodesEnvironments(BuiltEnvironments):
    """Environments of several machines."""

    def __init__(self, hosts: SshHosts, target: str) -> None:
        self._hosts, self._target = hosts, target

    async def list(self) -> Sequence[EnvironmentRow]:
        """See :meth:`BuiltEnvironments.list`; an environment on several machines is listed once."""
        found, _ = await self._hosts.ask(lambda host: host.environments.list())
        rows = {row.key: row for number in sorted(found, reverse=True) for row in found[number]}
        return [msgspec.structs.replace(row, target=self._target) for row in rows.values()]

    async def key_of(self, environment: Environment) -> str:
        """See :meth:`BuiltEnvironments.key_of`."""
        found, _ = await self._hosts.ask(lambda host: host.environments.key_of(environment))
        return found[min(found)]

    async def delete(self, key: str) -> None:
        """See :meth:`BuiltEnvironments.delete`; on all machines that have it."""
        await self._hosts.ask(lambda host: host.environments.delete(key), silence_s=_SLOW_S)


class NodesMonitors(TargetMonitors):
    """Samples of several machines, each of which has its part of a monitor."""

    def __init__(self, hosts: SshHosts) -> None:
        self._hosts = hosts

    async def start(self, monitor_id: str, gpus: Sequence[int] | None, period: float) -> str:
        """See :meth:`TargetMonitors.start`; indices of GPUs are those of each machine."""
        found, _ = await self._hosts.ask(lambda host: host.monitors.start(monitor_id, gpus, period), silence_s=_SLOW_S)
        return found[min(found)]

    async def stop(self, monitor_id: str) -> None:
        """See :meth:`TargetMonitors.stop`."""
        await self._hosts.ask(lambda host: host.monitors.stop(monitor_id))


class NodesBackend(Backend):
    """Backend of several machines, each of which has a backend of its own."""

    Target = SshTarget
    placement: RunPlacement

    def __init__(self, target: SshTarget, loop: LoopThread, root: StateRoot) -> None:
        self._hosts = SshHosts(target, loop, root)
        self.placement = RunPlacement()
        super().__init__(target, NodesFiles(self._hosts, self.placement, self._host))
        self.machines = len(self._hosts)
        self.environments = NodesEnvironments(self._hosts, target.name)
        self.monitors = NodesMonitors(self._hosts)
        # Each machine is stopped alone, as a target of its own.
        self.settings = TargetSettings(target.name, share_gpus=self._share_gpus)
        self._shapes: dict[str, tuple[int, int, int]] = {}  #: nodes, processes, parameter servers by run

    @property
    def _target(self) -> SshTarget:
        assert isinstance(self.target, SshTarget)
        return self.target

    async def _locate(self, run_id: str) -> int:
        """Return the machine of a run, which is searched if this kernel has not seen the run; 0 if there is none."""
        if not monitor_of(run_id) and not self.placement.knows(run_id):
            await self.find(run_id)
        return self.placement.machine_of(run_id)

    async def _host(self, run_id: str, rank: int = 0) -> HostBackend:
        """Return the machine of a run, or of one of its processes if it has several machines."""
        first = await self._locate(run_id)
        return self._hosts[await self._node_of(run_id, rank) if rank and not first else first]

    async def _by_host(self, run_ids: Sequence[str]) -> dict[int, list[str]]:
        groups: dict[int, list[str]] = {}
        for run_id in run_ids:
            groups.setdefault(await self._locate(run_id), []).append(run_id)
        return groups

    # ---- the target

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`; adds up the machines. Those of an attached target may be silent, but not all.

        Raises
        ------
        TargetError
            Two of them are the same machine, or share their state root.
        """
        whole, hosts = self._target, self._hosts
        for host in hosts:
            host.retry_soon()
        error: Exception | None = None
        if whole.node_dirs:
            found, error = await hosts.ask(_names_and_info)
        else:
            found = dict(enumerate(await asyncio.gather(*map(_names_and_info, hosts))))
        require_different([hosts[number] for number in found], [names for names, _ in found.values()])
        if error is None:
            self.target = msgspec.structs.replace(whole, node_dirs=tuple(host.home for host in hosts))
        return _added({number: info for number, (_, info) in found.items()}, whole)

    async def _share_gpus(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        first, *_ = await asyncio.gather(*(host.settings.change(settings) for host in self._hosts))
        return first

    def check_job(self, spec: JobSpec) -> None:
        """See :meth:`Backend.check_job`."""
        super().check_job(spec)
        check_machine(spec, self.target.name, has_our_disk=False, machines=len(self._hosts))

    def complete_spec(self, spec: JobSpec) -> JobSpec:
        """See :meth:`Backend.complete_spec`."""
        return self._hosts[0].complete_spec(spec)

    # ---- submit

    async def _place(self, spec: JobSpec, run_id: str) -> int:
        """Choose the machine of a run of one node; of a run that has one already, return that."""
        if self.placement.knows(run_id):
            return self.placement.machine_of(run_id)
        since = self.placement.planned()
        try:
            loads, _ = await self._hosts.ask(lambda host: host.call("info", {}))
        except (AmlTrainError, OSError):  # the plan of the first one raises its error
            return 0
        return self.placement.choose(run_id, spec, loads, since)

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """See :meth:`Backend.plan`; a run of one node gets its machine. All machines of the run are checked."""
        count = spec.resources.nodes
        if count == 1:
            host = self._hosts[await self._place(spec, run_id)]
            try:
                return await host.plan(spec, snapshot, run_id)
            except BaseException:
                self.placement.forget(run_id)
                raise
        first, *others = await asyncio.gather(
            *(host.plan(spec, snapshot, run_id) for host in self._hosts[:count]),
        )
        notes = dict.fromkeys(note for plan in (first, *others) for note in plan.notes)
        request = {**first.request, "nodes": {"node": 0, "names": list(self._target.hosts[:count])}}
        return msgspec.structs.replace(first, request=request, notes=tuple(notes))

    async def launch(self, plan: LaunchPlan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """See :meth:`Backend.launch`; all machines of a run accept it, or none.

        Raises
        ------
        TargetError
            The machines do not reach each other.
        """
        if plan.spec.resources.nodes > 1:
            self.placement.keep(plan.run_id, 0)
            return await NodesSubmit(self._hosts[: plan.spec.resources.nodes]).submit(plan, environ, secrets)
        host = await self._host(plan.run_id)
        self.placement.keep(plan.run_id, host.number)
        try:
            return await host.launch(plan, environ, secrets)
        finally:
            self.placement.launched(plan.run_id)

    # ---- runs

    async def poll(self, run_ids: Sequence[str]) -> Mapping[str, RunStatus]:
        """See :meth:`Backend.poll`; without the runs of machines that do not answer."""
        groups = await self._by_host(run_ids)
        if not groups:
            return {}
        found, _ = await self._hosts.ask(lambda host: host.poll(groups[host.number]), groups)
        self.absence_reasons = {run: text for host in self._hosts for run, text in host.absence_reasons.items()}
        return {run_id: status for states in found.values() for run_id, status in states.items()}

    async def find(self, run_id: str) -> Run | None:
        """See :meth:`Backend.find`; asks all machines for a run that this kernel has not seen.

        Raises
        ------
        TargetUnreachable
            The machines that answer do not have it.
        """
        numbers = (self.placement.machine_of(run_id),) if self.placement.knows(run_id) else None
        found, error = await self._hosts.ask(lambda host: host.find(run_id), numbers)
        for number, run in sorted(found.items()):
            if run is not None:
                self.placement.keep(run_id, number)
                return run
        if error is not None:
            raise error
        return None

    async def list(self, known: Collection[str] = ()) -> tuple[Collection[str], Sequence[Run | PastRun]]:
        """See :meth:`Backend.list`; runs of machines that do not answer are still there."""
        found, error = await self._hosts.ask(lambda host: host.list(known))
        if error is not None:
            log.info("runs of %s: %s", self.target.name, error)
        ids: set[str] = set(self.placement.runs_besides(found))
        runs: dict[str, Run] = {}
        for number, (listed, unknown) in sorted(found.items()):
            ids.update(listed)
            for run in unknown:
                if isinstance(run, Run) and runs.setdefault(run.run_id, run) is run:
                    self.placement.keep(run.run_id, number)
        return frozenset(ids), sorted(runs.values(), key=lambda run: run.created)

    async def cancel(self, run_id: str) -> None:
        """See :meth:`Backend.cancel`; asks all machines of a run at once, so that none waits for another."""
        first, others = await self._hosts_of(run_id)
        waiting = [asyncio.ensure_future(other.cancel(run_id)) for other in others]
        await first.cancel(run_id)
        await _wait_for(waiting)

    async def delete(self, run_id: str) -> None:
        """See :meth:`Backend.delete`; on all machines of the run."""
        first, others = await self._hosts_of(run_id)
        await first.delete(run_id)
        await _wait_for([asyncio.ensure_future(other.delete(run_id)) for other in others])
        self.placement.forget(run_id)

    async def _hosts_of(self, run_id: str) -> tuple[HostBackend, Sequence[HostBackend]]:
        """Return the machine of a run, and the others of a run of several nodes."""
        number = await self._locate(run_id)
        nodes = (await self._shape(run_id))[0] if number == 0 else 1
        return self._hosts[number], self._hosts[1:nodes]

    async def read(self, run_id: str, stream: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """See :meth:`Backend.read`; from the machine that has the stream."""
        name, number = stream_of(stream)
        first = await self._locate(run_id)
        if not number or (first and not monitor_of(run_id)):
            return await self._hosts[first].read(run_id, stream, offset, limit)
        if name not in PER_NODE:
            node = await self._node_of(run_id, number)
            return await self._hosts[node].read(run_id, stream, offset, limit)
        if number >= len(self._hosts):
            return Chunk(b"", max(0, offset))
        # A machine that does not answer must not delay the samples of the others.
        return await (await self._hosts.connected(number)).read(run_id, name, offset, limit)

    async def _shape(self, run_id: str, rank: int = 0) -> tuple[int, int, int]:
        """Return the numbers of nodes, processes and parameter servers of a run, which is read again for new ranks."""
        known = self._shapes.get(run_id)
        if (known is None or rank >= known[1]) and (run := await self.find(run_id)) is not None:
            nodes = len(self._hosts) if run.damaged else run.spec.resources.nodes
            known = self._shapes[run_id] = nodes, run.status.ranks, run.spec.distribution.parameter_servers
            if len(self._shapes) > _MAX_KNOWN_RUNS:
                del self._shapes[next(iter(self._shapes))]
        return known or (1, 1, 0)

    async def _node_of(self, run_id: str, rank: int) -> int:
        """Return the node that runs a rank: the nodes have equal numbers of them, one node after the other."""
        nodes, ranks, servers = await self._shape(run_id, rank)
        workers = ranks - servers
        node = (rank - workers) % nodes if rank >= workers else rank // max(1, workers // nodes)
        return min(node, nodes - 1, len(self._hosts) - 1)

    def events(self) -> RunEvents:
        """See :meth:`Backend.events`."""
        return HostEvents(self._hosts, self.placement.machine_of)

    async def close(self) -> None:
        """See :meth:`Backend.close`."""
        await self._hosts.close()


async def _names_and_info(host: HostBackend) -> tuple[Mapping[str, Any], TargetInfo]:
    """Return the names of a machine's queue and state root, and what it says of itself."""
    await host.connect()
    names = await host.call("nodes", {"verb": "queue"})
    return names, await host.check()


async def _wait_for(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the other machines, but not for one that does not answer; a run of fewer nodes is not on all."""
    if tasks:
        await asyncio.wait(tasks, timeout=_OTHERS_TIMEOUT_S)
    for task in tasks:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _added(infos: Mapping[int, TargetInfo], target: SshTarget) -> TargetInfo:
    """Return the sum of the machines that answer, by their numbers."""
    first, *_ = infos.values()

    def total(field: str) -> int | None:
        values = [getattr(info, field) for info in infos.values()]
        return None if None in values else sum(values)

    slots: dict[str, dict[str, int]] = {}
    for info in infos.values():
        for kind, counts in info.slots.items():
            row = slots.setdefault(kind, {})
            for name, value in counts.items():
                row[name] = row.get(name, 0) + value
    silent = [host for number, host in enumerate(target.hosts) if number not in infos]
    return msgspec.structs.replace(
        first,
        target=target.name,
        cpus=total("cpus"),
        memory=total("memory"),
        gpus=tuple(
            {**gpu, "label": f"node {node} {gpu_name(gpu)}"} for node, info in infos.items() for gpu in info.gpus
        ),
        gpus_lost=tuple(gpu for info in infos.values() for gpu in info.gpus_lost),
        gpu_note="; ".join(dict.fromkeys(info.gpu_note for info in infos.values() if info.gpu_note)),
        slots=slots,
        queued=sum(info.queued for info in infos.values()),
        running=sum(info.running for info in infos.values()),
        detail=f"{len(target.hosts)} machines: {', '.join(target.hosts)}"
        + (f"; not responding: {', '.join(silent)}" if silent else ""),
    )
