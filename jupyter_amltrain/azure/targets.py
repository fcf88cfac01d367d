"""Compute targets of Azure Machine Learning, as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from jupyter_amltrain.agent.supervise.hook_table import SWITCHED
from jupyter_amltrain.schema.target import ComputeTarget, Limit, form_field

RULE = "3 to 24 letters, digits and hyphens, starting with a letter and not ending with a hyphen"

_INSTANCE = " or with a hyphen and digits"

_VALID = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{1,22}[a-zA-Z0-9]")

_NUMBERED = re.compile(r"-(\d+)$")


def compute_name_error(name: str, *, instance: bool = False) -> str:
    """Return why a compute cannot have that name, with a valid one; empty if it can."""
    if _VALID.fullmatch(name) and not (instance and _NUMBERED.search(name)):
        return ""
    rule = f"{RULE}{_INSTANCE if instance else ''}"
    return f"{name[:80]!r} is not a valid name of a compute in Azure ML: {rule}. Example: {suggested_name(name)}."


def suggested_name(name: str) -> str:
    """Return a name similar to `name` that is valid for a compute of any kind."""
    text = re.sub(r"[^a-zA-Z0-9]+", "-", name).strip("-")
    if not text[:1].isalpha():
        text = f"c-{text}" if text else "cluster"
    text = text[:24].rstrip("-")
    while _NUMBERED.search(text):
        text = _NUMBERED.sub(r"\1", text)
    return text if len(text) >= 3 else f"{text}{'-cluster' if len(text) == 2 else 'cpu'}"


RESOURCE_ID = re.compile(r"/subscriptions/[^/]+/resource[gG]roups/[^/]+/providers/[^/]+(/[^/]+/[^/]+)+/?")

_VARIABLE = re.compile(r"[A-Za-z_]\w*")


class AzureTarget(ComputeTarget, frozen=True, kw_only=True):
    """A compute of an Azure ML workspace."""

    service: ClassVar[str] = "Azure"
    #: `computeType` of the ARM schema; empty if nothing is created at the service.
    compute_type: ClassVar[str] = ""
    #: Whether removing the target only detaches the resource.
    attached: ClassVar[bool] = False
    #: Noun for messages; empty for the title.
    noun: ClassVar[str] = ""
    #: ARM provider and type that `resource_id` must name; empty for any.
    resource_type: ClassVar[str] = ""
    filled_in: ClassVar[frozenset[str]] = frozenset({"workspace"})
    honors: ClassVar[frozenset[str] | None] = None
    limits: ClassVar[Mapping[str, Limit]] = {
        "secrets": Limit(
            "starts jobs whose variables everyone in the workspace can read",
            "Store the secret in the workspace's Key Vault, and read it in the script with azure-keyvault-secrets and"
            " --identity managed.",
        ),
        "gpu_ids": Limit("gives a job all GPUs of its machine, by index", "Leave it out."),
        "share_gpus": Limit("gives a job its GPUs alone", "Leave it out."),
        "python": Limit(
            "uses the Python of the job's environment", "Leave it out, and choose an environment with: --env conda.yml"
        ),
        **{hook.field: Limit(hook.lacking) for _, hook in SWITCHED if hook.lacking},
        "metric_lines": Limit(
            "has the job's output at the service, and its lines are not read for metrics",
            "Call mlflow.log_metric in the script, or use --autolog.",
        ),
    }

    workspace: Annotated[
        str, form_field("Name of a connected workspace; empty: the current one", metavar="WORKSPACE")
    ] = ""
    compute: Annotated[
        str,
        form_field(
            "Name of the compute in the workspace, if it differs from the target's name", metavar="NAME", advanced=True
        ),
    ] = ""

    @property
    def compute_name(self) -> str:
        """Name of the compute in the workspace."""
        return self.compute or self.name

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        if not self.compute_type:
            return {}
        sentence = compute_name_error(self.compute_name, instance=self.compute_type == "ComputeInstance")
        return {"compute" if self.compute else "name": sentence} if sentence else {}

    def _wrong_variables(self, *names: str) -> dict[str, str]:
        """Return errors of fields that do not name an environment variable; the message does not repeat the value."""
        return {
            name: "This is not the name of an environment variable. Put the secret into one, and give its name here."
            for name in names
            if getattr(self, name) and not _VARIABLE.fullmatch(getattr(self, name))
        }

    def _wrong_resource(self) -> dict[str, str]:
        resource_id = str(getattr(self, "resource_id", ""))
        example = (
            f"/subscriptions/<subscription>/resourceGroups/<group>/providers/{self.resource_type or '<type>'}/<name>"
        )
        if not RESOURCE_ID.fullmatch(resource_id):
            return {"resource_id": f"{resource_id[:80]!r} is not a resource id. Example: {example}."}
        if self.resource_type and self._type_of(resource_id) not in self.resource_type.lower().split(" or "):
            return {"resource_id": f"This resource is not a {self.noun or self.title}. Example of an id: {example}."}
        return {}

    @staticmethod
    def _type_of(resource_id: str) -> str:
        parts = resource_id.lower().rstrip("/").rpartition("/providers/")[2].split("/")
        return "/".join([parts[0], *parts[1::2]])


#: Type of the field `env` of targets that run scripts.
Env = Annotated[
    str,
    form_field(
        "Environment of runs without --env: kernel, NAME@latest, a conda file, an image", metavar="ENV", advanced=True
    ),
]


# Types of the fields that several kinds have.
Identity = Annotated[
    str,
    form_field(
        "Managed identity: system, or the resource id of a user-assigned one", metavar="system|ID", advanced=True
    ),
]
VirtualNetwork = Annotated[str, form_field("Virtual network to join", metavar="NAME", advanced=True)]
Subnet = Annotated[
    str, form_field("Subnet of the virtual network, or its full resource id", metavar="NAME", advanced=True)
]
Size = Annotated[str, form_field("VM size; %aml_compute sizes lists them", metavar="SIZE", choose="size")]


def wrong_env(env: str) -> dict[str, str]:
    """Return errors of a target's own environment; the submit checks the rest."""
    if not env or (env.isprintable() and not env.startswith("-") and " " not in env.strip()):
        return {}
    return {"env": f"{env[:80]!r} is not an environment. Use kernel, NAME@latest, a conda file or an image."}


