"""Acceptance of a submitted job: creates run folder and ticket, both or neither."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from .. import protocol, testing
from ..processes import boot_id, pid_scope
from ..protocol import (
    GIT_DIFF,
    JOB,
    QUEUED,
    RUN_FOLDERS,
    RUNS,
    SCHEMA,
    SOURCE,
    STAGING,
    STATE,
    AgentError,
    not_writable,
    private_folder,
    read_json,
    run_folder,
    write_json,
    write_text,
)
from ..supervise import attempts
from . import claims
from .job_fields import Submission

FILE = "settings.json"
#: Maximum number of files of the code that ``job.json`` names.
MAX_NAMED_FILES = 2000


def load_settings(queue: str) -> Dict[str, Any]:
    """Return ``{"share_gpus": bool}``: whether jobs may get GPUs that other processes use."""
    try:
        stored = read_json(os.path.join(queue, FILE), "Queue folder") or {}
    except (AgentError, OSError):
        stored = {}
    return {"share_gpus": stored.get("share_gpus") is True}


def change_settings(queue: str, values: Mapping[str, Any]) -> Dict[str, Any]:
    """Store settings and return all current settings.

    Raises
    ------
    AgentError
        ``CommandError`` for an unknown setting or an invalid value.
    """
    for name, value in values.items():
        if name != "share_gpus" or not isinstance(value, bool):
            raise AgentError(
                "CommandError",
                "Cannot change the queue: there is no setting %s=%r. Try: --share-gpus yes" % (name, value),
            )
    settings = dict(load_settings(queue), **values)
    write_json(os.path.join(queue, FILE), dict(settings, schema=SCHEMA))
    return settings


_HIDDEN_PREFIX = ".new-"

#: Seconds after which the incomplete folder of an abandoned submission is removed.
_STALE_AFTER_S = 3600.0


def is_repeated(home: str, submitted: Submission) -> bool:
    """Whether this submission was accepted before and its reply was lost.

    Raises
    ------
    AgentError
        ``RunExists`` when the run id belongs to another job.
    """
    folder = run_folder(home, submitted.job["run"])
    if not os.path.lexists(folder):
        return False
    job = read_json(os.path.join(folder, JOB)) or {}
    if submitted.submission and job.get("submission") == submitted.submission:
        return True
    raise AgentError("RunExists", "Run %r already exists in %s. Choose another name." % (submitted.job["run"], home))


def create_folder(
    home: str, submitted: Submission, queue: str, number: int, put_ticket: Callable[[Dict[str, Any]], None]
) -> str:
    """Create the run folder and the ticket of a job; return the folder.

    Parameters
    ----------
    queue
        The queue folder.
    number
        Number of the ticket.
    put_ticket
        Stores the ticket; called just before the folder becomes visible.

    Raises
    ------
    AgentError
        ``StateError`` when the state root cannot be written, ``RunExists`` on a clash, ``SubmitError`` when the
        submitter has revoked the job.
    """
    job = dict(submitted.job)
    run = job["run"]
    folder = run_folder(home, run)
    hidden = hidden_folder(home, run, submitted.submission)
    now = protocol.wall()
    notes = {"notes": job.pop("notes")} if job.get("notes") else {}
    job["submitted"] = now
    job["submission"] = submitted.submission
    job["cwd"] = job["cwd"] or os.path.join(folder, SOURCE)
    private_folder(os.path.join(home, RUNS))
    ticket = _ticket_of(job, home, number)
    del job["submitter"]
    try:
        os.makedirs(hidden, mode=0o700, exist_ok=True)
        testing.hit("after_run_folder")
        _move_staged_source(home, run, os.path.join(hidden, SOURCE))
        _write_job(hidden, job, submitted.git_diff)
        testing.hit("after_job_json")
        write_json(os.path.join(hidden, STATE), dict(first_state(run, queue, now), **notes))
        testing.hit("after_state_write")
        put_ticket(ticket)
        testing.hit("before_claim")
        # From here on the next dispatcher completes the submission if this one dies.
        claim(queue, run, submitted.submission)
        testing.hit("after_claim")
        os.rename(hidden, folder)
    except AgentError:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    except OSError as error:
        # A submitter that has seen the claim may have made the folder visible meanwhile.
        if not is_accepted(home, run, submitted.submission):
            shutil.rmtree(hidden, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                is_repeated(home, submitted)
            raise not_writable(os.path.join(home, RUNS), error) from error
    testing.hit("after_ticket")
    return folder


def _ticket_of(job: Mapping[str, Any], home: str, number: int) -> Dict[str, Any]:
    """Return the ticket of a job: what the queue must know of it."""
    return {
        "schema": SCHEMA, "number": number, "run": job["run"], "home": home, "gpus": job["gpus"],
        "submitted": job["submitted"], "mono": protocol.mono(), "boot": boot_id(), "submission": job["submission"],
        "visible_gpus": job.get("visible_gpus"), "gpu_ids": job["gpu_ids"],
        "share_gpus": job["share_gpus"], "submitter": job["submitter"], "gate": "nodes" in job,
        **({"no_slot": True} if job.get("no_slot") else {}),
        **({"gpu_fraction": job["gpu_fraction"]} if "gpu_fraction" in job else {}),
        **({"max_restarts": attempts.allowed(job), "requeues": 0} if attempts.allowed(job) else {}),
    }  # fmt: skip


def _write_job(folder: str, job: Dict[str, Any], git_diff: str) -> None:
    """Create the parts of a run folder, whose code is there, and write its job."""
    names = _names_of_files(os.path.join(folder, SOURCE))
    if names is not None and isinstance(job.get("snapshot"), dict):
        job["snapshot"] = dict(job["snapshot"], names=names)
    for name in RUN_FOLDERS:
        os.makedirs(os.path.join(folder, name), mode=0o700, exist_ok=True)
    if git_diff:
        write_text(os.path.join(folder, GIT_DIFF), git_diff)
    write_json(os.path.join(folder, JOB), job)


def claim(queue: str, run: str, submission: str) -> None:
    """Record that a submission is accepted.

    Raises
    ------
    AgentError
        ``SubmitError`` when its submitter has revoked it.
    """
    if submission and claims.decide(queue, submission, claims.ACCEPTED) == claims.REVOKED:
        raise AgentError("SubmitError", "Run %r was revoked by its submitter after a timeout. Submit it again." % run)


def is_accepted(home: str, run: str, submission: str) -> bool:
    """Whether the run folder of this submission exists."""
    try:
        job = read_json(os.path.join(run_folder(home, run), JOB)) or {}
    except (AgentError, OSError):
        return False
    return bool(submission) and job.get("submission") == submission


def hidden_folder(home: str, run: str, submission: str) -> str:
    """Return the hidden folder in which a run folder is prepared."""
    return os.path.join(home, RUNS, "%s%s-%s" % (_HIDDEN_PREFIX, run, submission))


def recover_folder(ticket: Mapping[str, Any], queue: str) -> bool:
    """Complete a submission that was killed between ticket and rename; return whether the run folder exists.

    Raises
    ------
    OSError
        The state of the folder cannot be determined.
    """
    home, run, submission = ticket["home"], ticket["run"], ticket.get("submission", "")
    if not is_removed(run_folder(home, run)):
        return True
    hidden = hidden_folder(home, run, submission)
    if is_removed(hidden):
        return False
    try:
        claim(queue, run, submission)
    except AgentError:
        shutil.rmtree(hidden, ignore_errors=True)
        return False
    publish_folder(home, run, submission)
    return not is_removed(run_folder(home, run))


def publish_folder(home: str, run: str, submission: str) -> None:
    """Make the folder of an accepted run visible unless it already is."""
    try:
        os.rename(hidden_folder(home, run, submission), run_folder(home, run))
    except OSError:  # renamed already
        pass


def is_removed(folder: str) -> bool:
    """Whether a folder was removed; an unreachable disk raises instead.

    Raises
    ------
    OSError
        The state of the folder cannot be determined.
    """
    try:
        return not stat.S_ISDIR(os.stat(folder).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True


def sweep_submissions(home: str) -> None:
    """Remove incomplete run folders of abandoned submissions."""
    runs = os.path.join(home, RUNS)
    try:
        names = [name for name in os.listdir(runs) if name.startswith(_HIDDEN_PREFIX)]
    except OSError:
        return
    for name in names:
        path = os.path.join(runs, name)
        try:
            if time.time() - os.stat(path).st_mtime > _STALE_AFTER_S:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # removed by another dispatcher
            pass


def _move_staged_source(home: str, run: str, source: str) -> None:
    try:
        os.rename(os.path.join(home, STAGING, run), source)
    except FileNotFoundError:
        # Nothing was staged, or an earlier try of this submission has moved it.
        os.makedirs(source, mode=0o700, exist_ok=True)


def _names_of_files(source: str) -> Optional[List[str]]:
    """Return the names of a run's files, without those that the run itself writes later; ``None`` for too many."""
    names: List[str] = []
    for folder, _, files in os.walk(source):
        below = os.path.relpath(folder, source).replace(os.sep, "/")
        names += [name if below == "." else "%s/%s" % (below, name) for name in files]
        if len(names) > MAX_NAMED_FILES:
            return None
    return sorted(names)


def first_state(run: str, queue: str, now: float) -> Dict[str, Any]:
    """Return ``state.json`` of a newly accepted job; it names the queue that is responsible for the job."""
    return {
        "schema": SCHEMA, "run": run, "state": QUEUED, "detail": "", "reason": None, "exit_code": None,
        "signal": None, "phases": [{"name": QUEUED, "start": now, "end": None, "seconds": None}], "devices": [],
        "cpu_slot": None, "cancel_requested": False, "node": pid_scope(), "boot": boot_id(),
        "mark": os.urandom(8).hex(),
        "guardian": None, "supervisor": None, "rank": None, "changed": now, "version": 1,
        "queue": os.path.realpath(queue),
    }  # fmt: skip
