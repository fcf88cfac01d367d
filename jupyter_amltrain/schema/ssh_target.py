"""Target of kind ``ssh``: any Linux machine that SSH reaches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from jupyter_amltrain.schema.target import SERVICE_LIMITS, ComputeTarget, Limit, form_field

_RESOURCE_ID = re.compile(
    "/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft.Compute/virtualMachines/[^/]+", re.IGNORECASE
)


#: One of several machines; an IPv6 address with a port is in brackets.
_HOST = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]\s]+\]|[^@:\s]+|[^@\s]*:[^@\s]*:[^@\s]*)(?::(?P<port>\d{1,5}))?"
)


class SshLogin(ComputeTarget, frozen=True, kw_only=True):
    """Fields by which SSH reaches a machine. Names of variables are stored, never passwords."""

    host: Annotated[
        str,
        form_field(
            "Address, or a name of ~/.ssh/config; of several machines: [USER@]HOST[:PORT] of each, parted by commas",
            metavar="HOST",
            joined=True,
        ),
    ] = ""
    user: Annotated[str, form_field("User name; empty: that of ~/.ssh/config, else yours", metavar="USER")] = ""
    port: Annotated[
        int, form_field("Port; 0: that of ~/.ssh/config, else 22", metavar="PORT", ge=0, le=65535, advanced=True)
    ] = 0
    identity_file: Annotated[
        str, form_field("Private key; empty: those of the SSH agent and of ~/.ssh", metavar="FILE", advanced=True)
    ] = ""
    passphrase_from: Annotated[
        str, form_field("Environment variable of this kernel with the key's passphrase", metavar="VAR", advanced=True)
    ] = ""
    password_from: Annotated[
        str, form_field("Environment variable of this kernel with the password", metavar="VAR", advanced=True)
    ] = ""
    jump: Annotated[str, form_field("Machine in between: [USER@]HOST[:PORT]", metavar="HOST", advanced=True)] = ""
    python: Annotated[
        str, form_field("Interpreter of the jobs there; empty: python3 of the login", metavar="PATH", advanced=True)
    ] = ""
    workdir: Annotated[
        str, form_field("Folder for runs there; empty: ~/.local/state/amltrain", metavar="DIR", advanced=True)
    ] = ""
    accept_host_key: Annotated[
        str,
        form_field(
            "Fingerprint of the machine's key (SHA256:...), if ~/.ssh/known_hosts does not have the key",
            metavar="SHA256:...",
            joined=True,
            advanced=True,
        ),
    ] = ""


class SshTarget(SshLogin, frozen=True, kw_only=True, tag="ssh"):
    """Target of kind ``ssh``. Names of variables are stored, never passwords."""

    summary: ClassVar[str] = "A Linux machine that SSH reaches, with Python 3.8 or newer."
    title: ClassVar[str] = "Machine over SSH"
    verb: ClassVar[str] = "attach"
    honors: ClassVar[frozenset[str] | None] = None
    limits: ClassVar[Mapping[str, Limit]] = SERVICE_LIMITS
    filled_in: ClassVar[frozenset[str]] = frozenset(
        {"python", "workdir", "azure_workspace", "address", "accept_host_key", "node_dirs"}
    )

    idle_shutdown: Annotated[
        int,
        form_field(
            "Minutes without a run after which a line for cron there, which is shown, stops the machine; 0 for never",
            metavar="MINUTES",
            ge=0,
            le=43200,
            advanced=True,
        ),
    ] = 0

    resource_id: Annotated[
        str,
        form_field(
            "Resource id of an Azure virtual machine, whose address Azure tells, and which can be started and stopped",
            metavar="/subscriptions/...",
            advanced=True,
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
    node_dirs: Annotated[tuple[str, ...], form_field("Folder for runs of each of several machines", hidden=True)] = ()
    address: Annotated[str, form_field("Last known address of the Azure virtual machine", hidden=True)] = ""

    @property
    def variant(self) -> str:
        """See :attr:`ComputeTarget.variant`."""
        return "azure_vm" if self.resource_id else "nodes" if len(self.hosts) > 1 else ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machines, the first one is node 0."""
        return tuple(part.strip() for part in self.host.split(",") if part.strip())

    @property
    def accepted_keys(self) -> tuple[str, ...]:
        """Fingerprints of keys that are accepted, of several machines parted by commas."""
        return tuple(part.strip() for part in self.accept_host_key.split(",") if part.strip())

    @property
    def is_node(self) -> bool:
        """Whether this is one of several machines of a target."""
        return len(self.hosts) == 1 and bool(self.node_dirs)

    def node_target(self, number: int) -> SshTarget:
        """Return the target of one of several machines."""
        found = _HOST.fullmatch(self.hosts[number])
        folder = self.node_dirs[number] if number < len(self.node_dirs) else self.workdir
        user, host, port = found.group("user", "host", "port") if found else (None, self.hosts[number], None)
        return msgspec.structs.replace(
            self,
            name=self.name if number == 0 else f"{self.name}.{number}",
            host=host.strip("[]"),
            user=user or self.user,
            port=int(port or self.port),
            workdir=folder,
            node_dirs=(folder,),
        )

    @property
    def whole_name(self) -> str:
        """Name by which a user knows it: that of the target of which it may be one machine."""
        return self.name.partition(".")[0]

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
        for host in self.hosts:
            if host.startswith("-") or any(letter.isspace() for letter in host):
                errors["host"] = f"{host[:80]!r} is not an address."
        if len(self.hosts) > 1:
            if wrong := next((host for host in self.hosts if not _HOST.fullmatch(host)), ""):
                errors["host"] = f"{wrong[:80]!r} is not an address. Example: --host ann@10.0.0.4:2222"
            elif len(set(self.hosts)) < len(self.hosts):
                errors["host"] = "Each machine once: every node of a run needs a machine of its own."
            if self.idle_shutdown:
                errors["idle_shutdown"] = "For one machine only: attach each one alone as well."
            if self.resource_id:
                errors["resource_id"] = "One virtual machine: give the addresses of several with --host."
        for name in ("passphrase_from", "password_from"):
            value = getattr(self, name)
            if value and not value.isidentifier():
                errors[name] = "The name of an environment variable, not its value. Example: GPUBOX_PASSWORD"
        if any(not key.startswith("SHA256:") for key in self.accepted_keys):
            errors["accept_host_key"] = "A fingerprint that begins with SHA256:, as ssh-keygen -lf shows it."
        return errors
