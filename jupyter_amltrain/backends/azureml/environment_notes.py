"""What a target says of a job's environment before a machine is paid for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jupyter_amltrain.backends.azureml import choice
from jupyter_amltrain.backends.azureml.lifecycle import AzureLifecycle
from jupyter_amltrain.backends.base import Plan
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.snapshot import Snapshot
from jupyter_amltrain.spec.job import JobSpec

#: Seconds that a dry run waits for what the service says of an environment.
_PATIENCE = 20.0


class EnvironmentNotes(AzureLifecycle):
    """The part of ``AzureBackend`` that judges environments. A real submit asks nobody for it beforehand."""

    async def environment_notes(
        self, spec: JobSpec, snapshot: Snapshot, environment: Mapping[str, str], conda: str = ""
    ) -> tuple[str, ...]:
        """See :func:`.choice.notes`."""

        def judged() -> tuple[str, ...]:
            return choice.notes(choice.wanted_of(spec, snapshot), spec.environment, environment, conda)

        return await self._loop.offload(judged)

    async def notes(self, plan: Plan) -> Sequence[str]:
        """See :meth:`Backend.notes`: the service is asked what is in an environment of the workspace's own."""
        environment = plan.request.get("environment")
        if not isinstance(environment, Mapping) or not choice.unjudged(environment):
            return plan.notes
        try:
            conda = await self.ask("environments.conda", None, _PATIENCE, environment=environment)
        except AmlTrainError:
            return plan.notes
        return await self.environment_notes(plan.spec, plan.snapshot, environment, str(conda))
