"""The kernel's end of a live dashboard: new ticks go out once, in one binary message a node.

The page's end (``labextension/src/widgets/feed.ts``) holds ring and history and gives them
to the bqplot marks, so that a tick costs the same in hour 24 as in minute 1. The kernel
only sends on this comm: what a page has to say comes by the control channel, which works
while a cell runs, and a comm that a background thread sends on and the page too is
re-routed by ipykernel 7.4.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets
import traitlets
from ipywidgets.widgets.widget import widget_serialization

from jupyter_amltrain.kernel.telemetry import CAPACITY, NodeTelemetry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MODULE, MODULE_VERSION = "jupyter-amltrain", "^0.1.0"


class Columns:
    """Which series of a node a page gets, and how they are packed for the wire.

    Parameters
    ----------
    names
        Series of the node in the order of the wire. Unknown ones are sent as holes.
    """

    def __init__(self, node: NodeTelemetry, names: Sequence[str]) -> None:
        self.node = node
        self.names = tuple(names)
        self._of = node.columns
        self._index = [node.index.get(name, -1) for name in names]

    @property
    def stale(self) -> bool:
        """Whether the node has got other series since."""
        return self._of is not self.node.columns

    def _pick(self, table: NDArray[np.float32]) -> NDArray[np.float32]:
        """The rows of `table` (series first) that are sent."""
        import numpy as np

        picked = table[self._index]
        if -1 in self._index:
            picked[[k for k, i in enumerate(self._index) if i < 0]] = np.nan
        return np.ascontiguousarray(picked, dtype=np.float32)

    def frames(self, first: int) -> Iterable[tuple[dict[str, Any], list[bytes]]]:
        """Messages that bring the ticks from number `first` on."""
        t, rows = self.node.since(first)
        if not len(t):
            return
        head: dict[str, Any] = {"n": self.node.node, "s": self.node.ticks - len(t)}
        if len(t) == 1:
            yield head, [t.tobytes() + self._pick(rows).tobytes()]
        else:
            yield {**head, "k": len(t)}, [t.tobytes(), self._pick(rows).tobytes()]

    def snapshot(self) -> tuple[dict[str, Any], list[bytes]]:
        """Ring and history as they are now: head, and the buffers ``[x, y, buckets]``.

        Right on any thread: a page that is loaded again asks for the state of every widget, and
        the main thread answers while the loop takes ticks.
        """
        while True:
            before = self.node.changes
            try:
                found = self._snapshot()
            except (IndexError, ValueError):
                if before == self.node.changes:
                    raise
                continue
            if not before % 2 and before == self.node.changes:
                return found
            time.sleep(0)  # let the loop go on

    def _snapshot(self) -> tuple[dict[str, Any], list[bytes]]:
        t, rows = self.node.since(0)
        pyramid = self.node.pyramid
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


class StreamFeed(ipywidgets.Widget):  # type: ignore[misc]  # ipywidgets has no types
    """Feeds the marks of one dashboard on one page; is never displayed itself.

    The traits are what the page needs to know once; see the page's end for their meaning.
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
    layout = traitlets.Dict().tag(sync=True)
    rate = traitlets.Float(4.0).tag(sync=True)
    done = traitlets.Bool(False).tag(sync=True)
    heat = traitlets.Bool(False).tag(sync=True)
    #: Never changes, so it is never sent again; who asks for the state (a comm that opens) gets it.
    snapshot = traitlets.Any(None, allow_none=True).tag(sync=True, to_json=_snapshot)

    def __init__(self, columns: Sequence[Columns], **traits: Any) -> None:
        self.columns = tuple(columns)
        self._by_node = {c.node.node: c for c in self.columns}
        #: Number of the next tick that the page lacks, by node, as far as we have sent.
        self.sent = {c.node.node: c.node.ticks for c in self.columns}
        super().__init__(**traits)

    def use(self, columns: Sequence[Columns]) -> None:
        """Send other series from now on; the page is told of them by `layout`, and asks for what was."""
        self.columns = tuple(columns)
        self._by_node = {c.node.node: c for c in self.columns}
        self.sent = {c.node.node: c.node.ticks for c in self.columns}

    @property
    def stale(self) -> bool:
        """Whether a node has other series than the page was told of."""
        return any(columns.stale for columns in self.columns)

    def push(self, node: NodeTelemetry) -> None:
        """Send what is new of a node. Runs on the loop."""
        columns = self._by_node.get(node.node)
        if columns is None:
            return
        for head, buffers in columns.frames(self.sent[node.node]):
            self.send(head, buffers)
        self.sent[node.node] = node.ticks

    def catch_up(self, seen: Sequence[int]) -> None:
        """Send what a page lacks that has the ticks up to `seen`: by node, in the order of the columns."""
        gaps = [c.node.ticks - (seen[i] if i < len(seen) else 0) for i, c in enumerate(self.columns)]
        if all(0 <= gap <= c.node.held for gap, c in zip(gaps, self.columns, strict=True)):
            for columns, gap in zip(self.columns, gaps, strict=True):
                self.sent[columns.node.node] = columns.node.ticks - gap
                self.push(columns.node)
            return
        heads, buffers = [], []
        for columns in self.columns:
            head, parts = columns.snapshot()
            heads.append(head)
            buffers += parts
            self.sent[columns.node.node] = columns.node.ticks
        self.send({"snap": heads}, buffers)

    def send_metrics(self, points: Mapping[str, Mapping[str, Sequence[float | None]]], *, whole: bool) -> None:
        """Send points of metrics.

        Parameters
        ----------
        points
            ``{name: {"t": unix seconds, "s": steps, "i": numbers of the points, "v": values}}``.
        whole
            These replace what was sent before.
        """
        if points:
            self.send({"m": points, "all": whole})


#: What the page's ring is sized by.
RING = CAPACITY
