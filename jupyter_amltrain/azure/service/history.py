"""Run history: rows of jobs (see :mod:`..status`), and signed URLs of their files.

``GET {api}/history/v1.0{WS}/runs/{name}/details`` (the SDK's ``RunOperations.get_details``) returns most fields in
one request: status, times, error, tags, and a signed URL for each log file. The reason why a run waits or was
canceled (``queueingInfo``, ``cancelationReason``) is only in its record: ``GET .../runs/{name}``.
"""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from jupyter_amltrain.azure import errors
from jupyter_amltrain.azure import terms as azure_terms
from jupyter_amltrain.azure.service import http
from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.rpc import server

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace

T = TypeVar("T")
R = TypeVar("R")

#: Statuses of a waiting run, and of one that did not complete.
QUEUED = ("NotStarted", "Unapproved", "Starting", "Queued", "Scheduled", "Paused")
ENDED_BADLY = ("Failed", "Canceled")
#: Maximum concurrent requests of one operation.
_MAX_CONCURRENT_REQUESTS = 8
#: A signed URL is not used in the last seconds before it expires.
_SIGNATURE_MARGIN_S = 60.0
#: Tag with the state of the machines of a waiting job.
_MACHINES_TAG = "_aml_system_ComputeTargetStatus"

_pool = ThreadPoolExecutor(2 * _MAX_CONCURRENT_REQUESTS, "amltrain-azure-history")