def wrong_identity(identity: str) -> dict[str, str]:
    """Return errors of a managed identity."""
    if identity in ("", "system") or (RESOURCE_ID.fullmatch(identity) and "userassignedidentities" in identity.lower()):
        return {}
    return {"identity": f"{identity[:80]!r} is neither system nor the resource id of a user-assigned identity."}


class AttachedTarget(AzureTarget, frozen=True, kw_only=True):
    """Existing resource that is attached to the workspace."""

    verb: ClassVar[str] = "attach"
    attached: ClassVar[bool] = True

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        errors = {**AzureTarget.field_errors(self), **self._wrong_resource()}
        return errors | self._wrong_variables(
            *(n for n in self.__struct_fields__ if n in ("password_from", "token_from"))
        )


class _LoginTarget(AttachedTarget, frozen=True, kw_only=True):
    """Resource with a Linux machine that Azure ML logs in to."""

    resource_id: Annotated[str, form_field("Resource id of the machine or cluster", metavar="ID")]
    ssh_user: Annotated[str, form_field("User whom Azure ML logs in as", metavar="USER")] = ""
    password_from: Annotated[
        str, form_field("Environment variable that holds the user's password", metavar="VARIABLE")
    ] = ""
    ssh_key_file: Annotated[
        str, form_field("File with the user's private key, instead of a password", metavar="FILE")
    ] = ""
    ssh_port: Annotated[int, form_field("Port of its SSH server", metavar="PORT", ge=1, le=65535, advanced=True)] = 22
    address: Annotated[
        str,
        form_field(
            "Public address, if the resource does not contain it; of an HDInsight cluster NAME-ssh.azurehdinsight.net",
            metavar="ADDRESS",
            advanced=True,
        ),
    ] = ""

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        errors = AttachedTarget.field_errors(self)
        if not self.ssh_user:
            errors["ssh_user"] = "Give the user name with which Azure ML logs in."
        if bool(self.password_from) == bool(self.ssh_key_file) and "password_from" not in errors:
            errors["password_from"] = "Give a password or --ssh-key-file, so that Azure ML can log in."
        return errors


class MachineTarget(_LoginTarget, frozen=True, kw_only=True, tag="vm"):
    """Target of kind ``vm``."""

    summary: ClassVar[str] = (
        "An existing virtual machine with Ubuntu; Azure ML lists it but runs no jobs there (--kind ssh does)."
    )
    title: ClassVar[str] = "Virtual machine"
    noun: ClassVar[str] = "virtual machine"
    compute_type: ClassVar[str] = "VirtualMachine"
    resource_type: ClassVar[str] = "Microsoft.Compute/virtualMachines"


class KubernetesTarget(AttachedTarget, frozen=True, kw_only=True, tag="kubernetes"):
    """Target of kind ``kubernetes``."""

    summary: ClassVar[str] = "A Kubernetes cluster (AKS or Arc) with the Azure ML extension."
    title: ClassVar[str] = "Kubernetes cluster"
    compute_type: ClassVar[str] = "Kubernetes"
    resource_type: ClassVar[str] = (
        "Microsoft.ContainerService/managedClusters or Microsoft.Kubernetes/connectedClusters"
    )

    resource_id: Annotated[str, form_field("Resource id of the cluster", metavar="ID")]
    namespace: Annotated[str, form_field("Kubernetes namespace that jobs run in", metavar="NAMESPACE")] = "default"
    identity: Identity = ""
    env: Env = ""

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        return {**AttachedTarget.field_errors(self), **wrong_identity(self.identity), **wrong_env(self.env)}


