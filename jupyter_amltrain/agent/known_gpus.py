"""GPUs that this machine has shown since its boot, kept in the queue folder: a lost one stays visible."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping

from .processes import boot_id, node
from .protocol import SCHEMA, AgentError, read_json, write_json

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
