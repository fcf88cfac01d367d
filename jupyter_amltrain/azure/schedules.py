"""Schedules of the workspace of a compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jupyter_amltrain.azure.compute import OPERATION_TIMEOUT_S, AzureCompute
from jupyter_amltrain.backends.capabilities import RunSchedules
from jupyter_amltrain.errors import SpecError
from jupyter_amltrain.schema.job import JobSpec


class AzureSchedules(RunSchedules):
    """Files that the service runs at fixed times.

    Parameters
    ----------
    payload_of
        Returns a YAML job as :func:`~jupyter_amltrain.azure.job_body.yaml_payload_of` does.
    """

    def __init__(self, compute: AzureCompute, payload_of: Callable[[JobSpec], dict[str, Any]]) -> None:
        self._compute, self._payload_of = compute, payload_of

    async def create(self, name: str, cron: str, spec: JobSpec) -> dict[str, Any]:
        """See :meth:`RunSchedules.create`."""
        if not spec.job_type:
            raise SpecError(
                "Azure ML schedules files of az ml, not cells.",
                hint="Write one: %aml_pipeline submit --save pipeline.yml",
                code="azure.schedule",
            )
        job = self._payload_of(spec)
        row: dict[str, Any] = await self._compute.request(
            "schedules.create", None, OPERATION_TIMEOUT_S, name=name, cron=cron, job=job
        )
        return row

    async def list(self) -> list[dict[str, Any]]:
        """See :meth:`RunSchedules.list`."""
        rows: list[dict[str, Any]] = await self._compute.request("schedules.list")
        return rows

    async def remove(self, name: str) -> bool:
        """See :meth:`RunSchedules.remove`."""
        return bool(await self._compute.request("schedules.remove", None, OPERATION_TIMEOUT_S, name=name))
