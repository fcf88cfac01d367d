"""What is there already and is made known to an Azure ML workspace, as data."""

from __future__ import annotations

from typing import Annotated, ClassVar

from jupyter_amltrain.spec.azure_base import AzureTarget, Env, named, wrong_env, wrong_identity
from jupyter_amltrain.spec.target import limits


class AttachedTarget(AzureTarget, frozen=True, kw_only=True):
    """Something that is there already and is made known to the workspace."""

    verb: ClassVar[str] = "attach"
    attached: ClassVar[bool] = True

    def wrong(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.wrong`."""
        found = {**AzureTarget.wrong(self), **self._wrong_resource()}
        return found | self._wrong_variables(
            *(n for n in self.__struct_fields__ if n in ("password_from", "token_from"))
        )


class _LoginTarget(AttachedTarget, frozen=True, kw_only=True):
    """Something with a Linux machine that Azure ML logs in to.

    Attributes
    ----------
    ssh_user
        User whom Azure ML logs in as.
    password_from
        Environment variable that holds the user's password.
    ssh_key_file
        File with the user's private key, instead of a password.
    """

    resource_id: Annotated[str, named("ID")]
    ssh_user: Annotated[str, named("USER")] = ""
    password_from: Annotated[str, named("VARIABLE")] = ""
    ssh_key_file: Annotated[str, named("FILE")] = ""
    ssh_port: Annotated[int, limits(ge=1, le=65535, metavar="PORT", advanced=True)] = 22
    address: Annotated[str, named("ADDRESS", advanced=True)] = ""

    def wrong(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.wrong`."""
        found = AttachedTarget.wrong(self)
        if not self.ssh_user:
            found["ssh_user"] = "Name the user whom Azure ML logs in as."
        if bool(self.password_from) == bool(self.ssh_key_file) and "password_from" not in found:
            found["password_from"] = "Give either this or --ssh-key-file: how Azure ML logs in."
        return found


class MachineTarget(_LoginTarget, frozen=True, kw_only=True, tag="vm"):
    """A virtual machine with Ubuntu that is there already; today's Azure ML lists it but runs no job there.

    Attributes
    ----------
    resource_id
        Resource id of the virtual machine.
    ssh_port
        Port of the machine's SSH server.
    address
        Public address of the machine, when the resource does not tell it.
    """

    title: ClassVar[str] = "Virtual machine"
    noun: ClassVar[str] = "virtual machine"
    compute_type: ClassVar[str] = "VirtualMachine"
    resource_type: ClassVar[str] = "Microsoft.Compute/virtualMachines"


class KubernetesTarget(AttachedTarget, frozen=True, kw_only=True, tag="kubernetes"):
    """A Kubernetes cluster (AKS or Arc) with the Azure ML extension.

    Attributes
    ----------
    resource_id
        Resource id of the cluster.
    namespace
        Kubernetes namespace that jobs run in.
    identity
        Managed identity: system, or the resource id of a user-assigned one.
    env
        Environment of runs that name none by --env: kernel, NAME@latest, a conda file, an image.
    """

    title: ClassVar[str] = "Kubernetes cluster"
    compute_type: ClassVar[str] = "Kubernetes"
    resource_type: ClassVar[str] = (
        "Microsoft.ContainerService/managedClusters or Microsoft.Kubernetes/connectedClusters"
    )

    resource_id: Annotated[str, named("ID")]
    namespace: Annotated[str, named("NAMESPACE")] = "default"
    identity: Annotated[str, named("system|ID", advanced=True)] = ""
    env: Env = ""

    def wrong(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.wrong`."""
        return {**AttachedTarget.wrong(self), **wrong_identity(self.identity), **wrong_env(self.env)}


class SynapseSparkTarget(AttachedTarget, frozen=True, kw_only=True, tag="synapse-spark"):
    """A Spark pool of Azure Synapse; it runs Spark jobs only.

    Attributes
    ----------
    resource_id
        Resource id of the pool.
    identity
        Managed identity: system, or the resource id of a user-assigned one.
    """

    title: ClassVar[str] = "Synapse Spark pool"
    compute_type: ClassVar[str] = "SynapseSpark"
    resource_type: ClassVar[str] = "Microsoft.Synapse/workspaces/bigDataPools"

    resource_id: Annotated[str, named("ID")]
    identity: Annotated[str, named("system|ID", advanced=True)] = ""

    def wrong(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.wrong`."""
        return {**AttachedTarget.wrong(self), **wrong_identity(self.identity)}


class HDInsightTarget(_LoginTarget, frozen=True, kw_only=True, tag="hdinsight"):
    """An HDInsight cluster; today's Azure ML lists it but runs no job there.

    Attributes
    ----------
    resource_id
        Resource id of the cluster.
    ssh_port
        Port of the SSH server.
    address
        Public address of the master node: NAME-ssh.azurehdinsight.net.
    """

    title: ClassVar[str] = "HDInsight cluster"
    compute_type: ClassVar[str] = "HDInsight"
    resource_type: ClassVar[str] = "Microsoft.HDInsight/clusters"


class DatabricksTarget(AttachedTarget, frozen=True, kw_only=True, tag="databricks"):
    """A Databricks workspace; today's Azure ML lists it but runs no job there.

    Attributes
    ----------
    resource_id
        Resource id of the Databricks workspace.
    token_from
        Environment variable that holds a Databricks access token.
    workspace_url
        Address of the Databricks workspace, when the resource does not tell it.
    """

    title: ClassVar[str] = "Databricks workspace"
    compute_type: ClassVar[str] = "Databricks"
    resource_type: ClassVar[str] = "Microsoft.Databricks/workspaces"

    resource_id: Annotated[str, named("ID")]
    token_from: Annotated[str, named("VARIABLE")] = ""
    workspace_url: Annotated[str, named("URL", advanced=True)] = ""

    def wrong(self) -> dict[str, str]:
        """See :meth:`ComputeTarget.wrong`."""
        missing = {} if self.token_from else {"token_from": "Name the environment variable that holds a token."}
        return {**AttachedTarget.wrong(self), **missing}


class DataLakeTarget(AttachedTarget, frozen=True, kw_only=True, tag="datalake"):
    """A Data Lake Analytics account; today's Azure ML lists it but runs no job there.

    Attributes
    ----------
    resource_id
        Resource id of the account.
    store
        Name of the Data Lake Store account with its data.
    """

    title: ClassVar[str] = "Data Lake Analytics account"
    compute_type: ClassVar[str] = "DataLakeAnalytics"
    resource_type: ClassVar[str] = "Microsoft.DataLakeAnalytics/accounts"

    resource_id: Annotated[str, named("ID")]
    store: Annotated[str, named("ACCOUNT")] = ""
