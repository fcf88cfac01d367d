"""The GPUs of a run or monitor in its record, from its telemetry."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_amltrain.agent.telemetry.gpu_columns import ACTIVITY, BY_NAME, GPU_COLUMNS, LAST, MAX, MIN
from jupyter_amltrain.agent.telemetry.gpu_names import gpu_name
from jupyter_amltrain.agent.telemetry.torch_memory import TORCH
from jupyter_amltrain.kernel.min_max_history import known_mean
from jupyter_amltrain.kernel.run_charts import HEAT_GPUS, MAX_LINES
from jupyter_amltrain.kernel.samples import whole_percents
from jupyter_amltrain.kernel.telemetry import MIB, NodeTelemetry, RunTelemetry, grid, known, on_grid
from jupyter_amltrain.schema.record import (
    GpuBand,
    GpuHeat,
    GpuProcess,
    GpuSeries,
    GpuTelemetry,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]

#: Columns whose newest values the table shows in a way of their own.
_OWN_READINGS = ("util", "memory", "power", "temperature", "sm_clock", "mem_clock", "throttle", "ecc")
#: Other columns whose newest values it shows, where the device has them.
TABLE_FIGURES = tuple(column.name for column in GPU_COLUMNS if column.heading and column.name not in _OWN_READINGS)

#: Series of a record with their decimals and factor.
_SERIES = {"util": (1, 1.0), "peak": (0, 1.0), "memory": (0, MIB), "power": (1, 1.0), ACTIVITY: (0, 1.0)}

#: Series of which many GPUs have a mean and a range.
_BAND_FIELDS = ("util", "peak", "memory", "power")

#: Rows of a table of minimum, mean and maximum.
_ROWS = {MIN: 0, MAX: 2, LAST: 2}

#: More GPUs than this are listed without UUIDs and current readings.
MANY_GPUS = 64

#: Points of a series, columns of the heat map, rows of the process table.
POINTS, HEAT_COLUMNS, PROCESSES = 150, 75, 20

#: Maximum cells of the heat map, 2 bytes each.
_HEAT_CELLS = 16_000

# nvml.h, nvmlClocksEventReasons, as text; 0x1 is an idle GPU.
_THROTTLE = {
    0x2: "app clocks",
    0x4: "power cap",
    0x8: "hw slowdown",
    0x10: "sync boost",
    0x20: "sw thermal",
    0x40: "hw thermal",
    0x80: "power brake",
    0x100: "display",
}

_THROTTLE_IDLE = 0x1


def throttle_text(mask: int) -> str:
    """Return the reasons for reduced clocks, separated by commas; unknown bits as a number."""
    words = [word for bit, word in _THROTTLE.items() if mask & bit]
    rest = mask & ~(sum(_THROTTLE) | _THROTTLE_IDLE)
    return ", ".join(words + ([f"0x{rest:x}"] if rest else []))


def gpu_record(
    telemetry: RunTelemetry, ended: bool, *, series: bool = True, max_now: int | None = None
) -> GpuTelemetry | None:
    """Build the GPU part of a record; ``None`` without data.

    Parameters
    ----------
    series
        Include what has happened so far. Without it the part of 1,024 GPUs takes milliseconds.
    max_now
        Leave out the current readings if there are more GPUs than this.
    """
    nodes = list(telemetry.nodes())
    if not nodes:
        return None
    gpus = [(node, i) for node in nodes for i in range(len(node.gpus))]
    facts = tuple(_facts(node, i, with_uuid=len(gpus) <= MANY_GPUS) for node, i in gpus)
    unread = ended or (max_now is not None and len(gpus) > max_now)
    common: dict[str, Any] = {
        "nodes": tuple(str(node.header.get("host") or f"node {node.node}") for node in nodes),
        "source": _source(nodes),
        "age": age_of(telemetry, ended),
        "note": note_of(telemetry),
        "processes": tuple(_processes(nodes)),
        "now": ({},) * len(gpus) if unread else tuple(_now(node, i) for node, i in gpus),
    }
    if not gpus or not series:
        return GpuTelemetry(gpus=facts, **common)
    begins = grid(nodes, POINTS)
    tables = _tables(nodes, tuple(_SERIES) if len(gpus) <= MAX_LINES else _BAND_FIELDS, begins)
    times = tuple(round(float(t), 2) for t in begins)
    if len(gpus) >= HEAT_GPUS:
        common["heat"] = _heat(nodes, [(f.node, f.index) for f in facts])
    if len(gpus) <= MAX_LINES:
        return GpuTelemetry(t=times, gpus=tuple(_with_series(f, k, tables) for k, f in enumerate(facts)), **common)
    return GpuTelemetry(
        t=times,
        gpus=facts,
        util=_band(tables["util"], high=tables["peak"]),
        memory=_band(tables["memory"], MIB),
        power=_band(tables["power"]),
        **common,
    )


def note_of(telemetry: RunTelemetry) -> str:
    """Return the notes of all nodes, each once."""
    return "; ".join(dict.fromkeys(note for node in telemetry.nodes() if (note := node.note)))


def age_of(telemetry: RunTelemetry, ended: bool) -> float | None:
    """Return the seconds since the newest tick; ``None`` before the first and after the run."""
    last = telemetry.last_t
    return None if ended or last is None else max(0.0, round(time.time() - last, 1))


def _source(nodes: Sequence[NodeTelemetry]) -> str:
    if source := nodes[0].header.get("source"):  # other sources than the agent name themselves
        return str(source)[:80]
    period = known(nodes[0].header.get("period")) or 1.0
    return f"agent, every {period:g} s"


def _facts(node: NodeTelemetry, i: int, *, with_uuid: bool) -> GpuSeries:
    gpu = node.gpus[i]
    total = known(gpu.get("memory_total"))
    limit = node.slow[i].get("power_limit")
    return GpuSeries(
        node=node.node,
        index=int(gpu.get("index", i)),
        label=gpu_name({"index": i, **gpu}),
        name=str(gpu.get("name") or ""),
        uuid=str(gpu.get("uuid") or "") if with_uuid else "",
        memory_total=None if total is None else total * MIB,
        power_limit=known(limit if limit is not None else gpu.get("power_limit")),
        lost=node.is_lost(i),
    )


def _tables(nodes: Sequence[NodeTelemetry], fields: Sequence[str], begins: Any) -> dict[str, Float32]:
    """``(3, GPUs of all nodes, intervals)`` of each field."""
    import numpy as np

    parts: list[Float32] = [np.full((3, len(fields), 0, len(begins)), np.nan, np.float32)]
    for node in nodes:
        gpus = [gpu.get("index", i) for i, gpu in enumerate(node.gpus)]
        columns = [node.index.get(f"gpu{gpu}.{field}", -1) for field in fields for gpu in gpus]
        part = on_grid(node, begins, columns)
        part[:, [k for k, column in enumerate(columns) if column < 0]] = np.nan
        parts.append(part.reshape(3, len(fields), len(gpus), len(begins)))
    table = np.concatenate(parts, axis=2)
    return {field: table[:, k] for k, field in enumerate(fields)}


def _with_series(facts: GpuSeries, k: int, tables: dict[str, Float32]) -> GpuSeries:
    import numpy as np

    series = {name: (tables[name][_ROWS.get(BY_NAME[name].reducer, 1), k], how) for name, how in _SERIES.items()}
    return msgspec.structs.replace(
        facts,
        **{
            name: () if name == ACTIVITY and np.isnan(values).all() else _tuple(values, *how)
            for name, (values, how) in series.items()
        },
    )


def _tuple(values: Iterable[Any], digits: int, scale: float = 1.0) -> tuple[float | None, ...]:
    return tuple(None if v != v else round(float(v), digits) * scale for v in values)


def _band(table: Float32, scale: float = 1.0, high: Float32 | None = None) -> GpuBand:
    import numpy as np

    top = table[2] if high is None else np.fmax(table[2], high[2])
    return GpuBand(
        mean=_tuple(known_mean(table[1]), 1, scale),
        low=_tuple(np.fmin.reduce(table[0]), 1, scale),
        high=_tuple(np.fmax.reduce(top), 1, scale),
    )


def _heat(nodes: Sequence[NodeTelemetry], labels: Sequence[tuple[int, int]]) -> GpuHeat:
    import numpy as np

    most = max(2, min(HEAT_COLUMNS, _HEAT_CELLS // max(1, len(labels))))
    begins = grid(nodes, most)
    if len(begins) > 1:  # columns of equal duration
        last = max(node.last_t or 0.0 for node in nodes)
        begins = np.linspace(begins[0], max(last, begins[-1]), min(most, len(begins)), endpoint=False)
    util = _tables(nodes, ("util",), begins)["util"][1]
    cells = whole_percents(util).hex()
    return GpuHeat(labels=tuple(f"{n}:{i}" for n, i in labels), columns=len(begins), cells=cells)


def _processes(nodes: Sequence[NodeTelemetry]) -> list[GpuProcess]:
    """Return the largest processes: those of the run first."""
    rows = [
        (owner != "mine", -(known(memory) or 0), node, index, pid, owner, known(memory), name, share)
        for node in nodes
        for (index, pid, owner, memory, *name), share in zip(
            node.processes, (*node.shares, *[None] * len(node.processes)), strict=False
        )
    ]
    return [
        GpuProcess(
            node=node.node,
            index=int(index),
            pid=int(pid),
            owner=str(owner),
            memory=None if size is None else size * MIB,
            name=str(name[0])[:60] if name else "",
            label=_label(node, index),
            user=str(name[1])[:60] if len(name) > 1 else "",
            sm=share,
        )
        for _, _, node, index, pid, owner, size, name, share in heapq.nsmallest(
            PROCESSES, rows, key=lambda row: row[:2]
        )
    ]


def _label(node: NodeTelemetry, index: Any) -> str:
    gpus = [gpu for gpu in node.gpus if gpu.get("index") == index]
    return gpu_name(gpus[-1] if gpus else {"index": index})


def _now(node: NodeTelemetry, i: int) -> dict[str, Any]:
    """Newest readings of one GPU; ``None`` for values that the device does not report."""
    slow = node.slow[i]
    newest = (node.ticks - 1) % len(node.t) if node.ticks else None

    def reading(name: str) -> float | None:
        column = node.index.get(f"gpu{node.gpus[i].get('index', i)}.{name}")
        return None if column is None or newest is None else known(node.ring[column, newest])

    mask = known(slow.get("throttle"))
    values = {name: known(slow.get(name)) if name in slow else reading(name) for name in TABLE_FIGURES}
    figures = {name: value for name, value in values.items() if value is not None}
    return {
        "util": reading("util"),
        "memory": _bytes(reading("memory")),
        "power": reading("power"),
        **figures,
        "temperature": reading("temperature"),
        "sm_clock": reading("sm_clock"),
        "mem_clock": known(slow.get("mem_clock")),
        "throttle": None if mask is None else throttle_text(int(mask)),
        "ecc": known(slow.get("ecc")),
        "mine": _bytes(slow.get("mine")),
        "others": _bytes(slow.get("others")),
        **{name: value for name in TORCH if (value := known(slow.get(name))) is not None},
    }


def _bytes(mib: Any) -> float | None:
    value = known(mib)
    return None if value is None else value * MIB
