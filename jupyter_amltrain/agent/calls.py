"""The agent's calls: what a kernel, a command line or an SSH session may ask of a machine.

``call(op, payload, home, queue=None, agent=None) -> dict``

Blocking (use it off the loop), thread-safe, takes and gives JSON-able values.

Parameters of `call`
--------------------
home
    State root of the agent (absolute). Made (0700) when absent.
queue
    Node-local queue folder; ``None`` takes ``$AMLTRAIN_QUEUE``, else
    ``/var/tmp/amltrain-<uid>``.
agent
    Path of the zipapp with which to start a dispatcher when none runs; ``None`` takes
    the zipapp that we run from, else the newest of ``<home>/agent/*.pyz``.

Every answer is a dict. An error is ``{"error": {"type": T, "message": M}}`` where T is a
class name of ``jupyter_amltrain.errors`` (``SubmitError``, ``CapacityError``, ``GpuDriverError``,
``StateError``, ``UnknownRun``, ``CommandError``, ``SpecError``, ``ProtocolError``) or
``RunExists`` (the run id is taken: choose another), and M is one sentence.

Calls
-----
``submit`` payload::

    {"run": id,                    # [A-Za-z0-9][A-Za-z0-9._-]{0,99}, also the folder's name
     "name": str,                  # for people
     "argv": [str, ...],           # absolute interpreter, absolute script: <home>/runs/<id>/source/...
     "cwd": str,                   # absolute; "" takes the run's source folder
     "environ": {..},              # submitter's whole environment: memory only, never on disk
     "env": {..},                  # public variables, over environ: in job.json
     "secrets": {NAME: value},     # over env: memory only; job.json has the sorted names
     "gpus": int | None,           # None: 1 where there is a GPU, else a CPU slot
     "timeout": seconds | None,  "grace": seconds | None (default 10, $AMLTRAIN_GRACE),
     "require_gpu": "" | "warn" | "stop",  # "stop" ends a run that does not use its GPUs
     "gpu_grace": seconds | None,  # until that may be said: default 60, $AMLTRAIN_GPU_GRACE
     "share_gpus": bool,           # also GPUs on which others compute (or AMLTRAIN_SHARE_GPUS=1 in environ or env)
     "submitter": [{"pid", "start"}, ...],  # optional: the submitting process and its ancestors (made when absent)
     "gpu_ids": "" | "uuid" | "index",  # what CUDA_VISIBLE_DEVICES of the job holds: UUIDs by default
     "out": [str], "spec": {..}, "snapshot": {..}, "project": str, "experiment": str,
     "tracking": {"run_id": 32 hex, "mode": "sink" | "direct"}, "notebook_dir": str,
     "submission": str}            # optional; equal values make a repeated submit harmless

  Only run and argv are required; unknown keys are refused. Files put before under
  ``<home>/staging/<id>/`` become ``<home>/runs/<id>/source/``.  Answer::

    {"run": id, "state": "queued", "folder": "<home>/runs/<id>", "ticket": int}

  Repeating a call that got no answer is harmless (`submission` is made when absent).
  Returned when the job is accepted for good; it starts at once if a slot is free.
  Environment of the job's process: environ < env < ours (AMLTRAIN_RUN, PYTHONUNBUFFERED,
  AML_NOTEBOOK_DIR, AML_OUTPUT_DIR = <folder>/outputs, CUDA_VISIBLE_DEVICES, MLflow client
  variables unless tracking.mode is "direct") < secrets.
  CUDA_VISIBLE_DEVICES in environ says which GPUs the job may be given (see `visible_gpus`); in env or secrets it
  is the job's own with "gpus": 0, and refused (``SpecError``) where the job gets GPUs. What a person should know of
  an accepted job is in job.json and state.json, ``notes``, one sentence each.

``cancel`` {"run": id} -> {"run": id, "state": str}
    Idempotent; returns when requested, not when dead. UnknownRun.
``poll`` {"run_ids": [id, ...]} -> {"runs": {id: state.json}, "errors": {id: {"type", "message"}}}
    Ids that this machine does not know are absent. `errors` holds folders that cannot be
    understood: ``StateError`` of a newer schema; ``DamagedRun``, which also has "changed", the
    unix seconds of the folder's last change. ``truth`` of a run with GPUs, once there is a verdict: {"verdict",
    "detail", "cause"} (see `truth`). The ``detail`` of a queued run is its place in the queue and what
    it waits for; it changes without a change of ``version``. Starts a dispatcher when jobs
    wait and none runs, and says ``lost`` for runs whose supervisor and guardian are gone.
``list`` {"full": bool} -> {"runs": [{"run", "name", "state", "reason", "exit_code", "submitted",
    "experiment", "project"}, ...], "errors": {..}}, oldest first; with "full" each row also
    has "job" (job.json) and "status" (state.json). {"run_ids": [..]} restricts it; with {"but": [..]}
    rows of those are left out, and "ids" are the names of all run folders.
``info`` {} -> see ``place.describe``: cpus, memory (bytes), gpus, gpu_note, slots, queued,
    running, survives, python, platform, home, queue, protocol.
``delete`` {"run": id} -> {"run": id, "deleted": true}. UnknownRun; CommandError for a live run, and
    for a damaged one of which processes live.
``monitor`` {"id", "gpus": [index] | None, "period": s} -> {"id", "folder", "pid"}; {"id", "stop": true} -> {"id"}
    Samples this machine without a run, into ``<home>/monitors/<id>``: see `monitor`.
``configure`` {"share_gpus": bool} -> {"share_gpus": bool}
    Settings of the queue, kept in its folder; they hold at once, also for jobs that wait.
``ping`` {} -> {"pid": int, "protocol": int}; starts a dispatcher when none runs.
"""

