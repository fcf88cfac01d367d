"""Sends what a run logs to the service's MLflow, in a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from .. import protocol, testing
from ..process_setup import wakeup_pipe
from ..protocol import TELEMETRY, AgentError, read_json, write_json
from .mlflow_batches import Item, JournalReader, TelemetryReader, behind

#: Seconds until a request is given up, and the longest pause that a Retry-After header may request.
REQUEST_TIMEOUT_S, MAX_PAUSE_S = 10.0, 60.0

_VERSIONS = ("/mlflow/v1.0/", "/mlflow/v2.0/")

_LOCAL = ("127.0.0.1", "localhost", "::1")


class RetryLater(Exception):
    """The endpoint cannot be reached or is busy; `pause`: seconds that it requested, or 0."""

    def __init__(self, reason: str, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.pause = pause


class Refused(Exception):
    """The endpoint does not accept the batch."""


class Closed(Exception):
    """The endpoint will not accept anything more from this job."""


class Endpoint:
    """The service's MLflow run of this job.

    Parameters
    ----------
    uri
        ``$MLFLOW_TRACKING_URI`` as the service set it.
    token
        Bearer token of the job; it is sent nowhere else.
    run_id
        The run's id at the service.
    """

    def __init__(self, uri: str, token: str, run_id: str) -> None:
        self.url = uri
        self.run_id = run_id
        self._token = token
        self._other_version = False
        self._opener: Optional[urllib.request.OpenerDirector] = None

    def log_batch(self, batch: Mapping[str, List[Dict[str, Any]]], timeout: float = REQUEST_TIMEOUT_S) -> None:
        """Send one batch.

        Raises
        ------
        RetryLater, Refused, Closed
            The batch was not accepted.
        """
        body = json.dumps(dict(batch, run_id=self.run_id), separators=(",", ":"), allow_nan=False).encode()
        request = urllib.request.Request(
            self.url + "/api/2.0/mlflow/runs/log-batch",
            body,
            {"Content-Type": "application/json", "Authorization": "Bearer " + self._token},
            method="POST",
        )
        if self._opener is None:  # not before the job was started: loading a trust store takes time
            trusted = urllib.request.HTTPSHandler(context=_trust(os.environ))
            self._opener = urllib.request.build_opener(_NoRedirect, trusted)
        try:
            with self._opener.open(request, timeout=max(0.1, timeout)) as response:
                response.read()
        except urllib.error.HTTPError as error:
            with error:
                self._raise_for_status(error, _message(error))
            self.log_batch(batch, timeout)  # with the other version of the path
        except http.client.HTTPException:
            raise RetryLater("the connection was cut") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise RetryLater(str(getattr(reason, "strerror", None) or reason or type(error).__name__)) from None

    def _raise_for_status(self, error: urllib.error.HTTPError, message: str) -> None:
        """Raise the exception for an HTTP error; return if the same batch is to be sent again immediately."""
        code = error.code
        if code in (401, 403):
            raise Closed("it rejected the job's token (%d)" % code) from None
        if code in (408, 425, 429) or code >= 500:
            raise RetryLater("it returned %d" % code, _retry_after(error.headers.get("Retry-After"))) from None
        if code == 404:
            # Two versions of the service's path are in use; the run exists under both.
            if not self._other_version and any(version in self.url for version in _VERSIONS):
                old, new = _VERSIONS if _VERSIONS[0] in self.url else _VERSIONS[::-1]
                self.url, self._other_version = self.url.replace(old, new), True
                return
            raise Closed("it has no such run (404)") from None
        if 300 <= code < 400:
            raise Closed("it returned %d" % code) from None
        raise Refused(message or "it returned %d" % code) from None


def endpoint_of(environ: Mapping[str, str]) -> Optional[Endpoint]:
    """Return the endpoint that the service sets for its jobs; ``None`` without one.

    The job's token is sent to the service only, not to the user's own tracking server.
    """
    token = environ.get("MLFLOW_TRACKING_TOKEN") or environ.get("AZUREML_RUN_TOKEN")
    run_id = environ.get("MLFLOW_RUN_ID") or environ.get("AZUREML_RUN_ID")
    uri = service_uri(environ.get("MLFLOW_TRACKING_URI", ""))
    return Endpoint(uri, token, run_id) if uri and token and run_id else None


def service_uri(text: str) -> str:
    """Return ``https://host/path`` of ``azureml://host/path?...``; nothing for a URI of another server."""
    try:
        parts = urllib.parse.urlsplit(text)
        host = parts.hostname or ""
    except ValueError:
        return ""
    scheme = "https" if parts.scheme == "azureml" else parts.scheme
    secure = scheme == "https" or (scheme == "http" and host in _LOCAL)
    if not host or not secure or not any(version in parts.path + "/" for version in _VERSIONS):
        return ""
    return urllib.parse.urlunsplit((scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected request would carry the token to another host."""

    def redirect_request(self, *what: Any, **more: Any) -> None:
        return None


def _trust(environ: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        path = environ.get(name, "")
        if path:  # as in Azure's own clients; Python reads the other two variables itself
            try:
                context.load_verify_locations(
                    path if os.path.isfile(path) else None, None if os.path.isfile(path) else path
                )
            except (OSError, ssl.SSLError):  # the other certificates are still tried
                pass
    return context


def _message(error: urllib.error.HTTPError) -> str:
    """Return the first sentence of an error's body: MLflow's own, or the service's ``{"Error": {"Message"}}``."""
    try:
        body = json.loads(error.read(1 << 16).decode("utf-8", "replace"))
        inner = body.get("Error") or body.get("error") or body
        text = inner.get("Message") or inner.get("message") or ""
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        return ""
    return " ".join(str(text).split())[:200]


def _retry_after(text: Optional[str]) -> float:
    try:
        return min(MAX_PAUSE_S, max(0.0, float(text or 0)))
    except ValueError:  # a date
        return 0.0


#: File from which a forwarder resumes after it was killed.
CURSOR = "telemetry/forwarded-%d.json"

#: Items of one batch. The service takes 250 metrics, MLflow 100 parameters and 100 tags.
LIMITS = {"metrics": 250, "params": 100, "tags": 100}

#: Refusals until a name is not sent again, and until nothing is sent again.
MAX_REFUSED_OF_NAME, MAX_REFUSED = 3, 300

#: Longest pause between two attempts, in periods.
MAX_PAUSE_PERIODS = 30.0


def period() -> float:
    """Return the seconds between batches: ``$AMLTRAIN_FORWARD_PERIOD``, else 10; 0 sends nothing at all."""
    return _seconds_from_env("AMLTRAIN_FORWARD_PERIOD", 10.0)


def last_timeout_s() -> float:
    """Return the seconds for the last batches after the end of the job: ``$AMLTRAIN_FORWARD_LAST``, else 30."""
    return _seconds_from_env("AMLTRAIN_FORWARD_LAST", 30.0)


def _seconds_from_env(name: str, default: float) -> float:
    try:
        return max(0.0, float(os.environ[name]))
    except (KeyError, ValueError):
        return default


class Task(NamedTuple):
    """What one process of the job forwards."""

    folder: str
    node: int
    nodes: int
    journal: str  #: path of the sink's journal, or empty
    run_id: str  #: the job's run in it
    telemetry: bool


def log_to_job(text: str) -> None:
    """Write one line into the job's log; never raises."""
    try:
        os.write(2, ("amltrain: %s\n" % text).encode("utf-8", "backslashreplace"))
    except OSError:  # nobody reads the log any more
        pass


class Forwarder:
    """Sends one process's data to the service, batch by batch; resumes where a killed forwarder stopped.

    Parameters
    ----------
    task, endpoint
        What is sent, and its destination.
    every
        Seconds per point of telemetry.
    on_message
        Called with a sentence for the job's log.
    """

    def __init__(
        self, task: Task, endpoint: Endpoint, every: float, on_message: Callable[[str], None] = log_to_job
    ) -> None:
        self.task, self.endpoint, self.on_message = task, endpoint, on_message
        self.path = os.path.join(task.folder, CURSOR % task.node)
        stored = self._cursor()
        self.journal: Optional[JournalReader] = None
        self.telemetry: Optional[TelemetryReader] = None
        if task.journal:
            self.journal = JournalReader(task.journal, task.run_id, int(stored.get("journal", 0)))
            self.journal.system = bool(stored.get("system"))
        if task.telemetry:
            path = os.path.join(task.folder, TELEMETRY % task.node)
            self.telemetry = TelemetryReader(
                path, task.node, task.nodes, every, int(stored.get("ticks", 0)), int(stored.get("step", 0))
            )
        self.items: List[Item] = []
        #: Of the current chunk: its first byte, and how many of its items were sent.
        self.begin, self.sent = (self.journal.offset if self.journal else 0), 0
        self.skip = int(stored.get("sent", 0))
        self.deadline: Optional[float] = None
        self.outage_logged = False  #: whether the job's log has its line about an unreachable service
        self.refused: Dict[Tuple[str, str], int] = {}
        self.ticks, self.step = int(stored.get("ticks", 0)), int(stored.get("step", 0))

    def _cursor(self) -> Mapping[str, Any]:
        try:
            return read_json(self.path) or {}
        except (OSError, AgentError):
            return {}

    def _save(self) -> None:
        value = {"schema": 1, "journal": self.begin, "sent": self.sent, "ticks": self.ticks, "step": self.step}
        value["system"] = self.journal.system if self.journal else False
        try:
            write_json(self.path, value)
        except OSError:  # then a restarted forwarder sends again what was sent
            pass

    # -- rounds -----------------------------------------------------------------

    def round(self, last: bool = False) -> None:
        """Send all waiting data.

        Raises
        ------
        RetryLater, Closed
            The endpoint does not accept it now, or never.
        """
        while self.journal is not None:
            if not self.items:
                self.begin, self.sent = self.journal.offset, 0
                self.items = self.journal.read()
                del self.items[: self.skip]
                self.sent, self.skip = self.skip, 0
                if not self.items:
                    if self.journal.offset == self.begin:
                        break
                    continue
            count = _fitting(self.items)
            self._deliver(self.items[:count])
            del self.items[:count]
            self.sent += count
            if not self.items:
                self.begin, self.sent = self.journal.offset, 0
            self._save()
        if self.telemetry is None:
            return
        self.telemetry.read(last)
        while self.telemetry.waiting:
            bucket = self.telemetry.waiting[0]
            if self.journal is None or not self.journal.system:  # the script's own system metrics take precedence
                for at in range(0, len(bucket.items), LIMITS["metrics"]):
                    self._deliver(bucket.items[at : at + LIMITS["metrics"]])
            self.telemetry.waiting.popleft()
            self.ticks, self.step = bucket.end, self.step + 1
            self._save()

    def _deliver(self, items: List[Item]) -> None:
        """Send a batch; of a refused batch, all items but the refused ones."""
        items = [item for item in items if self.refused.get((item.kind, item.body["key"]), 0) < MAX_REFUSED_OF_NAME]
        if not items:
            return
        batch: Dict[str, List[Dict[str, Any]]] = {"metrics": [], "params": [], "tags": []}
        for item in items:
            batch[item.kind].append(item.body)
        left = REQUEST_TIMEOUT_S if self.deadline is None else self.deadline - protocol.mono()
        if left <= 0:
            raise RetryLater("the job has ended")
        try:
            testing.hit("forward_batch")
            self.endpoint.log_batch(batch, min(REQUEST_TIMEOUT_S, left))
        except Refused as error:
            if len(items) > 1:
                middle = len(items) // 2
                self._deliver(items[:middle])
                self._deliver(items[middle:])
                return
            key = (items[0].kind, items[0].body["key"])
            if not self.refused:
                self.on_message("the service's MLflow does not accept %r: %s" % (key[1], error))
            self.refused[key] = self.refused.get(key, 0) + 1
            if sum(self.refused.values()) >= MAX_REFUSED:
                raise Closed("it has rejected too many requests") from None

    def has_unsent(self) -> bool:
        """Return whether some data was not sent."""
        waiting = self.journal is not None and (self.items or behind(self.journal.path, self.journal.offset))
        return bool(waiting or (self.telemetry is not None and self.telemetry.waiting))


def _fitting(items: List[Item]) -> int:
    """Return how many of the first items fit into one batch."""
    room = dict(LIMITS)
    for count, item in enumerate(items):
        if not room[item.kind] or count == LIMITS["metrics"]:
            return count
        room[item.kind] -= 1
    return len(items)


def run(task: Task, endpoint: Endpoint, last: bool = False) -> int:
    """Body of the forked process: a round each period, and a last one at SIGTERM.

    The process is forked with SIGTERM blocked, so that an early SIGTERM also leads to the last round.

    Parameters
    ----------
    last
        Whether the job has already ended.
    """
    every, wakeup = period(), wakeup_pipe(signal.SIGTERM)[0]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    parent = os.getppid()
    forwarder = Forwarder(task, endpoint, every)
    pause, failures = every, 0
    while True:
        if last or select.select([wakeup], [], [], pause)[0] or os.getppid() != parent:
            return _last(forwarder)
        try:
            forwarder.round()
            pause, failures = every, 0
        except RetryLater as error:
            failures += 1
            pause = max(error.pause, min(every * 2 ** (failures - 1), every * MAX_PAUSE_PERIODS))
            if failures == 3 and not forwarder.outage_logged:
                forwarder.outage_logged = True
                folder = _relative(task.folder)
                log_to_job(
                    "cannot write to the service's MLflow (%s); trying again; metrics are in %s" % (error, folder)
                )
        except Closed as error:
            _log_closed(forwarder, error)
            return _wait_for_end(wakeup)


def _last(forwarder: Forwarder) -> int:
    """Send the remaining data, for as long as `last_timeout_s` says."""
    until = forwarder.deadline = protocol.mono() + last_timeout_s()
    while True:
        try:
            forwarder.round(True)
            return 0
        except RetryLater as error:
            pause = max(error.pause, 0.25)
            if protocol.mono() + pause >= until:
                if forwarder.has_unsent() and not forwarder.outage_logged:
                    folder = _relative(forwarder.task.folder)
                    log_to_job("not all metrics reached the service's MLflow (%s); they are in %s" % (error, folder))
                return 0
            time.sleep(pause)
        except Closed as error:
            _log_closed(forwarder, error)
            return 0


def _log_closed(forwarder: Forwarder, error: Closed) -> None:
    folder = _relative(forwarder.task.folder)
    log_to_job("stopped writing to the service's MLflow: %s; metrics are in %s" % (error, folder))


def _relative(folder: str) -> str:
    try:
        return os.path.relpath(folder)
    except (OSError, ValueError):
        return folder


def _wait_for_end(wakeup: int) -> int:
    """Wait for the end: a helper that ended would be started again."""
    parent = os.getppid()
    while os.getppid() == parent:
        if select.select([wakeup], [], [], 5.0)[0]:
            break
    return 0
