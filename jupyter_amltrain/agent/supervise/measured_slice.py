"""End of a job that is only measured: some seconds or steps after its first metric."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..protocol import METRICS, AgentError

#: Bytes of the journal that are read at once.
_READ_BYTES = 1 << 20
_FIELDS = ("seconds", "steps", "start_s")


def check(limits: Mapping[str, Any]) -> Dict[str, float]:
    """Return the limits of a slice: ``seconds`` and ``steps`` (0 for none) after the first metric, ``start_s``.

    Raises
    ------
    AgentError
        ``SubmitError`` that names the field.
    """
    for name, value in limits.items():
        if name not in _FIELDS or type(value) not in (int, float) or not 0 <= value < 1e10:
            raise AgentError("SubmitError", "Cannot submit the job: slice.%s is not valid." % name)
    if not limits.get("seconds") or not limits.get("start_s"):
        raise AgentError("SubmitError", "Cannot submit the job: slice has no time limit.")
    return {name: limits.get(name, 0) for name in _FIELDS}


class MeasuredSlice:
    """Reads the metrics of a job while it runs, and says when it has run long enough.

    The clock starts with the first point of a metric that gets a second one: a value that is logged once, such as
    the size of the data, says nothing about the training.

    Parameters
    ----------
    path
        The journal of the job's first process.
    limits
        As :func:`check` returns them.
    """

    def __init__(self, path: str, limits: Mapping[str, float]) -> None:
        self._path, self._limits = path, limits
        self._offset, self._rest = 0, b""
        self._first: Dict[str, Tuple[float, int]] = {}  #: time and step of a metric's first point
        self._began: Optional[float] = None
        self._steps = 0

    def due(self, now: float, started: float) -> str:
        """Return why the job is to end; empty if it is to run on.

        Parameters
        ----------
        now, started
            Monotonic seconds: of this call, and of the start of the job.
        """
        self._read(now)
        seconds, steps = self._limits["seconds"], self._limits["steps"]
        if self._began is None:
            limit = self._limits["start_s"]
            return "measured slice: no metric in %g s" % limit if now >= started + limit else ""
        if steps and self._steps >= steps:
            return "measured slice: ended after %d steps" % self._steps
        return "measured slice: ended %g s after its first metric" % seconds if now >= self._began + seconds else ""

    def _read(self, now: float) -> None:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(_READ_BYTES)
        except OSError:  # nothing was logged so far
            return
        self._offset += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            for key, step in _points(line):
                first = self._first.get(key)
                if first is None:
                    self._first[key] = (now, step)
                    continue
                self._began = first[0] if self._began is None else min(first[0], self._began)
                self._steps = max(self._steps, step - first[1])


def _points(line: bytes) -> List[Tuple[str, int]]:
    """Return name and step of the points in a line of the journal; a job may have written anything into it."""
    try:
        record = json.loads(line)
        op, body = record["op"], record["b"]
        rows = [body] if op == "runs/log-metric" else body.get("metrics") or [] if op == "runs/log-batch" else []
        return [(str(row["key"]), int(row.get("step") or 0)) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return []


def slice_of(folder: str, job: Mapping[str, Any]) -> Optional[MeasuredSlice]:
    """Return the slice of a job that is only measured; ``None`` for other jobs."""
    limits = job.get("slice")
    if not limits or not os.path.isdir(folder):
        return None
    return MeasuredSlice(os.path.join(folder, METRICS), limits)  # of the first process, which the others of a node see
