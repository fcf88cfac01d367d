"""Targets of kind ``folder``: this machine, with the runs in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from jupyter_amltrain.plugins import BackendKind
from jupyter_amltrain.schema.target import MACHINE_LIMITS, ComputeTarget, Limit, form_field


class FolderTarget(ComputeTarget, frozen=True, kw_only=True, tag="folder"):
    """Target of kind ``folder``."""

    summary: ClassVar[str] = "This machine, with the runs in a folder of its own."
    title: ClassVar[str] = "Folder"
    verb: ClassVar[str] = "attach"
    honors: ClassVar[frozenset[str] | None] = None
    limits: ClassVar[Mapping[str, Limit]] = MACHINE_LIMITS

    folder: Annotated[str, form_field("Folder for the runs", metavar="PATH")]
    nice: Annotated[int, form_field("Niceness of the jobs", metavar="N", ge=0, le=19, advanced=True)] = 0


KIND = BackendKind("amltrain_folder:FolderTarget", "amltrain_folder.backend:FolderBackend")
