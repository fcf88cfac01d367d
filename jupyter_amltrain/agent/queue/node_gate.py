"""Gate of a waiting run on several machines: its node takes slots here when it is the node's turn."""

from __future__ import annotations

import os
from typing import Any, Mapping, NamedTuple, Optional, Tuple

from .. import protocol
from ..distributed.gang import GATE
from ..processes import boot_id, is_alive
from ..protocol import LOST, TERMINAL, AgentError, read_json, run_folder

#: Seconds for the process that connects the nodes to write its file.
_OPEN_TIMEOUT_S = 60.0


class Gate(NamedTuple):
    """Whether a run may take slots, what it waits for otherwise, and its end, if it ends without them."""

    is_open: bool
    waiting: str = ""
    end: Optional[Tuple[str, str, str]] = None  #: state, reason and detail


def read(ticket: Mapping[str, Any]) -> Gate:
    """Return the gate of a ticket; that of a run on one machine is open."""
    if not ticket.get("gate"):
        return Gate(True)
    try:
        stored = read_json(os.path.join(run_folder(ticket["home"], ticket["run"]), GATE))
    except (AgentError, OSError):
        stored = None
    if stored is None:
        same = ticket.get("boot") == boot_id()
        waited = protocol.mono() - float(ticket["mono"]) if same else _OPEN_TIMEOUT_S + 1
        return _lost() if waited > _OPEN_TIMEOUT_S else Gate(False, "waits for the agents of its other nodes")
    end = stored.get("end")
    if isinstance(end, dict) and end.get("state") in TERMINAL:
        return Gate(False, "", (end["state"], str(end.get("reason")), str(end.get("detail"))))
    if not is_alive(stored):
        return _lost()
    return Gate(bool(stored.get("open")), str(stored.get("waiting") or "waits for its other nodes"))


def _lost() -> Gate:
    return Gate(False, "", (LOST, LOST, "the process that connects its nodes has ended"))
