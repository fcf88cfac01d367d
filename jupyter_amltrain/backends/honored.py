"""Which fields of a job a target honors: one check for all kinds of targets, from what each kind declares."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.jobs.environments import is_image
from jupyter_amltrain.jobs.flags import FLAGS, JobFlag
from jupyter_amltrain.plugins import offers
from jupyter_amltrain.schema import az_yaml
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.target import ComputeTarget, Limit

#: Flags that a target honors, the parts of a field before the field: ``--pip`` before ``--env``.
_FLAGS = sorted((flag for flag in FLAGS if not flag.by_kernel), key=lambda flag: -flag.field.count("."))
#: The limit of a kind that does not declare a field: an older plug-in never drops a newer flag silently.
_UNDECLARED = Limit("does not support it")


def limit_of(field: str, target: type[ComputeTarget]) -> Limit | None:
    """Return why targets of a kind do not honor a field of a job; ``None`` if they do."""
    if found := target.limits.get(field):
        return found
    return None if target.honors is None or field in target.honors else _UNDECLARED


def kinds_without(flag: str, targets: Iterable[type[ComputeTarget]]) -> tuple[str, ...]:
    """Return the kinds of `targets` on which a flag, without its dashes, has no meaning."""
    field = next((row.field for row in _FLAGS if row.flag == f"--{flag}"), "")
    return tuple(str(target.__struct_config__.tag) for target in targets if field and limit_of(field, target))


class Messages:
    """Builds errors that name a setting as its author wrote it: a flag, or a key of a file of ``az ml``."""

    def __init__(self, spec: JobSpec) -> None:
        self._job = az_yaml.parse(spec.cell, spec.script_name, spec.notebook_dir) if spec.job_type else None

    def __call__(self, flag: str, keys: Sequence[str], reason: str, hint: str) -> SpecError:
        """Return the error.

        Parameters
        ----------
        flag, keys
            The setting's flag in a line, and its keys in a file.
        """
        return SpecError(reason, hint=hint).about(flag) if self._job is None else self._job.error(keys, reason, hint)

    @property
    def of_file(self) -> bool:
        return self._job is not None


def check_honored(spec: JobSpec, target: ComputeTarget) -> None:
    """Raise :class:`SpecError` for the first flag of a job that its target would ignore."""
    for flag in _FLAGS:
        value = operator.attrgetter(flag.field)(spec)
        limit = limit_of(flag.field, type(target))
        if limit is None or value == _default(flag.field) or (limit.with_image and is_image(spec)):
            continue
        if flag.field == "environment" and spec.environment.chosen:  # by a setting, for the targets that have some
            continue
        keys = (flag.yaml or flag.field).split(".")
        error = Messages(spec)(f"{flag.flag}{_shown(flag, value)}", keys, limit.sentence(target.name), hint_of(limit))
        error.code, error.field = "spec.unsupported", flag.field
        raise error


@functools.cache
def _default(field: str) -> Any:
    return operator.attrgetter(field)(JobSpec(name="x"))


def hint_of(limit: Limit) -> str:
    """Return what to do about a limit."""
    return (limit.hint or "Supported by: {offers}.").replace("{offers}", offers())


def _shown(flag: JobFlag, value: Any) -> str:
    """Return a value as it is typed; of services only the kinds, because a key may follow."""
    if isinstance(value, tuple):
        return f" {', '.join(str(item).partition(':')[0] for item in value)}"[:80]
    if flag.switch or not isinstance(value, str | int | float):
        return ""
    return f" {value}"[:80]
