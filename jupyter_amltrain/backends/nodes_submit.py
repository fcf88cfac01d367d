"""Submit of a run of several nodes, one on each machine over SSH. Loop thread only."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from jupyter_amltrain.backends.base import LaunchPlan
from jupyter_amltrain.backends.ssh_hosts import HostBackend
from jupyter_amltrain.errors import AmlTrainError, TargetError
from jupyter_amltrain.schema.run import Run


class NodesSubmit:
    """Submits one run to several machines, which connect to each other.

    Parameters
    ----------
    hosts
        The machines of the run, the first one is node 0.
    """

    def __init__(self, hosts: Sequence[HostBackend]) -> None:
        self._hosts = hosts

    async def submit(self, plan: LaunchPlan, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Run:
        """Submit a run to all of its machines, or to none.

        Parameters
        ----------
        plan
            That of node 0.

        Raises
        ------
        TargetError
            The machines do not reach each other, or are not different.
        """
        hosts = self._hosts
        others = await asyncio.gather(*(host.plan(plan.spec, plan.snapshot, plan.run_id) for host in hosts[1:]))
        parts = [plan, *others]
        # Files before processes: these wait for each other, and not as long as large files may take.
        await asyncio.gather(*(host._send(part) for host, part in zip(hosts, parts, strict=True)))
        opened = await self._open(plan.run_id)
        accepted: list[HostBackend] = []
        try:
            require_different(hosts, opened)
            address = await self._find_address(opened)
            order = sorted(range(len(hosts)), key=lambda number: str(opened[number]["queue"]))
            nodes = {**plan.request["nodes"], "order": order, "address": address, "port": opened[0]["port"]}

            async def submit_part(number: int) -> Run:
                part, tracking = parts[number], plan.request["tracking"]
                request = {**part.request, "nodes": {**nodes, "node": number}, "tracking": tracking}
                part = msgspec.structs.replace(part, request=request, origin=plan.origin, notes=plan.notes)
                run = await hosts[number]._submit(part, environ, secrets)
                accepted.append(hosts[number])
                return run

            found = await asyncio.gather(*map(submit_part, range(1, len(hosts))), return_exceptions=True)
            if failed := next((one for one in found if isinstance(one, BaseException)), None):
                raise failed
            run = await submit_part(0)  # the last: its run folder is what every kernel lists
        except BaseException:
            await asyncio.shield(self._undo(opened, accepted, plan.run_id))
            raise
        return run

    async def _open(self, run_id: str) -> list[dict[str, Any]]:
        """Start the process on each machine that connects it with the others."""
        token = secrets.token_hex(16)
        calls = [
            host.call("nodes", {"verb": "open", "run": run_id, "node": number, "token": token})
            for number, host in enumerate(self._hosts)
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        opened = [one for one in found if isinstance(one, dict)]
        if failed := next((one for one in found if isinstance(one, BaseException)), None):
            await self._undo([one if isinstance(one, dict) else {} for one in found], (), run_id)
            raise failed
        return [{**one, "token": token} for one in opened]

    async def _find_address(self, opened: Sequence[Mapping[str, Any]]) -> str:
        """Return an address of node 0 that all the other machines reach.

        Raises
        ------
        TargetError
            There is none.
        """
        candidates = list(dict.fromkeys([*opened[0]["addresses"], *self._hosts[0].addresses]))
        request = {
            "verb": "reach", "addresses": candidates, "port": opened[0]["port"],
            "token": opened[0]["token"],
        }  # fmt: skip
        replies = await asyncio.gather(*(host.call("nodes", request) for host in self._hosts[1:]))
        errors = [{row["address"]: row["error"] for row in reply["addresses"]} for reply in replies]
        for address in request["addresses"]:
            if not any(reply[address] for reply in errors):
                return str(address)
        number, reply = next((i + 1, reply) for i, reply in enumerate(errors) if any(reply.values()))
        tried = "; ".join(f"{address}: {error}" for address, error in reply.items() if error)
        raise TargetError(
            f"Node {number} ({self._hosts[number].host}) does not reach node 0 ({self._hosts[0].host}): {tried}.",
            hint="The machines of a run connect to each other at ports above 1023. Open them between the machines, or"
            " give addresses of one network: --host.",
            code="ssh.nodes_unreachable",
        )

    async def _undo(
        self,
        opened: Sequence[Mapping[str, Any]],
        accepted: Sequence[HostBackend],
        run_id: str,
    ) -> None:
        """End what a submit that failed has started."""
        for host, one in zip(self._hosts, opened, strict=True):
            with contextlib.suppress(AmlTrainError, OSError):
                if host in accepted:
                    await host.cancel(run_id)
                    await host.delete(run_id)
            with contextlib.suppress(AmlTrainError, OSError):
                if one:
                    await host.call("nodes", {"verb": "close", "connector": one["connector"]})


def require_different(hosts: Sequence[HostBackend], replies: Sequence[Mapping[str, Any]]) -> None:
    """Refuse one machine under two names, which would wait for its own slots, and one state root of two.

    Parameters
    ----------
    replies
        The names of each machine's queue and state root.

    Raises
    ------
    TargetError
        Two machines have the same one.
    """
    queues: dict[str, str] = {}
    homes: dict[str, str] = {}
    for host, reply in zip(hosts, replies, strict=True):
        if (other := queues.setdefault(str(reply["queue"]), host.host)) != host.host:
            raise TargetError(
                f"{other} and {host.host} are the same machine.",
                hint="Give each machine once: every node of a run needs a machine of its own.",
                code="ssh.same_machine",
                field="host",
            )
        if (other := homes.setdefault(str(reply["home"]), host.host)) != host.host:
            raise TargetError(
                f"{other} and {host.host} share the folder {host.home}.",
                hint="Each machine needs a folder on its own disk for runs: --workdir /local/folder",
                code="ssh.shared_workdir",
                field="workdir",
            )
