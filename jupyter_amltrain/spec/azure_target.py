"""The compute targets of Azure Machine Learning, as data.

Never a secret: where the service wants a password or a token, a field names the environment
variable that holds it, which is read at the moment of the act.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from jupyter_amltrain.spec.azure_attached import (
    AttachedTarget,
    DatabricksTarget,
    DataLakeTarget,
    HDInsightTarget,
    KubernetesTarget,
    MachineTarget,
    SynapseSparkTarget,
)
from jupyter_amltrain.spec.azure_base import (
    ADVANCED,
    RESOURCE_ID,
    AzureTarget,
    Env,
    named,
    wrong_env,
    wrong_identity,
)
from jupyter_amltrain.spec.target import limits

__all__ = [
    "AZURE_KINDS",
    "AmlComputeTarget",
    "AttachedTarget",
    "AzureTarget",
    "DataLakeTarget",
    "DatabricksTarget",
    "GONE",
    "HDInsightTarget",
    "InstanceTarget",
    "KubernetesTarget",
    "MachineTarget",
    "ServerlessTarget",
    "SynapseSparkTarget",
    "kind_of_type",
]

_CLOCK = re.compile(r"([01]?\d|2[0-3]):[0-5]\d")
_CRON = re.compile(r"[-\d*/,A-Za-z]+( +[-\d*/,A-Za-z]+){4}")


def _wrong_network(target: AmlComputeTarget | InstanceTarget) -> dict[str, str]:
    if target.vnet and not target.subnet:
        return {"subnet": "Name the subnet of the virtual network too."}
    if target.subnet and not target.vnet and not RESOURCE_ID.fullmatch(target.subnet):
        return {"vnet": "Name the virtual network of the subnet too, or give the subnet's whole resource id."}
    return {}


class AmlComputeTarget(AzureTarget, frozen=True, kw_only=True, tag="amlcompute"):
    """A cluster of the workspace: machines come when jobs wait and go when they have been idle.

    Attributes
    ----------
    size
        Kind of machine; %aml_compute sizes lists them.
    max_nodes
        Machines at most.
    min_nodes
        Machines that are kept on although nothing runs; they cost all the time.
    idle_minutes
        Unused machines go after so long.
    low_priority
        Cheaper machines that may be taken away at any time.
    vnet
        Virtual network that the machines join.
    subnet
        Subnet of the virtual network, or its whole resource id.
    public_ip
        The machines have public addresses.
    identity
        Managed identity: system, or the resource id of a user-assigned one.
    ssh_user
        Name of an administrator on the machines.
    ssh_key_file
        File with the administrator's public key.
    env
        Environment of runs that name none by --env: kernel, NAME@latest, a conda file, an image.
    region
        Where the machines stand, when not in the workspace's region.
    """

    title: ClassVar[str] = "Azure ML cluster"
    verb: ClassVar[str] = "create"
    compute_type: ClassVar[str] = "AmlCompute"

    size: Annotated[str, named("SIZE")]
    max_nodes: Annotated[int, limits(ge=0, le=65000, metavar="N")] = 1
    min_nodes: Annotated[int, limits(ge=0, le=65000, metavar="N")] = 0
    idle_minutes: Annotated[float, limits(gt=0, le=10080, metavar="MINUTES")] = 15.0
    low_priority: bool = False
    vnet: Annotated[str, named("NAME", advanced=True)] = ""
    subnet: Annotated[str, named("NAME", advanced=True)] = ""
    public_ip: Annotated[bool, ADVANCED] = True
    identity: Annotated[str, named("system|ID", advanced=True)] = ""
    ssh_user: Annotated[str, named("USER", advanced=True)] = ""
    ssh_key_file: Annotated[str, named("FILE", advanced=True)] = ""
    env: Env = ""
    region: Annotated[str, named("REGION", advanced=True)] = ""

    def wrong(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.wrong`."""
        found = {
            **AzureTarget.wrong(self),
            **_wrong_network(self),
            **wrong_identity(self.identity),
            **wrong_env(self.env),
        }
        if self.min_nodes > self.max_nodes:
            found["min_nodes"] = f"{self.min_nodes} is more than there are at most ({self.max_nodes})."
        if self.ssh_user and not self.ssh_key_file:
            found["ssh_key_file"] = "Name the file with the administrator's public key too."
        if self.ssh_key_file and not self.ssh_user:
            found["ssh_user"] = "Name the administrator whose key this is too."
        return found


