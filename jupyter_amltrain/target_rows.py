"""The entry of a target in the status cache, the row made of it, and the sentences about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from jupyter_amltrain.agent.gpu_names import gpu_counts
from jupyter_amltrain.backends.lifecycle import ProvisionState
from jupyter_amltrain.backends.registry import kind_of
from jupyter_amltrain.runs.text import bytes_text
from jupyter_amltrain.spec.fields import Act
from jupyter_amltrain.spec.rows import TargetRow, Work
from jupyter_amltrain.spec.target import ComputeTarget, TargetInfo
from jupyter_amltrain.targets import stored

#: State of a target while an operation is under way.
DOING = {
    "create": "creating",
    "attach": "creating",
    "start": "starting",
    "stop": "stopping",
    "restart": "starting",
    "scale": "scaling",
    "delete": "deleting",
}
#: Participle of each operation, for sentences.
PAST = {
    "create": "created",
    "attach": "attached",
    "start": "started",
    "stop": "stopped",
    "restart": "restarted",
    "scale": "scaled",
    "delete": "deleted",
    "test": "tested",
}


class Seen(msgspec.Struct, kw_only=True):
    """What this kernel knows of a target.

    Attributes
    ----------
    stored
        Whether ``targets.json`` has it; a target that could not be created is not stored.
    info
        What the last check found; `error` says why it failed.
    work
        The operation that is under way, or that failed last.
    """

    target: ComputeTarget
    stored: bool = True
    info: TargetInfo | None = None
    state: ProvisionState | None = None
    error: str = ""
    checked_at: float = 0.0
    checking: bool = False
    work: Work | None = None

    @property
    def busy(self) -> bool:
        """Whether an operation is under way."""
        return self.work is not None and not self.work.error


def row_of(entry: Seen, current: str, acts: tuple[Act, ...], running: int, queued: int) -> TargetRow:
    """The row of a target; the counts are of runs that this kernel knows."""
    target, info = entry.target, entry.info
    found = entry.state or ProvisionState()
    state, detail = _state(entry)
    gpus = _names(info.gpus) if info is not None else {}
    lost = lost_text(info.gpus_lost) if info is not None else ""
    return TargetRow(
        name=target.name,
        kind=kind_of(target),
        title=type(target).title,
        current=target.name == current,
        state=state,
        detail=detail,
        size=found.size,
        nodes=found.nodes,
        max_nodes=found.max_nodes,
        cpus=found.cpus if found.cpus is not None else info.cpus if info is not None else None,
        memory=found.memory if found.memory is not None else info.memory if info is not None else None,
        gpus=found.gpus if found.gpus is not None else sum(gpus.values()) if info is not None else None,
        gpu_name=found.gpu_name or ", ".join([*gpus, *([lost] if gpus and lost else [])]),
        # Of several kinds, as the instances of a split GPU beside whole ones, each has its own number.
        gpus_text=gpus_text(info.gpus) if info is not None and not found.gpu_name and len(gpus) > 1 else "",
        price=found.price,
        price_node=found.price_node,
        currency=found.currency,
        quota=found.quota,
        running=running,
        queued=queued,
        checked_at=entry.checked_at,
        fields={k: v for k, v in stored(target).items() if k not in ("name", "kind")},
        acts=acts,
        work=entry.work,
    )


def _state(entry: Seen) -> tuple[str, str]:
    work, found = entry.work, entry.state
    if entry.busy and work is not None and work.verb in DOING:
        return DOING[work.verb], work.detail
    if not entry.stored:
        return "failed", work.error if work is not None else ""
    if entry.error:
        return "unreachable", entry.error
    if found is not None and found.state != "unknown":
        return found.state, found.detail
    if entry.info is not None:
        return ("ready" if entry.info.reachable else "unreachable"), entry.info.detail or lost_text(
            entry.info.gpus_lost
        )
    return "unknown", ""


def _names(gpus: Any) -> dict[str, int]:
    names: dict[str, int] = {}
    for gpu in gpus:
        name = str(gpu.get("name") or "GPU")
        names[name] = names.get(name, 0) + 1
    return names


def gpus_text(gpus: Any) -> str:
    """``2 x NVIDIA A100``; empty for none."""
    return gpu_counts(gpus)


def lost_text(lost: Any) -> str:
    """``GPU 1 lost``, several with commas; empty for none."""
    return ", ".join(f"GPU {gpu.get('index')} lost" for gpu in lost)


def info_text(info: TargetInfo) -> str:
    """One line: can it run jobs now?"""
    gpus = ", ".join(filter(None, [gpus_text(info.gpus), lost_text(info.gpus_lost)])) or "no GPU"
    cpus = "" if info.cpus is None else f", {info.cpus} CPUs"
    memory = "" if info.memory is None else f", {bytes_text(info.memory)}"
    if not info.reachable:
        return f"{info.target}: not reachable. {info.detail}".rstrip()
    return f"{info.target}: ready{cpus}{memory}, {gpus}; {info.running} running, {info.queued} queued."


def failed_text(verb: str, name: str, error: str) -> str:
    """Sentence about a failed operation; most errors begin with the target's name."""
    return f"{name!r} could not be {PAST[verb]}: {error.removeprefix(f'{name!r}: ')}"


def done_text(verb: str, name: str, values: Mapping[str, Any]) -> str:
    """Sentence about an operation that succeeded."""
    if verb != "scale":
        return f"{name} is {PAST[verb]}."
    least, most, idle = (values.get(field) for field in ("min_nodes", "max_nodes", "idle_minutes"))
    if most is None and idle is None:
        return f"{name} is scaled to {least} machine{'' if least == 1 else 's'}."
    parts = [f"{what} {value:g}" for what, value in (("minimum", least), ("maximum", most)) if value is not None]
    parts += [] if idle is None else [f"idle time {idle:g} min"]
    return f"{name} is scaled: {', '.join(parts)}."
