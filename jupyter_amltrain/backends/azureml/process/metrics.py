"""What the service's MLflow has of a job, and Azure Monitor of its machines, in our own forms."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_amltrain.agent.gpu_columns import TICKS, mlflow_name
from jupyter_amltrain.agent.host import COLUMNS as HOST_COLUMNS
from jupyter_amltrain.backends.azureml import faults
from jupyter_amltrain.backends.azureml.process import history, records
from jupyter_amltrain.backends.azureml.process.mirror_files import MirrorFiles
from jupyter_amltrain.errors import AmlTrainError

if TYPE_CHECKING:
    from jupyter_amltrain.backends.azureml.process.cloud import Workspace
    from jupyter_amltrain.backends.azureml.process.serve import Call

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
        records.add_records(mirror, list(_journal(mine, params, str(init["id"]))), dict(init))
    for node, (header, rows) in telemetry({k: p for k, p in found.items() if k.startswith("system/")}).items():
        records.add_ticks(mirror, node, header, rows)


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
            if faults.told(error).status in (400, 404):
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
    call: Call, *, workspace: str, compute: str = "", run: str = "", since: float = 0.0, folder: str = ""
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
            records.add_ticks(mirror, int(key), node["header"], node["rows"])
        mirror.save()
    return {"nodes": nodes, "names": sorted(found), "until": until}
