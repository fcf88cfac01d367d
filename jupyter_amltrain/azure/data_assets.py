"""Data assets of an Azure ML workspace: upload, list and show. Loop thread only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.text import close_matches, did_you_mean

#: Types of data that can be uploaded.
TYPES = ("uri_file", "uri_folder", "mltable")
#: Names and versions that Azure ML accepts.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,29}")


class DataAsset(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a data asset.

    Attributes
    ----------
    type
        One of :data:`TYPES`, or another type of the service.
    path
        Address of its files in the workspace's storage.
    created
        Unix seconds; 0 if unknown.
    sha256
        Digest of names and contents; empty for data that another tool has uploaded.
    workspace
        Name of the connected workspace.
    new
        After an upload: whether the version was created now.
    files, bytes, sent
        After an upload: its files, their size, and the bytes that were sent now.
    """

    name: str
    version: str
    type: str = ""
    path: str = ""
    created: float = 0.0
    description: str = ""
    tags: dict[str, str] = {}
    sha256: str = ""
    workspace: str = ""
    new: bool = False
    files: int = 0
    bytes: int = 0
    sent: int = 0

    @property
    def address(self) -> str:
        """Value of ``--input NAME=``."""
        return f"azureml:{self.name}:{self.version}"


def checked_name(name: str) -> str:
    """Return `name` if Azure ML accepts it.

    Raises
    ------
    CommandError
        The name is not valid.
    """
    if not _NAME.fullmatch(name):
        near = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:60] or "digits"
        raise CommandError(
            f"{name[:80]!r} is not a valid name of data. Use letters, digits, '_' and '-' (at most 255).",
            hint=f"Try: {near}",
            code="data.name",
            field="name",
        )
    return name


def checked_version(version: str) -> str:
    """Return `version` if Azure ML accepts it; empty stays empty."""
    if version and not _VERSION.fullmatch(version):
        raise CommandError(
            f"{version[:80]!r} is not a version of data.", hint="Try: 1", code="data.version", field="version"
        )
    return version


def name_and_version(text: str) -> tuple[str, str]:
    """Parse ``NAME``, ``NAME:3``, ``NAME@latest`` or an address that begins with ``azureml:``."""
    name, _, version = text.removeprefix("azureml:").removesuffix("@latest").partition(":")
    return checked_name(name), checked_version(version)


class DataRegistry:
    """Access to the data assets of the connected workspaces.

    Parameters
    ----------
    request
        Sends a request: operation, name of the workspace, payload, callback for progress.
    """

    def __init__(self, loop: LoopThread, request: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._loop, self._request = loop, request

    async def upload(
        self,
        name: str,
        path: str,
        version: str = "",
        *,
        type: str = "",
        description: str = "",
        tags: Mapping[str, str] | None = None,
        workspace: str = "",
        progress: Callable[[str], None] | None = None,
    ) -> DataAsset:
        """Upload a file or folder, and register it under a name; content that is there already is not sent.

        Parameters
        ----------
        version
            Default: the newest version if it has the same content, otherwise the next one.
        type
            One of :data:`TYPES`; default by the path.
        workspace
            A connected workspace; default that of the target in use, otherwise the current one.

        Raises
        ------
        CommandError
            The path does not exist, or the version exists with other content.
        """
        payload = {
            "name": checked_name(name),
            "version": checked_version(version),
            "path": os.path.abspath(os.path.expanduser(path)),
            "kind": await self._loop.offload(_type, path, type),
            "description": description,
            "tags": {str(key): str(value) for key, value in (tags or {}).items()},
        }
        return msgspec.convert(await self._request("data.register", workspace, payload, progress), DataAsset)

    async def list(self, workspace: str = "", name: str = "") -> list[DataAsset]:
        """Return the versions of all data assets, or of one, by name and newest first."""
        return msgspec.convert(await self._request("data.list", workspace, {"name": name}, None), list[DataAsset])

    async def find(self, name: str, version: str = "", workspace: str = "") -> DataAsset:
        """Return a version; the newest one if none is given.

        Raises
        ------
        CommandError
            There is no such asset or version; the message names what there is.
        """
        rows = await self.list(workspace, checked_name(name))
        for row in rows:
            if version in ("", row.version):
                return row
        if rows:
            reason, hint = f"no version {version}", f"There are: {', '.join(row.version for row in rows[:5])}."
        else:
            names = dict.fromkeys(row.name for row in await self.list(workspace))
            reason, hint = "none of this name", did_you_mean(close_matches(name, names, 2), "List them: %aml_data list")
        where = next((row.workspace for row in rows), workspace) or "the workspace"
        raise CommandError(f"No data {name!r}: {where} has {reason}.", hint=hint, code="data.unknown")


def _type(path: str, type: str) -> str:
    """Return the type of a path of this machine. Blocks on the disk.

    Raises
    ------
    CommandError
        It does not exist, or does not have this type.
    """
    full = os.path.expanduser(path)
    if not os.path.exists(full):
        raise CommandError(
            f"Cannot upload {path}: there is no such file or folder.",
            hint=f"The working folder is {os.getcwd()}.",
            code="data.missing",
            field="path",
        )
    is_folder = os.path.isdir(full)
    if not is_folder:
        found = "uri_file"
    else:
        found = "mltable" if os.path.isfile(os.path.join(full, "MLTable")) else "uri_folder"
    if type and type not in TYPES:
        raise CommandError(f"--type {type[:80]!r}: expected {', '.join(TYPES)}.", code="data.type", field="type")
    if type and type != found and not (type == "uri_folder" and is_folder):
        raise CommandError(
            f"Cannot upload {path} as {type}: it has the type {found}.",
            hint="Leave --type out.",
            code="data.type",
            field="type",
        )
    return type or found
