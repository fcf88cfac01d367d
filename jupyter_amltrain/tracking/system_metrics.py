"""Converts telemetry and summary of a run to metrics for MLflow's own "System metrics" tab.

The names and units are those of MLflow's ``system_metrics`` monitors (megabytes are
10^6 bytes there); with several nodes each has its ``system/node_<n>/``, as MLflow
names a monitor with a node id. A tag records what is stored; it is written in
the transaction of the rows, so that a repeated import adds nothing twice. A
script that logs system metrics itself keeps its own: two series under one name would
be mixed up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jupyter_amltrain.agent.protocol import open_regular
from jupyter_amltrain.agent.telemetry.gpu_columns import BY_NAME, GPU_COLUMNS, SLOW, mlflow_name, summary_names
from jupyter_amltrain.tracking.journal_replay import Replay
from jupyter_amltrain.tracking.telemetry_table import NodeTable, tables

#: Tag of the run: which of its telemetry is in the store. MLflow's page hides tags that begin with ``mlflow.``.
CURSOR = "mlflow.amltrain.system"
#: Its name in older stores.
OLD_CURSOR = "amltrain.system"
#: How MLflow's names of system metrics begin.
SYSTEM = "system/"
#: Characters of a tag's value: the limit of MLflow 2.
MAX_TAG_CHARS = 5000
#: Points that are collected in memory before their insertion.
CHUNK = 20_000

#: Host column -> MLflow's name and factor. MLflow has no names for the run's own use.
_HOST = {
    "host_cpu": ("cpu_utilization_percentage", 1.0),
    "host_memory": ("system_memory_usage_megabytes", 1e-6),
    "cpu": ("run_cpu_utilization_percentage", 1.0),
    "memory": ("run_memory_usage_megabytes", 1e-6),
}
#: Tag with the incidents of the GPUs.
NOTES = "amltrain.gpu_notes"
#: Value of a GPU's summary -> name after ``gpu_<i>_``, and factor.
_GPU_SUMMARY = {
    "energy_wh": ("energy_wh", 1.0),
    "idle_share": ("idle_share", 1.0),
    "first_use": ("first_use_seconds", 1.0),
    **{key: (name, mlflow_name(column.name)[1]) for column in GPU_COLUMNS for key, name in summary_names(column)},
}
_HOST_SUMMARY = {
    "cpu_mean": ("run_cpu_utilization_percentage_mean", 1.0),
    "cpu_peak": ("run_cpu_utilization_percentage_peak", 1.0),
    "memory_peak": ("run_memory_peak_megabytes", 1e-6),
}


class SystemMetrics:
    """Telemetry of a run folder, read once, outside any transaction.

    Parameters
    ----------
    folder
        The run folder.
    ended
        Whether the run has ended: only then its summary and the ticks after the last
        full minute are used.
    """

    def __init__(self, folder: Path, ended: bool) -> None:
        self.kind, self.nodes = tables(folder, ended)
        self.summaries = _summaries(folder) if ended else {}
        self.ended = ended

    def put(self, replay: Replay, run_id: str) -> int:
        """Update the store within the caller's transaction.

        Returns
        -------
        int
            Points written.
        """
        stored = _cursor(replay, run_id)
        if stored is None:
            # Rows without the tag are the script's own, imported by a version without the tag.
            stored = {"own": True} if replay.rows.has_metrics(run_id, SYSTEM) else {}
        layout: dict[str, Any] = {"own": True} if stored.get("own") else self._layout()
        layout["summary"] = {str(node): summary.get("seq", 0) for node, summary in self.summaries.items()}
        if layout == stored or not self.nodes:
            return 0
        begin = {table.node: 0 for table in self.nodes}
        same = {name: value for name, value in stored.items() if name not in ("rows", "summary")}
        if layout.get("own"):
            begin = {}
        elif not self.ended and same == {name: layout[name] for name in same} and same:
            begin = {node: stored["rows"].get(str(node), 0) for node in begin}
        else:
            replay.rows.remove_metrics(run_id, SYSTEM)
        # A point of a summary has only one step: it replaces the earlier one.
        replay.rows.remove_metrics(run_id, SYSTEM, [key for key, *_ in self._summary_points()])
        count = 0
        for points in (self._series_points(begin), self._summary_points()):
            for key, value, moment, step in points:
                replay.point(run_id, key, value, round(moment * 1000), step)
                count += 1
                if count % CHUNK == 0:
                    replay.flush()
        replay.flush()
        notes = _notes(self.summaries)
        if notes:
            replay.tag(run_id, NOTES, notes)
        _set_cursor(replay, run_id, layout)
        return count

    def _layout(self) -> dict[str, Any]:
        """Return what determines the points; while it is equal, stored points stay valid."""
        rows = {str(table.node): table.whole() for table in self.nodes}
        widths = {str(table.node): table.width for table in self.nodes}
        return {"kind": self.kind, "ended": self.ended, "widths": widths, "rows": rows}

    def _prefix(self, node: int) -> str:
        return f"{SYSTEM}node_{node}/" if len(self.nodes) > 1 else SYSTEM

    def _series_points(self, begin: dict[int, int]) -> Iterator[tuple[str, float, float, int]]:
        """Yield key, value, unix seconds and step of each point; `begin`: first row of each node's table."""
        for table in self.nodes:
            if table.node not in begin:
                continue
            end = len(table.times) if self.ended else table.whole()
            for name, column, factor in _series(table):
                values = table.column(column)
                for step in range(begin[table.node], end):
                    value = values[step]
                    if value is not None:  # an unknown value is not zero
                        yield self._prefix(table.node) + name, round(value * factor, 2), table.times[step], step

    def _summary_points(self) -> Iterator[tuple[str, float, float, int]]:
        for table in self.nodes:
            for name, value in _summary(self.summaries.get(table.node) or {}):
                yield self._prefix(table.node) + name, value, table.times[-1], 0


