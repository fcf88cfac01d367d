"""Arrays of a cluster: runs as the tasks of one job, of which Slurm starts so many at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jupyter_amltrain.backends.capabilities import RunArrays
from jupyter_amltrain.backends.ssh import PASSED_VARIABLES
from jupyter_amltrain.backends.transport import Transport
from jupyter_amltrain.schema.job import JobSpec


class ScriptWriter(Protocol):
    """What an array needs of its cluster."""

    async def facts(self) -> Mapping[str, Any]:
        """Return the limits of the cluster."""

    async def script_of(self, spec: JobSpec, name: str, *, is_array: bool) -> str:
        """Return the script of all runs of an array."""


class TaskArrays(RunArrays):
    """Arrays as the agent on the login node submits them."""

    def __init__(self, transport: Transport, cluster: ScriptWriter, *, uses_login: bool) -> None:
        self._transport, self._cluster, self._uses_login = transport, cluster, uses_login
        self._tasks: dict[str, dict[str, str]] = {}  #: by run id, its array and its job

    async def max_runs(self) -> int:
        """See :meth:`RunArrays.max_runs`."""
        return int((await self._cluster.facts()).get("max_array") or 0)

    async def open(
        self,
        array: str,
        spec: JobSpec,
        run_ids: Sequence[str],
        max_running: int,
        environ: Mapping[str, str],
        secrets: Mapping[str, str],
    ) -> None:
        """See :meth:`RunArrays.open`."""
        variables = {name: environ[name] for name in PASSED_VARIABLES if name in environ}
        variables = variables if self._uses_login else dict(environ)
        answer = await self._transport.call(
            "open_array",
            {
                "array": array,
                "script": await self._cluster.script_of(spec, array, is_array=True),
                "runs": list(run_ids),
                "max_running": max_running,
                "login": self._uses_login,
                "environ": variables,
                "secrets": dict(secrets),
            },
        )
        for number, run_id in enumerate(run_ids):
            self._tasks[run_id] = {"array": array, "job": f"{answer['job']}_{number}"}

    async def release(self, array: str) -> None:
        """See :meth:`RunArrays.release`."""
        await self._transport.call("release_array", {"array": array})
        self._tasks = {run_id: task for run_id, task in self._tasks.items() if task["array"] != array}

    async def cancel(self, array: str) -> None:
        """See :meth:`RunArrays.cancel`."""
        await self._transport.call("cancel_array", {"array": array})

    def task_of(self, run_id: str) -> Mapping[str, str]:
        """Return array and job of a run of an open array; empty for another run."""
        return self._tasks.get(run_id, {})
