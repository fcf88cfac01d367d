"""Environments of a target: a capability that a backend may have, as ``backend.environments``."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.jobs.snapshot import Snapshot
from jupyter_amltrain.schema.environment import Environment, EnvironmentRow
from jupyter_amltrain.schema.job import JobSpec


class BuiltEnvironments(abc.ABC):
    """Environments that the target builds from files with packages; the user's own names for them are used."""

    @abc.abstractmethod
    async def list(self) -> Sequence[EnvironmentRow]:
        """Return the environments that are built on the target."""

    @abc.abstractmethod
    async def key_of(self, environment: Environment) -> str:
        """Return the key that a completed environment has in :meth:`list`."""

    @abc.abstractmethod
    async def delete(self, key: str) -> None:
        """Remove an environment, by its key. Raises ``CommandError``: a run uses it, or there is none."""


class NamedEnvironments(abc.ABC):
    """Environments that a service keeps for the target, by name and version."""

    @abc.abstractmethod
    async def list(self) -> Sequence[EnvironmentRow]:
        """Return the latest versions."""

    @abc.abstractmethod
    async def show(self, name: str) -> EnvironmentRow:
        """Return an environment by ``NAME``, ``NAME:VERSION`` or ``NAME@latest``, with its versions.

        Raises
        ------
        CommandError
            There is none.
        """

    @abc.abstractmethod
    async def register(self, name: str, environment: Environment) -> EnvironmentRow:
        """Register a new version.

        Parameters
        ----------
        environment
            With the content of its file.
        """

    @abc.abstractmethod
    async def delete(self, key: str) -> None:
        """Remove an environment, by its key. Raises ``CommandError``: the service keeps it."""

    async def notes(self, spec: JobSpec, snapshot: Snapshot, request: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the notes of a plan after the description of its environment is read; ``None`` if it has them."""
        return None
