"""Nodes of one cluster: allocation, leases, idle time, release and preemption."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azureml_emulator import sizes

if TYPE_CHECKING:
    from azureml_emulator.nodes import Nodes


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
    """Nodes that one job owns until it releases them or they are preempted."""

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
        """Serve waiting leases, allocate missing nodes, and release idle ones."""
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
        """Return the nodes of a lease to the pool."""
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
        """Remove all nodes: leases end as if preempted, waiting requests are rejected."""
        self.closed = True
        self.nodes.clear()
        for waiter in self.waiting:
            if not waiter.ready.done():
                waiter.ready.set_exception(
                    NodesRefused("ClusterNotFound", why or f"Compute '{self.name}' was deleted.")
                )
        self.waiting.clear()
        self.target = 0
