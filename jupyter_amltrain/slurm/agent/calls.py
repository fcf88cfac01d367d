"""Calls of a kernel on the login node; those of the same name of the agent's own queue are not used there."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import Any, Dict

from jupyter_amltrain.agent import calls, damage, machine
from jupyter_amltrain.agent.processes import pid_scope
from jupyter_amltrain.agent.protocol import (
    CANCEL,
    QUEUED,
    RUNNING,
    RUNS,
    STAGING,
    STATE,
    TERMINAL,
    AgentError,
    not_writable,
    read_json,
    run_folder,
    valid_run_id,
    write_json,
)
from jupyter_amltrain.agent.queue import claims, submission
from jupyter_amltrain.agent.queue.dispatcher_client import AgentContext, zipapp
from jupyter_amltrain.agent.queue.job_fields import check_payload

from . import arrays, cluster, commands, reasons, runs, sbatch
from .jobs import JOBS, Job

Json = Dict[str, Any]

#: Folder of the state root that stands for a queue: claims of submits.
_QUEUE = "slurm-queue"
#: Seconds for an answer from another machine.
_ASK_TIMEOUT_S = 45.0


def submit(context: AgentContext, payload: Json) -> Json:
    """Accept a job and hand it to sbatch; a repeated call submits no second one.

    The field ``slurm`` has the ``script``, and ``login``: whether the job gets the variables of this login. A run of
    an array has its ``array`` and, as ``job``, its task.
    """
    payload = dict(payload)
    request = payload.pop("slurm")
    submitted = check_payload(payload)
    home, run = context.home, submitted.job["run"]
    queue = os.path.join(home, _QUEUE)
    if submission.is_repeated(home, submitted):
        return {"run": run, "state": QUEUED, "folder": run_folder(home, run)}
    for folder in (queue, os.path.join(home, runs.OUTPUTS)):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    variables = dict(os.environ) if request.get("login") else {}
    variables.update(submitted.environ)
    hidden = submission.hidden_folder(home, run, submitted.submission)

    def start(ticket: Json) -> None:
        state = read_json(os.path.join(hidden, STATE)) or {}
        state["queue"] = ""  # no dispatcher is responsible for it
        write_json(os.path.join(hidden, STATE), state)
        script = str(request["script"])
        with open(os.path.join(hidden, runs.SCRIPT), "w") as file:
            file.write(script)
        job = str(request.get("job") or "") or sbatch.submit(script, variables, submitted.secrets)
        record = {"job": job, "submitted": time.time(), "nodes": int(request.get("nodes") or 1)}
        if request.get("array"):
            record["array"] = str(request["array"])
        try:
            runs.keep_record(hidden, record)
        except OSError:  # a full disk: the run will not exist
            commands.run("scancel", job)
            raise

    try:
        submission.create_folder(home, submitted, queue, 0, start)
    finally:
        claims.forget(queue, submitted.submission)
        JOBS.forget()
        shutil.rmtree(os.path.join(home, STAGING, run), ignore_errors=True)
    return {"run": run, "state": QUEUED, "folder": run_folder(home, run)}


def poll(context: AgentContext, payload: Json) -> Json:
    """Return the states of runs."""
    found: Json = {}
    errors: Json = {}
    for run in payload.get("run_ids") or []:
        if valid_run_id(run):
            try:
                state = damage.read_state(context.home, run)
                if state is not None:
                    found[run] = runs.current(context.home, run, state)
            except AgentError as error:
                errors[run] = calls.error_of(context, run, error)
    return {"runs": found, "errors": errors}


def list_runs(context: AgentContext, payload: Json) -> Json:
    """Return runs with their jobs, as the agent's own call does."""
    return calls.list_runs(context, payload, poll)


def cancel(context: AgentContext, payload: Json) -> Json:
    """Request the end of a run: in Slurm while its job waits, by its supervisor once it runs."""
    run = calls.run_id_of(payload)
    state = calls.state_of(context, run)
    if state["state"] in TERMINAL:
        return {"run": run, "state": state["state"]}
    folder = run_folder(context.home, run)
    path = os.path.join(folder, CANCEL)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError as error:
        raise not_writable(path, error) from error
    record = runs.record_of(context.home, run)
    if record:
        job = record["job"]
        _remove_waiting(job)
        JOBS.forget()
        jobs = JOBS.get()
        listed = jobs.find(job)
        if listed is not None and listed.state not in reasons.ENDED:
            _wake(job, int(record.get("nodes") or 1))
        elif listed is not None or ("_" in job and jobs.error is None):
            state = calls.state_of(context, run)
            if state["state"] == QUEUED:
                state = runs.finish(context.home, run, state, job, listed)
    return {"run": run, "state": state["state"]}


