"""Target of kind ``slurm``: a cluster, from its login node or over SSH to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from jupyter_amltrain.schema.ssh_target import SshLogin, SshTarget
from jupyter_amltrain.schema.target import SERVICE_LIMITS, ComputeTarget, Limit, form_field

#: Folder for runs on the login node, below which each target has its own.
DEFAULT_WORKDIR = "~/.local/state/amltrain/slurm"

_HONORED = ("resources.cpus", "resources.memory", "options")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,+-]*")
_LIMITS: dict[str, Limit] = {
    **{field: limit for field, limit in SERVICE_LIMITS.items() if field not in _HONORED},
    "resources.instance_type": Limit("assigns nodes by partition and constraint", "Attach it with --constraint."),
    "priority": Limit("has its own priorities", "Use --option=--nice=100, or attach it with --qos."),
    "share_gpus": Limit("assigns each GPU to one job", "Leave it out."),
}


class SlurmTarget(SshLogin, frozen=True, kw_only=True, tag="slurm"):
    """Target of kind ``slurm``."""

    summary: ClassVar[str] = "A Slurm cluster, on its login node or over SSH to it (--host)."
    title: ClassVar[str] = "Slurm cluster"
    verb: ClassVar[str] = "attach"
    honors: ClassVar[frozenset[str] | None] = None
    limits: ClassVar[Mapping[str, Limit]] = _LIMITS
    filled_in: ClassVar[frozenset[str]] = frozenset({"python", "workdir", "accept_host_key", "proven"})

    host: Annotated[
        str, form_field("Login node that SSH reaches: its address, or a name of ~/.ssh/config; empty: this computer is"
                        " one", metavar="HOST", joined=True)
    ] = ""  # fmt: skip
    partition: Annotated[str, form_field("Partition; empty: the cluster's default", metavar="NAME")] = ""
    account: Annotated[str, form_field("Account that is charged; empty: your default", metavar="NAME")] = ""
    qos: Annotated[str, form_field("Quality of service; empty: that of the account", metavar="NAME", label="QOS")] = ""
    constraint: Annotated[str, form_field("Features that nodes must have: a100, a100|h100", metavar="FEATURES")] = ""
    modules: Annotated[
        str, form_field("Modules that are loaded before the job, with commas: cuda/12,anaconda", metavar="M,M")
    ] = ""
    setup: Annotated[
        str, form_field("Shell command before the job: 'source ~/env/bin/activate'", metavar="COMMAND", advanced=True)
    ] = ""
    container: Annotated[
        str, form_field("Image in which the jobs run: /images/torch.sif", metavar="IMAGE", advanced=True)
    ] = ""
    container_runtime: Annotated[
        Literal["", "apptainer", "pyxis"], form_field("Program that runs the image", advanced=True)
    ] = ""

    proven: Annotated[str, form_field("Folder that the compute nodes are known to share", hidden=True)] = ""

    @property
    def variant(self) -> str:
        """See :attr:`ComputeTarget.variant`."""
        return "slurm_login" if self.host else ""

    def login(self) -> SshTarget:
        """Return the login node as a target of SSH."""
        shared = {name: getattr(self, name) for name in SshLogin.__struct_fields__}
        return SshTarget(**{**shared, "workdir": self.workdir or f"{DEFAULT_WORKDIR}/{self.name}"})

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        errors = self.login().field_errors() if self.host else {}
        if "," in self.host:
            errors["host"] = "One login node: give one address."
        for name in ("partition", "account", "qos"):
            value = getattr(self, name)
            if value and not _NAME.fullmatch(value):
                errors[name] = f"{value[:80]!r} is not a name of Slurm."
        for name in ("setup", "constraint", "modules", "container"):
            if not getattr(self, name).isprintable():
                errors[name] = "One line, without control characters."
        if self.container and not self.container_runtime:
            errors["container_runtime"] = "Which program runs the image? Example: --container-runtime apptainer"
        if self.container_runtime and not self.container:
            errors["container"] = "The image is missing. Example: --container /images/torch.sif"
        if not self.host:
            for name in ("user", "jump", "identity_file", "accept_host_key"):
                if getattr(self, name):
                    errors[name] = "For a login node over SSH: give its address, too (--host)."
        return errors


def with_facts(target: SlurmTarget, facts: ComputeTarget) -> SlurmTarget:
    """Return a target with the interpreter and the folder that its login node has told."""
    assert isinstance(facts, SshLogin)
    python = target.python or ("" if target.container else facts.python)
    return msgspec.structs.replace(target, python=python, workdir=facts.workdir)
