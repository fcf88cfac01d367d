"""Calls of a kernel on the login node; those of the same name of the agent's own queue are not used there."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import Any, Dict, Mapping

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

from . import cluster, commands, reasons, runs
from .jobs import JOBS, Job

Json = Dict[str, Any]

#: Folder of the state root that stands for a queue: claims of submits.
_QUEUE = "slurm-queue"
#: Variables of an allocation in which the kernel itself may run: its jobs are others.
_ALLOCATION = ("SLURM_", "SBATCH_", "PMI_", "PMIX_")
#: Seconds for an answer from another machine.
_ASK_TIMEOUT_S = 45.0
_CLUSTER_NAMES = ("SLURM_CONF", "SLURM_CLUSTERS")


def submit(context: AgentContext, payload: Json) -> Json:
    """Accept a job and hand it to sbatch; a repeated call submits no second one.

    The field ``slurm`` has the ``script``, and ``login``: whether the job gets the variables of this login.
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
        job = _sbatch(script, variables, submitted.secrets)
        try:
            runs.keep_record(hidden, {"job": job, "submitted": time.time(), "nodes": int(request.get("nodes") or 1)})
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


def _sbatch(script: str, variables: Mapping[str, str], secrets: Mapping[str, str]) -> str:
    """Submit a script and return the id of its job.

    The variables of the job, with its secrets, travel in the environment of sbatch: neither a file nor a command line
    has them.
    """
    environ = {
        name: value for name, value in variables.items() if name in _CLUSTER_NAMES or not name.startswith(_ALLOCATION)
    }
    for name in _CLUSTER_NAMES:
        if name in os.environ:
            environ.setdefault(name, os.environ[name])
    environ.update(secrets)
    environ.setdefault("PATH", os.environ.get("PATH", os.defpath))
    try:
        output = commands.run("sbatch", "--parsable", text=script, environ=environ)
    except commands.CommandRefused as error:
        raise AgentError("SubmitError", "Slurm refuses the job: %s." % error.reason, error.code) from None
    job = output.strip().splitlines()[-1].partition(";")[0] if output.strip() else ""
    if not job.isdigit():
        raise AgentError("SubmitError", "sbatch has answered something else than a job's id: %r." % output[:200])
    return job


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
        commands.run("scancel", "--state=PENDING", job)
        JOBS.forget()
        listed = JOBS.get().by_id.get(job)
        if listed is not None and listed.state in reasons.ENDED:
            state = calls.state_of(context, run)
            if state["state"] == QUEUED:
                state = runs.finish(context.home, run, state, job, listed)
        elif listed is not None:
            _wake(job, int(record.get("nodes") or 1))
    return {"run": run, "state": state["state"]}


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
    folder = run_folder(context.home, run)
    trash = os.path.join(context.home, RUNS, ".gone-%s-%s" % (run, os.urandom(4).hex()))
    os.rename(folder, trash)
    shutil.rmtree(trash, ignore_errors=True)
    try:
        os.unlink(runs.output_file(context.home, run))
    except OSError:  # its job has never started
        pass
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
    return cluster.read(str(payload.get("partition") or ""))


def ask(context: AgentContext, payload: Json) -> Json:
    """Return what the processes of a run answer; on another machine the agent asks them there, as a step of the job."""
    run = calls.run_id_of(payload)
    state = runs.current(context.home, run, calls.state_of(context, run))
    if state.get("node") == pid_scope() or state["state"] != RUNNING:
        return calls.ask(context, payload)
    job = runs.record_of(context.home, run).get("job", "")
    agent = context.agent or zipapp(context.home)
    step = ("srun", "--jobid", job, "--overlap", "--nodes=1", "--ntasks=1", "--quiet")
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
    """Return the nodes of the cluster as they are now, the jobs of this user, and the shares of the accounts."""
    listed = JOBS.get()
    if listed.error is not None:
        raise listed.error
    jobs = [
        dict(job._asdict(), run=_run_of(context.home, job), words=reasons.words(job.reason, job.id))
        for job in listed.by_id.values()
        if job.state not in reasons.ENDED
    ]
    return {"nodes": cluster.nodes(), "jobs": jobs, "used": cluster.gpus_used(), "shares": cluster.shares()}


def _run_of(home: str, job: Job) -> str:
    """Return the run of a job, which has its name; empty for another job."""
    is_run = valid_run_id(job.name) and runs.record_of(home, job.name).get("job") == job.id
    return job.name if is_run else ""


def probe(context: AgentContext, payload: Json) -> Json:
    """Run a job of a second that looks at this folder from a compute node; return what it has found."""
    return cluster.probe(context.home, str(payload["script"]), float(payload.get("timeout") or 20.0))


CALLS = {
    "submit": submit,
    "poll": poll,
    "list": list_runs,
    "cancel": cancel,
    "delete": delete,
    "info": info,
    "limits": limits,
    "probe": probe,
    "overview": overview,
    "ask": ask,
}
