"""Memory of PyTorch's allocator: the hook in the job's Python, and what it tells of the run's GPUs.

The driver sees what a process has taken; of that PyTorch has reserved most, and its tensors hold a part.
"""

from __future__ import annotations

import os
import pkgutil
import re
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence

from .. import protocol
from ..protocol import AgentError, read_json
from .torch_hook import FOLDER

#: Folder of the hook in the run folder.
HOOK = "hook"
#: Seconds between looks, and files that are read: a process of the job writes one.
READ_EVERY_S, MAX_FILES = 2.0, 256
#: More than any GPU has.
MAX_BYTES = 1 << 50
_FILE = re.compile(r"torch-(\d+)\.json\Z")
_NAMES = ("allocated", "reserved")
#: Names of the values: memory of all processes of the run on a GPU now, and the most that was seen.
TORCH = ("torch_allocated", "torch_reserved", "torch_allocated_peak", "torch_reserved_peak")


def add_hook(env: Dict[str, str], folder: str) -> None:
    """Put the hook into a job's environment and its file into the run folder.

    Parameters
    ----------
    env
        Of the job; with ``AMLTRAIN_TORCH_MEMORY=0`` it stays as it is.
    """
    if env.get(FOLDER) == "0":
        return
    place = os.path.join(folder, HOOK)
    source = pkgutil.get_data(__package__ or "", "torch_hook.py")
    if source is None:
        return
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        with open(os.path.join(place, "sitecustomize.py"), "wb") as file:
            file.write(source)
    except OSError:  # the job runs without it
        return
    env[FOLDER] = os.path.join(folder, "telemetry")
    env["PYTHONPATH"] = os.pathsep.join(part for part in (place, env.get("PYTHONPATH")) if part)


class TorchMemory:
    """Figures of the allocators of a run's processes, by GPU.

    Parameters
    ----------
    folder
        The run folder.
    gpus
        Of the telemetry header.

    Attributes
    ----------
    values
        :data:`TORCH` of each GPU (MiB), empty where no process tells them.
    """

    def __init__(self, folder: str, gpus: Sequence[Mapping[str, Any]]) -> None:
        self.folder = os.path.join(folder, "telemetry")
        self.gpus = gpus
        self._due = protocol.mono()
        self._peaks: List[Dict[str, int]] = [{} for _ in gpus]
        self.values: List[Dict[str, int]] = [{} for _ in gpus]

    def read(self, members: Optional[Collection[int]], final: bool = False) -> None:
        """Read what the processes have written.

        Parameters
        ----------
        members
            Pids of the run; the memory of others counts no more. ``None``: nobody knows them.
        final
            Read now, not when it is time to.
        """
        if not self.gpus or (protocol.mono() < self._due and not final):
            return
        self._due = protocol.mono() + READ_EVERY_S
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
        for i, found in enumerate(sums):
            for name, size in found.items():  # of several processes together
                self._peaks[i][name] = max(size, self._peaks[i].get(name, 0))
            for name, peak in self._peaks[i].items():
                self.values[i]["torch_" + name] = found.get(name, 0)
                self.values[i]["torch_%s_peak" % name] = peak

    def figures(self, i: int) -> Dict[str, int]:
        """What the summary says of one GPU (MiB)."""
        return {"torch_%s_peak" % name: peak for name, peak in self._peaks[i].items()}

    def _files(self) -> List[Any]:
        try:
            names = [found for found in map(_FILE.match, sorted(os.listdir(self.folder))) if found]
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
        """Position of the GPU that a process counts as number ``row["device"]``."""
        at = int(row["device"])
        names = [part.strip() for part in visible.split(",")] if visible else []
        given = names[at] if at < len(names) else ""
        for word in (given, str(row.get("uuid") or "")):
            if "-" in word:
                for i, gpu in enumerate(self.gpus):
                    uuid = str(gpu.get("uuid") or "")
                    if uuid.startswith(word) or uuid.partition("-")[2] == word:
                        return i
        if given.isdigit():
            return next((i for i, gpu in enumerate(self.gpus) if gpu.get("index") == int(given)), None)
        return at if not names and at < len(self.gpus) else None
