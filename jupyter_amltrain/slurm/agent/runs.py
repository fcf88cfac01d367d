"""Runs of a cluster: their state from two sources, the list of jobs and the folder of the run."""

from __future__ import annotations

import os
import re
import time
from typing import Any, Dict, Mapping, Optional, Tuple

from jupyter_amltrain.agent import damage, protocol
from jupyter_amltrain.agent.protocol import (
    CANCEL,
    CANCELED,
    FAILED,
    FINALIZING,
    PREPARING,
    QUEUED,
    RUNNING,
    TERMINAL,
    AgentError,
    read_json,
    run_folder,
    write_json,
)
from jupyter_amltrain.agent.supervise import attempts, run_state

from . import commands, reasons
from .jobs import JOBS, Job, Jobs

Json = Dict[str, Any]

#: File of a run with its job, the file that its supervisor touches, and the script of the job.
RECORD, ALIVE, SCRIPT = "slurm.json", "slurm-alive", "slurm.sh"
#: Folder of the state root with the output of each job's script, ``RUN.txt``.
OUTPUTS = "slurm-logs"
#: Folder of the state root with the files of arrays: ``ARRAY.txt`` has the runs, ``ARRAY.json`` the job.
ARRAYS = "slurm-arrays"
_JOB = re.compile(r"\d+(_\d+)?")
#: File with the number of requeues of the supervisor that a run has now.
OWNER = "slurm-owner"
#: Seconds between two touches; without one for longer the run is shown as one without.
ALIVE_INTERVAL_S, SILENCE_S = 10.0, 60.0
#: Seconds after the end of a job, or after it is absent from the list, in which its result may still come: a shared
#: folder shows files of other machines late.
RESULT_TIMEOUT_S = 6.0
#: The same for a job whose supervisor has had the time to write it.
WRITTEN_TIMEOUT_S = 30.0
#: Seconds after a cancel, beyond the grace period, after which Slurm is asked to kill the job.
_KILL_AFTER_S = 20.0
_MAX_QUOTED = 600
#: When a run was first seen without a job that lives, by state root and run (monotonic).
_gone: Dict[Tuple[str, str], float] = {}


def record_of(home: str, run: str) -> Json:
    """Return what is known of a run's job: ``job`` is its id; empty if it was never submitted."""
    try:
        found = read_json(os.path.join(run_folder(home, run), RECORD))
    except (AgentError, OSError):
        return {}
    is_valid = isinstance(found, dict) and isinstance(found.get("job"), str) and _JOB.fullmatch(found["job"])
    return found if found is not None and is_valid else {}  # a job can write anything into its folder


def current(home: str, run: str, state: Json, jobs: Optional[Jobs] = None) -> Json:
    """Return the state of a run as both sources tell it; the end of a job without a result is written."""
    if state["state"] in TERMINAL:
        return state
    record = record_of(home, run)
    if not record:
        return state
    jobs = JOBS.get() if jobs is None else jobs
    if jobs.error is not None:
        reason = getattr(jobs.error, "reason", jobs.error.message.rstrip("."))
        return dict(state, detail="Slurm does not answer, and the run is not affected: %s" % reason)
    job = jobs.find(record["job"])
    if job is None or job.state in reasons.ENDED:
        return _after_end(home, run, state, record, job, jobs)
    _gone.pop((home, run), None)
    if job.state in reasons.WAITING or job.state == "COMPLETING":
        return _waiting(state, job, jobs)
    return _started(home, run, state, job)


def _waiting(state: Json, job: Job, jobs: Jobs) -> Json:
    """Return the state of a run whose job waits, or waits again."""
    if job.state == "COMPLETING" or (state["state"] != QUEUED and state["changed"] > jobs.wall):
        return state  # it has started since Slurm was asked
    text = "Slurm: %s" % reasons.words(job.reason, job.id)
    if job.start is not None and job.start > time.time():
        text += "; expected to start %s" % time.strftime("%Y-%m-%d %H:%M", time.localtime(job.start))
    if job.place is not None and job.place[1] > 1:
        text += "; %d of your %d waiting jobs" % job.place
    if state["state"] != QUEUED:  # its supervisor was killed before it could write that the job is requeued
        text = "was requeued; " + text
    elif attempts.number(state) > 1:
        text = "attempt %d: %s" % (attempts.number(state), text)
    return dict(state, state=QUEUED, detail=text)


def _started(home: str, run: str, state: Json, job: Job) -> Json:
    """Return the state of a run that Slurm has started; one without a sign of life says so."""
    folder = run_folder(home, run)
    seconds = job.seconds or 0.0
    if state["state"] == QUEUED:
        text = "Slurm has started it on %s" % (job.hosts or "a node")
        if seconds > SILENCE_S:
            text += ", and it has given no sign of life for %d s: see %s" % (seconds, output_file(home, run))
        return dict(state, detail=text)
    _kill_if_overdue(home, run, job)
    silent = _silence(folder)
    if silent is not None and silent > SILENCE_S and seconds > SILENCE_S:
        text = "Slurm says RUNNING on %s, and its supervisor has given no sign of life for %d s: see %s"
        return dict(state, detail=text % (job.hosts, silent, output_file(home, run)))
    return state


