"""Child runs: steps of a pipeline, and trials of a sweep or AutoML job.

They are rows of their parent, and their state changes are lines of its log. Source:
``GET {api}/history/v1.0{WS}/runs/{name}/children`` (recorded: ARM does not list child runs). The name of a step at the
service is a GUID, that of a trial the sweep's with a number; its ``displayName`` is shown. Metrics come from the
service's MLflow, one request per child, and one for the curve of a trial that reports more than once.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from jupyter_amltrain.azure import errors, mirror_store
from jupyter_amltrain.azure import status as azure_status
from jupyter_amltrain.azure.service import history, http, jobs, links, logs, metrics
from jupyter_amltrain.azure.service.mirror_files import MirrorFiles
from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable
from jupyter_amltrain.schema.child_run import (
    CHILDREN,
    MAX_CHILDREN,
    MAX_CURVE_POINTS,
    ChildRun,
    ChildRuns,
    most_relevant,
)
from jupyter_amltrain.schema.search_space import Expression
from jupyter_amltrain.schema.searched_values import value_of
from jupyter_amltrain.schema.sweep import Sweep

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace

log = logging.getLogger("amltrain.azure")

FILE = CHILDREN
#: Max children whose state is reported; an AutoML job may have a thousand.
MAX_LISTED = 2000
#: Maximum number of children whose metrics are read per poll while the parent is running.
_MAX_METRIC_READS = 8
#: Maximum number of trials with a curve: the best, those that run and the newest.
_MAX_CURVES = 60
#: Tag or property of a trial with its values, as JSON.
_VALUES_KEY = "hyperparameters"
#: Maximum characters of a name, a sentence, and the name of a metric.
_MAX_NAME_CHARS, _MAX_SENTENCE_CHARS, _MAX_METRIC_CHARS = 100, 200, 60
#: Key of the best trial in the parent: a property of sweeps (read by the SDK), a tag of AutoML jobs (recorded).
_BEST_TRIAL_KEYS = ("best_child_run_id", "automl_best_child_run_id")


def job_type(mirror: MirrorFiles) -> str:
    """Return the type of a mirror's job; default ``command``."""
    spec = mirror.json("job.json").get("spec") or {}
    return str(spec.get("job_type") or ("sweep" if spec.get("sweep") else "command"))


def _sweep_of(mirror: MirrorFiles) -> Sweep | None:
    """Return the sweep of a mirror's job; ``None`` if it is unknown."""
    value = (mirror.json("job.json").get("spec") or {}).get("sweep")
    try:
        return None if value is None else msgspec.convert(value, Sweep)
    except msgspec.ValidationError as error:  # of a newer version
        log.info("sweep of %s: %s", mirror.folder.name, error)
        return None


def update_children(
    mirror: MirrorFiles,
    workspace: Workspace,
    name: str,
    *,
    parent: Mapping[str, Any],
    now: float,
    period: float,
    ended: bool,
) -> None:
    """Update the rows, and append state changes to the log.

    Parameters
    ----------
    parent
        The parent's details from run history.
    period
        Poll interval in seconds, while the parent is running.
    ended
        The parent has ended; this is the last poll.

    Raises
    ------
    TargetUnreachable
        The last poll is to be repeated, else values would be missing for good.
    """
    facts = mirror.facts
    if not ended and now < float(facts.get("children_due") or 0):
        return
    facts["children_due"] = round(now + period, 1)
    try:
        children = sorted(_list_children(workspace, name), key=lambda one: str(one.get("createdUtc") or ""))
    except AmlTrainError as error:
        if ended and isinstance(error, TargetUnreachable) and metrics.should_retry(mirror, now):
            raise
        log.info("children of %s: %s", name, error)
        return
    _log_changes(mirror, children)
    settled = _settled(facts, children, now, 2 * period)
    rows = msgspec.json.encode(_rows(mirror, workspace, name, parent, children, ended, settled))
    try:
        unchanged = (mirror.folder / FILE).read_bytes() == rows
    except OSError:
        unchanged = False
    if not unchanged:
        mirror.replace(FILE, rows, "children")


def _settled(
    facts: dict[str, Any], children: Sequence[Mapping[str, Any]], now: float, seconds: float
) -> Collection[str]:
    """Return the canceled children that were so for longer than `seconds`, after which their parent was read again."""
    canceled = [str(child["runId"]) for child in children if child["status"] == "Canceled"]
    before: dict[str, float] = facts.get("canceled_at") or {}
    facts["canceled_at"] = {name: before.get(name, now) for name in canceled}
    return frozenset(name for name in canceled if now - before.get(name, now) > seconds)


