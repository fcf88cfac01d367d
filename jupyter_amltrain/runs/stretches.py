"""Histories cut into few stretches of time, for pictures and records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jupyter_amltrain.runs.pyramid import known_mean_at
from jupyter_amltrain.runs.telemetry import NodeTelemetry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]
    Float64 = NDArray[np.float64]


def grid(nodes: Sequence[NodeTelemetry], points: int) -> Float64:
    """Unix seconds at which at most `points` stretches begin, common to all nodes."""
    import numpy as np

    ticked = [node for node in nodes if node.columns and node.pyramid.count]
    if not ticked:
        return np.zeros(0)
    t = _times(max(ticked, key=lambda node: node.pyramid.count))
    if len(t) > points:
        t = t[np.linspace(0, len(t) - 1, points + 1)[:-1].astype(int)]
    first = min(float(_times(node)[0]) for node in ticked)
    begins: Float64 = t.copy()
    begins[0] = min(begins[0], first)
    return begins


def _times(node: NodeTelemetry) -> Float64:
    """When each stretch of a node's history began, unix seconds that never go back.

    Where the machine's clock was set back, what was before is moved with it: the newest clock is right.
    """
    import numpy as np

    t = node.pyramid.t[: node.pyramid.count]
    steps = np.diff(t)
    if not (steps < 0).any():
        return t
    usual = np.median(steps[steps > 0]) if (steps > 0).any() else 0.0
    steps = np.where(steps < 0, usual, steps)
    moved: Float64 = t[-1] - np.append(np.cumsum(steps[::-1])[::-1], 0)
    return moved


def on_grid(node: NodeTelemetry, begins: Float64, columns: Sequence[int]) -> Float32:
    """Least, mean and most of some columns in each stretch: ``(3, columns, stretches)``; NaN for holes."""
    import numpy as np

    out = np.full((3, len(columns), len(begins)), np.nan, np.float32)
    count = node.pyramid.count
    if not count or not len(begins) or not len(columns):
        return out
    where = np.clip(np.searchsorted(begins, _times(node), "right") - 1, 0, None)
    used, starts = np.unique(where, return_index=True)
    values = node.pyramid.values[:, list(columns), :count]
    out[0][:, used] = np.fmin.reduceat(values[0], starts, axis=1)
    out[2][:, used] = np.fmax.reduceat(values[2], starts, axis=1)
    out[1][:, used] = known_mean_at(values[1], starts)
    return out
