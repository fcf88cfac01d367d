"""Types of targets and their backends, imported lazily, from the registry of plug-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_amltrain.errors import MissingDependency
from jupyter_amltrain.plugins import imported, kinds, tag_of, targets_of
from jupyter_amltrain.schema.fields import TargetKind, kind_of_type
from jupyter_amltrain.schema.target import ComputeTarget, ForeignTarget

if TYPE_CHECKING:
    from jupyter_amltrain.backends.base import Backend


def backend_class(kind: str, variant: str = "") -> type[Backend]:
    """Import and return the backend for targets of `kind`.

    Parameters
    ----------
    variant
        Of the target; see :attr:`ComputeTarget.variant`.

    Raises
    ------
    MissingDependency
        No package provides that kind, or a package that it needs is not installed.
    """
    found = next((one for one in kinds().kinds if any(tag_of(target) == kind for target in targets_of(one))), None)
    if found is None:
        raise MissingDependency(
            f"No backend for targets of kind {kind!r}.",
            hint=kinds().broken.get(kind) or "Install the package that provides it, or upgrade jupyter_amltrain.",
        )
    variants = {name: reference for one in kinds().kinds for name, reference in one.variants}
    reference = variants.get(variant, found.backend)
    try:
        backend: type[Backend] = imported(reference)
    except ImportError as error:
        hint = found.hint or f"Install the dependencies of {reference.partition(':')[0]}."
        raise MissingDependency(f"Targets of kind {kind!r} need {error.name}.", hint=hint) from error
    return backend


def kind_of(target: ComputeTarget) -> str:
    """Return the registry's key for a target."""
    return target.stored_kind if isinstance(target, ForeignTarget) else tag_of(type(target))


def target_kinds() -> tuple[type[ComputeTarget], ...]:
    """Return the target types of ``targets.json``, without importing an SDK."""
    return tuple(target for kind in kinds().kinds for target in targets_of(kind))


def forms() -> tuple[TargetKind, ...]:
    """Return the kinds of targets that a user can create or attach, without importing an SDK."""
    return tuple(kind_of_type(kind) for kind in target_kinds() if kind.verb)