def remove_series(replay: Replay, run_id: str) -> None:
    """Remove the imported series of a run whose script logs its own, in the transaction of its first points."""
    done = _cursor(replay, run_id) or {}
    if not done.get("own"):
        if done:
            replay.rows.remove_metrics(run_id, SYSTEM)
        _set_cursor(replay, run_id, {"own": True})


def _cursor(replay: Replay, run_id: str) -> dict[str, Any] | None:
    tags = (replay.rows.tag(run_id, name) for name in (CURSOR, OLD_CURSOR))
    text = next((tag for tag in tags if tag is not None), None)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None  # the tag was edited: write all points again
    return value if isinstance(value, dict) else {}


def _set_cursor(replay: Replay, run_id: str, layout: dict[str, Any]) -> None:
    replay.tag(run_id, CURSOR, json.dumps(layout, separators=(",", ":")))
    replay.rows.remove_tag(run_id, OLD_CURSOR)


def _series(table: NodeTable) -> Iterator[tuple[str, str, float]]:
    """Yield MLflow's name (without prefix), the column, and the factor."""
    for column, (name, factor) in _HOST.items():
        yield name, column, factor
    header = table.header
    units: dict[str, str] = {}
    for names_key, units_key in (("gpu_columns", "gpu_units"), ("gpu_figures", "gpu_figure_units")):
        units.update(zip(header.get(names_key) or (), header.get(units_key) or (), strict=False))
    for gpu in header.get("gpus") or ():
        index, size, limit = gpu["index"], gpu.get("memory_total"), gpu.get("power_limit")
        columns = [name.partition(".") for name in (*table.names, *table.slow)]
        names = [name for device, dot, name in columns if dot and device == f"gpu{index}"]
        for name in dict.fromkeys(names):
            own, factor = mlflow_name(name, _unit(name, units.get(name, "")))
            yield f"gpu_{index}_{own}", f"gpu{index}.{name}", factor
        if size:
            yield f"gpu_{index}_memory_usage_percentage", f"gpu{index}.memory", 100 / size
        if limit:
            yield f"gpu_{index}_power_usage_percentage", f"gpu{index}.power", 100 / limit


def _unit(name: str, unit: str) -> str:
    """Return the unit of a column's values in a table; `unit` is the header's, for an unknown column."""
    column = BY_NAME.get(name)
    if column is None:
        return unit
    # SlowColumns converts MiB to bytes.
    return "bytes" if column.kind == SLOW and column.unit == "MiB" else column.unit


def _summary(summary: dict[str, Any]) -> Iterator[tuple[str, float]]:
    sources = [("", summary, _HOST_SUMMARY)]
    sources += [(f"gpu_{gpu['index']}_", gpu, _GPU_SUMMARY) for gpu in summary.get("gpus") or ()]
    for prefix, values, names in sources:
        for field, (name, factor) in names.items():
            value = values.get(field)
            if isinstance(value, (int, float)):
                yield prefix + name, round(value * factor, 4)


def _notes(summaries: dict[int, dict[str, Any]]) -> str:
    """Return the incidents of the GPUs, one line each with its time (UTC), cut to the length of a tag."""
    lines = []
    for node, summary in summaries.items():
        prefix = f"node {node}: " if len(summaries) > 1 else ""
        for note in summary.get("notes") or ():
            if isinstance(note, list) and len(note) == 2 and isinstance(note[0], (int, float)):
                moment = datetime.fromtimestamp(note[0], timezone.utc).isoformat(timespec="milliseconds")
                lines.append(f"{moment} {prefix}{note[1]}")
    return "\n".join(lines)[:MAX_TAG_CHARS]


def _summaries(folder: Path) -> dict[int, dict[str, Any]]:
    summaries = {}
    for path in sorted((folder / "telemetry").glob("summary-*.json")):
        number = path.stem.removeprefix("summary-")
        try:
            with os.fdopen(open_regular(str(path)), "rb") as file:
                value = json.loads(file.read())
        except (OSError, ValueError, RecursionError):
            continue  # files are replaced atomically: a torn one means a broken disk, and the series have more
        if number.isdigit() and isinstance(value, dict):
            summaries[int(number)] = value
    return dict(sorted(summaries.items()))
