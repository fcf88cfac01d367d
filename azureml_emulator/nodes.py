"""Nodes of clusters (and of instances, serverless jobs and attached computes): scaling, leases, idle time, preemption.

For rooms that run jobs::

    lease = await world.nodes.acquire(compute_id, count, job="name")  # a compute's ARM id; waits for the nodes
    lease = await world.nodes.acquire_serverless("Standard_NC6s_v3", count, job="name", low_priority=True)
    lease.nodes[0].address, .id, .index                               # a Node each
    await lease.preempted.wait()                                      # set when the service takes them away
    world.nodes.release(lease)                                        # also after a pre-emption; idempotent
    world.nodes.reason("name")                                        # while it waits: why, in the service's words

`acquire` raises `NodesRefused` for what can never be: more nodes than the cluster's maximum or the quota hold.
Cancelling the waiting task gives its place up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from azureml_emulator import sizes
from azureml_emulator.pool import Lease, Node, NodesRefused, Pool

if TYPE_CHECKING:
    from azureml_emulator.world import World


class Nodes:
    """All pools of the world; part of it as ``world.nodes``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._pools: dict[str, Pool] = {}
        self._serverless: dict[str, Pool] = {}
        self._leases: list[tuple[Lease, Pool | None]] = []

    async def close(self) -> None:
        """Forget all; tasks end with the world's."""
        self._pools.clear()

    # ----------------------------------------------------------------------------------------------------------- pools
    def pool(self, compute_id: str) -> Pool | None:
        """The pool of a cluster."""
        return self._pools.get(compute_id.lower())

    def pools(self) -> list[Pool]:
        """Every pool, serverless ones too."""
        return [*self._pools.values(), *self._serverless.values()]

    def open(self, compute_id: str, size: str, low_priority: bool, least: int, most: int, idle: float) -> Pool:
        """Make (or change the scale of) a cluster's pool."""
        pool = self._pools.get(compute_id.lower())
        if pool is None:
            pool = self._pools[compute_id.lower()] = Pool(self, compute_id.rsplit("/", 1)[-1], size, low_priority)
        pool.configure(least, most, idle)
        return pool

    def shut(self, compute_id: str) -> None:
        """A cluster is deleted: its nodes go, jobs on them lose them."""
        pool = self._pools.pop(compute_id.lower(), None)
        if pool is not None:
            pool.close()
            for lease, owner in list(self._leases):
                if owner is pool:
                    lease.preempted.set()
        self.replan()

    def replan(self) -> None:
        """Something became free: every pool that waits looks again."""
        for pool in self.pools():
            pool.plan()

    # ---------------------------------------------------------------------------------------------------------- leases
    async def acquire(self, compute_id: str, count: int = 1, *, job: str) -> Lease:
        """Nodes of a compute of any kind; waits until they are there.

        Raises
        ------
        NodesRefused
            No such compute, more nodes than its maximum, more cores than the quota's limit, deleted meanwhile.
        """
        resource = self.world.resources.get(compute_id)
        if resource is None:
            raise NodesRefused("UnknownTargetType", f"Unknown compute target '{compute_id.rsplit('/', 1)[-1]}'.")
        kind = resource["properties"]["computeType"]
        pool = self.pool(compute_id)
        if kind != "AmlCompute" or pool is None:
            return await self._elsewhere(resource, count, job)
        if count > pool.most:
            raise NodesRefused(
                "JobNodeCountExceedsClusterMaxNodes",
                f"The requested job node count of {count} is greater than the maximum node count of {pool.most} of "
                f"compute cluster '{pool.name}'.",
            )
        self.world.quota.check_job(pool.size, pool.low_priority, count)
        return self._keep(await pool.acquire(job, count), pool)

    async def acquire_serverless(self, size: str, count: int = 1, *, job: str, low_priority: bool = False) -> Lease:
        """Nodes made for one job and gone with it; they count against the same quota.

        Raises
        ------
        NodesRefused
            Unknown size, or more cores than the quota's limit.
        """
        if sizes.find(size) is None:
            raise NodesRefused("InvalidVmSize", f"The specified VM size '{size}' is not supported.")
        self.world.quota.check_job(size, low_priority, count)
        pool = self._serverless.get(job)
        if pool is None:
            pool = self._serverless[job] = Pool(self, f"serverless-{job}", size, low_priority)
            pool.configure(0, count, 0.0)
        try:
            return self._keep(await pool.acquire(job, count), pool)
        except asyncio.CancelledError:
            self._serverless.pop(job, pool).close()
            self.replan()
            raise

    async def _elsewhere(self, resource: dict[str, Any], count: int, job: str) -> Lease:
        """An instance has one node for as many jobs as come, while it runs; attached computes are without limit."""
        properties = resource["properties"]
        name = resource["name"]
        if properties["computeType"] == "ComputeInstance":
            if count > 1:
                raise NodesRefused(
                    "JobNodeCountExceedsClusterMaxNodes",
                    f"The requested job node count of {count} is greater than 1: '{name}' is a compute instance.",
                )
            while (properties.get("properties") or {}).get("state") != "Running":
                await self.world.clock.sleep(0.1)
                if self.world.resources.get(resource["id"]) is not resource:
                    raise NodesRefused("ClusterNotFound", f"Compute '{name}' was deleted.")
        made = [Node(f"{name}-{index}", index, f"10.1.0.{4 + index}", "running", job) for index in range(count)]
        return self._keep(Lease(job, name, made, False), None)

    def _keep(self, lease: Lease, pool: Pool | None) -> Lease:
        self._leases.append((lease, pool))
        after = float(self.world.switches["preempt_after"])
        if after and lease.low_priority:
            self.world.spawn(self._preempt_later(lease, after), f"pre-emption of {lease.job}")
        return lease

    async def _preempt_later(self, lease: Lease, after: float) -> None:
        await self.world.clock.sleep(after)
        if not lease.released:
            self.preempt(lease.job)

    def release(self, lease: Lease) -> None:
        """Give nodes back; a second time changes nothing."""
        if lease.released:
            return
        lease.released = True
        for pair in self._leases:
            if pair[0] is lease:
                self._leases.remove(pair)
                pool = pair[1]
                break
        else:
            return
        if pool is None:
            return
        if self._serverless.get(lease.job) is pool:
            if not lease.preempted.is_set():
                self._serverless.pop(lease.job).close()
            self.replan()
            return
        pool.give_back(lease)
        self.replan()

    def drop_serverless(self, job: str) -> None:
        """A serverless job is over: whatever it still has is gone (also after a pre-emption that ended it)."""
        pool = self._serverless.pop(job, None)
        if pool is not None:
            pool.close()
            self.replan()

    def preempt(self, job: str) -> bool:
        """Take the low-priority nodes of a job away; whether it had any."""
        found = False
        for lease, pool in list(self._leases):
            if lease.job == job and lease.low_priority and pool is not None:
                pool.take_away(lease)
                found = True
        return found

    def reason(self, job: str) -> str:
        """Why a job still waits for nodes; empty when it does not."""
        for pool in self.pools():
            for waiter in pool.waiting:
                if waiter.job != job:
                    continue
                if pool.errors:
                    return str(pool.errors[0]["error"]["message"])
                coming = sum(node.state == "preparing" for node in pool.nodes)
                if coming:
                    return f"The cluster '{pool.name}' is scaling up: {coming} of {waiter.count} nodes are preparing."
                return f"The cluster '{pool.name}' is busy: {waiter.count} nodes are wanted, none is idle."
        return ""

    def jobs_on(self, compute_id: str) -> list[str]:
        """Jobs that hold nodes of a compute."""
        name = compute_id.rsplit("/", 1)[-1].lower()
        return [lease.job for lease, _ in self._leases if lease.compute.lower() == name]

    def billing(self) -> list[dict[str, Any]]:
        """What costs money now: nodes that are there, used or not."""
        return [
            {
                "kind": "serverless" if pool.name.startswith("serverless-") else "cluster",
                "name": pool.name,
                "size": pool.size,
                "nodes": len(pool.nodes),
                "low_priority": pool.low_priority,
            }
            for pool in self.pools()
            if pool.nodes
        ]