class ServerlessTarget(AzureTarget, frozen=True, kw_only=True, tag="serverless"):
    """Machines that Azure ML brings for each run and takes away after it; nothing is created beforehand.

    Attributes
    ----------
    size
        Kind of machine; %aml_compute sizes lists them.
    tier
        Standard: dedicated machines; Spot: cheaper ones that may be taken away at any time.
    env
        Environment of runs that name none by --env: kernel, NAME@latest, a conda file, an image.
    """

    title: ClassVar[str] = "Azure ML serverless"
    verb: ClassVar[str] = "create"

    size: Annotated[str, named("SIZE")]
    tier: Literal["Standard", "Spot"] = "Standard"
    env: Env = ""

    def wrong(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.wrong`."""
        return {**AzureTarget.wrong(self), **wrong_env(self.env)}

    @property
    def low_priority(self) -> bool:
        """Whether its machines may be taken away."""
        return self.tier == "Spot"


class InstanceTarget(AzureTarget, frozen=True, kw_only=True, tag="instance"):
    """One machine of the workspace for one person; it runs several jobs at once, and costs until it is stopped.

    Attributes
    ----------
    size
        Kind of machine; %aml_compute sizes lists them.
    idle_shutdown
        It stops by itself after so long without work; 0 for never.
    schedule_start
        It starts at this time every day, or by a cron expression (UTC).
    schedule_stop
        It stops at this time every day, or by a cron expression (UTC).
    vnet
        Virtual network that the machine joins.
    subnet
        Subnet of the virtual network, or its whole resource id.
    public_ip
        The machine has a public address.
    identity
        Managed identity: system, or the resource id of a user-assigned one.
    ssh_key_file
        File with the public key that may log in; none closes the port.
    env
        Environment of runs that name none by --env: kernel, NAME@latest, a conda file, an image.
    """

    title: ClassVar[str] = "Azure ML compute instance"
    verb: ClassVar[str] = "create"
    compute_type: ClassVar[str] = "ComputeInstance"

    size: Annotated[str, named("SIZE")]
    idle_shutdown: Annotated[int, limits(ge=0, le=4320, metavar="MINUTES")] = 60
    schedule_start: Annotated[str, named("HH:MM|CRON")] = ""
    schedule_stop: Annotated[str, named("HH:MM|CRON")] = ""
    vnet: Annotated[str, named("NAME", advanced=True)] = ""
    subnet: Annotated[str, named("NAME", advanced=True)] = ""
    public_ip: Annotated[bool, ADVANCED] = True
    identity: Annotated[str, named("system|ID", advanced=True)] = ""
    ssh_key_file: Annotated[str, named("FILE", advanced=True)] = ""
    env: Env = ""

    def wrong(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.wrong`."""
        network = _wrong_network(self)
        found = {**AzureTarget.wrong(self), **network, **wrong_identity(self.identity), **wrong_env(self.env)}
        for name in ("schedule_start", "schedule_stop"):
            text = getattr(self, name)
            if text and not _CLOCK.fullmatch(text) and not _CRON.fullmatch(text):
                found[name] = f"{text[:80]!r} is no time. Write 18:30, or a cron expression: '0 18 * * 1-5'."
        if 0 < self.idle_shutdown < 15:  # the service's own limits: 15 minutes to 3 days
            found["idle_shutdown"] = "Azure ML stops an idle instance after 15 minutes at the earliest; 0 is never."
        return found


AZURE_KINDS: tuple[type[AzureTarget], ...] = (
    AmlComputeTarget,
    ServerlessTarget,
    InstanceTarget,
    MachineTarget,
    KubernetesTarget,
    SynapseSparkTarget,
    HDInsightTarget,
    DatabricksTarget,
    DataLakeTarget,
)

#: Kinds that people know from before and that are refused: what to use instead.
GONE = {
    "batch": "Azure Batch is no longer among the computes that Azure ML publishes (the last was SDK v1's"
    " BatchCompute, whose support ended on 2026-06-30). Use a cluster with low priority for many parallel runs"
    " (%aml_compute create NAME --kind amlcompute --size SIZE --low-priority), or Azure Batch's own tools.",
}


def kind_of_type(compute_type: str) -> type[AzureTarget] | None:
    """The target type for the service's `computeType`, in any spelling; ``None`` for one that we have not."""
    wanted = compute_type.lower()
    return next((kind for kind in AZURE_KINDS if kind.compute_type and kind.compute_type.lower() == wanted), None)
