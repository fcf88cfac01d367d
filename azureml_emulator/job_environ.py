"""Environment variables that the service gives to every process of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from azureml_emulator import ranks

if TYPE_CHECKING:
    from azureml_emulator.job_runs import Run

# What leads a process to the emulator; on a real node it has no such names (nor AMLTRAIN_*, the tests' short times).
_LED = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


def environ(run: Run, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> dict[str, str]:
    """Names as on a node of Azure ML's common runtime.

    Source: environment printed by jobs in azureml-examples' issues and in the docs of ``AZUREML_*``; the values of
    ``MLFLOW_*`` as the tracking endpoint of recordings 01b to 07a.
    """
    world, properties = run.world, run.properties
    parts = run.workspace_id.split("/")
    subscription, group, workspace = parts[2], parts[4], parts[-1]
    token = world.tokens.mint(
        "https://ml.azure.com", f"run:{run.name}", seconds=float(world.switches["run_token_seconds"])
    )
    tracking = f"{world.api.replace('https', 'azureml', 1)}/mlflow/v1.0{run.workspace_id}"
    found = {name: value for name, value in world.environ.items() if name in _LED or name.startswith("AMLTRAIN_")}
    # Nothing leaves the machine; MLflow's client would try.
    found["MLFLOW_DISABLE_TELEMETRY"] = "true"
    found.update(
        AZUREML_RUN_ID=run.name,
        AZUREML_ROOT_RUN_ID=run.root or run.name,
        AZUREML_EXPERIMENT_NAME=properties["experimentName"],
        AZUREML_ARM_SUBSCRIPTION=subscription,
        AZUREML_ARM_RESOURCEGROUP=group,
        AZUREML_ARM_WORKSPACE_NAME=workspace,
        AZUREML_ARM_PROJECT_NAME=properties["experimentName"],
        AZUREML_WORKSPACE_ID=str((world.resources.get(run.workspace_id) or {})["properties"].get("workspaceId", "")),
        AZUREML_DISCOVERY_SERVICE_ENDPOINT=f"{world.api}/discovery",
        AZUREML_SERVICE_ENDPOINT=world.api,
        AZUREML_RUN_HISTORY_SERVICE_ENDPOINT=world.api,
        AZUREML_NODE_COUNT=str(properties["resources"]["instanceCount"]),
        AZUREML_RUN_TOKEN=token,
        AZUREML_DATA_CONTAINER_ID=f"dcid.{run.name}",
        AZUREML_COMPUTE_USE_COMMON_RUNTIME="true",
        MLFLOW_TRACKING_URI=tracking,
        MLFLOW_RUN_ID=run.name,
        MLFLOW_TRACKING_TOKEN=token,
        MLFLOW_EXPERIMENT_NAME=properties["experimentName"],
    )
    found.update({f"AZURE_ML_INPUT_{name}": value for name, value in inputs.items()})
    found.update({f"AZURE_ML_OUTPUT_{name}": value for name, value in outputs.items()})
    for name, value in (properties["environmentVariables"] or {}).items():
        found[name] = ranks.bound(str(value), inputs, outputs) if "${{" in str(value) else str(value)
    return found
