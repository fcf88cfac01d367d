"""Runs that a job logs to another store of MLflow: the record has them, too (``supervise/mlflow_hook.py``)."""

from typing import Callable

from .sink_state import EXPERIMENT_ID, Recorder
from .validation import Body, Refusal

#: Tag with the other store and the id of the run there.
ALSO_AT = "amltrain.also_at"

#: Tag that names the parent of a run.
PARENT = "mlflow.parentRunId"

#: Creates a run of the record: its fields, the id of the run in the other store, and its name there.
CreateRun = Callable[[Body, str, str], object]


def follow(recorder: Recorder, body: Body, create: CreateRun) -> Body:
    """Apply changes that another store has accepted to the runs of the record.

    The first run becomes the job's own run, others its children, by the rule for runs of the sink. A run from an
    earlier job counts as one of this job when the script resumes it or logs a metric or a parameter to it.
    """
    for op, there, place, change in body["changes"]:
        try:
            _apply(recorder, op, str(there), str(place), dict(change), create)
        except Refusal as refusal:
            recorder.note_once(f"a change in {place} is not in the record: {refusal.message}")
    return {}


def _apply(recorder: Recorder, op: str, there: str, place: str, change: Body, create: CreateRun) -> None:
    followed = recorder.state.followed
    name = str(change.pop("name_there", ""))
    if there not in followed:
        if op == "runs/create":
            fields = change
        elif change.get("status") == "RUNNING" or change.get("metrics") or change.get("params"):
            fields = {}
        else:
            return
        tags = [{"key": ALSO_AT, "value": f"{place} run {there}"}]
        for tag in fields.get("tags") or []:
            if tag["key"] == PARENT:
                tag = dict(tag, value=followed.get(tag["value"], tag["value"]))
            if tag["key"] != PARENT or tag["value"] in recorder.state.runs:
                tags.append(tag)
        create(dict(fields, tags=tags, experiment_id=EXPERIMENT_ID), there, name)
    if op != "runs/create":
        recorder.change(op, dict(change, run_id=followed[there]), {})
