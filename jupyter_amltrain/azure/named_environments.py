"""Named environments of an Azure ML workspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.azure import environments
from jupyter_amltrain.azure.compute import AzureCompute
from jupyter_amltrain.azure.job_tracker import SYNC_TIMEOUT_S
from jupyter_amltrain.backends.environments import NamedEnvironments
from jupyter_amltrain.errors import AmlTrainError, CommandError
from jupyter_amltrain.jobs.environments import for_service
from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.schema.environment import Environment, EnvironmentRow
from jupyter_amltrain.schema.job import JobSpec

#: Seconds that a dry run waits for the packages of an environment.
ENVIRONMENT_TIMEOUT_S = 20.0


class AzureEnvironments(NamedEnvironments):
    """Environments of the workspace of a compute."""

    def __init__(self, compute: AzureCompute) -> None:
        self._compute = compute

    async def list(self) -> Sequence[EnvironmentRow]:
        """See :meth:`NamedEnvironments.list`; the latest versions of the workspace's environments."""
        rows = await self._compute.request("environments.list", None, ENVIRONMENT_TIMEOUT_S)
        return [environments.row_of(row, self._compute.target.name) for row in rows]

    async def show(self, name: str) -> EnvironmentRow:
        """See :meth:`NamedEnvironments.show`."""
        bare, _, version = name.removeprefix("azureml:").partition(":")
        bare = bare.removesuffix("@latest")
        found = await self._compute.request(
            "environments.show", None, ENVIRONMENT_TIMEOUT_S, name=bare, version=version
        )
        return environments.row_of(found, self._compute.target.name)

    async def register(self, name: str, environment: Environment) -> EnvironmentRow:
        """See :meth:`NamedEnvironments.register`."""
        if environments.is_curated(name):
            raise CommandError(
                f"Cannot register {name!r}: names that begin with AzureML- are those of Azure.",
                hint="Choose another name.",
                code="environment.name",
            )
        size = self._compute.size("")
        wanted = environment if environment.image else for_service(environment)
        body = environments.body_of(wanted, size.gpus if size else None)
        made = await self._compute.request("environments.register", None, SYNC_TIMEOUT_S, name=name, environment=body)
        return await self.show(f"{name}:{made['version']}")

    async def delete(self, key: str) -> None:
        """See :meth:`NamedEnvironments.delete`; Azure ML only archives environments."""
        raise CommandError(
            f"Cannot delete environment {key!r}: Azure ML keeps every version, for the jobs that used it.",
            hint=f"To hide it: az ml environment archive --name {key.partition(':')[0]}",
            code="environment.unsupported",
        )

    async def notes(self, spec: JobSpec, snapshot: Snapshot, request: Mapping[str, Any]) -> Sequence[str] | None:
        """See :meth:`NamedEnvironments.notes`; fetches the contents of the workspace's own environments."""
        environment = request.get("environment")
        if not isinstance(environment, Mapping) or not environments.is_unknown(environment):
            return None
        try:
            conda = await self._compute.request(
                "environments.conda", None, ENVIRONMENT_TIMEOUT_S, environment=environment
            )
        except AmlTrainError:
            return None
        return await self.notes_of(spec, snapshot, environment, str(conda))

    async def notes_of(
        self, spec: JobSpec, snapshot: Snapshot, environment: Mapping[str, str], conda: str = ""
    ) -> tuple[str, ...]:
        """See :func:`.environments.notes`."""

        def judged() -> tuple[str, ...]:
            return environments.notes(environments.imports_of(spec, snapshot), spec.environment, environment, conda)

        return await self._compute.loop.offload(judged)
