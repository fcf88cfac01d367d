"""Environments that the agent of a machine builds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyter_amltrain.backends.environments import BuiltEnvironments
from jupyter_amltrain.backends.transport import Transport
from jupyter_amltrain.errors import PreflightError
from jupyter_amltrain.jobs import environments
from jupyter_amltrain.jobs.launch import TargetMachine
from jupyter_amltrain.schema.environment import Environment, EnvironmentRow


class AgentEnvironments(BuiltEnvironments):
    """Environments of the machine that `transport` reaches.

    Parameters
    ----------
    target
        Name of the target.
    machine
        Returns what is known of the machine.
    """

    def __init__(self, transport: Transport, target: str, machine: Callable[[], TargetMachine]) -> None:
        self._transport, self._target, self._machine = transport, target, machine

    async def list(self) -> Sequence[EnvironmentRow]:
        """See :meth:`BuiltEnvironments.list`."""
        answer = await self._transport.call("environments", {"verb": "list"})
        return [environments.row_of(row, self._target) for row in answer["environments"]]

    async def key_of(self, environment: Environment) -> str:
        """See :meth:`BuiltEnvironments.key_of`."""
        return str((await self.find(environment, check=False))["key"])

    async def delete(self, key: str) -> None:
        """See :meth:`BuiltEnvironments.delete`."""
        await self._transport.call("environments", {"verb": "delete", "key": key})

    def request(self, environment: Environment, python: str = "") -> dict[str, Any]:
        """Return the request to build an environment with an interpreter, by default that of the target."""
        machine = self._machine()
        return environments.build_request(environment, python or machine.python, machine.has_our_disk)

    async def find(self, environment: Environment, python: str = "", check: bool = True) -> Mapping[str, Any]:
        """Return what the agent knows of a completed environment: its ``key``, its build, seconds of the last one.

        Parameters
        ----------
        python
            Interpreter that it is made with if it names no version; default that of the target.
        check
            Whether an environment that the target cannot build is an error.

        Raises
        ------
        PreflightError
            The target cannot build it.
        """
        request = self.request(environment, python)
        found = await self._transport.call("environments", {"verb": "find", "spec": request})
        if found["reason"] and check:
            raise PreflightError(
                f"Cannot build the environment {request['label']} on {self._target!r}: {found['reason']}.",
                code="environment.no_tool",
                field="environment",
            )
        return found

    async def find_image(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the agent knows of an image; raise ``PreflightError`` if the machine cannot run it."""
        found = await self._transport.call("environments", {"verb": "find_image", "container": dict(request)})
        if found["reason"]:
            raise PreflightError(
                f"Cannot run the image {request['image']} on {self._target!r}: {found['reason']}.",
                code=str(found["code"]),
                field="environment",
            )
        return found