def all_of(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call `function` for each item, some concurrently, on behalf of this thread's operation.

    The calling thread works too and uses only idle pool threads, so a download of ten thousand files does not
    block other operations.
    """
    if len(items) < 2:
        return [function(item) for item in items]
    call, results = server.current_call(), [None] * len(items)
    indices = iter(range(len(items)))
    stop = threading.Event()

    def run_some() -> None:
        with server.working_for(call):
            # `next` of a range iterator is atomic
            while not stop.is_set() and (index := next(indices, None)) is not None:
                try:
                    results[index] = function(items[index])  # type: ignore[call-overload]
                except BaseException:  # after any error, which the caller raises again
                    stop.set()  # remaining items need not be started
                    raise

    helpers = [_pool.submit(run_some) for _ in range(min(_MAX_CONCURRENT_REQUESTS, len(items)) - 1)]
    try:
        run_some()
    finally:
        busy = [helper for helper in helpers if not helper.cancel()]
        wait(busy)
    for helper in busy:
        helper.result()
    return results  # type: ignore[return-value]


def details(workspace: Workspace, name: str) -> dict[str, Any] | None:
    """Return the details of a job; ``None`` if run history has none of that name.

    The response is cached for :func:`recent_details`.
    """
    try:
        answer = workspace.data.get(
            f"{workspace.history}/runs/{quote(name, safe='')}/details",
            api=http.HISTORY,
            act=f"read job {name}",
        )
    except AmlTrainError as error:
        if errors.details_of(error).status == 404:
            return None
        raise
    body: dict[str, Any] = answer.json or {}
    _details_cache.put((workspace.name, name), body)
    return body


def record(workspace: Workspace, name: str) -> dict[str, Any] | None:
    """Return the record of a run, which lists no log files; ``None`` if no run has that name."""
    answer = workspace.data.get(
        f"{workspace.history}/runs/{quote(name, safe='')}", api=http.HISTORY, ok=(200, 404), act=f"read job {name}"
    )
    body: dict[str, Any] = answer.json or {}
    return body if answer.status == 200 else None


def poll_run(workspace: Workspace, name: str) -> dict[str, Any] | None:
    """Return the row of a job with the reason why it waits or ended; ``None`` if run history does not have it.

    A waiting run has no files yet, so only its record is requested.
    """
    key = (workspace.name, name)
    if key in _waiting_runs:
        run_record = record(workspace, name)
        if run_record is not None and run_record.get("status") in QUEUED:
            return row(name, run_record)
        _waiting_runs.discard(key)
    run_record = details(workspace, name)
    if run_record is None:
        return None
    current = row(name, run_record)
    if current["status"] not in (*QUEUED, *ENDED_BADLY):
        return current
    if current["status"] in QUEUED:
        _waiting_runs.add(key)
    return with_reason(current, record(workspace, name))


def with_reason(row_: Mapping[str, Any], record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a row with the fields that only the run's record has."""
    extra = row(str(row_["name"]), record or {})
    return {**row_, "why": extra["why"] or row_["why"], "error": row_["error"] or extra["error"]}


def recent_details(workspace: Workspace, name: str, age: float) -> dict[str, Any] | None:
    """Return :func:`details`, from the cache if at most `age` seconds old."""
    return _details_cache.get((workspace.name, name), age) or details(workspace, name)


def signed_urls(workspace: Workspace, name: str, experiment: str, prefix: str) -> dict[str, str]:
    """Return signed URLs of a job's files below `prefix`, including those that :func:`details` does not list.

    Path and shape: the SDK's ``RunArtifactsOperations``.
    """
    urls: dict[str, str] = {}
    token = ""
    while True:
        answer = workspace.data.get(
            f"{workspace.history}/experiments/{quote(experiment, safe='')}/runs/{quote(name, safe='')}"
            "/artifacts/prefix/contentinfo",
            api=http.HISTORY,
            params={"path": prefix, **({"continuationToken": token} if token else {})},
            ok=(200, 404),
            act=f"find files of job {name}",
        )
        page = answer.json if answer.status == 200 else {}
        for entry in (page or {}).get("value") or ():
            if entry.get("path") and entry.get("contentUri"):
                urls[str(entry["path"])] = str(entry["contentUri"])
        token = str((page or {}).get("continuationToken") or "")
        if not token:
            return urls


def row(name: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a job from its run history."""
    error = (run.get("error") or {}).get("error") or {}
    tags = run.get("tags") or {}
    properties = run.get("properties") or {}
    request = run.get("computeRequest") or {}
    warnings = [str(w.get("message") or "") for w in run.get("warnings") or () if isinstance(w, dict)]
    return {
        "name": name,
        "status": run.get("status"),
        "created": unix(run.get("createdTimeUtc") or run.get("createdUtc")),
        "started": unix(run.get("startTimeUtc")),
        "ended": unix(run.get("endTimeUtc")),
        "error": _innermost(error),
        "code": error.get("code") or "",
        "why": run.get("cancelationReason") or _queue_reason(run) or "; ".join(warnings)[:400],
        "nodes": _machines(tags),
        "attempt": run.get("currentAttemptId") or 1,
        "revision": run.get("statusRevision") or run.get("revision") or 0,
        "compute": run.get("target") or properties.get("_azureml.ClusterName") or "",
        "count": request.get("nodeCount") or (run.get("compute") or {}).get("instanceCount"),
        "archived": False,
    }


def row_of_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a job from ARM, which has fewer fields: no error, and times only as properties."""
    body = job.get("properties") or {}
    properties = body.get("properties") or {}
    # ARM returns the compute of command jobs only; amltrain's YAML jobs have it in a property.
    compute = str(properties.get("amltrain.compute", body.get("computeId")) or "")
    return {
        "name": job.get("name") or "",
        "status": body.get("status"),
        "created": unix((job.get("systemData") or {}).get("createdAt")),
        "started": unix(properties.get("StartTimeUtc")),
        "ended": unix(properties.get("EndTimeUtc")),
        "error": "",
        "code": "",
        "why": "",
        "nodes": _machines(body.get("tags") or {}),
        "attempt": 1,
        "revision": 0,
        "compute": compute.rpartition("/")[2],
        "count": (body.get("resources") or {}).get("instanceCount"),
        "limit": azure_terms.iso_seconds(str((body.get("limits") or {}).get("timeout") or "")),
        "archived": bool(body.get("isArchived")),
        "size": (body.get("resources") or {}).get("instanceType") or "",
    }


def merge_rows(row: Mapping[str, Any], more: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ARM's row, updated with the fields that run history has."""
    if more is None:
        return dict(row)
    updates = {key: value for key, value in more.items() if value not in (None, "", 0, {})}
    return {**row, **updates, "compute": row.get("compute") or updates.get("compute", ""), "archived": row["archived"]}


def unix(text: Any) -> float | None:
    """Parse Azure's time to Unix seconds: up to 7 decimals, optional ``Z`` or ``+00:00``; year 1 means no time."""
    if not isinstance(text, str) or text.startswith("0001"):
        return None
    head, dot, tail = text.strip().replace(" ", "T").rstrip("Z").partition(".")
    digits = "".join(c for c in tail.partition("+")[0] if c.isdigit())[:6]
    head = head.partition("+")[0]
    try:
        moment = datetime.datetime.fromisoformat(head).replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        return None
    return moment.timestamp() + (float(f"0.{digits}") if dot and digits else 0.0)


def _innermost(error: Mapping[str, Any]) -> str:
    return str(error.get("message") or "").strip()


def _queue_reason(run: Mapping[str, Any]) -> str:
    info = run.get("queueingInfo") or {}
    return str(info.get("message") or info.get("code") or "") if isinstance(info, dict) else ""


def _machines(tags: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value = json.loads(tags.get(_MACHINES_TAG) or "{}")
    except (TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


class _DetailsCache:
    """Cache of details responses. They contain signed URLs, which are secrets and are kept in memory only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str], tuple[float, float, dict[str, Any]]] = {}

    def put(self, key: tuple[str, str], response: dict[str, Any]) -> None:
        with self._lock:
            if len(self._entries) > 200:
                del self._entries[next(iter(self._entries))]
            self._entries[key] = time.time(), _expiry((response.get("logFiles") or {}).values()), response

    def get(self, key: tuple[str, str], age: float) -> dict[str, Any] | None:
        with self._lock:
            fetched_at, expires, response = self._entries.get(key, (0.0, 0.0, {}))
        now = time.time()
        return response if response and now - fetched_at <= age and expires > now else None


def _expiry(urls: Iterable[str]) -> float:
    """Return when the first of some signed URLs expires (their ``se``), less a margin."""
    ends = [unix((parse_qs(urlsplit(url).query).get("se") or [""])[0]) for url in urls]
    return min((end - _SIGNATURE_MARGIN_S for end in ends if end is not None), default=time.time() + 600)


_details_cache = _DetailsCache()
#: Workspace and name of runs that were waiting at the last poll.
_waiting_runs: set[tuple[str, str]] = set()
