"""Jobs that wait: their place in the queue, and the ones that their queue has lost."""

from __future__ import annotations

import os
from typing import Any, Dict

from . import contact, damage, lifecycle
from .contact import AgentContext
from .processes import boot_id, node
from .protocol import QUEUED, AgentError, read_json, run_folder
from .shelf import WAITING, NumberedJsonDir

Json = Dict[str, Any]


def state_of(context: AgentContext, run: str) -> Json:
    """``state.json`` of a run; UnknownRun when there is none, DamagedRun when it cannot be understood."""
    state = damage.read_state(context.home, run)
    if state is None:
        raise AgentError("UnknownRun", "There is no run %r in %s. List the runs with: %%aml_runs" % (run, context.home))
    return state


def queued(context: AgentContext, waiting: Json) -> Json:
    """Queued runs with their place in the queue; wakes a queue that nobody serves."""
    if not contact.running(context.queue) and any(NumberedJsonDir(os.path.join(context.queue, "tickets")).names()):
        context.ask("ping", {})
    shown = read_json(os.path.join(context.queue, WAITING), "Queue folder") or {}
    details = shown.get("waiting", {}).get(context.home, {})
    found = {}
    for run, state in waiting.items():
        if run in details:
            found[run] = dict(state, detail=details[run])
        elif state.get("node") == node():
            try:
                found[run] = _without_ticket(context, run)
            except AgentError:  # deleted or damaged meanwhile: the next call says so
                pass
    return found


def _without_ticket(context: AgentContext, run: str) -> Json:
    """A queued run that the queue does not show: about to start, or its queue folder is gone."""
    state = state_of(context, run)
    queue = state.get("queue")
    if state["state"] == QUEUED and queue != os.path.realpath(context.queue):  # only its own queue can have lost it
        return dict(state, detail="waits in another queue: AMLTRAIN_QUEUE=%s" % queue) if queue else state
    folders = [NumberedJsonDir(os.path.join(context.queue, name)) for name in ("tickets", "slots")]
    known = any(
        item["run"] == run and item["home"] == context.home for folder in folders for item in folder.load().values()
    )
    state = state_of(context, run)
    if known or any(folder.unreadable for folder in folders) or state["state"] != QUEUED:
        return state
    # The ticket goes when the guardian may start; its first word follows in milliseconds.
    if state["boot"] == boot_id() and lifecycle.seconds_since(state["changed"]) < 5.0:
        return state
    return lifecycle.mark_lost(run_folder(context.home, run), state, "its ticket in %s is gone" % context.queue)
