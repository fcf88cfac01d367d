"""The agent's calls: operations that a kernel, a command line or an SSH session can request on a machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Set

from . import damage, guests, machine
from .asking import kinds
from .asking.asked_run import AskedRun
from .damage import DamagedFolder
from .data import uploads
from .distributed import node_connector
from .environments import requests as environment_calls
from .json_dir import WAITING, NumberedJsonDir, default_queue, open_queue
from .pictures.listing import list_pictures
from .processes import boot_id, descendants, is_alive, pid_scope, pids_with_mark, process_table, resume
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
from .queue.gpu_users import ancestors
from .supervise import run_state
from .telemetry import monitor

Json = Dict[str, Any]

#: Seconds after which an interpreter that is asked for its modules counts as hanging.
_MODULES_TIMEOUT_S = 30.0
#: Prints as JSON which modules of the first argument, a list, this interpreter does not find, and the versions of
#: Python and of the packages of the second one, as far as they are known.
_FIND_MODULES = """
import importlib.util, json, sys
def missing(name):
    try:
        return importlib.util.find_spec(name) is None
    except Exception:
        return True
names, packages = map(json.loads, sys.argv[1:])
versions = {"python": sys.version.split()[0]}
try:
    from importlib import metadata
except ImportError:  # Python 3.7
    packages = []
for name in packages:
    try:
        versions[name] = metadata.version(name)
    except Exception:
        pass
