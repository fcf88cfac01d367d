"""Files of the runs of a machine with our agent, over the transport to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyter_amltrain.agent.data.cache import INPUTS
from jupyter_amltrain.agent.protocol import KEPT_LINKS, LEFT_LINK, SOURCE
from jupyter_amltrain.agent.whole_files import WholeFile
from jupyter_amltrain.backends.run_files import OUTPUT_LIMIT, file_of, output_of
from jupyter_amltrain.backends.target_files import TargetFiles
from jupyter_amltrain.backends.transport import Transport
from jupyter_amltrain.errors import AmlTrainError, ResultMissing
from jupyter_amltrain.schema.run import RunHandle
from jupyter_amltrain.schema.run_file import OutValue, RunFile


class AgentFiles(TargetFiles):
    """Files of the runs of the machine that `transport` reaches.

    Parameters
    ----------
    folder, handle
        Return the folder of a run, and its handle.
    """

    copies_have_modes = log_may_shrink = True

    def __init__(self, transport: Transport, folder: Callable[[str], str], handle: Callable[[str], RunHandle]) -> None:
        self._transport, self._folder, self._handle = transport, folder, handle
        self.are_local = self.has_live_copies = transport.machine.has_our_disk

    async def log_path(self, run_id: str) -> str:
        """See :meth:`TargetFiles.log_path`."""
        return f"{self._folder(run_id)}/{file_of('log')}"

    async def outputs(self, run_id: str, names: Sequence[str]) -> Mapping[str, OutValue | AmlTrainError]:
        """See :meth:`TargetFiles.outputs`."""
        values: dict[str, Any] = {}
        folder, handle = f"{self._folder(run_id)}/outputs", self._handle(run_id)
        for name in names:
            try:
                data = await self._transport.read_from(f"{folder}/{name}.json", 0, OUTPUT_LIMIT + 1)
            except OSError as error:
                reason = f"{name}.json cannot be read ({error.strerror or error})"
                values[name] = ResultMissing(f"--out {name}: {reason} in {handle}.", name=name, why=reason)
                continue
            values[name] = output_of(name, data, handle, folder)
        return values

    async def local_copy(self, run_id: str, path: str = "") -> str | None:
        """See :meth:`TargetFiles.local_copy`."""
        without = () if path else (SOURCE, INPUTS, LEFT_LINK, *KEPT_LINKS)
        return await self._transport.fetch(f"{self._folder(run_id)}/{path}".rstrip("/"), without)

    async def read(self, run_id: str, path: str, limit: int = 1 << 24) -> bytes:
        """See :meth:`TargetFiles.read`."""
        try:
            data = await self._transport.read_from(f"{self._folder(run_id)}/{path}", 0, limit + 1)
        except OSError:
            return b""
        return data if len(data) <= limit else b""

    async def read_part(self, run_id: str, path: str, offset: int, limit: int) -> bytes:
        """See :meth:`TargetFiles.read_part`."""
        return await self._transport.read_from(f"{self._folder(run_id)}/{path}", offset, limit)

    async def read_many(self, run_id: str, paths: Sequence[str], limit: int) -> Sequence[WholeFile | None]:
        """See :meth:`TargetFiles.read_many`."""
        return await self._transport.read_many(self._folder(run_id), paths, limit)

    async def stat(self, run_id: str, path: str) -> RunFile | None:
        """See :meth:`TargetFiles.stat`."""
        return await self._transport.stat(f"{self._folder(run_id)}/{path}")

    async def list(self, run_id: str, folder: str = "") -> Sequence[RunFile]:
        """See :meth:`TargetFiles.list`."""
        if folder == LEFT_LINK:
            answer = await self._transport.call("left", {"run": run_id})
            rows = (row for row in answer["files"] if isinstance(row, dict))
            return [RunFile(path=str(r["path"]), size=int(r["size"]), modified=float(r["modified"])) for r in rows]
        return await self._transport.list(f"{self._folder(run_id)}/{folder}")

    async def list_pictures(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        """See :meth:`TargetFiles.list_pictures`."""
        answer = await self._transport.call("pictures", {"run": run_id})
        return [row for row in answer["pictures"] if isinstance(row, dict)]

    async def live_copies(self, run_ids: Sequence[str]) -> Mapping[str, str]:
        """See :meth:`TargetFiles.live_copies`; on this machine the run folders themselves."""
        return {run_id: self._folder(run_id) for run_id in run_ids} if self.are_local else {}
