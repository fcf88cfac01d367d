"""Models: registered, listed, copied home."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from jupyter_amltrain.session import controller
from jupyter_amltrain.state import working_folder

if TYPE_CHECKING:
    from jupyter_amltrain.models import Fetched, ModelRow


def register_model(
    name: str,
    *,
    run: str = "last",
    path: str = "",
    type: str = "",
    description: str = "",
    tags: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> ModelRow:
    """Make a version of a model of files that an ended run left; see :meth:`Models.register`.

    Parameters
    ----------
    path
        Within the run, ``outputs/model``; empty takes the only model that it left.
    progress
        Takes sentences on how far it is, on another thread.
    """
    c = controller()

    async def go() -> ModelRow:
        entry = await c.settle(await c.resolve(run))
        return await c.models.register(
            entry.run, name, path=path, type=type, description=description, tags=tags, progress=progress
        )

    return c.loop.call(go(), timeout=None)  # its files may be many gigabytes


def models(workspace: str = "") -> list[ModelRow]:
    """Every version of every model: where the target in use is, of a workspace, or (``"local"``) of this folder."""
    c = controller()
    return c.loop.call(c.models.list(working_folder(), workspace), timeout=None)


def download_model(
    name: str,
    version: str = "",
    *,
    to: str | os.PathLike[str] = "",
    workspace: str = "",
    progress: Callable[[str], None] | None = None,
) -> Fetched:
    """Copy a model into a folder that is not there yet, or empty; default ``NAME-VERSION`` here."""
    c = controller()
    folder, here = os.fspath(to), working_folder()
    done = c.models.download(here, name, version, to=folder, workspace=workspace, progress=progress)
    return c.loop.call(done, timeout=None)
