"""The supervisor's side of the GPU-truth gate: what the sampler found out goes into the run's state."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import clock
from .protocol import DEFAULT_GPU_GRACE, TRUTH
from .truth import CANNOT_TELL, NOT_USED, read_truth

#: Seconds that a run waits for its sampler's first look at the GPUs: what is on them before it starts.
READY_TIMEOUT_S = 3.0
#: Seconds between looks of a supervisor: also for a cancel whose signal did not reach it.
CHECK_INTERVAL_S = 2.0


class GpuUsageGuard:
    """One run's gate.

    Parameters
    ----------
    folder
        The run folder.
    devices
        What the run owns; a run without GPUs has no truth.
    job
        Whose ``require_gpu`` is ``stop`` to act on *not used*, and whose ``gpu_grace`` says how soon.
    number
        Of the machine within the run.

    Attributes
    ----------
    period
        Seconds between looks.
    """

    def __init__(self, folder: str, devices: List[str], job: Mapping[str, Any], number: int = 0) -> None:
        self.number = number
        self.path = os.path.join(folder, TRUTH % number)
        self.devices, self.require = devices, job.get("require_gpu") or ""
        self.period = CHECK_INTERVAL_S
        if devices:
            self.period = min(CHECK_INTERVAL_S, max(0.05, (job.get("gpu_grace") or DEFAULT_GPU_GRACE) / 4))
        self.said: Dict[str, str] = {}
        self._seen: Optional[Tuple[int, int]] = None

    def look(self, state: Dict[str, Any]) -> bool:
        """Bring ``state["truth"]`` up to date; whether it changed."""
        if not self.devices:
            return False
        try:
            now = os.stat(self.path)
        except OSError:
            return False
        if self._seen == (now.st_mtime_ns, now.st_ino):
            return False
        self._seen = (now.st_mtime_ns, now.st_ino)
        found = read_truth(self.path)
        said = {key: str(found.get(key) or "") for key in ("verdict", "detail", "cause")}
        if not said["verdict"] or said == self.said:
            return False
        state["truth"] = self.said = said
        return True

    def stops(self) -> bool:
        """Whether the run is to be stopped for what was found."""
        return self.require == "stop" and self.said.get("verdict") == NOT_USED

    def close(self, state: Dict[str, Any]) -> None:
        """The sampler has ended: what it did not say cannot be told any more."""
        self.look(state)
        if self.devices and not self.said:
            why = "the sampler ended before it could say anything"
            state["truth"] = self.said = {"verdict": CANNOT_TELL, "detail": why, "cause": ""}


class Ready:
    """The pipe on which a sampler says that it has read the devices.

    Attributes
    ----------
    reader, writer
        Its ends; the writer is the sampler's.
    until
        When not to wait any longer, monotonic.
    """

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.until = clock.mono() + READY_TIMEOUT_S

    def came(self) -> bool:
        """Whether the byte is there; to be asked when the reader is readable."""
        return os.read(self.reader, 1) == b"r"

    def close(self) -> None:
        """Close our end."""
        os.close(self.reader)