print(json.dumps({"missing": [name for name in names if missing(name)], "versions": versions}))
"""


def state_of(context: AgentContext, run: str) -> Json:
    """Return ``state.json`` of a run; raise UnknownRun when there is none, DamagedRun when it is not valid."""
    state = damage.read_state(context.home, run)
    if state is None:
        raise AgentError("UnknownRun", "There is no run %r in %s. List the runs with: %%aml_runs" % (run, context.home))
    return state


def add_queue_details(context: AgentContext, waiting: Json) -> Json:
    """Return queued runs with their position in the queue; start a dispatcher if none is running."""
    if not dispatcher_client.running(context.queue) and any(
        any(NumberedJsonDir(os.path.join(context.queue, name)).names()) for name in ("tickets", "slots")
    ):
        context.send_request("ping", {})
    shown = read_json(os.path.join(context.queue, WAITING), "Queue folder") or {}
    details = shown.get("waiting", {}).get(context.home, {})
    result = {}
    for run, state in waiting.items():
        if run in details:
            result[run] = dict(state, detail=details[run])
        elif state.get("node") == pid_scope():
            try:
                result[run] = _state_without_ticket(context, run)
            except AgentError:  # deleted or damaged meanwhile: the next call reports it
                pass
    return result


def _state_without_ticket(context: AgentContext, run: str) -> Json:
    """State of a queued run that the queue does not list: it is about to start, or its queue folder was removed."""
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
    # The ticket is removed when the guardian may start; its first state follows within milliseconds.
    if state["boot"] == boot_id() and run_state.seconds_since(state["changed"]) < 5.0:
        return state
    return run_state.mark_lost(run_folder(context.home, run), state, "its ticket in %s is missing" % context.queue)


#: Reason in a reported (not stored) live state: the files of the run may be out of date.
NOT_WRITTEN = "not-written"

#: Seconds after which the files of a submit that was interrupted are removed.
STAGED_KEPT_S = 2 * 86400.0
#: Free space on a disk below which writing a state file is likely to fail.
MIN_FREE_BYTES = 1 << 14


def default_home() -> str:
    """Return ``$AMLTRAIN_HOME``, else the user state folder as in platformdirs (for the command line)."""
    value = os.environ.get("AMLTRAIN_HOME")
    if value:
        return os.path.abspath(os.path.expanduser(value))
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "amltrain")


def call(
    op: str, payload: Mapping[str, Any], home: str, queue: Optional[str] = None, agent: Optional[str] = None
) -> Json:
    """Run one call and return its reply. Never raises for an error that a user can cause."""
    try:
        handler = _CALLS.get(op) or _handler_of_guest(op)
        if not os.path.isabs(home):
            raise AgentError(
                "StateError", "The state root %r is not an absolute path. Set AMLTRAIN_HOME to an absolute path." % home
            )
        context = AgentContext(os.path.abspath(home), os.path.abspath(queue or default_queue()), agent)
        return handler(context, dict(payload))
    except AgentError as error:
        return error.to_reply()
    except OSError as error:
        return not_writable(error.filename or home, error).to_reply()


def _handler_of_guest(op: str) -> Callable[[AgentContext, Json], Json]:
    try:
        return guests.handler(op)
    except (LookupError, ImportError):
        raise AgentError("ProtocolError", "The agent does not support the call %r." % (op,)) from None


def run_id_of(payload: Json) -> str:
    """Return the run that a call names."""
    run = payload.get("run")
    if not isinstance(run, str):
        raise AgentError("UnknownRun", "The request names no run. List the runs with: %aml_runs")
    return run


def _submit(context: AgentContext, payload: Json) -> Json:
    # A dispatcher may die after accepting and before replying; the repeated call must not clash with the first.
    payload.setdefault("submission", os.urandom(12).hex())
    # Lets the queue recognize the submitter when it is the process that occupies the GPU.
    payload.setdefault("submitter", ancestors(os.getpid()))
    _sweep_staging(context)
    try:
        reply = dispatcher_client.submit(context, payload)
    except AgentError as error:
        if error.kind != "SubmitUnsure":  # any other one says that the job was not accepted, and never will be
            _discard_staged(context, payload.get("run"))
        raise
    if "error" in reply:
        _discard_staged(context, payload.get("run"))
    return reply


def _discard_staged(context: AgentContext, run: object) -> None:
    """Remove the files that were sent for a run which was not accepted; an accepted one has moved them."""
    if valid_run_id(run):
        shutil.rmtree(os.path.join(context.home, STAGING, str(run)), ignore_errors=True)


def _sweep_staging(context: AgentContext) -> None:
    """Remove what submits have left that were interrupted."""
    folder = os.path.join(context.home, STAGING)
    try:
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if time.time() - os.stat(path).st_mtime > STAGED_KEPT_S:
                shutil.rmtree(path, ignore_errors=True)
    except OSError:  # no such folder, or another process was faster
        pass


def _state_now(context: AgentContext, run: str) -> Json:
    state = run_state.refresh_state(context.home, run, state_of(context, run), queue=context.queue)
    return run_state.check_ends(context.queue, context.home, {run: state}).get(run, state)


def _cancel(context: AgentContext, payload: Json) -> Json:
    run = run_id_of(payload)
    try:
        state = _state_now(context, run)
    except DamagedFolder:
        return _cancel_damaged(context, run)
    if state["state"] in TERMINAL:
        return {"run": run, "state": state["state"]}
    file_error = _create_cancel_file(context, run)
    state = state_of(context, run)  # the run may have started meanwhile
    signaled = False
    if state["state"] == QUEUED:
        # Where no cancel file can be created, the dispatcher remembers the request.
        context.send_request("cancel" if file_error else "wake", {"run": run})
        signaled, state = True, state_of(context, run)
    if state["state"] not in TERMINAL:
        record = run_state.records(context.queue).get((context.home, run))
        for process in run_state.supervisors(record, state)[:1]:
            # SIGTERM alone is a shutdown, after which a run may start again.
            signaled = _signal(process, signal.SIGINT if file_error else signal.SIGTERM) or signaled
    if file_error is not None and not signaled:
        raise file_error
    return {"run": run, "state": state["state"]}


def _create_cancel_file(context: AgentContext, run: str) -> Optional[AgentError]:
    """Create the cancel file of a run, which also reaches a supervisor that starts later; return the error, if any."""
    path = os.path.join(run_folder(context.home, run), CANCEL)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | getattr(os, "O_NONBLOCK", 0), 0o600))
    except OSError as error:  # no free inode, or the disk is full or read-only
        return None if os.path.lexists(path) else not_writable(path, error)
    return None


def _signal(process: Mapping[str, Any], number: int) -> bool:
    try:
        os.kill(process["pid"], number)
    except OSError:
        return False
    resume(process)
    return True


def _cancel_damaged(context: AgentContext, run: str) -> Json:
    """Cancel a run whose files are damaged, by the cancel file that its supervisor checks for."""
    if not damage.processes_of(run):
        raise AgentError(
            "CommandError",
            "Cannot cancel run %r: its files are damaged and none of its processes runs on this machine."
            " Remove it with: %%aml_runs delete --force %s" % (run, run),
        )
    file_error = _create_cancel_file(context, run)
    if file_error is not None:
        raise file_error
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
                runs[run] = _current_state(context, run, state)
        except AgentError as error:
            errors[run] = error_of(context, run, error)
    if any(_waits_for_dispatcher(context, state) for state in runs.values()) and not dispatcher_client.running(
        context.queue
    ):
        context.send_request("ping", {})  # a new dispatcher cleans up what an earlier one left
        for run in list(runs):
            try:
                runs[run] = state_of(context, run)
            except AgentError:  # deleted or damaged meanwhile: the next call reports it
                del runs[run]
    runs.update(run_state.check_ends(context.queue, context.home, runs))
    waiting = {run: state for run, state in runs.items() if state["state"] == QUEUED}
    if waiting:
        runs.update(add_queue_details(context, waiting))
    return {"runs": runs, "errors": errors}


def _current_state(context: AgentContext, run: str, state: Json) -> Json:
    """Return the current state; for a live run also whether its state can be written."""
    try:
        state = run_state.refresh_state(context.home, run, state, queue=context.queue)
    except OSError as error:
        detail = "its final state cannot be written: %s" % (error.strerror or error)
        return dict(state, reason=NOT_WRITTEN, detail=detail)
    if state["state"] not in TERMINAL and _is_full(run_folder(context.home, run)):
        detail = "no space left on the disk of %s: the state shown may be out of date" % context.home
        return dict(state, reason=NOT_WRITTEN, detail=detail)
    return state


def _is_full(folder: str) -> bool:
    """Whether the disk of `folder` has no space for another file."""
    try:
        disk = os.statvfs(folder)
    except (OSError, AttributeError):
        return False
    no_space = disk.f_blocks > 0 and disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES
    return no_space or (disk.f_files > 0 and disk.f_favail == 0)


def error_of(context: AgentContext, run: str, error: AgentError) -> Json:
    """Return the error of one run as the reply has it."""
    details: Json = dict(error.to_reply()["error"])
    if isinstance(error, DamagedFolder):
        try:
            details["changed"] = os.stat(run_folder(context.home, run)).st_mtime
        except OSError:
            details["changed"] = 0.0
    return details


def _waits_for_dispatcher(context: AgentContext, state: Json) -> bool:
    """Whether only the dispatcher can tell how a run of this queue goes on.

    It was started in another PID namespace, usually before a container restart; or it has no supervisor any more,
    and may start again.
    """
    if state["state"] in TERMINAL or state.get("queue") != os.path.realpath(context.queue):
        return False
    is_here = state.get("node") == pid_scope() and state.get("boot") == boot_id()
    if is_here and (is_alive(state.get("supervisor")) or is_alive(state.get("guardian"))):
        return False
    return any(NumberedJsonDir(os.path.join(context.queue, "slots")).names())


def list_runs(
    context: AgentContext, payload: Json, poll: Optional[Callable[[AgentContext, Json], Json]] = None
) -> Json:
    """Return runs with their jobs; `poll` returns their states, where another one than the queue assigns them."""
    requested = payload.get("run_ids")
    try:
        names = os.listdir(os.path.join(context.home, RUNS)) if requested is None else list(requested)
    except FileNotFoundError:
        names = []
    ids = [name for name in names if valid_run_id(name)]
    excluded = frozenset(payload.get("but") or ())
    polled = (poll or _poll)(context, {"run_ids": [name for name in ids if name not in excluded]})
    rows: List[Json] = []
    for run, state in polled["runs"].items():
        try:
            job = damage.read_job(context.home, run)
        except AgentError as error:
            polled["errors"][run] = error_of(context, run, error)
            continue
        if job is None:  # deleted meanwhile
            continue
        row = {"run": run, "name": job.get("name", run)}
        row.update({key: state.get(key) for key in ("state", "reason", "exit_code")})
        row.update({key: job.get(key) for key in ("submitted", "project")})
        row["experiment"] = state.get("experiment") or job.get("experiment")
        if payload.get("full"):
            row["job"], row["status"] = job, state
        rows.append(row)
    rows.sort(key=lambda row: (row["submitted"] or 0.0, row["run"]))
    return {"runs": rows, "errors": polled["errors"], "ids": ids}


def _info(context: AgentContext, payload: Json) -> Json:
    open_queue(context.queue)
    reply = context.send_request("info", {})
    if "error" not in reply:
        base, tool = (str(payload.get(name) or "") for name in ("base", "tool"))
        facts = machine.describe(reply["pid"], context.home, base, tool)
        reply.update(facts, home=context.home, queue=context.queue)
    return reply


def _delete(context: AgentContext, payload: Json) -> Json:
    run = run_id_of(payload)
    try:
        state = _state_now(context, run)
    except DamagedFolder:
        state = _state_of_damaged(run)
    if state["state"] not in TERMINAL:
        raise AgentError(
            "CommandError", "Run %r is %s. Cancel it first: %%aml_runs cancel %s" % (run, state["state"], run)
        )
    folder = run_folder(context.home, run)
    # The rename removes the run for all readers, even when the deletion below is interrupted.
    trash = os.path.join(context.home, RUNS, ".gone-%s-%s" % (run, os.urandom(4).hex()))
    os.rename(folder, trash)
    shutil.rmtree(trash, ignore_errors=True)
    shutil.rmtree(os.path.join(context.home, STAGING, run), ignore_errors=True)
    return {"run": run, "deleted": True}


def _state_of_damaged(run: str) -> Json:
    """Return the state of a damaged run before its removal: lost, unless it has live processes here."""
    live = damage.processes_of(run)
    if not live:
        return {"state": LOST}
    raise AgentError(
        "CommandError",
        "Run %r is damaged, and its processes are still running (pid %s). Cancel it first: %%aml_runs cancel %s"
        % (run, ", ".join(map(str, sorted(live)[:8])), run),
    )


def _pictures(context: AgentContext, payload: Json) -> Json:
    return {"pictures": list_pictures(run_folder(context.home, run_id_of(payload)))}


def _left(context: AgentContext, payload: Json) -> Json:
    from .supervise import left_files  # most clients do not ask

    return {"files": left_files.left_now(run_folder(context.home, run_id_of(payload)))}


def _configure(context: AgentContext, payload: Json) -> Json:
    open_queue(context.queue)
    settings = submission.change_settings(context.queue, payload)
    if dispatcher_client.running(context.queue):
        context.send_request("wake", {})  # applies to waiting jobs immediately
    return settings


def _project_sockets(context: AgentContext, payload: Json) -> Json:
    """Return the folder for sockets that lead to MLflow's server of a project on the caller's machine."""
    from .mlflow import project_sockets

    try:
        return {"folder": project_sockets.open_folder(context.queue, str(payload.get("project")))}
    except ValueError:
        raise AgentError("ProtocolError", "The request names no project.") from None


def _ping(context: AgentContext, payload: Json) -> Json:
    return context.send_request("ping", {})


def _environments(context: AgentContext, payload: Json) -> Json:
    return environment_calls.serve(context.home, payload, os.environ)


def _monitor(context: AgentContext, payload: Json) -> Json:
    return monitor.serve(context, payload)


def _modules(context: AgentContext, payload: Json) -> Json:
    """Return the modules that an interpreter does not have, and versions, or the reason why it cannot be asked."""
    lists = [json.dumps(list(payload[name])) if name in payload else "[]" for name in ("names", "packages")]
    argv = [payload["python"], "-c", _FIND_MODULES] + lists
    # Imports of the job do not see the folder of this process, nor the packages of its interpreter.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MODULES_TIMEOUT_S, cwd="/", env=environ
        )
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            return {"reason": lines[-1] if lines else "exit code %d" % done.returncode, "missing": []}
        return dict(json.loads(done.stdout.decode()), reason="")
    except subprocess.TimeoutExpired:
        return {"reason": "it does not answer", "missing": []}
    except OSError as error:
        return {"reason": error.strerror or str(error), "missing": []}
    except ValueError:
        return {"reason": "it is no Python 3", "missing": []}


def _data(context: AgentContext, payload: Json) -> Json:
    return uploads.serve(context.home, payload)


def ask(context: AgentContext, payload: Json) -> Json:
    """Put a question to a run; see ``asking/kinds.py``."""
    run = run_id_of(payload)
    state = _state_now(context, run)
    if state["state"] != RUNNING:
        raise AgentError("CommandError", "Run %r is not running: %s." % (run, state["state"]), "ask.state")
    if state.get("node", pid_scope()) != pid_scope():
        raise AgentError("CommandError", "Run %r runs on another machine of this folder." % run, "ask.machine")

    def members() -> Set[int]:
        rows = process_table()
        pids = pids_with_mark("%s:" % run, rows, whole=False)
        leader = state.get("rank")
        if isinstance(leader, dict) and is_alive(leader):  # its children may have cleared their environment
            pids |= {leader["pid"], *descendants(leader["pid"], rows)}
        return pids

    job = damage.read_job(context.home, run) or {}
    return kinds.answer(AskedRun(run_folder(context.home, run), job, members), payload)


def _nodes(context: AgentContext, payload: Json) -> Json:
    return node_connector.serve(context, payload)


_CALLS: Dict[str, Callable[[AgentContext, Json], Json]] = {
    "submit": _submit,
    "cancel": _cancel,
    "poll": _poll,
    "list": list_runs,
    "info": _info,
    "delete": _delete,
    "pictures": _pictures,
    "left": _left,
    "configure": _configure,
    "data": _data,
    "environments": _environments,
    "modules": _modules,
    "monitor": _monitor,
    "nodes": _nodes,
    "project_sockets": _project_sockets,
    "ping": _ping,
    "ask": ask,
}
