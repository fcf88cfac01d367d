"""What a record says of a run's GPUs, small whatever the run was."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent.gpu_columns import ACTIVITY, BY_NAME, FIGURES, LAST, MAX, MIN
from jupyter_amltrain.agent.gpu_names import gpu_name
from jupyter_amltrain.agent.torch_memory import TORCH
from jupyter_amltrain.runs.pyramid import known_mean
from jupyter_amltrain.runs.stretches import grid, on_grid
from jupyter_amltrain.runs.telemetry import MIB, NodeTelemetry, RunTelemetry, known
from jupyter_amltrain.spec.record import GpuBand, GpuHeat, GpuProcess, GpuSeries, GpuTelemetry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]

#: Figures whose newest values the table shows, where the device has them.
TABLE_FIGURES = tuple(column.name for column in FIGURES if column.heading)
#: Series of a record and how each is written down: decimals and factor.
_SERIES = {"util": (1, 1.0), "peak": (0, 1.0), "memory": (0, MIB), "power": (1, 1.0), ACTIVITY: (0, 1.0)}
#: Rows of a table of minimum, mean and maximum.
_ROWS = {MIN: 0, MAX: 2, LAST: 2}
#: GPUs that are drawn as lines of their own.
LINES = 8
#: Points of a series, columns of the heat map, rows of the process table.
POINTS, HEAT_COLUMNS, PROCESSES = 150, 75, 20

# nvml.h, nvmlClocksEventReasons, in words; 0x1 is a GPU that idles.
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
    """What holds the clocks down, separated by commas; bits that we do not know as a number."""
    words = [word for bit, word in _THROTTLE.items() if mask & bit]
    rest = mask & ~(sum(_THROTTLE) | _THROTTLE_IDLE)
    return ", ".join(words + ([f"0x{rest:x}"] if rest else []))


def gpu_record(telemetry: RunTelemetry, ended: bool) -> GpuTelemetry | None:
    """The GPUs' part of a record; ``None`` before anything is known."""
    nodes = list(telemetry.nodes())
    if not nodes:
        return None
    gpus = [(node, i) for node in nodes for i in range(len(node.gpus))]
    note = "; ".join(dict.fromkeys(node.note for node in nodes if node.note))
    facts = tuple(_facts(node, i) for node, i in gpus)
    common: dict[str, Any] = {
        "nodes": tuple(str(node.header.get("host") or f"node {node.node}") for node in nodes),
        "source": _source(nodes),
        "age": age_of(telemetry, ended),
        "note": note,
        "processes": tuple(_processes(nodes)),
        "now": tuple({} if ended else _now(node, i) for node, i in gpus),
    }
    if not gpus:
        return GpuTelemetry(**common)
    begins = grid(nodes, POINTS)
    tables = {field: _table(nodes, field, begins) for field in _SERIES}
    times = tuple(round(float(t), 2) for t in begins)
    if len(gpus) <= LINES:
        return GpuTelemetry(t=times, gpus=tuple(_with_series(f, k, tables) for k, f in enumerate(facts)), **common)
    return GpuTelemetry(
        t=times,
        gpus=facts,
        util=_band(tables["util"], high=tables["peak"]),
        memory=_band(tables["memory"], MIB),
        power=_band(tables["power"]),
        heat=_heat(nodes, [(f.node, f.index) for f in facts]),
        **common,
    )


def age_of(telemetry: RunTelemetry, ended: bool) -> float | None:
    """Seconds since the newest tick; ``None`` before the first and after the run."""
    last = telemetry.last_t
    return None if ended or last is None else max(0.0, round(time.time() - last, 1))


def _source(nodes: Sequence[NodeTelemetry]) -> str:
    if source := nodes[0].header.get("source"):  # who is no agent says what it is
        return str(source)[:80]
    period = known(nodes[0].header.get("period")) or 1.0
    return f"agent, every {period:g} s"


def _facts(node: NodeTelemetry, i: int) -> GpuSeries:
    gpu = node.gpus[i]
    total = known(gpu.get("memory_total"))
    limit = node.slow[i].get("power_limit")
    return GpuSeries(
        node=node.node,
        index=int(gpu.get("index", i)),
        label=gpu_name({"index": i, **gpu}),
        name=str(gpu.get("name") or ""),
        uuid=str(gpu.get("uuid") or ""),
        memory_total=None if total is None else total * MIB,
        power_limit=known(limit if limit is not None else gpu.get("power_limit")),
        lost=node.is_lost(i),
    )


def _table(nodes: Sequence[NodeTelemetry], field: str, begins: Any) -> Float32:
    """``(3, GPUs of all nodes, stretches)`` of one field."""
    import numpy as np

    parts = [np.full((3, 0, len(begins)), np.nan, np.float32)]
    for node in nodes:
        columns = [node.index.get(f"gpu{gpu.get('index', i)}.{field}", -1) for i, gpu in enumerate(node.gpus)]
        part = on_grid(node, begins, columns)
        part[:, [k for k, column in enumerate(columns) if column < 0]] = np.nan
        parts.append(part)
    return np.concatenate(parts, axis=1)


def _with_series(facts: GpuSeries, k: int, tables: dict[str, Float32]) -> GpuSeries:
    import msgspec
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

    begins = grid(nodes, HEAT_COLUMNS)
    if len(begins) > 1:  # columns of equal time
        last = max(node.last_t or 0.0 for node in nodes)
        begins = np.linspace(begins[0], max(last, begins[-1]), min(HEAT_COLUMNS, len(begins)), endpoint=False)
    util = _table(nodes, "util", begins)[1]
    cells = np.where(np.isnan(util), 255, np.clip(np.rint(util), 0, 100)).astype(np.uint8)
    return GpuHeat(labels=tuple(f"{n}:{i}" for n, i in labels), columns=len(begins), cells=cells.tobytes().hex())


def _processes(nodes: Sequence[NodeTelemetry]) -> list[GpuProcess]:
    found = []
    for node in nodes:
        labels = {gpu.get("index"): gpu_name(gpu) for gpu in node.gpus}
        shares = [*node.shares, *[None] * len(node.processes)]
        for (index, pid, owner, memory, *name), share in zip(node.processes, shares, strict=False):
            size = known(memory)
            found.append(
                GpuProcess(
                    node=node.node,
                    index=int(index),
                    pid=int(pid),
                    owner=str(owner),
                    memory=None if size is None else size * MIB,
                    name=str(name[0])[:60] if name else "",
                    label=labels.get(index) or gpu_name({"index": index}),
                    user=str(name[1])[:60] if len(name) > 1 else "",
                    sm=share,
                )
            )
    found.sort(key=lambda p: (p.owner != "mine", -(p.memory or 0)))
    return found[:PROCESSES]


def _now(node: NodeTelemetry, i: int) -> dict[str, Any]:
    """Newest readings of one GPU; what the device cannot tell is ``None``."""
    slow = node.slow[i]
    newest = (node.ticks - 1) % len(node.t) if node.ticks else None

    def reading(name: str) -> float | None:
        column = node.index.get(f"gpu{node.gpus[i].get('index', i)}.{name}")
        return None if column is None or newest is None else known(node.ring[column, newest])

    mask = known(slow.get("throttle"))
    figures = {name: value for name in TABLE_FIGURES if (value := reading(name)) is not None}
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