def _list_children(workspace: Workspace, name: str) -> list[dict[str, Any]]:
    pages = workspace.data.pages(
        f"{workspace.history}/runs/{quote(name, safe='')}/children",
        api=http.HISTORY,
        act=f"read the parts of {name}",
    )
    listed: list[dict[str, Any]] = []
    for child in pages:
        if child.get("runId") and child.get("status"):
            listed.append(child)
        if len(listed) >= MAX_LISTED:
            break
    return listed


# ---- rows


def _rows(
    mirror: MirrorFiles,
    workspace: Workspace,
    name: str,
    parent: Mapping[str, Any],
    children: Sequence[Mapping[str, Any]],
    ended: bool,
    settled: Collection[str],
) -> ChildRuns:
    kind, sweep = "step" if job_type(mirror) == "pipeline" else "trial", _sweep_of(mirror)
    metric, goal = ("", "") if kind == "step" else _objective(mirror, workspace, name, sweep)
    best = _best_of(parent) or (_best_at_arm(workspace, name) if ended and kind == "trial" else "")
    runs = tuple(_row(workspace, child, kind, best) for child in children)
    previous = {run.id: run for run in mirror_store.children(mirror.folder).runs}
    if sweep is not None:
        trials = [_trial(run, child, parent, name, sweep, settled) for run, child in zip(runs, children, strict=True)]
        runs = tuple(_with_history(trial, previous.get(trial.id)) for trial in trials)
        runs = tuple(sorted(runs, key=lambda run: -1 if run.number is None else run.number))
    read = _read_metrics(mirror, workspace, most_relevant(runs, MAX_CHILDREN), metric, ended)
    values: dict[str, list[Any]] = mirror.facts.get("child_values") or {}
    runs = tuple(
        msgspec.structs.replace(run, metric=value[0], value=value[1]) if (value := values.get(run.id)) else run
        for run in runs
    )
    if not best and goal:
        best = _best_completed(runs, goal)
        runs = tuple(msgspec.structs.replace(run, best=run.id == best) for run in runs)
    if sweep is not None:
        runs = _with_curves(workspace, runs, read)
    shown = most_relevant(runs, MAX_CHILDREN)
    return ChildRuns(runs=shown, hidden=len(runs) - len(shown))


def _row(workspace: Workspace, child: Mapping[str, Any], kind: str, best: str) -> ChildRun:
    run_id = str(child["runId"])
    row = history.row(run_id, child)
    status = azure_status.status_of(row)
    detail = "" if status is None else status.detail
    if status is not None and not detail and status.exit_code:
        detail = f"exit code {status.exit_code}"
    return ChildRun(
        id=run_id,
        name=_display_name(child) or run_id,
        kind=kind,
        state=str(child["status"]).lower() if status is None else status.state.value,
        detail=_sentence(detail),
        best=run_id == best,
        created=row["created"],
        started=row["started"],
        ended=row["ended"],
        url=links.studio_url(workspace, quote(run_id, safe="")),
    )


def _trial(
    run: ChildRun,
    child: Mapping[str, Any],
    parent: Mapping[str, Any],
    name: str,
    sweep: Sweep,
    settled: Collection[str],
) -> ChildRun:
    """Return the row of a trial with its number, its values, and whether the policy stopped it.

    The service says neither who canceled a run nor why: a trial that was canceled while its sweep was not is one that
    the policy has stopped. What is known of the sweep may be older than what is known of its trials, so that only a
    trial that was canceled for a while (`settled`) counts, or one of a sweep that has ended.
    """
    number = re.fullmatch(rf"{re.escape(name)}_(\d+)", run.id)
    is_parent_canceled = str(parent.get("status")) in ("Canceled", "CancelRequested")
    is_settled = run.id in settled or str(parent.get("status")) in ("Completed", "Failed")
    early = run.state == "canceled" and sweep.policy is not None and not is_parent_canceled and is_settled
    return msgspec.structs.replace(
        run,
        number=int(number[1]) if number else None,
        params=_params(child, parent, sweep.space),
        early=early,
        detail=run.detail or ("Stopped by the policy of the sweep." if early else ""),
    )


