"""Preparation of a run: its environment is built, or its image pulled, before its process starts."""

from __future__ import annotations

import json
import os
import select
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional

from .. import protocol
from ..environments import build, docker
from ..environments.store import EnvironmentStore, key_of
from ..process_setup import drain
from ..protocol import CANCELED, ENVIRONMENT_LOG, FAILED, LOG, MARK, PREPARING, RUNNING, AgentError
from . import run_state
from .container import Container
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
    """Enter the state ``running`` as soon as the environment or image of the run exists; build or pull it if necessary.

    Returns
    -------
    Outcome
        End of a run that cannot start; ``None`` for one that can.
    """
    task, state = run.task, run.state
    if run.container is not None:
        return _prepare_image(run, run.container)
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
            words = _BUILD.after(store.last_seconds(spec["label"]))
            state["detail"] = words.doing
            run.save()
            began = protocol.mono()
            failed = _build_and_hold(run, words, store, key, spec, environ)
            seconds = protocol.mono() - began
            if failed is not None:
                return failed
    except AgentError as error:
        return _BUILD.failed(error.message)
    store.touch(key)
    state["environment"] = {"key": key, "path": store.path(key), "conda": bool(spec["conda"]), "seconds": seconds}
    state["detail"] = ""
    _enter_running(run, seconds)
    return None


def _enter_running(run: Supervisor, seconds: float) -> None:
    """Enter the state ``running``, `seconds` after the preparation began."""
    if run.state["state"] == PREPARING:
        run_state.enter(run.state, RUNNING, seconds)
    else:
        run_state.enter(run.state, RUNNING, run.task.queued_for, run.task.assigned)
    run.save()


def _prepare_image(run: Supervisor, container: Container) -> Optional[Outcome]:
    """Enter the state ``running`` as soon as the image of the run's container is on this machine."""
    task, state, engine = run.task, run.state, container.engine
    image, seconds = task.job["container"]["image"], 0.0
    refused = None if engine.program else engine.refusal()
    identity = "" if refused else engine.image_id(image)
    if not refused and not identity:
        refused = engine.refusal()  # a pull would fail for the same reason, and say less
    if refused:
        return Outcome(FAILED, REASON, "%s: %s" % (_PULL.failure, refused.reason), None, None)
    if not identity:
        run_state.enter(state, PREPARING, task.queued_for, task.assigned)
        store = EnvironmentStore(task.home)
        words = _PULL.after(store.last_seconds(docker.label_of(image)))
        state["detail"] = words.doing
        run.save()
        began = protocol.mono()

        def pull(log: build.BuildLog) -> str:
            log.shown("pulling %s" % image)
            return "pulled in %.1f s" % docker.pull(store, engine, image, log)

        failed = _Builder(run, words, pull).wait()
        if failed is not None:
            return failed
        seconds, identity = protocol.mono() - began, engine.image_id(image)
    state["container"] = {"name": container.name, "image": image, "id": identity}
    state["detail"] = ""
    _enter_running(run, seconds)
    return None


def _build_and_hold(
    run: Supervisor, words: _Words, store: EnvironmentStore, key: str, spec: Json, environ: Dict[str, str]
) -> Optional[Outcome]:
    """Build the environment and lock it until this process ends; return the end of a run that cannot start."""

    def after() -> None:
        build.record_size(store, key)

    for _ in range(_MAX_BUILDS):
        failed = _Builder(run, words, lambda log: _build(store, key, spec, environ, log), after).wait()
        if failed is not None or store.hold(key) is not None:
            return failed
    return _BUILD.failed("it was deleted after each build")


def _build(store: EnvironmentStore, key: str, spec: Json, environ: Dict[str, str], log: build.BuildLog) -> str:
    """Build an environment; return the last line of its log."""
    log.shown("building %s (environment %s)" % (spec["label"], key))
    marker = build.build(store, key, spec, environ, log)
    return "ready: %d packages in %.1f s" % (len(marker["packages"]), marker["seconds"])


def _build_environ(task: Assignment) -> Dict[str, str]:
    """Return the variables of a build: those of the job, with its secrets, for example of a package index."""
    environ = without_kernel(task.environ)
    environ.update(task.job["env"])
    environ.update(task.secrets)
    environ[MARK] = task.mark  # so that a cancel finds the programs of the build
    return environ


