"""Nodes of clusters (and of instances, serverless jobs and attached computes): scale up, lease, idle, pre-empt.

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
import itertools
import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.azure.emulator import sizes

if TYPE_CHECKING:
    from tests.azure.emulator.world import World

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?")


def seconds_of(duration: str | None, default: float = 120.0) -> float:
    """ISO 8601 duration -> seconds: ``PT1M40S`` -> 100."""
    found = _DURATION.fullmatch(duration or "")
    if not found or not duration:
        return default
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def lendable(name: str) -> bool:
    """Whether a size can be had at low priority: what vmSizes says, and no H100 (reported by users in 2026)."""
    size = sizes.find(name)
    return bool(size and size["lowPriorityCapable"] and "h100" not in size["family"].lower())


class NodesRefused(Exception):
    """These nodes can never be had: `code` and `message` are the service's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(eq=False)
class Node:
    """One VM. `state` in listNodes' words: preparing, idle, running, leaving, preempted, unusable."""

    id: str
    index: int
    address: str
    state: str = "preparing"
    job: str = ""
    since: float = 0.0
    epoch: int = 0


@dataclass(eq=False)
class Lease:
    """Nodes that one job owns until it gives them back or they are taken."""

    job: str
    compute: str
    nodes: list[Node]
    low_priority: bool
    preempted: asyncio.Event = field(default_factory=asyncio.Event)
    released: bool = False


@dataclass(eq=False)
class _Waiter:
    job: str
    count: int
    ready: asyncio.Future[Lease]