from __future__ import annotations

import os
import shutil
import signal
from typing import Any, Callable, Dict, List, Mapping, Optional

from . import contact, damage, lifecycle, monitor, ownership, place, queue_settings
from .contact import AgentContext
from .damage import DamagedRun
from .gpu_users import lineage
from .processes import node, resume
from .protocol import (
    CANCEL,
    LOST,
    QUEUED,
    RUNNING,
    RUNS,
    STAGING,
    TERMINAL,
    AgentError,
    not_writable,
    run_folder,
    valid_run_id,
)
from .shelf import NumberedJsonDir, default_queue, open_queue
from .waiting import queued, state_of

Json = Dict[str, Any]

#: Reason in a live state that is told, not stored: what the run's files say may be old.
NOT_WRITTEN = "not-written"
#: Space on a disk below which a state file cannot be counted on to be written.
LEAST_SPACE_BYTES = 1 << 14


def default_home() -> str:
    """``$AMLTRAIN_HOME``, else where platformdirs puts a user's state (for the command line)."""
    given = os.environ.get("AMLTRAIN_HOME")
    if given:
        return os.path.abspath(os.path.expanduser(given))
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "amltrain")


def call(
    op: str, payload: Mapping[str, Any], home: str, queue: Optional[str] = None, agent: Optional[str] = None
) -> Json:
    """One call; see the module's docstring. Never raises for what a user can cause."""
    work = _CALLS.get(op)
    try:
        if work is None:
            raise AgentError("ProtocolError", "The agent does not know the call %r." % (op,))
        if not os.path.isabs(home):
            raise AgentError("StateError", "The state root %r is not an absolute path." % home)
        context = AgentContext(os.path.abspath(home), os.path.abspath(queue or default_queue()), agent)
        return work(context, dict(payload))
    except AgentError as error:
        return error.answer()
    except OSError as error:
        return not_writable(error.filename or home, error).answer()


def _run_of(payload: Json) -> str:
    run = payload.get("run")
    if not isinstance(run, str):
        raise AgentError("UnknownRun", "No run was named. List the runs with: %aml_runs")
    return run


def _submit(context: AgentContext, payload: Json) -> Json:
    # A dispatcher may die between accepting and answering; the repeat must not find a clash.
    payload.setdefault("submission", os.urandom(12).hex())
    # The queue knows the submitter by it where it is the one that holds the GPU.
    payload.setdefault("submitter", lineage(os.getpid()))
    return contact.submit(context, payload)


