"""Files with tables: as inputs of a job, and whether they can be read here before it is sent."""

from __future__ import annotations

import os

from jupyter_amltrain.jobs import flag_values
from jupyter_amltrain.schema.inputs import JobInput

#: Size up to which a file is read before the submit, to check its columns.
MAX_READ_BYTES = 50 << 20


def input_of_path(path: str) -> JobInput:
    """Return a file, folder or address as an input; a file that is here is sent to a target that does not see it."""
    found = flag_values.input_of(path, "data")
    if not found.local or not os.path.exists(found.path):
        return found
    kind = "uri_folder" if os.path.isdir(found.path) else "uri_file"
    return JobInput(type=kind, path=found.path, mode=found.mode, upload=True)


def readable(data: JobInput) -> bool:
    """Whether a table is on this machine and small enough to be looked at. Blocks on the disk."""
    if not data.local or not os.path.exists(data.path):
        return False
    if os.path.isfile(data.path):
        return os.path.getsize(data.path) <= MAX_READ_BYTES
    files = [entry for entry in os.scandir(data.path) if entry.is_file()]
    return bool(files) and sum(entry.stat().st_size for entry in files) <= MAX_READ_BYTES


def readable_path(data: JobInput | None) -> str | None:
    """Return the path of a table that can be looked at; ``None`` for another one, or none."""
    return data.path if data is not None and readable(data) else None
