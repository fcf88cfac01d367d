"""What a step takes of others, where its run gets it, and the key of its result. Loop thread only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_amltrain.backends.agent_backend import AgentBackend
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.errors import UnknownRun
from jupyter_amltrain.jobs.snapshot import code_files
from jupyter_amltrain.kernel.controller import Controller
from jupyter_amltrain.pipelines.plan import PlannedStep
from jupyter_amltrain.pipelines.split import artifacts, gathered
from jupyter_amltrain.pipelines.step_code import code_of
from jupyter_amltrain.pipelines.step_key import step_key
from jupyter_amltrain.pipelines.step_output import ARTIFACTS, StepOutput, input_of
from jupyter_amltrain.schema.inputs import JobInput
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.schema.run import make_handle


def runs_here(backend: Backend) -> bool:
    """Return whether runs of a target are on this machine, where the files are that their code names."""
    return isinstance(backend, AgentBackend) and backend.files.are_local


class StepInputs:
    """Inputs of the steps of one pipeline.

    Parameters
    ----------
    folder
        Folder of the driver's run.
    """

    def __init__(self, kernel: Controller, folder: Path) -> None:
        self._kernel, self._folder = kernel, folder

    async def data(self, output: StepOutput, target: str) -> JobInput:
        """Return files of a step as the input of a run on a target.

        Raises
        ------
        UnknownRun, ResultMissing
            They no longer exist.
        TargetError
            The target that has them does not answer.
        """
        goal = self._kernel.backend(target)
        upload, offload = not goal.files.are_local, self._kernel.loop.offload
        if output.parts:
            paths = [await self._here(part) for part in output.parts]
            return await offload(gathered, self._folder, output, paths, upload)
        if output.type == ARTIFACTS:
            return await offload(artifacts, self._folder, output, await self._here(output), upload)
        handle = await self._kernel.find(make_handle(output.target, output.run_id))
        folder = self._kernel.entry(handle).run.folder
        return await input_of(output, self._kernel.backend(output.target), goal, folder)

    async def _here(self, output: StepOutput) -> str:
        """Return a path on this machine of files of a step."""
        await self._kernel.find(make_handle(output.target, output.run_id))
        local = await self._kernel.backend(output.target).files.local_copy(output.run_id, output.path)
        if local is None:
            raise UnknownRun(f"{output.target}/{output.run_id} has no {output.path} any more.")
        return local

    async def key(self, step: PlannedStep, spec: JobSpec, taken: Mapping[str, Any], data: Mapping[str, str]) -> str:
        """Return the digest of all that the result of a step depends on; arguments as of :func:`.step_key`."""
        is_here = runs_here(self._kernel.backend(step.target))
        folder = code_of(self._folder, step.name)

        def digest() -> str:
            return step_key(spec, code_files(folder), step.target, taken, data, is_here)

        return await self._kernel.loop.offload(digest)
