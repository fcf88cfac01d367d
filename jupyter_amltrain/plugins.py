"""Registry of what extends this package: kinds of targets with their backends, and other parts of a plug-in.

Another package registers itself by the entry point group :data:`GROUP`; see ``docs/plugins.md``. The kinds of this
package are rows of the same struct. Nothing is imported before it is used.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Entry point group of other packages' backends; each value is a :class:`BackendKind`.
GROUP = "jupyter_amltrain.backends"

log = logging.getLogger(__name__)


class BackendKind(NamedTuple):
    """A backend, the types of its targets and what else belongs to them, as references.

    Attributes
    ----------
    targets
        ``module:name`` of a target type, or of a tuple of them; empty: the plug-in only has `variants` and `parts`.
    backend
        ``module:class``; imported when a target is first used.
    hint
        Command to type if the import fails.
    variants
        Other backends, each with the :attr:`ComputeTarget.variant` of its targets, which may be of any kind.
    parts
        Other parts: a name and ``module:name``. See :func:`parts`.
    offer
        A target that supports what a single machine does not, as a phrase for messages.
    """

    targets: str
    backend: str
    hint: str = ""
    variants: tuple[tuple[str, str], ...] = ()
    parts: tuple[tuple[str, str], ...] = ()
    offer: str = ""


_OWN = (
    BackendKind("jupyter_amltrain.schema.target:LocalTarget", "jupyter_amltrain.backends.agent_backend:LocalBackend"),
    BackendKind(
        "jupyter_amltrain.schema.ssh_target:SshTarget",
        "jupyter_amltrain.backends.ssh:SshBackend",
        "pip install asyncssh",
        (("nodes", "jupyter_amltrain.backends.ssh_nodes:NodesBackend"),),
    ),
)
#: Plug-ins of this package, which are read like entry points.
_OWN_PLUGINS = (
    "jupyter_amltrain.azure.plugin:KIND",
    "jupyter_amltrain.automl.plugin:KIND",
    "jupyter_amltrain.pipelines.plugin:KIND",
)


class Kinds(NamedTuple):
    """All kinds, and why those of some packages cannot be used: a sentence by the name of the entry point."""

    kinds: tuple[BackendKind, ...]
    broken: dict[str, str]


@functools.cache
def kinds() -> Kinds:
    """Return the kinds of this package and of other packages."""
    found, broken = [*_OWN, *map(imported, _OWN_PLUGINS)], {}
    taken = {tag_of(target) for kind in found for target in targets_of(kind)}
    for point in _entry_points():
        try:
            kind = point.load()
            if not isinstance(kind, BackendKind):
                raise TypeError(f"{point.value} is no BackendKind")
            tags = [tag_of(target) for target in targets_of(kind)]
            if double := sorted(taken.intersection(tags)):
                raise ValueError(f"the kind {double[0]!r} exists already")
        except Exception as error:  # the code of another package: it must not end the kernel
            package = point.dist.name if point.dist is not None else point.value
            broken[point.name] = f"{package} cannot be used: {error}"
            log.warning("%s: %s", GROUP, broken[point.name])
            continue
        found.append(kind)
        taken.update(tags)
    return Kinds(tuple(found), broken)


def _entry_points() -> Iterator[EntryPoint]:
    """Yield the entry points of the group; reading all groups of all packages would take ten times as long."""
    from importlib.metadata import distributions

    for distribution in distributions():
        if GROUP in (distribution.read_text("entry_points.txt") or ""):
            yield from distribution.entry_points.select(group=GROUP)


@functools.cache
def targets_of(kind: BackendKind) -> tuple[Any, ...]:
    """Return the target types of a kind."""
    targets = imported(kind.targets) if kind.targets else ()
    return targets if isinstance(targets, tuple) else (targets,)


def tag_of(target: Any) -> str:
    """Return the name of a target type in files and commands: ``ssh``."""
    return str(target.__struct_config__.tag)


@functools.cache
def parts(name: str) -> tuple[Any, ...]:
    """Return the parts of all plug-ins with a name, imported.

    Parameters
    ----------
    name
        ``commands.NOUN``: a tuple of commands. ``operations``: a class with operations of the page.
        ``connect_form``: a function that returns the fields of the form that connects a workspace.
        ``workspaces``: a subclass of :class:`~jupyter_amltrain.kernel.workspaces.Workspaces`.
        ``quota``: a :class:`~jupyter_amltrain.commands.quota.ServiceQuota`.
        ``functions``: functions of :mod:`~jupyter_amltrain.api` by name.
        ``retired_kinds``: kinds of targets that no longer exist, with their alternatives.
        ``job_of_file``: a coroutine function of a :class:`~jupyter_amltrain.kernel.job_submitter.JobSubmitter`, the job
        of a file of ``az ml`` and its target: returns the target and the job that runs in its place, or ``None`` to
        leave it to the target.
        ``job_types``: a function that returns why a kind of target cannot run a type of job.
        ``job_file``: a function that writes a plan as a file of ``az ml``.
        ``record_parts``: parts of records made from what the kernel knows of a run,
        :class:`~jupyter_amltrain.kernel.record_parts.EntryPart`.
        ``agent``: see :func:`agent_parts`.
    """
    found = []
    for kind in kinds().kinds:
        for part, reference in kind.parts:
            if part == name:
                try:
                    found.append(imported(reference))
                except Exception as error:  # the code of another package: it must not end the kernel
                    log.warning("%s: %s cannot be used: %s", GROUP, reference, error)
    return tuple(found)


@functools.cache
def agent_parts() -> dict[str, str]:
    """Return the packages of plug-ins that travel with the agent, by the name of their calls; nothing is imported.

    The part ``agent`` of a plug-in is ``package:name``. See :mod:`jupyter_amltrain.agent.guests`.
    """
    references = [reference for kind in kinds().kinds for part, reference in kind.parts if part == "agent"]
    return {name: package for package, _, name in (reference.partition(":") for reference in references)}


def offers() -> str:
    """Return the targets that support what a single machine does not, as one phrase for messages."""
    return " or ".join(kind.offer for kind in kinds().kinds if kind.offer) or "a target that runs on a service"


def imported(reference: str) -> Any:
    """Import and return the object that ``module:name`` refers to."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
