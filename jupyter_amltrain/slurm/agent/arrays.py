"""Arrays: runs with equal scripts as the tasks of one job of Slurm, which starts so many of them at the same time.

An array is submitted on hold, its runs are submitted as tasks of it, and it is released. Its file of runs has a line
for each task, by which the script of a task finds its run.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Sequence

from jupyter_amltrain.agent.protocol import (
    CANCEL,
    SCHEMA,
    TERMINAL,
    AgentError,
    not_writable,
    private_folder,
    read_json,
    read_state,
    run_folder,
    valid_run_id,
    write_json,
    write_text,
)
from jupyter_amltrain.agent.queue.dispatcher_client import AgentContext

from . import commands, runs, sbatch
from .jobs import JOBS, Job

Json = Dict[str, Any]


def open_array(context: AgentContext, payload: Json) -> Json:
    """Submit an array on hold, unless it was submitted before, and write its file of runs; return its job."""
    name, run_ids = _named(payload), [str(run) for run in payload["runs"]]
    home = context.home
    for folder in (runs.ARRAYS, runs.OUTPUTS):
        private_folder(os.path.join(home, folder))
    try:
        write_text(runs.array_file(home, name), "".join("%s\n" % run for run in run_ids))
    except OSError as error:
        raise not_writable(os.path.join(home, runs.ARRAYS), error) from error
    record = _record_of(home, name)
    if record is None:
        job = next((task.id.partition("_")[0] for task in _listed(name)), "")  # the reply to a submit was lost
        if not job:
            most = int(payload["max_running"])
            throttle = "%%%d" % most if most < len(run_ids) else ""
            variables = dict(os.environ) if payload.get("login") else {}
            variables.update(payload.get("environ") or {})
            tasks = "--array=0-%d%s" % (len(run_ids) - 1, throttle)
            secrets = payload.get("secrets") or {}
            job = sbatch.submit(str(payload["script"]), variables, secrets, "--hold", tasks)
        record = {"schema": SCHEMA, "job": job, "released": False}
        write_json(_record_file(home, name), record, True)
        JOBS.forget()
    return {"job": record["job"]}


def release_array(context: AgentContext, payload: Json) -> Json:
    """Let the runs of an array start; tasks without a run are removed."""
    home, name = context.home, _named(payload)
    record = _record_of(home, name)
    if record is None or record.get("released"):
        return {}
    job = record["job"]
    run_ids = runs_of(home, name)
    absent = [number for number, run in enumerate(run_ids) if not os.path.isdir(run_folder(home, run))]
    try:
        if absent:
            commands.run("scancel", "%s_[%s]" % (job, ",".join(map(str, absent))))
        if len(absent) < len(run_ids):
            commands.run("scontrol", "release", job)
    except commands.CommandRefused as error:
        if any(task.state == "PENDING" for task in _listed(name)):  # else all have started, or are canceled
            raise AgentError("SubmitError", "Slurm keeps the array on hold: %s." % error.reason, error.code) from None
    write_json(_record_file(home, name), dict(record, released=True), True)
    JOBS.forget()
    return {}


def cancel_array(context: AgentContext, payload: Json) -> Json:
    """Request the end of all runs of an array, by as few commands as possible."""
    home, name = context.home, _named(payload)
    record = _record_of(home, name)
    for run in runs_of(home, name):
        folder = run_folder(home, run)
        state = read_state(folder)
        if state is not None and state["state"] not in TERMINAL:
            try:
                os.close(os.open(os.path.join(folder, CANCEL), os.O_CREAT | os.O_WRONLY, 0o600))
            except OSError as error:
                raise not_writable(folder, error) from error
    if record is not None:
        # Supervisors look for the request at once; those of several nodes find it by themselves.
        for options in (("--state=PENDING",), ("--signal=TERM", "--batch", "--state=RUNNING")):
            try:
                commands.run("scancel", *options, record["job"])
            except commands.CommandRefused:  # no task is left
                pass
        JOBS.forget()
    return {}


def run_of(home: str, job: Job) -> str:
    """Return the run of a task, whose job has the name of the array; empty for another job."""
    task = job.id.partition("_")[2]
    listed = runs_of(home, job.name) if task.isdigit() and valid_run_id(job.name) else []
    return listed[int(task)] if listed and int(task) < len(listed) else ""


def runs_of(home: str, name: str) -> List[str]:
    """Return the runs of an array, by the number of their task; none if there is no such array."""
    try:
        with open(runs.array_file(home, name)) as file:
            found = file.read().split()
    except OSError:
        return []
    return found if all(map(valid_run_id, found)) else []


def forget_run(home: str, name: str) -> None:
    """Remove the files of an array whose last run was deleted."""
    if not valid_run_id(name) or any(os.path.isdir(run_folder(home, run)) for run in runs_of(home, name)):
        return
    for path in (runs.array_file(home, name), _record_file(home, name), runs.output_file(home, name)):
        try:
            os.unlink(path)
        except OSError:  # it was never written
            pass


def _named(payload: Json) -> str:
    name = str(payload["array"])
    names: Sequence[str] = [name, *map(str, payload.get("runs") or ())]
    if not all(map(valid_run_id, names)):
        raise AgentError("SubmitError", "Cannot submit the array: %r is no name of an array or a run." % name)
    return name


def _record_file(home: str, name: str) -> str:
    return os.path.join(home, runs.ARRAYS, name + ".json")


def _record_of(home: str, name: str) -> Optional[Json]:
    found = read_json(_record_file(home, name))
    return found if found and str(found.get("job")).isdigit() else None


def _listed(name: str) -> List[Job]:
    """Return the tasks of an array that Slurm lists."""
    JOBS.forget()
    listed = JOBS.get()
    if listed.error is not None:
        raise listed.error
    return [job for job in listed.by_id.values() if job.name == name and "_" in job.id]
