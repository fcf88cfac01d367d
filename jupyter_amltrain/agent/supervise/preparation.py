"""Preparation of a run: its environment is built before its process starts."""

from __future__ import annotations

import json
import os
import select
from typing import TYPE_CHECKING, Any, Dict, Optional

from .. import protocol
from ..environments import build
from ..environments.store import EnvironmentStore, key_of
from ..process_setup import drain
from ..protocol import CANCELED, ENVIRONMENT_LOG, FAILED, LOG, MARK, PREPARING, RUNNING, AgentError
from . import run_state
from .env_filter import without_kernel
from .helpers import Helper
from .outcome import Outcome
from .process import Assignment

if TYPE_CHECKING:
    from .supervisor import Supervisor

Json = Dict[str, Any]

#: Reason of a run whose environment could not be built.
REASON = "environment"
#: Prefix of the build's lines in the log of the run.
PREFIX = "[environment] "
#: Seconds between two changes of the run's state by the progress of a build.
_PROGRESS_INTERVAL_S = 0.5
#: Builds of one run: an environment may be removed between its build and its use.
_MAX_BUILDS = 3


def prepare(run: Supervisor) -> Optional[Outcome]:
    """Enter the state ``running`` as soon as the environment of the run exists; build it if necessary.

    Returns
    -------
    Outcome
        End of a run that cannot start; ``None`` for one that can.
    """
    task, state = run.task, run.state
    spec = task.job.get("environment")
    if not spec:
        run_state.enter(state, RUNNING, task.queued_for, task.assigned)
        run.save()
        return None
    environ = _build_environ(task)
    store = EnvironmentStore(task.home)
    key = key_of(spec, environ.get("PATH", ""))
    seconds = 0.0
    try:
        held = store.hold(key)
        if held is None:
            run_state.enter(state, PREPARING, task.queued_for, task.assigned)
            state["detail"] = "building its environment"
            run.save()
            began = protocol.mono()
            failed = _build_and_hold(run, store, key, spec, environ)
            seconds = protocol.mono() - began
            if failed is not None:
                return failed
    except AgentError as error:
        return _failed(error.message)
    store.touch(key)
    state["environment"] = {"key": key, "path": store.path(key), "conda": bool(spec["conda"]), "seconds": seconds}
    state["detail"] = ""
    if state["state"] == PREPARING:
        run_state.enter(state, RUNNING, seconds)
    else:
        run_state.enter(state, RUNNING, task.queued_for, task.assigned)
    run.save()
    return None


def _build_and_hold(
    run: Supervisor, store: EnvironmentStore, key: str, spec: Json, environ: Dict[str, str]
) -> Optional[Outcome]:
    """Build the environment and lock it until this process ends; return the end of a run that cannot start."""
    for _ in range(_MAX_BUILDS):
        builder = _Builder(run, store, key, spec, environ)
        failed = builder.wait()
        if failed is not None or store.hold(key) is not None:
            return failed
    return _failed("it was deleted after each build")


def _build_environ(task: Assignment) -> Dict[str, str]:
    """Return the variables of a build: those of the job, with its secrets, for example of a package index."""
    environ = without_kernel(task.environ)
    environ.update(task.job["env"])
    environ.update(task.secrets)
    environ[MARK] = task.mark  # so that a cancel finds the programs of the build
    return environ


def _failed(reason: str) -> Outcome:
    detail = "its environment could not be built: %s; the whole output is in %s" % (reason.rstrip("."), ENVIRONMENT_LOG)
    return Outcome(FAILED, REASON, detail, None, None)


class _Builder:
    """A forked process that builds an environment; it sends lines about its progress, and its result."""

    def __init__(self, run: Supervisor, store: EnvironmentStore, key: str, spec: Json, environ: Dict[str, str]) -> None:
        self._run = run
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._helper = Helper("builder of the environment")
        folder = run.task.folder
        self._helper.fork(folder, lambda: _body(folder, store, key, spec, environ, writer), [writer])
        os.close(writer)

    def wait(self) -> Optional[Outcome]:
        """Wait for the result; the end of a run that cannot start, or ``None``."""
        run = self._run
        if not self._helper.pid:
            os.close(self._reader)
            return _failed("no process could be started")
        run.poll.register(self._reader, select.POLLIN)
        shown = protocol.mono()
        partial = b""
        result: Optional[Json] = None
        is_open = True
        try:
            while is_open and result is None:
                is_readable = self._reader in run.listen(_PROGRESS_INTERVAL_S)
                if run.should_end():
                    return Outcome(CANCELED, CANCELED, "canceled while its environment was built", None, None)
                if not is_readable:
                    continue
                data = drain(self._reader)
                is_open = bool(data)
                *lines, partial = (partial + data).split(b"\n")
                for line in lines:
                    message = json.loads(line.decode())
                    result = message.get("result", result)
                    text = message.get("progress")
                    if text and protocol.mono() - shown >= _PROGRESS_INTERVAL_S:
                        shown = protocol.mono()
                        run.state["detail"] = "building its environment: %s" % text
                        run.save()
        finally:
            run.poll.unregister(self._reader)
            os.close(self._reader)
        if result is None:
            return _failed("the process that built it was killed")
        return _failed(result["error"]) if "error" in result else None


def _body(folder: str, store: EnvironmentStore, key: str, spec: Json, environ: Dict[str, str], writer: int) -> int:
    """Build in the forked process; its result goes to `writer`."""
    protocol.private_folder(store.folder)
    whole = os.open(os.path.join(folder, ENVIRONMENT_LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    log = os.open(os.path.join(folder, LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def shown(line: str) -> None:
        _write(log, PREFIX + line)
        _send({"progress": line})

    def _send(message: Json) -> None:
        try:
            os.write(writer, json.dumps(message).encode() + b"\n")
        except OSError:  # the supervisor has ended the build
            pass

    shown("building %s (environment %s)" % (spec["label"], key))
    reporter = build.BuildLog(lambda line: _write(whole, line), shown)
    result = build.result_of(lambda: build.build(store, key, spec, environ, reporter))
    if "error" in result:
        _write(log, PREFIX + "failed: " + result["error"])
        _send({"result": {"error": result["error"]}})
        return 1
    marker = result["marker"]
    _write(log, PREFIX + "ready: %d packages in %.1f s" % (len(marker["packages"]), marker["seconds"]))
    _send({"result": {}})
    os.close(writer)
    build.record_size(store, key)
    return 0


def _write(handle: int, line: str) -> None:
    try:
        os.write(handle, line.encode("utf-8", "replace") + b"\n")
    except OSError:  # a full disk: the build reports it
        pass