def _remove_waiting(job: str) -> None:
    """Remove a job from Slurm unless it has started."""
    if "_" not in job:
        commands.run("scancel", "--state=PENDING", job)
        return
    # With a state, scancel takes the whole array for one of its tasks.
    JOBS.forget()
    listed = JOBS.get().by_id.get(job)
    if listed is not None and listed.state == "PENDING":
        commands.run("scancel", job)


def _wake(job: str, nodes: int) -> None:
    """Let the supervisors of a running job look for the request at once, which they find by themselves, too."""
    step = () if nodes > 1 else ("--batch",)  # the supervisor of one node is the job's script
    try:
        commands.run("scancel", "--signal=TERM", *step, job)
    except AgentError:  # it has ended meanwhile
        pass


def delete(context: AgentContext, payload: Json) -> Json:
    """Remove an ended run."""
    run = calls.run_id_of(payload)
    try:
        state = runs.current(context.home, run, calls.state_of(context, run))
    except damage.DamagedFolder:
        state = {"state": "lost"}
    if state["state"] not in TERMINAL:
        raise AgentError(
            "CommandError", "Run %r is %s. Cancel it first: %%aml_runs cancel %s" % (run, state["state"], run)
        )
    array = str(runs.record_of(context.home, run).get("array") or "")
    folder = run_folder(context.home, run)
    trash = os.path.join(context.home, RUNS, ".gone-%s-%s" % (run, os.urandom(4).hex()))
    os.rename(folder, trash)
    shutil.rmtree(trash, ignore_errors=True)
    try:
        os.unlink(runs.output_file(context.home, run))
    except OSError:  # its job has never started
        pass
    if array:
        arrays.forget_run(context.home, array)
    return {"run": run, "deleted": True}


def info(context: AgentContext, payload: Json) -> Json:
    """Return what the login node and the cluster are; no dispatcher is started there."""
    base, tool = (str(payload.get(name) or "") for name in ("base", "tool"))
    facts = machine.describe(os.getpid(), context.home, base, tool)
    yes = {"answer": "yes", "why": "Slurm runs it on another machine"}
    facts["survives"] = dict.fromkeys(facts["survives"], yes)
    listed = JOBS.get()
    mine = [] if listed.error else list(listed.by_id.values())
    facts.update(
        queued=sum(1 for job in mine if job.state == "PENDING"),
        running=sum(1 for job in mine if job.state == "RUNNING"),
    )
    return facts


def limits(context: AgentContext, payload: Json) -> Json:
    """Return what the partitions of the cluster allow."""
    return cluster.read()


def ask(context: AgentContext, payload: Json) -> Json:
    """Return what the processes of a run answer; on another machine the agent asks them there, as a step of the job."""
    run = calls.run_id_of(payload)
    state = runs.current(context.home, run, calls.state_of(context, run))
    if state.get("node") == pid_scope() or state["state"] != RUNNING:
        return calls.ask(context, payload)
    listed = JOBS.get().by_id.get(runs.record_of(context.home, run).get("job", ""))
    if listed is None:
        raise AgentError("CommandError", "Slurm does not list the job of run %r." % run, "ask.machine")
    agent = context.agent or zipapp(context.home)
    step = ("srun", "--jobid", listed.number, "--overlap", "--nodes=1", "--ntasks=1", "--quiet")
    words = (sys.executable, "-I", "-S", agent, "call", "ask", context.home)
    output = commands.run(*step, *words, text=json.dumps(payload), timeout_s=_ASK_TIMEOUT_S, may_fail=True)
    try:
        reply: Json = json.loads(output)
    except ValueError:
        text = "The job of run %r gives no answer: srun has printed %r." % (run, output[:200])
        raise AgentError("CommandError", text, "ask.machine") from None
    if "error" in reply:
        error = reply["error"]
        raise AgentError(str(error.get("type")), str(error.get("message")), str(error.get("code") or ""))
    return reply


def overview(context: AgentContext, payload: Json) -> Json:
    """Return the nodes of the cluster as they are now, and the jobs of this user."""
    listed = JOBS.get()
    if listed.error is not None:
        raise listed.error
    jobs = [
        dict(job._asdict(), run=_run_of(context.home, job), words=reasons.words(job.reason, job.id))
        for job in listed.by_id.values()
        if job.state not in reasons.ENDED
    ]
    return {"nodes": cluster.nodes(), "jobs": jobs, "used": cluster.gpus_used()}


def _run_of(home: str, job: Job) -> str:
    """Return the run of a job, which has its name; empty for another job."""
    run = arrays.run_of(home, job) if "_" in job.id else job.name
    return run if valid_run_id(run) and runs.record_of(home, run).get("job") == job.id else ""


def probe(context: AgentContext, payload: Json) -> Json:
    """Run a job of a second that looks at this folder from a compute node; return what it has found."""
    return cluster.probe(context.home, str(payload["script"]), float(payload.get("timeout") or 20.0))
