"""Environments of the targets, and the user's names for them in ``environments.json``. Loop thread only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.environments import BuiltEnvironments, NamedEnvironments
from jupyter_amltrain.errors import CommandError, SpecError, StateError
from jupyter_amltrain.jobs.environments import read_environment
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.environment import Environment, EnvironmentRow
from jupyter_amltrain.schema.job import JobSpec
from jupyter_amltrain.state_dir import SCHEMA, StateRoot, check_schema, locked, read_json, write_json
from jupyter_amltrain.text import ago, close_matches, did_you_mean

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
#: Version that ``--env NAME`` has if it names none.
_LATEST = "@latest"


class EnvironmentNames:
    """The user's named environments, shared by every kernel. Its methods block on the disk.

    A name stands for the packages that its file had when the name was given.
    """

    def __init__(self, root: StateRoot) -> None:
        self._path: Path = root.path / "environments.json"

    def all(self) -> dict[str, Environment]:
        """Return the environments by name."""
        if not self._path.exists():
            return {}
        value = read_json(self._path)
        check_schema(value, self._path)
        try:
            return msgspec.convert(value.get("environments", {}), dict[str, Environment])
        except msgspec.ValidationError as error:
            raise StateError(f"{self._path} is damaged: {error}.", hint="Delete the file.") from error

    def put(self, name: str, environment: Environment | None) -> None:
        """Set or, with ``None``, remove a name."""
        with locked(self._path.with_suffix(".lock")):
            named = self.all()
            named.pop(name, None)
            if environment is not None:
                named[name] = environment
            stored = {key: msgspec.to_builtins(value) for key, value in named.items()}
            write_json(self._path, {"schema": SCHEMA, "environments": stored})

    def resolve(self, spec: JobSpec) -> JobSpec:
        """Return a job whose ``--env NAME`` has the packages of that name; others stay as they are.

        Raises
        ------
        SpecError
            There is no such name.
        """
        environment = spec.environment
        name = environment.name.removesuffix(_LATEST)
        if environment.chosen or not environment.name.endswith(_LATEST) or not _NAME.fullmatch(name):
            return spec
        named = self.all()
        if name not in named:
            near = close_matches(name, named, 1)
            otherwise = f"Create it: %aml_env create {name} requirements.txt"
            raise SpecError(
                f"--env {name}: there is no environment of this name.",
                hint=did_you_mean(near, otherwise),
                code="environment.unknown",
                field="environment",
            )
        return msgspec.structs.replace(spec, environment=named[name])


class EnvironmentManager:
    """Lists, names and removes the environments of targets.

    Parameters
    ----------
    backend
        Returns the live backend of a target.
    """

    def __init__(self, loop: LoopThread, root: StateRoot, backend: Callable[[str], Backend]) -> None:
        self._loop, self._backend = loop, backend
        self.names = EnvironmentNames(root)

    def _environments(self, target: str) -> BuiltEnvironments | NamedEnvironments:
        """Return the environments of a target.

        Raises
        ------
        CommandError
            It keeps none.
        """
        found = self._backend(target).environments
        if found is None:
            raise CommandError(
                f"Target {target!r} keeps no environments that can be listed here.",
                hint="Targets that do: this machine (local), machines over SSH, and those of a workspace.",
                code="environment.unsupported",
            )
        return found

    async def rows(self, target: str) -> list[EnvironmentRow]:
        """Return the environments of a target, last used first, and names that are not built there.

        Of a target of a service, the latest versions of its named environments.
        """
        kept = self._environments(target)
        if isinstance(kept, NamedEnvironments):
            return list(await kept.list())
        rows = {row.key: row for row in await kept.list()}
        for name, environment in (await self._loop.offload(self.names.all)).items():
            key = await kept.key_of(environment)
            row = rows.get(key) or EnvironmentRow(
                target=target, key=key, label=environment.label, path="", requested=environment.packages
            )
            rows[key] = msgspec.structs.replace(row, names=(*row.names, name))
        return sorted(rows.values(), key=lambda row: -row.used)

    async def find(self, target: str, text: str) -> EnvironmentRow:
        """Return the environment that `text` names: a name, the beginning of a key, or a file (its newest build).

        Raises
        ------
        CommandError
            There is none, or several.
        """
        kept = self._environments(target)
        if isinstance(kept, NamedEnvironments):
            return await kept.show(text)
        rows = await self.rows(target)
        path = os.path.abspath(os.path.expanduser(text))
        found = [row for row in rows if text in row.names] or [row for row in rows if path == row.label]
        found = found[:1] or [row for row in rows if text and row.key.startswith(text)]
        if len(found) == 1:
            return found[0]
        reason = f"several environments of {target!r} begin with {text!r}" if found else f"{target!r} has none"
        raise CommandError(
            f"No environment {text[:80]!r}: {reason}.",
            hint="List them: %aml_env list",
            code="environment.unknown",
        )

    async def create(self, name: str, environment: Environment, target: str) -> None:
        """Give a name to the packages of a file; at a service register a version with them, or with an image.

        Raises
        ------
        CommandError
            The name is invalid, or nothing is named that lists packages.
        """
        kept = self._backend(target).environments
        if not _NAME.fullmatch(name):
            raise CommandError(
                f"{name[:80]!r} is not a name for an environment.",
                hint="Use letters, digits, '-' and '_': %aml_env create digits requirements.txt",
                code="environment.name",
            )
        is_image = bool(environment.image) and not environment.kernel and isinstance(kept, NamedEnvironments)
        if not is_image and (not environment.is_buildable or environment.kernel):
            reason = f"{environment.flag_value} does not list packages" if environment else "no packages are named"
            raise CommandError(
                f"Cannot create environment {name!r}: {reason}.",
                hint=f"Name a file: %aml_env create {name} requirements.txt",
                code="environment.file",
            )
        filled = await self._loop.offload(read_environment, environment)
        if isinstance(kept, NamedEnvironments):
            await kept.register(name, filled)
        else:
            await self._loop.offload(self.names.put, name, filled)

    async def delete(self, target: str, text: str) -> EnvironmentRow:
        """Remove an environment from a target, and its names; return what it was."""
        row = await self.find(target, text)
        if row.built:
            await self._environments(target).delete(row.key)
        for name in row.names:
            await self._loop.offload(self.names.put, name, None)
        return row


def deletion_question(row: EnvironmentRow) -> str:
    """Return what a deletion removes."""
    names = f", named {', '.join(row.names)}," if row.names else ""
    count = f"{len(row.packages)} packages" if row.built else "not built"
    age = f", last used {ago(row.used)}" if row.used else ""
    return f"Environment {row.key}{names} on {row.target!r} would be deleted ({count}{age})."


def environment_from(values: Any, pip: Sequence[str]) -> Environment:
    """Return an environment of the value of ``--env`` and of packages."""
    from jupyter_amltrain.jobs.flags import job_fields

    fields: dict[str, Any] = job_fields({"environment": values, "environment.pip": tuple(pip)})
    environment: Environment = fields["environment"]
    return environment
