"""Metrics of a job from the service's MLflow, and of machines from Azure Monitor, in the forms of a run folder."""

from __future__ import annotations

import datetime
import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.agent.telemetry.gpu_columns import TICKS, mlflow_name
from jupyter_amltrain.agent.telemetry.host import COLUMNS as HOST_COLUMNS
from jupyter_amltrain.backends.azureml import errors
from jupyter_amltrain.backends.azureml.job_body import tracking_id
from jupyter_amltrain.backends.azureml.service import artifacts, history
from jupyter_amltrain.backends.azureml.service.account import setting
from jupyter_amltrain.backends.azureml.service.mirror_files import MirrorFiles
from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.service.cloud import Workspace
    from jupyter_amltrain.backends.azureml.service.operations import ServiceCall

#: MLflow's own names of system metrics -> column of a tick, and factor.
_HOST = {
    "cpu_utilization_percentage": ("host_cpu", 1.0),
    "system_memory_usage_megabytes": ("host_memory", 1e6),
    "network_receive_megabytes": ("net_rx", 1e6),
    "network_transmit_megabytes": ("net_tx", 1e6),
    "run_cpu_utilization_percentage": ("cpu", 1.0),
    "run_memory_usage_megabytes": ("memory", 1e6),
}
_GPU = {mlflow_name(name)[0]: (name, 1 / mlflow_name(name)[1]) for name in ("util", "memory", "power")}
_SYSTEM = re.compile(r"system/(?:node_(?P<node>\d+)/)?(?:gpu_(?P<gpu>\d+)_)?(?P<name>\w+)")
#: As the agent writes them, so that both are one file.
_COLUMNS = tuple(name for name, _ in HOST_COLUMNS)
_UNITS = tuple(unit for _, unit in HOST_COLUMNS)
_GPU_COLUMNS = tuple(column.name for column in TICKS)
_GPU_UNITS = tuple(column.unit for column in TICKS)
#: Points of one record.
_BATCH = 500
#: Points within this (ms) are one tick.
_TICK = 500

#: Azure Monitor's metrics of a workspace -> column of a GPU, and factor; one value a minute.
_MONITORED = {
    "GpuUtilizationPercentage": ("util", 1.0),
    "GpuMemoryUtilizationMegabytes": ("memory", 1e6 / 2**20),
    "CpuUtilizationPercentage": ("host_cpu", 1.0),
    "CpuMemoryUtilizationMegabytes": ("host_memory", 1e6),
}
MONITOR_API = "2018-01-01"


class Fetched(NamedTuple):
    """All points of the metrics that have new ones, and new parameters."""

    points: dict[str, list[dict[str, Any]]]
    params: list[dict[str, str]]
    own: bool


def take(mirror: MirrorFiles, came: Fetched, init: Mapping[str, Any]) -> None:
    """Append what is new of it.

    Parameters
    ----------
    init
        See :func:`.records.add_records`.
    """
    facts = mirror.facts.setdefault("mlflow", {})
    seen: dict[str, list[Any]] = facts.setdefault("seen", {})
    found: dict[str, list[dict[str, Any]]] = {}
    for key, points in came.points.items():
        count = int((seen.get(key) or [0])[0])
        found[key] = points[count:]
        if points:
            seen[key] = [max(count, len(points)), points[-1].get("timestamp"), points[-1].get("step")]
    if came.own:
        params = [param for param in came.params if param["key"] not in facts.setdefault("params", [])]
        facts["params"] = [*facts.get("params", []), *(param["key"] for param in params)]
        mine = {key: points for key, points in found.items() if not key.startswith("system/")}
        add_records(mirror, list(_journal(mine, params, str(init["id"]))), dict(init))
    for node, (header, rows) in telemetry({k: p for k, p in found.items() if k.startswith("system/")}).items():
        add_ticks(mirror, node, header, rows)


