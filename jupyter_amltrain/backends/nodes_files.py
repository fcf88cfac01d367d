"""Files of the runs of several machines over SSH."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from jupyter_amltrain.agent.protocol import FAILURE_OF_RANK
from jupyter_amltrain.agent.whole_files import WholeFile
from jupyter_amltrain.backends.run_placement import RunPlacement
from jupyter_amltrain.backends.ssh_hosts import HostBackend, SshHosts
from jupyter_amltrain.backends.target_files import TargetFiles
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.schema.run import Run
from jupyter_amltrain.schema.run_file import OutValue, RunFile

_OF_RANK = re.compile(re.escape(FAILURE_OF_RANK).replace("%d", r"(\d{1,6})"))


class NodesFiles(TargetFiles):
    """Files of the runs of several machines, each from the machine that has them.

    Parameters
    ----------
    host
        Returns the machine of a run, which is searched if this kernel has not seen the run, or of one of its processes.
    """

    log_may_shrink = has_live_copies = copies_have_modes = True

    def __init__(
        self, hosts: SshHosts, placement: RunPlacement, host: Callable[[str, int], Awaitable[HostBackend]]
    ) -> None:
        self._hosts, self._placement, self._host = hosts, placement, host

    async def _of(self, run_id: str) -> TargetFiles:
        return (await self._host(run_id, 0)).files

    def _own(self, number: int, run_ids: Sequence[str]) -> Sequence[str]:
        """Return the runs of a machine."""
        return [run_id for run_id in run_ids if self._placement.machine_of(run_id) == number]

    async def log_path(self, run_id: str) -> str:
        """See :meth:`TargetFiles.log_path`."""
        return await (await self._of(run_id)).log_path(run_id)

    async def outputs(self, run_id: str, names: Sequence[str]) -> Mapping[str, OutValue | AmlTrainError]:
        """See :meth:`TargetFiles.outputs`."""
        return await (await self._of(run_id)).outputs(run_id, names)

    async def local_copy(self, run_id: str, path: str = "") -> str | None:
        """See :meth:`TargetFiles.local_copy`."""
        return await (await self._of(run_id)).local_copy(run_id, path)

    async def live_copies(self, run_ids: Sequence[str]) -> Mapping[str, str]:
        """See :meth:`TargetFiles.live_copies`."""
        groups = {number: self._own(number, run_ids) for number in range(len(self._hosts))}
        for number in [number for number, runs in groups.items() if not runs]:
            await self._hosts[number].files.live_copies(groups.pop(number))
        if not groups:
            return {}
        found, _ = await self._hosts.ask(lambda host: host.files.live_copies(groups[host.number]), groups)
        return {run_id: folder for folders in found.values() for run_id, folder in folders.items()}

    def sending(self, run_id: str) -> str:
        """See :meth:`TargetFiles.sending`."""
        return self._hosts[self._placement.machine_of(run_id)].files.sending(run_id)

    async def read(self, run_id: str, path: str, limit: int = 1 << 24) -> bytes:
        """See :meth:`TargetFiles.read`; what a process has left at its failure is on its machine."""
        match = _OF_RANK.fullmatch(path)
        files = (await self._host(run_id, int(match[1]) if match else 0)).files
        return await files.read(run_id, path, limit)

    async def read_part(self, run_id: str, path: str, offset: int, limit: int) -> bytes:
        """See :meth:`TargetFiles.read_part`."""
        return await (await self._of(run_id)).read_part(run_id, path, offset, limit)

    async def read_many(self, run_id: str, paths: Sequence[str], limit: int) -> Sequence[WholeFile | None]:
        """See :meth:`TargetFiles.read_many`."""
        return await (await self._of(run_id)).read_many(run_id, paths, limit)

    async def stat(self, run_id: str, path: str) -> RunFile | None:
        """See :meth:`TargetFiles.stat`."""
        return await (await self._of(run_id)).stat(run_id, path)

    async def list(self, run_id: str, folder: str = "") -> Sequence[RunFile]:
        """See :meth:`TargetFiles.list`."""
        return await (await self._of(run_id)).list(run_id, folder)

    async def list_pictures(self, run_id: str) -> Sequence[Mapping[str, Any]]:
        """See :meth:`TargetFiles.list_pictures`."""
        return await (await self._of(run_id)).list_pictures(run_id)

    async def import_states(self, run_ids: Sequence[str]) -> Sequence[str]:
        """See :meth:`TargetFiles.import_states`."""
        states: dict[str, str] = {}
        for host in self._hosts:
            own = self._own(host.number, run_ids)
            states.update(zip(own, await host.files.import_states(own), strict=True))
        return [states[run_id] for run_id in run_ids]

    async def known_runs(self) -> Sequence[Run]:
        """See :meth:`TargetFiles.known_runs`."""
        runs = [run for host in self._hosts for run in await host.files.known_runs()]
        return sorted(runs, key=lambda run: run.created)

    async def copied_file(self, run_id: str, path: str) -> bytes:
        """See :meth:`TargetFiles.copied_file`."""
        copies = [await host.files.copied_file(run_id, path) for host in self._hosts]
        return next(filter(None, copies), b"")
