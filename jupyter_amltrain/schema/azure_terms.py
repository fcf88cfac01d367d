"""What a job's settings are called at Azure: one row a setting, read by the request, the SDK's objects and YAML.

Sources: ARM ``2024-10-01`` (schema ``CommandJob``), the SDK's entities and ``commandJob.schema.json`` of ``az ml``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Term(NamedTuple):
    """One setting.

    Attributes
    ----------
    ours
        In a :class:`~jupyter_amltrain.schema.job.JobSpec` and on a line.
    arm
        In ARM's body.
    yaml
        In a file of ``az ml``.
    sdk
        Class of the SDK, where it has one for it.
    also
        Other spellings that the schema of ``az ml`` accepts.
    """

    ours: str
    arm: str
    yaml: str
    sdk: str = ""
    also: tuple[str, ...] = ()


class Terms:
    """The rows of one kind of setting, found by any of their names."""

    def __init__(self, rows: Iterable[Term]) -> None:
        self.rows = tuple(rows)
        self._by_ours = {row.ours: row for row in self.rows}
        self._by_arm = {row.arm: row for row in self.rows}
        self._by_yaml = {name: row for row in self.rows for name in (row.yaml, *row.also)}

    @property
    def names(self) -> tuple[str, ...]:
        """Our names, in their order."""
        return tuple(self._by_ours)

    def arm(self, ours: str) -> str:
        """Return ARM's name of ours; empty for none."""
        row = self._by_ours.get(ours)
        return row.arm if row else ""

    def of_arm(self, arm: str) -> Term | None:
        """Return the row of ARM's name."""
        return self._by_arm.get(arm)

    def of_yaml(self, yaml: str) -> Term | None:
        """Return the row of a name in YAML."""
        return self._by_yaml.get(yaml)

    def yaml(self, ours: str) -> str:
        """Return the name in YAML of ours."""
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
SERVICES = Terms(
    (
        Term("jupyterlab", "JupyterLab", "jupyter_lab", "JupyterLabJobService"),
        Term("vscode", "VSCode", "vs_code", "VsCodeJobService"),
        Term("tensorboard", "TensorBoard", "tensor_board", "TensorBoardJobService"),
        Term("ssh", "SSH", "ssh", "SshJobService"),
    )
)
