"""Provisioner: what a backend may do beside running jobs, to create, start, stop, scale and delete its target.

A backend that can do so also implements :class:`Provisioned`, which callers check by ``isinstance``.
``tests/contracts/lifecycle.py`` is the contract test.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.schema.fields import Field, TargetAction
from jupyter_amltrain.schema.target import ComputeTarget

#: Takes one sentence that says how far an operation is.
Progress = Callable[[str], None]


class ProvisionState(msgspec.Struct, frozen=True, kw_only=True):
    """What the service says of a target's machines.

    Attributes
    ----------
    state
        As in :class:`~jupyter_amltrain.schema.rows.TargetRow`; a work that goes on here is not meant.
    nodes, max_nodes
        Machines now and at most; ``None`` for a single machine, which is started and stopped instead.
    size
        What the service calls the machine.
    cpus, memory, gpus, gpu_name
        Of one machine; memory in bytes.
    price_node, price
        Per hour: of one machine, and of all that run now; ``None`` where nobody charges.
    quota
        One phrase, ``12 of 24 cores``.
    detail
        One sentence about the state; empty when it says it all.
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
    detail: str = ""


class Provisioner(abc.ABC):
    """A target whose machines a service creates, and perhaps starts, stops and scales.

    Constructing the backend does no I/O: it is also constructed for a form that is being filled in.
    All operations are canceled with the kernel; what the service does goes on. Each raises
    ``QuotaExceeded``, ``CapacityError``, ``AuthenticationError`` or another
    ``AmlTrainError`` that says what to do. An operation may change :attr:`target` (the number of nodes
    that are kept, say); that is then stored.
    """

    target: ComputeTarget
    #: Its service keeps its runs when it is deleted.
    outlived: ClassVar[bool] = False

    def inherits(self, past: ComputeTarget) -> bool:
        """Whether the runs of a target that is gone are its own when it has its name."""
        return False

    @abc.abstractmethod
    async def state(self) -> ProvisionState:
        """Ask the service. Raises ``TargetUnreachable``, ``AuthenticationError``."""

    async def is_gone(self) -> bool:
        """Whether the service answers that there is no such machine: somebody else deleted it."""
        return False

    @abc.abstractmethod
    async def create(self, progress: Progress) -> None:
        """Make it, or take over what is there under that name with the same settings.

        When it raises, nothing is left at the service that costs.
        """

    @abc.abstractmethod
    async def remove(self, progress: Progress) -> None:
        """Delete it at the service; no error when it is gone already."""

    async def start(self, progress: Progress) -> None:
        """Start a single machine; no error when it runs."""
        raise self._cannot("started")

    async def stop(self, progress: Progress) -> None:
        """Stop a single machine; no error when it is stopped."""
        raise self._cannot("stopped")

    async def restart(self, progress: Progress) -> None:
        """Stop and start a single machine that runs."""
        raise self._cannot("restarted")

    async def prepare(self) -> None:
        """Hear of prices and quotas, so that :meth:`asks` can tell them; waited for briefly before a create."""
        return None

    def wrong(self) -> dict[str, str]:
        """A sentence for each field that the service is known not to have, before a create. No I/O."""
        return {}

    async def scale(self, settings: Mapping[str, Any], progress: Progress) -> None:
        """Change the scale of a cluster.

        Parameters
        ----------
        settings
            Those that change of ``min_nodes`` (0 releases all nodes when nothing runs), ``max_nodes``,
            ``idle_minutes``.
        """
        raise self._cannot("scaled")

    def _cannot(self, done: str) -> CommandError:
        """Of an act that :meth:`acts` does not offer."""
        return CommandError(f"{self.target.name!r} cannot be {done}.", hint=f"%aml_compute show {self.target.name}")

    @abc.abstractmethod
    def asks(self, verb: str, values: Mapping[str, Any], *, running: int, queued: int = 0) -> str:
        """What a work costs or loses, one or two sentences for a person to agree to; empty for nothing.

        No I/O.

        Parameters
        ----------
        values
            What was given, checked: ``{"min_nodes": 4}`` for ``scale``.
        running, queued
            Runs that this kernel knows to be under way there, and to wait there.
        """

    @abc.abstractmethod
    def acts(self, state: ProvisionState) -> tuple[TargetAction, ...]:
        """Which of start, stop, restart, scale and delete there are, in that order, with `why_not`; without `ask`."""

    def renew(self, target: ComputeTarget) -> None:
        """Another kernel has changed how the target is stored."""
        self.target = target


def stopped_runs_text(running: int, queued: int = 0) -> str:
    """Whose runs an act ends: ``its 2 running and 1 queued runs are stopped``, empty for none."""
    parts = [f"{n} {what}" for n, what in ((running, "running"), (queued, "queued")) if n]
    one = running + queued == 1
    return f"its {' and '.join(parts)} run{' is' if one else 's are'} stopped" if parts else ""


#: The settings of a cluster that can be changed while it exists.
SCALE_FIELDS = (
    Field(name="min_nodes", flag="--min-nodes", kind="int", metavar="N",
          help="Nodes to keep running when idle (always billed)"),
    Field(name="max_nodes", flag="--max-nodes", kind="int", metavar="N", help="Maximum number of nodes"),
    Field(name="idle_minutes", flag="--idle-minutes", kind="number", metavar="MINUTES",
          help="Minutes before an idle node is released"),
)  # fmt: skip


def scale_action(min_nodes: int | None, max_nodes: int | None, idle_minutes: float | None) -> TargetAction:
    """The act of changing the scale of a cluster, with its settings now."""
    now = {"min_nodes": min_nodes, "max_nodes": max_nodes, "idle_minutes": idle_minutes}
    return TargetAction(
        verb="scale", fields=tuple(msgspec.structs.replace(field, default=now[field.name]) for field in SCALE_FIELDS)
    )


def start_stop_actions(stopped: bool) -> tuple[TargetAction, TargetAction]:
    """The acts of starting and stopping a single machine."""
    return (
        TargetAction(verb="start", why_not="" if stopped else "It runs already."),
        TargetAction(verb="stop", why_not="It is stopped already." if stopped else ""),
    )
