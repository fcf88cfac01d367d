"""Provisioner: interface of backends that create, start, stop, scale and delete their target.

Such a backend also implements :class:`Provisioner`, which callers check by ``isinstance``.
``tests/contracts/lifecycle.py`` is the contract test.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.schema.fields import Field, TargetAction
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.sweep import trial_count
from jupyter_amltrain.schema.target import ComputeTarget
from jupyter_amltrain.text import money

#: Callback that takes one sentence about the progress of an operation.
Progress = Callable[[str], None]


def sending_text(service: str) -> str:
    """Return the progress of an operation until the service has accepted it."""
    return f"Sending the request to {service}"


class ProvisionState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a target's machines, as reported by the service.

    Attributes
    ----------
    state
        As in :class:`~jupyter_amltrain.schema.rows.TargetRow`, without operations of this kernel.
    nodes, max_nodes
        Current and maximum number of machines; ``None`` for a single machine, which is started and stopped instead.
    size
        The service's name of the VM size.
    cpus, memory, gpus, gpu_name
        Of one machine; memory in bytes.
    price_node, price
        Per hour: of one machine, and of all running ones; ``None`` if nothing is charged.
    quota
        One phrase, ``12 of 24 cores``.
    stops
        When the machine starts and stops automatically, as one phrase.
    detail
        One sentence about the state; empty if the state is sufficient.
    """

    state: str = "unknown"
    nodes: int | None = None
    max_nodes: int | None = None
    size: str = ""
    cpus: int | None = None
    memory: float | None = None
    gpus: int | None = None
    gpu_name: str = ""
    price_node: float | None = None
    price: float | None = None
    currency: str = ""
    quota: str = ""
    stops: str = ""
    detail: str = ""


class RunPrice(msgspec.Struct, frozen=True, kw_only=True):
    """Price per hour of the machines of one run.

    Attributes
    ----------
    machine
        What one machine is called: ``gpubox``, ``each machine of gpus``, ``the machine of this run``.
    machines
        Of the run; of a sweep those of all trials that run at the same time.
    each
        Of one machine.
    most
        Whether `machines` is a maximum.
    """

    machine: str
    machines: int
    each: float
    currency: str
    most: bool = False

    @property
    def amount(self) -> str:
        """``2 x 3.67 = 7.34 USD``."""
        total = money(self.machines * self.each, self.currency)
        return f"{self.machines} x {self.each:.4g} = {total}" if self.machines > 1 else total

    @property
    def text(self) -> str:
        """One sentence."""
        if self.machines == 1:
            return f"While it is on, {self.machine} costs {self.amount} per hour."
        most = "up to " if self.most else ""
        machines = f"{most}{self.machines}" if self.most else f"the {self.machines}"
        return f"While they are on, {machines} machines of this run cost {most}{self.amount} per hour."