def _state_now(context: AgentContext, run: str) -> Json:
    state = lifecycle.settle(context.home, run, state_of(context, run), queue=context.queue)
    return ownership.check_ends(context.queue, context.home, {run: state}).get(run, state)


def _cancel(context: AgentContext, payload: Json) -> Json:
    run = _run_of(payload)
    try:
        state = _state_now(context, run)
    except DamagedRun:
        return _cancel_damaged(context, run)
    if state["state"] in TERMINAL:
        return {"run": run, "state": state["state"]}
    failed = _ask_by_file(context, run)
    state = state_of(context, run)  # it may have started meanwhile
    told = False
    if state["state"] == QUEUED:
        # Where no file can be made the dispatcher remembers it.
        context.ask("cancel" if failed else "wake", {"run": run})
        told, state = True, state_of(context, run)
    if state["state"] not in TERMINAL:
        record = ownership.records(context.queue).get((context.home, run))
        for who in ownership.supervisors(record, state)[:1]:
            told = _signal(who) or told
    if failed is not None and not told:
        raise failed
    return {"run": run, "state": state["state"]}


def _ask_by_file(context: AgentContext, run: str) -> Optional[AgentError]:
    """Ask for a run's end by a file, which also reaches a supervisor that starts later; why it cannot be made."""
    path = os.path.join(run_folder(context.home, run), CANCEL)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | getattr(os, "O_NONBLOCK", 0), 0o600))
    except OSError as error:  # no free inode, a disk that is full or read-only
        return None if os.path.lexists(path) else not_writable(path, error)
    return None


def _signal(who: Mapping[str, Any]) -> bool:
    try:
        os.kill(who["pid"], signal.SIGTERM)
    except OSError:
        return False
    resume(who)
    return True


def _cancel_damaged(context: AgentContext, run: str) -> Json:
    """Ask for the end of a run whose files say nothing: by the file that its supervisor looks for."""
    if not damage.processes_of(run):
        raise AgentError(
            "CommandError",
            "Run %r is damaged, and no process of it runs on this machine: there is nothing to cancel."
            " Remove it with: %%aml_runs delete --force %s" % (run, run),
        )
    failed = _ask_by_file(context, run)
    if failed is not None:
        raise failed
    return {"run": run, "state": RUNNING}


def _poll(context: AgentContext, payload: Json) -> Json:
    runs: Json = {}
    errors: Json = {}
    for run in payload.get("run_ids") or []:
        if not valid_run_id(run):
            continue
        try:
            state = damage.read_state(context.home, run)
            if state is not None:
                runs[run] = _settled(context, run, state)
        except AgentError as error:
            errors[run] = _unread(context, run, error)
    if any(_stray(context, state) for state in runs.values()) and not contact.running(context.queue):
        context.ask("ping", {})  # who comes up looks after what an earlier life has left
        for run in list(runs):
            try:
                runs[run] = state_of(context, run)
            except AgentError:  # deleted or damaged meanwhile: the next call says so
                del runs[run]
    runs.update(ownership.check_ends(context.queue, context.home, runs))
    waiting = {run: state for run, state in runs.items() if state["state"] == QUEUED}
    if waiting:
        runs.update(queued(context, waiting))
    return {"runs": runs, "errors": errors}


def _settled(context: AgentContext, run: str, state: Json) -> Json:
    """`state` as it is now; of a live run also that its end could not be written."""
    try:
        state = lifecycle.settle(context.home, run, state, queue=context.queue)
    except OSError as error:
        why = "its end cannot be written: %s" % (error.strerror or error)
        return dict(state, reason=NOT_WRITTEN, detail=why)
    if state["state"] not in TERMINAL and _is_full(run_folder(context.home, run)):
        why = "no space left on the disk of %s: its state may be older than what is shown" % context.home
        return dict(state, reason=NOT_WRITTEN, detail=why)
    return state


def _is_full(folder: str) -> bool:
    """Whether the disk of `folder` takes no further file."""
    try:
        disk = os.statvfs(folder)
    except (OSError, AttributeError):
        return False
    no_space = disk.f_blocks > 0 and disk.f_bavail * disk.f_frsize < LEAST_SPACE_BYTES
    return no_space or (disk.f_files > 0 and disk.f_favail == 0)


