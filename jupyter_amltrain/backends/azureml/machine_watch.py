"""Machines of a compute without a run, by what Azure Monitor has of them: one value a minute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.backends.azureml import mirror_reading
from jupyter_amltrain.backends.azureml.looks import pace
from jupyter_amltrain.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jupyter_amltrain.backends.azureml.backend import AzureBackend

#: Seconds that a monitor lives after the last call.
KEEP = 30.0
#: Azure Monitor is asked once in so many paces: it has one value a minute.
SELDOM = 15.0


class _Watch:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked = time.monotonic()
        self.read = -1e9
        self.since = time.time() - 1800


class MachineWatch:
    """The monitors of one backend."""

    def __init__(self, backend: AzureBackend) -> None:
        self._backend = backend
        self._watches: dict[str, _Watch] = {}

    async def begin(self, monitor_id: str, gpus: Sequence[int] | None) -> str:
        """Watch, or go on doing so; the monitor's folder.

        Raises
        ------
        CommandError
            There is no such GPU in its machines.
        """
        backend = self._backend
        size = backend.size()
        there = range(int(size.gpus or 0)) if size is not None else range(16)
        for index in gpus or ():
            if index not in there:
                listed = f"There are: {', '.join(map(str, there))}." if there else "There is none."
                raise CommandError(f"There is no GPU {index} on this machine. {listed}")
        watch = self._watches.get(monitor_id)
        if watch is None or time.monotonic() - watch.asked > KEEP:
            root, name = backend.state_root.path, backend.workspace().name
            folder = mirror_reading.folder_of(root, name, "monitors") / monitor_id
            await backend.offload(lambda: mirror_reading.remove(folder))
            watch = self._watches[monitor_id] = _Watch(folder)
        watch.asked = time.monotonic()
        return str(watch.folder)

    async def fresh(self, monitor_id: str) -> Path | None:
        """The folder of a monitor, with what there is by now; ``None`` when nobody watches."""
        watch = self._watches.get(monitor_id)
        if watch is None or time.monotonic() - watch.asked > KEEP:
            self._watches.pop(monitor_id, None)
            return None
        if time.monotonic() - watch.read >= SELDOM * pace():
            watch.read = time.monotonic()
            found: dict[str, Any] = await self._backend.ask(
                "monitor.metrics",
                compute=self._backend.azure.compute_name,
                since=watch.since,
                folder=str(watch.folder),
            )
            watch.since = max(watch.since, float(found.get("until") or 0))
        return watch.folder

    async def stop(self, monitor_id: str) -> None:
        """End one; no error when there is none."""
        watch = self._watches.pop(monitor_id, None)
        if watch is not None:
            await self._backend.offload(lambda: mirror_reading.remove(watch.folder))