class Provisioner(abc.ABC):
    """A target whose machines a service creates, and perhaps starts, stops and scales.

    Constructing the backend does no I/O: it is also constructed for a form that is being filled in.
    All operations are canceled with the kernel, but continue at the service. Each raises
    ``QuotaExceeded``, ``CapacityError``, ``AuthenticationError`` or another
    ``AmlTrainError`` that says what to do. An operation may change :attr:`target` (e.g. the minimum number of
    nodes), which is then stored.
    """

    target: ComputeTarget
    #: Whether the service keeps the runs of a deleted target.
    keeps_history: ClassVar[bool] = False

    def adopts_runs_of(self, past: ComputeTarget) -> bool:
        """Return whether this target takes over the runs of a removed target with the same name."""
        return False

    @abc.abstractmethod
    async def state(self) -> ProvisionState:
        """Fetch the state from the service. Raises ``TargetUnreachable``, ``AuthenticationError``."""

    async def is_gone(self) -> bool:
        """Return whether the service no longer has the machine: it was deleted elsewhere."""
        return False

    @abc.abstractmethod
    async def create(self, progress: Progress) -> None:
        """Create the target, or adopt an existing one with the same name and settings.

        After an error nothing that is billed is left at the service.
        """

    @abc.abstractmethod
    async def remove(self, progress: Progress) -> None:
        """Delete the target at the service; no error if it does not exist."""

    async def start(self, progress: Progress) -> None:
        """Start a single machine; no error if it is running."""
        raise self._cannot("started")

    async def stop(self, progress: Progress) -> None:
        """Stop a single machine; no error if it is stopped."""
        raise self._cannot("stopped")

    async def restart(self, progress: Progress) -> None:
        """Stop and start a running single machine."""
        raise self._cannot("restarted")

    def state_for(self, spec: JobSpec, state: ProvisionState) -> ProvisionState:
        """Return the state with the machines of a run, where a run may choose them. No I/O."""
        return state

    def run_price(self, spec: JobSpec, state: ProvisionState) -> RunPrice | None:
        """Return the price of the machines of a run; ``None`` if nothing is charged or it is unknown. No I/O.

        Parameters
        ----------
        state
            The last one.
        """
        state = self.state_for(spec, state)
        if not state.price_node:
            return None
        name = self.target.name
        trials = 1 if spec.sweep is None else min(spec.sweep.limits.max_concurrent, trial_count(spec.sweep))
        machines, most = spec.resources.nodes * trials, trials > 1
        if most and state.max_nodes is not None:
            machines = min(machines, max(state.max_nodes, spec.resources.nodes))
        machine = name if state.max_nodes is None else f"each machine of {name}"
        return RunPrice(machine=machine, machines=machines, each=state.price_node, currency=state.currency, most=most)

    async def prepare(self) -> None:
        """Fetch prices and quotas for :meth:`confirmation`; callers wait briefly for this before a create."""
        return None

    def field_errors(self) -> dict[str, str]:
        """Return an error sentence for each field that the service does not support, before a create. No I/O."""
        return {}

    async def scale(self, settings: Mapping[str, Any], progress: Progress) -> None:
        """Change the scale of a cluster.

        Parameters
        ----------
        settings
            Changed settings among ``min_nodes`` (0 releases all idle nodes), ``max_nodes`` and ``idle_minutes``.
        """
        raise self._cannot("scaled")

    def _cannot(self, done: str) -> CommandError:
        """Return the error for an action that :meth:`actions` does not offer."""
        return CommandError(
            f"{self.target.name!r} cannot be {done}.",
            hint=f"See the supported actions: %aml_compute show {self.target.name}",
        )

    @abc.abstractmethod
    def confirmation(self, verb: str, values: Mapping[str, Any], *, running: int, queued: int = 0) -> str:
        """Return the confirmation text of an operation, with costs and losses; empty if none is needed.

        No I/O.

        Parameters
        ----------
        values
            Checked values of the fields: ``{"min_nodes": 4}`` for ``scale``.
        running, queued
            Number of running and queued runs that this kernel knows on the target.
        """

    @abc.abstractmethod
    def actions(self, state: ProvisionState) -> tuple[TargetAction, ...]:
        """Return the supported ones of start, stop, restart, scale and delete, with reasons, without confirmations."""

    def renew(self, target: ComputeTarget) -> None:
        """Replace the target after another kernel has changed the stored one."""
        self.target = target


def stopped_runs_text(running: int, queued: int = 0) -> str:
    """Return the runs that an action ends: ``its 2 running and 1 queued runs are stopped``; empty for none."""
    parts = [f"{n} {state}" for n, state in ((running, "running"), (queued, "queued")) if n]
    single = running + queued == 1
    return f"its {' and '.join(parts)} run{' is' if single else 's are'} stopped" if parts else ""


#: The settings of a cluster that can be changed while it exists.
SCALE_FIELDS = (
    Field(name="min_nodes", flag="--min-nodes", kind="int", metavar="N",
          help="Nodes to keep running when idle (always billed)"),
    Field(name="max_nodes", flag="--max-nodes", kind="int", metavar="N", help="Maximum number of nodes"),
    Field(name="idle_minutes", flag="--idle-minutes", kind="number", metavar="MINUTES",
          help="Minutes before an idle node is released"),
)  # fmt: skip


def scale_action(min_nodes: int | None, max_nodes: int | None, idle_minutes: float | None) -> TargetAction:
    """Return the action to change the scale of a cluster, with its current settings."""
    current = {"min_nodes": min_nodes, "max_nodes": max_nodes, "idle_minutes": idle_minutes}
    return TargetAction(
        verb="scale",
        fields=tuple(msgspec.structs.replace(field, default=current[field.name]) for field in SCALE_FIELDS),
    )


def start_stop_actions(stopped: bool) -> tuple[TargetAction, TargetAction]:
    """Return the actions to start and stop a single machine."""
    return (
        TargetAction(verb="start", disabled_reason="" if stopped else "The machine is already running."),
        TargetAction(verb="stop", disabled_reason="The machine is already stopped." if stopped else ""),
    )
