"""The machines of a demonstration target: their sizes and prices, and what starts, scales and removes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from jupyter_amltrain.backends.provisioner import (
    Progress,
    ProvisionState,
    scale_action,
    start_stop_actions,
    stopped_runs_text,
)
from jupyter_amltrain.demo import FakeTarget
from jupyter_amltrain.demo.fake_node import BASELINE, CPUS, MEMORY, NAME, SIZE, uuid_of
from jupyter_amltrain.errors import CapacityError, QuotaExceeded, TargetError, TargetUnreachable
from jupyter_amltrain.schema.fields import TargetAction
from jupyter_amltrain.schema.target import TargetInfo


class FakeSize(msgspec.Struct, frozen=True):
    """A simulated VM size; memory in bytes (of one GPU: MiB), price per hour."""

    cpus: int
    memory: int
    gpus: int
    gpu_name: str
    gpu_memory: int
    price: float

    @property
    def model(self) -> tuple[str, int]:
        """Name of a GPU, and its memory in MiB."""
        return (self.gpu_name, self.gpu_memory) if self.gpus else (NAME, SIZE)


_GIB = 1 << 30

#: By the name in :class:`~jupyter_amltrain.demo.FakeTarget`.
SIZES = MappingProxyType(
    {
        "cpu-4": FakeSize(4, 16 * _GIB, 0, "", 0, 0.23),
        "cpu-32": FakeSize(32, 128 * _GIB, 0, "", 0, 1.81),
        "gpu-v100": FakeSize(6, 112 * _GIB, 1, "Fake V100 16GB", 16_384, 3.06),
        "gpu-8xa100": FakeSize(96, 900 * _GIB, 8, "Fake A100 40GB", 40_960, 27.2),
        "gpu-8xh100": FakeSize(96, 1900 * _GIB, 8, NAME, SIZE, 98.32),
    }
)

CURRENCY = "USD"

#: Price of a low-priority machine as a fraction of the normal price.
LOW_PRIORITY_PRICE_FACTOR = 0.2

_UNSIZED = FakeSize(CPUS, MEMORY, 0, NAME, SIZE, 0.0)


def size_of(target: FakeTarget) -> FakeSize:
    """Return the machine of a target; a target without a size has a machine that is free of charge."""
    return SIZES[target.size] if target.size else msgspec.structs.replace(_UNSIZED, gpus=target.gpus)


def with_size(target: FakeTarget) -> FakeTarget:
    """Return `target` with the number of GPUs of its size."""
    return msgspec.structs.replace(target, gpus=size_of(target).gpus)


def target_info_of(target: FakeTarget, running: int = 0, queued: int = 0) -> TargetInfo:
    """Return the result of a target's check."""
    size = size_of(target)
    return TargetInfo(
        target=target.name,
        kind="fake",
        cpus=size.cpus,
        memory=size.memory,
        gpus=tuple(
            {
                "index": i,
                "name": size.gpu_name,
                "uuid": uuid_of(0, i),
                "memory_total": size.gpu_memory << 20,
                "memory_used": BASELINE << 20,
            }
            for i in range(size.gpus)
        ),
        slots={
            "cpu": {"total": size.cpus, "free": size.cpus},
            "gpu": {"total": size.gpus, "free": size.gpus},
        },
        running=running,
        queued=queued,
        survives={"kernel": {"answer": "no", "why": "it lives in this kernel's memory"}},
    )


#: Seconds between two progress events of an operation.
PROGRESS_INTERVAL_S = 1.0