def _with_history(run: ChildRun, previous: ChildRun | None) -> ChildRun:
    """Return a row with the curve that was read earlier; a trial that was stopped early remains so."""
    if previous is None:
        return run
    early = previous.early and run.state == "canceled"
    detail = previous.detail if early else run.detail
    return msgspec.structs.replace(
        run, steps=previous.steps, values=previous.values, early=run.early or early, detail=detail
    )


def _params(child: Mapping[str, Any], parent: Mapping[str, Any], space: Mapping[str, Expression]) -> dict[str, Any]:
    """Return the values of a trial: a tag or property of it, or a tag of the sweep with the trial's id."""
    candidates = [(child.get(part) or {}).get(_VALUES_KEY) for part in ("tags", "properties")]
    for text in (*candidates, (parent.get("tags") or {}).get(str(child["runId"]))):
        try:
            values = json.loads(text) if isinstance(text, str) else text
        except ValueError:
            continue
        if isinstance(values, dict):
            named = {str(name).lstrip("-"): value for name, value in values.items()}
            return {name: value_of(space[name], value) if name in space else value for name, value in named.items()}
    return {}


def _objective(mirror: MirrorFiles, workspace: Workspace, name: str, sweep: Sweep | None) -> tuple[str, str]:
    """Return the primary metric of a sweep or AutoML job, and ``minimize`` or ``maximize`` if the job has a goal."""
    if sweep is not None:
        return sweep.objective.metric, sweep.objective.goal
    cached = mirror.facts.get("objective")
    if cached is None:
        try:
            body = (jobs.job_of(workspace, name) or {}).get("properties") or {}
        except AmlTrainError as error:
            log.info("objective of %s: %s", name, error)
            return "", ""
        objective = body.get("objective") or {}
        metric = objective.get("primaryMetric") or (body.get("taskDetails") or {}).get("primaryMetric") or ""
        cached = mirror.facts["objective"] = [str(metric), str(objective.get("goal") or "").lower()]
    return str(cached[0]), str(cached[1])


def _best_of(job: Mapping[str, Any]) -> str:
    """Return the id of the best trial; empty if the job has none."""
    for part in ("properties", "tags"):
        for key in _BEST_TRIAL_KEYS:
            if best := (job.get(part) or {}).get(key):
                return str(best)
    return ""


def _best_at_arm(workspace: Workspace, name: str) -> str:
    try:
        return _best_of((jobs.job_of(workspace, name) or {}).get("properties") or {})
    except AmlTrainError as error:
        log.info("best trial of %s: %s", name, error)
        return ""


def _best_completed(runs: Sequence[ChildRun], goal: str) -> str:
    """Return the id of the completed trial with the best value so far; the first of equal ones."""
    valued = [run for run in runs if run.value is not None and run.state == "completed"]
    if goal not in ("minimize", "maximize") or not valued:
        return ""
    sign = 1.0 if goal == "minimize" else -1.0
    return min(valued, key=lambda run: sign * float(run.value or 0.0)).id


# ---- metrics


def _read_metrics(
    mirror: MirrorFiles, workspace: Workspace, runs: Sequence[ChildRun], primary: str, ended: bool
) -> dict[str, int]:
    """Read the metrics of running children, once more after each has ended, and of those without metrics at the end.

    The service may write the metrics of a child after the child has ended.

    Returns
    -------
    dict
        Last step by the id of each child that was read.
    """
    steps: dict[str, int] = {}
    values: dict[str, list[Any]] = mirror.facts.setdefault("child_values", {})

    def needs_metrics(run: ChildRun) -> bool:
        metric, _, final = values.get(run.id) or ("", None, False)
        return run.started is not None and (not final or (ended and not metric))

    pending = [run for run in runs if needs_metrics(run)]
    pending.sort(key=lambda run: run.ended is None)  # ended children first, because theirs is the last read
    pending = pending if ended else pending[:_MAX_METRIC_READS]
    must = ended and bool(pending) and metrics.should_retry(mirror, time.time())
    for run, child_metrics in zip(
        pending, history.all_of(lambda run: _metrics(workspace, run.id, must), pending), strict=True
    ):
        if child_metrics is not None:
            metric, value, steps[run.id] = _select_metric(child_metrics, primary)
            values[run.id] = [metric, value, run.ended is not None]
    return steps


