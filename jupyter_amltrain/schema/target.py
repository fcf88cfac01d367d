"""Compute targets as data, and the result of a target's check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import msgspec


def form_field(
    description: str,
    *,
    metavar: str = "",
    advanced: bool = False,
    choose: str = "",
    hidden: bool = False,
    joined: bool = False,
    label: str = "",
    **bounds: float,
) -> msgspec.Meta:
    """Return metadata of a field: its help, its bounds (`ge`, `gt`, `le`, `lt`) and its display in a form.

    The values of a flag that is given several times are `joined` with commas. A `label` replaces that of the flag.
    """
    extra = {
        "metavar": metavar,
        "advanced": advanced,
        "choose": choose,
        "hidden": hidden,
        "joined": joined,
        "label": label,
    }
    return msgspec.Meta(description=description, extra=extra, **cast(Any, bounds))


class Limit(NamedTuple):
    """Why targets of a kind do not honor a field of a job.

    Attributes
    ----------
    reason
        A phrase after the target's name: ``has one kind of machine``.
    hint
        What to do; empty to name the targets that honor the field. ``{offers}`` stands for those in it.
    with_image
        Whether a job in an image has the field honored.
    """

    reason: str
    hint: str = ""
    with_image: bool = False

    def sentence(self, target: str) -> str:
        """Return the reason as a sentence about a target."""
        return f"{target!r} {self.reason}."


class ComputeTarget(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Named target that runs jobs. Subclasses add the fields of their backend.

    Flags and forms are generated from the types, limits, defaults and descriptions of the fields
    (:mod:`jupyter_amltrain.schema.fields`).
    """

    #: Description of the kind in forms and in the help: one sentence.
    summary: ClassVar[str] = ""

    #: Display name, and the verb that makes such a target: ``create``, ``attach``, or empty for built-in targets.
    title: ClassVar[str] = ""
    verb: ClassVar[str] = ""

    #: Fields of a job that the backend acts on, as paths: ``timeout``, ``resources.gpus``. ``None``: all but those in
    #: `limits`. A flag that is not honored is refused before the submit.
    honors: ClassVar[frozenset[str] | None] = frozenset()
    #: Why a field is not honored; a field that is absent here gets a sentence without a reason.
    limits: ClassVar[Mapping[str, Limit]] = {}

    #: Fields that the backend fills in where they are empty.
    filled_in: ClassVar[frozenset[str]] = frozenset()

    #: Service that carries out the operations on such targets and has images for their jobs; empty: none.
    service: ClassVar[str] = ""

    name: str

    @property
    def variant(self) -> str:
        """Key of another backend of the registry for targets with these fields; empty for that of the kind."""
        return ""

    def field_errors(self) -> dict[str, str]:
        """Return errors of the combination of fields: a sentence by field."""
        return {}


_NO_CONTAINER = Limit("runs jobs without a container unless --env names an image", with_image=True)

#: Limits of a single machine, or of several that SSH reaches, with our agent: what only a service has.
SERVICE_LIMITS: Mapping[str, Limit] = {
    "resources.instance_type": Limit("is a single machine of fixed size", "To choose a size, use {offers}."),
    "resources.shm_size": _NO_CONTAINER,
    "resources.docker_args": _NO_CONTAINER,
    "resources.cpus": Limit("assigns no processors: a run may use all", "Leave it out."),
    "resources.memory": Limit("assigns no memory: a run may use all", "Leave it out."),
    "options": Limit("starts jobs itself, without a program that takes options", "Leave it out."),
    "environment.derive": Limit("derives no environment from one of a workspace"),
    "identity": Limit("reads data as you"),
    "services": Limit("opens no services of a run"),
    "priority": Limit("starts runs in the order of their submission"),
    "tier": Limit("has one kind of machine"),
}
#: Limits of one machine with our agent.
MACHINE_LIMITS: Mapping[str, Limit] = {
    "resources.nodes": Limit(
        "is one machine",
        "For more nodes use several machines over SSH (%aml_compute attach NAME --kind ssh --host A --host B), or"
        " {offers}.",
    ),
    **SERVICE_LIMITS,
}


class LocalTarget(ComputeTarget, frozen=True, kw_only=True, tag="local"):
    """Target of kind ``local``."""

    summary: ClassVar[str] = "This machine: the embedded default."
    title: ClassVar[str] = "This machine"
    honors: ClassVar[frozenset[str] | None] = None
    limits: ClassVar[Mapping[str, Limit]] = MACHINE_LIMITS

    python: Annotated[str, form_field("Interpreter of the jobs; empty: the kernel's own")] = ""


class ForeignTarget(ComputeTarget, frozen=True, kw_only=True, tag=""):
    """A stored target whose kind no installed package provides: it is listed, can be deleted, and runs nothing.

    Attributes
    ----------
    stored
        The target as ``targets.json`` has it.
    """

    title: ClassVar[str] = "Unknown kind"

    stored: dict[str, Any]

    @property
    def stored_kind(self) -> str:
        """Kind as ``targets.json`` names it."""
        return str(self.stored.get("kind") or "")


class TargetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Result of ``%aml_compute test``.

    Attributes
    ----------
    memory
        Bytes of main memory.
    disk_free
        Free bytes of the state folder's file system.
    programs
        Paths of ``uv``, ``conda`` and ``docker`` there; empty for one that is not installed.
    gpus
        One mapping per GPU: ``index, name, uuid, memory_total, memory_used``
        (bytes; ``None`` if the device does not report it), and ``driver``, ``cuda``: their versions. Where the agent
        runs also ``utilization`` (percent), ``temperature`` (°C), ``users`` (rows of ``run``, ``pid``, ``user``,
        ``command``, ``memory``, ``system``), ``assigned`` (the part that our runs have) and ``reserved`` (by whom).
    gpus_lost
        GPUs of this boot that cannot be used now: ``index, name, uuid`` (``None`` if unknown), ``reason``.
    share_gpus
        Whether every run may get GPUs on which other processes compute.
    slots
        ``{"cpu": {"total", "free"}, "gpu": {"total", "free"}}``; ``lost`` of the GPUs if there are lost ones.
    stops
        When the machine stops automatically, or what would stop it; empty where nothing is known.
    survives
        Events that a run survives on this target: ``{"kernel": {"answer", "why"}, ...}`` with the
        answers ``yes``, ``no`` and ``unknown``.
    """

    target: str
    kind: str
    reachable: bool = True
    cpus: int | None = None
    memory: int | None = None
    disk_free: int | None = None
    programs: dict[str, str] = {}
    gpus: tuple[dict[str, Any], ...] = ()
    gpu_note: str = ""
    gpus_lost: tuple[dict[str, Any], ...] = ()
    share_gpus: bool = False
    slots: dict[str, dict[str, int]] = {}
    queued: int = 0
    running: int = 0
    stops: str = ""
    survives: dict[str, dict[str, str]] = {}
    python: str = ""
    platform: str = ""
    home: str = ""
    detail: str = ""