class Pool:
    """The nodes of one cluster (or of one serverless job): at most `most`, at least `least`.

    Attributes
    ----------
    errors : list of dict
        ``[{"error": {"code", "message"}}]`` while the service cannot get nodes; shown as the cluster's ``errors``.
    """

    def __init__(self, nodes: Nodes, name: str, size: str, low_priority: bool) -> None:
        self.owner = nodes
        self.world = nodes.world
        self.name, self.size, self.low_priority = name, size, low_priority
        self.least, self.most, self.idle = 0, 1, 120.0
        self.nodes: list[Node] = []
        self.waiting: list[_Waiter] = []
        self.errors: list[dict[str, Any]] = []
        self.gone = 0
        self.preempted = 0
        self.target = 0
        self.changed_at = self.world.clock.stamp()
        self.closed = False
        self._count = itertools.count()

    # ------------------------------------------------------------------------------------------ what the service shows
    @property
    def current(self) -> int:
        """Nodes that are there (and billed), those on their way out too."""
        return sum(node.state != "preparing" for node in self.nodes)

    @property
    def steady(self) -> bool:
        """Whether no node is coming or going."""
        return self.current == self.target and all(node.state not in ("preparing", "leaving") for node in self.nodes)

    def counts(self) -> dict[str, int]:
        """``nodeStateCounts`` of a cluster (recording 11b)."""
        names = ("preparing", "running", "idle", "unusable", "leaving")
        made = {f"{name}NodeCount": sum(node.state == name for node in self.nodes) for name in names}
        return {**made, "preemptedNodeCount": self.preempted}

    # --------------------------------------------------------------------------------------------------------- scaling
    def configure(self, least: int, most: int, idle: float) -> None:
        """New scale settings; takes effect at once."""
        self.least, self.most, self.idle = least, most, idle
        for node in self.nodes:
            if node.state == "idle":
                self._rest(node)
        self.plan()

    def plan(self) -> None:
        """Serve who waits, order what is missing, send home what nobody needs."""
        if self.closed:
            return
        self._serve()
        wanted = sum(node.state == "running" for node in self.nodes) + sum(waiter.count for waiter in self.waiting)
        alive = [node for node in self.nodes if node.state in ("preparing", "idle", "running")]
        self.errors = []
        target = min(self.most, max(self.least, wanted))
        missing = target - len(alive)
        granted = 0
        if missing > 0:
            granted = self._granted(missing)
            for _ in range(granted):
                self._bring()
        before = self.target
        self.target = min(self.most, len(alive) + granted)
        if self.target != before:
            self.changed_at = self.world.clock.stamp()
        idle = [node for node in alive if node.state == "idle"]
        for node in idle[: max(0, len(alive) - self.most)]:
            self._leave(node)

    def _granted(self, missing: int) -> int:
        """How many of the missing nodes the quota and the capacity hold; says why not in `errors`."""
        blocked = self.world.switches["fail_allocation"]
        if blocked and blocked in self.name:
            # Code as users report it (2026); the text is ours.
            message = (
                "There is not enough capacity in the region for the requested VM size. Try again later, or use "
                "dedicated nodes to improve the chances of an allocation."
            )
            self.errors = [{"error": {"code": "OutOfCapacity", "message": message}}]
            return 0
        if self.low_priority and not lendable(self.size):
            # Code and text as users report them (2026): the cluster is made, the refusal stands in its errors only.
            message = (
                f"The VM size {self.size} is not allowed for LowPriority. Please convert to Dedicated or use a "
                "different VM size."
            )
            self.errors = [{"error": {"code": "UnsupportedVMSizeForLowPriority", "message": message}}]
            return 0
        free = self.world.quota.free_nodes(self.size, self.low_priority)
        if free >= missing:
            return missing
        self.errors = [{"error": self.world.quota.reached(self.size, self.low_priority, missing)}]
        return max(0, free)

    def _bring(self) -> None:
        index = next(self._count)
        node = Node(f"tvmps_{uuid.uuid4().hex}_{'p' if self.low_priority else 'd'}", index, f"10.0.0.{4 + index}")
        node.since = self.world.clock.seconds()
        self.nodes.append(node)
        self.world.spawn(self._boot(node), f"node {node.id} of {self.name}")

    async def _boot(self, node: Node) -> None:
        await self.world.clock.sleep(float(self.world.switches["scale_seconds"]))
        if node in self.nodes and node.state == "preparing":
            self._rest(node)
            self.preempted = 0
            self.plan()

    def _rest(self, node: Node) -> None:
        node.state, node.job = "idle", ""
        node.epoch += 1
        self.world.spawn(self._dismiss(node, node.epoch), f"idle node {node.id}")

    async def _dismiss(self, node: Node, epoch: int) -> None:
        await self.world.clock.sleep(self.idle)
        if node in self.nodes and node.state == "idle" and node.epoch == epoch and not self.closed:
            alive = sum(one.state in ("preparing", "idle", "running") for one in self.nodes)
            if alive > self.least:
                self.target = max(self.least, alive - 1)
                self.changed_at = self.world.clock.stamp()
                self._leave(node)

    def _leave(self, node: Node) -> None:
        # As recorded (11b): the node still counts as idle while targetNodeCount says 0 already; then it leaves.
        node.state = "leaving"
        self.world.spawn(self._remove(node), f"leaving node {node.id}")

    async def _remove(self, node: Node) -> None:
        await self.world.clock.sleep(float(self.world.switches["scale_seconds"]) / 2)
        if node in self.nodes:
            self.nodes.remove(node)
        self.owner.replan()

    # ---------------------------------------------------------------------------------------------------------- leases
    def _serve(self) -> None:
        while self.waiting:
            waiter = self.waiting[0]
            idle = [node for node in self.nodes if node.state == "idle"]
            if waiter.ready.done():
                self.waiting.pop(0)
                continue
            if len(idle) < waiter.count:
                return
            self.waiting.pop(0)
            taken = idle[: waiter.count]
            for node in taken:
                node.state, node.job = "running", waiter.job
                node.epoch += 1
            waiter.ready.set_result(Lease(waiter.job, self.name, taken, self.low_priority))

    async def acquire(self, job: str, count: int) -> Lease:
        """Wait for `count` nodes, first come first served."""
        waiter = _Waiter(job, count, asyncio.get_running_loop().create_future())
        self.waiting.append(waiter)
        self.plan()
        try:
            return await waiter.ready
        except asyncio.CancelledError:
            if waiter in self.waiting:
                self.waiting.remove(waiter)
            if waiter.ready.done() and not waiter.ready.cancelled() and not waiter.ready.exception():
                self.give_back(waiter.ready.result())
            self.plan()
            raise

    def give_back(self, lease: Lease) -> None:
        """The nodes of a lease are idle again."""
        for node in lease.nodes:
            if node in self.nodes and node.state == "running":
                self._rest(node)
        self.plan()

    def take_away(self, lease: Lease) -> None:
        """Pre-empt: the nodes are gone at once, the lease's event is set."""
        for node in lease.nodes:
            if node in self.nodes:
                self.nodes.remove(node)
                self.preempted += 1
        lease.preempted.set()
        self.plan()

    def close(self, why: str = "") -> None:
        """All nodes are gone: leases end as if pre-empted, who waits is refused."""
        self.closed = True
        self.nodes.clear()
        for waiter in self.waiting:
            if not waiter.ready.done():
                waiter.ready.set_exception(
                    NodesRefused("ClusterNotFound", why or f"Compute '{self.name}' was deleted.")
                )
        self.waiting.clear()
        self.target = 0


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
