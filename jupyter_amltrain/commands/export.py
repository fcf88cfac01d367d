"""``runs export``: a run's telemetry as a file."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING

from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.naming import tilde

if TYPE_CHECKING:
    from jupyter_amltrain.api import TrackedRun

#: What a file's ending may be.
ENDINGS = (".csv", ".parquet", ".png")


def checked(path: str) -> str:
    """The absolute path of a file to write; nothing is asked of a target before.

    Raises
    ------
    CommandError
        Its ending says no format, or its folder is not there.
    """
    stem, ending = os.path.splitext(path)
    if ending.lower() not in ENDINGS:
        near = difflib.get_close_matches(ending.lower(), ENDINGS, 1, 0.5) or [ENDINGS[0]]
        raise CommandError(
            f"{path!r} says no format: its ending is to be {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}.",
            hint=f"Try: {stem}{near[0]}",
        )
    full = os.path.abspath(os.path.expanduser(path))
    if not os.path.isdir(os.path.dirname(full)):
        raise CommandError(f"{tilde(os.path.dirname(full))} is no folder.", hint="Make it, or name another file.")
    if os.path.isdir(full):
        raise CommandError(f"{tilde(full)} is a folder.", hint=f"Name a file: {path}/telemetry{ending}")
    return full


def export(run: TrackedRun, path: str) -> str:
    """Write the file; returns the sentence that says so.

    Raises
    ------
    CommandError
        It cannot be written.
    """
    try:
        run.export(path)
    except OSError as error:
        raise CommandError(
            f"Cannot write {tilde(path)}: {error.strerror or error}.", hint="Name a file that you can write."
        ) from error
    return f"Telemetry of {run.handle} is in {tilde(path)}."
