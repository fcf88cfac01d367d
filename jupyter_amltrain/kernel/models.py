"""Models of runs: registered, listed, fetched; in the project's MLflow store or in an Azure ML workspace.

Where a run is says which: what ran on Azure is registered in its workspace, all else with the project.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.kernel.mlflow_queue import WORKER_TIMEOUT_S, MlflowImportQueue
from jupyter_amltrain.kernel.target_file import TargetFile
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.schema.target import ComputeTarget
from jupyter_amltrain.state_dir import StateRoot

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.workspace_file import Workspaces

#: What a model can be; MLflow and Azure ML know the same words.
TYPES = ("custom_model", "mlflow_model")
#: The project's registry, where a workspace could be named.
HERE = "local"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")

Progress = Callable[[str], None]


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model.

    Attributes
    ----------
    type
        One of :data:`TYPES`, or another word of the service; empty where it is not known.
    run
        Handle of the run that made it, or the job's name; empty where it is not known.
    path
        Where its files are.
    created
        Unix seconds; 0 where it is not known.
    workspace
        Of a model just registered: what ``--workspace`` needs to find it, whatever target is in use.
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


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """A model that has been copied: into which folder, how many files and bytes."""

    name: str
    version: str
    folder: str
    files: int
    bytes: int


def checked_name(name: str) -> str:
    """`name`, which MLflow and Azure ML both take.

    Raises
    ------
    CommandError
        They do not.
    """
    if not _NAME.fullmatch(name):
        near = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:60] or "digits"
        raise CommandError(
            f"{name[:80]!r} is no name for a model: it has letters, digits, '.', '_' and '-' (at most 255).",
            hint=f"Try: {near}",
        )
    return name


def name_and_version(text: str) -> tuple[str, str]:
    """``NAME``, ``NAME:3`` or ``NAME@latest``; no version is the newest."""
    name, _, version = text.removesuffix("@latest").partition(":")
    if version and not _NAME.fullmatch(version):
        raise CommandError(f"{text[:80]!r}: {version[:40]!r} is no version.", hint=f"Try: {checked_name(name)}:1")
    return checked_name(name), version


class Models:
    """Uses the registry that a run or a name belongs to. Loop thread only."""

    def __init__(self, loop: LoopThread, root: StateRoot, imports: MlflowImportQueue, targets: TargetFile) -> None:
        self._loop, self._root, self._imports, self._targets = loop, root, imports, targets

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
        """Register what an ended run left.

        Parameters
        ----------
        path
            Within the run, ``outputs/model``; empty takes the only model that it left.
        type
            One of :data:`TYPES`; empty: an MLflow model where there is an ``MLmodel`` file.

        Raises
        ------
        CommandError
            The run has not ended, or left no such thing.
        """
        wish = {"name": checked_name(name), "path": path, "kind": _type(type), "description": description}
        if not run.status.state.terminal:
            raise CommandError(f"{run.handle} has not ended.", hint=f"First: %aml_runs wait {run.handle}")
        marks = {str(key): str(value) for key, value in (tags or {}).items()}
        workspace = _workspace_of(self._targets.get(run.target))
        if workspace is None:
            payload = {**wish, "tags": marks, **await self._imports.model_request(run)}
            found = await self._imports.worker.request("model_register", payload, timeout=WORKER_TIMEOUT_S)
            registry = HERE if self._workspaces().all() else ""
        else:
            registry = self._facts(workspace)
            payload = {**wish, "tags": marks, "workspace": registry, "job": run.run_id}
            found = await self._azure("models.register", payload, progress)
        return msgspec.convert({"run": run.handle, **found, "workspace": registry}, ModelRow)

    async def list(self, project: str, workspace: str = "") -> list[ModelRow]:
        """Every version of every model, by name and newest first.

        Parameters
        ----------
        workspace
            A connected workspace, or ``local`` for the project's; empty: where the target in use is.
        """
        place = self._place(workspace)
        if place is None:
            found = await self._imports.worker.request("model_list", {"project": project}, timeout=WORKER_TIMEOUT_S)
        else:
            found = await self._azure("models.list", {"workspace": place}, None)
        return msgspec.convert(found, list[ModelRow])

    async def download(
        self,
        project: str,
        name: str,
        version: str = "",
        *,
        to: str = "",
        workspace: str = "",
        progress: Progress | None = None,
    ) -> Fetched:
        """Copy a model into a folder that is not there yet, or empty.

        Parameters
        ----------
        to
            Default ``NAME-VERSION`` in the working folder.

        Raises
        ------
        UnknownModel
            There is none of that name and version.
        CommandError
            There is something in the folder.
        """
        checked_name(name)
        place = self._place(workspace)
        if not version and not to:  # the folder's name holds the version
            rows = await self.list(project, workspace)
            version = next((row.version for row in rows if row.name == name), "")
        folder = await self._loop.offload(_folder, to or (f"{name}-{version}" if version else name))
        payload = {"name": name, "version": version, "folder": folder}
        if place is None:
            payload["project"] = project
            found = await self._imports.worker.request("model_download", payload, timeout=WORKER_TIMEOUT_S)
        else:
            found = await self._azure("models.download", {**payload, "workspace": place}, progress)
        return msgspec.convert(found, Fetched)

    async def _azure(self, op: str, payload: dict[str, Any], progress: Progress | None) -> Any:
        from jupyter_amltrain.backends.azureml.client import client_of

        return await client_of(self._loop, self._root).request(op, payload, progress=progress, timeout=600.0)

    def _place(self, workspace: str) -> str | None:
        """Name of the workspace that is meant; ``None`` for the project's registry."""
        if workspace == HERE:
            return None
        if workspace:
            return self._facts(workspace)
        found = _workspace_of(self._targets.get(self._targets.current))
        return None if found is None else self._facts(found)

    def _facts(self, workspace: str) -> str:
        return self._workspaces().get(workspace).name

    def _workspaces(self) -> Workspaces:
        from jupyter_amltrain.backends.azureml.workspace_file import Workspaces

        return Workspaces(self._root)


def _workspace_of(target: ComputeTarget) -> str | None:
    """Workspace of an Azure target, empty for the current one; ``None`` for any other target."""
    from jupyter_amltrain.schema.azure_target import AzureTarget

    return target.workspace if isinstance(target, AzureTarget) else None


def _type(text: str) -> str:
    if text and text not in TYPES:
        raise CommandError(f"--type {text[:80]!r}: it is {' or '.join(TYPES)}.", hint=f"Try: --type {TYPES[0]}")
    return text


def _folder(text: str) -> str:
    """The absolute path of a folder that nothing is in.

    Raises
    ------
    CommandError
        Something is.
    """
    path = Path(text).expanduser().absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CommandError(
            f"{text} is there already, and nothing is overwritten.", hint="Name another folder: --to FOLDER"
        )
    if not path.parent.is_dir():
        raise CommandError(f"There is no folder {path.parent}.", hint="Make it, or name another: --to FOLDER")
    return str(path)
