"""Registry of the backends: one row per backend, imported lazily, and entry points."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.errors import MissingDependency
from jupyter_amltrain.schema.fields import TargetKind, kind_of_type
from jupyter_amltrain.schema.target import ComputeTarget

if TYPE_CHECKING:
    from jupyter_amltrain.backends.base import Backend

GROUP = "jupyter_amltrain.backends"


class _Row(NamedTuple):
    """A backend and its target types.

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


_ROWS = (
    _Row("jupyter_amltrain.schema.target:LocalTarget", "jupyter_amltrain.backends.agent_backend:LocalBackend"),
    _Row(
        "jupyter_amltrain.schema.ssh_target:SshTarget",
        "jupyter_amltrain.backends.ssh:SshBackend",
        "pip install asyncssh",
        (
            ("azure_vm", "jupyter_amltrain.backends.azure_vm:AzureVmBackend"),
            ("nodes", "jupyter_amltrain.backends.ssh_nodes:NodesBackend"),
        ),
    ),
    _Row("jupyter_amltrain.schema.target:FakeTarget", "jupyter_amltrain.backends.demo:FakeBackend"),
    _Row(
        "jupyter_amltrain.schema.azure_target:AZURE_KINDS",
        "jupyter_amltrain.backends.azureml.backend:AzureBackend",
        "pip install azure-ai-ml azure-identity",
    ),
)


def backend_class(kind: str, variant: str = "") -> type[Backend]:
    """Import and return the backend for targets of `kind`.

    Parameters
    ----------
    variant
        Of the target; see :attr:`ComputeTarget.variant`.

    Raises
    ------
    MissingDependency
        No row and no entry point of that kind, or its package is not installed.
    """
    row = next((row for row in _ROWS if any(_tag(target) == kind for target in _targets(row))), None)
    backend, hint = ("", "") if row is None else (dict(row.variants).get(variant, row.backend), row.hint)
    if row is None:
        for point in importlib.metadata.entry_points(group=GROUP, name=kind):
            backend, hint = point.value, f"Install the dependencies of {point.value}."
    if not backend:
        raise MissingDependency(f"No backend for targets of kind {kind!r}.", hint="Upgrade jupyter_amltrain.")
    try:
        imported: type[Backend] = _imported(backend)
    except ImportError as error:
        raise MissingDependency(f"Targets of kind {kind!r} need {error.name}.", hint=hint) from error
    return imported


def kind_of(target: ComputeTarget) -> str:
    """Return the registry's key for a target."""
    return _tag(type(target))


def target_kinds() -> tuple[type[ComputeTarget], ...]:
    """Return the target types of ``targets.json``, without importing an SDK."""
    return tuple(target for row in _ROWS for target in _targets(row))


def forms() -> tuple[TargetKind, ...]:
    """Return the kinds of targets that a user can create or attach, without importing an SDK."""
    return tuple(kind_of_type(kind) for kind in target_kinds() if kind.verb)


@functools.cache
def _targets(row: _Row) -> tuple[type[ComputeTarget], ...]:
    targets = _imported(row.targets)
    return targets if isinstance(targets, tuple) else (targets,)


def _imported(reference: str) -> Any:
    """Import and return the object that ``module:name`` refers to."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _tag(target: type[ComputeTarget]) -> str:
    return str(target.__struct_config__.tag)
