"""Metrics of jobs from the service's MLflow and of machines from Azure Monitor, converted to run folder files."""

from __future__ import annotations

import datetime
import functools
import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.agent.telemetry.gpu_columns import TICKS, mlflow_name
from jupyter_amltrain.agent.telemetry.host import COLUMNS as HOST_COLUMNS
from jupyter_amltrain.azure import errors
from jupyter_amltrain.azure.job_body import tracking_id
from jupyter_amltrain.azure.service import artifacts, history
from jupyter_amltrain.azure.service.account import env_seconds
from jupyter_amltrain.azure.service.mirror_files import MirrorFiles
from jupyter_amltrain.errors import AmlTrainError, TargetUnreachable

if TYPE_CHECKING:
    from jupyter_amltrain.azure.service.cloud import Workspace
    from jupyter_amltrain.azure.service.operations import ServiceCall

#: MLflow's own names of system metrics -> column of a tick, and factor.
_HOST_METRICS = {
    "cpu_utilization_percentage": ("host_cpu", 1.0),
    "system_memory_usage_megabytes": ("host_memory", 1e6),
    "network_receive_megabytes": ("net_rx", 1e6),
    "network_transmit_megabytes": ("net_tx", 1e6),
    "run_cpu_utilization_percentage": ("cpu", 1.0),
    "run_memory_usage_megabytes": ("memory", 1e6),
}
_GPU_METRICS = {mlflow_name(name)[0]: (name, 1 / mlflow_name(name)[1]) for name in ("util", "memory", "power")}
_SYSTEM = re.compile(r"system/(?:node_(?P<node>\d+)/)?(?:gpu_(?P<gpu>\d+)_)?(?P<name>\w+)")
#: The agent's columns, so that both sources write the same file format.
_COLUMNS = tuple(name for name, _ in HOST_COLUMNS)
_UNITS = tuple(unit for _, unit in HOST_COLUMNS)
_GPU_COLUMNS = tuple(column.name for column in TICKS)
_GPU_UNITS = tuple(column.unit for column in TICKS)
#: Maximum points per record.
_MAX_BATCH_POINTS = 500
#: Points within this many milliseconds form one tick.
_TICK_MS = 500

#: Azure Monitor's metrics of a workspace -> column of a GPU, and factor; one value a minute.
_MONITOR_METRICS = {
    "GpuUtilizationPercentage": ("util", 1.0),
    "GpuMemoryUtilizationMegabytes": ("memory", 1e6 / 2**20),
    "CpuUtilizationPercentage": ("host_cpu", 1.0),
    "CpuMemoryUtilizationMegabytes": ("host_memory", 1e6),
}
MONITOR_API = "2018-01-01"


class FetchedPoints(NamedTuple):
    """All points of metrics that have new points, and new parameters."""

    points: dict[str, list[dict[str, Any]]]
    params: list[dict[str, str]]
    own: bool


def append_points(mirror: MirrorFiles, fetched: FetchedPoints, init: Mapping[str, Any]) -> None:
    """Append new points and parameters.

    Parameters
    ----------
    init
        See :func:`.records.add_records`.
    """
    facts = mirror.facts.setdefault("mlflow", {})
    seen_points: dict[str, list[Any]] = facts.setdefault("seen", {})
    new_points: dict[str, list[dict[str, Any]]] = {}
    for key, points in fetched.points.items():
        count = int((seen_points.get(key) or [0])[0])
        new_points[key] = points[count:]
        if points:
            seen_points[key] = [max(count, len(points)), points[-1].get("timestamp"), points[-1].get("step")]
    if fetched.own:
        params = [param for param in fetched.params if param["key"] not in facts.setdefault("params", [])]
        facts["params"] = [*facts.get("params", []), *(param["key"] for param in params)]
        own_points = {key: points for key, points in new_points.items() if not key.startswith("system/")}
        add_records(mirror, list(_journal(own_points, params, str(init["id"]))), dict(init))
    for node, (header, rows) in telemetry({k: p for k, p in new_points.items() if k.startswith("system/")}).items():
        add_ticks(mirror, node, header, rows)


