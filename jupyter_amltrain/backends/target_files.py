"""Files of the runs of a target: the part of a backend that reads them, as ``backend.files``."""

from __future__ import annotations

import abc
import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_amltrain.agent.pictures.listing import list_pictures
from jupyter_amltrain.agent.protocol import read_regular
from jupyter_amltrain.agent.whole_files import WholeFile
from jupyter_amltrain.backends.past_runs import TRACKING_FILE, tracking_state
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.schema.run_file import OutValue, RunFile


def read_local(path: str, limit: int) -> bytes:
    """Return the content of a regular local file; empty if it is absent or larger than `limit` bytes. Blocks."""
    try:
        return read_regular(path, limit)
    except (OSError, ValueError):
        return b""


def read_local_part(path: str, offset: int, limit: int) -> bytes:
    """Return up to `limit` bytes of a regular local file from byte `offset`; empty if it is none. Blocks."""
    if not os.path.isfile(path):  # a FIFO would block
        return b""
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(limit)


def list_local(folder: str) -> list[RunFile]:
    """Return all files below a local folder, by path; links to folders are not followed. Blocks."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            file = os.path.join(parent, name)
            try:
                status = os.stat(file)
            except OSError:  # deleted meanwhile, or a link to nothing
                continue
            path = os.path.relpath(file, folder).replace(os.sep, "/")
            found.append(RunFile(path=path, size=status.st_size, modified=status.st_mtime))
    return sorted(found, key=lambda file: file.path)


class TargetFiles(abc.ABC):
    """Files of the runs of a target. ``Run.folder`` is a path on the target, which only this object opens."""

    #: Whether the files are on this machine: a list of runs reads the metrics of every row.
    are_local: bool = False
    #: Whether local copies of files have the modes that the run gave them: then its code can be compared by digest.
    copies_have_modes: bool = False
    #: Whether listing the files of a run costs requests to a service: then they are not listed at each end of a run.
    lists_by_service: bool = False
    #: Whether a job can rewrite its log: a reader must verify the bytes before its offset before it continues.
    log_may_shrink: bool = False
    #: Whether :meth:`live_copies` works.
    has_live_copies: bool = False
    #: Whether the target fetches a YAML job's code folder itself, so that the snapshot does not contain it.
    sends_code: bool = False

    @abc.abstractmethod
    async def log_path(self, run_id: str) -> str:
        """Return the path of the complete log, for display."""

    @abc.abstractmethod
    async def outputs(self, run_id: str, names: Sequence[str]) -> Mapping[str, OutValue | AmlTrainError]:
        """Return values of ``--out``; a name without a value maps to a ``ResultMissing``."""

    async def local_copy(self, run_id: str, path: str = "") -> str | None:
        """Return a local path of a file or folder of a run, by default of its whole folder.

        A target on another machine copies it first: of the whole folder all but the code and the outputs, which are
        copied by their own paths. ``None`` if the run has no such file.
        """
        return None

    async def read(self, run_id: str, path: str, limit: int = 1 << 24) -> bytes:
        """Return a file by its path in the run's folder; empty if it is absent or larger than `limit` bytes."""
        local_path = await self.local_copy(run_id, path)
        return b"" if local_path is None else await asyncio.to_thread(read_local, local_path, limit)

    async def read_part(self, run_id: str, path: str, offset: int, limit: int) -> bytes:
        """Return up to `limit` bytes of a file of a run from byte `offset`; empty at its end or if it is absent."""
        local_path = await self.local_copy(run_id, path)
        return b"" if local_path is None else await asyncio.to_thread(read_local_part, local_path, offset, limit)

    async def read_many(self, run_id: str, paths: Sequence[str], limit: int) -> Sequence[WholeFile | None]:
        """Return whole small files by their paths in the run's folder, together at most `limit` bytes.

        ``None`` for a file that has to be read by itself: by default for each.
        """
        return [None] * len(paths)

    async def stat(self, run_id: str, path: str) -> RunFile | None:
        """Return size and time of a file of a run; ``None`` if there is none."""
        folder, _, name = path.partition("/")
        return next((file for file in await self.list(run_id, folder) if file.path == name), None)

    async def list(self, run_id: str, folder: str = "") -> Sequence[RunFile]:
        """Return all files below a folder of a run, with paths relative to it, by path."""
        local_path = await self.local_copy(run_id, folder)
        return [] if local_path is None else await asyncio.to_thread(list_local, local_path)

    async def list_pictures(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        """Return the newest image files of a run, oldest first; see ``agent/pictures/listing.py``."""
        local_path = await self.local_copy(run_id)
        return [] if local_path is None else await asyncio.to_thread(list_pictures, local_path)

    async def import_states(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Return the result of the MLflow importer for runs: ``imported``, ``direct``, ``failed: <reason>``, ""."""
        return [tracking_state(await self.read(run_id, TRACKING_FILE)) for run_id in run_ids]

    async def live_copies(self, run_ids: Sequence[str]) -> Mapping[str, str]:
        """Return local folders that have the journals of living runs, of those which may have logged more.

        Without `run_ids` the journals of the runs of the last call are not followed any more.
        """
        return {}

    async def known_runs(self) -> Sequence[Run]:
        """Return the runs that this machine knows without asking the target, by their copies here; oldest first."""
        return ()

    async def copied_file(self, run_id: str, path: str) -> bytes:
        """Return what this machine has of a file of a run without asking the target, at most its last MiB."""
        return b""

    def sending(self, run_id: str) -> str:
        """Return the progress of sending the files of a new run; empty if none are being sent."""
        return ""
