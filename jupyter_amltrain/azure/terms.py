"""Names of a job's settings at Azure: one row per setting, for ARM requests and the SDK's objects.

Sources: ARM ``2024-10-01`` (schema ``CommandJob``) and the SDK's entities.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from jupyter_amltrain.schema import job


class Term(NamedTuple):
    """Names of one setting.

    Attributes
    ----------
    name
        Name in a :class:`~jupyter_amltrain.schema.job.JobSpec` and in a command's flags.
    arm
        Name in the body of an ARM request.
    sdk
        Class of the SDK; empty if it has none.
    """

    name: str
    arm: str
    sdk: str = ""


class Terms:
    """The rows of one kind of setting, indexed by each of their names."""

    def __init__(self, rows: Iterable[Term]) -> None:
        self.rows = tuple(rows)
        self._by_ours = {row.name: row for row in self.rows}
        self._by_arm = {row.arm: row for row in self.rows}

    def arm(self, ours: str) -> str:
        """Return ARM's name for a name of the spec; empty if there is none."""
        row = self._by_ours.get(ours)
        return row.arm if row else ""

    def of_arm(self, arm: str) -> Term | None:
        """Return the row with a name of ARM."""
        return self._by_arm.get(arm)


MODES = Terms(
    Term(name, arm)
    for name, arm in (
        ("ro_mount", "ReadOnlyMount"),
        ("rw_mount", "ReadWriteMount"),
        ("download", "Download"),
        ("upload", "Upload"),
        ("direct", "Direct"),
        ("eval_mount", "EvalMount"),
        ("eval_download", "EvalDownload"),
    )
)
TIERS = Terms(Term(name, name.capitalize()) for name in job.TIERS)
PRIORITIES = Terms(Term(name, str(number)) for number, name in enumerate(job.PRIORITIES, 1))
IDENTITIES = Terms(
    (
        Term("user", "UserIdentity", "UserIdentityConfiguration"),
        Term("managed", "Managed", "ManagedIdentityConfiguration"),
        Term("aml", "AMLToken", "AmlTokenConfiguration"),
    )
)
DISTRIBUTIONS = Terms(
    (
        Term("pytorch", "PyTorch", "PyTorchDistribution"),
        Term("mpi", "Mpi", "MpiDistribution"),
        Term("tensorflow", "TensorFlow", "TensorFlowDistribution"),
    )
)
SERVICES = Terms(
    (
        Term("jupyterlab", "JupyterLab", "JupyterLabJobService"),
        Term("vscode", "VSCode", "VsCodeJobService"),
        Term("tensorboard", "TensorBoard", "TensorBoardJobService"),
        Term("ssh", "SSH", "SshJobService"),
    )
)


def iso_duration(seconds: float) -> str:
    """Return an ISO 8601 duration in whole seconds, in the SDK's format: ``PT90S`` is ``PT1M30S``."""
    rest = max(1, round(seconds))
    days, rest = divmod(rest, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    time = "".join(f"{n}{unit}" for n, unit in ((hours, "H"), (minutes, "M"), (rest, "S")) if n)
    return "P" + (f"{days}D" if days else "") + (f"T{time}" if time else "")


_DURATION = re.compile(r"P(?:(\d+)D)?T?(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?")


def iso_seconds(duration: str | None) -> float | None:
    """Return the seconds of an ISO 8601 duration: 100 for ``PT1M40S``; ``None`` for any other text."""
    match = _DURATION.fullmatch(duration or "")
    if not match or not any(match.groups()):
        return None
    days, hours, minutes, rest = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest
