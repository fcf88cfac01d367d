"""Run history: what became of a job, as rows (see :mod:`..job_rows`), and where its files lie.

``GET {api}/history/v1.0{WS}/runs/{name}/details`` (the SDK's ``RunOperations.get_details``) says most of it at
once: status, times, error, tags, and a signed address for each log file. Why a run waits or was canceled
(``queueingInfo``, ``cancelationReason``) is in its record alone: ``GET .../runs/{name}``.
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

from jupyter_amltrain.backends.azureml import computed, faults
from jupyter_amltrain.backends.azureml.process import rest, serve
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.process.cloud import Workspace

T = TypeVar("T")
R = TypeVar("R")

#: Statuses of a run that waits, and of one that did not complete.
QUEUED = ("NotStarted", "Unapproved", "Starting", "Queued", "Scheduled", "Paused")
ENDED_BADLY = ("Failed", "Canceled")
#: Requests at the same time for one operation.
AT_ONCE = 8
#: A signed address is not used in the last seconds of its life.
_SPARE = 60.0
#: What the service keeps about the machines of a job that waits.
_MACHINES = "_aml_system_ComputeTargetStatus"

_pool = ThreadPoolExecutor(2 * AT_ONCE, "amltrain-azure-history")


def all_of(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """`work` of each, some at the same time, for the operation of this thread.

    This thread works too, and takes no more help than there is: a download of ten thousand files keeps
    nobody else waiting behind it.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    call, found = serve.current(), [None] * len(items)
    left = iter(range(len(items)))
    failed = threading.Event()

    def some() -> None:
        with serve.working_for(call):
            # `next` of one iterator is whole in every thread
            while not failed.is_set() and (at := next(left, None)) is not None:
                try:
                    found[at] = work(items[at])  # type: ignore[call-overload]
                except BaseException:
                    failed.set()  # the others need not begin any more
                    raise

    helpers = [_pool.submit(some) for _ in range(min(AT_ONCE, len(items)) - 1)]
    try:
        some()
    finally:
        busy = [helper for helper in helpers if not helper.cancel()]
        wait(busy)
    for helper in busy:
        helper.result()
    return found  # type: ignore[return-value]


def details(workspace: Workspace, name: str) -> dict[str, Any] | None:
    """What run history says of a job; ``None`` when it has none of that name.

    The answer is also kept here for :func:`recent`.
    """
    try:
        answer = workspace.data.get(
            f"{workspace.history}/runs/{quote(name, safe='')}/details",
            api=rest.HISTORY,
            act=f"look at job {name}",
        )
    except AmlTrainError as error:
        if faults.told(error).status == 404:
            return None
        raise
    found: dict[str, Any] = answer.json or {}
    _looks.put((workspace.name, name), found)
    return found


def record(workspace: Workspace, name: str) -> dict[str, Any] | None:
    """Return the record of a run, which has no log files; ``None`` when the run does not exist."""
    answer = workspace.data.get(
        f"{workspace.history}/runs/{quote(name, safe='')}", api=rest.HISTORY, ok=(200, 404), act=f"look at job {name}"
    )
    found: dict[str, Any] = answer.json or {}
    return found if answer.status == 200 else None


def look(workspace: Workspace, name: str) -> dict[str, Any] | None:
    """Return the row of a job with the reason why it waits or ended; ``None`` when run history does not know it.

    A run that waits has no files yet: while it does, its record alone is asked for.
    """
    key = (workspace.name, name)
    if key in _waiting:
        found = record(workspace, name)
        if found is not None and found.get("status") in QUEUED:
            return row(name, found)
        _waiting.discard(key)
    found = details(workspace, name)
    if found is None:
        return None
    now = row(name, found)
    if now["status"] not in (*QUEUED, *ENDED_BADLY):
        return now
    if now["status"] in QUEUED:
        _waiting.add(key)
    return with_reason(now, record(workspace, name))


def with_reason(row_: Mapping[str, Any], record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a row with what only the record of its run says."""
    told = row(str(row_["name"]), record or {})
    return {**row_, "why": told["why"] or row_["why"], "error": row_["error"] or told["error"]}


def recent(workspace: Workspace, name: str, age: float) -> dict[str, Any] | None:
    """As :func:`details`; what was told at most `age` seconds ago is not asked for again."""
    return _looks.get((workspace.name, name), age) or details(workspace, name)


def contents(workspace: Workspace, name: str, experiment: str, prefix: str) -> dict[str, str]:
    """Signed addresses of a job's files below `prefix`, whatever :func:`details` lists.

    Path and shape: the SDK's ``RunArtifactsOperations``.
    """
    found: dict[str, str] = {}
    token = ""
    while True:
        answer = workspace.data.get(
            f"{workspace.history}/experiments/{quote(experiment, safe='')}/runs/{quote(name, safe='')}"
            "/artifacts/prefix/contentinfo",
            api=rest.HISTORY,
            params={"path": prefix, **({"continuationToken": token} if token else {})},
            ok=(200, 404),
            act=f"look for files of job {name}",
        )
        page = answer.json if answer.status == 200 else {}
        for one in (page or {}).get("value") or ():
            if one.get("path") and one.get("contentUri"):
                found[str(one["path"])] = str(one["contentUri"])
        token = str((page or {}).get("continuationToken") or "")
        if not token:
            return found


def row(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a job from run history."""
    error = (found.get("error") or {}).get("error") or {}
    tags = found.get("tags") or {}
    properties = found.get("properties") or {}
    request = found.get("computeRequest") or {}
    warnings = [str(w.get("message") or "") for w in found.get("warnings") or () if isinstance(w, dict)]
    return {
        "name": name,
        "status": found.get("status"),
        "created": unix(found.get("createdTimeUtc") or found.get("createdUtc")),
        "started": unix(found.get("startTimeUtc")),
        "ended": unix(found.get("endTimeUtc")),
        "error": _innermost(error),
        "code": error.get("code") or "",
        "why": found.get("cancelationReason") or _queueing(found) or "; ".join(warnings)[:400],
        "nodes": _machines(tags),
        "attempt": found.get("currentAttemptId") or 1,
        "revision": found.get("statusRevision") or found.get("revision") or 0,
        "compute": found.get("target") or properties.get("_azureml.ClusterName") or "",
        "count": request.get("nodeCount") or (found.get("compute") or {}).get("instanceCount"),
        "archived": False,
    }


def row_of_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a job from ARM, which says less: no error, and times only as properties."""
    body = job.get("properties") or {}
    properties = body.get("properties") or {}
    # Of our own YAML jobs a property says it: ARM tells the compute of command jobs alone.
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
        "limit": computed.seconds(str((body.get("limits") or {}).get("timeout") or "")),
        "archived": bool(body.get("isArchived")),
        "size": (body.get("resources") or {}).get("instanceType") or "",
    }


def completed(row: Mapping[str, Any], more: Mapping[str, Any] | None) -> dict[str, Any]:
    """ARM's row with what run history knows better."""
    if more is None:
        return dict(row)
    better = {key: value for key, value in more.items() if value not in (None, "", 0, {})}
    return {**row, **better, "compute": row.get("compute") or better.get("compute", ""), "archived": row["archived"]}


def unix(text: Any) -> float | None:
    """Unix seconds of a time of Azure: up to 7 decimals, ``Z``, ``+00:00`` or nothing; year 1 is no time."""
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


def _queueing(found: Mapping[str, Any]) -> str:
    info = found.get("queueingInfo") or {}
    return str(info.get("message") or info.get("code") or "") if isinstance(info, dict) else ""


def _machines(tags: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value = json.loads(tags.get(_MACHINES) or "{}")
    except (TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


class _Looks:
    """The last answers, which hold signed addresses: secrets live here only."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[tuple[str, str], tuple[float, float, dict[str, Any]]] = {}

    def put(self, key: tuple[str, str], found: dict[str, Any]) -> None:
        with self._guard:
            if len(self._known) > 200:
                del self._known[next(iter(self._known))]
            self._known[key] = time.time(), _ends((found.get("logFiles") or {}).values()), found

    def get(self, key: tuple[str, str], age: float) -> dict[str, Any] | None:
        with self._guard:
            at, until, found = self._known.get(key, (0.0, 0.0, {}))
        now = time.time()
        return found if found and now - at <= age and until > now else None


def _ends(urls: Iterable[str]) -> float:
    """When the first of some signed addresses ends (their ``se``), less some seconds."""
    ends = [unix((parse_qs(urlsplit(url).query).get("se") or [""])[0]) for url in urls]
    return min((end - _SPARE for end in ends if end is not None), default=time.time() + 600)


_looks = _Looks()
#: Workspace and name of runs that waited at the last look.
_waiting: set[tuple[str, str]] = set()
