"""Backend of several machines over SSH: a run of one node uses the first one, a run of several nodes one each.

A run has the same id on each of its machines. The run folder of node 0 is the truth for state, metrics, values and
files; logs of ranks and telemetry are read from the machine that has them. The agents connect to each other, so a run
needs no kernel once it is submitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.agent.telemetry.gpu_names import gpu_name
from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.backends.base import PER_NODE, Chunk, LaunchPlan, monitor_of, stream_of
from jupyter_amltrain.backends.local_limits import unsupported
from jupyter_amltrain.backends.ssh import SshBackend
from jupyter_amltrain.errors import AmlTrainError, TargetError
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.schema.ssh_target import SshTarget
from jupyter_amltrain.schema.target import TargetInfo
from jupyter_amltrain.state_dir import StateRoot

#: Runs whose number of nodes and ranks is kept.
_MAX_KNOWN_RUNS = 1000
#: Seconds that a cancel waits for the machines besides the first one, which passes it on to them.
_OTHERS_TIMEOUT_S = 2.0


class NodesBackend(SshBackend):
    """Backend of several machines; itself that of the first one."""

    def __init__(self, target: SshTarget, loop: LoopThread, root: StateRoot) -> None:
        super().__init__(target.node_target(0), loop, root)
        self.target = target
        others = [SshBackend(target.node_target(number), loop, root) for number in range(1, len(target.hosts))]
        self._hosts: list[SshBackend] = [self, *others]
        self._shapes: dict[str, tuple[int, int, int]] = {}  #: nodes, processes, parameter servers by run

    @property
    def _target(self) -> SshTarget:
        assert isinstance(self.target, SshTarget)
        return self.target

    @property
    def _others(self) -> Sequence[SshBackend]:
        return self._hosts[1:]

    # ---- the target

    async def check(self) -> TargetInfo:
        """See :meth:`Backend.check`; adds up the machines.

        Raises
        ------
        TargetError
            Two of them are the same machine, or share their state root.
        """
        whole = self._target
        await asyncio.gather(self._connect(whole.node_target(0)), *(other.check() for other in self._others))
        replies = await asyncio.gather(*(host._ssh.call("nodes", {"verb": "queue"}) for host in self._hosts))
        self._require_different(replies)
        infos = await asyncio.gather(*(AgentBackend.check(host) for host in self._hosts))
        self.target = msgspec.structs.replace(whole, node_dirs=tuple(host._ssh.home for host in self._hosts))
        return _added(infos, whole)

    def _require_different(self, replies: Sequence[Mapping[str, Any]]) -> None:
        """Refuse one machine under two names, which would wait for its own slots, and one state root of two."""
        queues, homes = ([str(reply[name]) for reply in replies] for name in ("queue", "home"))
        names = self._target.hosts
        for number, (queue, home) in enumerate(zip(queues, homes, strict=True)):
            if queue in queues[:number]:
                raise TargetError(
                    f"{names[queues.index(queue)]} and {names[number]} are the same machine.",
                    hint="Give each machine once: every node of a run needs a machine of its own.",
                    code="ssh.same_machine",
                    field="host",
                )
            if home in homes[:number]:
                raise TargetError(
                    f"{names[homes.index(home)]} and {names[number]} share the folder {self._hosts[number]._ssh.home}.",
                    hint="Each machine needs a folder on its own disk for runs: --workdir /local/folder",
                    code="ssh.shared_workdir",
                    field="workdir",
                )

    async def configure(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :meth:`Backend.configure`; on all machines."""
        await asyncio.gather(*(other.configure(settings) for other in self._others))
        return await super().configure(settings)

    def unsupported_reason(self, spec: JobSpec) -> str:
        """See :meth:`Backend.unsupported_reason`."""
        return unsupported(spec, self.target.name, False, has_agent=True, machines=len(self._hosts))

    # ---- submit

    async def plan(self, spec: JobSpec, snapshot: Snapshot, run_id: str) -> LaunchPlan:
        """See :meth:`Backend.plan`; checks every machine of the run."""
        count = spec.resources.nodes
        first, *others = await asyncio.gather(
            super().plan(spec, snapshot, run_id),
            *(other.plan(spec, snapshot, run_id) for other in self._others[: count - 1]),
        )
        if count == 1:
            return first
        notes = dict.fromkeys(note for plan in (first, *others) for note in plan.notes)
        request = {**first.request, "nodes": {"node": 0, "names": list(self._target.hosts[:count])}}
        return msgspec.structs.replace(first, request=request, notes=tuple(notes))

    async def launch(self, plan: LaunchPlan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """See :meth:`Backend.launch`; all machines accept the run, or none.

        Raises
        ------
        TargetError
            The machines do not reach each other.
        """
        count = plan.spec.resources.nodes
        if count == 1:
            return await super().launch(plan, environ, secrets)
        hosts = self._hosts[:count]
        others = await asyncio.gather(*(host.plan(plan.spec, plan.snapshot, plan.run_id) for host in hosts[1:]))
        parts = [plan, *others]
        # Files before processes: these wait for each other, and not as long as large files may take.
        await asyncio.gather(*(host._send(part) for host, part in zip(hosts, parts, strict=True)))
        opened = await self._open(hosts, plan.run_id)
        accepted: list[SshBackend] = []
        try:
            self._require_different(opened)
            address = await self._find_address(hosts, opened)
            order = sorted(range(count), key=lambda number: str(opened[number]["queue"]))
            nodes = {**plan.request["nodes"], "order": order, "address": address, "port": opened[0]["port"]}

            async def submit(number: int) -> Run:
                part, tracking = parts[number], plan.request["tracking"]
                request = {**part.request, "nodes": {**nodes, "node": number}, "tracking": tracking}
                part = msgspec.structs.replace(part, request=request, origin=plan.origin, notes=plan.notes)
                run = await hosts[number]._submit(part, environ, secrets)
                accepted.append(hosts[number])
                return run

            found = await asyncio.gather(*map(submit, range(1, count)), return_exceptions=True)
            if failed := next((one for one in found if isinstance(one, BaseException)), None):
                raise failed
            run = await submit(0)  # the last: its run folder is what every kernel lists
        except BaseException:
            await asyncio.shield(self._undo(hosts, opened, accepted, plan.run_id))
            raise
        return run

    async def _open(self, hosts: Sequence[SshBackend], run_id: str) -> list[dict[str, Any]]:
        """Start the process on each machine that connects it with the others."""
        token = secrets.token_hex(16)
        calls = [
            host._ssh.call("nodes", {"verb": "open", "run": run_id, "node": number, "token": token})
            for number, host in enumerate(hosts)
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        opened = [one for one in found if isinstance(one, dict)]
        if failed := next((one for one in found if isinstance(one, BaseException)), None):
            await self._undo(hosts, [one if isinstance(one, dict) else {} for one in found], (), run_id)
            raise failed
        return [{**one, "token": token} for one in opened]

    async def _find_address(self, hosts: Sequence[SshBackend], opened: Sequence[Mapping[str, Any]]) -> str:
        """Return an address of node 0 that all the other machines reach.

        Raises
        ------
        TargetError
            There is none.
        """
        connection = self._ssh.connection
        candidates = list(dict.fromkeys([*opened[0]["addresses"], connection.address, connection.target.destination]))
        request = {
            "verb": "reach", "addresses": [one for one in candidates if one], "port": opened[0]["port"],
            "token": opened[0]["token"],
        }  # fmt: skip
        replies = await asyncio.gather(*(host._ssh.call("nodes", request) for host in hosts[1:]))
        errors = [{row["address"]: row["error"] for row in reply["addresses"]} for reply in replies]
        for address in request["addresses"]:
            if not any(reply[address] for reply in errors):
                return str(address)
        number, reply = next((i + 1, reply) for i, reply in enumerate(errors) if any(reply.values()))
        names = self._target.hosts
        tried = "; ".join(f"{address}: {error}" for address, error in reply.items() if error)
        raise TargetError(
            f"Node {number} ({names[number]}) does not reach node 0 ({names[0]}): {tried}.",
            hint="The machines of a run connect to each other at ports above 1023. Open them between the machines, or"
            " give addresses of one network: --host.",
            code="ssh.nodes_unreachable",
        )

    async def _undo(
        self,
        hosts: Sequence[SshBackend],
        opened: Sequence[Mapping[str, Any]],
        accepted: Sequence[SshBackend],
        run_id: str,
    ) -> None:
        """End what a submit that failed has started."""
        for host, one in zip(hosts, opened, strict=True):
            with contextlib.suppress(AmlTrainError, OSError):
                if host in accepted:
                    await SshBackend.cancel(host, run_id)
                    await SshBackend.delete(host, run_id)
            with contextlib.suppress(AmlTrainError, OSError):
                if one:
                    await host._ssh.call("nodes", {"verb": "close", "connector": one["connector"]})

    # ---- runs

    async def cancel(self, run_id: str) -> None:
        """See :meth:`Backend.cancel`; asks all machines at once, so that none waits for another."""
        others = [asyncio.ensure_future(SshBackend.cancel(other, run_id)) for other in self._others]
        await super().cancel(run_id)
        await _wait_for(others)

    async def delete(self, run_id: str) -> None:
        """See :meth:`Backend.delete`; on all machines."""
        await super().delete(run_id)
        await _wait_for([asyncio.ensure_future(SshBackend.delete(other, run_id)) for other in self._others])

    async def read(self, run_id: str, stream: str, offset: int, limit: int = 1 << 20) -> Chunk:
        """See :meth:`Backend.read`; from the machine that has the stream."""
        name, number = stream_of(stream)
        if not number or monitor_of(run_id):
            return await super().read(run_id, stream, offset, limit)
        if name in PER_NODE:
            if number >= len(self._hosts):
                return Chunk(b"", max(0, offset))
            return await SshBackend.read(self._hosts[number], run_id, name, offset, limit)
        host = self._hosts[await self._node_of(run_id, number)]
        return await SshBackend.read(host, run_id, stream, offset, limit)

    async def _node_of(self, run_id: str, rank: int) -> int:
        """Return the node that runs a rank: the nodes have equal numbers of them, one node after the other."""
        nodes, ranks, servers = self._shapes.get(run_id, (1, 1, 0))
        if rank >= ranks and (run := await self.find(run_id)) is not None:
            nodes, ranks = run.status.nodes, run.status.ranks
            servers = run.spec.distribution.parameter_servers
            self._shapes[run_id] = nodes, ranks, servers
            if len(self._shapes) > _MAX_KNOWN_RUNS:
                del self._shapes[next(iter(self._shapes))]
        workers = ranks - servers
        node = (rank - workers) % nodes if rank >= workers else rank // max(1, workers // nodes)
        return min(node, nodes - 1, len(self._hosts) - 1)

    async def close(self) -> None:
        """See :meth:`Backend.close`."""
        await asyncio.gather(super().close(), *(other.close() for other in self._others))


async def _wait_for(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the other machines, but not for one that does not answer; a run of fewer nodes is not on all."""
    if tasks:
        await asyncio.wait(tasks, timeout=_OTHERS_TIMEOUT_S)
    for task in tasks:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _added(infos: Sequence[TargetInfo], target: SshTarget) -> TargetInfo:
    """Return the sum of several machines."""
    first = infos[0]

    def total(field: str) -> int | None:
        values = [getattr(info, field) for info in infos]
        return None if None in values else sum(values)

    slots: dict[str, dict[str, int]] = {}
    for info in infos:
        for kind, counts in info.slots.items():
            row = slots.setdefault(kind, {})
            for name, value in counts.items():
                row[name] = row.get(name, 0) + value
    return msgspec.structs.replace(
        first,
        target=target.name,
        cpus=total("cpus"),
        memory=total("memory"),
        gpus=tuple(
            {**gpu, "label": f"node {node} {gpu_name(gpu)}"} for node, info in enumerate(infos) for gpu in info.gpus
        ),
        gpus_lost=tuple(gpu for info in infos for gpu in info.gpus_lost),
        gpu_note="; ".join(dict.fromkeys(info.gpu_note for info in infos if info.gpu_note)),
        slots=slots,
        queued=sum(info.queued for info in infos),
        running=sum(info.running for info in infos),
        detail=f"{len(infos)} machines: {', '.join(target.hosts)}",
    )
