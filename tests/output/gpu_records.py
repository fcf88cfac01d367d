"""Records of runs with GPUs, as JSON: what the picture's tests draw."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from jupyter_amltrain.kernel.gpu_tables import gpu_tables
from jupyter_amltrain.kernel.run_charts import charts_of
from jupyter_amltrain.schema.record import RunRecord

START = 1_700_000_000.0
GIB = 2**30
TOTAL = 79.65 * GIB


def gpu_part(gpus: int, nodes: int = 1, seconds: float = 3600, idle: bool = False, points: int = 150) -> dict[str, Any]:
    """The field `gpu` of a record with `gpus` GPUs over all nodes."""
    times = [START + i * seconds / (points - 1) for i in range(points)]
    each = gpus // nodes
    found, rows = [], []
    for k in range(gpus):
        util = [0.0 if idle else _util(i / points, k) for i in range(points)]
        memory = [4 * 2**20 if idle else min(40 + k % 8, 3.0 * (i + 1)) * GIB for i in range(points)]
        power = [68.0 + (0 if idle else 5.6 * u) for u in util]
        facts = {"node": k // each, "index": k % each, "name": "NVIDIA H100 80GB HBM3", "uuid": f"GPU-{k}"}
        facts.update(memory_total=TOTAL, power_limit=700.0)
        peak = [min(100.0, u + 12) if u else 0.0 for u in util]
        found.append({**facts, "util": util, "peak": peak, "memory": memory, "power": power})
        rows.append({"util": util, "memory": memory, "power": power})
    part: dict[str, Any] = {"t": times, "gpus": found, "nodes": [f"worker-{n}" for n in range(nodes)], "now": []}
    part.update(source="agent, every 1 s", age=None, note="", processes=[])
    if gpus > 8:
        for name in ("util", "memory", "power"):
            columns = list(zip(*(row[name] for row in rows), strict=True))
            part[name] = {
                "mean": [sum(c) / len(c) for c in columns],
                "low": [min(c) for c in columns],
                "high": [max(c) for c in columns],
            }
        cells = "".join(f"{round(rows[k]['util'][2 * i]):02x}" for k in range(gpus) for i in range(75))
        part["heat"] = {"labels": [f"{k // each}:{k % each}" for k in range(gpus)], "columns": 75, "cells": cells}
        bare = ("util", "peak", "memory", "power")
        part["gpus"] = [{**gpu, **dict.fromkeys(bare, [])} for gpu in found]
    return part


def _util(x: float, k: int) -> float:
    if x < 0.04 or (k % 11 == 5 and 0.5 < x < 0.7):
        return 0.0
    return max(0.0, min(100.0, 78 + 12 * math.sin(25 * x + k) + 6 * math.sin(170 * x + 3 * k) - 1.2 * (k % 8)))


def summary(gpus: int, nodes: int = 1) -> dict[str, Any]:
    """The field `summary` of an ended run's record."""
    each = gpus // nodes
    one = {"name": "NVIDIA H100 80GB HBM3", "memory_total": 81_559, "util_p50": 78, "util_p95": 94, "power_mean": 480.0}
    one.update(idle_share=0.04, energy_wh=481.25, first_use=3.2, temperature_max=66)
    found = [
        {
            **one,
            "node": k // each,
            "index": k % each,
            "util_mean": 74.0 + k % 8,
            "memory_peak": 40_960,
            "memory_mean": 39_000,
        }
        for k in range(gpus)
    ]
    return {
        "seconds": 3600.0,
        "gpus": found,
        "cpu_mean": 180.0,
        "cpu_peak": 220.0,
        "memory_peak": 3e9,
        "cpus": 8,
        "hint": "",
    }


def with_charts(record: dict[str, Any]) -> dict[str, Any]:
    """A record as a kernel sends it: with every field, the charts of its series, and its tables."""
    least = {
        "handle": "local/r-1",
        "run_id": "r-1",
        "name": "r",
        "target": "local",
        "experiment": "e",
        "state": "running",
    }
    whole = msgspec.convert({**least, **record}, RunRecord)
    return msgspec.to_builtins(msgspec.structs.replace(whole, charts=charts_of(whole), tables=gpu_tables(whole)))


def gpu_record(gpus: int, nodes: int = 1, **changes: Any) -> dict[str, Any]:
    """A record without its charts."""
    wave = [math.exp(-i / 60) + 0.05 * math.sin(i) for i in range(300)]
    series = {"step": list(range(300)), "value": wave, "last": wave[-1], "n": 300}
    times = [START + 12 * i for i in range(300)]
    phases = [("queued", -1, 0), ("preparing", 0, 100), ("running", 100, 3500), ("finalizing", 3500, 3600)]
    record = {
        "handle": "gpubox/resnet-k3f9",
        "name": "resnet",
        "state": "completed",
        "done": True,
        "phases": [{"name": n, "start": START + a, "end": START + b, "seconds": b - a} for n, a, b in phases],
        "params": {"lr": 0.1, "batch": 512},
        "outputs": {"accuracy": 0.97},
        "metrics": dict.fromkeys(("loss", "val_loss", "accuracy"), series),
        "telemetry": {
            "t": times,
            "cpu": [180 + 20 * math.sin(i / 9) for i in range(300)],
            "memory": [3e9 + 1e6 * i for i in range(300)],
            "cpus": 8,
        },
        "gpu": gpu_part(gpus, nodes) if gpus else None,
        "summary": summary(gpus, nodes) if gpus else {},
    }
    return {**record, **changes}