class Points:
    """Reader of MLflow points of a run that the mirror does not have yet."""

    def __init__(self, workspace: Workspace, name: str) -> None:
        self._workspace, self._name = workspace, name

    def _get(self, what: str, **params: Any) -> dict[str, Any]:
        answer = self._workspace.data.get(
            f"{self._workspace.mlflow}/api/2.0/mlflow/{what}",
            params={"run_id": self._name, **params},
            act=f"read the metrics of job {self._name}",
        )
        return answer.json or {}

    def fetch(self, known: Mapping[str, Any], *, system: bool, own: bool) -> FetchedPoints:
        """Read new points.

        Parameters
        ----------
        known
            ``facts["mlflow"]`` of the mirror.
        system
            Include ``system/*``.
        own
            Include metrics and parameters of the script.
        """
        try:
            data = (self._get("runs/get").get("run") or {}).get("data") or {}
        except AmlTrainError as error:
            if errors.details_of(error).status in (400, 404):
                return FetchedPoints({}, [], own)  # a job without logged metrics may have no MLflow run
            raise
        seen_points = known.get("seen") or {}
        keys = [
            str(m["key"])
            for m in data.get("metrics") or ()
            if (system if str(m["key"]).startswith("system/") else own)
            and (seen_points.get(m["key"]) or [0, None, None])[1:] != [m.get("timestamp"), m.get("step")]
        ]
        params = [
            {"key": str(p["key"]), "value": str(p.get("value") or "")}
            for p in data.get("params") or ()
            if own and p["key"] not in (known.get("params") or ())
        ]
        return FetchedPoints(dict(zip(keys, history.all_of(self.history, keys), strict=True)), params, own)

    def history(self, key: str) -> list[dict[str, Any]]:
        """Return the points of a metric in the order of their times."""
        points: list[dict[str, Any]] = []
        token = ""
        while True:
            page = self._get("metrics/get-history", metric_key=key, **({"page_token": token} if token else {}))
            points += page.get("metrics") or ()
            token = str(page.get("next_page_token") or "")
            if not token:
                # The service guarantees no order; sort by time.
                return sorted(points, key=lambda p: (int(p.get("timestamp") or 0), int(p.get("step") or 0)))


def _journal(
    series: Mapping[str, Sequence[Mapping[str, Any]]], params: list[dict[str, str]], run_id: str
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
        for key, values in series.items()
        for point in values
    ]
    points.sort(key=lambda point: int(point["timestamp"]))
    for start in range(0, len(points), _MAX_BATCH_POINTS):
        batch = points[start : start + _MAX_BATCH_POINTS]
        yield {"t": batch[-1]["timestamp"], "op": "runs/log-batch", "b": {"run_id": run_id, "metrics": batch}}


