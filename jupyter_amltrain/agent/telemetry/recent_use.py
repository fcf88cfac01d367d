"""Whether a run has used processors or GPUs lately, from its own telemetry."""

from __future__ import annotations

import json
import os
from typing import Any, List, Optional, Tuple

from ..protocol import TELEMETRY
from .gpu_columns import UTIL

#: Percent of one processor, and of a GPU, below which a run does nothing: a loop that looks and sleeps uses less.
_MAX_CPU, _MAX_GPU = 2.0, 1.0
#: Bytes that are read at a time: older samples are left out.
_MAX_BYTES = 256 << 10


class RecentUse:
    """Reads the samples that are new.

    Parameters
    ----------
    folder
        The run folder.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, TELEMETRY % 0)
        self._offset = 0
        self._host: List[str] = []
        self._cpu = self._width = 0
        self._was_idle = False

    def is_idle(self) -> bool:
        """Whether the run has used nothing since the last call; without a new sample, the answer of before."""
        try:
            with open(self._path, "rb") as file:
                if not self._host:
                    self._take_header(file.readline())
                size = os.fstat(file.fileno()).st_size
                file.seek(max(self._offset, size - _MAX_BYTES))
                data = file.read(_MAX_BYTES)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        end = data.rfind(b"\n") + 1
        self._offset = max(self._offset, size - _MAX_BYTES) + end
        rows = [row for row in map(_row, data[:end].splitlines()) if row is not None and len(row) >= len(self._host)]
        if rows:
            self._was_idle = all(_mean(rows, at) <= limit for at, limit in self._limits(len(rows[-1])))
        return self._was_idle

    def _take_header(self, line: bytes) -> None:
        header = json.loads(line.decode())
        self._width = len(header.get("gpu_columns", ()))
        self._host = list(header["columns"])
        self._cpu = self._host.index("cpu")

    def _limits(self, length: int) -> List[Tuple[int, float]]:
        """Return the columns of processors and GPUs in a row of this length, with what they may have."""
        gpus = range(len(self._host) + UTIL, length, self._width) if self._width else ()
        return [(self._cpu, _MAX_CPU), *((at, _MAX_GPU) for at in gpus)]


def _mean(rows: List[List[Any]], at: int) -> float:
    values = [row[at] for row in rows if at < len(row) and isinstance(row[at], (int, float))]
    return float(sum(values)) / max(1, len(values))


def _row(line: bytes) -> Optional[List[Any]]:
    if not line.startswith(b"["):
        return None
    try:
        row = json.loads(line.decode())
    except ValueError:
        return None
    return row if isinstance(row, list) else None
