"""Batches of a run folder's data for the service's MLflow: the script's own metrics, and ``system/*`` of a node.

Both are read from the files by their offset, so that nothing is lost when the reader is
killed, and data that waits for an unreachable service stays on the disk.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..protocol import whole_lines
from ..telemetry.gpu_columns import mlflow_name
from ..telemetry.reduce import mean

#: Limits of the service (learn.microsoft.com/azure/machine-learning/resource-limits-capacity): lengths of a metric's
#: name, a tag's key and value. The length of a parameter's value is not documented; MLflow 2 had 500.
METRIC_NAME, TAG_KEY, TAG_VALUE, PARAM_VALUE = 255, 100, 1000, 500
#: The service allows 50 metric names per run; the agent uses at most this many, over all nodes.
MAX_NAMES = 40
#: Bytes of the journal read at once.
CHUNK_BYTES = 1 << 20
#: Maximum number of telemetry periods that wait for an unreachable service.
MAX_WAITING = 720

#: Column -> MLflow's name (mlflow/system_metrics) and factor.
_HOST = {
    "host_cpu": ("cpu_utilization_percentage", 1.0),
    "host_memory": ("system_memory_usage_megabytes", 1e-6),
    "net_rx": ("network_receive_megabytes", 1e-6),
    "net_tx": ("network_transmit_megabytes", 1e-6),
}
_GPU = {name: mlflow_name(name) for name in ("util", "memory", "power")}
#: Sums since the machine came up: use their last value, not their mean.
_COUNTERS = ("net_rx", "net_tx")
#: Metrics of host and GPU, fewer for machines with more GPUs.
_LEVELS: Tuple[Tuple[Tuple[str, ...], Tuple[str, ...]], ...] = (
    (tuple(_HOST), tuple(_GPU)),
    (("host_cpu", "host_memory"), ("util", "memory")),
    (("host_cpu",), ("util",)),
    (("host_cpu",), ()),
)


class Item(NamedTuple):
    """One thing to send."""

    kind: str  #: ``metrics``, ``params`` or ``tags``
    body: Dict[str, Any]


class JournalReader:
    """The script's changes of the job's own run.

    Parameters
    ----------
    path
        The sink's journal.
    run_id
        The job's MLflow run in the journal; runs nested below it are not forwarded.
    offset
        First byte to read.

    Attributes
    ----------
    offset
        Byte after the items that :meth:`read` has returned.
    system
        Whether the script logs ``system/`` itself.
    """

    def __init__(self, path: str, run_id: str, offset: int = 0) -> None:
        self.path, self.run_id, self.offset = path, run_id, offset
        self.system = False
        self._last: Dict[str, Dict[str, Any]] = {}

    def read(self) -> List[Item]:
        """Return the next changes; call again while :attr:`offset` moves."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read(CHUNK_BYTES)
                while data and b"\n" not in data:
                    more = file.read(CHUNK_BYTES)
                    if not more:
                        return []
                    data += more
        except OSError:
            return []
        items: List[Item] = []
        for line in whole_lines(data):
            try:
                record = json.loads(line.decode("utf-8", "replace"))
                items += self._items(record["op"], record["b"])
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
        self.offset += data.rfind(b"\n") + 1
        return items

    def _items(self, op: str, body: Dict[str, Any]) -> Iterator[Item]:
        if (body.get("run_id") or body.get("run_uuid")) != self.run_id:
            return
        if op == "runs/log-metric":
            body = {"metrics": [body]}
        elif op == "runs/log-parameter":
            body = {"params": [body]}
        elif op == "runs/set-tag":
            body = {"tags": [body]}
        elif op != "runs/log-batch":
            return
        for metric in body.get("metrics") or ():
            self.system = self.system or str(metric["key"]).startswith("system/")
            item = point(metric["key"], float(metric["value"]), int(metric.get("timestamp") or 0), metric.get("step"))
            # MLflow 3 logs the last points once more to link them to a model.
            if metric.get("model_id") and self._last.get(item.body["key"]) == item.body:
                continue
            self._last[item.body["key"]] = item.body
            yield item
        for param in body.get("params") or ():
            value = str(param.get("value") or "")[:PARAM_VALUE]
            yield Item("params", {"key": param["key"], "value": value})
        for tag in body.get("tags") or ():
            key = str(tag["key"])
            if not key.startswith("mlflow.") or key == "mlflow.note.content":  # the service has its own
                yield Item("tags", {"key": key[:TAG_KEY], "value": str(tag.get("value") or "")[:TAG_VALUE]})