def _with_curves(workspace: Workspace, runs: tuple[ChildRun, ...], read: Mapping[str, int]) -> tuple[ChildRun, ...]:
    """Return the rows with the curves of trials that have been read and report more than once.

    Parameters
    ----------
    read
        Last step by the id of each trial that has been read.
    """
    shown = most_relevant(runs, _MAX_CURVES)
    grown = [run for run in shown if run.metric and read.get(run.id, 0) > 0]
    curves = dict(
        zip([run.id for run in grown], history.all_of(lambda run: _curve(workspace, run), grown), strict=True)
    )
    return tuple(
        msgspec.structs.replace(run, steps=curve[0], values=curve[1]) if (curve := curves.get(run.id)) else run
        for run in runs
    )


def _curve(workspace: Workspace, run: ChildRun) -> tuple[tuple[int, ...], tuple[float | None, ...]] | None:
    """Return steps and values of a trial's metric; ``None`` if they cannot be read now."""
    try:
        points = metrics.Points(workspace, run.id).history(run.metric)
    except AmlTrainError as error:
        log.info("curve of %s: %s", run.id, error)
        return None
    last = max(1, len(points) - 1)
    count = min(MAX_CURVE_POINTS, len(points))
    kept = [points[round(i * last / max(1, count - 1))] for i in range(count)]
    return tuple(int(point.get("step") or 0) for point in kept), tuple(_finite(point.get("value")) for point in kept)


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _metrics(workspace: Workspace, run_id: str, must: bool) -> list[Mapping[str, Any]] | None:
    """Return the last value of each metric of a child; ``None`` if they cannot be read now.

    Raises
    ------
    TargetUnreachable
        They cannot be read now, and `must` be.
    """
    try:
        answer = workspace.data.get(
            f"{workspace.mlflow}/api/2.0/mlflow/runs/get",
            params={"run_id": run_id},
            ok=(200, 400, 404),  # a job without logged metrics may have no MLflow run
            act=f"read the metrics of {run_id}",
        )
    except AmlTrainError as error:
        if must and isinstance(error, TargetUnreachable):
            raise
        log.info("metrics of %s: %s", run_id, error)
        return None
    data = ((answer.json or {}).get("run") or {}).get("data") or {} if answer.status == 200 else {}
    return list(data.get("metrics") or ())


def _select_metric(logged: Sequence[Mapping[str, Any]], primary: str) -> tuple[str, float | None, int]:
    """Select the metric that a row shows, with its step: the primary one, otherwise the one that was logged last."""
    if primary:
        # AutoML's enumeration has AUCWeighted, its runs log AUC_weighted.
        candidates = [one for one in logged if _letters(one.get("key")) == _letters(primary)]
    else:
        candidates = [one for one in logged if not str(one.get("key") or "").startswith("system/")]
    if not candidates:
        return "", None, 0
    newest = max(candidates, key=lambda one: int(one.get("timestamp") or 0))
    return str(newest.get("key"))[:_MAX_METRIC_CHARS], _finite(newest.get("value")), int(newest.get("step") or 0)


def _letters(name: Any) -> str:
    return re.sub(r"[\W_]", "", str(name or "").lower())


# ---- lines of state


def _log_changes(mirror: MirrorFiles, children: Sequence[Mapping[str, Any]]) -> None:
    known: dict[str, str] = mirror.facts.setdefault("children", {})
    for child in children:
        run_id, status = str(child["runId"]), str(child["status"])
        previous = known.get(run_id)
        if status != previous:
            known[run_id] = status
            logs.append_note(mirror, _change_line(child, previous, status))


def _change_line(child: Mapping[str, Any], previous: str | None, status: str) -> str:
    run_id, title = str(child["runId"]), _display_name(child)
    label = f"{title} ({run_id})" if title and title != run_id else run_id
    error = ((child.get("error") or {}).get("error") or {}).get("message")
    reason = _sentence(error) if error and status == "Failed" else ""
    change = f"{previous} -> {status}" if previous else status
    return f"{label}: {change}{f', {reason}' if reason else ''}"


def _display_name(child: Mapping[str, Any]) -> str:
    return "".join(c for c in str(child.get("displayName") or "") if c.isprintable())[:_MAX_NAME_CHARS]


def _sentence(text: Any) -> str:
    return " ".join(errors.redact(str(text or "")).split())[:_MAX_SENTENCE_CHARS]
