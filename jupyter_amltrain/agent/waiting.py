"""Jobs that wait: their place in the queue, and the ones that their queue has lost."""

from __future__ import annotations

import os
from typing import Any, Dict

from . import contact, damage, lifecycle
from .contact import Here
from .processes import boot_id, node
from .protocol import QUEUED, AgentError, read_json, run_folder
from .shelf import WAITING, Shelf

Json = Dict[str, Any]


def state_of(here: Here, run: str) -> Json:
    """``state.json`` of a run; UnknownRun when there is none, DamagedRun when it cannot be understood."""
    state = damage.read_state(here.home, run)
    if state is None:
        raise AgentError("UnknownRun", "There is no run %r in %s. List the runs with: %%aml_runs" % (run, here.home))
    return state


def queued(here: Here, waiting: Json) -> Json:
    """Queued runs with their place in the queue; wakes a queue that nobody serves."""
    if not contact.running(here.queue) and any(Shelf(os.path.join(here.queue, "tickets")).names()):
        here.ask("ping", {})
    shown = read_json(os.path.join(here.queue, WAITING), "Queue folder") or {}
    details = shown.get("waiting", {}).get(here.home, {})
    found = {}
    for run, state in waiting.items():
        if run in details:
            found[run] = dict(state, detail=details[run])
        elif state.get("node") == node():
            try:
                found[run] = _without_ticket(here, run)
            except AgentError:  # deleted or damaged meanwhile: the next call says so
                pass
    return found


def _without_ticket(here: Here, run: str) -> Json:
    """A queued run that the queue does not show: about to start, or its queue folder is gone."""
    state = state_of(here, run)
    queue = state.get("queue")
    if state["state"] == QUEUED and queue != os.path.realpath(here.queue):  # only its own queue can have lost it
        return dict(state, detail="waits in another queue: AMLTRAIN_QUEUE=%s" % queue) if queue else state
    shelves = [Shelf(os.path.join(here.queue, name)) for name in ("tickets", "slots")]
    known = any(item["run"] == run and item["home"] == here.home for shelf in shelves for item in shelf.load().values())
    state = state_of(here, run)
    if known or any(shelf.unreadable for shelf in shelves) or state["state"] != QUEUED:
        return state
    # The ticket goes when the guardian may start; its first word follows in milliseconds.
    if state["boot"] == boot_id() and lifecycle.seconds_since(state["changed"]) < 5.0:
        return state
    return lifecycle.mark_lost(run_folder(here.home, run), state, "its ticket in %s is gone" % here.queue)