class Points:
    """What MLflow knows of a run and the mirror does not yet."""

    def __init__(self, workspace: Workspace, name: str) -> None:
        self._workspace, self._name = workspace, name

    def _get(self, what: str, **params: Any) -> dict[str, Any]:
        answer = self._workspace.data.get(
            f"{self._workspace.mlflow}/api/2.0/mlflow/{what}",
            params={"run_id": self._name, **params},
            act=f"read the metrics of job {self._name}",
        )
        return answer.json or {}

    def fetch(self, known: Mapping[str, Any], *, system: bool, own: bool) -> Fetched:
        """Ask for new points.

        Parameters
        ----------
        known
            ``facts["mlflow"]`` of the mirror.
        system
            ``system/*`` too.
        own
            Metrics and parameters of the script too.
        """
        try:
            data = (self._get("runs/get").get("run") or {}).get("data") or {}
        except AmlTrainError as error:
            if errors.details_of(error).status in (400, 404):
                return Fetched({}, [], own)  # a job that logs nothing may have no run there
            raise
        seen = known.get("seen") or {}
        keys = [
            str(m["key"])
            for m in data.get("metrics") or ()
            if (system if str(m["key"]).startswith("system/") else own)
            and (seen.get(m["key"]) or [0, None, None])[1:] != [m.get("timestamp"), m.get("step")]
        ]
        params = [
            {"key": str(p["key"]), "value": str(p.get("value") or "")}
            for p in data.get("params") or ()
            if own and p["key"] not in (known.get("params") or ())
        ]
        return Fetched(dict(zip(keys, history.all_of(self._points, keys), strict=True)), params, own)

    def _points(self, key: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        token = ""
        while True:
            page = self._get("metrics/get-history", metric_key=key, **({"page_token": token} if token else {}))
            found += page.get("metrics") or ()
            token = str(page.get("next_page_token") or "")
            if not token:
                # The service promises no order; ours is that in which they were made.
                return sorted(found, key=lambda p: (int(p.get("timestamp") or 0), int(p.get("step") or 0)))


def _journal(
    found: Mapping[str, Sequence[Mapping[str, Any]]], params: list[dict[str, str]], run_id: str
) -> Iterator[dict[str, Any]]:
    now = int(time.time() * 1000)
    if params:
        yield {"t": now, "op": "runs/log-batch", "b": {"run_id": run_id, "params": params}}
    points: list[dict[str, Any]] = [
        {
            "key": key,
            "value": point.get("value"),
            "timestamp": int(point.get("timestamp") or 0),
            "step": int(point.get("step") or 0),
        }
        for key, each in found.items()
        for point in each
    ]
    points.sort(key=lambda point: int(point["timestamp"]))
    for start in range(0, len(points), _BATCH):
        batch = points[start : start + _BATCH]
        yield {"t": batch[-1]["timestamp"], "op": "runs/log-batch", "b": {"run_id": run_id, "metrics": batch}}


def telemetry(
    found: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[int, tuple[dict[str, Any], list[list[Any]]]]:
    """``system/*`` series as a header and rows ``[t, values...]`` of each node."""
    nodes: dict[int, dict[tuple[int | None, str], dict[int, float]]] = {}
    for key, points in found.items():
        match = _SYSTEM.fullmatch(key)
        if match is None:
            continue
        gpu = None if match["gpu"] is None else int(match["gpu"])
        column, factor = (_HOST if gpu is None else _GPU).get(match["name"], ("", 0.0))
        if column:
            series = nodes.setdefault(int(match["node"] or 0), {}).setdefault((gpu, column), {})
            for point in points:
                value = point.get("value")
                if isinstance(value, (int, float)):
                    series[int(point.get("timestamp") or 0)] = float(value) * factor
    return {node: _table(node, series, 10.0, "the service's MLflow, every 10 s") for node, series in nodes.items()}


def _table(
    node: int, series: Mapping[tuple[int | None, str], Mapping[int, float]], period: float, source: str
) -> tuple[dict[str, Any], list[list[Any]]]:
    gpus = sorted({gpu for gpu, _ in series if gpu is not None})
    header = {
        "schema": 1,
        "columns": ["seq", "t", *_COLUMNS],
        "units": ["1", "unix s", *_UNITS],
        "memory_total": None,
        "cpus": None,
        "period": period,
        "node": node,
        "host": "",
        "gpu_columns": list(_GPU_COLUMNS),
        "gpu_units": list(_GPU_UNITS),
        "gpus": [{"index": gpu, "uuid": "", "name": "", "mig": False} for gpu in gpus],
        "gpu_note": "One value a minute, from Azure Monitor." if period >= 60 else "",
        "source": source,
    }
    moments: list[int] = []
    for moment in sorted({moment for values in series.values() for moment in values}):
        if not moments or moment - moments[-1] > _TICK:
            moments.append(moment)
    rows: list[list[Any]] = []
    at = {moment: i for i, moment in enumerate(moments)}
    width = len(_COLUMNS) + len(gpus) * len(_GPU_COLUMNS)
    rows = [[moment / 1000, *[None] * width] for moment in moments]
    for (gpu, column), values in series.items():
        place = (
            1 + _COLUMNS.index(column)
            if gpu is None
            else 1 + len(_COLUMNS) + gpus.index(gpu) * len(_GPU_COLUMNS) + _GPU_COLUMNS.index(column)
        )
        last = 0
        for moment in sorted(values):
            last = at.get(moment, last)
            rows[last][place] = round(values[moment], 2)
    return header, rows


def monitor(
    call: ServiceCall, *, workspace: str, compute: str = "", run: str = "", since: float = 0.0, folder: str = ""
) -> dict[str, Any]:
    """One-minute metrics of Azure Monitor: ``{"nodes": {number: {"header", "rows"}}, "names": [...], "until"}``.

    Parameters
    ----------
    compute, run
        Of which machines: those of a compute, or of a job.
    since
        Unix seconds.
    folder
        Run folder that the rows are added to.
    """
    place = call.cloud.workspace(workspace)
    now = time.time()
    begin = max(since, now - 3600)
    span = "/".join(
        datetime.datetime.fromtimestamp(t, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") for t in (begin, now)
    )
    which = f"RunId eq '{run}'" if run else f"ComputeName eq '{compute}'" if compute else ""

    def ask(name: str) -> list[Any]:
        dimensions = " and ".join(
            part for part in (which, "InstanceId eq '*'", "DeviceId eq '*'" if name.startswith("Gpu") else "") if part
        )
        answer = place.arm.get(
            "providers/microsoft.insights/metrics",
            api=MONITOR_API,
            params={
                "metricnames": name,
                "interval": "PT1M",
                "timespan": span,
                "aggregation": "Average",
                "$filter": dimensions,
            },
            act="read Azure Monitor",
        )
        return [series for value in (answer.json or {}).get("value") or () for series in value.get("timeseries") or ()]

    names = list(_MONITORED)
    found: dict[str, dict[tuple[int | None, str], dict[int, float]]] = {}
    until = begin
    for name, many in zip(names, history.all_of(ask, names), strict=True):
        column, factor = _MONITORED[name]
        for series in many:
            facts = {
                str(m["name"]["value"]).lower(): str(m.get("value") or "") for m in series.get("metadatavalues") or ()
            }
            device = re.search(r"\d+$", facts.get("deviceid", ""))
            gpu = int(device[0]) if name.startswith("Gpu") and device else 0 if name.startswith("Gpu") else None
            values = found.setdefault(facts.get("instanceid", ""), {}).setdefault((gpu, column), {})
            for point in series.get("data") or ():
                moment = history.unix(point.get("timeStamp"))
                if moment is not None and point.get("average") is not None and moment > since:
                    values[int(moment * 1000)] = float(point["average"]) * factor
                    until = max(until, moment)
    nodes: dict[str, dict[str, Any]] = {}
    for number, instance in enumerate(sorted(found)):
        header, rows = _table(number, found[instance], 60.0, "Azure Monitor, every minute, some minutes late")
        header["host"] = instance
        nodes[str(number)] = {"header": header, "rows": rows}
    if folder:
        mirror = MirrorFiles(Path(folder))
        for key, node in nodes.items():
            add_ticks(mirror, int(key), node["header"], node["rows"])
        mirror.save()
    return {"nodes": nodes, "names": sorted(found), "until": until}


JOURNAL = "metrics/rank-0.jsonl"


def ticks(node: int) -> str:
    """The local file of a node's telemetry."""
    return f"telemetry/node-{node}.jsonl"


def take_ticks(mirror: MirrorFiles, node: int, data: bytes, restarted: bool) -> None:
    """Append whole lines of a node's file."""
    name, facts = ticks(node), mirror.facts.setdefault(f"ticks-{node}", {})
    if restarted:
        facts["base"] = int(facts.get("next") or 0)
    base, last = int(facts.get("base") or 0), float(facts.get("last") or 0)
    out: list[bytes] = []
    for line in data.splitlines(keepends=True):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "columns" in value:
            if facts.get("header") and facts.get("columns") == value["columns"] and facts.get("by") == "file":
                continue
            facts.update(header=True, columns=value["columns"], by="file")
            out.append(line)
        elif isinstance(value, dict):
            if base and "seq" in value:
                line = _line({**value, "seq": base + int(value["seq"])})
            out.append(line)
        elif isinstance(value, list) and len(value) > 2:
            seq, t = base + int(value[0]), float(value[1])
            if t <= last:
                base -= 1  # MLflow told it already
                continue
            facts["next"], facts["last"] = seq + 1, t
            out.append(line if seq == value[0] else _line([seq, *value[1:]]))
            last = t
    facts["base"] = base
    mirror.append(name, b"".join(out), "telemetry")


def add_ticks(mirror: MirrorFiles, node: int, header: dict[str, Any], rows: list[list[Any]]) -> None:
    """Append ticks that are no lines of a file: ``[t, values...]``, later than all before."""
    facts = mirror.facts.setdefault(f"ticks-{node}", {})
    last, seq = float(facts.get("last") or 0), int(facts.get("next") or 0)
    rows = [row for row in rows if row[0] > last]
    if not rows:
        return
    out: list[bytes] = []
    if facts.get("columns") != header["columns"] or facts.get("gpus") != len(header.get("gpus") or ()):
        facts.update(header=True, columns=header["columns"], gpus=len(header.get("gpus") or ()), by="service")
        out.append(_line(header))
    for row in rows:
        out.append(_line([seq, *row]))
        seq, last = seq + 1, row[0]
    facts.update(next=seq, last=last)
    if facts.get("by") == "service":
        facts["base"] = seq
    mirror.append(ticks(node), b"".join(out), "telemetry")


def take_journal(mirror: MirrorFiles, data: bytes, restarted: bool) -> None:
    """Append whole lines of the agent's journal, but for points that MLflow told already."""
    facts = mirror.facts.setdefault("journal", {})
    told: dict[str, int] = facts.setdefault("told", {})
    if restarted:
        facts["told"] = told = {}
    out = []
    for line in data.splitlines(keepends=True):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("op") == "init":
            if facts.get("init"):
                continue
            facts["init"] = True
        if told:
            record = _untold(record, told)
            if record is None:
                continue
        out.append(_numbered(facts, record, line))
    mirror.append(JOURNAL, b"".join(out), "metrics")


def add_records(mirror: MirrorFiles, records: Iterator[dict[str, Any]] | list[dict[str, Any]], init: Any) -> None:
    """Append what MLflow told: ``{"t", "op", "b"}``.

    Parameters
    ----------
    init
        ``a`` of the journal's first record: ``{"id", "exp_id", "exp_name", "name"}``.
    """
    facts = mirror.facts.setdefault("journal", {})
    told: dict[str, int] = facts.setdefault("told", {})
    out = []
    for record in records:
        if not facts.get("init"):
            facts["init"] = True
            out.append(_numbered(facts, {"t": record["t"], "op": "init", "b": {}, "a": init}))
        for point in record["b"].get("metrics") or ():
            told[point["key"]] = told.get(point["key"], 0) + 1
        out.append(_numbered(facts, record))
    mirror.append(JOURNAL, b"".join(out), "metrics")


def _numbered(facts: dict[str, Any], record: dict[str, Any], line: bytes = b"") -> bytes:
    seq = facts["seq"] = int(facts.get("seq") or 0) + 1
    if line and record.get("seq") == seq and line.endswith(b"\n") and json.loads(line) == record:
        return line
    return _line({**record, "seq": seq})


def _untold(record: dict[str, Any], told: dict[str, int]) -> dict[str, Any] | None:
    """A record without the points that were told, of which there are `told` by name."""
    body = record.get("b") or {}

    def new(point: dict[str, Any]) -> bool:
        left = told.get(str(point.get("key")), 0)
        if left:
            told[str(point["key"])] = left - 1
        return not left

    if record.get("op") == "runs/log-metric":
        return record if new(body) else None
    if record.get("op") == "runs/log-batch" and body.get("metrics"):
        return {**record, "b": {**body, "metrics": [point for point in body["metrics"] if new(point)]}}
    return record


def whole_lines(data: bytes) -> bytes:
    """`data` up to its last newline."""
    return data[: data.rfind(b"\n") + 1]


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


log = logging.getLogger("amltrain.azure")

#: Where the agent writes in a job.
AGENT = "logs/amltrain/"
#: The agent's ``state.json``; ``state.json`` itself is what the service says, in our words.
AGENT_STATE = "agent.json"
#: Where the agent lets MLflow put what a script logs as artifacts.
ARTIFACTS = "outputs/"
ENDED = ("Completed", "Failed", "Canceled")
#: What does not come at a run's end is tried again for so long (seconds); then the end is told without it.
_RETRY_PERIOD_S = 60.0
#: Seconds that the last figures of a run that is over are waited for.
_LAST_TIMEOUT_S = 20.0

_beside = ThreadPoolExecutor(4, "amltrain-azure-mlflow")
_asked: dict[str, Future[Fetched]] = {}


def base() -> float:
    """Seconds between looks at a job that somebody looks at."""
    return setting("POLL", 1.0)


def passing(mirror: MirrorFiles, now: float) -> bool:
    """Whether what fails at a run's end is worth another try: nobody looks any more when all is said to be here."""
    return now - float(mirror.facts.setdefault("last_tried", round(now, 1))) < _RETRY_PERIOD_S


class FallbackMetrics:
    """For one sync, under its lock.

    Parameters
    ----------
    status
        The job's, in the service's words.
    ended
        Read all that there is.
    """

    def __init__(
        self, call: ServiceCall, place: Workspace, name: str, mirror: MirrorFiles, status: str, ended: bool
    ) -> None:
        self._call, self._place, self._name, self._mirror = call, place, name, mirror
        self._status, self._ended, self._now = status, ended, time.time()

    def figures(self, agent: bool) -> None:
        """Telemetry and metrics; `agent`: the job has files of our agent."""
        self._service()
        if not agent:
            self._machines()

    def _service(self) -> None:
        """The service's MLflow, where the agent's files do not grow. It is asked beside, never waited for."""
        facts = self._mirror.facts
        key = str(self._mirror.folder)
        under_way = _asked.get(key)
        if under_way is not None and (under_way.done() or self._ended):
            _asked.pop(key, None)
            self._told(under_way)
        elif under_way is not None:
            return
        if self._status not in ("Running", "Finalizing", *ENDED):
            return
        now, pause = self._now, base()
        if self._status == "Running":
            facts.setdefault("running", now)
        since = float(facts.get("running") or now)
        grows = now - max(float(facts.get("ticked") or 0), since) < 20 * pause
        # A journal that came home has all that the script logged, and an agent that came home has no other.
        own = not self._has_journal()
        system = not facts.get("ticked")
        if self._ended:
            agent = (self._mirror.folder / AGENT_STATE).exists()
            system, own = system and not agent, own and not agent
        else:
            system, own = not grows, own and not grows
            if not (system or own) or now < float(facts.get("mlflow_due") or 0):
                return
        facts["mlflow_due"] = round(now + 10 * pause, 1)
        points, known = Points(self._place, self._name), dict(facts.get("mlflow") or {})
        asked = _beside.submit(lambda: points.fetch(known, system=system, own=own))
        if self._ended and (system or own):
            self._told(asked)
        elif not self._ended:
            _asked[key] = asked

    def _has_journal(self) -> bool:
        return bool(self._mirror.remote.get(AGENT + JOURNAL, {}).get("offset", 0))

    def _told(self, asked: Future[Fetched]) -> None:
        facts, grown = self._mirror.facts, len(self._mirror.grown)
        job = self._mirror.json("job.json")
        init = {
            "id": str((job.get("tracking") or {}).get("run_id") or tracking_id(self._name)),
            "exp_id": "0",
            "exp_name": str(job.get("experiment") or "default"),
            "name": str(job.get("name") or self._name),
        }
        try:
            came = asked.result(_LAST_TIMEOUT_S)
            # The journal may have come home since the question: it has these points too.
            take(self._mirror, came._replace(own=came.own and not self._has_journal()), init)
        except (AmlTrainError, NotYet) as error:
            if self._ended and isinstance(error, TargetUnreachable) and passing(self._mirror, self._now):
                raise
            log.info("metrics of %s: %s", self._name, error)
            facts["mlflow_due"] = round(self._now + 30 * base(), 1)
        if len(self._mirror.grown) > grown:
            facts["mlflowed"] = self._now

    def _machines(self) -> None:
        """Azure Monitor's minutes, for a job without an agent that logs no system metrics either."""
        facts, now = self._mirror.facts, self._now
        seen = (facts.get("mlflow") or {}).get("seen") or {}
        if any(key.startswith("system/") for key in seen):
            return
        since = float(facts.get("running") or now)
        if not self._ended and (now - since < 60 * base() or now < float(facts.get("monitor_due") or 0)):
            return
        if self._ended and "running" not in facts:
            return  # a job that ended before anybody looked: its hour may be over
        facts["monitor_due"] = round(now + 60 * base(), 1)
        try:
            found = monitor(
                self._call,
                workspace=self._place.name,
                run=self._name,
                since=float(facts.get("monitored") or since - 120),
            )
        except AmlTrainError as error:
            log.info("Azure Monitor of %s: %s", self._name, error)
            return
        facts["monitored"] = found["until"]
        for number, node in found["nodes"].items():
            add_ticks(self._mirror, int(number), node["header"], node["rows"])
        if found["nodes"]:
            facts["watched"] = now

    def artifacts(self) -> None:
        """What the script logged as artifacts goes into the project's MLflow store, unless it is much."""
        if not (self._mirror.folder / AGENT_STATE).exists() or "artifacts" in self._mirror.facts:
            return
        limit = setting("ARTIFACTS_MB", 64) * 1e6
        try:
            there = list(artifacts.listing(self._call, self._place, self._name, [ARTIFACTS]))
            whole = sum(file.size for file in there)
            if whole <= limit:
                mine = [file._replace(path=file.path.removeprefix(ARTIFACTS)) for file in there]
                artifacts.fetched(self._call, mine, str(self._mirror.folder / "artifacts"))
        except AmlTrainError as error:  # storage that does not let us in, say
            if isinstance(error, TargetUnreachable) and passing(self._mirror, self._now):
                raise
            log.info("artifacts of %s: %s", self._name, error)
            return
        self._mirror.facts["artifacts"] = whole
        if whole > limit:
            log.info("artifacts of %s stay in Azure: %d bytes", self._name, whole)