class _Words(NamedTuple):
    """What a preparation says of itself."""

    prefix: str  #: of its lines in the log of the run
    doing: str
    canceled: str
    failure: str

    def after(self, seconds: Optional[float]) -> _Words:
        """Return the words with how long the last preparation under the same name took."""
        if seconds is None:
            return self
        minutes, rest = divmod(int(round(seconds)), 60)
        took = "%d min %d s" % (minutes, rest) if minutes else "%d s" % max(1, rest)
        return self._replace(doing="%s (the last time took %s)" % (self.doing, took))

    def failed(self, reason: str) -> Outcome:
        """Return the end of a run whose preparation failed."""
        detail = "%s: %s; the whole output is in %s" % (self.failure, reason.rstrip("."), ENVIRONMENT_LOG)
        return Outcome(FAILED, REASON, detail, None, None)


_BUILD = _Words(
    PREFIX,
    "building its environment",
    "canceled while its environment was built",
    "its environment could not be built",
)
_PULL = _Words("[image] ", "pulling its image", "canceled while its image was pulled", "its image cannot be used")


class _Builder:
    """A forked process that builds an environment or pulls an image; it sends its progress and its result.

    Parameters
    ----------
    action
        Does the work, and returns the last line of its log.
    after
        Further work, for which the job need not wait.
    """

    def __init__(
        self,
        run: Supervisor,
        words: _Words,
        action: Callable[[build.BuildLog], str],
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._words = run, words
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._helper = Helper("preparation of the run")
        folder, home = run.task.folder, run.task.home
        self._helper.fork(folder, lambda: _body(folder, home, words, action, after, writer), [writer])
        os.close(writer)

    def wait(self) -> Optional[Outcome]:
        """Wait for the result; the end of a run that cannot start, or ``None``."""
        run = self._run
        if not self._helper.pid:
            os.close(self._reader)
            return self._words.failed("no process could be started")
        run.poll.register(self._reader, select.POLLIN)
        shown, progress = protocol.mono(), ""
        partial = b""
        result: Optional[Json] = None
        is_open = True
        try:
            while is_open and result is None:
                is_readable = self._reader in run.listen(_PROGRESS_INTERVAL_S)
                if run.should_end():
                    return Outcome(CANCELED, CANCELED, self._words.canceled, None, None)
                if progress and protocol.mono() - shown >= _PROGRESS_INTERVAL_S:
                    run.state["detail"] = "%s: %s" % (self._words.doing, progress)
                    shown, progress = protocol.mono(), ""
                    run.save()
                if not is_readable:
                    continue
                data = drain(self._reader)
                is_open = bool(data)
                *lines, partial = (partial + data).split(b"\n")
                for line in lines:
                    message = json.loads(line.decode())
                    result = message.get("result", result)
                    progress = message.get("progress", progress)
        finally:
            run.poll.unregister(self._reader)
            os.close(self._reader)
        if result is None:
            return self._words.failed("the process that prepared it was killed")
        return self._words.failed(result["error"]) if "error" in result else None


def _body(
    folder: str,
    home: str,
    words: _Words,
    action: Callable[[build.BuildLog], str],
    after: Callable[[], None],
    writer: int,
) -> int:
    """Do the work of a `_Builder` in the forked process; its result goes to `writer`."""
    protocol.private_folder(EnvironmentStore(home).folder)
    whole = os.open(os.path.join(folder, ENVIRONMENT_LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    log = os.open(os.path.join(folder, LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def shown(line: str) -> None:
        _write(log, words.prefix + line)
        _send({"progress": line})

    def _send(message: Json) -> None:
        try:
            os.write(writer, json.dumps(message).encode() + b"\n")
        except OSError:  # the supervisor has ended the build
            pass

    reporter = build.BuildLog(lambda line: _write(whole, line), shown, lambda text: _send({"progress": text}))
    result = build.result_of(lambda: action(reporter))
    if "error" in result:
        _write(log, words.prefix + "failed: " + result["error"])
        _send({"result": {"error": result["error"]}})
        return 1
    _write(log, words.prefix + result["text"])
    _send({"result": {}})
    os.close(writer)
    after()
    return 0


def _write(handle: int, line: str) -> None:
    try:
        os.write(handle, line.encode("utf-8", "replace") + b"\n")
    except OSError:  # a full disk: the build reports it
        pass