class SynapseSparkTarget(AttachedTarget, frozen=True, kw_only=True, tag="synapse-spark"):
    """Target of kind ``synapse-spark``."""

    summary: ClassVar[str] = "A Spark pool of Azure Synapse; it runs Spark jobs only."
    title: ClassVar[str] = "Synapse Spark pool"
    compute_type: ClassVar[str] = "SynapseSpark"
    resource_type: ClassVar[str] = "Microsoft.Synapse/workspaces/bigDataPools"

    resource_id: Annotated[str, form_field("Resource id of the pool", metavar="ID")]
    identity: Identity = ""

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        return {**AttachedTarget.field_errors(self), **wrong_identity(self.identity)}


class HDInsightTarget(_LoginTarget, frozen=True, kw_only=True, tag="hdinsight"):
    """Target of kind ``hdinsight``."""

    summary: ClassVar[str] = "An HDInsight cluster; Azure ML currently lists it but runs no jobs there."
    title: ClassVar[str] = "HDInsight cluster"
    compute_type: ClassVar[str] = "HDInsight"
    resource_type: ClassVar[str] = "Microsoft.HDInsight/clusters"


class DatabricksTarget(AttachedTarget, frozen=True, kw_only=True, tag="databricks"):
    """Target of kind ``databricks``."""

    summary: ClassVar[str] = "A Databricks workspace; Azure ML currently lists it but runs no jobs there."
    title: ClassVar[str] = "Databricks workspace"
    compute_type: ClassVar[str] = "Databricks"
    resource_type: ClassVar[str] = "Microsoft.Databricks/workspaces"

    resource_id: Annotated[str, form_field("Resource id of the Databricks workspace", metavar="ID")]
    token_from: Annotated[
        str, form_field("Environment variable that holds a Databricks access token", metavar="VARIABLE")
    ] = ""
    workspace_url: Annotated[
        str,
        form_field(
            "Address of the Databricks workspace, if the resource does not contain it", metavar="URL", advanced=True
        ),
    ] = ""

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        missing = {} if self.token_from else {"token_from": "Give the environment variable that holds a token."}
        return {**AttachedTarget.field_errors(self), **missing}


class DataLakeTarget(AttachedTarget, frozen=True, kw_only=True, tag="datalake"):
    """Target of kind ``datalake``."""

    summary: ClassVar[str] = "A Data Lake Analytics account; Azure ML currently lists it but runs no jobs there."
    title: ClassVar[str] = "Data Lake Analytics account"
    compute_type: ClassVar[str] = "DataLakeAnalytics"
    resource_type: ClassVar[str] = "Microsoft.DataLakeAnalytics/accounts"

    resource_id: Annotated[str, form_field("Resource id of the account", metavar="ID")]
    store: Annotated[str, form_field("Name of the Data Lake Store account with its data", metavar="ACCOUNT")] = ""


