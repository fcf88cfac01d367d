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

from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets
import traitlets
from ipywidgets.widgets.widget import widget_serialization

from jupyter_amltrain.kernel.run_charts import MAX_LINES
from jupyter_amltrain.kernel.samples import Columns, encode
from jupyter_amltrain.kernel.telemetry import RING_TICKS, NodeTelemetry

MODULE, MODULE_VERSION = "jupyter-amltrain", "^0.1.0"

#: See :attr:`StreamFeed.delay`: however many nodes, a dashboard sends at most 50 messages per second.
_DELAY_PER_NODE_S = 0.01


def _snapshot(_value: Any, feed: StreamFeed) -> dict[str, Any]:
    nodes = []
    for columns in feed.columns:
        head, (x, y, buckets) = columns.snapshot()
        nodes.append({**head, "x": memoryview(x), "y": memoryview(y), "buckets": memoryview(buckets)})
    return {"nodes": nodes}


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
        self.use(columns)
        #: Readings of the tables to send with the next ticks: version, texts if they have changed, float32 values.
        self.readings: tuple[int, Sequence[str], bytes] | None = None
        super().__init__(**traits)

    def use(self, columns: Sequence[Columns]) -> None:
        """Send other series from now on; the page learns of them from `layout` and requests the past."""
        self.columns = tuple(columns)
        self._by_node = {c.node.node: c for c in self.columns}
        #: Number of the next tick to send, by node.
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
        """Send all new ticks in one message, unless there are none. Loop thread only.

        Where a dashboard shows means and ranges of many GPUs of several nodes, values are sent with 3 digits.
        """
        # A page opens another dashboard for nodes whose series have changed.
        new = [columns.since(self.sent[columns.node.node]) for columns in self.columns if not columns.stale]
        parts = [part for part in new if len(part.t)]
        if parts:
            halves = len(self.columns) > 1 and len(self.layout.get("gpus") or ()) > MAX_LINES
            content = {"n": len(parts), "halves": True} if halves else {"n": len(parts)}
            self._send_ticks(content, [encode(parts, halves=halves)])
        self.sent = {c.node.node: c.node.ticks for c in self.columns}

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
