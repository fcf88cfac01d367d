"""Images of environments: built once each, with a log in the run that asked first."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from azureml_emulator import assets, images
from azureml_emulator.blob import ARTIFACTS
from azureml_emulator.datastores import storage

if TYPE_CHECKING:
    from azureml_emulator.job_runs import Jobs, Run

LOG = "azureml-logs/20_image_build_log.txt"
_STEPS = 8


async def ready(jobs: Jobs, run: Run) -> images.Image:
    """The image of a run's environment, built now if nobody has.

    An environment of conda packages or of a build context is built; a plain image and a curated environment are only
    pulled (assumed; the service's documentation says so of curated ones).

    Raises
    ------
    JobFailed
        The build failed; its log is in the run.
    """
    from azureml_emulator.job_runs import JobFailed

    world = run.world
    found = assets.environment(world, run.workspace_id, run.properties["environmentId"])
    if found is None:
        raise JobFailed("UserError", f"Environment {run.properties['environmentId']} was not found.", "NotFound")
    properties = found["properties"]
    mlflow = properties["environmentType"] == "Curated" or "azureml-mlflow" in properties["condaFile"]
    image = dataclasses.replace(images.find(str(properties.get("image") or "")), mlflow=mlflow)
    script = str(world.switches["fail_build"])
    refused = image.refused or images.packages_refused(properties["condaFile"])
    if script and script in found["id"]:
        refused = f"ERROR: the build was scripted to fail ({script})"
    if found["id"] in jobs.built or not (properties["condaFile"] or properties.get("build") or refused):
        return image
    blob, name = storage(world), f"{run.prefix}{LOG}"
    for number, line in enumerate(_lines(properties)):
        await blob.append(ARTIFACTS, name, line.encode())
        if number < _STEPS:
            await world.clock.sleep(float(world.switches["build_seconds"]) / _STEPS)
    if refused:
        await blob.append(ARTIFACTS, name, f"{refused}\nThe build failed.\n".encode())
        raise JobFailed(
            "UserError", f"Image build failed. For more details, check log file {LOG}.", "ImageBuildFailure"
        )
    await blob.append(ARTIFACTS, name, b"Successfully built and pushed the image.\n")
    jobs.built.add(found["id"])
    return image


def _lines(properties: dict[str, Any]) -> list[str]:
    made = ["Image Build Status is Running", f"Step 1/{_STEPS} : FROM {properties.get('image') or 'Dockerfile'}"]
    made += [f"Step {number}/{_STEPS} : RUN layer {number}" for number in range(2, _STEPS + 1)]
    return [line + "\n" for line in made]
