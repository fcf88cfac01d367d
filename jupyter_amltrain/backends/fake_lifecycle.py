"""Machines that are not there: sizes, prices, quotas, and works that are slow or fail as scripted."""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.backends.fake_sizes import CURRENCY, LOW, scripted, size_of
from jupyter_amltrain.backends.fake_telemetry import NAME
from jupyter_amltrain.backends.lifecycle import Progress, Provisioned, ProvisionState, scaling, stopped, switching
from jupyter_amltrain.errors import CapacityError, QuotaExceeded, TargetError
from jupyter_amltrain.spec.fields import Act
from jupyter_amltrain.spec.target import ComputeTarget, FakeTarget

#: A work tells how far it is this often, at most (seconds).
STEP = 1.0


class FakeLifecycle(Provisioned):
    """The works of :class:`~jupyter_amltrain.backends.fake.FakeBackend`.

    What is on lives in memory: another kernel finds a single machine running and a cluster
    with the machines that it keeps.
    """

    #: `target` as it is scripted now.
    _script: FakeTarget

    def _begin(self) -> None:
        """Called once."""
        self._on = True
        self._kept = self._script.min_nodes
        self._used = time.monotonic()

    @property
    def _cluster(self) -> bool:
        return bool(self._script.size) and self._script.max_nodes > 1

    def _nodes(self, busy: int) -> int:
        """Machines of a cluster that are on; `busy` of them are used now."""
        now = time.monotonic()
        if busy:  # it brings machines on, and they stay until they have been idle for long enough
            self._used, self._kept = now, max(self._kept, busy)
        kept = self._kept
        if now - self._used > self._script.idle_minutes * 60:
            kept = self._kept = self._script.min_nodes
        return min(self._script.max_nodes, kept)

    @abc.abstractmethod
    def _busy(self) -> int:
        """Machines that runs use now."""

    @abc.abstractmethod
    def _cancel_all(self) -> None:
        """End every run."""

    @abc.abstractmethod
    def _answer(self) -> None:
        """Raise when the target is scripted not to answer."""

    def _ready(self) -> None:
        """Raise when the machine is stopped."""
        if not self._on:
            name = self.target.name
            raise TargetError(f"{name!r} is stopped.", hint=f"Start it: %aml_compute start {name}")

    def _price(self) -> float:
        return size_of(self._script).price * (LOW if self._script.low_priority else 1.0)

    async def state(self) -> ProvisionState:
        """See :meth:`Provisioned.state`."""
        self._answer()
        script, size = self._script, size_of(self._script)
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
        """Take as long as scripted, and fail half-way if scripted."""
        seconds, fails = self._script.provisioning, self._script.fails == verb
        begin = time.monotonic()
        end = begin + (seconds / 2 if fails else seconds)
        while (now := time.monotonic()) < end:
            progress(f"{what}: {100 * (now - begin) / seconds:.0f} %, some {begin + seconds - now:.0f} s left.")
            await asyncio.sleep(min(STEP, end - now))
        if fails:
            raise self._failure(verb)

    def _failure(self, verb: str) -> TargetError:
        name, size = self.target.name, self._script.size or "this size"
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
        cores = nodes * size_of(self._script).cpus
        if self._script.quota and cores > self._script.quota:
            raise QuotaExceeded(
                f"{self.target.name!r}: {_machines(nodes)} of {self._script.size or 'this size'}"
                f" {'has' if nodes == 1 else 'have'} {cores} cores,"
                f" the quota is {self._script.quota}.",
                hint="Take fewer or smaller machines, or ask for more quota.",
            )

    async def create(self, progress: Progress) -> None:
        """See :meth:`Provisioned.create`."""
        self._answer()
        if not self._script.size and self._script.fails != "create":
            return
        self._within_quota(self._script.max_nodes)
        what = f"a cluster of {_machines(self._script.max_nodes)} at most" if self._cluster else "the machine"
        await self._work("create", progress, f"Making {what}")

    async def start(self, progress: Progress) -> None:
        """See :meth:`Provisioned.start`."""
        self._answer()
        if not self._on:
            await self._work("start", progress, "Starting the machine")
            self._on = True

    async def stop(self, progress: Progress) -> None:
        """See :meth:`Provisioned.stop`."""
        self._answer()
        if self._on:
            await self._work("stop", progress, "Stopping the machine")
            self._cancel_all()
            self._on = False

    async def scale(self, settings: Mapping[str, Any], progress: Progress) -> None:
        """See :meth:`Provisioned.scale`."""
        self._answer()
        nodes = int(settings.get("min_nodes", self._script.min_nodes))
        self._within_quota(max(nodes, int(settings.get("max_nodes", 0))))
        await self._work("scale", progress, f"Going from {self._nodes(self._busy())} to {_machines(nodes)}")
        self._kept, self._used = nodes, time.monotonic()
        assert isinstance(self.target, FakeTarget)
        self.target = msgspec.structs.replace(self.target, **settings)
        self._script = msgspec.structs.replace(self._script, **settings)

    async def remove(self, progress: Progress) -> None:
        """See :meth:`Provisioned.remove`."""
        if self._script.size or self._script.fails == "delete":
            await self._work("delete", progress, "Letting the machines go")
        self._cancel_all()
        self._on = False

    def asks(self, verb: str, values: Mapping[str, Any], *, running: int, queued: int = 0) -> str:
        """See :meth:`Provisioned.asks`."""
        name, price, script = self.target.name, self._price(), self._script
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
        if not self._script.size:
            return (delete,)
        if self._cluster:
            script = self._script
            return (scaling(script.min_nodes, script.max_nodes, script.idle_minutes), delete)
        return (*switching(state.state == "stopped"), delete)

    def renew(self, target: ComputeTarget) -> None:
        """See :meth:`Provisioned.renew`."""
        assert isinstance(target, FakeTarget)
        self.target, self._script, self._kept = target, scripted(target), target.min_nodes


def _machines(number: int) -> str:
    return f"{number} machine{'' if number == 1 else 's'}"


def _money(amount: float) -> str:
    return f"{amount:.2f} {CURRENCY}"
