"""Files of the public web that inputs of jobs name (``https://``, ``wasbs://``), served from a folder.

The folder has ``HOST/PATH``: ``azuremlexamples.blob.core.windows.net/datasets/iris.csv``. The control call ``/public``
names it; without one the public web is empty. Jobs reach the storage accounts of it over https as well.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from azureml_emulator.routing import Call, Routes

if TYPE_CHECKING:
    from azureml_emulator.world import World

routes = Routes()
_WASBS = re.compile(r"(?:wasbs?|abfss?)://(?P<container>[^@/]+)@(?P<host>[^/]+)/?(?P<path>.*)")


class Public:
    """The folder; part of the world."""

    def __init__(self, world: World) -> None:
        del world
        self.folder: Path | None = None

    async def close(self) -> None:
        """Nothing runs."""

    def path_of(self, uri: str) -> Path | None:
        """The file or folder at a uri, or None."""
        if self.folder is None:
            return None
        found = self.folder.joinpath(*[part for part in _tail(uri).split("/") if part not in ("", ".", "..")])
        return found if found.exists() else None


def is_public(world: World, uri: str) -> bool:
    """Return whether a URI is outside the workspace's own storage account."""
    assert world.blob is not None
    return uri.startswith(("https://", "http://", "wasb", "abfs")) and _tail(uri).partition("/")[0] != world.blob.host


def _tail(uri: str) -> str:
    """``HOST/PATH`` of a uri; a container of ``wasbs`` is the first folder."""
    if (found := _WASBS.fullmatch(uri)) is not None:
        return f"{found['host']}/{found['container']}/{unquote(found['path'])}"
    host, slash, path = uri.partition("://")[2].partition("?")[0].partition("/")
    return f"{host.partition(':')[0]}{slash}{unquote(path)}"


@routes.on("control", "*", "/public", anonymous=True)
async def serve(call: Call) -> Any:
    """Serve a ``folder`` as the public web."""
    body = call.json() or dict(call.query)
    call.world.part(Public).folder = Path(str(body["folder"]))
    return {"folder": str(body["folder"])}
