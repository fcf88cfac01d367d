"""Target of kind ``ssh``: any Linux machine that SSH reaches."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from jupyter_amltrain.schema.target import ComputeTarget, form_field

_RESOURCE_ID = re.compile(
    "/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft.Compute/virtualMachines/[^/]+", re.IGNORECASE
)


class SshTarget(ComputeTarget, frozen=True, kw_only=True, tag="ssh"):
    """Target of kind ``ssh``. Names of variables are stored, never passwords."""

    summary: ClassVar[str] = "A Linux machine that SSH reaches, with Python 3.8 or newer."
    title: ClassVar[str] = "Machine over SSH"
    verb: ClassVar[str] = "attach"
    filled_in: ClassVar[frozenset[str]] = frozenset(
        {"python", "workdir", "azure_workspace", "address", "accept_host_key"}
    )

    host: Annotated[str, form_field("Address, or a name of ~/.ssh/config", metavar="HOST")] = ""
    user: Annotated[str, form_field("User name; empty: that of ~/.ssh/config, else yours", metavar="USER")] = ""
    port: Annotated[int, form_field("Port; 0: that of ~/.ssh/config, else 22", metavar="PORT", ge=0, le=65535)] = 0
    identity_file: Annotated[
        str, form_field("Private key; empty: those of the SSH agent and of ~/.ssh", metavar="FILE")
    ] = ""
    passphrase_from: Annotated[
        str, form_field("Environment variable of this kernel with the key's passphrase", metavar="VAR")
    ] = ""
    password_from: Annotated[
        str, form_field("Environment variable of this kernel with the password", metavar="VAR")
    ] = ""
    jump: Annotated[str, form_field("Machine in between: [USER@]HOST[:PORT]", metavar="HOST", advanced=True)] = ""
    python: Annotated[str, form_field("Interpreter of the jobs there; empty: python3 of the login", metavar="PATH")] = (
        ""
    )
    workdir: Annotated[
        str, form_field("Folder for runs there; empty: ~/.local/state/amltrain", metavar="DIR", advanced=True)
    ] = ""
    accept_host_key: Annotated[
        str,
        form_field(
            "Fingerprint of the machine's key (SHA256:...), if ~/.ssh/known_hosts does not have the key",
            metavar="SHA256:...",
        ),
    ] = ""

    resource_id: Annotated[
        str,
        form_field(
            "Resource id of an Azure virtual machine, whose address Azure tells, and which can be started and stopped",
            metavar="/subscriptions/...",
        ),
    ] = ""
    azure_workspace: Annotated[
        str,
        form_field(
            "Connected workspace whose sign-in finds the Azure virtual machine; empty: the current one",
            metavar="NAME",
            advanced=True,
        ),
    ] = ""
    address: Annotated[str, form_field("Last known address of the Azure virtual machine", hidden=True)] = ""

    @property
    def variant(self) -> str:
        """See :attr:`ComputeTarget.variant`."""
        return "azure_vm" if self.resource_id else ""

    @property
    def destination(self) -> str:
        """What to connect to: the given host, else the address that Azure has told."""
        return self.host or self.address

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        errors = {}
        if self.resource_id and not _RESOURCE_ID.fullmatch(self.resource_id):
            errors["resource_id"] = (
                f"{self.resource_id[:120]!r} is not the id of a virtual machine. Show it: az vm show -g GROUP -n NAME"
                " --query id"
            )
        if not self.host and not self.resource_id:
            errors["host"] = "The address of the machine is required. Example: --host 10.0.0.4"
        elif self.host.startswith("-") or any(letter.isspace() for letter in self.host):
            errors["host"] = f"{self.host[:80]!r} is not an address."
        for name in ("passphrase_from", "password_from"):
            value = getattr(self, name)
            if value and not value.isidentifier():
                errors[name] = "The name of an environment variable, not its value. Example: GPUBOX_PASSWORD"
        if self.accept_host_key and not self.accept_host_key.startswith("SHA256:"):
            errors["accept_host_key"] = "A fingerprint that begins with SHA256:, as ssh-keygen -lf shows it."
        return errors