class FakeMachines:
    """The machines behind a :class:`~jupyter_amltrain.demo.fake_backend.FakeBackend`.

    Their state is in memory only: in another kernel a single machine is running, and a cluster has its minimum
    of nodes.

    Parameters
    ----------
    busy
        Returns the number of machines that runs use now.
    cancel_runs
        Ends every run.

    Attributes
    ----------
    script
        The target with its current simulated behavior.
    """

    def __init__(self, target: FakeTarget, busy: Callable[[], int], cancel_runs: Callable[[], None]) -> None:
        self.script = with_size(target)
        self._busy, self._cancel_runs = busy, cancel_runs
        self._on = True
        self._nodes_on = self.script.min_nodes
        self._used_at = time.monotonic()

    @property
    def _cluster(self) -> bool:
        return bool(self.script.size) and self.script.max_nodes > 1

    def _nodes(self, busy: int) -> int:
        """Return the number of running machines of a cluster, `busy` of which are used by runs."""
        now = time.monotonic()
        if busy:  # runs start machines, which stay on until the idle time has passed
            self._used_at, self._nodes_on = now, max(self._nodes_on, busy)
        nodes = self._nodes_on
        if now - self._used_at > self.script.idle_minutes * 60:
            nodes = self._nodes_on = self.script.min_nodes
        return min(self.script.max_nodes, nodes)

    def require_reachable(self) -> None:
        """Raise ``TargetUnreachable`` if the target is simulated as unreachable."""
        if self.script.unreachable:
            raise TargetUnreachable(
                f"Cannot reach {self.script.name!r}: the target simulates an unreachable machine.",
                hint=f"Try again: %aml_compute test {self.script.name}",
            )

    def require_on(self) -> None:
        """Raise ``TargetError`` if the machine is stopped."""
        if not self._on:
            name = self.script.name
            raise TargetError(f"{name!r} is stopped.", hint=f"Start it: %aml_compute start {name}")

    def _price(self) -> float:
        return size_of(self.script).price * (LOW_PRIORITY_PRICE_FACTOR if self.script.low_priority else 1.0)

    async def state(self) -> ProvisionState:
        """See :meth:`Provisioner.state`."""
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

    async def _simulate(self, verb: str, progress: Progress, description: str) -> None:
        """Wait for the configured time; fail after half of it if the target is configured to fail."""
        seconds, fails = self.script.provisioning, self.script.fails == verb
        started = time.monotonic()
        end = started + (seconds / 2 if fails else seconds)
        while (now := time.monotonic()) < end:
            progress(
                f"{description}: {100 * (now - started) / seconds:.0f} %, about {started + seconds - now:.0f} s left."
            )
            await asyncio.sleep(min(PROGRESS_INTERVAL_S, end - now))
        if fails:
            raise self.failure(verb)

    def failure(self, verb: str) -> TargetError:
        """Return the error of an operation that is configured to fail."""
        name, size = self.script.name, self.script.size or "this size"
        if verb in ("create", "scale"):
            return QuotaExceeded(
                f"the quota for {size} is used up.", hint="Choose another size, or ask for more quota."
            ).about(repr(name))
        if verb in ("start", "test"):
            return CapacityError(
                f"there is no free {size} machine at the moment.", hint="Try again later, or another size."
            ).about(repr(name))
        return TargetError(f"the service refused to {verb} it.", hint=f"Try again: %aml_compute {verb} {name}").about(
            repr(name)
        )

    def _within_quota(self, nodes: int) -> None:
        cores = nodes * size_of(self.script).cpus
        if self.script.quota and cores > self.script.quota:
            raise QuotaExceeded(
                f"{_machines(nodes)} of {self.script.size or 'this size'}"
                f" {'has' if nodes == 1 else 'have'} {cores} cores,"
                f" the quota is {self.script.quota}.",
                hint="Use fewer or smaller machines, or ask for more quota.",
            ).about(repr(self.script.name))

    async def create(self, progress: Progress) -> None:
        """See :meth:`Provisioner.create`."""
        self.require_reachable()
        if not self.script.size and self.script.fails != "create":
            return
        self._within_quota(self.script.max_nodes)
        what = f"a cluster of {_machines(self.script.max_nodes)} at most" if self._cluster else "the machine"
        await self._simulate("create", progress, f"Creating {what}")

    async def start(self, progress: Progress) -> None:
        """See :meth:`Provisioner.start`."""
        self.require_reachable()
        if not self._on:
            await self._simulate("start", progress, "Starting the machine")
            self._on = True

    async def stop(self, progress: Progress) -> None:
        """See :meth:`Provisioner.stop`."""
        self.require_reachable()
        if self._on:
            await self._simulate("stop", progress, "Stopping the machine")
            self._cancel_runs()
            self._on = False

    async def scale(self, settings: Mapping[str, Any], progress: Progress) -> None:
        """See :meth:`Provisioner.scale`."""
        self.require_reachable()
        nodes = int(settings.get("min_nodes", self.script.min_nodes))
        self._within_quota(max(nodes, int(settings.get("max_nodes", 0))))
        await self._simulate("scale", progress, f"Scaling from {self._nodes(self._busy())} to {_machines(nodes)}")
        self._nodes_on, self._used_at = nodes, time.monotonic()
        self.script = msgspec.structs.replace(self.script, **settings)

    async def remove(self, progress: Progress) -> None:
        """See :meth:`Provisioner.remove`."""
        if self.script.size or self.script.fails == "delete":
            await self._simulate("delete", progress, "Releasing the machines")
        self._cancel_runs()
        self._on = False

    def confirmation(self, verb: str, values: Mapping[str, Any], *, running: int, queued: int = 0) -> str:
        """See :meth:`Provisioner.confirmation`."""
        name, price, script = self.script.name, self._price(), self.script
        if verb == "delete":
            stopped = stopped_runs_text(running, queued)
            return f"Deletes {name!r}: {stopped and stopped + ', and '}the logs of its runs are lost."
        if verb == "stop":
            stopped = stopped_runs_text(running, queued)
            return f"Stops {name!r}: {stopped} too." if stopped else ""
        if not price or verb not in ("create", "start", "scale"):
            return ""
        if not self._cluster:
            return f"Costs {_money(price)} per hour until it is stopped."
        if verb == "create":
            idle_text = (
                f"{script.min_nodes} of them stay on ({_money(script.min_nodes * price)} per hour), the others stop"
                if script.min_nodes
                else "all of them stop"
            )
            return (
                f"Costs up to {script.max_nodes} x {price:.2f} = {_money(script.max_nodes * price)} per hour while"
                f" nodes run; {idle_text} after {script.idle_minutes:g} min idle."
            )
        min_nodes, max_nodes = int(values.get("min_nodes") or 0), int(values.get("max_nodes") or 0)
        costs = []
        if min_nodes > script.min_nodes:
            costs.append(
                f"Costs {min_nodes} x {price:.2f} = {_money(min_nodes * price)} per hour until it is scaled down."
            )
        if max_nodes > script.max_nodes:
            costs.append(
                f"Costs up to {max_nodes} x {price:.2f} = {_money(max_nodes * price)} per hour while nodes run."
            )
        return " ".join(costs)

    def actions(self, state: ProvisionState) -> tuple[TargetAction, ...]:
        """See :meth:`Provisioner.actions`."""
        delete = TargetAction(verb="delete")
        if not self.script.size:
            return (delete,)
        if self._cluster:
            script = self.script
            return (scale_action(script.min_nodes, script.max_nodes, script.idle_minutes), delete)
        return (*start_stop_actions(state.state == "stopped"), delete)

    def renew(self, target: FakeTarget) -> None:
        """See :meth:`Provisioner.renew`."""
        self.script, self._nodes_on = with_size(target), target.min_nodes


def _machines(number: int) -> str:
    return f"{number} machine{'' if number == 1 else 's'}"


def _money(amount: float) -> str:
    return f"{amount:.2f} {CURRENCY}"
