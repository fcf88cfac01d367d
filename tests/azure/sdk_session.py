"""What a user does with the unmodified azure-ai-ml: ``tests/azureml_emulator/test_jobs.py`` runs it in a process.

Prints one JSON line. Everything that leads it to the emulator is in its environment.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

from azure.ai.ml import Input, MLClient, Output, PyTorchDistribution, command
from azure.ai.ml.entities import AmlCompute, Environment, Model
from azure.core.exceptions import HttpResponseError
from azure.identity import DefaultAzureCredential

SCRIPT = """
import pathlib, sys
print("rows", len(pathlib.Path(sys.argv[1]).read_text().splitlines()), flush=True)
pathlib.Path("outputs/model.txt").write_text("weights")
"""


def main(subscription: str, group: str, workspace: str, folder: Path) -> dict[str, Any]:
    """The whole flow; what was seen."""
    client = MLClient(DefaultAzureCredential(), subscription, group, workspace, enable_telemetry=False)
    found: dict[str, Any] = {}
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(SCRIPT)
    (folder / "data.csv").write_text("a,b\n1,2\n")
    (folder / "conda.yml").write_text("dependencies: [python=3.11, {pip: [torch]}]\n")
    client.compute.begin_create_or_update(
        AmlCompute(name="cpu", size="Standard_DS3_v2", min_instances=0, max_instances=2)
    ).result()
    image = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
    client.environments.create_or_update(
        Environment(name="own", version="1", image=image, conda_file=str(folder / "conda.yml"))
    )

    job = command(
        code=str(folder / "src"),
        command="python train.py ${{inputs.data}} && cp ${{inputs.data}} ${{outputs.copy}}/copy.csv",
        inputs={"data": Input(type="uri_file", path=str(folder / "data.csv"))},
        outputs={"copy": Output(type="uri_folder")},
        environment="own:1",
        compute="cpu",
        experiment_name="digits",
        name="first",
        tags={"team": "a"},
    )
    found["submitted"] = str(client.jobs.create_or_update(job).status)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        client.jobs.stream("first")
    found["streamed"] = printed.getvalue()
    found["ended"] = ended(client, "first")
    client.jobs.download("first", download_path=str(folder / "all"), all=True)
    client.jobs.download("first", download_path=str(folder / "named"), output_name="copy")
    found["downloaded"] = sorted(
        path.relative_to(folder).as_posix() for part in ("all", "named") for path in (folder / part).rglob("*.*")
    )
    artifact = "azureml://jobs/first/outputs/artifacts/paths/outputs/model.txt"
    client.models.create_or_update(Model(path=artifact, name="from-job", type="custom_model"))
    client.models.create_or_update(Model(path=str(folder / "data.csv"), name="from-file", type="custom_model"))
    found["models"] = {
        model.name: [model.version, model.job_name] for model in map(first(client), ("from-job", "from-file"))
    }
    client.models.download("from-job", "1", download_path=str(folder / "model"))
    found["model"] = [path.read_text() for path in (folder / "model").rglob("model.txt")]

    forever = command(code=str(folder / "src"), command="sleep 600", environment="own:1", compute="cpu", name="second")
    client.jobs.create_or_update(forever)
    found["before cancel"] = ended(client, "second", "Running")
    client.jobs.begin_cancel("second").result()
    found["after cancel"] = ended(client, "second")
    failing = command(
        command="echo rank $RANK; test $RANK != 3",
        environment=Environment(image="python:3.11"),
        compute="cpu",
        instance_count=2,
        distribution=PyTorchDistribution(process_count_per_instance=2),
        name="third",
    )
    client.jobs.create_or_update(failing)
    found["failed"] = ended(client, "third")
    client.jobs.archive("second")
    found["listed"] = [one.name for one in client.jobs.list()]
    try:
        client.jobs.create_or_update(command(command="true", environment="own:1", compute="nowhere", name="fourth"))
    except HttpResponseError as error:
        found["unknown compute"] = [error.status_code, str(error.error and error.error.message)]
    return found


def first(client: MLClient) -> Any:
    """The newest version of a model by its name."""
    return lambda name: next(iter(client.models.list(name=name)))


def ended(client: MLClient, name: str, *wanted: str) -> str:
    """Wait for a state."""
    for _ in range(600):
        status = str(client.jobs.get(name).status)
        status = getattr(client.jobs.get(name).status, "value", status)
        if status in (wanted or ("Completed", "Failed", "Canceled")):
            return str(status)
        time.sleep(0.1)
    return f"{name} was {status} at the end"


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))))
