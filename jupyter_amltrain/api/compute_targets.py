"""Compute targets: listed, checked, chosen, made, changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.session import controller
from jupyter_amltrain.spec.target import ComputeTarget, TargetInfo
from jupyter_amltrain.tracked_run import ANSWER

if TYPE_CHECKING:
    from jupyter_amltrain.spec.rows import TargetRow
    from jupyter_amltrain.works import Done


def targets() -> list[ComputeTarget]:
    """Every compute target."""
    return controller().loop.call(controller().list_targets(), ANSWER)


def compute(name: str | None = None) -> TargetInfo:
    """What a check of a target finds; default the target in use."""
    c = controller()

    async def read() -> TargetInfo:
        info = await c.computes.check(name)
        c.computes.forget_failure(info.target)
        return info

    return c.loop.call(read(), ANSWER)


def current_target() -> str:
    """Name of the target in use."""
    return controller().targets.current


def use(name: str) -> None:
    """Make `name` the target in use."""
    controller().loop.call(controller().computes.act("use", name), ANSWER)


def configure_target(name: str, *, share_gpus: bool) -> dict[str, Any]:
    """Change settings of a target's queue, which hold at once; returns all of them.

    Parameters
    ----------
    share_gpus
        Whether its runs may be given GPUs on which other processes compute.
    """
    return dict(controller().loop.call(controller().computes.configure(name, {"share_gpus": share_gpus}), ANSWER))


def compute_rows(patience: float = 1.5) -> tuple[TargetRow, ...]:
    """Every target with its state, size and price; what does not answer within `patience` seconds as it is known."""
    c = controller()

    async def read() -> tuple[TargetRow, ...]:
        await c.computes.listed(patience)
        return c.computes.rows()

    return c.loop.call(read(), ANSWER)


def act(
    verb: str,
    name: str,
    *,
    kind: str = "",
    values: Mapping[str, Any] | None = None,
    confirmed: bool = False,
) -> Done:
    """Begin ``create``, ``start``, ``stop``, ``scale``, ``delete``, ... of a target; see :meth:`Computes.act`."""
    return controller().loop.call(
        controller().computes.act(verb, name, kind=kind, values=values, confirmed=confirmed), ANSWER
    )


def compute_progress(name: str, patience: float = 0.2) -> tuple[str | None, str]:
    """What is told at the end of a target's last work, or ``None``, and how far it is."""
    c = controller()

    async def ask() -> tuple[str | None, str]:
        return await c.computes.finished(name, patience), c.computes.progress(name)

    return c.loop.call(ask(), ANSWER)


def create_target(name: str, kind: str, *, confirmed: bool = False, **values: Any) -> str:
    """Make a compute target and wait until it is there; returns one sentence.

    Parameters
    ----------
    kind
        ``fake``.
    confirmed
        What it costs is agreed to; without, an error says what that is.
    **values
        The flags of ``%aml_compute create``: ``size="gpu-v100", max_nodes=4``.
    """
    return _through("create", name, kind, values, confirmed)


def start_target(name: str, *, confirmed: bool = False) -> str:
    """Start the machine of a target, and wait for it."""
    return _through("start", name, "", {}, confirmed)


def stop_target(name: str, *, confirmed: bool = False) -> str:
    """Stop the machine of a target, and wait for it."""
    return _through("stop", name, "", {}, confirmed)


def scale_target(
    name: str,
    min_nodes: int | None = None,
    *,
    max_nodes: int | None = None,
    idle_minutes: float | None = None,
    confirmed: bool = False,
) -> str:
    """Change the scale of a cluster, and wait for it.

    Parameters
    ----------
    min_nodes
        Nodes to keep running when idle, which are always billed.
    max_nodes
        Maximum number of nodes.
    idle_minutes
        Minutes before an idle node is released.
    """
    values = {"min_nodes": min_nodes, "max_nodes": max_nodes, "idle_minutes": idle_minutes}
    return _through("scale", name, "", {k: v for k, v in values.items() if v is not None}, confirmed)


def delete_target(name: str, *, confirmed: bool = False) -> str:
    """Delete a target with its machines, and wait for it."""
    return _through("delete", name, "", {}, confirmed)


def _through(verb: str, name: str, kind: str, values: Mapping[str, Any], confirmed: bool) -> str:
    done = act(verb, name, kind=kind, values=values, confirmed=confirmed)
    if done.errors:
        raise CommandError(" ".join(f"{field}: {text}" for field, text in done.errors.items()))
    if done.ask:
        raise CommandError(done.ask, hint="If that is meant: confirmed=True")
    said: str | None = done.said
    if done.begun:
        said = None
        while said is None:
            said, _ = compute_progress(name)
    return said or ""
