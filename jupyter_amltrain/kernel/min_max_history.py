"""Minimum, mean and maximum over time at constant cost: buckets that are merged in pairs when all are used.

The page does the same with its ticks (``labextension/src/widgets/pyramid.ts``); both follow
this description and :mod:`jupyter_amltrain.agent.telemetry.reduce`. A bucket holds up to `width` ticks. A tick
that does not fit into the last bucket opens a new one; when all are used, neighbors are merged (minimum
of the minima, maximum of the maxima, mean weighted by its number of values) and the width doubles. A
tick costs O(columns) for any length of the run, and no spike is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]
    Float64 = NDArray[np.float64]

#: Maximum buckets of a history; even.
MAX_BUCKETS = 1024


class MinMaxHistory:
    """Minimum, mean and maximum of every column in at most `buckets` intervals of time.

    Parameters
    ----------
    columns
        Number of series.

    Attributes
    ----------
    t
        float64 ``(buckets,)``: unix seconds of each bucket's first tick.
    values
        float32 ``(3, columns, buckets)``: minimum, mean, maximum; NaN if unknown.
    count
        Buckets in use.
    width
        Ticks that a bucket holds.
    filled
        Ticks in the last bucket.
    """

    def __init__(self, columns: int, buckets: int = MAX_BUCKETS) -> None:
        import numpy as np

        self.t: Float64 = np.zeros(buckets)
        # The values of a bucket are contiguous, because a tick changes one bucket.
        self.values: Float32 = np.full((buckets, 3, columns), np.nan, np.float32).transpose(1, 2, 0)
        self._weights: Float32 = np.zeros((buckets, columns), np.float32).T
        self.count, self.width, self.filled = 0, 1, 0

    def add(self, t: Float64, rows: Float32) -> None:
        """Add ticks in their order.

        Parameters
        ----------
        t
            ``(k,)`` unix seconds.
        rows
            ``(k, columns)``.
        """
        import numpy as np

        at = 0
        while at < len(t):
            room = self.width - self.filled if self.count else 0
            take = min(room or self.width, len(t) - at)
            piece = rows[at : at + take]
            known = (~np.isnan(piece)).sum(axis=0)
            mean = piece[0] if take == 1 else known_mean(piece)
            self._put(t[at], take, np.fmin.reduce(piece), mean, np.fmax.reduce(piece), known)
            at += take

    def add_block(self, t: float, ticks: int, low: Float32, mean: Float32, high: Float32) -> None:
        """Add the aggregate of `ticks` ticks from time `t` on as one piece."""
        import numpy as np

        while self.width < ticks:
            self._merge()
        self._put(t, ticks, low, mean, high, np.where(np.isnan(mean), 0, ticks))

    def _put(self, t: Any, ticks: int, low: Float32, mean: Float32, high: Float32, known: Any) -> None:
        import numpy as np

        if not self.count or self.filled + ticks > self.width:
            if self.count == len(self.t):
                self._merge()
            if not self.count or self.filled + ticks > self.width:
                k = self.count
                self.t[k], self.count, self.filled = t, k + 1, ticks
                self.values[0, :, k], self.values[1, :, k], self.values[2, :, k] = low, mean, high
                self._weights[:, k] = known
                return
        k = self.count - 1
        self.filled += ticks
        minimum, middle, maximum, weights = *self.values[:, :, k], self._weights[:, k]
        np.fmin(minimum, low, out=minimum)
        np.fmax(maximum, high, out=maximum)
        if known.all() and weights.all():
            middle[:] = (middle * weights + mean * known) / (weights + known)
        else:
            middle[:] = _mean(middle, weights, mean, known)
        weights += known

    def _merge(self) -> None:
        """Merge each pair of adjacent buckets."""
        import numpy as np

        n = self.count
        pairs, odd = n // 2, n % 2
        left, right = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        v, w = self.values, self._weights
        merged = np.stack(
            [
                np.fmin(v[0, :, left], v[0, :, right]),
                _mean(v[1, :, left], w[:, left], v[1, :, right], w[:, right]),
                np.fmax(v[2, :, left], v[2, :, right]),
            ]
        )
        weights = w[:, left] + w[:, right]
        last = v[:, :, n - 1].copy(), w[:, n - 1].copy(), self.t[n - 1]
        self.t[:pairs] = self.t[left]
        v[:, :, :pairs], w[:, :pairs] = merged, weights
        if odd:
            v[:, :, pairs], w[:, pairs], self.t[pairs] = last
        else:
            self.filled += self.width if n else 0
        self.count = pairs + odd
        self.width *= 2
        v[:, :, self.count :] = np.nan
        w[:, self.count :] = 0


def known_mean(rows: Float32) -> Float32:
    """Mean of each column's known values; NaN without any.

    ``np.nanmean`` warns about empty columns, and silencing it would change the warning filters of
    the whole process while a cell runs.
    """
    import numpy as np

    known = ~np.isnan(rows)
    number = known.sum(axis=0)
    total = np.where(known, rows, 0).sum(axis=0, dtype=np.float64)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan).astype(np.float32)


def known_mean_at(values: Float32, starts: NDArray[np.int64]) -> Float32:
    """Mean of the known values of each row in the intervals that begin at `starts`: ``(rows, intervals)``."""
    import numpy as np

    known = ~np.isnan(values)
    total = np.add.reduceat(np.where(known, values, 0), starts, axis=1)
    number = np.add.reduceat(known.astype(np.float32), starts, axis=1)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan).astype(np.float32)


def _mean(a: Float32, weight_a: Any, b: Float32, weight_b: Any) -> Float32:
    import numpy as np

    with np.errstate(invalid="ignore", divide="ignore"):  # without values 0 / 0 is NaN
        total = np.where(weight_a > 0, a, 0) * weight_a + np.where(weight_b > 0, b, 0) * weight_b
        mean: Float32 = (total / (weight_a + weight_b)).astype(np.float32)
    return mean
