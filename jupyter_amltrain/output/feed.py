"""Kernel side of a live dashboard: sends each new tick once, in binary messages.

One node sends each tick as it comes. The ticks of several nodes wait for each other for a moment and
travel in one message, because a message costs as much as hundreds of values; see :meth:`StreamFeed.push`.

The page side (``labextension/src/widgets/feed.ts``) stores ring and history and sets them on
the bqplot marks, so that a tick costs the same in hour 24 as in minute 1. The kernel only
sends on this comm. Pages send requests on the control channel, because it works while a cell
runs, and because ipykernel 7.4 re-routes a comm on which both a background thread and the
page send.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets
import traitlets
from ipywidgets.widgets.widget import widget_serialization

from jupyter_amltrain.kernel.telemetry import RING_TICKS, NodeTelemetry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MODULE, MODULE_VERSION = "jupyter-amltrain", "^0.1.0"

#: See :attr:`StreamFeed.delay`: however many nodes, a dashboard sends at most 50 messages per second.
_DELAY_PER_NODE_S = 0.01

#: Head of a node's ticks in a message of several nodes; little-endian.
_HEAD = [("node", "<u2"), ("count", "<u2"), ("first", "<u4")]


class Columns:
    """The series of a node that a page receives, and their encoding.

    Parameters
    ----------
    names
        Series of the node in wire order. Unknown series are sent as NaN.
    """

    def __init__(self, node: NodeTelemetry, names: Sequence[str]) -> None:
        self.node = node
        self.names = tuple(names)
        self._of = node.columns
        self._index = [node.index.get(name, -1) for name in names]

    @property
    def stale(self) -> bool:
        """Whether the node's series have changed since this object was created."""
        return self._of is not self.node.columns

    def _pick(self, table: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the rows of `table` (series first) that are sent."""
        import numpy as np

        picked = table[self._index]
        if -1 in self._index:
            picked[[k for k, i in enumerate(self._index) if i < 0]] = np.nan
        return np.ascontiguousarray(picked, dtype=np.float32)

    def ticks(self, first: int) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return times ``(k,)`` and values ``(columns, k)`` of the ticks from number `first` on."""
        t, rows = self.node.since(first)
        return t, self._pick(rows)

    def frames(self, first: int) -> Iterable[tuple[dict[str, Any], list[bytes]]]:
        """Yield messages with the ticks from number `first` on."""
        t, rows = self.ticks(first)
        if not len(t):
            return
        head: dict[str, Any] = {"n": self.node.node, "s": self.node.ticks - len(t)}
        if len(t) == 1:
            yield head, [t.tobytes() + rows.tobytes()]
        else:
            yield {**head, "k": len(t)}, [t.tobytes(), rows.tobytes()]

    def snapshot(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return ring and history as of now: head, and the buffers ``[x, y, buckets]``.

        Safe on any thread: a reloaded page requests the state of every widget, and the main
        thread replies while the loop adds ticks.
        """
        while True:
            before = self.node.changes
            try:
                snapshot = self._snapshot()
            except (IndexError, ValueError):
                if before == self.node.changes:
                    raise
                continue
            if not before % 2 and before == self.node.changes:
                return snapshot
            time.sleep(0)  # yield to the loop thread

    def _snapshot(self) -> tuple[dict[str, Any], list[bytes]]:
        t, rows = self.node.since(0)
        pyramid = self.node.history
        count = pyramid.count
        buckets = pyramid.t[:count].tobytes()
        for values in pyramid.values:
            buckets += self._pick(values[:, :count]).tobytes()
        head = {
            "n": self.node.node,
            "s": self.node.ticks,
            "k": len(t),
            "b": count,
            "w": pyramid.width,
            "p": pyramid.filled,
        }
        return head, [t.tobytes(), self._pick(rows).tobytes(), buckets]


def _snapshot(_value: Any, feed: StreamFeed) -> dict[str, Any]:
    nodes = []
    for columns in feed.columns:
        head, (x, y, buckets) = columns.snapshot()
        nodes.append({**head, "x": memoryview(x), "y": memoryview(y), "buckets": memoryview(buckets)})
    return {"nodes": nodes}


def bfloat16(values: NDArray[np.float32]) -> bytes:
    """Return the values as bfloat16, the upper half of a float32: its range and NaN, with 3 digits."""
    import numpy as np

    halves: NDArray[np.uint16] = ((values.view(np.uint32) + np.uint32(0x8000)) >> 16).astype(np.uint16)
    halves[np.isnan(values)] = 0x7FC0  # rounding can carry into the sign of a NaN
    return halves.tobytes()


class StreamFeed(ipywidgets.Widget):  # type: ignore[misc]  # ipywidgets has no types
    """Feeds the marks of one dashboard on one page; never displayed itself.

    The traits are the page's initial state; ``feed.ts`` documents their meaning.
    """

    _model_name = traitlets.Unicode("StreamFeedModel").tag(sync=True)
    _model_module = traitlets.Unicode(MODULE).tag(sync=True)
    _model_module_version = traitlets.Unicode(MODULE_VERSION).tag(sync=True)
    feed = traitlets.Unicode().tag(sync=True)
    handle = traitlets.Unicode().tag(sync=True)
    root = traitlets.Instance(ipywidgets.Widget, allow_none=True).tag(sync=True, **widget_serialization)
    xscale = traitlets.Instance(ipywidgets.Widget, allow_none=True).tag(sync=True, **widget_serialization)
    window = traitlets.Instance(ipywidgets.Widget, allow_none=True).tag(sync=True, **widget_serialization)
    view = traitlets.Instance(ipywidgets.Widget, allow_none=True).tag(sync=True, **widget_serialization)
    pause = traitlets.Instance(ipywidgets.Widget, allow_none=True).tag(sync=True, **widget_serialization)
    follow = traitlets.Instance(ipywidgets.Widget, allow_none=True).tag(sync=True, **widget_serialization)
    status = traitlets.Instance(ipywidgets.Widget, allow_none=True).tag(sync=True, **widget_serialization)
    table = traitlets.Instance(ipywidgets.Widget, allow_none=True).tag(sync=True, **widget_serialization)
    figures = traitlets.List(traitlets.Instance(ipywidgets.Widget)).tag(sync=True, **widget_serialization)
    marks = traitlets.List(traitlets.Instance(ipywidgets.Widget)).tag(sync=True, **widget_serialization)
    specs: Any = traitlets.List().tag(sync=True)
    charts: Any = traitlets.List().tag(sync=True)
    layout = traitlets.Dict().tag(sync=True)
    rate = traitlets.Float(4.0).tag(sync=True)
    done = traitlets.Bool(False).tag(sync=True)
    heat = traitlets.Bool(False).tag(sync=True)
    #: Never changes, so it is sent only with the full state, such as when a comm opens.
    snapshot = traitlets.Any(None, allow_none=True).tag(sync=True, to_json=_snapshot)

    def __init__(self, columns: Sequence[Columns], **traits: Any) -> None:
        self.columns = tuple(columns)
        self._by_node = {c.node.node: c for c in self.columns}
        #: Number of the next tick to send, by node.
        self.sent = {c.node.node: c.node.ticks for c in self.columns}
        #: Readings of the tables to send with the next ticks: version, texts if they have changed, float32 values.
        self.readings: tuple[int, Sequence[str], bytes] | None = None
        super().__init__(**traits)

    def use(self, columns: Sequence[Columns]) -> None:
        """Send other series from now on; the page learns of them from `layout` and requests the past."""
        self.columns = tuple(columns)
        self._by_node = {c.node.node: c for c in self.columns}
        self.sent = {c.node.node: c.node.ticks for c in self.columns}

    def is_stale(self, node: NodeTelemetry) -> bool:
        """Whether the page knows other series of a node, or none."""
        columns = self._by_node.get(node.node)
        return columns is None or columns.stale

    @property
    def delay(self) -> float:
        """Seconds for which the ticks of a node wait for those of others: 10 ms per node, at most a period or 1 s."""
        count = len(self.columns)
        return 0.0 if count == 1 else min(_DELAY_PER_NODE_S * count, self.layout.get("period") or 1.0, 1.0)

    def push(self) -> None:
        """Send all new ticks: one message per call. Loop thread only."""
        if len(self.columns) == 1:
            (columns,) = self.columns
            for head, buffers in columns.frames(self.sent[columns.node.node]):
                self._send_ticks(head, buffers)
        else:
            self._send_together()
        self.sent = {c.node.node: c.node.ticks for c in self.columns}

    def _send_together(self) -> None:
        """Send the new ticks of several nodes: heads, then all times, then all values, node after node.

        A head is node and count (uint16) and the number of the first tick (uint32). Where a dashboard shows
        means and ranges of many GPUs, values are sent with 3 digits (`bfloat16`).
        """
        import numpy as np

        heads: list[tuple[int, int, int]] = []
        times, values = [], []
        for columns in self.columns:
            if columns.stale:  # the page opens another dashboard
                continue
            t, rows = columns.ticks(self.sent[columns.node.node])
            if len(t):
                heads.append((columns.node.node, len(t), columns.node.ticks - len(t)))
                times.append(t.tobytes())
                values.append(bfloat16(rows) if self.heat else rows.tobytes())
        if heads:
            content = {"batch": True, "bfloat16": True} if self.heat else {"batch": True}
            self._send_ticks(content, [np.array(heads, _HEAD).tobytes(), b"".join(times), b"".join(values)])

    def _send_ticks(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        """Send ticks, with the readings of the tables if there are new ones.

        The message has no parent: nobody reads it, and the header of the last cell would be a third of a tick.
        """
        if self.readings is not None:
            version, words, values = self.readings
            content, buffers = {**content, "v": version, **({"w": list(words)} if words else {})}, [*buffers, values]
            self.readings = None
        kernel = getattr(self.comm, "kernel", None)
        if kernel is None:  # not of ipykernel
            self.send(content, buffers)
            return
        data = {"method": "custom", "content": content}
        kernel.session.send(
            kernel.iopub_socket,
            "comm_msg",
            {"data": data, "comm_id": self.comm.comm_id},
            ident=self.comm.topic,
            buffers=buffers,
        )

    def catch_up(self, seen: Sequence[int]) -> None:
        """Send the ticks after `seen`, one tick number per node in the order of the columns."""
        gaps = [c.node.ticks - (seen[i] if i < len(seen) else 0) for i, c in enumerate(self.columns)]
        if all(0 <= gap <= c.node.ticks_in_ring for gap, c in zip(gaps, self.columns, strict=True)):
            self.sent = {c.node.node: c.node.ticks - gap for c, gap in zip(self.columns, gaps, strict=True)}
            self.push()
            return
        heads, buffers = [], []
        for columns in self.columns:
            head, parts = columns.snapshot()
            heads.append(head)
            buffers += parts
            self.sent[columns.node.node] = columns.node.ticks
        self.send({"snap": heads}, buffers)

    def send_metrics(self, points: Mapping[str, Mapping[str, Any]], *, whole: bool) -> None:
        """Send points of metrics.

        Parameters
        ----------
        points
            ``{name: {"t": unix seconds, "s": steps, "i": numbers of the points, "v": values, "last": value}}``.
        whole
            Whether the points replace those sent before.
        """
        if points:
            self.send({"m": points, "all": whole})


#: Capacity of the page's ring.
RING = RING_TICKS