__all__ = [
    "RETIRED_KINDS",
    "AZURE_KINDS",
    "AmlComputeTarget",
    "AttachedTarget",
    "AzureTarget",
    "DataLakeTarget",
    "DatabricksTarget",
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
        return {"subnet": "Give the subnet of the virtual network as well."}
    if target.subnet and not target.vnet and not RESOURCE_ID.fullmatch(target.subnet):
        return {"vnet": "Give the virtual network of the subnet as well, or the subnet's full resource id."}
    return {}


class AmlComputeTarget(AzureTarget, frozen=True, kw_only=True, tag="amlcompute"):
    """Target of kind ``amlcompute``."""

    summary: ClassVar[str] = "A cluster of the workspace: it starts machines for waiting jobs and releases idle ones."
    title: ClassVar[str] = "Azure ML cluster"
    verb: ClassVar[str] = "create"
    compute_type: ClassVar[str] = "AmlCompute"

    size: Size
    max_nodes: Annotated[int, form_field("Maximum number of nodes", metavar="N", ge=0, le=65000)] = 1
    min_nodes: Annotated[
        int, form_field("Nodes to keep running when idle (always billed)", metavar="N", ge=0, le=65000)
    ] = 0
    idle_minutes: Annotated[
        float, form_field("Minutes before an idle node is released", metavar="MINUTES", gt=0, le=10080)
    ] = 15.0
    low_priority: Annotated[bool, form_field("Cheaper machines that can be preempted at any time")] = False
    vnet: VirtualNetwork = ""
    subnet: Subnet = ""
    public_ip: Annotated[bool, form_field("The machines have public addresses", advanced=True)] = True
    identity: Identity = ""
    ssh_user: Annotated[str, form_field("Name of an administrator on the machines", metavar="USER", advanced=True)] = ""
    ssh_key_file: Annotated[
        str, form_field("File with the administrator's public key", metavar="FILE", advanced=True)
    ] = ""
    env: Env = ""
    region: Annotated[
        str, form_field("Region of the machines, if it differs from the workspace's", metavar="REGION", advanced=True)
    ] = ""

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        errors = {
            **AzureTarget.field_errors(self),
            **_wrong_network(self),
            **wrong_identity(self.identity),
            **wrong_env(self.env),
        }
        if self.min_nodes > self.max_nodes:
            errors["min_nodes"] = f"{self.min_nodes} is more than the maximum ({self.max_nodes})."
        if self.ssh_user and not self.ssh_key_file:
            errors["ssh_key_file"] = "Give the file with the administrator's public key as well."
        if self.ssh_key_file and not self.ssh_user:
            errors["ssh_user"] = "Give the administrator who owns the key as well."
        return errors


class ServerlessTarget(AzureTarget, frozen=True, kw_only=True, tag="serverless"):
    """Target of kind ``serverless``."""

    summary: ClassVar[str] = (
        "Machines that Azure ML allocates for each run and releases after it; nothing is created beforehand."
    )
    title: ClassVar[str] = "Azure ML serverless"
    verb: ClassVar[str] = "create"

    size: Size
    tier: Annotated[
        Literal["Standard", "Spot"],
        form_field("Standard: dedicated machines; Spot: cheaper ones that can be preempted at any time"),
    ] = "Standard"
    env: Env = ""

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        return {**AzureTarget.field_errors(self), **wrong_env(self.env)}

    @property
    def low_priority(self) -> bool:
        """Whether its machines can be preempted."""
        return self.tier == "Spot"


class InstanceTarget(AzureTarget, frozen=True, kw_only=True, tag="instance"):
    """Target of kind ``instance``."""

    summary: ClassVar[str] = (
        "One machine of the workspace for one user; it runs several jobs at once, and is billed until it is stopped."
    )
    title: ClassVar[str] = "Azure ML compute instance"
    verb: ClassVar[str] = "create"
    compute_type: ClassVar[str] = "ComputeInstance"

    size: Size
    idle_shutdown: Annotated[
        int,
        form_field(
            "Minutes before the idle machine is stopped automatically; 0 for never", metavar="MINUTES", ge=0, le=4320
        ),
    ] = 60
    schedule_start: Annotated[str, form_field("Daily start time, or a cron expression (UTC)", metavar="HH:MM|CRON")] = (
        ""
    )
    schedule_stop: Annotated[str, form_field("Daily stop time, or a cron expression (UTC)", metavar="HH:MM|CRON")] = ""
    vnet: VirtualNetwork = ""
    subnet: Subnet = ""
    public_ip: Annotated[bool, form_field("The machine has a public address", advanced=True)] = True
    identity: Identity = ""
    ssh_key_file: Annotated[
        str,
        form_field(
            "File with the public key for SSH logins; without it the port is closed", metavar="FILE", advanced=True
        ),
    ] = ""
    env: Env = ""

    def field_errors(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.field_errors`."""
        network = _wrong_network(self)
        errors = {**AzureTarget.field_errors(self), **network, **wrong_identity(self.identity), **wrong_env(self.env)}
        for name in ("schedule_start", "schedule_stop"):
            text = getattr(self, name)
            if text and not _CLOCK.fullmatch(text) and not _CRON.fullmatch(text):
                errors[name] = f"{text[:80]!r} is not a time. Write 18:30, or a cron expression: '0 18 * * 1-5'."
        if 0 < self.idle_shutdown < 15:  # the service's own limits: 15 minutes to 3 days
            errors["idle_shutdown"] = "The minimum in Azure ML is 15 minutes; 0 means never."
        return errors


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

#: Kinds that are no longer supported, with the alternative.
RETIRED_KINDS = {
    "batch": "Azure Batch is no longer among the computes that Azure ML publishes (the last was SDK v1's"
    " BatchCompute, whose support ended on 2026-06-30). Use a cluster with low priority for many parallel runs"
    " (%aml_compute create NAME --kind amlcompute --size SIZE --low-priority), or Azure Batch's own tools.",
}


def kind_of_type(compute_type: str) -> type[AzureTarget] | None:
    """Return the target type for the service's `computeType`, in any spelling; ``None`` for an unsupported one."""
    name = compute_type.lower()
    return next((kind for kind in AZURE_KINDS if kind.compute_type and kind.compute_type.lower() == name), None)
