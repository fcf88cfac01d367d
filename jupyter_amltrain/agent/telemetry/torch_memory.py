"""Memory of PyTorch's allocator: reads the figures of the hook in the job's Python, by GPU.

The driver reports the memory of a process; PyTorch has reserved most of it, and its tensors use a part of that.
"""

from __future__ import annotations

import os
import re
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence

from .. import protocol
from ..protocol import AgentError, read_json

#: Seconds between readings, and maximum number of files: each process of the job writes one.
READ_INTERVAL_S, MAX_FILES = 2.0, 256
#: Upper bound of a GPU's memory.
MAX_BYTES = 1 << 50
_FILE = re.compile(r"torch-(\d+)\.json\Z")
_NAMES = ("allocated", "reserved")
#: Names of the values: memory of all processes of the run on a GPU now, and the highest that was seen.
TORCH = ("torch_allocated", "torch_reserved", "torch_allocated_peak", "torch_reserved_peak")


class TorchMemory:
    """Figures of the allocators of a run's processes, by GPU.

    Parameters
    ----------
    folder
        The run folder.
    gpus
        GPUs of the telemetry header.

    Attributes
    ----------
    values
        :data:`TORCH` of each GPU (MiB), empty if no process reports them.
    """

    def __init__(self, folder: str, gpus: Sequence[Mapping[str, Any]]) -> None:
        self.folder = os.path.join(folder, "telemetry")
        self.gpus = gpus
        self._due = protocol.mono()
        self._peaks: List[Dict[str, int]] = [{} for _ in gpus]
        self.values: List[Dict[str, int]] = [{} for _ in gpus]

    def read(self, members: Optional[Collection[int]], final: bool = False) -> None:
        """Read the files of the processes.

        Parameters
        ----------
        members
            Pids of the run; current memory of other pids is ignored. ``None``: the pids are unknown.
        final
            Read now, even if the interval has not passed.
        """
        if not self.gpus or (protocol.mono() < self._due and not final):
            return
        self._due = protocol.mono() + READ_INTERVAL_S
        sums: List[Dict[str, int]] = [{} for _ in self.gpus]
        for pid, value in self._files():
            rows = value.get("devices")
            for row in rows if isinstance(rows, list) else ():
                try:
                    i = self._position(row, value.get("visible"))
                    if i is None or max(row[name + "_peak"] for name in _NAMES) > MAX_BYTES:
                        continue
                    for name in _NAMES:
                        peak = int(row[name + "_peak"]) >> 20
                        self._peaks[i][name] = max(peak, self._peaks[i].get(name, 0))
                        if members is None or pid in members:
                            sums[i][name] = sums[i].get(name, 0) + (int(row[name]) >> 20)
                except (
                    KeyError,
                    TypeError,
                    ValueError,
                    AttributeError,
                    ArithmeticError,
                ):  # a job can write into its folder
                    continue
        for i, sizes in enumerate(sums):
            for name, size in sizes.items():  # of several processes together
                self._peaks[i][name] = max(size, self._peaks[i].get(name, 0))
            for name, peak in self._peaks[i].items():
                self.values[i]["torch_" + name] = sizes.get(name, 0)
                self.values[i]["torch_%s_peak" % name] = peak

    def figures(self, i: int) -> Dict[str, int]:
        """Return the summary's values of one GPU (MiB)."""
        return {"torch_%s_peak" % name: peak for name, peak in self._peaks[i].items()}

    def _files(self) -> List[Any]:
        try:
            names = [match for match in map(_FILE.match, sorted(os.listdir(self.folder))) if match]
        except OSError:
            return []
        found = []
        for name in names[:MAX_FILES]:
            try:
                value = read_json(os.path.join(self.folder, name[0]))
            except (OSError, AgentError):
                continue
            if value:
                found.append((int(name[1]), value))
        return found

    def _position(self, row: Mapping[str, Any], visible: Optional[str]) -> Optional[int]:
        """Return the position of the GPU that a process counts as number ``row["device"]``."""
        at = int(row["device"])
        names = [part.strip() for part in visible.split(",")] if visible else []
        device = names[at] if at < len(names) else ""
        for word in (device, str(row.get("uuid") or "")):
            if "-" in word:
                for i, gpu in enumerate(self.gpus):
                    uuid = str(gpu.get("uuid") or "")
                    if uuid.startswith(word) or uuid.partition("-")[2] == word:
                        return i
        if device.isdigit():
            return next((i for i, gpu in enumerate(self.gpus) if gpu.get("index") == int(device)), None)
        return at if not names and at < len(self.gpus) else None
