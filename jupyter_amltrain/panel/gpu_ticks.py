"""Ticks of GPUs as the panel's charts get them: one table over all nodes, packed for the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent.gpu_names import gpu_name
from jupyter_amltrain.runs.store import Entry
from jupyter_amltrain.runs.telemetry import MIB, NodeTelemetry, known

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]
    Float64 = NDArray[np.float64]

#: Ticks of the past that a page gets at first.
FIRST = 600
#: A node whose newest tick is so many periods old is waited for no longer.
_STALE = 4.0
#: In uint8: cannot tell.
_HOLE = 255


class GpuTicks:
    """What one page has got of one source. The first node's clock is the table's.

    Parameters
    ----------
    entry
        The run, or the monitor.
    """

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._shape: tuple[Any, ...] | None = None
        self._sent = 0  #: number of the first node's next tick

    def _nodes(self) -> list[NodeTelemetry]:
        return list(self.entry.telemetry.nodes())

    def next(self) -> tuple[dict[str, Any], list[bytes]] | None:
        """Fields of the next event and its buffers; ``None`` when nothing is new.

        The first one, and one after the machine's devices have changed, brings the past too.
        """
        nodes = self._nodes()
        if not nodes:
            return None
        shape = tuple((node.node, id(node.columns)) for node in nodes)
        first = shape != self._shape
        if first:
            self._sent = max(0, nodes[0].ticks - FIRST)
        t, own = nodes[0].since(self._sent)
        late = t > self._ready(nodes)
        if late.any():
            t, own = t[: late.argmax()], own[:, : late.argmax()]
        if not len(t) and not first:
            return None
        behind = nodes[0].ticks - self._sent  # of the first node; the others may tick a little more often
        self._sent = max(self._sent, nodes[0].ticks - nodes[0].held) + len(t)
        self._shape = shape
        fields: dict[str, Any] = {"n": len(t), "first": first, "period": _period(nodes[0]), "lost": _lost(nodes)}
        if first:
            fields |= _facts(nodes)
        return fields, self._packed(nodes, t, own, behind + 60)

    def _ready(self, nodes: list[NodeTelemetry]) -> float:
        """Unix seconds up to which all nodes that still tick have told."""
        period, newest = _period(nodes[0]), nodes[0].last_t or 0.0
        if self.entry.run.status.state.terminal:
            return float("inf")
        others = [node.last_t for node in nodes[1:] if node.last_t is not None]
        return min((t + period / 2 for t in others if newest - t < _STALE * period), default=float("inf"))

    def _packed(self, nodes: list[NodeTelemetry], t: Float64, own: Float32, look: int) -> list[bytes]:
        import numpy as np

        utils, memories = [], []
        for node in nodes:
            values = own if node is nodes[0] else _at(node, t, look)
            for i, gpu in enumerate(node.gpus):
                name = f"gpu{gpu.get('index', i)}"
                total = known(gpu.get("memory_total"))
                used = _row(node, values, f"{name}.memory")
                utils.append(_percent(_row(node, values, f"{name}.util")))
                memories.append(_percent(used / total * 100 if total else np.full(len(t), np.nan)))
        empty = np.zeros((0, len(t)), np.uint8)
        host = np.stack(_host(nodes[0], own, self.entry.kind), axis=1)
        return [
            t.astype(np.float64).tobytes(),
            np.ascontiguousarray(np.array(utils or empty, dtype=np.uint8).T).tobytes(),
            np.ascontiguousarray(np.array(memories or empty, dtype=np.uint8).T).tobytes(),
            host.astype(np.float32).tobytes(),
        ]

    def mean(self) -> float | None:
        """Mean utilization of all GPUs now, percent; ``None`` when nothing is measured."""
        import numpy as np

        found = []
        for node in self._nodes():
            if node.ticks:
                newest = node.ring[:, (node.ticks - 1) % len(node.t)]
                names = [f"gpu{gpu.get('index', i)}.util" for i, gpu in enumerate(node.gpus)]
                found += [float(newest[node.index[name]]) for name in names if name in node.index]
        told = [value for value in found if not np.isnan(value)]
        return round(sum(told) / len(told), 1) if told else None

    @property
    def count(self) -> int:
        """GPUs of all nodes."""
        return sum(len(node.gpus) for node in self._nodes())


def _at(node: NodeTelemetry, t: Float64, look: int) -> Float32:
    """All columns of a node at the times `t`, ``(columns, n)``; NaN where it said nothing near."""
    import numpy as np

    times, rows = node.since(max(0, node.ticks - look))
    out = np.full((len(node.columns), len(t)), np.nan, np.float32)
    if not len(times) or not len(t):
        return out
    where = np.clip(np.searchsorted(times, t), 0, len(times) - 1)
    before = np.maximum(where - 1, 0)
    nearer = np.abs(times[before] - t) < np.abs(times[where] - t)
    where = np.where(nearer, before, where)
    near = np.abs(times[where] - t) <= _period(node)
    out[:, near] = rows[:, where[near]]
    return out


def _row(node: NodeTelemetry, values: Float32, name: str) -> Float32:
    import numpy as np

    column = node.index.get(name, -1)
    row: Float32 = values[column] if column >= 0 else np.full(values.shape[1], np.nan, np.float32)
    return row


def _percent(row: Any) -> Any:
    import numpy as np

    return np.where(np.isnan(row), _HOLE, np.clip(np.rint(np.nan_to_num(row)), 0, 100)).astype(np.uint8)


def _host(node: NodeTelemetry, values: Float32, kind: str) -> list[Any]:
    """Percent of one core and bytes: of the run's processes, or of the whole machine of a monitor."""
    if kind == "run":
        return [_row(node, values, "cpu"), _row(node, values, "memory")]
    cores = known(node.header.get("cpus")) or 1.0
    return [_row(node, values, "host_cpu") * cores, _row(node, values, "host_memory")]


def _lost(nodes: list[NodeTelemetry]) -> tuple[int, ...]:
    """Places of lost GPUs among those of all nodes."""
    flags = [node.is_lost(i) for node in nodes for i in range(len(node.gpus))]
    return tuple(place for place, lost in enumerate(flags) if lost)


def _facts(nodes: list[NodeTelemetry]) -> dict[str, Any]:
    gpus = [(node, i, gpu) for node in nodes for i, gpu in enumerate(node.gpus)]
    totals = [known(gpu.get("memory_total")) for _, _, gpu in gpus]
    cpus = known(nodes[0].header.get("cpus"))
    return {
        "labels": tuple(f"{node.node}:{gpu.get('index', i)}" for node, i, gpu in gpus),
        "titles": tuple(gpu_name({"index": i, **gpu}) for _, i, gpu in gpus),
        "names": tuple(str(gpu.get("name") or "") for _, _, gpu in gpus),
        "memory": tuple(None if total is None else total * MIB for total in totals),
        "cpus": None if cpus is None else int(cpus),
        "host_memory": known(nodes[0].header.get("memory_total")),
    }


def note_of(entry: Entry) -> str:
    """What the samplers say of the driver, or why there is nothing; one sentence."""
    nodes = list(entry.telemetry.nodes())
    note = "; ".join(dict.fromkeys(node.note for node in nodes if node.note))
    if note or nodes:
        return note
    if entry.run.error and entry.kind == "monitor":
        return entry.run.error
    if not entry.run.reachable:
        return f"Target {entry.run.target!r} is not responding."
    if entry.run.status.state.terminal:
        return "No samples were taken of this run: it was too short, never started, or its machine cannot tell."
    return ""


def _period(node: NodeTelemetry) -> float:
    return known(node.header.get("period")) or 1.0
