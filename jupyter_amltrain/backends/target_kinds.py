"""Registry of the backends: those of this package, imported lazily, and those of other packages.

Another package adds targets of its own through the entry point group :data:`GROUP`; see ``docs/plugins.md``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.errors import MissingDependency
from jupyter_amltrain.schema.fields import TargetKind, kind_of_type
from jupyter_amltrain.schema.target import ComputeTarget, ForeignTarget

if TYPE_CHECKING:
    from jupyter_amltrain.backends.base import Backend

#: Entry point group of other packages' backends; each value is a :class:`BackendKind`.
GROUP = "jupyter_amltrain.backends"

log = logging.getLogger(__name__)


class BackendKind(NamedTuple):
    """A backend and the types of its targets, as references: nothing is imported before it is used.

    Attributes
    ----------
    targets
        ``module:name`` of a target type, or of a tuple of them.
    backend
        ``module:class``; imported when a target is first used.
    hint
        Command to type if the import fails.
    variants
        Other backends, each with the :attr:`ComputeTarget.variant` of its targets.
    """

    targets: str
    backend: str
    hint: str = ""
    variants: tuple[tuple[str, str], ...] = ()


_OWN = (
    BackendKind("jupyter_amltrain.schema.target:LocalTarget", "jupyter_amltrain.backends.agent_backend:LocalBackend"),
    BackendKind(
        "jupyter_amltrain.schema.ssh_target:SshTarget",
        "jupyter_amltrain.backends.ssh:SshBackend",
        "pip install asyncssh",
        (
            ("azure_vm", "jupyter_amltrain.backends.azure_vm:AzureVmBackend"),
            ("nodes", "jupyter_amltrain.backends.ssh_nodes:NodesBackend"),
        ),
    ),
    BackendKind("jupyter_amltrain.schema.target:FakeTarget", "jupyter_amltrain.backends.demo:FakeBackend"),
    BackendKind(
        "jupyter_amltrain.schema.azure_target:AZURE_KINDS",
        "jupyter_amltrain.backends.azureml.backend:AzureBackend",
        "pip install azure-ai-ml azure-identity",
    ),
)


class _Kinds(NamedTuple):
    """All kinds, and why those of some packages cannot be used: a sentence by the name of the entry point."""

    kinds: tuple[BackendKind, ...]
    broken: dict[str, str]


@functools.cache
def _kinds() -> _Kinds:
    kinds, broken = list(_OWN), {}
    taken = {_tag(target) for kind in kinds for target in _targets(kind)}
    for point in _entry_points():
        try:
            kind = point.load()
            if not isinstance(kind, BackendKind):
                raise TypeError(f"{point.value} is no BackendKind")
            tags = [_tag(target) for target in _targets(kind)]
            if double := sorted(taken.intersection(tags)):
                raise ValueError(f"the kind {double[0]!r} exists already")
        except Exception as error:  # the code of another package: it must not end the kernel
            package = point.dist.name if point.dist is not None else point.value
            broken[point.name] = f"{package} cannot be used: {error}"
            log.warning("%s: %s", GROUP, broken[point.name])
            continue
        kinds.append(kind)
        taken.update(tags)
    return _Kinds(tuple(kinds), broken)


def _entry_points() -> Iterator[importlib.metadata.EntryPoint]:
    """Yield the entry points of the group; reading all groups of all packages would take ten times as long."""
    for distribution in importlib.metadata.distributions():
        if GROUP in (distribution.read_text("entry_points.txt") or ""):
            yield from distribution.entry_points.select(group=GROUP)


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
    found = next((one for one in _kinds().kinds if any(_tag(target) == kind for target in _targets(one))), None)
    if found is None:
        raise MissingDependency(
            f"No backend for targets of kind {kind!r}.",
            hint=_kinds().broken.get(kind) or "Install the package that provides it, or upgrade jupyter_amltrain.",
        )
    reference = dict(found.variants).get(variant, found.backend)
    try:
        imported: type[Backend] = _imported(reference)
    except ImportError as error:
        hint = found.hint or f"Install the dependencies of {reference.partition(':')[0]}."
        raise MissingDependency(f"Targets of kind {kind!r} need {error.name}.", hint=hint) from error
    return imported


def kind_of(target: ComputeTarget) -> str:
    """Return the registry's key for a target."""
    return target.stored_kind if isinstance(target, ForeignTarget) else _tag(type(target))


def target_kinds() -> tuple[type[ComputeTarget], ...]:
    """Return the target types of ``targets.json``, without importing an SDK."""
    return tuple(target for kind in _kinds().kinds for target in _targets(kind))


def forms() -> tuple[TargetKind, ...]:
    """Return the kinds of targets that a user can create or attach, without importing an SDK."""
    return tuple(kind_of_type(kind) for kind in target_kinds() if kind.verb)


@functools.cache
def _targets(kind: BackendKind) -> tuple[type[ComputeTarget], ...]:
    targets = _imported(kind.targets)
    return targets if isinstance(targets, tuple) else (targets,)


def _imported(reference: str) -> Any:
    """Import and return the object that ``module:name`` refers to."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _tag(target: type[ComputeTarget]) -> str:
    return str(target.__struct_config__.tag)
