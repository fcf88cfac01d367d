"""State of the GPUs and their driver, read by a child process so that the dispatcher never blocks."""

from __future__ import annotations

import os
import selectors
import signal
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .. import protocol
from ..process_setup import drain
from ..processes import boot_id, pid_scope
from ..protocol import SCHEMA, AgentError, read_json, write_json
from ..telemetry import driver_state, nvml

FILE = "gpus.json"

Gpu = Dict[str, Any]


class KnownGpus:
    """GPUs seen since the boot of this machine or container, by UUID.

    Parameters
    ----------
    queue
        The queue folder.
    """

    def __init__(self, queue: str) -> None:
        self._path = os.path.join(queue, FILE)
        self._scope = {"boot": boot_id(), "node": pid_scope()}
        self.gpus: Dict[str, Gpu] = {}
        try:
            stored = read_json(self._path, "Queue folder") or {}
        except (AgentError, OSError):
            stored = {}
        if all(stored.get(key) == value for key, value in self._scope.items()):
            self.gpus = {gpu["uuid"]: gpu for gpu in stored.get("gpus") or [] if _is_valid(gpu)}

    def remember(self, reading: List[Mapping[str, Any]]) -> None:
        """Add the whole GPUs (not MIG instances) of a reading: ``index, name, uuid``."""
        new = {gpu["uuid"]: dict(gpu) for gpu in reading}
        if all(self.gpus.get(uuid) == gpu for uuid, gpu in new.items()):
            return
        self.gpus.update(new)
        try:
            write_json(self._path, dict(self._scope, schema=SCHEMA, gpus=list(self.gpus.values())))
        except OSError:  # a full disk: this dispatcher keeps them in memory
            pass

    def lost(self, present: List[str], reported: List[Mapping[str, Any]]) -> List[Gpu]:
        """Return GPUs that cannot be used now, with ``index, name, uuid, reason``, sorted by index.

        Parameters
        ----------
        present
            UUIDs of the GPUs that work.
        reported
            ``lost`` of the reading.
        """
        missing = {uuid: gpu for uuid, gpu in self.gpus.items() if uuid not in present}
        lost = []
        for row in reported:
            match = missing.pop(row["uuid"], None)
            if match is None and row["uuid"] is None:  # the driver keeps the numbering: match by index
                match = next((gpu for gpu in missing.values() if gpu["index"] == row["index"]), None)
                if match is not None:
                    del missing[match["uuid"]]
            known = match or {}
            lost.append(
                dict(row, name=row["name"] or known.get("name") or "GPU", uuid=row["uuid"] or known.get("uuid"))
            )
        lost += [dict(gpu, reason="the driver no longer lists it") for gpu in missing.values()]
        return sorted(lost, key=lambda gpu: int(gpu["index"]))


def _is_valid(gpu: Any) -> bool:
    return (
        isinstance(gpu, dict)
        and isinstance(gpu.get("index"), int)
        and isinstance(gpu.get("name"), str)
        and isinstance(gpu.get("uuid"), str)
    )


#: Factors of the GPU probe interval if the last reading found no driver, or no usable GPU.
ABSENT_FACTOR, BROKEN_FACTOR = 12.0, 2.5


class GpuWatch:
    """The last GPU reading, and the probe in progress.

    Parameters
    ----------
    selector
        Selector of the dispatcher.
    on_read
        Called after each reading.
    known
        GPUs seen since the boot.
    """

    def __init__(self, selector: selectors.BaseSelector, on_read: Callable[[], None], known: KnownGpus) -> None:
        self.selector = selector
        self.on_read = on_read
        self.history = known
        self.usable: List[Dict[str, Any]] = []
        self.lost: List[Dict[str, Any]] = []  #: GPUs that cannot be used, see `KnownGpus.lost`
        self.driver = driver_state.ABSENT
        self.code: Optional[int] = None  #: NVML error code if the driver is broken
        self.note = ""
        self.known = False
        self.expired = False  #: something changed since the last reading
        self.began = 0.0  #: when the last reading began, or the one in progress
        self._finished_at = 0.0
        self._child: Optional[Tuple[int, int]] = None
        self._data = b""
        self._duration_s = 0.0  # of the last reading

    @property
    def probing(self) -> bool:
        """Whether a reading is in progress."""
        return self._child is not None

    @property
    def doubtful(self) -> bool:
        """Whether another reading may find more GPUs than the last one."""
        if self.known and self.driver == driver_state.ABSENT and not nvml.is_installed():
            return False  # a machine without GPUs: no job waits for a process that finds this again
        return self.driver != driver_state.WORKS or bool(self.note or self.lost)

    @property
    def trouble(self) -> str:
        """Reason why no GPU is usable on a machine that has or had GPUs; empty otherwise."""
        if self.driver == driver_state.BROKEN:
            return self.note
        return driver_state.lost_text(self.lost) if self.lost and not self.usable else ""

    def refresh(self, older_than: float = 0.0) -> None:
        """Start a reading unless one is in progress or the last one is less than `older_than` seconds old."""
        # A machine without GPUs will not get one within seconds. NVML that is slow to
        # start (no persistence mode) must not be probed all the time.
        factor = 1.0 if self.usable else ABSENT_FACTOR if self.driver == driver_state.ABSENT else BROKEN_FACTOR
        limit = max(older_than * factor, 10 * self._duration_s)
        if self._child is not None or (self.known and not self.expired and protocol.mono() - self._finished_at < limit):
            return
        self.probe()

    def probe(self) -> None:
        """Start a reading now unless one is in progress; if no process can be forked, the last reading is kept."""
        if self._child is not None:
            return
        try:
            self._child = nvml.start_probe()
        except OSError:
            self.expired = True
            return
        self.expired = False
        self._data = b""
        self.began = protocol.mono()
        self.selector.register(self._child[1], selectors.EVENT_READ, self._readable)

    def _readable(self) -> None:
        if self._child is None:
            return
        handle = self._child[1]
        try:
            piece = os.read(handle, 1 << 16)
        except BlockingIOError:
            return
        if piece:
            self._data += piece
            return
        self._finish()

    def _finish(self) -> None:
        if self._child is None:
            return
        _, handle = self._child
        drain(handle)
        self.selector.unregister(handle)
        os.close(handle)
        self._child = None
        self._finished_at = protocol.mono()
        self._duration_s = self._finished_at - self.began
        self._store(nvml.parse_probe(self._data, self._duration_s))
        self.known = True
        if self.usable:
            nvml.preload()
        self.on_read()

    def _store(self, value: Dict[str, Any]) -> None:
        """Store a reading as the last one."""
        self.usable, self.note, self.driver, self.code = value["gpus"], value["note"], value["driver"], value["code"]
        self.lost = []
        if self.driver == driver_state.WORKS:
            self.history.remember(value["present"])
            self.lost = self.history.lost([gpu["uuid"] for gpu in value["present"]], value["lost"])
            if self.lost and not self.usable:
                self.note = driver_state.lost_text(self.lost)
        elif self.driver == driver_state.ABSENT and self.history.gpus:
            # The driver worked since the last boot: it was removed or is being upgraded.
            self.driver, self.code = driver_state.BROKEN, driver_state.REMOVED

    def expire(self) -> None:
        """Kill a probe that hangs in the driver; start one if none could be started so far."""
        if not self.known:
            self.probe()
        if self._child is not None and protocol.mono() - self.began > nvml.probe_timeout_s():
            try:
                os.kill(self._child[0], signal.SIGKILL)
            except OSError:  # it has ended
                pass
            self._finish()
