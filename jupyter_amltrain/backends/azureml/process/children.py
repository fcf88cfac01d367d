"""Steps of a pipeline and trials of a sweep or AutoML job: a line in the parent's log for each change of state.

``GET {api}/history/v1.0{WS}/runs/{name}/children`` (recorded: ARM does not list them). A child's name at the service
is a GUID; people know its ``displayName``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.process import logs, rest
from jupyter_amltrain.backends.azureml.process.mirror_files import MirrorFiles
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.process.cloud import Workspace

log = logging.getLogger("amltrain.azure")

#: Types of job whose work is done by children.
PARENTS = ("pipeline", "sweep", "automl")
#: Of so many the states are told; an AutoML job may have a thousand.
MOST = 500
_SAID = 200


def job_type(mirror: MirrorFiles) -> str:
    """Type of the job of a mirror; ``command`` for one of ours."""
    spec = mirror.json("job.json").get("spec") or {}
    return str(spec.get("job_type") or "command")


def take(mirror: MirrorFiles, place: Workspace, name: str, *, now: float, period: float, ended: bool) -> None:
    """Append what has changed.

    Parameters
    ----------
    period
        Seconds between two looks, while it lives.
    ended
        The parent has: the last look.
    """
    facts = mirror.facts
    if not ended and now < float(facts.get("children_due") or 0):
        return
    facts["children_due"] = round(now + period, 1)
    known: dict[str, str] = facts.setdefault("children", {})
    try:
        found = _listed(place, name)
    except AmlTrainError as error:
        log.info("children of %s: %s", name, error)
        return
    for child in sorted(found, key=lambda one: str(one.get("createdUtc") or "")):
        run_id, status = str(child.get("runId") or ""), str(child.get("status") or "")
        before = known.get(run_id)
        if not run_id or not status or status == before:
            continue
        known[run_id] = status
        logs.note(mirror, _words(child, before, status))


def _listed(place: Workspace, name: str) -> list[dict[str, Any]]:
    pages = place.data.pages(
        f"{place.history}/runs/{quote(name, safe='')}/children", api=rest.HISTORY, act=f"look at the parts of {name}"
    )
    found: list[dict[str, Any]] = []
    for child in pages:
        found.append(child)
        if len(found) >= MOST:
            break
    return found


def _words(child: dict[str, Any], before: str | None, status: str) -> str:
    run_id = str(child["runId"])
    shown = "".join(c for c in str(child.get("displayName") or "") if c.isprintable())[:100]
    who = f"{shown} ({run_id})" if shown and shown != run_id else run_id
    error = ((child.get("error") or {}).get("error") or {}).get("message")
    because = " ".join(faults.redacted(str(error)).split())[:_SAID] if error and status == "Failed" else ""
    change = f"{before} -> {status}" if before else status
    return f"{who}: {change}{f', {because}' if because else ''}"
