"""Names of a job's settings at Azure: one row per setting, for ARM requests, the SDK's objects and YAML files.

Sources: ARM ``2024-10-01`` (schema ``CommandJob``), the SDK's entities and ``commandJob.schema.json`` of ``az ml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Term(NamedTuple):
    """Names of one setting.

    Attributes
    ----------
    name
        Name in a :class:`~jupyter_amltrain.schema.job.JobSpec` and in a command's flags.
    arm
        Name in the body of an ARM request.
    yaml
        Name in a file of ``az ml``.
    sdk
        Class of the SDK; empty if it has none.
    also
        Other spellings that the schema of ``az ml`` accepts.
    """

    name: str
    arm: str
    yaml: str
    sdk: str = ""
    also: tuple[str, ...] = ()


class Terms:
    """The rows of one kind of setting, indexed by each of their names."""

    def __init__(self, rows: Iterable[Term]) -> None:
        self.rows = tuple(rows)
        self._by_ours = {row.name: row for row in self.rows}
        self._by_arm = {row.arm: row for row in self.rows}
        self._by_yaml = {name: row for row in self.rows for name in (row.yaml, *row.also)}

    @property
    def names(self) -> tuple[str, ...]:
        """Names in a :class:`~jupyter_amltrain.schema.job.JobSpec`, in order."""
        return tuple(self._by_ours)

    def arm(self, ours: str) -> str:
        """Return ARM's name for a name of the spec; empty if there is none."""
        row = self._by_ours.get(ours)
        return row.arm if row else ""

    def of_arm(self, arm: str) -> Term | None:
        """Return the row with a name of ARM."""
        return self._by_arm.get(arm)

    def of_yaml(self, yaml: str) -> Term | None:
        """Return the row with a name in YAML."""
        return self._by_yaml.get(yaml)

    def yaml(self, ours: str) -> str:
        """Return the name in YAML for a name of the spec."""
        return self._by_ours[ours].yaml


MODES = Terms(
    Term(name, arm, name)
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
TIERS = Terms(Term(name, name.capitalize(), name) for name in ("spot", "basic", "standard", "premium"))
PRIORITIES = Terms(Term(name, str(number), name) for number, name in enumerate(("low", "medium", "high"), 1))
IDENTITIES = Terms(
    (
        Term("user", "UserIdentity", "user_identity", "UserIdentityConfiguration", ("user",)),
        Term("managed", "Managed", "managed", "ManagedIdentityConfiguration", ("managed_identity",)),
        Term("aml", "AMLToken", "aml_token", "AmlTokenConfiguration", ("amltoken",)),
    )
)
DISTRIBUTIONS = Terms(
    (
        Term("pytorch", "PyTorch", "pytorch", "PyTorchDistribution"),
        Term("mpi", "Mpi", "mpi", "MpiDistribution"),
        Term("tensorflow", "TensorFlow", "tensorflow", "TensorFlowDistribution"),
    )
)
#: Frameworks that Azure ML runs by the launcher of another one, as its guide of distributed training documents.
LAUNCHED_AS = {"deepspeed": "pytorch", "horovod": "mpi"}
SERVICES = Terms(
    (
        Term("jupyterlab", "JupyterLab", "jupyter_lab", "JupyterLabJobService"),
        Term("vscode", "VSCode", "vs_code", "VsCodeJobService"),
        Term("tensorboard", "TensorBoard", "tensor_board", "TensorBoardJobService"),
        Term("ssh", "SSH", "ssh", "SshJobService"),
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
