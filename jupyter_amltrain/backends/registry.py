"""Which backend serves which kind of target: one lazy row each, and entry points."""

from __future__ import annotations

import importlib
import importlib.metadata
from types import MappingProxyType
from typing import TYPE_CHECKING

from jupyter_amltrain.errors import MissingDependency
from jupyter_amltrain.spec.fields import TargetKind
from jupyter_amltrain.spec.target import ComputeTarget, LocalTarget
from jupyter_amltrain.spec.target_fields import kind_of_type

if TYPE_CHECKING:
    from jupyter_amltrain.backends.base import Backend

GROUP = "jupyter_amltrain.backends"

_AZURE = (
    "jupyter_amltrain.backends.azureml.backend:AzureBackend",
    "pip install azure-ai-ml azure-identity",
)
#: kind -> (module:class, what to type when its import fails); sorted.
_BUILTIN = MappingProxyType(
    {
        "amlcompute": _AZURE,
        "databricks": _AZURE,
        "datalake": _AZURE,
        "fake": ("jupyter_amltrain.backends.fake:FakeBackend", ""),
        "hdinsight": _AZURE,
        "instance": _AZURE,
        "kubernetes": _AZURE,
        "local": ("jupyter_amltrain.backends.process:LocalBackend", ""),
        "serverless": _AZURE,
        "synapse-spark": _AZURE,
        "vm": _AZURE,
    }
)


def backend_class(kind: str) -> type[Backend]:
    """The backend that serves targets of `kind`; imported now.

    Raises
    ------
    MissingDependency
        No row and no entry point of that kind, or its package is not installed.
    """
    row = _BUILTIN.get(kind)
    if row is None:
        for point in importlib.metadata.entry_points(group=GROUP, name=kind):
            row = (point.value, f"Install what {point.value} needs.")
    if row is None:
        raise MissingDependency(f"No backend for targets of kind {kind!r}.", hint="Upgrade jupyter_amltrain.")
    module, _, name = row[0].partition(":")
    try:
        found: type[Backend] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise MissingDependency(f"Targets of kind {kind!r} need {error.name}.", hint=row[1]) from error
    return found


def kind_of(target: ComputeTarget) -> str:
    """The registry's key for a target."""
    return str(type(target).__struct_config__.tag)


def target_kinds() -> tuple[type[ComputeTarget], ...]:
    """The target types that ``targets.json`` may hold, without importing any SDK."""
    from jupyter_amltrain.spec.azure_target import AZURE_KINDS
    from jupyter_amltrain.spec.target import FakeTarget

    return (LocalTarget, FakeTarget, *AZURE_KINDS)


def forms() -> tuple[TargetKind, ...]:
    """The kinds of targets that a person can create or attach, without importing any SDK."""
    return tuple(kind_of_type(kind) for kind in target_kinds() if kind.verb)