def _silence(folder: str) -> Optional[float]:
    """Return the seconds since the supervisor's last sign of life; ``None`` without one."""
    try:
        return max(0.0, time.time() - os.stat(os.path.join(folder, ALIVE)).st_mtime)
    except OSError:
        return None


def _kill_if_overdue(home: str, run: str, job: Job) -> None:
    """Let Slurm end a job whose cancel was requested long ago: its supervisor hangs, or is not there any more."""
    folder = run_folder(home, run)
    try:
        waited = time.time() - os.lstat(os.path.join(folder, CANCEL)).st_mtime
    except OSError:
        return
    grace = (damage.read_job(home, run) or {}).get("grace") or 0.0
    if waited > float(grace) + _KILL_AFTER_S:
        try:
            commands.run("scancel", job.id)
        except AgentError:  # the next look tries again
            pass


def _after_end(home: str, run: str, state: Json, record: Json, job: Optional[Job], jobs: Jobs) -> Json:
    """Return the state of a run whose job has ended: as its files say, or, where they do not, as Slurm says."""
    submitted = record.get("submitted")
    if job is None and isinstance(submitted, (int, float)) and time.time() - submitted < RESULT_TIMEOUT_S:
        return state  # a list from before the submit
    first = _gone.setdefault((home, run), jobs.at)
    is_canceled = state["state"] == QUEUED and os.path.lexists(os.path.join(run_folder(home, run), CANCEL))
    if not is_canceled and protocol.mono() - first < _result_timeout_s(state, job):
        return state
    newest = damage.read_state(home, run)
    if newest is None or newest["state"] in TERMINAL:
        return newest or state
    return finish(home, run, newest, record["job"], job)


def _result_timeout_s(state: Json, job: Optional[Job]) -> float:
    """Return how long the result of a run is waited for after its job has ended."""
    if job is not None and state["state"] == QUEUED:
        return 0.0 if job.state == "CANCELLED" else RESULT_TIMEOUT_S
    is_killed = job is not None and job.state not in ("COMPLETED", "FAILED")
    return RESULT_TIMEOUT_S if is_killed else WRITTEN_TIMEOUT_S


def finish(home: str, run: str, state: Json, job_id: str, job: Optional[Job]) -> Json:
    """Write the end of a run whose supervisor has not: it was killed, or has never started."""
    _gone.pop((home, run), None)
    folder = run_folder(home, run)
    slurm_state, exit_code = _last_facts(job_id)
    slurm_state = slurm_state or (job.state if job is not None else "")
    if not slurm_state and "_" in job_id and not os.path.exists(output_file(home, run)):
        slurm_state = "CANCELLED"  # Slurm forgets a canceled task that has never started at once
    name, reason, detail = reasons.ended(slurm_state, exit_code)
    is_requested = os.path.lexists(os.path.join(folder, CANCEL))
    if is_requested:
        name, reason, detail = CANCELED, CANCELED, "canceled"
    elif state["state"] in (RUNNING, FINALIZING, PREPARING) and slurm_state == "FAILED":
        reason, detail = (
            "signal",
            "its supervisor was killed, and its job has ended with %s" % (exit_code or "an error"),
        )
    elif name == FAILED and reason == "launch" and (text := output_text(home, run)):
        detail = "could not be started: %s" % text
    if state["state"] == QUEUED and name == CANCELED:
        detail = "%s before it started" % detail
    run_state.enter(state, name)
    state["reason"], state["detail"] = reason, detail
    run_state.write_state(folder, state, durable=True)
    return state


def _last_facts(job_id: str) -> Tuple[str, str]:
    """Return state and exit code of an ended job: of the controller's memory, else of the accounting, if it answers."""
    try:
        for row in commands.show("job", job_id, timeout_s=5.0):
            return row.get("JobState", ""), row.get("ExitCode", "")
    except AgentError:  # it has forgotten the job
        pass
    try:
        text = commands.run("sacct", "-n", "-X", "-P", "-j", job_id, "-o", "State,ExitCode", timeout_s=5.0)
    except AgentError:  # many clusters have no accounting that users can read
        return "", ""
    state, _, code = (text.splitlines() or [""])[-1].partition("|")
    return state.split(" ")[0], code.strip()


def output_file(home: str, run: str) -> str:
    """Return the path of the output of a run's script, before and beside the output of the run."""
    return os.path.join(home, OUTPUTS, run + ".txt")


def array_file(home: str, array: str) -> str:
    """Return the path of the file with the runs of an array, a line for each task."""
    return os.path.join(home, ARRAYS, array + ".txt")


def output_text(home: str, run: str) -> str:
    """Return the last lines of what the job's script has printed, without Slurm's own."""
    try:
        with open(output_file(home, run), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    own = [line.strip() for line in lines if line.strip() and not line.startswith("slurmstepd")]
    return "; ".join(own[-3:])[-_MAX_QUOTED:]


def keep_record(folder: str, record: Mapping[str, Any]) -> None:
    """Write what is known of a run's job."""
    write_json(os.path.join(folder, RECORD), dict(record, schema=protocol.SCHEMA), True)
