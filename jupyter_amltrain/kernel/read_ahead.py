"""Whole small files of a run, many in one request, with requests on their way while the caller writes files."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from jupyter_amltrain.agent.whole_files import WholeFile
from jupyter_amltrain.backends.base import Backend
from jupyter_amltrain.backends.transfer import GROWTH_BYTES, MAX_PACK_FILES, PartSize, Transfer, pack_length, resumed
from jupyter_amltrain.kernel.result_files import read_results
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.schema.run_file import RunFile

#: Requests that are on their way at once.
_AHEAD = 2

Pack = Sequence[tuple[RunFile, WholeFile | None]]


class ReadAhead:
    """Reads files in their order. Loop thread only.

    Parameters
    ----------
    wanted
        Files as they were listed.
    transfer
        Notes while the machine does not answer.
    """

    def __init__(self, backend: Backend, run: Run, wanted: Sequence[RunFile], transfer: Transfer) -> None:
        self._backend, self._run, self._wanted, self._transfer = backend, run, wanted, transfer
        self._part, self._at = PartSize(), 0
        self._reading: deque[asyncio.Task[Pack]] = deque()

    async def next(self, timeout: float) -> Pack | None:
        """Return the next files; none at the end, ``None`` if they have not come within `timeout` s.

        Raises
        ------
        TargetUnreachable
            The machine has not answered for a while.
        """
        while len(self._reading) < _AHEAD and self._at < len(self._wanted):
            ahead = self._wanted[self._at : self._at + MAX_PACK_FILES]
            pack = ahead[: pack_length([file.size for file in ahead], self._part.bytes)]
            self._at += len(pack)
            self._reading.append(asyncio.ensure_future(self._read(pack)))
        if not self._reading:
            return ()
        await asyncio.wait({self._reading[0]}, timeout=timeout)
        return self._reading.popleft().result() if self._reading[0].done() else None

    async def _read(self, pack: Sequence[RunFile]) -> Pack:
        paths = [file.path for file in pack]
        limit = sum(file.size for file in pack) + GROWTH_BYTES

        async def read() -> Sequence[WholeFile | None]:
            begin = time.monotonic()
            files = await read_results(self._backend, self._run, paths, limit)
            self._part.took(sum(len(file.data) for file in files if file), time.monotonic() - begin)
            return files

        return list(zip(pack, await resumed(read, self._transfer), strict=True))

    async def close(self) -> None:
        """Cancel the requests that are still under way."""
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
