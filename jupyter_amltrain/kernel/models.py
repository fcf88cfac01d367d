"""Register, list and download models, in the project's MLflow store or in a workspace.

Models of runs on targets of a workspace are registered there, all others in the project's store.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from jupyter_amltrain.agent.protocol import OUTPUTS
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.kernel.mlflow_queue import WORKER_TIMEOUT_S, MlflowImportQueue
from jupyter_amltrain.kernel.target_file import TargetFile
from jupyter_amltrain.kernel.workspaces import Workspaces
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.run import Run

#: Seconds that a list of models waits for runs that have just ended.
SETTLE_TIMEOUT_S = 10.0
#: Types of models.
TYPES = ("custom_model", "mlflow_model")
#: Name of the project's registry, used in registry_name of a workspace.
PROJECT_REGISTRY = "local"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")

Progress = Callable[[str], None]


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model.

    Attributes
    ----------
    type
        One of :data:`TYPES`, or another type of the service; empty if unknown.
    run
        Handle of the run that created the model, or the job's name; empty if unknown.
    path
        Location of its files.
    created
        Unix seconds; 0 if unknown.
    workspace
        After a registration: the value of ``--workspace`` that finds the model with any current target.
    """

    name: str
    version: str
    type: str = ""
    run: str = ""
    path: str = ""
    created: float = 0.0
    description: str = ""
    tags: dict[str, str] = {}
    workspace: str = ""


class DownloadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A downloaded model: its folder, number of files and bytes."""

    name: str
    version: str
    folder: str
    files: int
    bytes: int


def checked_name(name: str) -> str:
    """Return `name` if MLflow accepts it.

    Raises
    ------
    CommandError
        The name is not valid.
    """
    if not _NAME.fullmatch(name):
        near = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:60] or "digits"
        raise CommandError(
            f"{name[:80]!r} is not a valid model name. Use letters, digits, '.', '_' and '-' (at most 255).",
            hint=f"Try: {near}",
        )
    return name


def name_and_version(text: str) -> tuple[str, str]:
    """Parse ``NAME``, ``NAME:3`` or ``NAME@latest``; an empty version means the newest."""
    name, _, version = text.removesuffix("@latest").partition(":")
    if version and not _NAME.fullmatch(version):
        raise CommandError(f"{text[:80]!r}: {version[:40]!r} is not a version.", hint=f"Try: {checked_name(name)}:1")
    return checked_name(name), version


class ModelRegistry:
    """Access to the model registries. Loop thread only."""

    def __init__(
        self, loop: LoopThread, imports: MlflowImportQueue, targets: TargetFile, workspaces: Workspaces
    ) -> None:
        self._loop, self._imports, self._targets, self._workspaces = loop, imports, targets, workspaces

    async def register(
        self,
        run: Run,
        name: str,
        *,
        path: str = "",
        type: str = "",
        description: str = "",
        tags: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> ModelRow:
        """Register a model of an ended run.

        Parameters
        ----------
        path
            Path within the run, such as ``outputs/model``; empty uses the run's only model.
        type
            One of :data:`TYPES`; empty: an MLflow model if there is an ``MLmodel`` file.

        Raises
        ------
        CommandError
            The run has not ended, or has no such model.
        """
        fields = {"name": checked_name(name), "path": path, "kind": _type(type), "description": description}
        if not run.status.state.terminal:
            raise CommandError(f"{run.handle} has not ended.", hint=f"Wait for the end: %aml_runs wait {run.handle}")
        tag_values = {str(key): str(value) for key, value in (tags or {}).items()}
        workspace = self._workspaces.of_target(self._targets.get(run.target))
        if workspace is None:
            payload = {**fields, "tags": tag_values, **await self._imports.model_request(run, OUTPUTS)}
            reply = await self._imports.worker.request("model_register", payload, timeout=WORKER_TIMEOUT_S)
            registry = PROJECT_REGISTRY if await self._workspaces.rows(()) else ""
        else:
            registry = self._workspaces.name_of(workspace)
            payload = {**fields, "tags": tag_values, "workspace": registry, "job": run.run_id}
            reply = await self._workspaces.models("register", payload, progress)
        return msgspec.convert({"run": run.handle, **reply, "workspace": registry}, ModelRow)

    async def list(self, project: str, workspace: str = "") -> list[ModelRow]:
        """Return all versions of all models, by name and newest first.

        Parameters
        ----------
        workspace
            A connected workspace, or ``local`` for the project's registry; empty: the one of the current target.
        """
        registry_name = self._registry(workspace)
        if registry_name is None:
            # A run that has just ended may have registered one.
            settling = self._loop.start(self._imports.settle(), "import before a list of models")
            await asyncio.wait({settling}, timeout=SETTLE_TIMEOUT_S)
            reply = await self._imports.worker.request("model_list", {"project": project}, timeout=WORKER_TIMEOUT_S)
        else:
            reply = await self._workspaces.models("list", {"workspace": registry_name}, None)
        return msgspec.convert(reply, list[ModelRow])

    async def download(
        self,
        project: str,
        name: str,
        version: str = "",
        *,
        to: str = "",
        workspace: str = "",
        progress: Progress | None = None,
    ) -> DownloadedModel:
        """Download a model into a new or empty folder.

        Parameters
        ----------
        to
            Default ``NAME-VERSION`` in the working folder.

        Raises
        ------
        UnknownModel
            No model has this name and version.
        CommandError
            The folder is not empty.
        """
        checked_name(name)
        registry_name = self._registry(workspace)
        if not version and not to:  # the folder's name contains the version
            rows = await self.list(project, workspace)
            version = next((row.version for row in rows if row.name == name), "")
        folder = await self._loop.offload(_folder, to or (f"{name}-{version}" if version else name))
        payload = {"name": name, "version": version, "folder": folder}
        if registry_name is None:
            payload["project"] = project
            reply = await self._imports.worker.request("model_download", payload, timeout=WORKER_TIMEOUT_S)
        else:
            reply = await self._workspaces.models("download", {**payload, "workspace": registry_name}, progress)
        return msgspec.convert(reply, DownloadedModel)

    def _registry(self, workspace: str) -> str | None:
        """Resolve the name of a workspace; ``None`` for the project's registry."""
        if workspace == PROJECT_REGISTRY:
            return None
        if not workspace:
            own = self._workspaces.of_target(self._targets.get(self._targets.current))
            if own is None:
                return None
            workspace = own
        return self._workspaces.name_of(workspace)


def _type(text: str) -> str:
    if text and text not in TYPES:
        raise CommandError(f"--type {text[:80]!r}: expected {' or '.join(TYPES)}.", hint=f"Try: --type {TYPES[0]}")
    return text


def _folder(text: str) -> str:
    """Return the absolute path of a new or empty folder.

    Raises
    ------
    CommandError
        The folder is not empty.
    """
    path = Path(text).expanduser().absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CommandError(f"{text} already exists and is not empty.", hint="Choose another folder: --to FOLDER")
    if not path.parent.is_dir():
        raise CommandError(
            f"The folder {path.parent} does not exist.", hint="Create it, or choose another: --to FOLDER"
        )
    return str(path)
