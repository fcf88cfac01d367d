"""Preparation of a run before its process starts: environment built or image pulled, inputs downloaded."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from .. import protocol
from ..environments import build, docker
from ..environments.environment_store import EnvironmentStore, key_of
from ..protocol import CANCELED, ENVIRONMENT_LOG, FAILED, MARK, PREPARING, RUNNING, AgentError
from . import run_state
from .assignment import Assignment
from .container import Container
from .env_filter import without_kernel
from .outcome import Outcome
from .preparation_worker import PreparedRun, Worker, WorkerCanceled, WorkerChannel, WorkerLost, write_line

Json = Dict[str, Any]

#: Reasons of a run whose environment could not be built, or whose data could not be downloaded.
REASON, DATA_REASON = "environment", "data"
#: Prefixes of lines in the log of the run.
PREFIX, DATA_PREFIX = "[environment] ", "[data] "
#: Builds and downloads of one run: a result may be removed between its making and its use.
_MAX_TRIES = 3
#: Seconds after which the log of the run says that a download takes place.
_QUIET_S = 1.0


def prepare(run: PreparedRun) -> Optional[Outcome]:
    """Enter the state ``running`` as soon as environment or image, and data of the run exist; make them if necessary.

    Returns
    -------
    Outcome
        End of a run that cannot start; ``None`` for one that can.
    """
    task, state = run.task, run.state
    began = protocol.mono()
    for step in (_prepare_environment, _prepare_image, _prepare_data):
        failed = step(run)
        if failed is not None:
            return failed
    not_startable: Optional[Outcome] = run.host.await_nodes(run)
    if not_startable is not None:
        return not_startable
    state["detail"] = ""
    if state["state"] == PREPARING:
        run_state.enter(state, RUNNING, protocol.mono() - began)
    else:
        run_state.enter(state, RUNNING, task.queued_for, task.assigned)
    run.save()
    return None


def enter_preparing(run: PreparedRun, detail: str) -> None:
    """Enter the state ``preparing``, or change its detail."""
    if run.state["state"] != PREPARING:
        run_state.enter(run.state, PREPARING, run.task.queued_for, run.task.assigned)
    run.state["detail"] = detail
    run.save()


def _build_environ(task: Assignment) -> Dict[str, str]:
    """Return the variables of a build: those of the job, with its secrets, for example of a package index."""
    environ = without_kernel(task.environ)
    environ.update(task.job["env"])
    environ.update(task.secrets)
    environ[MARK] = task.mark  # so that a cancel finds the programs of the build
    return environ


# ---- environment and image


class _Words(NamedTuple):
    """What the preparation of an environment or an image says of itself."""

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


def _prepare_environment(run: PreparedRun) -> Optional[Outcome]:
    """Build the environment of the run unless it exists, and lock it until this process ends."""
    task = run.task
    spec = task.job.get("environment")
    if not spec:
        return None
    environ = _build_environ(task)
    store = EnvironmentStore(task.home)
    key = key_of(spec, environ.get("PATH", ""))
    seconds = 0.0
    try:
        if store.hold(key) is None:
            words = _BUILD.after(store.last_seconds(spec["label"]))
            enter_preparing(run, words.doing)
            began = protocol.mono()
            failed = _build_and_hold(run, words, store, key, spec, environ)
            seconds = protocol.mono() - began
            if failed is not None:
                return failed
    except AgentError as error:
        return _BUILD.failed(error.message)
    store.touch(key)
    run.state["environment"] = {"key": key, "path": store.path(key), "conda": bool(spec["conda"]), "seconds": seconds}
    return None


def _build_and_hold(
    run: PreparedRun, words: _Words, store: EnvironmentStore, key: str, spec: Json, environ: Dict[str, str]
) -> Optional[Outcome]:
    """Build the environment and lock it; return the end of a run that cannot start."""

    def action(log: build.BuildLog) -> str:
        log.shown("building %s (environment %s)" % (_shown(spec["label"]), key))
        marker = build.build(store, key, spec, environ, log)
        return "ready: %d packages in %.1f s" % (len(marker["packages"]), marker["seconds"])

    for _ in range(_MAX_TRIES):
        failed = _work(run, words, action, lambda: build.record_size(store, key))
        if failed is not None or store.hold(key) is not None:
            return failed
    return _BUILD.failed("it was deleted after each build")


def _shown(label: str) -> str:
    """Return a label without the folder of its file: logs are shared in notebooks."""
    words = label.split(" ")
    return " ".join([os.path.basename(words[0]), *words[1:]])


def _prepare_image(run: PreparedRun) -> Optional[Outcome]:
    """Pull the image of the run's container unless it is on this machine."""
    container: Optional[Container] = run.container
    if container is None:
        return None
    task, engine = run.task, container.engine
    image = task.job["container"]["image"]
    refused = None if engine.program else engine.refusal()
    identity = "" if refused else engine.image_id(image)
    if not refused and not identity:
        refused = engine.refusal()  # a pull would fail for the same reason, and say less
    if refused:
        return Outcome(FAILED, REASON, "%s: %s" % (_PULL.failure, refused.reason), None, None)
    if not identity:
        store = EnvironmentStore(task.home)
        words = _PULL.after(store.last_seconds(docker.label_of(image)))
        enter_preparing(run, words.doing)

        def pull(log: build.BuildLog) -> str:
            log.shown("pulling %s" % image)
            return "pulled in %.1f s" % docker.pull(store, engine, image, log)

        failed = _work(run, words, pull)
        if failed is not None:
            return failed
        identity = engine.image_id(image)
    run.state["container"] = {"name": container.name, "image": image, "id": identity}
    return None