def telemetry(
    metrics: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[int, tuple[dict[str, Any], list[list[Any]]]]:
    """Convert ``system/*`` series to a header and rows ``[t, values...]`` for each node."""
    nodes: dict[int, dict[tuple[int | None, str], dict[int, float]]] = {}
    for key, points in metrics.items():
        match = _SYSTEM.fullmatch(key)
        if match is None:
            continue
        gpu = None if match["gpu"] is None else int(match["gpu"])
        column, factor = (_HOST_METRICS if gpu is None else _GPU_METRICS).get(match["name"], ("", 0.0))
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
        if not moments or moment - moments[-1] > _TICK_MS:
            moments.append(moment)
    rows: list[list[Any]] = []
    at = {moment: i for i, moment in enumerate(moments)}
    width = len(_COLUMNS) + len(gpus) * len(_GPU_COLUMNS)
    rows = [[moment / 1000, *[None] * width] for moment in moments]
    for (gpu, column), values in series.items():
        column_index = (
            1 + _COLUMNS.index(column)
            if gpu is None
            else 1 + len(_COLUMNS) + gpus.index(gpu) * len(_GPU_COLUMNS) + _GPU_COLUMNS.index(column)
        )
        last = 0
        for moment in sorted(values):
            last = at.get(moment, last)
            rows[last][column_index] = round(values[moment], 2)
    return header, rows


def monitor(
    call: ServiceCall, *, workspace: str, compute: str = "", run: str = "", since: float = 0.0, folder: str = ""
) -> dict[str, Any]:
    """Return one-minute metrics of Azure Monitor: ``{"nodes": {number: {"header", "rows"}}, "names": [...], "until"}``.

    Parameters
    ----------
    compute, run
        Select the machines of a compute, or of a job.
    since
        Unix seconds.
    folder
        Run folder to append the rows to.
    """
    ws = call.cloud.workspace(workspace)
    now = time.time()
    start = max(since, now - 3600)
    span = "/".join(
        datetime.datetime.fromtimestamp(t, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") for t in (start, now)
    )
    filter_ = f"RunId eq '{run}'" if run else f"ComputeName eq '{compute}'" if compute else ""
    names = list(_MONITOR_METRICS)
    instances: dict[str, dict[tuple[int | None, str], dict[int, float]]] = {}
    until = start
    read = functools.partial(_monitor_series, ws, span, filter_)
    for name, timeseries in zip(names, history.all_of(read, names), strict=True):
        column, factor = _MONITOR_METRICS[name]
        for series in timeseries:
            facts = {
                str(m["name"]["value"]).lower(): str(m.get("value") or "") for m in series.get("metadatavalues") or ()
            }
            device = re.search(r"\d+$", facts.get("deviceid", ""))
            gpu = int(device[0]) if name.startswith("Gpu") and device else 0 if name.startswith("Gpu") else None
            values = instances.setdefault(facts.get("instanceid", ""), {}).setdefault((gpu, column), {})
            for point in series.get("data") or ():
                moment = history.unix(point.get("timeStamp"))
                if moment is not None and point.get("average") is not None and moment > since:
                    values[int(moment * 1000)] = float(point["average"]) * factor
                    until = max(until, moment)
    nodes: dict[str, dict[str, Any]] = {}
    for number, instance in enumerate(sorted(instances)):
        header, rows = _table(number, instances[instance], 60.0, "Azure Monitor, every minute, some minutes late")
        header["host"] = instance
        nodes[str(number)] = {"header": header, "rows": rows}
    if folder:
        mirror = MirrorFiles(Path(folder))
        for key, node in nodes.items():
            add_ticks(mirror, int(key), node["header"], node["rows"])
        mirror.save()
    return {"nodes": nodes, "names": sorted(instances), "until": until}


def _monitor_series(ws: Workspace, span: str, filter_: str, name: str) -> list[Any]:
    """Return the series of one metric of Azure Monitor, of each machine and GPU."""
    parts = (filter_, "InstanceId eq '*'", "DeviceId eq '*'" if name.startswith("Gpu") else "")
    answer = ws.arm.get(
        "providers/microsoft.insights/metrics",
        api=MONITOR_API,
        params={
            "metricnames": name,
            "interval": "PT1M",
            "timespan": span,
            "aggregation": "Average",
            "$filter": " and ".join(filter(None, parts)),
        },
        act="read Azure Monitor",
    )
    return [series for value in (answer.json or {}).get("value") or () for series in value.get("timeseries") or ()]


JOURNAL = "metrics/rank-0.jsonl"


def ticks(node: int) -> str:
    """Return the local file of a node's telemetry."""
    return f"telemetry/node-{node}.jsonl"


def take_ticks(mirror: MirrorFiles, node: int, data: bytes, restarted: bool) -> None:
    """Append complete lines of a node's telemetry file."""
    name, facts = ticks(node), mirror.facts.setdefault(f"ticks-{node}", {})
    if restarted:
        facts["base"] = int(facts.get("next") or 0)
    poll_interval_s, last = int(facts.get("base") or 0), float(facts.get("last") or 0)
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
            if poll_interval_s and "seq" in value:
                line = _line({**value, "seq": poll_interval_s + int(value["seq"])})
            out.append(line)
        elif isinstance(value, list) and len(value) > 2:
            seq, t = poll_interval_s + int(value[0]), float(value[1])
            if t <= last:
                poll_interval_s -= 1  # already read from MLflow
                continue
            facts["next"], facts["last"] = seq + 1, t
            out.append(line if seq == value[0] else _line([seq, *value[1:]]))
            last = t
    facts["base"] = poll_interval_s
    mirror.append(name, b"".join(out), "telemetry")


def add_ticks(mirror: MirrorFiles, node: int, header: dict[str, Any], rows: list[list[Any]]) -> None:
    """Append ticks from another source than a file: ``[t, values...]``, later than all existing ones."""
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
    """Append complete lines of the agent's journal, without points that were already read from MLflow."""
    facts = mirror.facts.setdefault("journal", {})
    mlflow_counts: dict[str, int] = facts.setdefault("told", {})
    if restarted:
        facts["told"] = mlflow_counts = {}
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
        if mlflow_counts:
            record = _without_known(record, mlflow_counts)
            if record is None:
                continue
        out.append(_with_seq(facts, record, line))
    mirror.append(JOURNAL, b"".join(out), "metrics")


def add_records(mirror: MirrorFiles, records: Iterator[dict[str, Any]] | list[dict[str, Any]], init: Any) -> None:
    """Append records read from MLflow: ``{"t", "op", "b"}``.

    Parameters
    ----------
    init
        ``a`` of the journal's first record: ``{"id", "exp_id", "exp_name", "name"}``.
    """
    facts = mirror.facts.setdefault("journal", {})
    mlflow_counts: dict[str, int] = facts.setdefault("told", {})
    out = []
    for record in records:
        if not facts.get("init"):
            facts["init"] = True
            out.append(_with_seq(facts, {"t": record["t"], "op": "init", "b": {}, "a": init}))
        for point in record["b"].get("metrics") or ():
            mlflow_counts[point["key"]] = mlflow_counts.get(point["key"], 0) + 1
        out.append(_with_seq(facts, record))
    mirror.append(JOURNAL, b"".join(out), "metrics")


def _with_seq(facts: dict[str, Any], record: dict[str, Any], line: bytes = b"") -> bytes:
    seq = facts["seq"] = int(facts.get("seq") or 0) + 1
    if line and record.get("seq") == seq and line.endswith(b"\n") and json.loads(line) == record:
        return line
    return _line({**record, "seq": seq})


def _without_known(record: dict[str, Any], mlflow_counts: dict[str, int]) -> dict[str, Any] | None:
    """Return a record without points already read from MLflow; `mlflow_counts` has their number by name."""
    body = record.get("b") or {}

    def new(point: dict[str, Any]) -> bool:
        remaining = mlflow_counts.get(str(point.get("key")), 0)
        if remaining:
            mlflow_counts[str(point["key"])] = remaining - 1
        return not remaining

    if record.get("op") == "runs/log-metric":
        return record if new(body) else None
    if record.get("op") == "runs/log-batch" and body.get("metrics"):
        return {**record, "b": {**body, "metrics": [point for point in body["metrics"] if new(point)]}}
    return record


def whole_lines(data: bytes) -> bytes:
    """Return `data` up to its last newline."""
    return data[: data.rfind(b"\n") + 1]


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


log = logging.getLogger("amltrain.azure")

#: Folder of the agent's files in a job.
AGENT = "logs/amltrain/"
#: Local name of the agent's ``state.json``; the local ``state.json`` has the service's status.
AGENT_STATE = "agent.json"
#: Folder of the artifacts that a script logs through MLflow.
ARTIFACTS = "outputs/"
ENDED = ("Completed", "Failed", "Canceled")
#: Seconds to retry failed reads at a run's end; then the run is reported as ended without them.
_RETRY_PERIOD_S = 60.0
#: Seconds to wait for the last metrics of an ended run.
_FINAL_READ_TIMEOUT_S = 20.0

_background_pool = ThreadPoolExecutor(4, "amltrain-azure-mlflow")
_requests: dict[str, Future[FetchedPoints]] = {}


def poll_interval_s() -> float:
    """Return the poll interval in seconds of a job with viewers."""
    return env_seconds("POLL", 1.0)


def should_retry(mirror: MirrorFiles, now: float) -> bool:
    """Return whether to retry a failed read at a run's end; there are no more reads once the mirror is complete."""
    return now - float(mirror.facts.setdefault("last_tried", round(now, 1))) < _RETRY_PERIOD_S


class FallbackMetrics:
    """Metrics and artifacts from the service for jobs whose agent files are missing; for one sync, under its lock.

    Parameters
    ----------
    status
        The job's status at the service.
    ended
        The job has ended; read everything.
    """

    def __init__(
        self, call: ServiceCall, ws: Workspace, name: str, mirror: MirrorFiles, status: str, ended: bool
    ) -> None:
        self._call, self._ws, self._name, self._mirror = call, ws, name, mirror
        self._status, self._ended, self._now = status, ended, time.time()

    def figures(self, agent: bool) -> None:
        """Read telemetry and metrics; `agent`: the job has files of the agent."""
        self._read_mlflow()
        if not agent:
            self._read_monitor()

    def _read_mlflow(self) -> None:
        """Read the service's MLflow if the agent's files do not grow; in the background, except at the end."""
        facts = self._mirror.facts
        key = str(self._mirror.folder)
        pending = _requests.get(key)
        if pending is not None and (pending.done() or self._ended):
            _requests.pop(key, None)
            self._append_result(pending)
        elif pending is not None:
            return
        if self._status not in ("Running", "Finalizing", *ENDED):
            return
        now, interval_s = self._now, poll_interval_s()
        if self._status == "Running":
            facts.setdefault("running", now)
        since = float(facts.get("running") or now)
        growing = now - max(float(facts.get("ticked") or 0), since) < 20 * interval_s
        # A journal has everything that the script logged. If the agent's state exists, MLflow has nothing more.
        script = not self._has_journal()
        system = not facts.get("ticked")
        if self._ended:
            agent = (self._mirror.folder / AGENT_STATE).exists()
            system, script = system and not agent, script and not agent
        else:
            system, script = not growing, script and not growing
            if not (system or script) or now < float(facts.get("mlflow_due") or 0):
                return
        facts["mlflow_due"] = round(now + 10 * interval_s, 1)
        points, mlflow_facts = Points(self._ws, self._name), dict(facts.get("mlflow") or {})
        request = _background_pool.submit(lambda: points.fetch(mlflow_facts, system=system, own=script))
        if self._ended and (system or script):
            self._append_result(request)
        elif not self._ended:
            _requests[key] = request

    def _has_journal(self) -> bool:
        return bool(self._mirror.remote.get(AGENT + JOURNAL, {}).get("offset", 0))

    def _append_result(self, request: Future[FetchedPoints]) -> None:
        facts, grown_before = self._mirror.facts, len(self._mirror.grown)
        job = self._mirror.json("job.json")
        init = {
            "id": str((job.get("tracking") or {}).get("run_id") or tracking_id(self._name)),
            "exp_id": "0",
            "exp_name": str(job.get("experiment") or "default"),
            "name": str(job.get("name") or self._name),
        }
        try:
            fetched = request.result(_FINAL_READ_TIMEOUT_S)
            # The journal may have arrived since the request; it has these points too.
            append_points(self._mirror, fetched._replace(own=fetched.own and not self._has_journal()), init)
        except (AmlTrainError, FutureTimeout) as error:
            if self._ended and isinstance(error, TargetUnreachable) and should_retry(self._mirror, self._now):
                raise
            log.info("metrics of %s: %s", self._name, error)
            facts["mlflow_due"] = round(self._now + 30 * poll_interval_s(), 1)
        if len(self._mirror.grown) > grown_before:
            facts["mlflowed"] = self._now

    def _read_monitor(self) -> None:
        """Read Azure Monitor, for a job that has no agent and logs no system metrics."""
        facts, now = self._mirror.facts, self._now
        seen_points = (facts.get("mlflow") or {}).get("seen") or {}
        if any(key.startswith("system/") for key in seen_points):
            return
        since = float(facts.get("running") or now)
        if not self._ended and (now - since < 60 * poll_interval_s() or now < float(facts.get("monitor_due") or 0)):
            return
        if self._ended and "running" not in facts:
            return  # ended before the first poll, so its data may be outside the queried hour
        facts["monitor_due"] = round(now + 60 * poll_interval_s(), 1)
        try:
            metrics = monitor(
                self._call,
                workspace=self._ws.name,
                run=self._name,
                since=float(facts.get("monitored") or since - 120),
            )
        except AmlTrainError as error:
            log.info("Azure Monitor of %s: %s", self._name, error)
            return
        facts["monitored"] = metrics["until"]
        for number, node in metrics["nodes"].items():
            add_ticks(self._mirror, int(number), node["header"], node["rows"])
        if metrics["nodes"]:
            facts["watched"] = now

    def artifacts(self) -> None:
        """Download artifacts that the script logged, for the project's MLflow store, up to a size limit."""
        if not (self._mirror.folder / AGENT_STATE).exists() or "artifacts" in self._mirror.facts:
            return
        limit = env_seconds("ARTIFACTS_MB", 64) * 1e6
        try:
            files = list(artifacts.list_job_files(self._call, self._ws, self._name, [ARTIFACTS]))
            total_bytes = sum(file.size for file in files)
            if total_bytes <= limit:
                relative = [file._replace(path=file.path.removeprefix(ARTIFACTS)) for file in files]
                artifacts.download_files(self._call, relative, str(self._mirror.folder / "artifacts"))
        except AmlTrainError as error:  # for example, access to the storage is denied
            if isinstance(error, TargetUnreachable) and should_retry(self._mirror, self._now):
                raise
            log.info("artifacts of %s: %s", self._name, error)
            return
        self._mirror.facts["artifacts"] = total_bytes
        if total_bytes > limit:
            log.info("artifacts of %s stay in Azure: %d bytes", self._name, total_bytes)