def _unread(context: AgentContext, run: str, error: AgentError) -> Json:
    said: Json = dict(error.answer()["error"])
    if isinstance(error, DamagedRun):
        try:
            said["changed"] = os.stat(run_folder(context.home, run)).st_mtime
        except OSError:
            said["changed"] = 0.0
    return said


def _stray(context: AgentContext, state: Json) -> bool:
    """Whether a run of our queue was started where pids are others: before a container's restart, mostly."""
    if state["state"] in TERMINAL or state.get("queue") != os.path.realpath(context.queue):
        return False
    return state.get("node") != node() and any(NumberedJsonDir(os.path.join(context.queue, "slots")).names())


def _list(context: AgentContext, payload: Json) -> Json:
    wanted = payload.get("run_ids")
    try:
        names = os.listdir(os.path.join(context.home, RUNS)) if wanted is None else list(wanted)
    except FileNotFoundError:
        names = []
    ids = [name for name in names if valid_run_id(name)]
    but = frozenset(payload.get("but") or ())
    polled = _poll(context, {"run_ids": [name for name in ids if name not in but]})
    rows: List[Json] = []
    for run, state in polled["runs"].items():
        try:
            job = damage.read_job(context.home, run)
        except AgentError as error:
            polled["errors"][run] = _unread(context, run, error)
            continue
        if job is None:  # deleted meanwhile
            continue
        row = {"run": run, "name": job.get("name", run)}
        row.update({key: state.get(key) for key in ("state", "reason", "exit_code")})
        row.update({key: job.get(key) for key in ("submitted", "experiment", "project")})
        if payload.get("full"):
            row["job"], row["status"] = job, state
        rows.append(row)
    rows.sort(key=lambda row: (row["submitted"] or 0.0, row["run"]))
    return {"runs": rows, "errors": polled["errors"], "ids": ids}


def _info(context: AgentContext, payload: Json) -> Json:
    open_queue(context.queue)
    answer = context.ask("info", {})
    if "error" not in answer:
        answer.update(place.describe(answer["pid"]), home=context.home, queue=context.queue)
    return answer


def _delete(context: AgentContext, payload: Json) -> Json:
    run = _run_of(payload)
    try:
        state = _state_now(context, run)
    except DamagedRun:
        state = _end_of_damaged(run)
    if state["state"] not in TERMINAL:
        raise AgentError(
            "CommandError", "Run %r is %s. Cancel it first: %%aml_runs cancel %s" % (run, state["state"], run)
        )
    folder = run_folder(context.home, run)
    # Gone at once for all readers, also when the removal is cut short.
    trash = os.path.join(context.home, RUNS, ".gone-%s-%s" % (run, os.urandom(4).hex()))
    os.rename(folder, trash)
    shutil.rmtree(trash, ignore_errors=True)
    shutil.rmtree(os.path.join(context.home, STAGING, run), ignore_errors=True)
    return {"run": run, "deleted": True}


def _end_of_damaged(run: str) -> Json:
    """The state of a damaged run for its removal: lost, unless processes of it live here."""
    live = damage.processes_of(run)
    if not live:
        return {"state": LOST}
    raise AgentError(
        "CommandError",
        "Run %r is damaged and still runs (pid %s). Cancel it first: %%aml_runs cancel %s"
        % (run, ", ".join(map(str, sorted(live)[:8])), run),
    )


def _configure(context: AgentContext, payload: Json) -> Json:
    open_queue(context.queue)
    settings = queue_settings.change(context.queue, payload)
    if contact.running(context.queue):
        context.ask("wake", {})  # it holds at once for those that wait
    return settings


def _ping(context: AgentContext, payload: Json) -> Json:
    return context.ask("ping", {})


def _monitor(context: AgentContext, payload: Json) -> Json:
    return monitor.serve(context, payload)


_CALLS: Dict[str, Callable[[AgentContext, Json], Json]] = {
    "submit": _submit,
    "cancel": _cancel,
    "poll": _poll,
    "list": _list,
    "info": _info,
    "delete": _delete,
    "configure": _configure,
    "monitor": _monitor,
    "ping": _ping,
}
