"""Simulated machines of a demonstration target: sizes, prices, quotas, and operations that fail as scripted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.backends.fake_sizes import CURRENCY, LOW, scripted, size_of
from jupyter_amltrain.backends.fake_telemetry import NAME
from jupyter_amltrain.backends.lifecycle import Progress, ProvisionState, scaling, stopped, switching
from jupyter_amltrain.errors import CapacityError, QuotaExceeded, TargetError, TargetUnreachable
from jupyter_amltrain.spec.fields import Act
from jupyter_amltrain.spec.target import FakeTarget

#: Interval in which an operation reports how far it is.
PROGRESS_INTERVAL_S = 1.0


class FakeMachines:
    """The machines behind a :class:`~jupyter_amltrain.backends.fake.FakeBackend`.

    Which of them are on is kept in memory: another kernel finds a single machine running, and a cluster
    with its minimum of nodes.

    Parameters
    ----------
    busy
        Tells how many machines are used by runs now.
    cancel_runs
        Ends every run.

    Attributes
    ----------
    script
        The target with the behavior that it has now.
    """

    def __init__(self, target: FakeTarget, busy: Callable[[], int], cancel_runs: Callable[[], None]) -> None:
        self.script = scripted(target)
        self._busy, self._cancel_runs = busy, cancel_runs
        self._on = True
        self._nodes_on = self.script.min_nodes
        self._used_at = time.monotonic()

    @property
    def _cluster(self) -> bool:
        return bool(self.script.size) and self.script.max_nodes > 1

    def _nodes(self, busy: int) -> int:
        """Number of machines of a cluster that are on; `busy` of them are used by runs."""
        now = time.monotonic()
        if busy:  # it brings machines on, and they stay until they have been idle for long enough
            self._used_at, self._nodes_on = now, max(self._nodes_on, busy)
        kept = self._nodes_on
        if now - self._used_at > self.script.idle_minutes * 60:
            kept = self._nodes_on = self.script.min_nodes
        return min(self.script.max_nodes, kept)

    def require_reachable(self) -> None:
        """Raise ``TargetUnreachable`` if the target is scripted not to answer."""
        if self.script.unreachable:
            raise TargetUnreachable(
                f"Cannot reach {self.script.name!r}: it is scripted not to answer.",
                hint=f"%aml_compute test {self.script.name}",
            )

    def require_on(self) -> None:
        """Raise ``TargetError`` if the machine is stopped."""
        if not self._on:
            name = self.script.name
            raise TargetError(f"{name!r} is stopped.", hint=f"Start it: %aml_compute start {name}")

    def _price(self) -> float:
        return size_of(self.script).price * (LOW if self.script.low_priority else 1.0)

    async def state(self) -> ProvisionState:
        """See :meth:`Provisioned.state`."""
        self.require_reachable()
        script, size = self.script, size_of(self.script)
        if not script.size:
            return ProvisionState(
                state="ready", cpus=size.cpus, memory=size.memory, gpus=size.gpus, gpu_name=NAME * bool(size.gpus)
            )
        on = self._nodes(self._busy()) if self._cluster else int(self._on)
        return ProvisionState(
            state="ready" if self._on else "stopped",
            nodes=on if self._cluster else None,
            max_nodes=script.max_nodes if self._cluster else None,
            size=script.size,
            cpus=size.cpus,
            memory=size.memory,
            gpus=size.gpus,
            gpu_name=size.gpu_name,
            price_node=round(self._price(), 4),
            price=round(on * self._price(), 4),
            currency=CURRENCY,
            quota=f"{on * size.cpus} of {script.quota} cores" if script.quota else "",
            detail="" if on or not self._cluster else "No machine is on; a run starts one.",
        )

    async def _work(self, verb: str, progress: Progress, what: str) -> None:
        """Take the scripted time, and fail after half of it if scripted."""
        seconds, fails = self.script.provisioning, self.script.fails == verb
        begin = time.monotonic()
        end = begin + (seconds / 2 if fails else seconds)
        while (now := time.monotonic()) < end:
            progress(f"{what}: {100 * (now - begin) / seconds:.0f} %, some {begin + seconds - now:.0f} s left.")
            await asyncio.sleep(min(PROGRESS_INTERVAL_S, end - now))
        if fails:
            raise self.failure(verb)

    def failure(self, verb: str) -> TargetError:
        """The error of an operation that is scripted to fail."""
        name, size = self.script.name, self.script.size or "this size"
        if verb in ("create", "scale"):
            return QuotaExceeded(
                f"{name!r}: the quota for {size} is used up.", hint="Choose another size, or ask for more quota."
            )
        if verb in ("start", "test"):
            return CapacityError(
                f"{name!r}: there is no free {size} machine at the moment.", hint="Try again later, or another size."
            )
        return TargetError(
            f"{name!r}: the service refused to {verb} it.", hint=f"Try again: %aml_compute {verb} {name}"
        )

    def _within_quota(self, nodes: int) -> None:
        cores = nodes * size_of(self.script).cpus
        if self.script.quota and cores > self.script.quota:
            raise QuotaExceeded(
                f"{self.script.name!r}: {_machines(nodes)} of {self.script.size or 'this size'}"
                f" {'has' if nodes == 1 else 'have'} {cores} cores,"
                f" the quota is {self.script.quota}.",
                hint="Take fewer or smaller machines, or ask for more quota.",
            )

    async def create(self, progress: Progress) -> None:
        """See :meth:`Provisioned.create`."""
        self.require_reachable()
        if not self.script.size and self.script.fails != "create":
            return
        self._within_quota(self.script.max_nodes)
        what = f"a cluster of {_machines(self.script.max_nodes)} at most" if self._cluster else "the machine"
        await self._work("create", progress, f"Making {what}")

    async def start(self, progress: Progress) -> None:
        """See :meth:`Provisioned.start`."""
        self.require_reachable()
        if not self._on:
            await self._work("start", progress, "Starting the machine")
            self._on = True

    async def stop(self, progress: Progress) -> None:
        """See :meth:`Provisioned.stop`."""
        self.require_reachable()
        if self._on:
            await self._work("stop", progress, "Stopping the machine")
            self._cancel_runs()
            self._on = False

    async def scale(self, settings: Mapping[str, Any], progress: Progress) -> None:
        """See :meth:`Provisioned.scale`."""
        self.require_reachable()
        nodes = int(settings.get("min_nodes", self.script.min_nodes))
        self._within_quota(max(nodes, int(settings.get("max_nodes", 0))))
        await self._work("scale", progress, f"Going from {self._nodes(self._busy())} to {_machines(nodes)}")
        self._nodes_on, self._used_at = nodes, time.monotonic()
        self.script = msgspec.structs.replace(self.script, **settings)

    async def remove(self, progress: Progress) -> None:
        """See :meth:`Provisioned.remove`."""
        if self.script.size or self.script.fails == "delete":
            await self._work("delete", progress, "Letting the machines go")
        self._cancel_runs()
        self._on = False

    def asks(self, verb: str, values: Mapping[str, Any], *, running: int, queued: int = 0) -> str:
        """See :meth:`Provisioned.asks`."""
        name, price, script = self.script.name, self._price(), self.script
        if verb == "delete":
            its = stopped(running, queued)
            return f"Deletes {name!r}: {its and its + ', and '}the logs of its runs are lost."
        if verb == "stop":
            its = stopped(running, queued)
            return f"Stops {name!r}: {its} too." if its else ""
        if not price or verb not in ("create", "start", "scale"):
            return ""
        if not self._cluster:
            return f"Costs {_money(price)} per hour until it is stopped."
        if verb == "create":
            kept = (
                f"{script.min_nodes} of them stay on ({_money(script.min_nodes * price)} per hour), the others go"
                if script.min_nodes
                else "goes to 0 nodes"
            )
            return (
                f"Costs up to {script.max_nodes} x {price:.2f} = {_money(script.max_nodes * price)} per hour while"
                f" nodes run; {kept} after {script.idle_minutes:g} min idle."
            )
        nodes, most = int(values.get("min_nodes") or 0), int(values.get("max_nodes") or 0)
        costs = []
        if nodes > script.min_nodes:
            costs.append(f"Costs {nodes} x {price:.2f} = {_money(nodes * price)} per hour until it is scaled down.")
        if most > script.max_nodes:
            costs.append(f"Costs up to {most} x {price:.2f} = {_money(most * price)} per hour while nodes run.")
        return " ".join(costs)

    def acts(self, state: ProvisionState) -> tuple[Act, ...]:
        """See :meth:`Provisioned.acts`."""
        delete = Act(verb="delete")
        if not self.script.size:
            return (delete,)
        if self._cluster:
            script = self.script
            return (scaling(script.min_nodes, script.max_nodes, script.idle_minutes), delete)
        return (*switching(state.state == "stopped"), delete)

    def renew(self, target: FakeTarget) -> None:
        """See :meth:`Provisioned.renew`."""
        self.script, self._nodes_on = scripted(target), target.min_nodes


def _machines(number: int) -> str:
    return f"{number} machine{'' if number == 1 else 's'}"


def _money(amount: float) -> str:
    return f"{amount:.2f} {CURRENCY}"
