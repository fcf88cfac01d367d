"""``agent.pyz guest slurm run HOME RUN``: the supervisor of a run on one node of its allocation.

Runs in the foreground as the job's script, or once on each node below ``srun``. It is the dispatcher and the guardian
of its run, too: Slurm ends what it leaves, and the login node writes the end of a run whose supervisor was killed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import Any, Dict, List, Optional

from jupyter_amltrain.agent import protocol
from jupyter_amltrain.agent.process_setup import log_line, wakeup_pipe
from jupyter_amltrain.agent.processes import become_subreaper, identity
from jupyter_amltrain.agent.protocol import (
    COMPLETED,
    FAILED,
    JOB,
    LOST,
    QUEUED,
    TERMINAL,
    read_json,
    read_state,
    run_folder,
    write_text,
)
from jupyter_amltrain.agent.supervise import attempts
from jupyter_amltrain.agent.supervise.assignment import Assignment
from jupyter_amltrain.agent.supervise.outcome import Outcome
from jupyter_amltrain.agent.supervise.supervisor import Supervisor

from . import allocation as allocations
from .allocation import Allocation
from .gang import GangHost
from .host import SlurmHost
from .runs import OWNER, record_of

Json = Dict[str, Any]

#: Seconds for the run's folder to appear: the job may start before the submit has ended.
_FOLDER_TIMEOUT_S = 60.0
#: Variables of this script that are not for the job.
_OWN = ("SLURM_TIME_FORMAT",)


def main(argv: List[str]) -> int:
    """Run the command; return the exit code of the job's script."""
    parser = argparse.ArgumentParser(prog="agent.pyz guest slurm")
    parser.add_argument("verb", choices=["run"])
    parser.add_argument("home")
    parser.add_argument("run")
    parser.add_argument("--kill-wait", type=float, default=30.0)
    parser.add_argument("--notice", type=float, default=0.0)
    args = parser.parse_args(argv)
    wakeup, _ = wakeup_pipe(signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
    allocation = allocations.from_environ(os.environ)
    folder = run_folder(args.home, args.run)
    job = _job_in(folder)
    state = None if job is None else read_state(folder)
    if job is None or state is None:
        sys.stderr.write("there is no run in %s\n" % folder)
        return 1
    if record_of(args.home, args.run).get("job", allocation.job) != allocation.job:
        # The reply to a submit was lost, and it was sent again.
        sys.stderr.write("job %s is not that of the run\n" % allocation.job)
        return 1
    if state["state"] in TERMINAL:  # canceled while Slurm started it
        return 0
    os.umask(0o077)
    become_subreaper()
    _allow_restarts(job, attempts.allowed(job) + allocation.restarts)
    if allocation.is_first:
        _enter_attempt(folder, job, state, allocation)
    else:
        state["mark"] = "%d.%s" % (allocation.node, state["mark"])  # nodes of a test are on one machine
        state["nodes"] = allocation.nodes
    task = _assignment(args.home, folder, job, state)
    kind = GangHost if allocation.nodes > 1 else SlurmHost
    run = Supervisor(task, kind(task, allocation, args.kill_wait, args.notice), wakeup)
    run.run()
    return 0 if run.outcome is None or run.outcome.state == COMPLETED else run.outcome.exit_code or 1


def _job_in(folder: str) -> Optional[Json]:
    """Return the job of a run; waits for its folder."""
    until = time.monotonic() + _FOLDER_TIMEOUT_S
    while not os.path.exists(os.path.join(folder, JOB)):
        if time.monotonic() > until:
            return None
        time.sleep(0.05)
    return read_json(os.path.join(folder, JOB))


def _enter_attempt(folder: str, job: Json, state: Json, allocation: Allocation) -> None:
    """Make the state that of this attempt: of the first one, or of one that follows an attempt that Slurm has ended."""
    if state["state"] != QUEUED:  # its supervisor was killed before it could enter the next attempt
        began = state["phases"][-1]["start"] if state["phases"] else protocol.wall()
        end = Outcome(FAILED, LOST, "was killed, and requeued by Slurm", None, None)
        attempts.begin_next(job, state, end, max(0.0, protocol.wall() - began))
        attempts.clear_records(folder)
        attempts.mark_logs(folder, "%s, after it %s" % (attempts.title(job, state), end.detail))
    write_text(os.path.join(folder, OWNER), str(allocation.restarts))
    state.update(supervisor=identity(os.getpid()), guardian=None, rank=None, queue="", nodes=allocation.nodes)
    log_line(folder, "supervisor: job %s of Slurm on %s" % (allocation.job, allocation.name))


def _allow_restarts(job: Json, count: int) -> None:
    """Let the job start again that often: those by Slurm count beside those of --max-restarts."""
    if count > attempts.allowed(job):
        job["restarts"] = dict(job.get("restarts") or {"preempt_after": 0.0}, max=count)


def _assignment(home: str, folder: str, job: Json, state: Json) -> Assignment:
    environ = {name: value for name, value in os.environ.items() if name not in _OWN}
    secrets = {name: environ.pop(name) for name in job.get("secrets") or () if name in environ}
    now = protocol.wall()
    submitted = state["phases"][-1]["start"] if state["phases"] else now
    return Assignment(
        home, folder, job, state, environ, secrets, allocations.devices(environ), None, False,
        max(0.0, now - submitted), now, folder, 0, allocations.gpu_variables(environ),
    )  # fmt: skip
