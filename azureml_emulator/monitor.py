"""Azure Monitor's platform metrics of a workspace: GPU series of running jobs, one value a minute.

Metric names and dimensions: Azure's table of supported metrics of ``Microsoft.MachineLearningServices/workspaces``;
shape: the reference of ``Metrics - List``. No recording shows either (assumed).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from azureml_emulator import gpus
from azureml_emulator.job_runs import Jobs, Run
from azureml_emulator.routing import Call, Routes

routes = Routes()

_METRICS: dict[str, tuple[str, Callable[[int, float], float]]] = {
    "GpuUtilizationPercentage": ("Percent", lambda gpu, at: float(gpus.utilization(gpu, at))),
    "GpuUtilization": ("Count", lambda gpu, at: float(gpus.utilization(gpu, at))),
    "GpuMemoryUtilizationPercentage": ("Percent", lambda gpu, at: 100.0 * gpus.memory(gpu, at) / gpus.MEMORY),
    "GpuMemoryUtilization": ("Count", lambda gpu, at: 100.0 * gpus.memory(gpu, at) / gpus.MEMORY),
    "GpuMemoryUtilizationMegabytes": ("Count", lambda gpu, at: float(gpus.memory(gpu, at))),
    "GpuMemoryCapacityMegabytes": ("Count", lambda gpu, at: float(gpus.MEMORY)),
    "GpuEnergyJoules": ("Count", lambda gpu, at: 40.0 + 2 * gpus.utilization(gpu, at)),
}


@routes.arm("GET", "{ws}/providers/microsoft.insights/metrics")
async def metrics(call: Call) -> Any:
    """Series by the filter's dimensions (``RunId eq '..' and DeviceId eq '*'``)."""
    begin, end = _span(call.query.get("timespan", ""))
    wanted = dict(re.findall(r"(\w+)\s+eq\s+'([^']*)'", call.query.get("$filter", "")))
    aggregations = [one.strip().lower() for one in call.query.get("aggregation", "Average").split(",")]
    metric_names = [one for one in call.query.get("metricnames", "").split(",") if one]
    runs = [run for run in call.world.part(Jobs).runs.values() if run.workspace_id == call.workspace_id]
    end = min(end, time.time() - float(call.world.switches["monitor_delay"]))
    value = []
    for name in metric_names:
        known = next((one for one in _METRICS if one.lower() == name.lower()), None)
        series = [] if known is None else _series(known, runs, wanted, begin, end, aggregations)
        value.append(
            {
                "id": f"{call.workspace_id}/providers/Microsoft.Insights/metrics/{name}",
                "type": "Microsoft.Insights/metrics",
                "name": {"value": name, "localizedValue": name},
                "displayDescription": "",
                "unit": _METRICS[known][0] if known else "Count",
                "timeseries": series,
                "errorCode": "Success",
            }
        )
    return {
        "cost": 0,
        "timespan": f"{_stamp(begin)}/{_stamp(end)}",
        "interval": "PT1M",
        "value": value,
        "namespace": "microsoft.machinelearningservices/workspaces",
        "resourceregion": call.world.location,
    }


def _series(
    name: str, runs: list[Run], wanted: dict[str, str], begin: float, end: float, aggregations: list[str]
) -> list[dict[str, Any]]:
    curve = _METRICS[name][1]
    found = []
    for run in runs:
        for device in range(run.nodes * run.gpus if run.began else 0):
            node, gpu = divmod(device, run.gpus)
            dimensions = {
                "RunId": run.name,
                "InstanceId": f"node-{node}",
                "NodeId": f"node-{node}",
                "DeviceId": str(gpu),
                "ComputeName": run.cluster or "serverless",
                "ClusterName": run.cluster or "serverless",
            }
            by_name = {key.lower(): (key, value) for key, value in dimensions.items()}
            if any(
                requested != "*" and by_name.get(key.lower(), ("", requested))[1] != requested
                for key, requested in wanted.items()
            ):
                continue
            data = []
            minute = int(max(begin, run.began) // 60) * 60
            last = min(end, run.ended or end)
            while minute < last:
                values = [curve(gpu, age) for age in sampled(minute, run.began, last)]
                if values:
                    data.append({"timeStamp": _stamp(minute), **_aggregated(values, aggregations)})
                minute += 60
            shown = [by_name[key.lower()] for key in wanted if key.lower() in by_name]
            metadata = [
                {"name": {"value": key.lower(), "localizedValue": key.lower()}, "value": requested}
                for key, requested in shown
            ]
            found.append({"metadatavalues": metadata, "data": data})
    return found


def sampled(minute: float, began: float, last: float) -> range:
    """Ages of a run (s) at which it was sampled within this minute: when it began, and every two seconds from there."""
    first = max(0, math.ceil((minute - began) / 2))
    return range(2 * first, max(0, math.ceil(min(minute + 60, last) - began)), 2)


def _aggregated(values: list[float], wanted: list[str]) -> dict[str, float]:
    known = {"average": sum(values) / len(values), "maximum": max(values), "minimum": min(values), "total": sum(values)}
    return {name: round(known[name], 3) for name in wanted if name in known}


def _span(text: str) -> tuple[float, float]:
    parts = text.split("/")
    if len(parts) != 2:
        return time.time() - 3600, time.time()
    begin, end = (datetime.fromisoformat(part.replace("Z", "+00:00")) for part in parts)
    return begin.timestamp(), end.timestamp()


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
