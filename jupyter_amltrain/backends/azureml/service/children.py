"""Steps of a pipeline and trials of a sweep or AutoML job: rows of their parent, and lines of state in its log.

``GET {api}/history/v1.0{WS}/runs/{name}/children`` (recorded: ARM does not list them). A child's name at the service
is a GUID; people know its ``displayName``. Their metrics are in the service's MLflow, one request a child.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from jupyter_amltrain.backends.azureml import errors, mirror_store
from jupyter_amltrain.backends.azureml import status as azure_status
from jupyter_amltrain.backends.azureml.service import history, http, jobs, links, logs
from jupyter_amltrain.backends.azureml.service.mirror_files import MirrorFiles
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.schema.child_run import MAX_CHILDREN, ChildRun, ChildRuns, most_telling

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace

log = logging.getLogger("amltrain.azure")

FILE = mirror_store.CHILDREN
#: Of so many the states are told; an AutoML job may have a thousand.
MAX_LISTED = 500
#: Children whose metrics one look asks for while the parent lives.
_MAX_ASKED = 8
#: Characters of a name, of a sentence, and of the name of a metric.
_NAME, _SENTENCE, _METRIC = 100, 200, 60
#: Where a parent names its best trial: a property of sweeps (the SDK reads it), a tag of AutoML jobs (recorded).
_BEST = ("best_child_run_id", "automl_best_child_run_id")


def job_type(mirror: MirrorFiles) -> str:
    """Type of the job of a mirror; ``command`` for one of ours."""
    spec = mirror.json("job.json").get("spec") or {}
    return str(spec.get("job_type") or "command")


def take(
    mirror: MirrorFiles,
    place: Workspace,
    name: str,
    *,
    parent: Mapping[str, Any],
    now: float,
    period: float,
    ended: bool,
) -> None:
    """Bring the rows up to date, and append what has changed to the log.

    Parameters
    ----------
    parent
        What run history says of the parent itself.
    period
        Seconds between two looks, while it lives.
    ended
        The parent has: the last look.
    """
    facts = mirror.facts
    if not ended and now < float(facts.get("children_due") or 0):
        return
    facts["children_due"] = round(now + period, 1)
    try:
        found = sorted(_listed(place, name), key=lambda one: str(one.get("createdUtc") or ""))
    except AmlTrainError as error:
        log.info("children of %s: %s", name, error)
        return
    _tell_changes(mirror, found)
    rows = msgspec.json.encode(_rows(mirror, place, name, parent, found, ended))
    try:
        same = (mirror.folder / FILE).read_bytes() == rows
    except OSError:
        same = False
    if not same:
        mirror.replace(FILE, rows, "children")


def _listed(place: Workspace, name: str) -> list[dict[str, Any]]:
    pages = place.data.pages(
        f"{place.history}/runs/{quote(name, safe='')}/children", api=http.HISTORY, act=f"look at the parts of {name}"
    )
    found: list[dict[str, Any]] = []
    for child in pages:
        if child.get("runId") and child.get("status"):
            found.append(child)
        if len(found) >= MAX_LISTED:
            break
    return found


# ---- rows


def _rows(
    mirror: MirrorFiles,
    place: Workspace,
    name: str,
    parent: Mapping[str, Any],
    found: Sequence[Mapping[str, Any]],
    ended: bool,
) -> ChildRuns:
    kind = "step" if job_type(mirror) == "pipeline" else "trial"
    metric, goal = ("", "") if kind == "step" else _objective(mirror, place, name)
    best = _best_of(parent) or (_best_at_arm(place, name) if ended and kind == "trial" else "")
    runs = tuple(_row(place, child, kind, best) for child in found)
    _ask_metrics(mirror, place, most_telling(runs, MAX_CHILDREN), metric, ended)
    values: dict[str, list[Any]] = mirror.facts.get("child_values") or {}
    runs = tuple(
        msgspec.structs.replace(run, metric=known[0], value=known[1]) if (known := values.get(run.id)) else run
        for run in runs
    )
    if not best and goal:
        best = _leader(runs, goal)
        runs = tuple(msgspec.structs.replace(run, best=run.id == best) for run in runs)
    shown = most_telling(runs, MAX_CHILDREN)
    return ChildRuns(runs=shown, hidden=len(runs) - len(shown))


def _row(place: Workspace, child: Mapping[str, Any], kind: str, best: str) -> ChildRun:
    run_id = str(child["runId"])
    row = history.row(run_id, child)
    status = azure_status.status_of(row)
    detail = "" if status is None else status.detail
    if status is not None and not detail and status.exit_code:
        detail = f"exit code {status.exit_code}"
    return ChildRun(
        id=run_id,
        name=_shown(child) or run_id,
        kind=kind,
        state=str(child["status"]).lower() if status is None else status.state.value,
        detail=_sentence(detail),
        best=run_id == best,
        created=row["created"],
        started=row["started"],
        ended=row["ended"],
        url=links.studio_url(place, quote(run_id, safe="")),
    )


def _objective(mirror: MirrorFiles, place: Workspace, name: str) -> tuple[str, str]:
    """Primary metric of a sweep or AutoML job, and ``minimize`` or ``maximize`` where the job says it."""
    known = mirror.facts.get("objective")
    if known is None:
        try:
            body = (jobs.job_of(place, name) or {}).get("properties") or {}
        except AmlTrainError as error:
            log.info("objective of %s: %s", name, error)
            return "", ""
        objective = body.get("objective") or {}
        metric = objective.get("primaryMetric") or (body.get("taskDetails") or {}).get("primaryMetric") or ""
        known = mirror.facts["objective"] = [str(metric), str(objective.get("goal") or "").lower()]
    return str(known[0]), str(known[1])


def _best_of(job: Mapping[str, Any]) -> str:
    """Id of the best trial, where the job names it."""
    for part in ("properties", "tags"):
        for key in _BEST:
            if found := (job.get(part) or {}).get(key):
                return str(found)
    return ""


def _best_at_arm(place: Workspace, name: str) -> str:
    try:
        return _best_of((jobs.job_of(place, name) or {}).get("properties") or {})
    except AmlTrainError as error:
        log.info("best trial of %s: %s", name, error)
        return ""


def _leader(runs: Sequence[ChildRun], goal: str) -> str:
    """Id of the completed trial with the best value so far; the first of equal ones."""
    valued = [run for run in runs if run.value is not None and run.state == "completed"]
    if goal not in ("minimize", "maximize") or not valued:
        return ""
    sign = 1.0 if goal == "minimize" else -1.0
    return min(valued, key=lambda run: sign * float(run.value or 0.0)).id


# ---- metrics


def _ask_metrics(mirror: MirrorFiles, place: Workspace, runs: Sequence[ChildRun], primary: str, ended: bool) -> None:
    """Ask for the metrics of children that run, once more of each that has ended, and of silent ones at the end.

    A service may write the metrics of a child after the child's end.
    """
    values: dict[str, list[Any]] = mirror.facts.setdefault("child_values", {})

    def open_question(run: ChildRun) -> bool:
        metric, _, final = values.get(run.id) or ("", None, False)
        return run.started is not None and (not final or (ended and not metric))

    wanted = [run for run in runs if open_question(run)]
    wanted.sort(key=lambda run: run.ended is None)  # of those that have ended it is the last question
    wanted = wanted if ended else wanted[:_MAX_ASKED]
    for run, found in zip(wanted, history.all_of(lambda run: _metrics(place, run.id), wanted), strict=True):
        if found is not None:
            metric, value = _told(found, primary)
            values[run.id] = [metric, value, run.ended is not None]


def _metrics(place: Workspace, run_id: str) -> list[Mapping[str, Any]] | None:
    """The last value of each metric of a child; ``None`` where nobody can say it now."""
    try:
        answer = place.data.get(
            f"{place.mlflow}/api/2.0/mlflow/runs/get",
            params={"run_id": run_id},
            ok=(200, 400, 404),  # a job that logs nothing may have no run there
            act=f"read the metrics of {run_id}",
        )
    except AmlTrainError as error:
        log.info("metrics of %s: %s", run_id, error)
        return None
    data = ((answer.json or {}).get("run") or {}).get("data") or {} if answer.status == 200 else {}
    return list(data.get("metrics") or ())


def _told(metrics: Sequence[Mapping[str, Any]], primary: str) -> tuple[str, float | None]:
    """The metric that a row shows: the primary one, else the one that was logged last."""
    if primary:
        # AutoML's enumeration says AUCWeighted, its runs log AUC_weighted.
        own = [one for one in metrics if _letters(one.get("key")) == _letters(primary)]
    else:
        own = [one for one in metrics if not str(one.get("key") or "").startswith("system/")]
    if not own:
        return "", None
    newest = max(own, key=lambda one: int(one.get("timestamp") or 0))
    value = newest.get("value")
    known = isinstance(value, (int, float)) and math.isfinite(value)
    return str(newest.get("key"))[:_METRIC], float(value) if known else None  # type: ignore[arg-type]


def _letters(name: Any) -> str:
    return re.sub(r"[\W_]", "", str(name or "").lower())


# ---- lines of state


def _tell_changes(mirror: MirrorFiles, found: Sequence[Mapping[str, Any]]) -> None:
    known: dict[str, str] = mirror.facts.setdefault("children", {})
    for child in found:
        run_id, status = str(child["runId"]), str(child["status"])
        before = known.get(run_id)
        if status != before:
            known[run_id] = status
            logs.note(mirror, _words(child, before, status))


def _words(child: Mapping[str, Any], before: str | None, status: str) -> str:
    run_id, shown = str(child["runId"]), _shown(child)
    who = f"{shown} ({run_id})" if shown and shown != run_id else run_id
    error = ((child.get("error") or {}).get("error") or {}).get("message")
    because = _sentence(error) if error and status == "Failed" else ""
    change = f"{before} -> {status}" if before else status
    return f"{who}: {change}{f', {because}' if because else ''}"


def _shown(child: Mapping[str, Any]) -> str:
    return "".join(c for c in str(child.get("displayName") or "") if c.isprintable())[:_NAME]


def _sentence(text: Any) -> str:
    return " ".join(errors.redacted(str(text or "")).split())[:_SENTENCE]
