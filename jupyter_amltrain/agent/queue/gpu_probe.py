"""The dispatcher's knowledge of the GPUs and their driver: probed in a child, never waited for."""

from __future__ import annotations

import os
import selectors
import signal
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .. import protocol
from ..process_setup import drain
from ..processes import boot_id, node
from ..protocol import SCHEMA, AgentError, read_json, write_json
from ..telemetry import driver_state, nvml

FILE = "gpus.json"

Gpu = Dict[str, Any]


class KnownGpus:
    """GPUs by UUID, of this boot and this container.

    Parameters
    ----------
    queue
        The queue folder.
    """

    def __init__(self, queue: str) -> None:
        self._path = os.path.join(queue, FILE)
        self._place = {"boot": boot_id(), "node": node()}
        self.gpus: Dict[str, Gpu] = {}
        try:
            stored = read_json(self._path, "Queue folder") or {}
        except (AgentError, OSError):
            stored = {}
        if all(stored.get(key) == value for key, value in self._place.items()):
            self.gpus = {gpu["uuid"]: gpu for gpu in stored.get("gpus") or [] if _is_sound(gpu)}

    def remember(self, found: List[Mapping[str, Any]]) -> None:
        """Add the whole GPUs of a reading: ``index, name, uuid``."""
        new = {gpu["uuid"]: dict(gpu) for gpu in found}
        if all(self.gpus.get(uuid) == gpu for uuid, gpu in new.items()):
            return
        self.gpus.update(new)
        try:
            write_json(self._path, dict(self._place, schema=SCHEMA, gpus=list(self.gpus.values())))
        except OSError:  # a full disk: this dispatcher still knows them
            pass

    def lost(self, present: List[str], reported: List[Mapping[str, Any]]) -> List[Gpu]:
        """GPUs that cannot be used now, with ``index, name, uuid, reason``, in order of their index.

        Parameters
        ----------
        present
            UUIDs of the GPUs that work.
        reported
            ``lost`` of the reading.
        """
        away = {uuid: gpu for uuid, gpu in self.gpus.items() if uuid not in present}
        lost = []
        for row in reported:
            match = away.pop(row["uuid"], None)
            if match is None and row["uuid"] is None:  # the driver counts on: its index tells which one it is
                match = next((gpu for gpu in away.values() if gpu["index"] == row["index"]), None)
                if match is not None:
                    del away[match["uuid"]]
            known = match or {}
            lost.append(
                dict(row, name=row["name"] or known.get("name") or "GPU", uuid=row["uuid"] or known.get("uuid"))
            )
        lost += [dict(gpu, reason="the driver no longer lists it") for gpu in away.values()]
        return sorted(lost, key=lambda gpu: int(gpu["index"]))


def _is_sound(gpu: Any) -> bool:
    return (
        isinstance(gpu, dict)
        and isinstance(gpu.get("index"), int)
        and isinstance(gpu.get("name"), str)
        and isinstance(gpu.get("uuid"), str)
    )


#: How much rarer GPUs are looked for where the last reading found a CPU machine, or nothing that can be given.
ABSENT_FACTOR, BROKEN_FACTOR = 12.0, 2.5


class GpuWatch:
    """The last reading of the GPUs, and the probe that is under way.

    Parameters
    ----------
    selector
        The dispatcher's.
    on_read
        Called after each reading.
    known
        The GPUs of this boot.
    """

    def __init__(self, selector: selectors.BaseSelector, on_read: Callable[[], None], known: KnownGpus) -> None:
        self.selector = selector
        self.on_read = on_read
        self.history = known
        self.found: List[Dict[str, Any]] = []
        self.lost: List[Dict[str, Any]] = []  #: GPUs that cannot be used, see `KnownGpus.lost`
        self.driver = driver_state.ABSENT
        self.code: Optional[int] = None  #: NVML's, where the driver is broken
        self.note = ""
        self.known = False
        self.expired = False  #: something changed since the last reading
        self.began = 0.0  #: when the last reading began, or the one that is under way
        self._at = 0.0
        self._child: Optional[Tuple[int, int]] = None
        self._data = b""
        self._cost = 0.0  # seconds that the last reading took

    @property
    def probing(self) -> bool:
        """Whether a reading is under way."""
        return self._child is not None

    @property
    def doubtful(self) -> bool:
        """Whether another reading may find more than the last one did."""
        return self.driver != driver_state.WORKS or bool(self.note or self.lost)

    @property
    def trouble(self) -> str:
        """Why no GPU can be given although the machine has or had some; empty where it can, or never had one."""
        if self.driver == driver_state.BROKEN:
            return self.note
        return driver_state.lost_text(self.lost) if self.lost and not self.found else ""

    def refresh(self, older_than: float = 0.0) -> None:
        """Start a reading unless one is under way or the last is younger than `older_than` seconds."""
        # Where there is no GPU none will appear in seconds; where NVML is slow
        # to start (no persistence mode) it may not be asked all the time.
        factor = 1.0 if self.found else ABSENT_FACTOR if self.driver == driver_state.ABSENT else BROKEN_FACTOR
        limit = max(older_than * factor, 10 * self._cost)
        if self._child is not None or (self.known and not self.expired and protocol.mono() - self._at < limit):
            return
        self.probe()

    def probe(self) -> None:
        """Start a reading now, unless one is under way or no process can be forked: then the last one stands."""
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
        self._at = protocol.mono()
        self._cost = self._at - self.began
        self._take(nvml.parse_probe(self._data, self._cost))
        self.known = True
        if self.found:
            nvml.preload()
        self.on_read()

    def _take(self, value: Dict[str, Any]) -> None:
        """Make a reading the last one."""
        self.found, self.note, self.driver, self.code = value["gpus"], value["note"], value["driver"], value["code"]
        self.lost = []
        if self.driver == driver_state.WORKS:
            self.history.remember(value["present"])
            self.lost = self.history.lost([gpu["uuid"] for gpu in value["present"]], value["lost"])
            if self.lost and not self.found:
                self.note = driver_state.lost_text(self.lost)
        elif self.driver == driver_state.ABSENT and self.history.gpus:
            # It was here since the last boot: removed, or in the middle of an upgrade.
            self.driver, self.code = driver_state.BROKEN, driver_state.REMOVED

    def expire(self) -> None:
        """Give up a probe that hangs in the driver; try again where none could be started yet."""
        if not self.known:
            self.probe()
        if self._child is not None and protocol.mono() - self.began > nvml.probe_timeout_s():
            try:
                os.kill(self._child[0], signal.SIGKILL)
            except OSError:
                pass
            self._finish()
