"""The agent's calls: what a kernel, a command line or an SSH session may ask of a machine."""

from __future__ import annotations

import os
import shutil
import signal
from typing import Any, Callable, Dict, List, Mapping, Optional

from . import damage, machine
from .damage import DamagedRun
from .json_dir import WAITING, NumberedJsonDir, default_queue, open_queue
from .processes import boot_id, node, resume
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
    read_json,
    run_folder,
    valid_run_id,
)
from .queue import dispatcher_client, submission
from .queue.dispatcher_client import AgentContext
from .queue.gpu_users import lineage
from .supervise import run_state
from .telemetry import monitor

Json = Dict[str, Any]


def state_of(context: AgentContext, run: str) -> Json:
    """``state.json`` of a run; UnknownRun when there is none, DamagedRun when it cannot be understood."""
    state = damage.read_state(context.home, run)
    if state is None:
        raise AgentError("UnknownRun", "There is no run %r in %s. List the runs with: %%aml_runs" % (run, context.home))
    return state


def queued(context: AgentContext, waiting: Json) -> Json:
    """Queued runs with their place in the queue; wakes a queue that nobody serves."""
    if not dispatcher_client.running(context.queue) and any(
        NumberedJsonDir(os.path.join(context.queue, "tickets")).names()
    ):
        context.ask("ping", {})
    shown = read_json(os.path.join(context.queue, WAITING), "Queue folder") or {}
    details = shown.get("waiting", {}).get(context.home, {})
    found = {}
    for run, state in waiting.items():
        if run in details:
            found[run] = dict(state, detail=details[run])
        elif state.get("node") == node():
            try:
                found[run] = _without_ticket(context, run)
            except AgentError:  # deleted or damaged meanwhile: the next call says so
                pass
    return found


def _without_ticket(context: AgentContext, run: str) -> Json:
    """A queued run that the queue does not show: about to start, or its queue folder is gone."""
    state = state_of(context, run)
    queue = state.get("queue")
    if state["state"] == QUEUED and queue != os.path.realpath(context.queue):  # only its own queue can have lost it
        return dict(state, detail="waits in another queue: AMLTRAIN_QUEUE=%s" % queue) if queue else state
    folders = [NumberedJsonDir(os.path.join(context.queue, name)) for name in ("tickets", "slots")]
    known = any(
        item["run"] == run and item["home"] == context.home for folder in folders for item in folder.load().values()
    )
    state = state_of(context, run)
    if known or any(folder.unreadable for folder in folders) or state["state"] != QUEUED:
        return state
    # The ticket goes when the guardian may start; its first word follows in milliseconds.
    if state["boot"] == boot_id() and run_state.seconds_since(state["changed"]) < 5.0:
        return state
    return run_state.mark_lost(run_folder(context.home, run), state, "its ticket in %s is gone" % context.queue)


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
    return dispatcher_client.submit(context, payload)


def _state_now(context: AgentContext, run: str) -> Json:
    state = run_state.settle(context.home, run, state_of(context, run), queue=context.queue)
    return run_state.check_ends(context.queue, context.home, {run: state}).get(run, state)


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
        record = run_state.records(context.queue).get((context.home, run))
        for who in run_state.supervisors(record, state)[:1]:
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
    if any(_stray(context, state) for state in runs.values()) and not dispatcher_client.running(context.queue):
        context.ask("ping", {})  # who comes up looks after what an earlier life has left
        for run in list(runs):
            try:
                runs[run] = state_of(context, run)
            except AgentError:  # deleted or damaged meanwhile: the next call says so
                del runs[run]
    runs.update(run_state.check_ends(context.queue, context.home, runs))
    waiting = {run: state for run, state in runs.items() if state["state"] == QUEUED}
    if waiting:
        runs.update(queued(context, waiting))
    return {"runs": runs, "errors": errors}


def _settled(context: AgentContext, run: str, state: Json) -> Json:
    """`state` as it is now; of a live run also that its end could not be written."""
    try:
        state = run_state.settle(context.home, run, state, queue=context.queue)
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
        answer.update(machine.describe(answer["pid"]), home=context.home, queue=context.queue)
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
    settings = submission.change(context.queue, payload)
    if dispatcher_client.running(context.queue):
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
