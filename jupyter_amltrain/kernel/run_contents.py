"""What targets have of runs, and is known here while they do not answer: logs, metrics, files, origin.

Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence

from jupyter_amltrain.backends.run_files import RunFiles, file_of
from jupyter_amltrain.backends.streams import Chunk
from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable
from jupyter_amltrain.kernel.backend_pool import BackendPool
from jupyter_amltrain.kernel.finish import read_all_metrics, read_log
from jupyter_amltrain.kernel.result_files import result_files
from jupyter_amltrain.kernel.run_provenance import read_provenance
from jupyter_amltrain.kernel.store import Entry, RunStore
from jupyter_amltrain.kernel.streams import MetricLog
from jupyter_amltrain.loop import LoopThread
from jupyter_amltrain.schema.provenance import Provenance
from jupyter_amltrain.schema.run import Run, RunHandle
from jupyter_amltrain.schema.run_file import RunFile
from jupyter_amltrain.tracking.thumbnails import MAX_FILE_BYTES, media_type

#: Maximum runs whose metrics are read at the same time.
_MAX_METRIC_READS = 8


class RunContents:
    """Reads the contents of runs.

    Parameters
    ----------
    entry
        Returns the entry of a handle; raises ``UnknownRun``.
    """

    def __init__(
        self, loop: LoopThread, store: RunStore, backends: BackendPool, entry: Callable[[RunHandle], Entry]
    ) -> None:
        self._loop, self._store, self._backends, self._entry = loop, store, backends, entry

    async def last_metrics(
        self, handles: Sequence[RunHandle], *, remote: bool = False
    ) -> dict[RunHandle, dict[str, float]]:
        """Return the last value of every metric of runs; a run that cannot be read has none.

        Parameters
        ----------
        remote
            Also read runs whose files are on other machines.
        """
        limit = asyncio.Semaphore(_MAX_METRIC_READS)

        async def last(handle: RunHandle) -> dict[str, float]:
            entry = self._store.get(handle)
            if entry is None:
                return {}
            metrics, run = entry.metrics if entry.read else MetricLog(), entry.run
            if not entry.read and run.folder and not run.damaged:
                async with limit:
                    with contextlib.suppress(AmlTrainError, OSError):
                        backend = self._backends.backend(run.target)
                        if remote or backend.files.are_local:
                            read = functools.partial(read_all_metrics, backend, run.run_id)
                            metrics = await self._backends.reads.value(
                                backend, ("metrics", handle), read, metrics, self.probe(run)
                            )
            return {name: metric.last for name, metric in metrics.metrics.items() if metric.last is not None}

        return dict(zip(handles, await asyncio.gather(*map(last, handles)), strict=True))

    async def read_picture(self, handle: RunHandle, path: str) -> bytes:
        """Return one of a run's pictures; empty if it is none, is no image, or is over 16 MiB."""
        entry = self._entry(handle)
        if entry.pictures.get(path) is None:
            await self._backends.shown.complete(entry)
        if entry.pictures.get(path) is None:  # only pictures are read, not any file that a page names
            return b""
        data = await self._backends.backend(entry.run.target).files.read(entry.run.run_id, path, MAX_FILE_BYTES)
        return data if media_type(data) else b""

    async def logs(self, handle: RunHandle, tail_bytes: int | None = None, child: str = "", rank: int = 0) -> bytes:
        """Return the log of one process of a run or of a child run: all of it, or the last `tail_bytes` bytes."""
        entry = self._entry(handle)
        run, backend = entry.run, self._backends.backend(entry.run.target)
        if not run.folder:
            return b""
        key = ("log", handle, tail_bytes, child, rank)
        data = await self._backends.reads.value(
            backend, key, lambda: read_log(backend, run.run_id, tail_bytes, child, rank), None, self.probe(run)
        )
        if data is not None:
            return data
        known = b"" if child or rank else entry.log.last(tail_bytes or entry.log.bytes)
        if not known and not child:  # of an earlier kernel
            known = (await backend.files.copied_file(run.run_id, file_of(f"log/{rank}")))[-(tail_bytes or 0) :]
        return f"[{self._backends.reads.silence_text(run.target)} What is known here of its log:]\n".encode() + known

    async def read_log(self, handle: RunHandle, offset: int, limit: int = 1 << 20, rank: int = 0) -> Chunk:
        """Read a part of the log of one process of a run; see :meth:`Backend.read`."""
        run = self._entry(handle).run
        if not run.folder:
            return Chunk(b"", 0)
        return await self._backends.backend(run.target).read(run.run_id, f"log/{rank}", offset, limit)

    async def provenance(self, handle: RunHandle) -> Provenance:
        """Return what is known about the origin of a run; empty fields are unknown."""
        run = self._entry(handle).run
        backend = self._backends.backend(run.target)
        return await self._backends.reads.value(
            backend, ("provenance", handle), lambda: read_provenance(backend, run), Provenance()
        )

    async def result_files(self, handle: RunHandle) -> list[RunFile]:
        """Return the files that the script of a run has written.

        Raises
        ------
        TargetUnreachable
            The target does not answer in time.
        """
        run = self._entry(handle).run
        backend, reads = self._backends.backend(run.target), self._backends.reads
        read = functools.partial(result_files, backend, run)
        found = await reads.value(backend, ("files", handle), read, None, self.probe(run), strict=True)
        if found is None:
            raise TargetUnreachable(f"{reads.silence_text(run.target)} Its files are listed as soon as it answers.")
        return found

    def files(self, handle: RunHandle) -> RunFiles:
        """Return the files of a run, for reading in a thread."""
        run = self._entry(handle).run
        return RunFiles(self._loop, self._backends.backend(run.target).files, run.run_id if run.folder else "")

    def probe(self, run: Run) -> Callable[[], Awaitable[object]]:
        """Return a small request about a run."""
        if run.folder and not run.status.state.terminal:
            return functools.partial(self._backends.poll, run.target, [run.run_id])
        return functools.partial(self._backends.backend(run.target).read, run.run_id, "log", -1, 1)