def point(key: str, value: float, moment: int, step: Any) -> Item:
    """Return a metric; `moment` in ms. Values that JSON cannot express are sent as MLflow's client sends them."""
    plain: Any = value
    if value != value:
        plain = "NaN"
    elif math.isinf(value):
        plain = math.copysign(sys.float_info.max, value)
    return Item("metrics", {"key": key[:METRIC_NAME], "value": plain, "timestamp": moment, "step": int(step or 0)})


class Bucket(NamedTuple):
    """One period of telemetry."""

    items: List[Item]
    end: int  #: byte after its last line


class TelemetryReader:
    """The means of a node's telemetry, period by period.

    Parameters
    ----------
    path
        ``telemetry/node-N.jsonl``.
    node, nodes
        Number of this node, and number of nodes.
    period
        Seconds per point.
    offset, step
        Byte and step to resume from.
    """

    def __init__(self, path: str, node: int, nodes: int, period: float, offset: int = 0, step: int = 0) -> None:
        self.path, self.node, self.nodes, self.period = path, node, nodes, period
        self.offset, self.step = offset, step
        self.waiting: Deque[Bucket] = deque(maxlen=MAX_WAITING)
        self._names: Optional[List[Tuple[int, str, float, bool]]] = None
        self._rows: List[List[Any]] = []

    def read(self, last: bool = False) -> None:
        """Read new lines; with `last`, also close the current period."""
        try:
            with open(self.path, "rb") as file:
                if self._names is None:
                    self._names = self._columns(json.loads(file.readline().decode()))
                    self.offset = max(self.offset, file.tell())
                while True:
                    file.seek(self.offset)
                    data = file.read(CHUNK_BYTES)
                    if b"\n" not in data:
                        break
                    for line in data[: data.rfind(b"\n") + 1].splitlines(True):
                        self._line(line)
        except (OSError, ValueError, KeyError, TypeError):
            return
        if last:
            self._close()

    def _line(self, line: bytes) -> None:
        if line.startswith(b"["):
            try:
                row = json.loads(line.decode())
            except ValueError:
                row = None
            if row:
                if self._rows and not 0 <= row[1] - self._rows[0][1] < self.period:
                    self._close()
                self._rows.append(row)
        self.offset += len(line)

    def _close(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        items = []
        for column, name, factor, counter in self._names or ():
            known = [row[column] for row in rows if column < len(row) and row[column] is not None]
            value = known[-1] if counter and known else mean(known)
            if value is not None:
                items.append(point(name, round(value * factor, 2), int(rows[-1][1] * 1000), self.step))
        self.waiting.append(Bucket(items, self.offset))
        self.step += 1

    def _columns(self, header: Dict[str, Any]) -> List[Tuple[int, str, float, bool]]:
        """Return column, name, factor, and whether to use the last value, for each metric that is sent."""
        gpus = header.get("gpus") or []
        fits = [level for level in _LEVELS if self.nodes * (len(level[0]) + len(gpus) * len(level[1])) <= MAX_NAMES]
        host, gpu = fits[0] if fits else _LEVELS[-1]
        prefix = "system/node_%d/" % self.node if self.node else "system/"
        columns = list(header["columns"])
        columns_sent = [
            (columns.index(name), prefix + _HOST[name][0], _HOST[name][1], name in _COUNTERS)
            for name in host
            if name in columns
        ]
        names = list(header.get("gpu_columns") or ())
        for at, one in enumerate(gpus):
            for name in gpu:
                if name in names:
                    key = "%sgpu_%s_%s" % (prefix, one.get("index", at), _GPU[name][0])
                    columns_sent.append((len(columns) + at * len(names) + names.index(name), key, _GPU[name][1], False))
        return columns_sent


def behind(path: str, offset: int) -> int:
    """Return the number of unread bytes of a file."""
    try:
        return max(0, os.stat(path).st_size - offset)
    except OSError:
        return 0