def _work(
    run: PreparedRun, words: _Words, action: Callable[[build.BuildLog], str], after: Callable[[], None] = lambda: None
) -> Optional[Outcome]:
    """Do the work in a process of its own; return the end of a run that cannot start.

    Parameters
    ----------
    action
        Does the work, and returns the last line of its log.
    after
        Further work, for which the job need not wait.
    """
    folder, home, secrets = run.task.folder, run.task.home, tuple(run.task.secrets.values())
    worker = Worker(
        run,
        "preparation of the run",
        words.prefix,
        lambda channel: _work_body(folder, home, secrets, action, after, channel),
    )
    try:
        result = worker.wait(words.doing)
    except WorkerLost as error:
        return words.failed(str(error))
    except WorkerCanceled:
        return Outcome(CANCELED, CANCELED, words.canceled, None, None)
    return words.failed(result["error"]) if "error" in result else None


def _work_body(
    folder: str,
    home: str,
    secrets: Sequence[str],
    action: Callable[[build.BuildLog], str],
    after: Callable[[], None],
    channel: WorkerChannel,
) -> int:
    """Do the work in the forked process."""
    protocol.private_folder(EnvironmentStore(home).folder)
    whole = os.open(os.path.join(folder, ENVIRONMENT_LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def shown(line: str) -> None:
        channel.log(line)
        channel.progress(line)

    reporter = build.BuildLog(lambda line: write_line(whole, line), shown, channel.progress, secrets)
    result = build.result_of(lambda: action(reporter))
    if "error" in result:
        channel.log("failed: " + result["error"])
        channel.finish({"error": result["error"]})
        return 1
    channel.log(result["text"])
    channel.finish({})
    after()
    return 0


# ---- data


def _prepare_data(run: PreparedRun) -> Optional[Outcome]:
    """Download the inputs of the run that are web addresses; link them, and those that were sent, into its folder."""
    task = run.task
    if not task.job.get("downloads") and not task.job.get("uploads"):
        return None
    from ..data.cache import DataCache, key_of, link_path, shown_url

    run.state["inputs"] = {}
    for name, data in (task.job.get("uploads") or {}).items():
        if reason := _link_upload(run, name, data):
            return _data_failed(name, reason, "is missing")
    downloads = task.job.get("downloads")
    if not downloads:
        return None
    enter_preparing(run, "checking its data")
    cache = DataCache(task.home)
    for name, url in downloads.items():
        try:
            record = _download_and_hold(run, cache, key_of(url), name, url)
        except WorkerLost as error:
            return _data_failed(name, str(error))
        except WorkerCanceled:
            return Outcome(CANCELED, CANCELED, "canceled while its data was downloaded", None, None)
        except AgentError as error:
            return _data_failed(name, error.message)
        if "error" in record:
            return _data_failed(name, record["error"])
        if reason := _link(cache.path(key_of(url), record), link_path(task.folder, name, url)):
            return _data_failed(name, reason)
        facts = {"path": shown_url(url), "sha256": record["sha256"], "files": 1, "bytes": record["bytes"]}
        run.state["inputs"][name] = facts
    return None


def _link_upload(run: PreparedRun, name: str, data: Json) -> str:
    """Link data that was sent, and lock it until this process ends; return why that failed."""
    from ..data import uploads
    from ..data.cache import DataCache, input_path

    cache = DataCache(run.task.home)
    record = uploads.use(cache, data["key"])
    if record is None or cache.hold(data["key"], record) is None:
        return "it is no longer in %s. Submit again, which sends it again" % cache.folder
    run.state["inputs"][name] = {field: data.get(field) for field in ("path", "sha256", "files", "bytes")}
    return _link(cache.path(data["key"], record), input_path(run.task.folder, name, data["file"]))


def _link(path: str, link: str) -> str:
    """Make a link to data of the cache; return why that failed."""
    try:
        os.makedirs(os.path.dirname(link), mode=0o700, exist_ok=True)
        if os.path.lexists(link):  # of a try of this run whose supervisor was killed
            os.unlink(link)
        os.symlink(path, link)
    except OSError as error:
        return "the link %s cannot be created: %s" % (link, error.strerror or error)
    return ""


def _download_and_hold(run: PreparedRun, cache: Any, key: str, name: str, url: str) -> Json:
    """Download a file, or check that it is current, and lock it until this process ends; return its record."""
    environ = _build_environ(run.task)
    variables = dict(run.task.job["env"], **run.task.secrets)
    record: Json = {}
    for _ in range(_MAX_TRIES):
        worker = Worker(
            run,
            "download of the input %s" % name,
            DATA_PREFIX,
            lambda channel: _download_body(cache, name, url, environ, variables, channel),
        )
        record = worker.wait("downloading its input %s" % name)
        if "error" in record or cache.hold(key, record) is not None:
            return record
    return {"error": "it was removed from the cache after each download"}


def _data_failed(name: str, reason: str, what: str = "could not be downloaded") -> Outcome:
    return Outcome(FAILED, DATA_REASON, "its input %s %s: %s" % (name, what, reason), None, None)


def _download_body(
    cache: Any, name: str, url: str, environ: Dict[str, str], variables: Dict[str, str], channel: WorkerChannel
) -> int:
    """Download in the forked process, with the proxies of the submitter."""
    from ..data.cache import shown_url
    from ..data.download import DownloadFailed, download, size_text

    os.environ.update(environ)
    began = protocol.mono()
    logged: List[str] = []

    def report(text: str) -> None:
        if not logged and protocol.mono() - began >= _QUIET_S:
            logged.append(text)
            channel.log("%s: downloading %s: %s" % (name, shown_url(url), text))
        channel.progress(text)

    try:
        record = download(cache, url, environ, variables, report)
    except (DownloadFailed, AgentError) as error:
        channel.log("%s: failed: %s" % (name, error))
        channel.finish({"error": str(error)})
        return 1
    if record.get("new"):
        size, seconds = size_text(record["bytes"]), protocol.mono() - began
        channel.log("%s: %s in %.1f s, sha256 %s" % (name, size, seconds, record["sha256"]))
    elif record.get("checked") is False:
        channel.log("%s: not checked, because the server did not answer; sha256 %s" % (name, record["sha256"]))
    channel.finish({field: record[field] for field in ("version", "file", "sha256", "bytes")})
    return 0
